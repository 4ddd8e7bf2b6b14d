//! The free space that conversions may use, and files that wait for it.

use super::Converter;
use super::queue::Entry;
use super::room::{
    Claim, GROWING_SHARE, NoRoom, PIECE_SHARE, ROUND_BYTES_MIN, ROUND_SHARE, snapshots_fill_disk,
};
use crate::recipe::Recipe;
use crate::store::StoreError;
use crate::tree::inode::{Inode, State as InodeState};
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Converter {
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
    pub(crate) fn piece_room(&self) -> u64 {
        self.room() / PIECE_SHARE
    }

    /// Claims space for a conversion that adds at most `bytes`.
    pub(crate) fn claim(&self, bytes: u64) -> std::result::Result<Claim, NoRoom> {
        self.room.claim(bytes, self.room())
    }

    /// Returns how many bytes a round of several files may have.
    pub(crate) fn round_room(&self) -> u64 {
        (self.room() / ROUND_SHARE).max(ROUND_BYTES_MIN)
    }

    /// Returns whether a file of `bytes` may be chunked while it grows.
    pub(crate) fn has_room_to_grow(&self, bytes: u64) -> bool {
        bytes <= self.room() / GROWING_SHARE
    }

    /// Returns whether so little is free that the history has to shrink.
    pub(crate) fn is_short(&self) -> bool {
        let store = &self.contents.store;
        store.space().free < store.keep_free_bytes() / 2 * 3
    }

    /// Returns the bytes that named snapshots need, by the last collection, if those alone keep the disk nearly full: then
    /// giving up versions does not help.
    pub fn bytes_of_filling_snapshots(&self) -> Option<u64> {
        let held = self.garbage.held();
        let named_bytes = held.bytes.saturating_sub(held.yielding_bytes);
        (self.is_short() && named_bytes > self.contents.store.keep_free_bytes()).then_some(named_bytes)
    }

    /// Returns why the disk is full, for messages: empty, or a sentence about snapshots.
    pub(crate) fn why_full(&self) -> String {
        let bytes = self.bytes_of_filling_snapshots();
        bytes
            .map_or_else(String::new, |bytes| format!(". {}", snapshots_fill_disk(&format!("{bytes} bytes"))))
    }

    /// Leaves a file plain until there is space for its content.
    pub(crate) fn wait_for_space(&self, inode: &Arc<Inode>, state: &mut InodeState) {
        state.dirty = true;
        self.no_room.store(true, Ordering::Relaxed);
        if !state.queued {
            state.queued = true;
            self.queue.push_waiting(Entry { inode: inode.clone(), generation: state.generation });
        }
    }

    /// Returns the bytes of the chunks of a recipe that the store does not have.
    pub(crate) fn bytes_not_stored(&self, recipe: &Recipe) -> std::result::Result<u64, StoreError> {
        let (mut seen, mut bytes) = (HashSet::new(), 0);
        for chunk in recipe.chunks() {
            if seen.insert(chunk.id) && !self.contents.store.known(&chunk.id)? {
                bytes += u64::from(chunk.len);
            }
        }
        Ok(bytes)
    }
}
