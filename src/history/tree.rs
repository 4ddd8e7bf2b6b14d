//! Reading snapshots: one entry, a directory, the differences of two. O(examined entries): equal directories
//! have equal ids and are skipped.

use super::History;
use super::error::Result;
use super::node::{self, Entry, Node};
use super::snapshots::Snapshot;
use super::take::find_in;
use crate::id::{DocumentId, RecipeId};
use std::cmp::Ordering;
use std::collections::HashSet;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// Kind of a difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// Only the second has it.
    Added,
    /// Only the first has it.
    Removed,
    /// Its content or kind differs.
    Changed,
    /// Only mode, owner, times or xattrs differ.
    Attributes,
}

/// A path that differs between two snapshots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Below the root.
    pub path: PathBuf,
    /// Kind of the difference.
    pub how: How,
    /// Entry in the first.
    pub old: Option<Entry>,
    /// Entry in the second.
    pub new: Option<Entry>,
}

impl History {
    /// Returns a snapshot's entry at a path below the root. O(depth * log entries).
    pub fn entry_in(&self, id: &DocumentId, snapshot: &Snapshot, path: &Path) -> Result<Entry> {
        find_in(self.overlay.store(), snapshot, id, path)
    }

    /// Returns the entries of a directory of a snapshot, sorted by name. Memory: all of them.
    pub fn entries_of(&self, directory: &DocumentId) -> Result<Vec<Entry>> {
        node::read(self.overlay.store(), directory)
    }

    /// Returns the entry of that name in a directory of a snapshot.
    pub fn entry_of(&self, directory: &DocumentId, name: &OsStr) -> Result<Option<Entry>> {
        node::find(self.overlay.store(), directory, name)
    }

    /// Returns the contents of a snapshot, each once. Memory: 16 bytes each.
    pub fn contents_of(&self, snapshot: &Snapshot) -> Result<Vec<RecipeId>> {
        let (mut recipes, mut seen, mut left) = (HashSet::new(), HashSet::new(), vec![snapshot.root_node()]);
        while let Some(directory) = left.pop() {
            if !seen.insert(directory) {
                continue;
            }
            for entry in self.entries_of(&directory)? {
                match entry.node {
                    Node::Directory(id) => left.push(id),
                    Node::File { recipe: Some(recipe), .. } => drop(recipes.insert(recipe)),
                    _ => {}
                }
            }
        }
        Ok(recipes.into_iter().collect())
    }

    /// Calls `visit` with the differences of two directories, in order of paths; false ends it. Everything in
    /// a directory that only one has differs too.
    pub fn differences(
        &self,
        old: &DocumentId,
        new: &DocumentId,
        visit: &mut dyn FnMut(Difference) -> bool,
    ) -> Result<bool> {
        self.compare(Path::new(""), Some(old), Some(new), visit)
    }

    fn compare(
        &self,
        path: &Path,
        old: Option<&DocumentId>,
        new: Option<&DocumentId>,
        visit: &mut dyn FnMut(Difference) -> bool,
    ) -> Result<bool> {
        if old == new {
            return Ok(true);
        }
        let list = |id: Option<&DocumentId>| id.map_or(Ok(Vec::new()), |id| self.entries_of(id));
        let (mut old, mut new) = (list(old)?.into_iter().peekable(), list(new)?.into_iter().peekable());
        loop {
            let order = match (old.peek(), new.peek()) {
                (None, None) => return Ok(true),
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some(old), Some(new)) => old.name.cmp(&new.name),
            };
            let before = if order == Ordering::Greater { None } else { old.next() };
            let after = if order == Ordering::Less { None } else { new.next() };
            if !self.compare_entries(path, before, after, visit)? {
                return Ok(false);
            }
        }
    }

    fn compare_entries(
        &self,
        path: &Path,
        old: Option<Entry>,
        new: Option<Entry>,
        visit: &mut dyn FnMut(Difference) -> bool,
    ) -> Result<bool> {
        let Some(name) = old.as_ref().or(new.as_ref()).map(|entry| entry.name.clone()) else {
            return Ok(true);
        };
        let path = path.join(name);
        let how = match (&old, &new) {
            (None, _) => Some(How::Added),
            (_, None) => Some(How::Removed),
            (Some(old), Some(new)) if is_same(&old.node, &new.node) => {
                (old.meta != new.meta).then_some(How::Attributes)
            }
            _ => Some(How::Changed),
        };
        let directory = |entry: &Option<Entry>| match entry.as_ref().map(|entry| &entry.node) {
            Some(Node::Directory(id)) => Some(*id),
            _ => None,
        };
        let (old_dir, new_dir) = (directory(&old), directory(&new));
        if let Some(how) = how
            && !visit(Difference { path: path.clone(), how, old, new })
        {
            return Ok(false);
        }
        self.compare(&path, old_dir.as_ref(), new_dir.as_ref(), visit)
    }
}

/// Whether the content is the same. Directories differ through their entries.
fn is_same(old: &Node, new: &Node) -> bool {
    match (old, new) {
        (Node::Directory(_), Node::Directory(_)) => true,
        (Node::File { recipe: a, size: b, .. }, Node::File { recipe: c, size: d, .. }) => (a, b) == (c, d),
        (old, new) => old == new,
    }
}
