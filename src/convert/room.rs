//! Free space: the margin that conversions leave to programs, and waiting for space.
//!
//! - Contents enter the store only while the margin stays free
//!   ([`crate::store::StoreOptions::keep_free_bytes`]); the store itself refuses contents that would reduce
//!   it.
//! - A conversion claims the bytes that it may add before it reads the file, so two conversions never count
//!   on the same space. The claim is an upper bound: the file's blocks, or its chunks that the store lacks.
//! - A large file that does not fit is converted piece by piece (`hybrid_beginning`). Any other stays plain,
//!   is indexed, and waits in the queue until there is space.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// By default conversions keep the smaller of these free.
const KEEP_FREE: Amount = Amount::Percent(5);
const KEEP_FREE_BYTES: u64 = 1 << 30;
/// A round of several files uses at most this part of the free space.
pub(crate) const ROUND_SHARE: u64 = 4;
/// A round may always have this many bytes.
pub(crate) const ROUND_BYTES_MIN: u64 = 1 << 20;
/// A piece of a file uses at most this part of the free space: the space that it gives back is free only a little later.
pub(crate) const PIECE_SHARE: u64 = 2;
/// A file that grows is chunked meanwhile only while it is smaller than this part of the free space: its own
/// program needs the rest.
pub(crate) const GROWING_SHARE: u64 = 4;

/// A part of a filesystem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    /// Percent of its size.
    Percent(u8),
    /// Bytes, whatever its size.
    Bytes(u64),
}

impl Amount {
    /// Returns the bytes on a filesystem of `total` bytes.
    pub fn of(self, total: u64) -> u64 {
        match self {
            Amount::Percent(percent) => total / 100 * u64::from(percent),
            Amount::Bytes(bytes) => bytes,
        }
    }
}

/// Returns how much conversions keep free on a filesystem of `total` bytes, by the setting if there is one.
pub fn keep_free_bytes(setting: Option<Amount>, total: u64) -> u64 {
    setting.map_or_else(|| KEEP_FREE.of(total).min(KEEP_FREE_BYTES), |amount| amount.of(total))
}

/// Returns a message that [`Converter::bytes_of_filling_snapshots`](super::Converter::bytes_of_filling_snapshots) is `size`, and the remedy.
pub fn snapshots_fill_disk(size: &str) -> String {
    format!(
        "Snapshots with a name keep {size} of the nearly full disk: remove some with `dedupctl snapshot remove`, then run \
         `dedupctl gc`"
    )
}

/// Space that conversions under way may still use.
pub(crate) struct Room {
    claimed: Arc<AtomicU64>,
    /// Conversions never use more than this, however much is free.
    pub(crate) most: AtomicU64,
}

impl Default for Room {
    fn default() -> Room {
        Room { claimed: Arc::default(), most: AtomicU64::new(u64::MAX) }
    }
}

/// A conversion's part of the free space, until it is dropped.
pub(crate) struct Claim {
    bytes: u64,
    claimed: Arc<AtomicU64>,
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.claimed.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

/// Reason why there is no space for a conversion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoRoom {
    /// Other conversions have claimed the space, for a moment.
    Claimed,
    /// The disk does not have it.
    Full,
}

impl Room {
    pub(crate) fn claim(&self, bytes: u64, free: u64) -> std::result::Result<Claim, NoRoom> {
        if bytes > free {
            return Err(NoRoom::Full);
        }
        let fits = |claimed: u64| claimed.checked_add(bytes).filter(|all| *all <= free);
        match self.claimed.fetch_update(Ordering::AcqRel, Ordering::Acquire, fits) {
            Ok(_) => Ok(Claim { bytes, claimed: self.claimed.clone() }),
            Err(_) => Err(NoRoom::Claimed),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::convert::room::*;

    #[test]
    fn conversions_never_count_on_the_same_space() {
        let room = Room::default();
        assert_eq!(room.claim(11, 10).err(), Some(NoRoom::Full));
        let first = room.claim(6, 10).ok().unwrap();
        assert_eq!(room.claim(6, 10).err(), Some(NoRoom::Claimed));
        let second = room.claim(4, 10).ok().unwrap();
        drop(first);
        assert!(room.claim(6, 10).is_ok());
        drop(second);
        assert!(room.claim(10, 10).is_ok());
    }

    #[test]
    fn the_margin_is_the_smaller_of_a_share_and_a_size_unless_it_is_set() {
        assert_eq!(keep_free_bytes(None, 100 << 20), 5 << 20);
        assert_eq!(keep_free_bytes(None, 1 << 40), 1 << 30);
        assert_eq!(keep_free_bytes(Some(Amount::Percent(50)), 1 << 40), (1 << 40) / 100 * 50);
        assert_eq!(keep_free_bytes(Some(Amount::Bytes(0)), 1 << 40), 0);
    }
}
