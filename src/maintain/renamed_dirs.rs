//! Directories that were renamed, until the files below them were visited.

use crate::backing::types::NodeId;
use crate::tree::inode::Inode;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

const DIRS_MAX: usize = 1024;

/// Directories that were renamed since the last pass.
#[derive(Default)]
pub(crate) struct Renamed {
    dirs: Mutex<Dirs>,
    pass: Mutex<()>,
}

#[derive(Default)]
pub(crate) struct Dirs {
    pub(crate) few: BTreeMap<NodeId, Arc<Inode>>,
    pub(crate) all: bool,
}

impl Renamed {
    /// Remembers a directory, to examine its files later.
    pub(crate) fn add(&self, dir: Arc<Inode>) {
        let mut dirs = self.dirs.lock().unwrap_or_else(PoisonError::into_inner);
        if !dirs.all {
            dirs.few.insert(dir.node, dir);
            dirs.all = dirs.few.len() > DIRS_MAX;
        }
    }

    pub(crate) fn take(&self) -> Dirs {
        std::mem::take(&mut *self.dirs.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Held while the files below are examined; `None` while another thread has it.
    pub(crate) fn pass(&self) -> Option<MutexGuard<'_, ()>> {
        match self.pass.try_lock() {
            Ok(pass) => Some(pass),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}
