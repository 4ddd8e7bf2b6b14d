//! The tree that a device is to have on its disk, of an agreed one.

use super::super::group::Groups;
use super::super::merge::conflict_name;
use super::super::selection::Selection;
use super::super::tree::{ContentId, Entry, Ident, Tree, TreePath, join, split};
use super::super::units::Units;
use std::collections::{BTreeMap, BTreeSet};

/// The places where contents are.
pub struct Sources<'a> {
    /// Returns whether a content that is not on this disk can be put there.
    pub can_come: &'a dyn Fn(ContentId) -> bool,
    /// Returns whether a content may be removed from this disk although the agreed tree has it.
    pub is_elsewhere: &'a dyn Fn(ContentId) -> bool,
    /// Returns whether something that is in no tree is on this disk at a path.
    pub is_used: &'a dyn Fn(&[u8]) -> bool,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Goal {
    /// The tree.
    pub tree: Tree,
    /// Contents that stay on this disk only because they may be nowhere else.
    pub kept: BTreeSet<ContentId>,
    /// Included paths of the agreed tree whose contents are not available.
    pub missing: Vec<TreePath>,
    /// Included paths of the agreed tree at which the disk has an entry that is left out: one of another type.
    pub blocked: Vec<TreePath>,
}

/// Returns the goal of a device with `here` on its disk that takes `target`.
pub fn goal(
    selection: &Selection,
    groups: &Groups,
    here: &Tree,
    target: &Tree,
    sources: &Sources<'_>,
) -> Goal {
    let mut goal = Goal { tree: selection.part(target, groups), ..Goal::default() };
    goal.leave_what_is_blocked(groups, here, sources);
    goal.leave_what_cannot_come(groups, here, sources);
    goal.keep_last_copies(groups, here, target, sources);
    goal
}

fn rows(tree: &Tree, units: &Units, root: &TreePath) -> Vec<(Vec<u8>, Entry)> {
    let row = |suffix: Vec<u8>| {
        let entry = tree.entries.get(&[&root[..], &suffix].concat())?.clone();
        Some((suffix, entry))
    };
    units.suffixes(root).into_iter().filter_map(row).collect()
}

impl Goal {
    /// Leaves out entries whose place is used, with everything below them.
    fn leave_what_is_blocked(&mut self, groups: &Groups, here: &Tree, sources: &Sources<'_>) {
        let can_be_used = |path: &&TreePath| {
            let dir = split(path).0;
            !here.entries.contains_key(*path) && (dir.is_empty() || here.entries.contains_key(dir))
        };
        let new = self.tree.entries.keys().filter(can_be_used);
        self.blocked = new.filter(|path| (sources.is_used)(path)).cloned().collect();
        if self.blocked.is_empty() {
            return;
        }
        let units = Units::of(&self.tree, groups);
        let mut out: BTreeSet<TreePath> = self.blocked.iter().map(|path| units.root(path).clone()).collect();
        // A directory comes before its entries.
        for path in self.tree.entries.keys() {
            if out.contains(units.root(path)) || out.contains(split(path).0) {
                out.insert(path.clone());
            }
        }
        out.iter().for_each(|path| drop(self.tree.entries.remove(path)));
    }

    /// Leaves each file as it is here if its new content cannot come; others do not arrive.
    fn leave_what_cannot_come(&mut self, groups: &Groups, here: &Tree, sources: &Sources<'_>) {
        let has = here.contents();
        let lacks = |entry: &Entry| {
            let content = entry.kind.content();
            content.is_some_and(|content| !has.contains_key(&content) && !(sources.can_come)(content))
        };
        self.missing = self
            .tree
            .entries
            .iter()
            .filter(|(_, entry)| lacks(entry))
            .map(|(path, _)| path.clone())
            .collect();
        if self.missing.is_empty() {
            return;
        }
        let (units, units_here) = (Units::of(&self.tree, groups), Units::of(here, groups));
        let by_ident = here.by_ident();
        let dirs = self.tree.entries.values().filter(|entry| entry.kind.is_dir());
        let mut dirs: BTreeSet<Ident> = dirs.map(|entry| entry.ident).collect();
        let roots: BTreeSet<TreePath> = self.missing.iter().map(|path| units.root(path).clone()).collect();
        for root in roots {
            let ident = self.tree.entries[&root].ident;
            for suffix in units.suffixes(&root) {
                self.tree.entries.remove(&[&root[..], &suffix].concat());
            }
            let Some(now) = by_ident.get(&ident).map(|paths| paths[0]) else { continue };
            // A plain directory became a group, or the other way round: only its own entries are it.
            let is_whole = !here.entries[now].kind.is_dir() || units_here.is_group(now);
            for (suffix, row) in rows(here, &units_here, now).into_iter().filter(|_| is_whole) {
                let path = [&root[..], &suffix].concat();
                // It is somewhere else in the target.
                let is_twice = row.kind.is_dir() && !suffix.is_empty() && !dirs.insert(row.ident);
                let ident = match is_twice {
                    true => Ident::derive(&[b"left", &row.ident.0.to_le_bytes(), &path]),
                    false => row.ident,
                };
                self.tree.entries.entry(path).or_insert(Entry { ident, ..row });
            }
        }
    }

    /// Keeps contents of this disk that are in the target, but neither in the goal nor known to be elsewhere.
    fn keep_last_copies(&mut self, groups: &Groups, here: &Tree, target: &Tree, sources: &Sources<'_>) {
        let (stay, all) = (self.tree.contents(), target.contents());
        let may_be_last = |content: ContentId| {
            !stay.contains_key(&content) && all.contains_key(&content) && !(sources.is_elsewhere)(content)
        };
        let last = |entry: &Entry| entry.kind.content().filter(|content| may_be_last(*content));
        if !here.entries.values().any(|entry| last(entry).is_some()) {
            return;
        }
        let units = Units::of(here, groups);
        for (path, entry) in &here.entries {
            let Some(content) = last(entry).filter(|content| !self.kept.contains(content)) else { continue };
            self.kept.insert(content);
            let root = units.root(path);
            let rows = rows(here, &units, root);
            self.kept.extend(rows.iter().filter_map(|(_, row)| row.kind.content()));
            self.keep(here, root, rows, sources);
        }
    }

    /// Keeps a unit at its path, or under another name in the root if that is used.
    fn keep(&mut self, here: &Tree, root: &TreePath, rows: Vec<(Vec<u8>, Entry)>, sources: &Sources<'_>) {
        let is_free = |goal: &Goal, at: &TreePath| {
            rows.iter().all(|(suffix, _)| !goal.tree.entries.contains_key(&[&at[..], suffix].concat()))
        };
        let has_room = |goal: &Goal| {
            let mut dir = split(root).0;
            while !dir.is_empty() && !goal.tree.entries.contains_key(dir) {
                dir = split(dir).0;
            }
            dir.is_empty() || goal.tree.entries[dir].kind.is_dir()
        };
        let to = match is_free(self, root) && has_room(self) {
            true => root.clone(),
            false => {
                let (name, itself) = (split(root).1, &rows[0].1);
                let hash = blake3::hash(&postcard::to_allocvec(&itself.kind).expect("a kind can be encoded"));
                let name = |n| join(b"", &conflict_name(name, &itself.author, hash.as_bytes(), n));
                let is_unused = |at: &TreePath| is_free(self, at) && !(sources.is_used)(at);
                (0..).map(name).find(is_unused).expect("names do not end")
            }
        };
        let mut used: BTreeMap<Ident, Ident> = BTreeMap::new();
        let mut taken: BTreeSet<Ident> = self.tree.entries.values().map(|entry| entry.ident).collect();
        let dirs = (0..to.len()).filter(|at| to[*at] == b'/').map(|at| to[..at].to_vec());
        let dirs: Vec<_> = dirs.filter(|dir| !self.tree.entries.contains_key(dir)).collect();
        let dirs = dirs.into_iter().map(|dir| (here.entries[&dir].clone(), dir));
        let rows = rows.into_iter().map(|(suffix, row)| (row, [&to[..], &suffix].concat()));
        for (entry, path) in dirs.chain(rows).collect::<Vec<_>>() {
            let another = || Ident::derive(&[b"kept", &entry.ident.0.to_le_bytes(), &path]);
            let ident = *used.entry(entry.ident).or_insert_with(|| match taken.contains(&entry.ident) {
                true => another(),
                false => entry.ident,
            });
            taken.insert(ident);
            self.tree.entries.insert(path, Entry { ident, ..entry });
        }
    }
}
