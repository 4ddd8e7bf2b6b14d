//! Inodes by their numbers, and names that may be changed.

use super::Tree;
use super::inode::Inode;
use crate::backing;
use crate::backing::types::{NodeId, ROOT};
use crate::contents::error::{OverlayError, Result};
use std::ffi::OsStr;
use std::path::Path;
use std::sync::Arc;

impl Tree {
    /// Returns the inode known under a number; the root always is.
    pub(crate) fn inode(&self, node: NodeId) -> Result<Arc<Inode>> {
        if node == ROOT && self.inodes.find(ROOT).is_none() {
            return self.inodes.enter(&self.backing, self.backing.resolve(Path::new(""))?, 1);
        }
        self.inodes.get(node)
    }

    pub(crate) fn check_writable(&self, parent: NodeId, name: &OsStr) -> Result<()> {
        self.check_not_read_only()?;
        if parent == ROOT && backing::is_hidden(name) {
            return Err(OverlayError::Reserved(name.to_string_lossy().into_owned()));
        }
        Ok(())
    }

    pub(super) fn check_not_read_only(&self) -> Result<()> {
        if self.read_only { Err(OverlayError::ReadOnly) } else { Ok(()) }
    }

    /// Takes back `lookups` look-ups on an inode.
    pub fn forget(&self, node: NodeId, lookups: u64) {
        if node != ROOT {
            self.inodes.forget(node, lookups);
        }
    }
}
