//! The space that a file would take in the store.

use crate::backing;
use crate::backing::stub::Time;
use rustix::fs::Stat;

/// Bytes that a file that waits for space would add to the store; valid as long as the file does not change.
pub struct Needed {
    mtime: Time,
    size: u64,
    bytes: u64,
}

impl Needed {
    /// Returns the need of a file with these attributes, once its chunks were looked up.
    pub(crate) fn new(stat: &Stat, bytes: u64) -> Needed {
        Needed { mtime: backing::mtime(stat), size: stat.st_size as u64, bytes }
    }

    /// Returns whether it is valid for the file as it is now.
    pub(crate) fn is_of(&self, stat: &Stat) -> bool {
        self.size == stat.st_size as u64 && self.mtime == backing::mtime(stat)
    }
}

/// Returns the most bytes that a file may add to the store.
pub(crate) fn needed(known: Option<&Needed>, stat: &Stat) -> u64 {
    let blocks = stat.st_blocks as u64 * 512;
    let most = blocks.min(stat.st_size as u64);
    known.filter(|known| known.is_of(stat)).map_or(most, |known| known.bytes.min(most))
}
