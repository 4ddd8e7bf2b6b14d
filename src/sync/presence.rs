//! A device that has only a part of its tree: entries that its selection leaves out, and those that have not arrived.
//!
//! There are two trees:
//!
//! - the *tree* of the device, by which it is merged: entries that it does not have are in it as in its last tree;
//! - its tree *here*: the included entries on the disk. A plan leads from this one to a *goal*.
//!
//! So an entry that is not here does not count as deleted. Rules:
//!
//! - An entry that is not here follows its directory, if the user renames that. If the user deletes the directory, it comes
//!   back.
//! - A file on the disk with the path of an entry that is not here is that entry if their contents are the same, or if it is an
//!   older state of it ([`Before::older`]). Otherwise it is another file: both are kept, as in a conflict.
//! - An edit through a name that is here is one of the file, so of its names that are not here too.
//! - A file that moves to a path that is left out is removed here only if its content is known to be elsewhere.
//! - All of this holds for groups as a whole.
//!
//! Pure.

use super::device::Device;
use super::group::Groups;
use super::merge::conflict_name;
use super::seen::{Inode, Seen};
use super::selection::Selection;
use super::tree::{ContentId, Entry, Ident, Tree, TreePath, join, split};
use super::units::Units;
use std::collections::{BTreeMap, BTreeSet};

mod goal;

pub use goal::{Goal, Sources, goal};

/// The device before an examination.
pub struct Before<'a> {
    /// Its last tree.
    pub last: &'a Tree,
    /// The entries of that tree that were here, with their inodes.
    pub here: &'a BTreeMap<TreePath, Inode>,
    /// Other entries on the disk, as they were when they were synced: the content of each file.
    pub older: &'a BTreeMap<TreePath, Option<ContentId>>,
}

/// The result of an examination.
#[derive(Debug)]
pub struct Look {
    /// The tree of the device.
    pub tree: Tree,
    /// The part of it that is here.
    pub here: Tree,
    /// Paths of files on the disk that are other files than the entries there, and the new paths of those entries.
    pub copies: Vec<(TreePath, TreePath)>,
}

/// Returns the trees of a device. `seen` are the included entries on the disk; the others are as for
/// [`super::identify::identify`].
pub fn look(
    selection: &Selection,
    groups: &Groups,
    seen: &mut BTreeMap<TreePath, Seen>,
    before: &Before<'_>,
    agreed: Option<&Tree>,
    device: &Device,
    seq: u64,
) -> Look {
    let last = before.last;
    let units = Units::of(last, groups);
    let included: BTreeSet<&TreePath> = selection.paths(last, groups).into_iter().collect();
    let is_here = |path: &TreePath| before.here.contains_key(path) && included.contains(path);
    let missing: BTreeSet<&TreePath> =
        last.entries.keys().filter(|path| !is_here(path)).map(|path| units.root(path)).collect();
    let (absent, present): (Vec<_>, Vec<_>) =
        last.entries.iter().partition(|(path, _)| missing.contains(units.root(path)));
    let was_here =
        Tree { entries: present.into_iter().map(|(path, entry)| (path.clone(), entry.clone())).collect() };
    let inodes: BTreeMap<TreePath, Inode> =
        was_here.entries.keys().filter_map(|path| Some((path.clone(), *before.here.get(path)?))).collect();
    let here = groups.look(seen, &was_here, inodes.clone(), agreed, device, seq);
    let known = was_here.entries.values().map(|entry| entry.ident).collect();
    let dirs = here.entries.iter().filter(|(_, entry)| entry.kind.is_dir());
    let mut work = Work {
        before,
        units: &units,
        units_here: Units::of(&here, groups),
        known,
        present: here.entries.values().map(|entry| entry.ident).collect(),
        dirs: dirs.map(|(path, entry)| (entry.ident, path.clone())).collect(),
        tree: here.clone(),
        here,
        at: BTreeMap::new(),
        placed: Vec::new(),
        renamed: BTreeMap::new(),
        copies: Vec::new(),
    };
    for (path, _) in absent {
        work.place(units.root(path));
    }
    work.follow_links(seen, &was_here, &inodes, (device, seq));
    work.end()
}

/// An entry on the disk at the path of a unit that was not here.
#[derive(PartialEq, Eq)]
enum Found {
    Nothing,
    Same,
    Older,
    Other,
}

struct Work<'a> {
    before: &'a Before<'a>,
    units: &'a Units,
    units_here: Units,
    /// Idents of entries that were here.
    known: BTreeSet<Ident>,
    /// Idents of entries that are here.
    present: BTreeSet<Ident>,
    /// Directories that are here.
    dirs: BTreeMap<Ident, TreePath>,
    tree: Tree,
    here: Tree,
    /// The present path of each unit that was not here, by its last one.
    at: BTreeMap<TreePath, TreePath>,
    /// The present paths of their entries.
    placed: Vec<TreePath>,
    /// Idents of entries on the disk that are entries of the last tree, with their state there.
    renamed: BTreeMap<Ident, (Ident, Option<Entry>)>,
    copies: Vec<(TreePath, TreePath)>,
}

impl Work<'_> {
    /// Returns the present path of a directory of the last tree.
    fn directory(&mut self, dir: &[u8]) -> TreePath {
        if dir.is_empty() {
            return TreePath::new();
        }
        match self.dirs.get(&self.before.last.entries[dir].ident) {
            Some(path) if !self.at.contains_key(dir) => path.clone(),
            // It was removed, or was not here either.
            _ => self.place(&dir.to_vec()),
        }
    }

    /// Finds a place for a unit of the last tree. Returns its path.
    fn place(&mut self, path: &TreePath) -> TreePath {
        if let Some(at) = self.at.get(path) {
            return at.clone();
        }
        let last = self.before.last;
        let itself = &last.entries[path];
        if let Some(at) = self.arrived(path, itself.ident) {
            self.at.insert(path.clone(), at.clone());
            return at;
        }
        let (dir, name) = split(path);
        let to = join(&self.directory(dir), name);
        let is_member = |suffix: &Vec<u8>| last.entries.contains_key(&[&path[..], suffix].concat());
        let suffixes: Vec<Vec<u8>> =
            self.units.suffixes(path).into_iter().filter(|suffix| is_member(suffix)).collect();
        let rows: Vec<(Vec<u8>, Entry)> = suffixes
            .into_iter()
            .map(|suffix| (suffix.clone(), last.entries[&[&path[..], &suffix].concat()].clone()))
            .collect();
        let to = match self.find(path, &rows, &to) {
            Found::Nothing => to,
            Found::Same => {
                rows.iter().for_each(|(suffix, row)| self.take(&[&to[..], suffix].concat(), row));
                to
            }
            Found::Older => {
                for suffix in self.units_here.suffixes(&to) {
                    let member = [&to[..], &suffix].concat();
                    if let Some((_, row)) = rows.iter().find(|(other, _)| *other == suffix) {
                        self.take(&member, row);
                    }
                    self.tree.entries.remove(&member);
                }
                to
            }
            Found::Other => {
                let copy = self.free_name(&to, itself, &rows);
                self.copies.push((to, copy.clone()));
                copy
            }
        };
        for (suffix, row) in rows {
            let at = [&to[..], &suffix].concat();
            self.placed.push(at.clone());
            self.tree.entries.insert(at, row);
        }
        self.at.insert(path.clone(), to.clone());
        to
    }

    /// Returns the path of an entry that a sync, which was interrupted, has brought.
    fn arrived(&self, path: &TreePath, ident: Ident) -> Option<TreePath> {
        if self.known.contains(&ident) || !self.present.contains(&ident) {
            return None;
        }
        let is_it = |entry: Option<&Entry>| entry.is_some_and(|entry| entry.ident == ident);
        if is_it(self.here.entries.get(path)) {
            return Some(path.clone());
        }
        let mut names = self.here.entries.iter().filter(|(_, entry)| entry.ident == ident);
        // Its other names of before are not this one.
        names.find(|(name, _)| !is_it(self.before.last.entries.get(*name))).map(|(name, _)| name.clone())
    }

    /// Compares the unit of the last tree at `path`, which has `rows`, with the entries at `to`.
    fn find(&self, path: &TreePath, rows: &[(Vec<u8>, Entry)], to: &TreePath) -> Found {
        let at = |suffix: &[u8]| [&to[..], suffix].concat();
        if rows.iter().all(|(suffix, _)| !self.tree.entries.contains_key(&at(suffix))) {
            return Found::Nothing;
        }
        let Some(root) = self.here.entries.get(to) else { return Found::Other };
        let is_group = self.units.is_group(path) || self.units_here.is_group(to);
        if !is_group && root.kind.is_dir() {
            return if rows[0].1.kind.is_dir() { Found::Same } else { Found::Other };
        }
        let members = self.units_here.suffixes(to);
        let moved = |suffix: &Vec<u8>| {
            self.here.entries.get(&at(suffix)).is_none_or(|entry| self.known.contains(&entry.ident))
        };
        if members.iter().any(moved) {
            return Found::Other;
        }
        let same = |(suffix, row): &(Vec<u8>, Entry)| {
            self.here.entries.get(&at(suffix)).is_some_and(|now| now.kind == row.kind)
        };
        let older = |suffix: &Vec<u8>| {
            let path = at(suffix);
            self.before.older.get(&path) == Some(&self.here.entries[&path].kind.content())
        };
        match () {
            () if rows.len() == members.len() && rows.iter().all(same) => Found::Same,
            () if members.iter().all(older) => Found::Older,
            () => Found::Other,
        }
    }

    /// Makes the entry on the disk at `path` one with `row`, an entry of the last tree.
    fn take(&mut self, path: &TreePath, row: &Entry) {
        let Entry { ident, ref kind, .. } = self.here.entries[path];
        // Another name may be here too: then these are two files on the disk.
        if kind.is_dir() == row.kind.is_dir()
            && !self.known.contains(&ident)
            && !self.renamed.contains_key(&ident)
            && self.present.insert(row.ident)
        {
            self.renamed.insert(ident, (row.ident, Some(row.clone())));
        }
    }

    /// Returns a path like that of a copy in a conflict, where nothing is.
    fn free_name(&self, path: &TreePath, entry: &Entry, rows: &[(Vec<u8>, Entry)]) -> TreePath {
        let (dir, name) = split(path);
        let hash = blake3::hash(&postcard::to_allocvec(&entry.kind).expect("a kind can be encoded"));
        let names = (0..).map(|n| join(dir, &conflict_name(name, &entry.author, hash.as_bytes(), n)));
        let is_free = |at: &TreePath| {
            rows.iter().all(|(suffix, _)| !self.tree.entries.contains_key(&[&at[..], suffix].concat()))
        };
        names.into_iter().find(is_free).expect("names do not end")
    }

    /// Gives the names that are not here the state of their file, if another name of it is here.
    fn follow_links(
        &mut self,
        seen: &BTreeMap<TreePath, Seen>,
        was_here: &Tree,
        inodes: &BTreeMap<TreePath, Inode>,
        (device, seq): (&Device, u64),
    ) {
        let mut names: BTreeMap<Ident, Vec<TreePath>> = BTreeMap::new();
        for path in &self.placed {
            let Entry { ident, ref kind, .. } = self.tree.entries[path];
            if self.present.contains(&ident) && !kind.is_dir() {
                names.entry(ident).or_default().push(path.clone());
            }
        }
        if names.is_empty() {
            return;
        }
        let (now, then) = (self.here.by_ident(), was_here.by_ident());
        let (mut changed, mut apart) = (Vec::new(), BTreeMap::new());
        for (ident, absent) in names {
            let Some(here) = now.get(&ident) else { continue };
            let old = then.get(&ident).into_iter().flatten();
            let old: BTreeSet<u64> = old.filter_map(|path| Some(inodes.get(*path)?.1)).collect();
            let is_old = |path: &&TreePath| seen.get(*path).is_some_and(|now| old.contains(&now.inode.1));
            // A name that a sync has brought, which was interrupted, is one of the file.
            match old.is_empty() || here.iter().any(is_old) {
                true => {
                    let entry = &self.here.entries[here[0]];
                    changed.extend(absent.into_iter().map(|path| (path, entry.clone())));
                }
                // The name was given to another file, as editors do.
                false => drop(apart.insert(ident, (Ident::made(device, seq, here[0]), None))),
            }
        }
        self.tree.entries.extend(changed);
        self.renamed.extend(apart);
    }

    fn end(mut self) -> Look {
        let placed: BTreeSet<TreePath> = self.placed.into_iter().collect();
        let paths: Vec<TreePath> = self.here.entries.keys().cloned().collect();
        for path in paths.into_iter().filter(|_| !self.renamed.is_empty()) {
            let Some((ident, row)) = self.renamed.get(&self.here.entries[&path].ident).cloned() else {
                continue;
            };
            // Another name of the file, which the user has added.
            if let Some(entry) = self.tree.entries.get_mut(&path).filter(|_| !placed.contains(&path)) {
                *entry = Entry { ident, ..row.unwrap_or_else(|| entry.clone()) };
            }
            if let Some(entry) = self.here.entries.get_mut(&path) {
                entry.ident = ident;
            }
        }
        // The last tree has the authors.
        for path in &placed {
            if let (Some(here), Some(entry)) = (self.here.entries.get(path), self.tree.entries.get(path))
                && (here.ident, &here.kind) == (entry.ident, &entry.kind)
                && here.author != entry.author
            {
                let author = entry.author.clone();
                self.here.entries.entry(path.clone()).and_modify(|here| here.author = author);
            }
        }
        Look { tree: self.tree, here: self.here, copies: self.copies }
    }
}
