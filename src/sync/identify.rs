//! Identification: turns the present entries of a directory into a tree, by matching them with former files.
//!
//! Inode numbers reveal renames; names are not used for guessing. A file keeps its ident if it has the same inode, at
//! any path, even if another file had that path before, as in a chain of renames. A file that was replaced under its
//! name (as editors do) stays the file of that name, even if its directory has another name now. Pure.
//!
//! Filesystems reuse inode numbers; ext4 takes the lowest free one first. A number at another path is a
//! rename only if
//! - the file has the same content and time: all empty files have the same content;
//! - the directory holds a former entry with the same name, or the same content and time.

use super::device::Device;
use super::seen::{Inode, Seen};
use super::tree::{Entry, Ident, Tree, TreePath, join, split};
use std::collections::{BTreeMap, BTreeSet};

mod in_place;

/// Returns the tree of the `seen` entries. `last` is the tree before, with its `inodes`. New entries are by `device`,
/// in its snapshot `seq`. Entries as in `agreed`, a tree that was being taken, came from there.
pub fn identify(
    seen: &BTreeMap<TreePath, Seen>,
    last: &Tree,
    inodes: &BTreeMap<TreePath, Inode>,
    agreed: Option<&Tree>,
    device: &Device,
    seq: u64,
) -> Tree {
    if agreed.is_none()
        && let Some(tree) = in_place::in_place(seen, last, inodes, device, seq)
    {
        return tree;
    }
    let mut work = Identify { last, inodes, agreed, claimed: BTreeSet::new(), dirs: BTreeMap::new() };
    let new = |path: &[u8]| Ident::made(device, seq, path);
    let known: BTreeSet<Ident> = last.entries.values().map(|entry| entry.ident).collect();
    let made = |path: &[u8]| {
        let entry = agreed.and_then(|agreed| agreed.entries.get(path));
        let taken = entry.filter(|entry| entry.kind.is_dir() && !known.contains(&entry.ident));
        taken.map_or_else(|| new(path), |entry| entry.ident)
    };
    work.name_directories(seen, made);
    let assigned = work.name_files(seen, new);
    let by_ident = |tree: &Tree| -> BTreeMap<Ident, Entry> {
        tree.entries.values().map(|entry| (entry.ident, entry.clone())).collect()
    };
    let (before, agreed) = (by_ident(last), agreed.map(by_ident).unwrap_or_default());
    let mut tree = Tree::default();
    for (path, now) in seen {
        let ident = match now.kind.is_dir() {
            true => work.dirs[path].0,
            false => assigned[&now.inode],
        };
        let was = [&before, &agreed]
            .into_iter()
            .find_map(|tree| tree.get(&ident).filter(|was| was.kind == now.kind));
        let author = was.map_or_else(|| device.clone(), |was| was.author.clone());
        let Seen { kind, mode, mtime, xattrs, .. } = now.clone();
        tree.entries.insert(path.clone(), Entry { ident, author, kind, mode, mtime, xattrs });
    }
    tree
}

struct Identify<'a> {
    last: &'a Tree,
    inodes: &'a BTreeMap<TreePath, Inode>,
    agreed: Option<&'a Tree>,
    claimed: BTreeSet<Ident>,
    /// Each present directory: its ident, and its path in the last tree.
    dirs: BTreeMap<TreePath, (Ident, Option<TreePath>)>,
}

impl Identify<'_> {
    /// Returns the path that `path` had in the last tree, with the names that the directories above it had then.
    fn before(&self, path: &[u8], dir: bool) -> Option<TreePath> {
        let (parent, name) = split(path);
        let parent = match parent.is_empty() {
            true => b"",
            false => &self.dirs.get(parent)?.1.as_ref()?[..],
        };
        let before = join(parent, name);
        self.last.entries.get(&before).filter(|was| was.kind.is_dir() == dir).map(|_| before)
    }

    /// Returns whether the entry at `before` in the last tree has the content and time of `now`.
    fn is_as_it_was(&self, before: &[u8], now: &Seen) -> bool {
        let was = self.last.entries.get(before);
        was.is_some_and(|was| !now.kind.is_dir() && (&was.kind, was.mtime) == (&now.kind, now.mtime))
    }

    fn claim(&mut self, before: &TreePath) -> Option<Ident> {
        let ident = self.last.entries.get(before)?.ident;
        self.claimed.insert(ident).then_some(ident)
    }

    /// Identifies directories from the top down: by name and inode, by inode, by name.
    fn name_directories(&mut self, seen: &BTreeMap<TreePath, Seen>, new: impl Fn(&[u8]) -> Ident) {
        let mut entries_of: BTreeMap<&[u8], BTreeMap<Inode, &TreePath>> = BTreeMap::new();
        for (path, inode) in self.inodes {
            entries_of.entry(split(path).0).or_default().insert(*inode, path);
        }
        let mut now_in: BTreeMap<&[u8], Vec<(&TreePath, &Seen)>> = BTreeMap::new();
        for (path, now) in seen {
            now_in.entry(split(path).0).or_default().push((path, now));
        }
        let is_dir = |path: &TreePath| self.last.entries.get(path).is_some_and(|was| was.kind.is_dir());
        let by_inode: BTreeMap<Inode, &TreePath> =
            self.inodes.iter().filter(|(path, _)| is_dir(path)).map(|(path, inode)| (*inode, path)).collect();
        let now: BTreeSet<Inode> =
            seen.values().filter(|now| now.kind.is_dir()).map(|now| now.inode).collect();
        for (path, dir) in seen.iter().filter(|(_, now)| now.kind.is_dir()) {
            let by_name = self.before(path, true);
            let inode_then = by_name.as_ref().and_then(|before| self.inodes.get(before));
            let holds_the_same = |before: &&TreePath| {
                let (old, now) = (entries_of.get(&before[..]), now_in.get(&path[..]));
                let is_old = |old: &BTreeMap<Inode, &TreePath>, (path, now): &(&TreePath, &Seen)| {
                    let before = old.get(&now.inode);
                    before.is_some_and(|before| {
                        split(before).1 == split(path).1 || self.is_as_it_was(before, now)
                    })
                };
                old.zip(now).is_some_and(|(old, now)| now.iter().any(|entry| is_old(old, entry)))
            };
            let stayed = inode_then == Some(&dir.inode);
            let elsewhere = inode_then.is_some_and(|inode| now.contains(inode));
            let renamed = by_inode.get(&dir.inode).copied().filter(holds_the_same).cloned();
            let before = match by_name {
                Some(before) if stayed => Some(before),
                by_name => renamed.or(by_name.filter(|_| !elsewhere)),
            };
            let ident = before.as_ref().and_then(|before| self.claim(before));
            let before = before.filter(|_| ident.is_some());
            self.dirs.insert(path.clone(), (ident.unwrap_or_else(|| new(path)), before));
        }
    }

    /// Identifies files that are as the tree that was being taken has them, at the same path.
    fn name_taken(
        &mut self,
        seen: &BTreeMap<TreePath, Seen>,
        groups: &BTreeMap<Inode, Vec<&TreePath>>,
        assigned: &mut BTreeMap<Inode, Ident>,
    ) {
        let Some(agreed) = self.agreed else { return };
        for (inode, paths) in
            groups.iter().filter(|(inode, _)| !assigned.contains_key(*inode)).collect::<Vec<_>>()
        {
            let entries = paths.iter().filter_map(|path| agreed.entries.get(*path));
            let ident = entries
                .filter(|entry| entry.kind == seen[paths[0]].kind)
                .find(|entry| self.claimed.insert(entry.ident))
                .map(|entry| entry.ident);
            assigned.extend(ident.map(|ident| (*inode, ident)));
        }
    }

    /// Identifies files with their former inode that were moved to their path in the tree that was being taken. A user
    /// may have written to them since.
    fn name_moved(
        &mut self,
        groups: &BTreeMap<Inode, Vec<&TreePath>>,
        assigned: &mut BTreeMap<Inode, Ident>,
    ) {
        let Some(agreed) = self.agreed else { return };
        let by_ident = self.last.by_ident();
        let was = |ident: &Ident, inode: &Inode| {
            let paths = by_ident.get(ident).into_iter().flatten();
            paths.copied().find(|path| self.inodes.get(*path) == Some(inode)).cloned()
        };
        let mut moved = Vec::new();
        for (inode, paths) in groups.iter().filter(|(inode, _)| !assigned.contains_key(*inode)) {
            let mut wanted = paths.iter().filter_map(|path| agreed.entries.get(*path));
            moved.extend(wanted.find_map(|entry| was(&entry.ident, inode)).map(|before| (*inode, before)));
        }
        for (inode, before) in moved {
            assigned.extend(self.claim(&before).map(|ident| (inode, ident)));
        }
    }

    /// Identifies files with their former inode, content and time at another path.
    fn name_renamed(
        &mut self,
        seen: &BTreeMap<TreePath, Seen>,
        groups: &BTreeMap<Inode, Vec<&TreePath>>,
        assigned: &mut BTreeMap<Inode, Ident>,
    ) {
        for (path, inode) in self.inodes {
            let Some(paths) = groups.get(inode) else { continue };
            if !assigned.contains_key(inode)
                && self.is_as_it_was(path, &seen[paths[0]])
                && let Some(ident) = self.claim(path)
            {
                assigned.insert(*inode, ident);
            }
        }
    }

    /// Identifies files: by name and inode, by moved path, by the tree that was being taken, by inode and content, by
    /// name.
    fn name_files(
        &mut self,
        seen: &BTreeMap<TreePath, Seen>,
        new: impl Fn(&[u8]) -> Ident,
    ) -> BTreeMap<Inode, Ident> {
        // All names of an inode.
        let mut groups: BTreeMap<Inode, Vec<&TreePath>> = BTreeMap::new();
        for (path, now) in seen.iter().filter(|(_, now)| !now.kind.is_dir()) {
            groups.entry(now.inode).or_default().push(path);
        }
        let mut assigned = BTreeMap::new();
        for same_inode in [true, false] {
            for (inode, paths) in &groups {
                if assigned.contains_key(inode) {
                    continue;
                }
                let before = paths.iter().filter_map(|path| self.before(path, false));
                let before: Vec<TreePath> =
                    before.filter(|before| !same_inode || self.inodes.get(before) == Some(inode)).collect();
                if let Some(ident) = before.iter().find_map(|before| self.claim(before)) {
                    assigned.insert(*inode, ident);
                }
            }
            if same_inode {
                self.name_moved(&groups, &mut assigned);
                self.name_taken(seen, &groups, &mut assigned);
                self.name_renamed(seen, &groups, &mut assigned);
            }
        }
        for (inode, paths) in &groups {
            assigned.entry(*inode).or_insert_with(|| new(paths[0]));
        }
        assigned
    }
}

#[cfg(test)]
mod tests {
    use super::super::tree::{ContentId, Kind};
    use super::*;

    fn seen(rows: &[(&str, u64, &str)]) -> BTreeMap<TreePath, Seen> {
        let row = |(path, ino, text): &(&str, u64, &str)| {
            let kind = match *text {
                "/" => Kind::Dir,
                text => Kind::File { content: ContentId::of(text.as_bytes()), size: text.len() as u64 },
            };
            let now = Seen { inode: (1, *ino), kind, mode: 0o644, mtime: (0, 0), xattrs: Default::default() };
            (path.as_bytes().to_vec(), now)
        };
        rows.iter().map(row).collect()
    }

    fn after(before: &[(&str, u64, &str)], now: &[(&str, u64, &str)]) -> (Tree, Tree) {
        let (a, none) = (Device::named("a"), BTreeMap::new());
        let before = seen(before);
        let last = identify(&before, &Tree::default(), &none, None, &a, 1);
        let inodes = before.iter().map(|(path, seen)| (path.clone(), seen.inode)).collect();
        let tree = identify(&seen(now), &last, &inodes, None, &Device::named("b"), 2);
        tree.check().unwrap();
        (last, tree)
    }

    #[test]
    fn a_rename_keeps_the_ident() {
        let before = [("d", 1, "/"), ("d/f", 2, "f"), ("g", 3, "g")];
        let (last, tree) = after(&before, &[("e", 1, "/"), ("e/f", 2, "f"), ("h", 3, "g")]);
        let ident = |tree: &Tree, path: &str| tree.entries[path.as_bytes()].ident;
        assert_eq!(ident(&tree, "e"), ident(&last, "d"));
        assert_eq!(ident(&tree, "e/f"), ident(&last, "d/f"));
        assert_eq!(ident(&tree, "h"), ident(&last, "g"));
        assert_eq!(tree.entries[&b"h"[..]].author, Device::named("a"));
        assert_eq!(after(&before, &before).0, after(&before, &before).1);
        // Edited meanwhile, in a directory that was renamed.
        let (_, tree) = after(&before, &[("e", 1, "/"), ("e/f", 2, "new"), ("d", 7, "/")]);
        assert_eq!(ident(&tree, "e/f"), ident(&last, "d/f"));
        assert_ne!(ident(&tree, "d"), ident(&last, "d"));
    }

    #[test]
    fn an_inode_used_again_is_no_rename_and_a_file_replaced_stays() {
        let before = [("a", 1, "a"), ("d", 5, "/"), ("d/x", 6, "x"), ("s", 7, "old")];
        let (last, tree) =
            after(&before, &[("b", 1, "other"), ("e", 5, "/"), ("e/y", 8, "y"), ("s", 9, "new")]);
        let ident = |tree: &Tree, path: &str| tree.entries[path.as_bytes()].ident;
        assert_ne!(ident(&tree, "b"), ident(&last, "a"));
        assert_ne!(ident(&tree, "e"), ident(&last, "d"));
        assert_eq!(ident(&tree, "s"), ident(&last, "s"));
        assert_eq!(tree.entries[&b"s"[..]].author, Device::named("b"));
    }

    /// ext4 gives the lowest free number: a new directory often gets that of a removed one, and its file that of the file in it.
    #[test]
    fn a_directory_and_its_file_that_got_the_numbers_of_removed_ones_are_new() {
        let before = [("gone", 5, "/"), ("gone/f", 6, "old"), ("x", 7, "/")];
        let (last, tree) = after(&before, &[("x", 7, "/"), ("x/made", 5, "/"), ("x/made/1", 6, "new")]);
        let ident = |tree: &Tree, path: &str| tree.entries[path.as_bytes()].ident;
        assert_ne!(ident(&tree, "x/made"), ident(&last, "gone"));
        assert_ne!(ident(&tree, "x/made/1"), ident(&last, "gone/f"));
    }

    type Rows = BTreeMap<&'static str, (u64, &'static str)>;

    const PATHS: [&str; 11] = ["a", "b", "c", "d", "d/e", "d/e/f", "d/x", "d/y", "g", "g/x", "h"];
    const TEXTS: [&str; 3] = ["", "1", "2"];

    /// Changes one entry; what remains is a directory that can be.
    fn change(rows: &mut Rows, random: &mut impl FnMut(usize) -> usize) {
        let path = PATHS[random(PATHS.len())];
        let was = rows.remove(path);
        let other = rows.values().filter(|(_, text)| *text != "/").nth(random(4)).copied();
        match random(6) {
            0 => {}
            1 => drop(rows.insert(path, (1 + random(30) as u64, TEXTS[random(3)]))),
            2 => drop(rows.insert(path, (100 + random(10) as u64, "/"))),
            // Another name of a file.
            3 => rows.extend(other.map(|row| (path, row))),
            4 => rows.extend(was.map(|row| (PATHS[random(PATHS.len())], row))),
            _ => {
                let mut edited = |(ino, text)| (ino, if text == "/" { text } else { TEXTS[random(3)] });
                rows.extend(was.map(|row| (path, edited(row))));
            }
        }
        let mut texts: BTreeMap<u64, &str> = BTreeMap::new();
        rows.retain(|_, (ino, text)| match texts.insert(*ino, text) {
            None => true,
            Some(other) => other == *text && other != "/",
        });
        for path in PATHS {
            let dir = path.rsplit_once('/').map(|(dir, _)| dir);
            if dir.is_some_and(|dir| rows.get(dir).is_none_or(|(_, text)| *text != "/")) {
                rows.remove(path);
            }
        }
    }

    /// The pass for the common case gives what the other one gives, after random changes.
    ///
    /// Seen to fail without each condition on inodes, idents, types and authors; not without the ones on replaced directories and
    /// on the authors of links, for which it gives up without need.
    #[test]
    fn in_place_gives_the_same_tree() {
        let mut state = 1_u64;
        let mut random = |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % below
        };
        let as_seen = |rows: &Rows| {
            seen(&rows.iter().map(|(path, (ino, text))| (*path, *ino, *text)).collect::<Vec<_>>())
        };
        let (a, b, none) = (Device::named("a"), Device::named("b"), BTreeMap::new());
        let mut counts = [0, 0];
        for _ in 0..20_000 {
            let mut rows = Rows::new();
            (0..12).for_each(|_| change(&mut rows, &mut random));
            let before = as_seen(&rows);
            let last = identify(&before, &Tree::default(), &none, Some(&Tree::default()), &a, 1);
            let inodes = before.iter().map(|(path, seen)| (path.clone(), seen.inode)).collect();
            (0..=random(3)).for_each(|_| change(&mut rows, &mut random));
            let now = as_seen(&rows);
            let found = in_place::in_place(&now, &last, &inodes, &b, 2);
            counts[usize::from(found.is_some())] += 1;
            // With a tree that was being taken, even an empty one, all entries are matched.
            let expected = identify(&now, &last, &inodes, Some(&Tree::default()), &b, 2);
            assert_eq!(found.as_ref().unwrap_or(&expected), &expected, "{before:?}\n{now:?}");
        }
        assert!(counts.iter().all(|count| *count > 2000), "{counts:?}");
    }

    /// All empty files have one content.
    #[test]
    fn a_new_file_with_the_number_and_the_content_of_a_removed_one_is_new() {
        let (a, none) = (Device::named("a"), BTreeMap::new());
        let before = seen(&[("a", 1, ""), ("b", 2, "b")]);
        let last = identify(&before, &Tree::default(), &none, None, &a, 1);
        let inodes = before.iter().map(|(path, seen)| (path.clone(), seen.inode)).collect();
        let mut now = seen(&[("b", 2, "b"), ("c", 1, "")]);
        let ident =
            |now: &BTreeMap<_, _>| identify(now, &last, &inodes, None, &a, 2).entries[&b"c"[..]].ident;
        assert_eq!(ident(&now), last.entries[&b"a"[..]].ident);
        now.get_mut(&b"c"[..]).unwrap().mtime = (7, 0);
        assert_ne!(ident(&now), last.entries[&b"a"[..]].ident);
    }

    #[test]
    fn files_that_change_places_keep_their_idents() {
        let before = [("a", 1, "a"), ("b", 2, "b"), ("c", 3, "c")];
        // A chain, and a swap.
        for now in
            [[("a", 9, "new"), ("b", 1, "a"), ("c", 2, "b")], [("a", 2, "b"), ("b", 1, "a"), ("c", 3, "c")]]
        {
            let (last, tree) = after(&before, &now);
            let ident = |tree: &Tree, path: &str| tree.entries[path.as_bytes()].ident;
            assert_eq!(ident(&tree, "b"), ident(&last, "a"));
            let to = if now[2].1 == 2 { "c" } else { "a" };
            assert_eq!(ident(&tree, to), ident(&last, "b"));
        }
    }

    /// A sync that was stopped had renamed it; then a user wrote to it.
    #[test]
    fn what_a_sync_has_moved_is_the_same_file_though_edited() {
        let (a, none) = (Device::named("a"), BTreeMap::new());
        let before = seen(&[("a", 1, "a"), ("d", 5, "/"), ("d/b", 2, "b")]);
        let last = identify(&before, &Tree::default(), &none, None, &a, 1);
        let inodes = before.iter().map(|(path, seen)| (path.clone(), seen.inode)).collect();
        let mut agreed = last.clone();
        let moved = agreed.entries.remove(&b"a"[..]).unwrap();
        agreed.entries.insert(b"d/moved".to_vec(), moved.clone());
        let now = seen(&[("d", 5, "/"), ("d/b", 2, "b"), ("d/moved", 1, "edited")]);
        let tree = identify(&now, &last, &inodes, Some(&agreed), &a, 2);
        assert_eq!(tree.entries[&b"d/moved"[..]].ident, moved.ident);
        assert_ne!(identify(&now, &last, &inodes, None, &a, 2).entries[&b"d/moved"[..]].ident, moved.ident);
    }

    #[test]
    fn hard_links_made_and_broken() {
        let before = [("a", 1, "x"), ("b", 2, "y"), ("p", 3, "z"), ("q", 3, "z")];
        let (last, tree) = after(&before, &[("a", 1, "x"), ("b", 1, "x"), ("p", 3, "z"), ("q", 4, "z")]);
        let ident = |tree: &Tree, path: &str| tree.entries[path.as_bytes()].ident;
        assert_eq!(ident(&tree, "a"), ident(&tree, "b"));
        assert_eq!(ident(&last, "p"), ident(&last, "q"));
        assert_ne!(ident(&tree, "p"), ident(&tree, "q"));
    }
}
