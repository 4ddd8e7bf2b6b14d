//! Hot files: counts how often stubs are opened for reading, and how much space hydrated ones take.
//!
//! A stub is read through the daemon and the page cache of its FUSE inode; with passthrough the kernel itself
//! reads a plain file. So a stub that is opened often enough is hydrated for a while (`warm`), and becomes a
//! stub again when it has not been open for some time. Nothing of this is on disk: the next daemon starts
//! from zero.
//!
//! Bounded: only a limited number of files is counted, and the longest unused are dropped. A dropped file is
//! read like any stub.

use crate::backing::stub::Stub;
use crate::id::FileId;
use quick_cache::sync::Cache;
use rustix::fs::StatVfs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Opens that make a file hot: about this many reads through the page cache of FUSE cost as much as writing the file back and
/// storing it again (decision 0043).
const OPENS: u32 = 16;
/// Opens count together if they come within this time.
const WINDOW: Duration = Duration::from_secs(600);
/// A file that could not be written back is not tried again for this long.
const AFTER_FAILURE: Duration = Duration::from_secs(3600);
/// For a smaller file, opening and closing take most of the time of a read, however its bytes come.
pub const HOT_BYTES_MIN: u64 = 1 << 20;
const FILES_MAX: usize = 8192;
/// Space of the backing filesystem that stays free: a tenth of it, or this if that is less.
const FREE_MIN: u64 = 1 << 30;

/// Limits for hot files, which are kept plain because they are read often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HotOptions {
    /// Space in bytes for all of them; 0: no file is kept plain.
    pub bytes_max: u64,
    /// A file that was closed for this long goes back into the store.
    pub rest: Duration,
}

impl Default for HotOptions {
    fn default() -> HotOptions {
        HotOptions { bytes_max: 1 << 30, rest: Duration::from_secs(3600) }
    }
}

/// Counts opens, and reserves room.
pub struct Heat {
    options: HotOptions,
    files: Cache<FileId, Opens>,
    room: Arc<Room>,
    /// Whether the kernel does the I/O of plain files by itself: otherwise hot files gain nothing.
    passes: AtomicBool,
}

#[derive(Clone, Copy)]
struct Opens {
    count: u32,
    since: Instant,
    not_before: Instant,
}

#[derive(Default)]
struct Room {
    /// Bytes reserved.
    taken: AtomicU64,
    /// Hot files that are plain now, and their bytes.
    files: AtomicU64,
    bytes: AtomicU64,
}

/// Room reserved for one hot file; dropping it gives the room back.
pub struct Share {
    room: Arc<Room>,
    bytes: u64,
    used: bool,
}

impl Share {
    /// Returns the same share, for a file that is plain now.
    pub fn used(mut self) -> Share {
        if !std::mem::replace(&mut self.used, true) {
            self.room.files.fetch_add(1, Ordering::Relaxed);
            self.room.bytes.fetch_add(self.bytes, Ordering::Relaxed);
        }
        self
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.room.taken.fetch_sub(self.bytes, Ordering::Relaxed);
        if self.used {
            self.room.files.fetch_sub(1, Ordering::Relaxed);
            self.room.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        }
    }
}

impl Heat {
    /// Starts with no opens counted; nothing is hot before [`Heat::set_passes`].
    pub fn new(options: HotOptions) -> Heat {
        Heat { options, files: Cache::new(FILES_MAX), room: Arc::default(), passes: AtomicBool::new(false) }
    }

    /// Sets whether the kernel does the I/O of plain files by itself.
    pub fn set_passes(&self, passes: bool) {
        self.passes.store(passes, Ordering::Relaxed);
    }

    /// Returns how long a hot file stays closed before it goes back into the store.
    pub fn rest(&self) -> Duration {
        self.options.rest
    }

    /// Records that a stub was opened for reading.
    pub fn opened(&self, file: FileId, bytes: u64, now: Instant) {
        if !self.may_keep(bytes) {
            return;
        }
        let known = self.files.get(&file);
        let known = known.filter(|opens| now < opens.not_before || within(opens.since, WINDOW, now));
        let mut opens = known.unwrap_or(Opens { count: 0, since: now, not_before: now });
        opens.count = opens.count.saturating_add(1);
        self.files.insert(file, opens);
    }

    /// Returns whether a stub was opened often enough to be written back.
    pub fn is_hot(&self, file: FileId, bytes: u64, now: Instant) -> bool {
        let hot = |opens: Opens| {
            opens.count >= OPENS && within(opens.since, WINDOW, now) && now >= opens.not_before
        };
        self.may_keep(bytes) && self.files.get(&file).is_some_and(hot)
    }

    fn may_keep(&self, bytes: u64) -> bool {
        self.passes.load(Ordering::Relaxed) && bytes >= HOT_BYTES_MIN && bytes <= self.options.bytes_max
    }

    /// Forgets a file's opens: it was written back, is to start over, or its inode number now means another file.
    pub fn forget(&self, file: FileId) {
        self.files.remove(&file);
    }

    /// Records that a file could not be written back.
    pub fn failed(&self, file: FileId, now: Instant) {
        self.files.insert(file, Opens { count: 0, since: now, not_before: now + AFTER_FAILURE });
    }

    /// Reserves room for `bytes` bytes, if that is within the limit.
    pub fn share(&self, bytes: u64) -> Option<Share> {
        let fits = |taken: u64| taken.checked_add(bytes).filter(|all| *all <= self.options.bytes_max);
        self.room.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).ok()?;
        Some(Share { room: self.room.clone(), bytes, used: false })
    }

    /// Returns the number of hot files that are plain, and the room that they take in bytes.
    pub fn kept(&self) -> (u64, u64) {
        (self.room.files.load(Ordering::Relaxed), self.room.bytes.load(Ordering::Relaxed))
    }
}

fn within(since: Instant, time: Duration, now: Instant) -> bool {
    now.saturating_duration_since(since) < time
}

/// Returns the room in bytes that a stub takes when it is plain.
pub fn room_of(stub: &Stub) -> u64 {
    stub.size.min(stub.blocks.saturating_mul(512))
}

/// Returns whether a filesystem has enough free space left when it stores `bytes` bytes more.
pub fn leaves_enough(space: &StatVfs, bytes: u64) -> bool {
    let (free, all) = (space.f_bavail * space.f_frsize, space.f_blocks * space.f_frsize);
    free.checked_sub(bytes).is_some_and(|left| left >= (all / 10).min(FREE_MIN))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const LARGE: u64 = 1 << 20;

    fn heat() -> Heat {
        let heat = Heat::new(HotOptions { bytes_max: 10 * LARGE, rest: SECOND });
        heat.set_passes(true);
        heat
    }

    /// Whether a file is hot that is opened `opens` times, one each `interval`.
    fn opened(heat: &Heat, file: u64, bytes: u64, opens: u32, interval: Duration) -> bool {
        let start = Instant::now();
        (0..opens).for_each(|i| heat.opened(FileId(file), bytes, start + i * interval));
        heat.is_hot(FileId(file), bytes, start + opens.saturating_sub(1) * interval)
    }

    #[test]
    fn a_file_is_hot_that_is_opened_often_within_a_time() {
        let heat = heat();
        assert!(!opened(&heat, 1, LARGE, OPENS - 1, SECOND));
        assert!(opened(&heat, 2, LARGE, OPENS, SECOND));
        assert!(!heat.is_hot(FileId(1), LARGE, Instant::now()), "another file is not concerned");
        assert!(!opened(&heat, 3, LARGE, 100, WINDOW / 4), "not as often as that");
        assert!(!heat.is_hot(FileId(2), LARGE, Instant::now() + 2 * WINDOW), "that was long ago");
        heat.forget(FileId(2));
        assert!(!opened(&heat, 2, LARGE, OPENS - 1, SECOND), "it begins anew");
    }

    #[test]
    fn only_where_something_is_gained() {
        let heat = heat();
        assert!(!opened(&heat, 1, HOT_BYTES_MIN - 1, 100, SECOND), "too small");
        assert!(opened(&heat, 2, HOT_BYTES_MIN, 100, SECOND));
        assert!(!opened(&heat, 3, 10 * LARGE + 1, 100, SECOND), "more than there is room for");
        heat.set_passes(false);
        assert!(!opened(&heat, 4, LARGE, 100, SECOND), "no passthrough");
        assert!(!heat.is_hot(FileId(2), LARGE, Instant::now()));
        let off = Heat::new(HotOptions { bytes_max: 0, rest: SECOND });
        off.set_passes(true);
        assert!(!opened(&off, 1, LARGE, 100, SECOND));
    }

    #[test]
    fn one_that_failed_is_left_alone_for_some_time() {
        let (heat, now) = (heat(), Instant::now());
        heat.failed(FileId(1), now);
        assert!(!opened(&heat, 1, LARGE, 100, SECOND));
        let later = now + AFTER_FAILURE + WINDOW;
        (0..OPENS).for_each(|_| heat.opened(FileId(1), LARGE, later));
        assert!(heat.is_hot(FileId(1), LARGE, later));
    }

    #[test]
    fn room_is_bounded_and_given_back() {
        let heat = heat();
        let mut shares: Vec<_> = (0..10).map(|_| heat.share(LARGE).unwrap()).collect();
        assert!(heat.share(1).is_none() && heat.share(u64::MAX).is_none());
        assert_eq!(heat.kept(), (0, 0), "none is plain yet");
        let used: Vec<_> = shares.drain(..4).map(Share::used).collect();
        assert_eq!(heat.kept(), (4, 4 * LARGE));
        drop(shares);
        assert!(heat.share(6 * LARGE).is_some() && heat.share(7 * LARGE).is_none());
        drop(used);
        assert!(heat.kept() == (0, 0) && heat.share(10 * LARGE).is_some());
    }

    #[test]
    fn some_of_the_filesystem_stays_free() {
        let mut space = rustix::fs::statvfs("/").unwrap();
        let (mib, gib) = (1 << 20, 1 << 30);
        space.f_frsize = 4096;
        for (all, free, bytes, expected) in [
            (gib, 200 * mib, 90 * mib, true),
            (gib, 200 * mib, 100 * mib, false),
            (100 * gib, 2 * gib, gib, true),
            (100 * gib, 2 * gib, gib + 4096, false),
            (gib, mib, 2 * mib, false),
        ] {
            (space.f_blocks, space.f_bavail) = (all / 4096, free / 4096);
            assert_eq!(leaves_enough(&space, bytes), expected, "{all} {free} {bytes}");
        }
    }

    #[test]
    fn only_so_many_are_counted() {
        let (heat, now) = (heat(), Instant::now());
        (0..10 * FILES_MAX as u64).for_each(|file| heat.opened(FileId(file), LARGE, now));
        assert!(heat.files.len() <= FILES_MAX);
    }
}
