//! The units of a tree: each group with all its members, and each other entry by itself. A device has all of a unit or
//! nothing. Pure.

use super::group::{Groups, ITSELF};
use super::tree::{Kind, Tree, TreePath};
use std::collections::{BTreeMap, HashMap};

/// See the module.
#[derive(Default)]
pub struct Units {
    /// The suffixes of each group's members, by the group's path.
    groups: BTreeMap<TreePath, Vec<Vec<u8>>>,
    /// The path of the group of each member.
    roots: HashMap<TreePath, TreePath>,
}

impl Units {
    /// Returns the units of `tree`.
    pub fn of(tree: &Tree, groups: &Groups) -> Units {
        let all: Vec<(&TreePath, &Kind)> =
            tree.entries.iter().map(|(path, entry)| (path, &entry.kind)).collect();
        let groups = groups.find(&all, &|_| false);
        let member = |(root, suffixes): (&TreePath, &Vec<Vec<u8>>)| {
            let paths = suffixes.iter().map(|suffix| ([&root[..], suffix].concat(), root.clone()));
            paths.collect::<Vec<_>>()
        };
        let roots = groups.iter().flat_map(member).collect();
        Units { groups, roots }
    }

    /// Returns the path that stands for the unit of `path`.
    pub fn root<'a>(&'a self, path: &'a TreePath) -> &'a TreePath {
        self.roots.get(path).unwrap_or(path)
    }

    /// Returns whether the unit at `root` is a group.
    pub fn is_group(&self, root: &[u8]) -> bool {
        self.groups.contains_key(root)
    }

    /// Returns the suffixes of the members of the unit at `root`, itself first.
    pub fn suffixes(&self, root: &[u8]) -> Vec<Vec<u8>> {
        self.groups.get(root).cloned().unwrap_or_else(|| vec![ITSELF.to_vec()])
    }
}
