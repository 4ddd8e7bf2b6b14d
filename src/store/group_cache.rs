//! Cache of decoded groups, by pack and offset. Frames never change, and pack numbers are never reused.
//!
//! Short groups are in a cache. Long groups do not fit into a shard of it; they are kept separately until
//! others are decoded, because a sequential reader wants them again for each of their chunks, and alternates
//! between two or three of them if its file shares chunks with another file.
//!
//! Invariants: one long group is decoded at a time, and three stay, or more within their share. So memory is
//! bounded by four times the longest possible group, 64 MiB.

use super::bytes::{ByBytes, ENTRY_OVERHEAD_BYTES};
use super::frame::Header;
use super::group::Group;
use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{OptionsBuilder, Weighter};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes of one cache shard: an inflated archive fits.
const PART_BYTES: u64 = 16 << 20;

/// Number of long groups that stay at any size.
const LONG_MIN: usize = 3;

impl Weighter<(u32, u32), Arc<Group>> for ByBytes {
    fn weight(&self, _: &(u32, u32), group: &Arc<Group>) -> u64 {
        group.weight() + ENTRY_OVERHEAD_BYTES
    }
}

/// Pack and offset of a group.
type Place = (u32, u32);

pub(super) struct GroupCache {
    short: Cache<Place, Arc<Group>, ByBytes>,
    /// Newest last.
    long: Mutex<VecDeque<(Place, Arc<Group>)>>,
    /// A group of at least this many bytes is long.
    long_bytes_min: u64,
    /// Byte limit for long groups beyond [`LONG_MIN`].
    long_bytes_max: u64,
    /// Held while a long group is decoded.
    turn: Mutex<()>,
    #[cfg(test)]
    inserted: std::sync::atomic::AtomicU64,
}

impl GroupCache {
    /// Creates a cache with these byte limits for short and long groups.
    pub(super) fn new(short_bytes: u64, long_bytes_max: u64) -> GroupCache {
        let parts = (short_bytes / PART_BYTES).max(1);
        // Fewer shards than usual: no shard keeps an item longer than itself.
        let options = OptionsBuilder::new()
            .shards(parts as usize)
            .estimated_items_capacity((short_bytes / (64 << 10)) as usize)
            .weight_capacity(short_bytes)
            .build()
            .expect("all that it wants is set");
        GroupCache {
            short: Cache::with_options(options, ByBytes, Default::default(), DefaultLifecycle::default()),
            long: Mutex::default(),
            long_bytes_min: short_bytes / parts / 2,
            long_bytes_max,
            turn: Mutex::default(),
            #[cfg(test)]
            inserted: Default::default(),
        }
    }

    pub(super) fn get(&self, place: Place) -> Option<Arc<Group>> {
        self.short.get(&place).or_else(|| {
            let mut long = self.long();
            let found = long.iter().position(|(at, _)| *at == place)?;
            let newest = long.remove(found)?;
            long.push_back(newest.clone());
            Some(newest.1)
        })
    }

    pub(super) fn insert(&self, place: Place, group: &Arc<Group>) {
        #[cfg(test)]
        self.inserted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        if !self.is_long(group) {
            return self.short.insert(place, Arc::clone(group));
        }
        let mut long = self.long();
        long.retain(|(at, _)| *at != place);
        long.push_back((place, Arc::clone(group)));
        while long.len() > LONG_MIN && weight(&long) > self.long_bytes_max {
            long.pop_front();
        }
    }

    /// Returns how many groups were ever inserted.
    #[cfg(test)]
    pub(super) fn inserted(&self) -> u64 {
        self.inserted.load(std::sync::atomic::Ordering::Relaxed)
    }

    pub(super) fn is_long(&self, group: &Group) -> bool {
        group.weight() >= self.long_bytes_min
    }

    /// Waits until no other thread decodes a long group, if this header is of a long one.
    pub(super) fn turn(&self, header: &Header) -> Option<MutexGuard<'_, ()>> {
        let is_long = u64::from(header.raw_len) >= self.long_bytes_min;
        is_long.then(|| self.turn.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn weight(&self) -> u64 {
        self.short.weight() + weight(&self.long())
    }

    fn long(&self) -> MutexGuard<'_, VecDeque<(Place, Arc<Group>)>> {
        self.long.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn weight(groups: &VecDeque<(Place, Arc<Group>)>) -> u64 {
    groups.iter().map(|(_, group)| group.weight()).sum()
}
