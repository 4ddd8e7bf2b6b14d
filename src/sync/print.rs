//! State by which a file is recognized without reading it.

use super::tree::{ContentId, Time};
use crate::backing::types::NodeId;
use rustix::fs::Stat;
use serde::{Deserialize, Serialize};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A file that changed within this time before the scan may change again without a new time.
pub(super) const FRESH: Duration = Duration::from_millis(100);

/// State of a file when its content was hashed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Print {
    /// Inode number; one tree is on one filesystem.
    pub ino: u64,
    /// Bytes.
    pub size: u64,
    /// Time of the content.
    pub mtime: Time,
    /// Time of the inode.
    pub ctime: Time,
    /// Whether it was changed so recently that a later change might not show in its times.
    pub fresh: bool,
    /// The hash of a regular file.
    pub content: Option<ContentId>,
    /// The recipe of the content in the store, if it is known.
    pub recipe: Option<[u8; 16]>,
}

/// Returns the times of a file.
#[allow(clippy::unnecessary_cast, reason = "the types differ between machines")]
fn times(stat: &Stat) -> (Time, Time) {
    ((stat.st_mtime as i64, stat.st_mtime_nsec as u32), (stat.st_ctime as i64, stat.st_ctime_nsec as u32))
}

/// Returns the inode number that a file keeps. A mount shows another one while the kernel remembers a removed file that had it.
pub fn ino(stat: &Stat) -> u64 {
    NodeId(stat.st_ino).own().0
}

/// Returns the state by which the file of `stat` is recognized.
pub fn print(stat: &Stat, content: Option<ContentId>) -> Print {
    let (mtime, ctime) = times(stat);
    let (size, fresh) = (stat.st_size as u64, is_fresh(ctime));
    Print { ino: ino(stat), size, mtime, ctime, fresh, content, recipe: None }
}

/// Returns whether a file changed at `ctime` may change again without a new time. A time in the future counts as
/// fresh.
pub(super) fn is_fresh(ctime: Time) -> bool {
    time(SystemTime::now() - FRESH) < ctime
}

pub(super) fn time(time: SystemTime) -> Time {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    (since.as_secs() as i64, since.subsec_nanos())
}

/// Returns whether `now` equals `before` in everything that is visible without reading the file.
pub fn unchanged(before: &Print, now: &Print) -> bool {
    (before.ino, before.size, before.mtime, before.ctime) == (now.ino, now.size, now.mtime, now.ctime)
}
