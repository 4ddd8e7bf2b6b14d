//! Safety checks before anything is sent: an empty root, and the loss of more than half of the files.
//!
//! - Contents count, not names: a tree that was moved by copying and deleting, or renamed, loses nothing.
//! - A group that stays is one changed object: `git gc` removes thousands of files, and no content.

use super::plan::Op;
use super::tree::{Entry, Kind, Tree};
use std::collections::BTreeSet;

/// Smaller trees are not checked.
const ENTRIES_MIN: usize = 8;

/// Returns why the user should confirm `ops`, which turn `tree` into `target`.
pub fn objection(tree: &Tree, target: &Tree, ops: &[Op]) -> Option<String> {
    let mut removed: Vec<&Entry> = Vec::new();
    for op in ops {
        match op {
            Op::Remove { was, .. } => removed.push(was),
            Op::Group { was, is, .. } if is.is_empty() => removed.extend(was.values()),
            _ => {}
        }
    }
    let is_file = |entry: &&Entry| !entry.kind.is_dir();
    let all = tree.entries.values().filter(is_file).count();
    // Most syncs end here.
    if all < ENTRIES_MIN || removed.iter().copied().filter(is_file).count() * 2 <= all {
        return None;
    }
    let kept: BTreeSet<&Kind> = target.entries.values().map(|entry| &entry.kind).collect();
    let lost = removed.into_iter().filter(is_file).filter(|entry| !kept.contains(&entry.kind)).count();
    (lost * 2 > all).then(|| format!("the contents of {lost} of {all} files would be lost, more than half"))
}

/// Returns why the user should confirm that `now` is a change of `last`. (If the root is another directory, it has no
/// memory of syncs, or that of another store: see docs/sync.md.)
pub fn suspicion(last: &Tree, now: &Tree) -> Option<String> {
    let (before, after) = (last.entries.len(), now.entries.len());
    (before > 0 && after == 0)
        .then(|| format!("the directory is empty, and had {before} entries at the last sync: is it mounted?"))
}

#[cfg(test)]
mod tests {
    use super::super::group::Groups;
    use super::super::merge::tests::{dir, file, tree};
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
        let asks = |from: &Tree, to: &Tree| objection(from, to, &plan(from, to));
        let mut five = all.clone();
        rows[..5].iter().for_each(|name| drop(five.entries.remove(name.as_bytes())));
        assert!(asks(&all, &five).is_none());
        five.entries.remove(&b"5"[..]);
        assert!(asks(&all, &five).unwrap().contains("6 of 10"));
        assert!(suspicion(&all, &Tree::default()).is_some());
        assert!(suspicion(&all, &five).is_none() && suspicion(&Tree::default(), &Tree::default()).is_none());
    }

    /// Seen to fail where names are counted.
    #[test]
    fn what_was_moved_or_packed_is_not_lost() {
        let names: Vec<String> = (0..20).map(|n| format!("{n:02}")).collect();
        let tree_in = |at: &str, ident: u64, dirs: &[(&str, u64)]| {
            let mut all = tree(&dirs.iter().map(|(path, ident)| (*path, dir(*ident))).collect::<Vec<_>>());
            for (n, name) in names.iter().enumerate() {
                all.entries.insert(format!("{at}/{name}").into_bytes(), file(ident + n as u64, "a", name));
            }
            all
        };
        let asks = |from: &Tree, to: &Tree| objection(from, to, &Groups::default().plan(from, to));
        // Copied and deleted: other files with the same contents.
        let (old, new) = (tree_in("old", 100, &[("old", 1)]), tree_in("new", 200, &[("new", 2)]));
        assert_eq!(asks(&old, &new), None);
        assert!(asks(&old, &tree(&[("old", dir(1))])).unwrap().contains("20 of 20"));
        // Loose objects go into one pack.
        let git = [(".git", 1), (".git/objects", 2), (".git/refs", 3)];
        let loose = tree_in(".git/objects", 100, &git);
        let mut packed = tree(&git.map(|(path, ident)| (path, dir(ident))));
        packed.entries.insert(b".git/objects/pack".to_vec(), file(300, "a", "all of it"));
        assert_eq!(asks(&loose, &packed), None);
        // All of a repository is not.
        assert!(asks(&loose, &Tree::default()).is_some());
    }
}
