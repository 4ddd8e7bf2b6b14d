//! What a sync asks about before it goes on: a root that is empty, and the deletion of more than half.

use super::plan::Op;
use super::tree::Tree;

/// Trees of fewer entries than this are not asked about.
const ENTRIES_MIN: usize = 8;

/// Why `ops` should not be done to `tree` without being told so.
pub fn objection(tree: &Tree, ops: &[Op]) -> Option<String> {
    let of = |op: &Op| match op {
        Op::Remove { .. } => 1,
        Op::Group { was, is, .. } => was.keys().filter(|suffix| !is.contains_key(*suffix)).count(),
        _ => 0,
    };
    let deleted: usize = ops.iter().map(of).sum();
    let all = tree.entries.len();
    (all >= ENTRIES_MIN && deleted * 2 > all)
        .then(|| format!("{deleted} of {all} entries would be deleted, more than half"))
}

/// Why what is seen now should not be taken for a change of `last` without being told so. (Another directory in the
/// place of the root has no memory of syncs, or one of a store that is elsewhere: see docs/sync.md.)
pub fn suspicion(last: &Tree, now: &Tree) -> Option<String> {
    let (before, after) = (last.entries.len(), now.entries.len());
    (before > 0 && after == 0)
        .then(|| format!("the directory is empty, and had {before} entries at the last sync: is it mounted?"))
}

#[cfg(test)]
mod tests {
    use super::super::merge::tests::{file, tree};
    use super::super::plan::plan;
    use super::*;

    #[test]
    fn emptied_replaced_and_half_deleted() {
        let rows: Vec<String> = (0..10).map(|n| n.to_string()).collect();
        let of = |n: usize| {
            tree(
                &rows
                    .iter()
                    .take(n)
                    .map(|name| (name.as_str(), file(name.len() as u64 + n as u64, "a", name)))
                    .collect::<Vec<_>>(),
            )
        };
        let all = of(10);
        let mut five = all.clone();
        rows[..5].iter().for_each(|name| drop(five.entries.remove(name.as_bytes())));
        assert!(objection(&all, &plan(&all, &five)).is_none());
        five.entries.remove(&b"5"[..]);
        assert!(objection(&all, &plan(&all, &five)).is_some());
        assert!(suspicion(&all, &Tree::default()).is_some());
        assert!(suspicion(&all, &five).is_none() && suspicion(&Tree::default(), &Tree::default()).is_none());
    }
}
