//! Room that is set aside, so that garbage can be collected when the disk is full.
//!
//! A file of allocated blocks in the store's directory. A collection that finds the disk full gives it up, and
//! sets it aside again when it is done. It holds nothing; whoever needs the room may delete it.

use rustix::fs::{FallocateFlags, StatVfs};
use std::fs::File;
use std::path::{Path, PathBuf};

const NAME: &str = "reserve";
/// No more of the filesystem than this is set aside.
const SHARE_MAX: u64 = 100;
/// And only if so many times as much would be left.
const LEFT_MIN: u64 = 4;

pub(super) struct Reserve {
    path: PathBuf,
    bytes: u64,
}

impl Reserve {
    /// Sets `bytes` aside in `dir`, or as much as is decent; with 0 nothing.
    pub(super) fn new(dir: &Path, bytes: u64) -> Reserve {
        let all = space(dir).map_or(0, |space| space.f_blocks * space.f_frsize);
        let reserve = Reserve { path: dir.join(NAME), bytes: bytes.min(all / SHARE_MAX) };
        reserve.take();
        reserve
    }

    /// Gives the room up if there is less than that elsewhere; whether it did.
    pub(super) fn give_up_if_short(&self) -> bool {
        let short = self.free() < self.bytes && self.path.exists();
        if short {
            tracing::info!("the disk is full: {} is given up for now", self.path.display());
        }
        short && std::fs::remove_file(&self.path).is_ok()
    }

    /// Sets the room aside, if there is enough left then.
    pub(super) fn take(&self) {
        if self.bytes == 0 || self.path.exists() || self.free() < self.bytes * LEFT_MIN {
            return;
        }
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
        let blocks = || std::fs::metadata(dir.path().join(NAME)).map_or(0, |meta| meta.blocks() * 512);
        assert!(blocks() >= 1 << 20 || reserve.bytes < 1 << 20);
        assert!(!reserve.give_up_if_short(), "there is room");
        std::fs::remove_file(dir.path().join(NAME)).unwrap();
        reserve.take();
        assert_eq!(blocks() > 0, reserve.bytes > 0);
        let none = tempfile::tempdir().unwrap();
        Reserve::new(none.path(), 0);
        assert!(!none.path().join(NAME).exists());
    }
}
