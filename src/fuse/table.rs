//! Open files and directories by number.

use crate::contents::OverlayError;
use fuser::FileHandle;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Open objects by the number that the kernel uses.
pub(super) struct Table<T> {
    next: AtomicU64,
    shards: [Mutex<HashMap<u64, Arc<T>>>; 16],
}

impl<T> Table<T> {
    pub(super) fn new() -> Table<T> {
        Table { next: AtomicU64::new(1), shards: Default::default() }
    }

    fn shard(&self, number: u64) -> MutexGuard<'_, HashMap<u64, Arc<T>>> {
        self.shards[number as usize % 16].lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add(&self, item: Arc<T>) -> FileHandle {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.shard(number).insert(number, item);
        FileHandle(number)
    }

    pub(super) fn get(&self, handle: FileHandle) -> Result<Arc<T>, OverlayError> {
        let found = self.shard(handle.0).get(&handle.0).cloned();
        found.ok_or(OverlayError::Os(rustix::io::Errno::BADF))
    }

    pub(super) fn remove(&self, handle: FileHandle) -> Option<Arc<T>> {
        self.shard(handle.0).remove(&handle.0)
    }
}
