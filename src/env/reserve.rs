//! Room that is set aside, so that what is needed to go on can be written when the disk is full.
//!
//! A file of allocated blocks in a directory, there only while the disk fills up. Who finds the disk full gives it
//! up, and sets it aside again when there is room. It holds nothing; whoever needs the room may delete it.

use rustix::fs::{FallocateFlags, StatVfs};
use std::fs::File;
use std::path::{Path, PathBuf};

const NAME: &str = "reserve";
/// No more of the filesystem than this is set aside.
const SHARE_MAX: u64 = 100;
/// Only while so many times as much, or half of the filesystem, is not free,
const FREE_MAX: u64 = 32;
/// and so many times as much is.
const FREE_MIN: u64 = 4;

pub(crate) struct Reserve {
    path: PathBuf,
    bytes: u64,
    /// Half of the filesystem.
    half: u64,
}

impl Reserve {
    /// Sets `bytes` aside in `dir`, or as much as is decent; with 0 nothing.
    pub(crate) fn new(dir: &Path, bytes: u64) -> Reserve {
        let all = space(dir).map_or(0, |space| space.f_blocks * space.f_frsize);
        let reserve = Reserve { path: dir.join(NAME), bytes: bytes.min(all / SHARE_MAX), half: all / 2 };
        reserve.take();
        reserve
    }

    /// How many bytes are set aside, when they are.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Gives the room up if there is less than that elsewhere; whether it did.
    pub(crate) fn give_up_if_short(&self) -> bool {
        let short = self.free() < self.bytes && self.path.exists();
        if short {
            tracing::info!("the disk is full: {} is given up for now", self.path.display());
        }
        short && std::fs::remove_file(&self.path).is_ok()
    }

    /// Sets the room aside if the disk fills up, while there is enough left, and gives it back if it does not.
    pub(crate) fn take(&self) {
        let free = self.free();
        let plenty = (self.bytes * FREE_MAX).min(self.half);
        if free > 2 * plenty && self.path.exists() {
            let _ = std::fs::remove_file(&self.path);
        }
        if self.bytes == 0 || free > plenty || free < self.bytes * FREE_MIN || self.path.exists() {
            return;
        }
        self.allocate();
    }

    fn allocate(&self) {
        let made = File::create_new(&self.path)
            .and_then(|file| Ok(rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, self.bytes)?));
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
        let reserve = Reserve::new(dir.path(), 1 << 20);
        assert_eq!(
            reserve.path.exists(),
            reserve.free() < reserve.half.min(32 << 20),
            "only on a disk that fills up"
        );
        let _ = std::fs::remove_file(&reserve.path);
        reserve.allocate();
        let blocks = || std::fs::metadata(dir.path().join(NAME)).map_or(0, |meta| meta.blocks() * 512);
        assert!(blocks() >= 1 << 20 || reserve.bytes < 1 << 20);
        assert!(!reserve.give_up_if_short(), "there is room");
        std::fs::remove_file(dir.path().join(NAME)).unwrap();
        reserve.allocate();
        assert_eq!(blocks() > 0, reserve.bytes > 0);
        let none = tempfile::tempdir().unwrap();
        Reserve::new(none.path(), 0);
        assert!(!none.path().join(NAME).exists());
    }
}
