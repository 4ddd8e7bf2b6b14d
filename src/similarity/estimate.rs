//! From samples of grams to shares of bytes, which is what users mean.
//!
//! A change of one byte takes [`GRAM_BYTES`] grams with it, but only that byte is not in common. So what two contents
//! share in grams is less than what they share in bytes, the more so the more the changes are scattered. Taken as breaks
//! that fall evenly, `x` of them a byte, a gram is in common with probability `e^(-24x)`, and a byte lies in a common run
//! of [`MATCH_BYTES_MIN`] or more with probability `(1 + 32x) e^(-32x)`: the run that a given byte lies in is `l` long with
//! density `x^2 l e^(-xl)`. Where changes come in blocks instead, the share of grams is the share of bytes.
//!
//! Which of the two it is shows in where the grams in common stand: next to each other, or anywhere. What was measured on
//! releases, documentation and executables is in `docs/decisions/0027-estimates-of-bytes.md`.

use super::exact::MATCH_BYTES_MIN;
use super::gram::{GRAM_BYTES, LEVELS};
use super::sketch::Asked;

/// How scattered changes are where nothing says it.
pub(super) const SCATTER_UNKNOWN: f64 = 0.5;
/// So many neighbours that differ are expected before what is seen of them counts as much as [`SCATTER_UNKNOWN`].
const NEIGHBOURS_TRUSTED: f64 = 16.0;

/// Of two contents, the share of each one's bytes that is in the other, from the shares of distinct grams, 0 to 1, and how
/// scattered changes are: 0 if in blocks, 1 if evenly.
///
/// Both shares grow by the factor that follows from the larger one: a file that is wholly in a large one leaves the large
/// one's share as it is.
pub(super) fn shares_of_bytes(a_grams: f64, b_grams: f64, scatter: f64) -> (f64, f64) {
    let most = a_grams.max(b_grams);
    if most <= 0.0 {
        return (0.0, 0.0);
    }
    let factor = 1.0 + scatter * (of_scattered(most) / most - 1.0).max(0.0);
    ((a_grams * factor).min(1.0), (b_grams * factor).min(1.0))
}

/// The share of bytes if changes are scattered evenly.
fn of_scattered(grams: f64) -> f64 {
    let breaks = breaks(grams) * MATCH_BYTES_MIN as f64;
    (1.0 + breaks) * (-breaks).exp()
}

/// Breaks for each byte, if they are.
fn breaks(grams: f64) -> f64 {
    -grams.clamp(f64::MIN_POSITIVE, 1.0).ln() / GRAM_BYTES as f64
}

/// Where in the queried file its features stand, as a content sees them whose features are selected at some level.
pub(super) struct Places {
    at_level: [Row; LEVELS],
}

/// The features that a level selects, by place.
#[derive(Default)]
struct Row {
    /// Of each feature its rank, if it is selected.
    ranks: Vec<Option<u16>>,
    len: usize,
    /// Neighbours that overlap, and by how many bytes they are apart together.
    near: f64,
    near_bytes: f64,
    /// Neighbours that do not.
    far: f64,
}

impl Places {
    /// Of no more than 65,536 features. O(features).
    pub(super) fn of(features: &[Asked]) -> Places {
        let mut by_place: Vec<usize> = (0..features.len()).collect();
        by_place.sort_unstable_by_key(|&i| features[i].at);
        Places { at_level: std::array::from_fn(|level| Row::of(features, &by_place, level as u8)) }
    }

    /// How scattered the changes are towards a content of `level` that has the features `found`, a share `grams` of the
    /// query's: by how many neighbours differ, of those that would if changes fell evenly. O(found log found).
    pub(super) fn scatter(&self, found: &[u16], level: u8, grams: f64) -> f64 {
        let row = &self.at_level[usize::from(level)];
        let mut ranks: Vec<u16> = found.iter().filter_map(|&i| row.ranks[usize::from(i)]).collect();
        ranks.sort_unstable();
        let (Some(&first), Some(&last)) = (ranks.first(), ranks.last()) else { return SCATTER_UNKNOWN };
        let both = ranks.windows(2).filter(|pair| pair[1] == pair[0] + 1).count();
        let at_ends = usize::from(first == 0) + usize::from(usize::from(last) + 1 == row.len);
        let differ = (2 * (ranks.len() - both) - at_ends) as f64;
        let expected = row.differing(grams);
        let trusted = SCATTER_UNKNOWN * NEIGHBOURS_TRUSTED;
        ((differ + trusted) / (expected + NEIGHBOURS_TRUSTED)).min(1.0)
    }
}

impl Row {
    fn of(features: &[Asked], by_place: &[usize], level: u8) -> Row {
        let mut row = Row { ranks: vec![None; features.len()], ..Row::default() };
        let mut last = None;
        for &i in by_place.iter().filter(|&&i| features[i].feature.level() >= level) {
            row.ranks[i] = Some(row.len as u16);
            row.len += 1;
            if let Some(last) = last.replace(features[i].at) {
                match features[i].at - last {
                    apart if apart < GRAM_BYTES as u64 => {
                        row.near += 1.0;
                        row.near_bytes += apart as f64;
                    }
                    _ => row.far += 1.0,
                }
            }
        }
        row
    }

    /// Neighbours of which one is in common and the other is not, if changes fall evenly: of those that overlap a break has
    /// to fall into the part where they do not.
    fn differing(&self, grams: f64) -> f64 {
        let apart = self.near_bytes / self.near.max(1.0);
        2.0 * grams * (self.far * (1.0 - grams) + self.near * (1.0 - (-breaks(grams) * apart).exp()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::similarity::QuerySketch;

    #[test]
    fn ends_stay_and_the_order_too() {
        assert_eq!(shares_of_bytes(0.0, 0.0, 1.0), (0.0, 0.0));
        assert_eq!(shares_of_bytes(1.0, 0.02, 1.0), (1.0, 0.02), "what is whole says nothing of changes");
        for scatter in [0.0, 0.5, 1.0] {
            let mut last = 0.0;
            for grams in (1..=1000).map(|i| f64::from(i) / 1000.0) {
                let (bytes, same) = shares_of_bytes(grams, grams, scatter);
                assert!(bytes >= grams && bytes <= 1.0 && bytes >= last && bytes == same, "{grams}: {bytes}");
                last = bytes;
            }
        }
        assert_eq!(shares_of_bytes(0.3, 0.2, 0.0), (0.3, 0.2));
    }

    fn noise(seed: u64) -> impl FnMut() -> u64 {
        let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        move || {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            x >> 20
        }
    }

    /// A simulation of the model: breaks fall evenly, and runs of 32 bytes and more count.
    #[test]
    fn scattered_changes_are_as_the_model_says() {
        let mut next = noise(1);
        for one_in in [40, 100, 400] {
            let broken: Vec<bool> = (0..1_000_000).map(|_| next().is_multiple_of(one_in)).collect();
            let runs: Vec<usize> = broken.split(|broken| *broken).map(<[bool]>::len).collect();
            let share = |part: usize| part as f64 / broken.len() as f64;
            let grams = share(runs.iter().map(|len| (len + 1).saturating_sub(GRAM_BYTES)).sum());
            let bytes = share(runs.iter().filter(|len| **len >= MATCH_BYTES_MIN).sum());
            let (estimate, _) = shares_of_bytes(grams, grams, 1.0);
            assert!((estimate - bytes).abs() < 0.02, "{one_in}: {grams} {bytes} {estimate}");
        }
    }

    /// Blocks are told from scattered changes by where the features in common stand.
    #[test]
    fn blocks_are_told_from_scattered_changes() {
        let mut next = noise(2);
        let bytes: Vec<u8> = (0..200_000).map(|_| next() as u8).collect();
        let mut query = QuerySketch::new();
        bytes.chunks(16 << 10).for_each(|chunk| query.add_chunk(chunk));
        let features = query.features();
        let places = Places::of(&features);
        let of = |is_found: &mut dyn FnMut(u64) -> bool| -> f64 {
            let found: Vec<u16> =
                (0..features.len()).filter(|&i| is_found(features[i].at)).map(|i| i as u16).collect();
            places.scatter(&found, 7, found.len() as f64 / features.len() as f64)
        };
        assert!(of(&mut |at| at < 120_000) < 0.1);
        assert!(of(&mut |at| at % 20_000 < 12_000) < 0.2);
        assert!(of(&mut |_| next() % 10 < 6) > 0.85);
        assert_eq!(places.scatter(&[], 7, 0.0), SCATTER_UNKNOWN);
    }
}
