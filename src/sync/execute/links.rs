//! Inodes with several names. A step on one name changes the times of the inode, so all its names are examined again.
//! Otherwise the next step would take this for a change by a user, and leave the other names with the old content.

use super::skip::{Skip, refused};
use crate::beneath::Root;
use crate::sync::plan::Op;
use crate::sync::print::{Print, print, unchanged};
use crate::sync::tree::{TreePath, join};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// Names by inode number, of inodes that have more than one.
#[derive(Default)]
pub(super) struct Links(HashMap<u64, BTreeSet<TreePath>>);

impl Links {
    /// Returns the links among the examined entries.
    pub(super) fn of(prints: &BTreeMap<TreePath, Print>) -> Links {
        let mut inodes: Vec<u64> = prints.values().map(|print| print.ino).collect();
        inodes.sort_unstable();
        let several = inodes.windows(2).filter(|pair| pair[0] == pair[1]).map(|pair| pair[0]);
        let several: HashSet<u64> = several.collect();
        let mut links = Links::default();
        if !several.is_empty() {
            let linked = prints.iter().filter(|(_, print)| several.contains(&print.ino));
            linked.for_each(|(path, print)| links.add(print.ino, path));
        }
        links
    }

    /// Adds `path` as a name of the inode.
    pub(super) fn add(&mut self, ino: u64, path: &TreePath) {
        self.0.entry(ino).or_default().insert(path.clone());
    }

    /// Renames `from`, and all paths below it, to `to`.
    pub(super) fn rename(&mut self, from: &TreePath, to: &TreePath) {
        let below = join(from, b"");
        for paths in self.0.values_mut() {
            let moved = |path: &&TreePath| *path == from || path.starts_with(&below);
            for path in paths.iter().filter(moved).cloned().collect::<Vec<_>>() {
                paths.remove(&path);
                paths.insert([to, &path[from.len()..]].concat());
            }
        }
    }

    fn names(&self, ino: u64) -> Vec<TreePath> {
        self.0.get(&ino).into_iter().flatten().cloned().collect()
    }

    /// Returns the examined state of the inodes with several names that `op` changes.
    pub(super) fn linked(&self, op: &Op, prints: &BTreeMap<TreePath, Print>) -> Vec<Print> {
        let known = changed_by(op).into_iter().filter_map(|path| prints.get(&path));
        known.filter(|known| self.0.contains_key(&known.ino)).cloned().collect()
    }

    /// Takes over the changes that `op`, done or tried, made to the inodes `before`, so that they do not count as
    /// changes by others.
    pub(super) fn follow(
        &self,
        op: &Op,
        before: &[Print],
        root: &Root,
        prints: &mut BTreeMap<TreePath, Print>,
    ) -> Result<(), Skip> {
        // Metadata that this step set through one name.
        let set = match op {
            Op::Meta { path, .. } => prints.get(path).cloned(),
            _ => None,
        };
        for before in before {
            for path in self.names(before.ino) {
                let (Some(known), Some(stat)) =
                    (prints.get(&path).cloned(), root.stat(&path).map_err(refused(&path, "look at"))?)
                else {
                    continue;
                };
                let now = print(&stat, None);
                let ours = set.as_ref().is_some_and(|set| unchanged(set, &now) && unchanged(before, &known));
                let same = (now.ino, now.size, now.mtime) == (known.ino, known.size, known.mtime);
                if known.ino == before.ino && (same || ours) {
                    prints.insert(path, Print { ctime: now.ctime, mtime: now.mtime, ..known });
                }
            }
        }
        Ok(())
    }
}

/// Returns the paths whose inodes a step changes.
fn changed_by(op: &Op) -> Vec<TreePath> {
    match op {
        Op::MakeDir { .. } => Vec::new(),
        Op::Move { from, .. } => vec![from.clone()],
        Op::Create { link, .. } => link.iter().cloned().collect(),
        Op::Replace { path, link, .. } => link.iter().chain([path]).cloned().collect(),
        Op::Remove { path, .. } | Op::Meta { path, .. } => vec![path.clone()],
        Op::Group { path, was, .. } => was.keys().map(|suffix| [&path[..], suffix].concat()).collect(),
    }
}
