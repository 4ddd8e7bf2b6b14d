//! The store: chunks and recipes by id. Packs are authoritative, the index can be rebuilt.
//!
//! ```text
//! Writer (one a thread) --compress--> append (the growing pack) --> index (memory, then database)
//! read / read_at  <--  cache of decoded chunks  <--  frame, verified  <--  index
//! ```
//!
//! Invariants: everything can be rebuilt from `packs/` alone. A read returns the right bytes or an error. A
//! pack is only appended to, and never changes once its footer seals it.
//!
//! Order of durability: frames -> fdatasync of the pack ([`Store::sync`]; from here on other things may
//! depend on them) -> rows -> database flush -> position -> database flush ([`Store::persist`], which only
//! saves work on the next open).
//!
//! The store deletes nothing by itself, knows no files, and takes no lock against other processes.

mod append;
mod archive;
mod bytes;
mod coalesced_read;
mod compact;
mod dictionary;
mod document;
mod document_kind;
mod entry;
mod error;
mod features;
mod footer;
mod frame;
#[cfg(any(test, feature = "testing"))]
#[doc(hidden)]
pub mod fuzz;
mod gathered;
mod gc;
mod group;
mod group_cache;
mod group_table;
mod index;
mod inflated;
mod live;
mod located;
mod lock;
mod lzma;
mod member;
mod open;
mod pack;
mod pin;
mod prefetch;
mod read;
mod recipe_groups;
mod regroup;
mod salvage;
mod scan;
#[cfg(test)]
mod tests;
mod unnamed;
mod verify;
mod writer;

pub use bytes::Bytes;
pub use document_kind::DocumentKind;
pub use error::{Damage, DamageKind, Object, StoreError};
pub use gc::{Collection, GcDone, GcPlan, KeepGoing};
pub use index::Grouping;
pub use located::RecipePlace;
pub use pin::Pin;
pub use regroup::{RegroupOptions, RegroupPlan, Regrouped};
pub use salvage::{Salvaged, Step, Take, Wanted, search_packs};
pub use verify::Verified;
pub use writer::Writer;

use crate::env::Reserve;
use crate::id::{ChunkId, DocumentId, RecipeId, StoreId};
use crate::recipe::{ChunkRef, Recipe};
use append::{Appender, Frames};
use entry::Entry;
use frame::{Key, Kind};
use index::{Counters, Position};
use lock::lock;
use pin::Pins;
use prefetch::Prefetcher;
use read::Reader;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// Options for opening a store. The store itself does not fix any of them.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// Limit for decoded chunks and recipes in memory, in bytes.
    pub cache_bytes: u64,
    /// zstd level of new frames.
    pub zstd_level: i32,
    /// Threads that decode ahead; 0 turns hints off.
    pub prefetch_threads: usize,
    /// A pack is sealed before it grows beyond this, without its footer.
    pub pack_bytes_max: u32,
    /// Changes no pack: a torn end stays, and writes are refused.
    pub read_only: bool,
    /// Recent index rows gathered in memory before they enter the database, about 80 bytes each. A writer
    /// that finds twice as many waits.
    pub recent_rows: usize,
    /// Approximate limit for the filters of stored keys, in bytes; 10 bits a row are enough.
    pub filter_bytes: u64,
    /// Disk space reserved so that gc can run on a full disk, in bytes; at most a fiftieth of the disk.
    pub reserve_bytes: u64,
    /// Contents are refused if they would leave less than this free on the filesystem. Copies and notes of a
    /// collection are not.
    pub keep_free_bytes: u64,
}

/// A filesystem's space in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Its size.
    pub total: u64,
    /// Space that this user may still write.
    pub free: u64,
}

impl Default for StoreOptions {
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        StoreOptions {
            cache_bytes: 64 << 20,
            zstd_level: 1,
            prefetch_threads: cores.min(4),
            pack_bytes_max: 64 << 20,
            read_only: false,
            recent_rows: 128 << 10,
            filter_bytes: 32 << 20,
            reserve_bytes: 0,
            keep_free_bytes: 0,
        }
    }
}

/// Counters, cheap to read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct StoreStats {
    /// Unique chunks.
    pub chunks: u64,
    /// Unique recipes.
    pub recipes: u64,
    /// Pack files.
    pub packs: u64,
    /// Bytes of the unique chunks, decoded.
    pub unique_bytes: u64,
    /// Bytes of the pack files.
    pub stored_bytes: u64,
    /// Damage found since the store was opened and not repaired since.
    pub damaged: u64,
    /// Bytes in the cache now.
    pub cache_bytes: u64,
}

/// An open store. Shared as `Arc<Store>`; every method may be called from many threads.
pub struct Store {
    id: StoreId,
    options: StoreOptions,
    reader: Arc<Reader>,
    appender: Appender,
    counters: Mutex<Counters>,
    /// The position that the database covers; held during a merge, so that one merge runs at a time.
    persisted: Mutex<Position>,
    /// Whether the index still has rows of removed packs because it took no changes then.
    stale_rows: AtomicBool,
    /// Held by a garbage collection.
    collecting: Mutex<()>,
    /// Regrouping skips packs up to this one.
    left: Mutex<Option<u32>>,
    pins: Arc<Pins>,
    reserve: Arc<Reserve>,
    /// Damage found by opening.
    damage_found: Vec<Damage>,
    prefetcher: Prefetcher,
    /// Documents that no index covered at opening, until they are taken.
    documents_found: Mutex<Vec<(DocumentKind, DocumentId)>>,
}

impl Store {
    /// Whether a chunk is stored and not known to be damaged. Hold a [`Pin`] to refer to it afterwards.
    pub fn known(&self, id: &ChunkId) -> Result<bool, StoreError> {
        self.reader.known(&Key::chunk(id))
    }

    /// Like [`Store::known`], and its frame was read and is intact: the condition for emptying a file.
    pub fn is_sound(&self, id: &ChunkId) -> Result<bool, StoreError> {
        self.reader.is_sound(&Key::chunk(id))
    }

    /// Returns a pin: garbage collection keeps everything that its holder finds stored, until the holder has
    /// referred to it.
    pub fn pin(&self) -> Pin {
        self.pins.take()
    }

    /// Makes everything durable that any writer flushed before this call.
    pub fn sync(&self) -> Result<(), StoreError> {
        self.appender.sync()
    }

    /// Brings the index on disk up to date, so that the next open reads nothing again.
    pub fn persist(&self) -> Result<(), StoreError> {
        self.persist_locked(&mut lock(&self.persisted))?;
        self.reader.index.merge_due()
    }

    fn persist_locked(&self, persisted: &mut Position) -> Result<(), StoreError> {
        let (position, counters) = {
            let tail = self.appender.lock();
            self.reader.index.freeze();
            (tail.position(), *lock(&self.counters))
        };
        self.appender.sync()?;
        self.reader.index.merge_frozen()?;
        if self.stale_rows.load(Ordering::Relaxed) {
            // So that a check after the next open does not report those packs as missing.
            self.reader.index.note_removing(self.reader.packs.retired().into_iter())?;
        }
        if *persisted != position {
            self.reader.index.save_position(self.id, position, counters)?;
            *persisted = position;
        }
        Ok(())
    }

    /// Merges recent rows if there are many. A failing index does not refuse data.
    fn persist_if_due(&self) -> Result<(), StoreError> {
        let rows = self.reader.index.fresh_rows();
        let persisted = if rows < self.options.recent_rows {
            return Ok(());
        } else if rows < 2 * self.options.recent_rows {
            match self.persisted.try_lock() {
                Ok(mut persisted) => self.persist_locked(&mut persisted),
                Err(_) => return Ok(()),
            }
        } else {
            // Memory stays bounded: a caller that finds this many waits for the running merge.
            self.persist()
        };
        match persisted.and_then(|()| self.reader.index.merge_due()) {
            Err(StoreError::Db(e)) => {
                tracing::warn!(error = %e, "the chunk index could not be written; it is rebuilt from the packs if lost");
                Ok(())
            }
            other => other,
        }
    }

    /// Appends a writer's frames, looked up when the index was at `generation`.
    fn append(&self, frames: &mut Frames, generation: u64) -> Result<(), StoreError> {
        let mut tail = self.appender.lock();
        self.appender.check()?;
        if self.reader.index.generation() != generation {
            frames.retain(|header| Ok(!self.reader.known(&header.key())?))?;
        }
        self.reserve.take();
        // Only contents: notes about them are small, and a collection writes notes too.
        let has_contents = || frames.headers.iter().any(|header| header.kind == Kind::Chunk as u8);
        let bytes = frames.bytes.len() as u64;
        let margin = self.options.keep_free_bytes;
        let kept_free = || margin > 0 && self.space().free < margin.saturating_add(bytes);
        if (self.reserve.is_reserved(bytes) || kept_free()) && has_contents() {
            return Err(StoreError::Full { path: self.reader.packs.dir.clone() });
        }
        self.appender.append(&mut tail, frames, |entries| {
            self.reader.index.insert(entries);
            let mut counters = lock(&self.counters);
            for entry in entries {
                self.reader.note_sound(&entry.key);
                if !self.reader.healed(&entry.key) {
                    counters.add(&entry.key, &entry.address);
                }
            }
        })
    }

    /// Returns the space of the packs' filesystem; unlimited if it is unknown.
    pub fn space(&self) -> Space {
        let unknown = Space { total: u64::MAX, free: u64::MAX };
        let space = rustix::fs::statvfs(&self.reader.packs.dir).ok().filter(|space| space.f_blocks > 0);
        space.map_or(unknown, |space| Space {
            total: space.f_blocks * space.f_frsize,
            free: space.f_bavail * space.f_frsize,
        })
    }

    /// Returns how much free space contents must leave ([`StoreOptions::keep_free_bytes`]).
    pub fn keep_free_bytes(&self) -> u64 {
        self.options.keep_free_bytes
    }

    /// Reserves space for a collection if the disk fills up. Call it periodically; it is cheap.
    pub fn watch_disk(&self) {
        if !self.options.read_only {
            self.reserve.take();
        }
    }

    /// Appends copies of stored frames; reads use the copies from now on.
    fn append_moved(&self, frames: &mut Frames) -> Result<(), StoreError> {
        let mut tail = self.appender.lock();
        self.appender.append(&mut tail, frames, |entries| {
            let rows: Vec<Entry> = entries.iter().filter(|entry| entry.is_row()).copied().collect();
            self.reader.index.insert(&rows);
            for entry in &rows {
                self.reader.healed(&entry.key);
            }
        })
    }

    /// Removes keys of frames in removed packs from the index. Returns how many.
    fn forget(&self, keys: &[Key]) -> Result<u64, StoreError> {
        // No merge may run: it could bring back a row that is being removed.
        let _persisted = lock(&self.persisted);
        let gone = self.reader.index.forget(keys, |pack| !self.reader.packs.has(pack));
        let gone = gone.inspect_err(|_| self.stale_rows.store(true, Ordering::Relaxed))?;
        lock(&self.counters).subtract(&gone);
        Ok(gone.chunks + gone.recipes)
    }

    /// Notes the packs that are about to be removed, so that their absence after a crash is not taken for
    /// damage.
    fn note_removing(&self, packs: impl Iterator<Item = u32>) -> Result<(), StoreError> {
        self.reader.index.note_removing(packs)
    }

    /// Removes index rows that point to removed packs, left by a crash during a collection.
    fn forget_removed(&self) -> Result<(), StoreError> {
        if self.reader.index.removing()?.is_empty() && !self.stale_rows.load(Ordering::Relaxed) {
            return Ok(());
        }
        let mut keys = Vec::new();
        self.reader.index.for_each(|entry| {
            if self.reader.packs.is_retired(entry.address.pack) {
                keys.push(entry.key);
            }
            std::ops::ControlFlow::Continue(())
        })?;
        self.forget(&keys)?;
        self.reader.index.note_removing(std::iter::empty())?;
        self.stale_rows.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// Returns a chunk's bytes.
    pub fn read(&self, id: &ChunkId) -> Result<Bytes, StoreError> {
        self.reader.chunk(id)
    }

    /// Returns a recipe. A running collection then counts it and its chunks as needed.
    pub fn recipe(&self, id: &RecipeId) -> Result<Arc<Recipe>, StoreError> {
        self.recipe_at(id, None)
    }

    /// Hints that these chunks will be read soon. The hint is dropped if the threads are busy.
    pub fn prefetch(&self, chunks: &[ChunkRef]) {
        self.prefetcher.hint(&self.reader, chunks);
    }

    /// Fills `buf` from byte `offset` of a file; returns less only at its end.
    pub fn read_at(&self, recipe: &Recipe, offset: u64, buf: &mut [u8]) -> Result<usize, StoreError> {
        self.reader.read_at(recipe, offset, buf)
    }

    /// Returns the counters; cheap.
    pub fn stats(&self) -> StoreStats {
        let counters = *lock(&self.counters);
        StoreStats {
            chunks: counters.chunks,
            recipes: counters.recipes,
            packs: self.reader.packs.count(),
            unique_bytes: counters.unique_bytes,
            stored_bytes: self.appender.stored_bytes.load(Ordering::Relaxed),
            damaged: (self.damage_found.len() + self.reader.damaged_count()) as u64,
            cache_bytes: self.reader.cache_bytes(),
        }
    }

    /// Returns the damage found by opening. It does not change afterwards.
    pub fn damage(&self) -> &[Damage] {
        &self.damage_found
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        if self.options.read_only {
            return;
        }
        // Only saves work: frames that the index lacks are found in the packs.
        let result = self.appender.check().and_then(|()| self.persist_locked(&mut lock(&self.persisted)));
        if let Err(e) = result {
            tracing::warn!(error = %e, "the chunk index was not written on close");
        }
    }
}
