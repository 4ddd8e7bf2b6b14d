//! A directory between two trees, without half-finished states: each file is either as before or as agreed.
//!
//! A file with several names gets its new content name by name. So if the steps end early, some names refer to the new
//! inode and some to the old one; this is not a user's change. Nor is the owner's write permission that a step gave a
//! directory. Pure.

use super::attributes::same_xattrs;
use super::tree::{Entry, Ident, Tree, TreePath, join, split};
use std::collections::BTreeMap;

/// The mode bits of a directory that its owner needs to change names in it.
pub const OWNER: u16 = 0o700;

/// Directories of a tree by ident, to find an entry even if its directories have other names in another tree.
struct Places<'a> {
    tree: &'a Tree,
    dirs: BTreeMap<Ident, &'a TreePath>,
    files: BTreeMap<Ident, &'a Entry>,
}

impl<'a> Places<'a> {
    fn of(tree: &'a Tree) -> Places<'a> {
        let mut places = Places { tree, dirs: BTreeMap::new(), files: BTreeMap::new() };
        for (path, entry) in &tree.entries {
            match entry.kind.is_dir() {
                true => drop(places.dirs.insert(entry.ident, path)),
                false => drop(places.files.insert(entry.ident, entry)),
            }
        }
        places
    }

    /// Returns the entry of this tree in the directory and with the name that `path` has in `other`.
    fn at(&self, other: &Tree, path: &[u8]) -> Option<&'a Entry> {
        let (dir, name) = split(path);
        let dir = match dir.is_empty() {
            true => &[][..],
            false => self.dirs.get(&other.entries.get(dir)?.ident)?,
        };
        self.tree.entries.get(&join(dir, name))
    }
}

/// Returns `now`, which was on its way from `before` to `agreed`, with only the changes that users made meanwhile.
pub fn without_half_taken(before: &Tree, now: &Tree, agreed: &Tree) -> Tree {
    let mut is = now.clone();
    let (old, new, present) = (Places::of(before), Places::of(agreed), Places::of(now));
    for (ident, paths) in now.by_ident() {
        let entry = &now.entries[paths[0]];
        let known = old.files.contains_key(&ident) || new.files.contains_key(&ident);
        if known || entry.kind.is_dir() {
            continue;
        }
        // Each of its names belongs, in the agreed tree, to a file with that content.
        let taken = |goal: &Entry| {
            (&goal.kind, goal.mode) == (&entry.kind, entry.mode) && same_xattrs(&goal.xattrs, &entry.xattrs)
        };
        let goals: Vec<_> = paths.iter().map(|path| new.at(now, path).filter(|goal| taken(goal))).collect();
        let Some(Some(goal)) = goals.first() else { continue };
        let one = goals.iter().all(|other| other.is_some_and(|other| other.ident == goal.ident));
        let (Some(rest), true) = (present.files.get(&goal.ident), one && old.files.contains_key(&goal.ident))
        else {
            continue;
        };
        for path in paths {
            let had = old.at(now, path).is_some_and(|was| was.ident == goal.ident);
            match had {
                true => drop(is.entries.insert(path.clone(), (*rest).clone())),
                false => drop(is.entries.remove(path)),
            }
        }
    }
    for (ident, path) in &present.dirs {
        let mode = |places: &Places<'_>| Some(places.tree.entries[*places.dirs.get(ident)?].mode);
        if let (Some(was), Some(agreed)) = (mode(&old), mode(&new))
            && was == agreed
            && now.entries[*path].mode == was | OWNER
        {
            is.entries.entry((*path).clone()).and_modify(|entry| entry.mode = was);
        }
    }
    is
}

#[cfg(test)]
mod tests {
    use super::super::merge::tests::{dir, file, tree};
    use super::*;

    #[test]
    fn names_of_a_file_that_were_taken_one_by_one_are_no_users_work() {
        let before = tree(&[("d", dir(9)), ("d/1", file(1, "a", "old")), ("d/2", file(1, "a", "old"))]);
        let agreed = tree(&[("e", dir(9)), ("e/1", file(1, "b", "new")), ("e/3", file(1, "b", "new"))]);
        let now = tree(&[
            ("e", dir(9)),
            ("e/1", file(7, "b", "new")),
            ("e/2", file(1, "a", "old")),
            ("e/3", file(7, "b", "new")),
        ]);
        let is = without_half_taken(&before, &now, &agreed);
        let expected = tree(&[("e", dir(9)), ("e/1", file(1, "a", "old")), ("e/2", file(1, "a", "old"))]);
        assert_eq!(is, expected);
        // What a user wrote is his.
        let mut edited = now.clone();
        edited.entries.insert(b"e/1".to_vec(), file(7, "b", "other"));
        edited.entries.insert(b"e/3".to_vec(), file(7, "b", "other"));
        assert_eq!(without_half_taken(&before, &edited, &agreed), edited);
    }

    #[test]
    fn a_directory_that_was_opened_for_a_step_has_its_mode() {
        let closed = Entry { mode: 0o555, ..dir(1) };
        let before = tree(&[("d", closed.clone())]);
        let now = tree(&[("d", Entry { mode: 0o755, ..closed.clone() })]);
        assert_eq!(without_half_taken(&before, &now, &before), before);
        let agreed = tree(&[("d", Entry { mode: 0o511, ..closed })]);
        assert_eq!(without_half_taken(&before, &now, &agreed), now);
    }
}
