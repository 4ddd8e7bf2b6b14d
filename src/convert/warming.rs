//! Hot files that wait to be written back.

use crate::tree::inode::Inode;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// At most this many files wait to be written back. A hot file beyond that gets its turn after its next last close.
const WAITING_MAX: usize = 64;

/// Hot files that wait to be written back.
#[derive(Default)]
pub(crate) struct Warming {
    files: Mutex<(VecDeque<Arc<Inode>>, bool)>,
    changed: Condvar,
}

impl Warming {
    /// Adds a file, unless it is there already or too many others are.
    pub(crate) fn push(&self, inode: &Arc<Inode>) {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        if files.0.len() < WAITING_MAX && !files.0.iter().any(|other| Arc::ptr_eq(other, inode)) {
            files.0.push_back(inode.clone());
            self.changed.notify_one();
        }
    }

    /// Waits for a file; `None` after the end.
    pub(crate) fn take(&self) -> Option<Arc<Inode>> {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            match (files.1, files.0.pop_front()) {
                (true, _) => return None,
                (false, Some(inode)) => return Some(inode),
                (false, None) => files = self.changed.wait(files).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    /// Ends all waiting.
    pub(crate) fn stop(&self) {
        self.files.lock().unwrap_or_else(PoisonError::into_inner).1 = true;
        self.changed.notify_all();
    }
}
