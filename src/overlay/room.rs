//! Free space: the margin that conversions leave to programs, and waiting for space.
//!
//! - Contents enter the store only while the margin stays free
//!   ([`crate::store::StoreOptions::keep_free_bytes`]); the store itself refuses contents that would reduce
//!   it.
//! - A conversion claims the bytes that it may add before it reads the file, so two conversions never count
//!   on the same space. The claim is an upper bound: the file's blocks, or its chunks that the store lacks.
//! - A large file that does not fit is converted piece by piece (`hybrid::beginning`). Any other stays plain,
//!   is indexed, and waits in the queue until there is space.

use super::Overlay;
use super::inode::{Inode, State as InodeState};
use super::queue::Entry;
use crate::backing;
use crate::backing::stub::Time;
use crate::recipe::Recipe;
use crate::store::StoreError;
use rustix::fs::Stat;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// By default conversions keep the smaller of these free.
const KEEP_FREE: Amount = Amount::Percent(5);
const KEEP_FREE_BYTES: u64 = 1 << 30;
/// A round of several files uses at most this part of the free space.
const ROUND_SHARE: u64 = 4;
/// A round may always have this many bytes.
const ROUND_BYTES_MIN: u64 = 1 << 20;
/// A piece of a file uses at most this part of the free space: the space that it gives back is free only a little later.
const PIECE_SHARE: u64 = 2;
/// A file that grows is chunked meanwhile only while it is smaller than this part of the free space: its own
/// program needs the rest.
const GROWING_SHARE: u64 = 4;

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

/// Returns a message that [`Overlay::bytes_of_filling_snapshots`] is `size`, and the remedy.
pub fn snapshots_fill_disk(size: &str) -> String {
    format!(
        "Snapshots with a name keep {size} of the nearly full disk: remove some with `dedupctl snapshot remove`, then run \
         `dedupctl gc`"
    )
}

/// Space that conversions under way may still use.
pub(super) struct Room {
    claimed: Arc<AtomicU64>,
    /// Conversions never use more than this, however much is free.
    most: AtomicU64,
}

impl Default for Room {
    fn default() -> Room {
        Room { claimed: Arc::default(), most: AtomicU64::new(u64::MAX) }
    }
}

/// A conversion's part of the free space, until it is dropped.
pub(super) struct Claim {
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
pub(super) enum NoRoom {
    /// Other conversions have claimed the space, for a moment.
    Claimed,
    /// The disk does not have it.
    Full,
}

impl Room {
    fn claim(&self, bytes: u64, free: u64) -> std::result::Result<Claim, NoRoom> {
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

/// Bytes that a file that waits for space would add to the store; valid as long as the file does not change.
pub struct Needed {
    mtime: Time,
    size: u64,
    bytes: u64,
}

impl Overlay {
    /// Returns the free bytes that conversions may use.
    fn room(&self) -> u64 {
        let store = &self.contents.store;
        let free = store.space().free.saturating_sub(store.keep_free_bytes());
        free.min(self.room.most.load(Ordering::Relaxed))
    }

    /// Limits the bytes that conversions may use: for tests of small disks.
    #[doc(hidden)]
    pub fn limit_room(&self, bytes: u64) {
        self.room.most.store(bytes, Ordering::Relaxed);
    }

    /// Returns how many bytes of a file that does not fit may be converted at once.
    pub(super) fn piece_room(&self) -> u64 {
        self.room() / PIECE_SHARE
    }

    /// Claims space for a conversion that adds at most `bytes`.
    pub(super) fn claim(&self, bytes: u64) -> std::result::Result<Claim, NoRoom> {
        self.room.claim(bytes, self.room())
    }

    /// Returns how many bytes a round of several files may have.
    pub(super) fn round_room(&self) -> u64 {
        (self.room() / ROUND_SHARE).max(ROUND_BYTES_MIN)
    }

    /// Returns whether a file of `bytes` may be chunked while it grows.
    pub(super) fn has_room_to_grow(&self, bytes: u64) -> bool {
        bytes <= self.room() / GROWING_SHARE
    }

    /// Returns whether so little is free that the history has to shrink.
    pub(super) fn is_short(&self) -> bool {
        let store = &self.contents.store;
        store.space().free < store.keep_free_bytes() / 2 * 3
    }

    /// Returns the bytes that named snapshots need, by the last collection, if those alone keep the disk nearly full: then
    /// giving up versions does not help.
    pub fn bytes_of_filling_snapshots(&self) -> Option<u64> {
        let held = self.held_for_history();
        let named_bytes = held.bytes.saturating_sub(held.yielding_bytes);
        (self.is_short() && named_bytes > self.contents.store.keep_free_bytes()).then_some(named_bytes)
    }

    /// Returns why the disk is full, for messages: empty, or a sentence about snapshots.
    pub(super) fn why_full(&self) -> String {
        let bytes = self.bytes_of_filling_snapshots();
        bytes
            .map_or_else(String::new, |bytes| format!(". {}", snapshots_fill_disk(&format!("{bytes} bytes"))))
    }

    /// Leaves a file plain until there is space for its content.
    pub(super) fn wait_for_space(&self, inode: &Arc<Inode>, state: &mut InodeState) {
        state.dirty = true;
        self.no_room.store(true, Ordering::Relaxed);
        if !state.queued {
            state.queued = true;
            self.queue.push_waiting(Entry { inode: inode.clone(), generation: state.generation });
        }
    }

    /// Returns the bytes of the chunks of a recipe that the store does not have.
    pub(super) fn bytes_not_stored(&self, recipe: &Recipe) -> std::result::Result<u64, StoreError> {
        let (mut seen, mut bytes) = (HashSet::new(), 0);
        for chunk in recipe.chunks() {
            if seen.insert(chunk.id) && !self.contents.store.known(&chunk.id)? {
                bytes += u64::from(chunk.len);
            }
        }
        Ok(bytes)
    }
}

impl Needed {
    /// Returns the need of a file with these attributes, once its chunks were looked up.
    pub(super) fn new(stat: &Stat, bytes: u64) -> Needed {
        Needed { mtime: backing::mtime(stat), size: stat.st_size as u64, bytes }
    }

    /// Returns whether it is valid for the file as it is now.
    pub(super) fn is_of(&self, stat: &Stat) -> bool {
        self.size == stat.st_size as u64 && self.mtime == backing::mtime(stat)
    }
}

/// Returns the most bytes that a file may add to the store.
pub(super) fn needed(known: Option<&Needed>, stat: &Stat) -> u64 {
    let blocks = stat.st_blocks as u64 * 512;
    let most = blocks.min(stat.st_size as u64);
    known.filter(|known| known.is_of(stat)).map_or(most, |known| known.bytes.min(most))
}

#[cfg(test)]
mod tests {
    use super::*;

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
