//! Room that is set aside, so that what is needed to go on can be written when the disk is full.
//!
//! A file of allocated blocks in a directory: a little of it always, so that a disk that something else filled can still
//! be mounted, the rest while the disk fills up. Who finds the disk full gives it up, and sets it aside again when there is
//! room. It holds nothing, and may be deleted.
//!
//! A collection of garbage borrows it: it gives back more than it takes, if nobody else takes the room meanwhile. So
//! until it has ended, others who write to the same store do without ([`Reserve::is_lent`]), and what it has made free
//! is set aside again before anybody else gets it.

use rustix::fs::{FallocateFlags, StatVfs};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

const NAME: &str = "reserve";
/// No more of the filesystem than this is set aside.
const SHARE_MAX: u64 = 50;
/// Only while so many times as much, or half of the filesystem, is not free,
const FREE_MAX: u64 = 32;
/// and so many times as much is.
const FREE_MIN: u64 = 4;

pub(crate) struct Reserve {
    path: PathBuf,
    bytes: u64,
    /// So much of it is always set aside.
    base: u64,
    /// Half of the filesystem.
    half: u64,
    loans: AtomicU32,
}

/// As long as it lives the room is for whoever makes room with it. Then what is left of it is set aside again.
pub(crate) struct Loan(Arc<Reserve>);

impl Drop for Loan {
    fn drop(&mut self) {
        let reserve = &self.0;
        if reserve.loans.fetch_sub(1, Ordering::AcqRel) == 1 && reserve.held() == 0 {
            let free = reserve.free();
            reserve.set_aside(free, free / 4 * 3);
        }
    }
}

impl Reserve {
    /// Sets `bytes` aside in `dir` while the disk fills up, and `base` of them always, or as much as is decent; with 0
    /// nothing.
    pub(crate) fn new(dir: &Path, bytes: u64, base: u64) -> Reserve {
        let all = space(dir).map_or(0, |space| space.f_blocks * space.f_frsize);
        let path = dir.join(NAME);
        let (bytes, loans) = (bytes.min(all / SHARE_MAX), AtomicU32::new(0));
        let reserve = Reserve { path, bytes, base: base.min(bytes), half: all / 2, loans };
        reserve.take();
        reserve
    }

    /// Gives up what is set aside in `dir`, if less than `needed` is free there. For opening a store or an index that lies in it.
    pub(crate) fn release(dir: &Path, needed: u64) {
        if space(dir).is_some_and(|space| space.f_bavail * space.f_frsize < needed) {
            let _ = std::fs::remove_file(dir.join(NAME));
        }
    }

    /// How many bytes are set aside, when they all are.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Gives the room up if there is less than that elsewhere; whether it did.
    pub(crate) fn give_up_if_short(&self) -> bool {
        let short = self.held() > 0 && self.free() < self.bytes;
        if short {
            tracing::info!("the disk is full: {} is given up for now", self.path.display());
        }
        short && std::fs::remove_file(&self.path).is_ok()
    }

    /// As [`Reserve::give_up_if_short`], for whoever makes room with it; to be dropped once that is done.
    pub(crate) fn lend(self: &Arc<Self>) -> Loan {
        self.loans.fetch_add(1, Ordering::AcqRel);
        self.give_up_if_short();
        Loan(Arc::clone(self))
    }

    /// Whether the room has been lent, and whoever else used so much would take of it.
    pub(crate) fn is_lent(&self, bytes: u64) -> bool {
        let is_lent = self.bytes > 0 && self.loans.load(Ordering::Acquire) > 0 && self.held() == 0;
        is_lent && self.free() < self.bytes + bytes
    }

    /// Sets the room aside if the disk fills up, while there is enough left, and gives it back if it does not.
    pub(crate) fn take(&self) {
        // A store that is only read may not give up what a mount has set aside.
        if self.bytes == 0 {
            return;
        }
        let free = self.free();
        let held = self.held();
        if free > 2 * self.plenty() && held > self.base {
            let _ = std::fs::remove_file(&self.path);
        }
        let (lent, wanted) = (self.loans.load(Ordering::Acquire) > 0, self.wanted(free));
        if !lent && free >= wanted * FREE_MIN && self.held() < wanted {
            self.allocate(wanted);
        }
    }

    /// How many bytes are set aside now.
    fn held(&self) -> u64 {
        std::fs::metadata(&self.path).map_or(0, |meta| meta.len())
    }

    /// So much free that nothing has to be set aside.
    fn plenty(&self) -> u64 {
        (self.bytes * FREE_MAX).min(self.half)
    }

    /// How many bytes are to be set aside while so much is free.
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
            // A filesystem that cannot allocate: then there is no reserve.
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
