//! Directories that were renamed, until the files below them were visited.

use crate::backing::types::NodeId;
use crate::tree::inode::Inode;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

const DIRS_MAX: usize = 1024;

/// Directories that were renamed since the last pass.
#[derive(Default)]
pub(crate) struct Renamed(Mutex<Dirs>);

#[derive(Default)]
pub(crate) struct Dirs {
    pub(crate) few: BTreeMap<NodeId, Arc<Inode>>,
    pub(crate) all: bool,
}

impl Renamed {
    /// Remembers a directory, to examine its files later.
    pub(crate) fn add(&self, dir: Arc<Inode>) {
        let mut dirs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !dirs.all {
            dirs.few.insert(dir.node, dir);
            dirs.all = dirs.few.len() > DIRS_MAX;
        }
    }

    pub(crate) fn take(&self) -> Dirs {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
