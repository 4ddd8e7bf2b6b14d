//! Collecting garbage: finds chunks and recipes that nothing needs, and gives their room back.
//!
//! ```text
//! begin: look-ups count as uses -> wait for older pins      (nobody can refer to anything unseen)
//! mark:  whoever calls says what is needed                   keep()
//! plan:  bytes needed and not needed of each pack            plan(): changes nothing
//! apply: needed frames of a pack -> end of the store -> fsync -> retire the pack -> remove its file
//! ```
//!
//! What must always be true: a pack is removed only when every frame in it that is needed stands, durable and
//! verified, in another pack. A chunk that is being referred to is needed: [`Collection::keep`] was told, or it
//! was looked up since `begin`, which put it into the set of what is needed *under the gate*. A pack is retired
//! under the same gate, after one more look at that set; from then on none of its frames is found, so whoever
//! asks later stores the bytes again. A crash leaves the pack, or its copies, or both. Packs with bad bytes
//! whose content is needed or not known are left as they are; the newest pack is never removed, so that no
//! number is ever given to a second pack. `docs/decisions/0010-gc.md` argues all this.
//!
//! A group is needed while one of its chunks is or a delta of it; it is copied as it is, and the names of chunks that
//! nothing needs are taken out of it: their bytes go when the group does.
//!
//! Locks: `collecting`, then `persisted`, `tail`, and innermost the gate.

mod copier;
mod plan;
mod rewrite;

pub use plan::GcPlan;

pub(super) use copier::Copier;

use super::error::StoreError;
use super::frame::{HEADER_BYTES, Key, Kind};
use super::live::LiveSet;
use super::pack::{Entry, GROUPED, PLAIN};
use super::{Store, lock};
use crate::env::{Access, Loan};
use crate::id::{ChunkId, RecipeId};
use plan::PackPlan;
use std::cell::{Cell, RefCell};
use std::collections::{HashSet, VecDeque};
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError};

/// Most memory for the set of what is needed. Enough for 40 million chunks; beyond, more garbage is kept.
const LIVE_BYTES_MAX: u64 = 64 << 20;
/// Keys that are gone are taken from the index so many at a time.
const FORGET_KEYS: usize = 64 << 10;

/// Asked again and again during long work; false ends it.
pub type GoOn<'a> = &'a mut dyn FnMut(u64, u64) -> bool;

/// An index that takes no changes, on a full disk, is no reason to keep garbage there: rows that lead to packs that
/// are gone are not believed, and the next collection takes them out.
pub(super) fn index_may_fail<T: Default>(result: Result<T, StoreError>) -> Result<T, StoreError> {
    match result {
        Err(StoreError::Db(e)) => {
            tracing::warn!(error = %e, "the index could not be changed; the next collection does it");
            Ok(T::default())
        }
        other => other,
    }
}

/// What a collection did. Sizes in bytes on disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GcDone {
    /// Packs removed.
    pub packs_removed: u64,
    /// By how much the packs shrank.
    pub reclaimed_bytes: u64,
    /// Bytes of frames copied.
    pub copied_bytes: u64,
    /// Packs left as they are because of damage.
    pub packs_damaged: u64,
    /// Packs left as they are because there was no room for what is needed of them.
    pub packs_no_room: u64,
    /// Chunks and recipes forgotten.
    pub forgotten: u64,
}

/// A collection under way: one at a time. While it lives every look-up counts as a use.
pub struct Collection<'a> {
    pub(super) store: &'a Arc<Store>,
    pub(super) live: Arc<LiveSet>,
    /// Packs up to this one stay as they are.
    pub(super) left: Cell<Option<u32>>,
    /// What was set aside, while it is used.
    pub(super) room: RefCell<Option<Loan>>,
    pub(super) _one: MutexGuard<'a, ()>,
}

impl Drop for Collection<'_> {
    fn drop(&mut self) {
        *self.store.reader.gate_mut() = None;
    }
}

impl Store {
    /// Begins a collection, after every older pin is gone; `None` if `go_on` said no meanwhile. Waits for one that
    /// is under way.
    pub fn collect(self: &Arc<Self>, go_on: GoOn<'_>) -> Result<Option<Collection<'_>>, StoreError> {
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
        let waited = self.pins.wait_for_older(&mut || go_on(0, 0));
        Ok(waited.then_some(collection))
    }
}

impl Store {
    /// Has regrouping leave packs up to this number as they are, as long as the store is open.
    pub fn leave_until(&self, pack: u32) {
        let mut left = lock(&self.left);
        *left = left.max(Some(pack));
    }
}

impl Collection<'_> {
    /// Says that a recipe is needed, and with it its chunks. An error if it cannot be read: then it is not known
    /// what is needed, and nothing may be removed.
    pub fn keep(&self, recipe: &RecipeId) -> Result<(), StoreError> {
        // Looking it up is what counts.
        self.store.recipe(recipe).map(drop)
    }

    /// Leaves all that is stored up to now as it is, needed or not: something needs a part of it, and which is not known.
    /// Returns how far that is, for [`Collection::leave_until`] of collections to come.
    pub fn leave_until_now(&self) -> Result<u32, StoreError> {
        let newest = self.store.reader.packs.list()?.last().copied().unwrap_or_default();
        self.leave_until(newest);
        Ok(newest)
    }

    /// Has what comes from now on in packs that are not left as they are.
    pub fn begin_pack(&self) -> Result<(), StoreError> {
        self.left.get().map_or(Ok(()), |last| self.store.appender.begin_pack_after(last, PLAIN))
    }

    /// Leaves packs up to this number as they are. Nothing that is in them now is ever only in a later one, then.
    pub fn leave_until(&self, pack: u32) {
        self.left.set(self.left.get().max(Some(pack)));
        self.store.leave_until(pack);
    }

    /// Gives up the room that is set aside, if there is none else: for what has to be written down before anything is
    /// removed. Until the collection is dropped contents find no room then.
    pub fn make_room(&self) {
        // An older one goes last, or what has been given up would be set aside again.
        let room = self.store.reserve.lend();
        *self.room.borrow_mut() = Some(room);
    }

    /// As [`Collection::keep`]; returns how many bytes on disk are needed that were not, as far as is known.
    pub fn keep_more(&self, recipe: &RecipeId) -> Result<u64, StoreError> {
        let bytes = self.bytes_more(recipe)?;
        self.keep(recipe)?;
        Ok(bytes)
    }

    /// Bytes of all packs.
    pub fn stored_bytes(&self) -> u64 {
        self.store.appender.stored_bytes.load(Ordering::Relaxed)
    }

    /// What [`Collection::keep_more`] would return; keeps nothing.
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

    /// Bytes on disk of those chunks that nothing is known to need.
    pub fn bytes_not_kept(&self, chunks: &HashSet<ChunkId>) -> Result<u64, StoreError> {
        let mut bytes = 0;
        for key in chunks.iter().map(Key::chunk).filter(|key| !self.live.contains(key)) {
            let address = self.store.reader.index.find(&key)?;
            bytes += address.map_or(0, |address| HEADER_BYTES as u64 + u64::from(address.stored_len));
        }
        Ok(bytes)
    }

    /// Carries out a plan, pack by pack; ends early, in good order, when `go_on` says no. On a full disk what is set aside
    /// is used, and nothing else is stored meanwhile; packs that do not fit come last. An error if none could be removed.
    pub fn apply(&self, plan: &GcPlan, go_on: GoOn<'_>) -> Result<GcDone, StoreError> {
        if plan.packs.is_empty() {
            return Ok(GcDone::default());
        }
        self.make_room();
        let mut done = GcDone::default();
        let before = self.store.appender.stored_bytes.load(Ordering::Relaxed);
        index_may_fail(self.store.note_removing(plan.packs.iter().map(|one| one.pack)))?;
        let mut waiting: VecDeque<PackPlan> = plan.packs.iter().copied().collect();
        if let Some(newest) = plan.packs.iter().map(|one| one.pack).max() {
            let version = if plan.packs.iter().any(|one| one.grouped) { GROUPED } else { PLAIN };
            match self.store.appender.begin_pack_after(newest, version) {
                Err(StoreError::Full { .. }) => waiting.retain(|one| one.pack != newest),
                begun => begun?,
            }
        }
        let mut forgotten = Vec::new();
        let total: u64 = plan.packs.iter().map(|one| one.live_bytes + one.dead_bytes).sum();
        // Packs for which there was no room, since one was removed.
        let (mut at, mut in_vain) = (0, 0);
        while in_vain < waiting.len()
            && let Some(one) = waiting.pop_front()
        {
            match self.rewrite(&one, &mut done) {
                Ok(Some(dead)) => {
                    self.remove(one.pack)?;
                    done.packs_removed += 1;
                    in_vain = 0;
                    forgotten.extend(dead);
                }
                Ok(None) => done.packs_damaged += 1,
                Err(StoreError::Full { .. }) => {
                    in_vain = if self.store.reserve.give_up_if_short() { 0 } else { in_vain + 1 };
                    waiting.push_back(one);
                    continue;
                }
                Err(e) => return Err(e),
            }
            if forgotten.len() >= FORGET_KEYS {
                done.forgotten += self.forget(&std::mem::take(&mut forgotten))?;
            }
            at += one.live_bytes + one.dead_bytes;
            if !go_on(at, total) {
                waiting.clear();
            }
        }
        done.packs_no_room = waiting.len() as u64;
        done.forgotten += self.forget(&forgotten)?;
        index_may_fail(self.store.persist())?;
        plan.packs.iter().for_each(|one| self.close(one.pack));
        done.reclaimed_bytes =
            before.saturating_sub(self.store.appender.stored_bytes.load(Ordering::Relaxed));
        match done.packs_removed {
            0 if done.packs_no_room > 0 => {
                Err(StoreError::Full { path: self.store.reader.packs.dir.clone() })
            }
            _ => Ok(done),
        }
    }

    /// Whether a frame is needed: its content is, and no other sound frame has it.
    pub(super) fn is_needed(&self, entry: &Entry) -> Result<bool, StoreError> {
        Ok(match Kind::of(entry.key.kind()) {
            // Of groups it is their chunks that are, and dictionaries come along with groups.
            Some(Kind::Footer | Kind::Void | Kind::Group | Kind::Delta | Kind::Dictionary) => false,
            // Of a newer program: not ours to judge.
            None => true,
            Some(_) if !self.live.contains(&entry.key) => false,
            Some(_) => {
                let reader = &self.store.reader;
                match reader.index.find(&entry.key)? {
                    Some(now) if now == entry.address => true,
                    // Replaced, by a frame that is sound.
                    Some(now) if reader.packs.has(now.pack) => {
                        reader.reason_if_bad(entry.key, &now)?.is_some()
                    }
                    // An index that has lost a row is no reason to lose what it led to.
                    Some(_) | None => true,
                }
            }
        })
    }

    pub(super) fn remove(&self, pack: u32) -> Result<(), StoreError> {
        let packs = &self.store.reader.packs;
        let path = packs.path(pack);
        let len = packs.open(pack, Access::Read).and_then(|file| file.len()).unwrap_or(0);
        packs.disk.remove(&path).map_err(|e| StoreError::io("remove", &path, e))?;
        self.store.appender.stored_bytes.fetch_sub(len, Ordering::Relaxed);
        self.close(pack);
        Ok(())
    }

    /// The names of packs have to be gone for good first: a pack that came back after a power cut would hold
    /// frames that the index does not know.
    pub(super) fn forget(&self, keys: &[Key]) -> Result<u64, StoreError> {
        self.store.reader.packs.sync_names()?;
        index_may_fail(self.store.forget(keys))
    }

    pub(super) fn close(&self, pack: u32) {
        if self.store.reader.packs.is_retired(pack) {
            self.store.reader.packs.close(pack);
        }
    }
}
