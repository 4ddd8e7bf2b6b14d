//! Garbage collection: finds chunks and recipes that nothing needs, and frees their space.
//!
//! ```text
//! begin: look-ups count as uses -> wait for older pins      (no caller can refer to anything unseen)
//! mark:  the caller says what is needed                      keep()
//! plan:  needed and unneeded bytes of each pack              plan(): changes nothing
//! apply: needed frames of a pack -> end of the store -> fsync -> retire the pack -> remove its file
//! ```
//!
//! Invariants:
//! - A pack is removed only when every needed frame in it is durable and verified in another pack.
//! - A chunk that is being referred to is needed: [`Collection::keep`] got it, or it was looked up since
//!   `begin`, which added it to the live set *under the gate*.
//! - A pack is retired under the same gate, after another check of the live set. From then on none of its
//!   frames is found, so that later writers store the bytes again.
//! - A crash leaves the pack, or its copies, or both.
//! - Packs with damaged bytes whose content is needed or unknown stay. The newest pack is never removed, so
//!   that no pack number is reused.
//!
//! `docs/decisions/0010-gc.md` gives the arguments.
//!
//! A group is needed while one of its chunks or deltas is. It is copied as a whole, without the names of
//! unneeded chunks; their bytes disappear with the group.
//!
//! Locks: `collecting`, then `persisted`, `tail`, and innermost the gate.

mod apply;
mod copier;
mod plan;
mod rewrite;

pub use apply::GcDone;
pub use plan::GcPlan;

pub(super) use copier::Copier;

use super::Store;
use super::entry::Entry;
use super::error::StoreError;
use super::frame::{HEADER_BYTES, Key, Kind};
use super::live::LiveSet;
use super::located::RecipePlace;
use super::lock::lock;
use super::pack::PLAIN;
use crate::env::Reservation;
use crate::id::{ChunkId, RecipeId};
use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError};

/// Memory limit of the live set. Enough for 40 million chunks; beyond that, more garbage stays.
const LIVE_BYTES_MAX: u64 = 64 << 20;

/// Called repeatedly during long work; false ends it.
pub type KeepGoing<'a> = &'a mut dyn FnMut(u64, u64) -> bool;

/// Ignores an index that takes no changes because the disk is full. Garbage need not stay for it: look-ups ignore
/// rows that point to removed packs, and the next collection removes these rows.
pub(super) fn index_may_fail<T: Default>(result: Result<T, StoreError>) -> Result<T, StoreError> {
    match result {
        Err(StoreError::Db(e)) => {
            tracing::warn!(error = %e, "the index could not be changed; the next collection does it");
            Ok(T::default())
        }
        other => other,
    }
}

/// A running collection, one at a time. While it exists, every look-up counts as a use.
pub struct Collection<'a> {
    pub(super) store: &'a Arc<Store>,
    pub(super) live: Arc<LiveSet>,
    /// Packs up to this one stay.
    pub(super) left: Cell<Option<u32>>,
    /// The reserve, while it is in use.
    pub(super) room: RefCell<Option<Reservation>>,
    pub(super) _one: MutexGuard<'a, ()>,
}

impl Drop for Collection<'_> {
    fn drop(&mut self) {
        *self.store.reader.gate_mut() = None;
    }
}

impl Store {
    /// Begins a collection after all older pins are gone; `None` if `keep_going` returned false. Waits for a
    /// running collection.
    pub fn collect(
        self: &Arc<Self>,
        keep_going: KeepGoing<'_>,
    ) -> Result<Option<Collection<'_>>, StoreError> {
        self.appender.check()?;
        let one = self.collecting.lock().unwrap_or_else(PoisonError::into_inner);
        index_may_fail(self.forget_removed())?;
        let mut salt = [0; 8];
        rustix::rand::getrandom(&mut salt, rustix::rand::GetRandomFlags::empty())
            .map_err(|e| StoreError::io("draw random numbers for", &self.reader.packs.dir, e.into()))?;
        let counters = *lock(&self.counters);
        let keys = counters.chunks + counters.recipes;
        let live = Arc::new(LiveSet::new(keys, LIVE_BYTES_MAX, u64::from_le_bytes(salt)));
        *self.reader.gate_mut() = Some(live.clone());
        let collection =
            Collection { store: self, live, left: Cell::new(None), room: RefCell::default(), _one: one };
        let waited = self.pins.wait_for_older(&mut || keep_going(0, 0));
        Ok(waited.then_some(collection))
    }
}

impl Store {
    /// Makes regrouping skip packs up to this number while the store is open.
    pub fn leave_until(&self, pack: u32) {
        let mut left = lock(&self.left);
        *left = left.max(Some(pack));
    }
}

impl Collection<'_> {
    /// Marks a recipe and its chunks as needed. Fails if the recipe cannot be read: then the needed set is
    /// unknown, and nothing may be removed.
    pub fn keep(&self, recipe: &RecipeId) -> Result<(), StoreError> {
        self.keep_at(recipe, None)
    }

    /// As [`Collection::keep`], for a recipe that was found at `place` a moment ago.
    pub fn keep_at(&self, recipe: &RecipeId, place: Option<RecipePlace>) -> Result<(), StoreError> {
        // The look-up marks them.
        self.store.recipe_at(recipe, place).map(drop)
    }

    /// Keeps everything that is stored so far, because something unknown in it is needed. Returns the last
    /// pack number, for [`Collection::leave_until`] of later collections.
    pub fn leave_until_now(&self) -> Result<u32, StoreError> {
        let newest = self.store.reader.packs.list()?.last().copied().unwrap_or_default();
        self.leave_until(newest);
        Ok(newest)
    }

    /// Starts a new pack, so that later content goes into packs that are not kept.
    pub fn begin_pack(&self) -> Result<(), StoreError> {
        self.left.get().map_or(Ok(()), |last| self.store.appender.begin_pack_after(last, PLAIN))
    }

    /// Keeps packs up to this number. Nothing that is in them now moves to a later pack.
    pub fn leave_until(&self, pack: u32) {
        self.left.set(self.left.get().max(Some(pack)));
        self.store.leave_until(pack);
    }

    /// Releases the reserve if there is no other space, for notes that must be written before anything is
    /// removed. Until the collection is dropped, no content can be stored.
    pub fn make_room(&self) {
        // The older loan is dropped last, otherwise the released space would be reserved again.
        let room = self.store.reserve.reserve();
        *self.room.borrow_mut() = Some(room);
    }

    /// Like [`Collection::keep`]; returns how many more bytes on disk are needed now, as far as known.
    pub fn keep_more(&self, recipe: &RecipeId) -> Result<u64, StoreError> {
        let bytes = self.bytes_more(recipe)?;
        self.keep(recipe)?;
        Ok(bytes)
    }

    /// Returns the bytes of all packs.
    pub fn stored_bytes(&self) -> u64 {
        self.store.appender.stored_bytes.load(Ordering::Relaxed)
    }

    /// Returns the result of [`Collection::keep_more`] without keeping anything.
    pub fn bytes_more(&self, recipe: &RecipeId) -> Result<u64, StoreError> {
        let reader = &self.store.reader;
        let recipe = reader.recipe(recipe)?;
        let (mut seen, mut bytes) = (HashSet::new(), 0);
        for chunk in recipe.chunks().iter().filter(|chunk| seen.insert(chunk.id)) {
            let key = Key::chunk(&chunk.id);
            if !self.live.contains(&key)
                && let Some(address) = reader.index.find(&key)?
            {
                bytes += HEADER_BYTES as u64 + u64::from(address.stored_len);
            }
        }
        Ok(bytes)
    }

    /// Returns the bytes on disk of these chunks that nothing known needs.
    pub fn bytes_not_kept(&self, chunks: &HashSet<ChunkId>) -> Result<u64, StoreError> {
        let mut bytes = 0;
        for key in chunks.iter().map(Key::chunk).filter(|key| !self.live.contains(key)) {
            let address = self.store.reader.index.find(&key)?;
            bytes += address.map_or(0, |address| HEADER_BYTES as u64 + u64::from(address.stored_len));
        }
        Ok(bytes)
    }

    /// Whether a frame is needed: its content is needed, and no other intact frame holds it.
    pub(super) fn is_needed(&self, entry: &Entry) -> Result<bool, StoreError> {
        Ok(match Kind::of(entry.key.kind()) {
            // Groups are needed through their chunks, and dictionaries through their groups.
            Some(Kind::Footer | Kind::Void | Kind::Group | Kind::Delta | Kind::Dictionary) => false,
            // Written by a newer program: keep.
            None => true,
            Some(_) if !self.live.contains(&entry.key) => false,
            Some(_) => {
                let reader = &self.store.reader;
                match reader.index.find(&entry.key)? {
                    Some(now) if now == entry.address => true,
                    // Replaced by an intact frame.
                    Some(now) if reader.packs.has(now.pack) => {
                        reader.reason_if_bad(entry.key, &now)?.is_some()
                    }
                    // If the index lost a row, that is no reason to lose its frame.
                    Some(_) | None => true,
                }
            }
        })
    }
}
