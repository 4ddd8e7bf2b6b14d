//! Reserved disk space, so that necessary writes still work when the disk is full.
//!
//! It is a file of allocated blocks in a directory: a small part always, so that a disk that other programs
//! filled can still be mounted, and the rest while the disk fills up. A caller that finds the disk full
//! releases it; it is reserved again when there is space. The file has no content, and may be deleted.
//!
//! A garbage collection borrows it: it frees more than it takes, unless others take the space meanwhile. So
//! until it ends, other writers to the same store do without ([`Reserve::is_reserved`]), and the freed space is
//! reserved again first.

use rustix::fs::{FallocateFlags, StatVfs};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

const NAME: &str = "reserve";
/// Limit as a share of the filesystem.
const SHARE_MAX: u64 = 50;
/// Reserved only while less than this many times as much, or less than half of the filesystem, is free,
const FREE_MAX: u64 = 32;
/// and at least this many times as much is.
const FREE_MIN: u64 = 4;

pub(crate) struct Reserve {
    path: PathBuf,
    bytes: u64,
    /// The part that is always reserved.
    base: u64,
    /// Half of the filesystem.
    half: u64,
    reservations: AtomicU32,
}

/// While it exists, the space belongs to a caller that frees space with it. Then the rest is reserved again.
pub(crate) struct Reservation(Arc<Reserve>);

impl Drop for Reservation {
    fn drop(&mut self) {
        let reserve = &self.0;
        if reserve.reservations.fetch_sub(1, Ordering::AcqRel) == 1 && reserve.held() == 0 {
            let free = reserve.free();
            reserve.set_aside(free, free / 4 * 3);
        }
    }
}

impl Reserve {
    /// Reserves `bytes` in `dir` while the disk fills up, and `base` of them always, or as much as is
    /// reasonable; with 0 nothing.
    pub(crate) fn new(dir: &Path, bytes: u64, base: u64) -> Reserve {
        let all = space(dir).map_or(0, |space| space.f_blocks * space.f_frsize);
        let path = dir.join(NAME);
        let (bytes, reservations) = (bytes.min(all / SHARE_MAX), AtomicU32::new(0));
        let reserve = Reserve { path, bytes, base: base.min(bytes), half: all / 2, reservations };
        reserve.take();
        reserve
    }

    /// Releases the reserve in `dir` if less than `needed` is free there, to open a store or an index in it.
    pub(crate) fn release(dir: &Path, needed: u64) {
        if space(dir).is_some_and(|space| space.f_bavail * space.f_frsize < needed) {
            let _ = std::fs::remove_file(dir.join(NAME));
        }
    }

    /// Returns the size of the full reserve in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Releases the space if less is free elsewhere; returns whether it did.
    pub(crate) fn give_up_if_short(&self) -> bool {
        let short = self.held() > 0 && self.free() < self.bytes;
        if short {
            tracing::info!("the disk is full: {} is given up for now", self.path.display());
        }
        short && std::fs::remove_file(&self.path).is_ok()
    }

    /// Like [`Reserve::give_up_if_short`], for a caller that frees space with it, and drops the reservation then.
    pub(crate) fn reserve(self: &Arc<Self>) -> Reservation {
        self.reservations.fetch_add(1, Ordering::AcqRel);
        self.give_up_if_short();
        Reservation(Arc::clone(self))
    }

    /// Whether a caller has reserved the space, so that others that use this much would take some of it.
    pub(crate) fn is_reserved(&self, bytes: u64) -> bool {
        let is_reserved = self.bytes > 0 && self.reservations.load(Ordering::Acquire) > 0 && self.held() == 0;
        is_reserved && self.free() < self.bytes + bytes
    }

    /// Reserves the space if the disk fills up and enough is left, and releases it otherwise.
    pub(crate) fn take(&self) {
        // A read-only store must not release the space that a mount has reserved.
        if self.bytes == 0 {
            return;
        }
        let free = self.free();
        let held = self.held();
        if free > 2 * self.plenty() && held > self.base {
            let _ = std::fs::remove_file(&self.path);
        }
        let (reserved, wanted) = (self.reservations.load(Ordering::Acquire) > 0, self.wanted(free));
        if !reserved && free >= wanted * FREE_MIN && self.held() < wanted {
            self.allocate(wanted);
        }
    }

    /// Returns the bytes that are reserved now.
    fn held(&self) -> u64 {
        std::fs::metadata(&self.path).map_or(0, |meta| meta.len())
    }

    /// Returns the free space above which nothing must be reserved.
    fn plenty(&self) -> u64 {
        (self.bytes * FREE_MAX).min(self.half)
    }

    /// Returns the bytes to reserve at this much free space.
    fn wanted(&self, free: u64) -> u64 {
        if free <= self.plenty() { self.bytes } else { self.base }
    }

    fn set_aside(&self, free: u64, most: u64) {
        let bytes = self.wanted(free).min(most);
        if bytes > 0 {
            self.allocate(bytes);
        }
    }

    fn allocate(&self, bytes: u64) {
        let made = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&self.path)
            .and_then(|file| Ok(rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, bytes)?));
        if made.is_err() {
            // The filesystem cannot allocate: then there is no reserve.
            let _ = std::fs::remove_file(&self.path);
        }
    }

    fn free(&self) -> u64 {
        let dir = self.path.parent().unwrap_or(Path::new("/"));
        space(dir).map_or(0, |space| space.f_bavail * space.f_frsize)
    }
}

fn space(dir: &Path) -> Option<StatVfs> {
    rustix::fs::statvfs(dir).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_real_room_and_comes_back() {
        use std::os::unix::fs::MetadataExt;
        let dir = tempfile::tempdir().unwrap();
        let reserve = Reserve::new(dir.path(), 1 << 20, 4096);
        let plenty = reserve.free() > 2 * reserve.half.min(32 << 20);
        assert!(reserve.held() == 4096 || !plenty, "more only on a disk that fills up");
        Reserve::release(dir.path(), 0);
        assert!(reserve.path.exists(), "nothing needs it");
        Reserve::release(dir.path(), u64::MAX);
        assert!(!reserve.path.exists());
        let _ = std::fs::remove_file(&reserve.path);
        reserve.allocate(reserve.bytes);
        let blocks = || std::fs::metadata(dir.path().join(NAME)).map_or(0, |meta| meta.blocks() * 512);
        assert!(blocks() >= 1 << 20 || reserve.bytes < 1 << 20);
        assert!(!reserve.give_up_if_short(), "there is room");
        std::fs::remove_file(dir.path().join(NAME)).unwrap();
        reserve.allocate(reserve.bytes / 2);
        reserve.allocate(reserve.bytes);
        assert_eq!(reserve.held(), reserve.bytes, "it grows");
        let none = tempfile::tempdir().unwrap();
        Reserve::new(none.path(), 0, 4096);
        assert!(!none.path().join(NAME).exists());
    }
}
