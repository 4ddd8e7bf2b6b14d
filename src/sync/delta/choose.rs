//! Choice of bases for a target.

use super::BaseId;

/// Bases that are chosen for a target: more cost time and gain little.
pub const BASES_CHOSEN: usize = 2;
/// A base with a smaller share of the target is not worth reading.
const SHARE_MIN: f64 = 0.05;
/// Share of the target by which another base must exceed the base of the same path to come before it.
const SAME_PATH_LEAD: f64 = 0.1;

/// The share of a target that a base has, as the similarity index estimates it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Resemblance {
    /// The base.
    pub base: BaseId,
    /// The share of the target's bytes that it has too, 0 to 1.
    pub share: f64,
}

/// Returns the bases for a target, the most useful first: at most [`BASES_CHOSEN`] of the similar ones. The base of
/// the same path is always among them, and is first unless another has clearly more.
///
/// The answer does not depend on the order of `similar`.
pub fn choose(same_path: Option<BaseId>, similar: &[Resemblance]) -> Vec<BaseId> {
    let mut ranked: Vec<(f64, BaseId)> = similar
        .iter()
        .filter(|found| found.share >= SHARE_MIN && Some(found.base) != same_path)
        .map(|found| (found.share, found.base))
        .collect();
    if let Some(base) = same_path {
        let share =
            similar.iter().filter(|found| found.base == base).map(|found| found.share).fold(0.0, f64::max);
        ranked.push((share + SAME_PATH_LEAD, base));
    }
    ranked.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    ranked.dedup_by_key(|(_, base)| *base);
    let mut chosen: Vec<BaseId> = Vec::new();
    for (_, base) in ranked {
        if !chosen.contains(&base) {
            chosen.push(base);
        }
    }
    if let Some(at) = same_path.and_then(|base| chosen.iter().position(|&chosen| chosen == base)) {
        let base = chosen.remove(at);
        chosen.insert(at.min(BASES_CHOSEN - 1), base);
    }
    chosen.truncate(BASES_CHOSEN);
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(same_path: Option<u64>, similar: &[(u64, f64)]) -> Vec<u64> {
        let similar: Vec<_> =
            similar.iter().map(|&(base, share)| Resemblance { base: BaseId(base), share }).collect();
        choose(same_path.map(BaseId), &similar).into_iter().map(|base| base.0).collect()
    }

    #[test]
    fn the_two_most_similar_are_chosen() {
        assert_eq!(chosen(None, &[(3, 0.2), (1, 0.9), (2, 0.5)]), [1, 2]);
        assert_eq!(chosen(None, &[(2, 0.5), (1, 0.5), (0, 0.01)]), [1, 2]);
        assert_eq!(chosen(None, &[(7, 0.5), (7, 0.4)]), [7]);
        assert_eq!(chosen(None, &[]), [0u64; 0]);
    }

    #[test]
    fn the_same_path_is_among_them() {
        assert_eq!(chosen(Some(9), &[(3, 0.2), (1, 0.9), (2, 0.5)]), [1, 9]);
        assert_eq!(chosen(Some(9), &[(9, 0.85), (1, 0.9), (2, 0.5)]), [9, 1]);
        assert_eq!(chosen(Some(9), &[]), [9]);
    }
}
