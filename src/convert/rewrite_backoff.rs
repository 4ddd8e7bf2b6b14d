//! Backoff for repeatedly written files: each change after a commit wasted that work, and the next rest is
//! longer.
//!
//! So a log that is appended to every few seconds is converted and hydrated a few times, and then stays plain
//! until no program has written to it for a while. It is committed at the latest an hour after the last
//! change.
//!
//! Bounded: only a limited number of files is remembered, and the longest unwritten are dropped. A dropped
//! file costs one more wasted conversion.

use crate::id::FileId;
use quick_cache::sync::Cache;
use std::time::{Duration, Instant};

/// This many changes of a file after a commit do not lengthen its rest.
const FREE: u32 = 3;
/// No file rests for longer because of its changes.
const REST_MAX: Duration = Duration::from_secs(3600);
/// After this long without a change a file starts over. More than [`REST_MAX`]: else a file that is written once an hour
/// would be stored in vain each time.
const CALM: Duration = Duration::from_secs(2 * 3600);
const FILES_MAX: usize = 8192;

/// How often files were changed after a commit, by inode number.
pub struct RewriteBackoff {
    files: Cache<FileId, (u32, Instant)>,
}

impl RewriteBackoff {
    /// Starts without any files.
    pub fn new() -> RewriteBackoff {
        RewriteBackoff { files: Cache::new(FILES_MAX) }
    }

    /// Records that a committed file was changed.
    pub fn changed(&self, file: FileId, now: Instant) {
        let before = self.count(file, now);
        self.files.insert(file, (before.saturating_add(1), now));
    }

    /// Records that an inode number now means another file.
    pub fn forget(&self, file: FileId) {
        self.files.remove(&file);
    }

    /// Returns how long a file is left alone if its policy says `rest`: the same unless it is changed often.
    pub fn rest(&self, file: FileId, rest: Duration, now: Instant) -> Duration {
        let doublings = self.count(file, now).saturating_sub(FREE).min(20);
        // A policy may say more than the limit here.
        rest.saturating_mul(1 << doublings).min(REST_MAX).max(rest)
    }

    fn count(&self, file: FileId, now: Instant) -> u32 {
        let known = self.files.get(&file);
        known.filter(|(_, last)| now.saturating_duration_since(*last) < CALM).map_or(0, |(count, _)| count)
    }
}

#[cfg(test)]
mod tests {
    use crate::convert::rewrite_backoff::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn the_rest_doubles_up_to_an_hour_and_calms_down() {
        let (rewrite_backoff, start, file) = (RewriteBackoff::new(), Instant::now(), FileId(7));
        let mut rests = Vec::new();
        for i in 0..40 {
            rests.push(rewrite_backoff.rest(file, SECOND, start + i * SECOND).as_secs());
            rewrite_backoff.changed(file, start + i * SECOND);
        }
        assert_eq!(rests[..8], [1, 1, 1, 1, 2, 4, 8, 16]);
        assert_eq!(rests[39], 3600);
        let last = start + 39 * SECOND;
        assert_eq!(rewrite_backoff.rest(file, 5000 * SECOND, last), 5000 * SECOND, "a policy may say more");
        assert_eq!(rewrite_backoff.rest(file, SECOND, last + CALM - SECOND), REST_MAX);
        assert_eq!(rewrite_backoff.rest(file, SECOND, last + CALM), SECOND);
        assert_eq!(rewrite_backoff.rest(FileId(8), SECOND, last), SECOND, "another file is not concerned");
        rewrite_backoff.forget(file);
        assert_eq!(rewrite_backoff.rest(file, SECOND, last), SECOND);
    }

    #[test]
    fn only_so_many_are_remembered() {
        let (rewrite_backoff, now) = (RewriteBackoff::new(), Instant::now());
        (0..10 * FILES_MAX as u64).for_each(|file| rewrite_backoff.changed(FileId(file), now));
        assert!(rewrite_backoff.files.len() <= FILES_MAX);
    }
}
