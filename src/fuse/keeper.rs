//! The choice of directory listings that the kernel may cache.
//!
//! The kernel notes a directory's version when a cacheable listing begins, and again when another one begins
//! before the first has returned entries; it then keeps the entries of the first. A file created between the
//! two was missing from the cached listing until the directory changed again (`fuse_readdir_cached` in Linux,
//! `fs/fuse/readdir.c`). So one open handle of each directory is cached at a time, and the others are not.

use crate::backing::types::NodeId;
use fuser::{FileHandle, FopenFlags};
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The handles with cached listings.
pub(super) struct Keeper {
    /// `None` if nothing is cached: others may change the directories below.
    kept: Option<Mutex<HashMap<NodeId, FileHandle>>>,
}

impl Keeper {
    pub(super) fn new(keeps: bool) -> Keeper {
        Keeper { kept: keeps.then(Mutex::default) }
    }

    fn kept(&self) -> Option<MutexGuard<'_, HashMap<NodeId, FileHandle>>> {
        Some(self.kept.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the flags for a directory that was just opened.
    pub(super) fn opened(&self, dir: NodeId, handle: FileHandle) -> FopenFlags {
        let Some(mut kept) = self.kept() else {
            return FopenFlags::empty();
        };
        match *kept.entry(dir).or_insert(handle) == handle {
            true => FopenFlags::FOPEN_CACHE_DIR | FopenFlags::FOPEN_KEEP_CACHE,
            false => FopenFlags::FOPEN_KEEP_CACHE,
        }
    }

    /// Forgets a closed handle.
    pub(super) fn closed(&self, dir: NodeId, handle: FileHandle) {
        let Some(mut kept) = self.kept() else { return };
        if kept.get(&dir) == Some(&handle) {
            kept.remove(&dir);
        }
    }
}

// Seen to fail with: every handle kept; a handle that is not kept ending that of another.
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_handle_at_a_time_is_kept() {
        let keeper = Keeper::new(true);
        let [a, b] = [7, 8].map(NodeId);
        let is_kept =
            |dir, handle| keeper.opened(dir, FileHandle(handle)).contains(FopenFlags::FOPEN_CACHE_DIR);
        assert!(is_kept(a, 1) && is_kept(b, 2));
        assert!(!is_kept(a, 3));
        keeper.closed(a, FileHandle(3));
        assert!(!is_kept(a, 4), "the first is still open");
        keeper.closed(a, FileHandle(1));
        assert!(is_kept(a, 5));
        assert_eq!(Keeper::new(false).opened(a, FileHandle(1)), FopenFlags::empty());
    }
}
