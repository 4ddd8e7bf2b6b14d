//! The disk of a directory that has a part of its tree, as of its head.

use super::super::print::Print;
use super::super::seen::Inode;
use super::super::tree::{ContentId, TreePath};
use std::collections::BTreeMap;

/// See the module.
#[derive(Clone)]
pub(super) struct Basis {
    /// The entries of the head's tree that were here.
    pub here: BTreeMap<TreePath, Inode>,
    /// Other files, and the contents that they had.
    pub older: BTreeMap<TreePath, Option<ContentId>>,
    /// The states of the entries that were here.
    pub prints: BTreeMap<TreePath, Print>,
}
