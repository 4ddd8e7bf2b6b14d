//! A directory that has only a part of its tree: [`super::super::presence`].

use super::super::error::SyncError;
use super::super::ignored::{self, Ignored};
use super::super::print::Print;
use super::super::tree::{Tree, TreePath};
use super::super::version::Snapshot;
use super::Local;
use super::basis::Basis;
use std::collections::{BTreeMap, BTreeSet};

impl Local<'_> {
    /// Returns whether the directory may have only a part of its tree.
    pub(super) fn is_part(&self) -> bool {
        self.memory.partial || !self.rules.selection.is_all()
    }

    /// Returns the included entries on the disk.
    pub(super) fn on_disk(&self) -> &Tree {
        self.here.as_ref().unwrap_or(&self.tree)
    }

    /// Returns the disk as the memory has it.
    pub(super) fn basis_of_memory(&self) -> Basis {
        let (cache, part) = (&self.memory.cache, &self.memory.part);
        let here = cache.iter().filter(|(path, _)| !part.stale.contains(*path));
        let prints: BTreeMap<TreePath, Print> =
            here.map(|(path, print)| (path.clone(), print.clone())).collect();
        let stale = part.stale.iter().filter_map(|path| Some((path, cache.get(path)?)));
        let older = part.aside.iter().chain(stale);
        Basis {
            here: prints.iter().map(|(path, print)| (path.clone(), (0, print.ino))).collect(),
            older: older.map(|(path, print)| (path.clone(), print.content)).collect(),
            prints,
        }
    }

    pub(super) fn basis(&self) -> Basis {
        self.basis.clone().unwrap_or_else(|| self.basis_of_memory())
    }

    /// Returns the entries of the head's tree that were on the disk, and are included.
    pub(super) fn part_of(&self, last: &Tree) -> Tree {
        let basis = self.basis();
        let paths = self.rules.selection.paths(last, &self.rules.groups).into_iter();
        let here = paths.filter(|path| basis.here.contains_key(*path));
        Tree { entries: here.map(|path| (path.clone(), last.entries[path].clone())).collect() }
    }

    /// Returns the states of all known files.
    pub(super) fn states(&self) -> BTreeMap<TreePath, Print> {
        let mut states = self.memory.part.aside.clone();
        states.extend(self.memory.cache.iter().map(|(path, print)| (path.clone(), print.clone())));
        states
    }

    /// Remembers the states of files that are left out from now on: `prints` has those of the other ones.
    pub(super) fn put_aside(&mut self, prints: &BTreeMap<TreePath, Print>, last: &Tree) {
        if !self.is_part() {
            return;
        }
        let included = self.rules.selection.paths(last, &self.rules.groups);
        let included: BTreeSet<&TreePath> = included.into_iter().collect();
        let is_out = |path: &TreePath| {
            !prints.contains_key(path) && last.entries.contains_key(path) && !included.contains(path)
        };
        let left = self.memory.cache.iter().filter(|(path, _)| is_out(path));
        let left: Vec<_> = left.map(|(path, print)| (path.clone(), print.clone())).collect();
        self.memory.part.aside.extend(left);
        self.memory.part.aside.retain(|path, _| is_out(path));
    }

    /// Compares the disk with the tree after an examination.
    pub(super) fn note_part(&mut self, tree: &Tree) -> Result<(), SyncError> {
        let Some(here) = &self.here else {
            self.memory.partial = false;
            return Ok(());
        };
        let part = &mut self.memory.part;
        let differs = |path: &&TreePath| here.entries.get(*path) != tree.entries.get(*path);
        part.stale = here.entries.keys().filter(differs).cloned().collect();
        part.aside.retain(|path, _| tree.entries.contains_key(path));
        part.kept.clear();
        let selection = &self.rules.selection;
        let is_whole =
            part.stale.is_empty() && tree.entries.keys().all(|path| here.entries.contains_key(path));
        self.memory.partial = !selection.is_all() || !is_whole;
        let wanted = selection.part(tree, &self.rules.groups);
        self.omitted = (tree.entries.len() - wanted.entries.len()) as u64;
        let ignored = Ignored::of(ignored::tellable(&self.patterns));
        let groups = &self.rules.groups;
        self.lacking = !ignored.plan(here, &wanted, |from, to| groups.plan(from, to)).is_empty();
        self.basis = Some(self.basis_of_memory());
        Ok(())
    }

    /// Compares the disk with the tree of `snapshot` after its steps.
    pub(super) fn note_part_taken(&mut self, snapshot: &Snapshot) -> Result<(), SyncError> {
        if !self.is_part() {
            return Ok(());
        }
        let before = self.last()?;
        let tree = self.memory.tree(snapshot.id())?.unwrap_or_default();
        // Files that the user has removed meanwhile are not files that have not arrived.
        let basis = self.basis();
        let is_same = |path: &TreePath| {
            let ident = |tree: &Tree| tree.entries.get(path).map(|entry| entry.ident);
            ident(&tree).is_some() && ident(&tree) == ident(&before)
        };
        for (path, print) in basis.prints {
            if !self.memory.cache.contains_key(&path) && is_same(&path) {
                self.memory.cache.insert(path, print);
            }
        }
        let is_other = |(path, print): &(&TreePath, &Print)| {
            tree.entries.get(*path).is_some_and(|entry| entry.kind.content() != print.content)
        };
        let stale = self.memory.cache.iter().filter(is_other).map(|(path, _)| path.clone());
        let stale = stale.collect();
        let included = self.rules.selection.paths(&tree, &self.rules.groups);
        self.omitted = (tree.entries.len() - included.len()) as u64;
        let is_here = |path: &&TreePath| self.memory.cache.contains_key(*path);
        let has_all = included.iter().all(is_here);
        let part = &mut self.memory.part;
        part.stale = stale;
        // The next sync has to look for entries that no program changes.
        let is_at_rest = has_all && part.stale.is_empty() && part.kept.is_empty();
        part.kept.clear();
        self.memory.partial = true;
        if is_at_rest { Ok(()) } else { self.memory.save_since(None) }
    }
}
