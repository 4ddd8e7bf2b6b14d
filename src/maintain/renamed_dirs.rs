//! Directories that were renamed, until the files below them were visited.

use crate::backing::types::NodeId;
use crate::tree::inode::Inode;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

const DIRS_MAX: usize = 1024;

/// Directories that were renamed since the last pass.
#[derive(Default)]
pub(crate) struct Renamed {
    dirs: Mutex<Dirs>,
    pass: Mutex<()>,
    queued: AtomicUsize,
}

#[derive(Default)]
pub(crate) struct Dirs {
    pub(crate) few: BTreeMap<NodeId, Arc<Inode>>,
    pub(crate) all: bool,
}

/// A pass over the files below.
pub(crate) struct Pass<'a> {
    renamed: &'a Renamed,
    _only: MutexGuard<'a, ()>,
}

impl Pass<'_> {
    /// Takes note of a file that the pass has queued.
    pub(crate) fn queued(&self) {
        self.renamed.queued.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        self.renamed.queued.store(0, Ordering::Relaxed);
    }
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

    /// Remembers the whole tree.
    pub(crate) fn add_all(&self) {
        self.dirs.lock().unwrap_or_else(PoisonError::into_inner).all = true;
    }

    pub(crate) fn take(&self) -> Dirs {
        std::mem::take(&mut *self.dirs.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Held while the files below are examined; `None` while another thread has it.
    pub(crate) fn pass(&self) -> Option<Pass<'_>> {
        let only = match self.pass.try_lock() {
            Ok(only) => only,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(Pass { renamed: self, _only: only })
    }

    /// Returns how many files the pass under way has queued so far; 0 if there is none.
    pub(crate) fn queued(&self) -> usize {
        self.queued.load(Ordering::Relaxed)
    }
}
