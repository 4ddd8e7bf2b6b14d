//! The store: chunks and recipes by id. Packs are the truth, the index is rebuildable.
//!
//! ```text
//! Writer (one a thread) --compress--> append (the growing pack) --> index (memory, then database)
//! read / read_at  <--  cache of decoded chunks  <--  frame, verified  <--  index
//! ```
//!
//! What must always be true: everything can be rebuilt from `packs/` alone; a read gives the right bytes or
//! an error; a pack is only ever appended to, and not at all once it is sealed by its footer.
//!
//! Order in which things become durable: frames -> fdatasync of the pack ([`Store::sync`]; from here other
//! things may depend on them) -> rows -> database flush -> position -> database flush ([`Store::persist`],
//! which only saves work on the next open).
//!
//! It does not delete anything, does not know files, and takes no lock against other processes.

mod append;
mod archive;
mod compact;
mod dictionary;
mod document;
mod error;
mod features;
mod frame;
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
mod lzma;
mod open;
mod pack;
mod pin;
mod prefetch;
mod read;
mod recipe_groups;
mod regroup;
mod salvage;
mod scan;
mod stretch;
#[cfg(test)]
mod tests;
mod unnamed;
mod verify;
mod writer;

pub use document::DocumentKind;
pub use error::{Damage, DamageKind, Object, StoreError};
pub use gc::{Collection, GcDone, GcPlan, GoOn};
pub use index::Grouping;
pub use pin::Pin;
pub use regroup::{RegroupOptions, RegroupPlan, Regrouped};
pub use salvage::{Salvaged, Step, Take, Wanted, search_packs};
pub use verify::Verified;
pub use writer::Writer;

use crate::db::Db;
use crate::env::{Disk, RealDisk, Reserve};
use crate::id::{ChunkId, DocumentId, RecipeId, StoreId};
use crate::recipe::{ChunkRef, Recipe};
use append::{Appender, Frames};
use frame::{Key, Kind};
use index::{Counters, Position};
use pack::Entry;
use pin::Pins;
use prefetch::Prefetcher;
use read::Reader;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Decoded bytes, shared with the cache.
pub type Bytes = Arc<[u8]>;

/// What can be set when a store is opened. None of it is fixed in the store.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// Most bytes of decoded chunks and recipes kept in memory.
    pub cache_bytes: u64,
    /// Level of zstd for new frames.
    pub zstd_level: i32,
    /// Threads that decode ahead; with 0 hints do nothing.
    pub prefetch_threads: usize,
    /// A pack is sealed before it grows beyond this, its footer not counted.
    pub pack_bytes_max: u32,
    /// Change no pack: a torn end stays, and writes are refused.
    pub read_only: bool,
    /// Rows of the index that are gathered in memory before they enter the database, about 80 bytes each; a
    /// writer that finds twice as many waits.
    pub recent_rows: usize,
    /// Most bytes of filters that know what is not stored, about; 10 bits a row are enough.
    pub filter_bytes: u64,
    /// Bytes of disk set aside, so that garbage can be collected when it is full; at most a fiftieth of it.
    pub reserve_bytes: u64,
    /// Contents are refused that would leave less than this free on the filesystem. What a collection copies and what is
    /// noted is not.
    pub keep_free_bytes: u64,
}

/// A filesystem's space in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Its size.
    pub total: u64,
    /// What this user may still write.
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

/// Counts, cheap to ask for.
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
    /// Damage found since the store was opened and not healed since.
    pub damaged: u64,
    /// Bytes in the cache now.
    pub cache_bytes: u64,
}

/// A store that is open. Shared as `Arc<Store>`; every method may be called from many threads.
pub struct Store {
    id: StoreId,
    options: StoreOptions,
    reader: Arc<Reader>,
    appender: Appender,
    counters: Mutex<Counters>,
    /// What the database says is covered; held while merging, so that one merge runs at a time.
    persisted: Mutex<Position>,
    /// Whether the index has rows of packs that were removed, since it took no changes then.
    stale_rows: AtomicBool,
    /// Held by a collection of garbage.
    collecting: Mutex<()>,
    /// Packs up to this one are left as they are by regrouping.
    left: Mutex<Option<u32>>,
    pins: Arc<Pins>,
    reserve: Arc<Reserve>,
    /// Damage found when opening.
    damage_found: Vec<Damage>,
    prefetcher: Prefetcher,
    /// Documents that no index covered when opening, until they are asked for.
    documents_found: Mutex<Vec<(DocumentKind, DocumentId)>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Store {
    /// Opens the store in `dir`, which is made if missing: `dir/packs` and the index in `db`.
    ///
    /// Frames that the index does not cover are read again; an index that does not fit the packs is rebuilt.
    /// `progress` is told bytes done and bytes to do. A torn end of the newest pack is cut off; other damage
    /// is reported by [`Store::damage`] and left as it is.
    pub fn open(
        dir: &Path,
        id: StoreId,
        db: Arc<dyn Db>,
        options: StoreOptions,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Store, StoreError> {
        Store::open_on(Arc::new(RealDisk), dir, id, db, options, progress)
    }

    /// As [`Store::open`], with the packs on `disk`.
    pub fn open_on(
        disk: Arc<dyn Disk>,
        dir: &Path,
        id: StoreId,
        db: Arc<dyn Db>,
        options: StoreOptions,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Store, StoreError> {
        open::open(disk, dir, id, db, options, progress)
    }

    /// Whether a chunk is stored and not known to be damaged. Hold a [`Pin`] to refer to it then.
    pub fn known(&self, id: &ChunkId) -> Result<bool, StoreError> {
        self.reader.known(&Key::chunk(id))
    }

    /// As [`Store::known`], and its frame was read and is sound: what a file may be emptied for.
    pub fn is_sound(&self, id: &ChunkId) -> Result<bool, StoreError> {
        self.reader.is_sound(&Key::chunk(id))
    }

    /// Keeps garbage from being collected that the holder finds stored, until it has referred to it.
    pub fn pin(&self) -> Pin {
        self.pins.take()
    }

    /// A writer; give each thread its own.
    pub fn writer(self: &Arc<Self>) -> Writer {
        Writer::new(Arc::clone(self))
    }

    /// Makes everything that any writer flushed before this call durable.
    pub fn sync(&self) -> Result<(), StoreError> {
        self.appender.sync()
    }

    /// Brings the index up to date on disk, so that the next open has nothing to read again.
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
            // For a check after the next open: those packs are not missing.
            self.reader.index.note_removing(self.reader.packs.retired().into_iter())?;
        }
        if *persisted != position {
            self.reader.index.save_position(self.id, position, counters)?;
            *persisted = position;
        }
        Ok(())
    }

    /// Merges recent rows if there are many. A failing index is no reason to refuse data.
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
            // Memory stays bounded: who finds so many waits for the merge that runs.
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
        // Only contents: what is noted of them is little, and a collection notes too.
        let has_contents = || frames.headers.iter().any(|header| header.kind == Kind::Chunk as u8);
        let bytes = frames.bytes.len() as u64;
        let margin = self.options.keep_free_bytes;
        let kept_free = || margin > 0 && self.space().free < margin.saturating_add(bytes);
        if (self.reserve.is_lent(bytes) || kept_free()) && has_contents() {
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

    /// The filesystem of the packs; without end where it cannot be told.
    pub fn space(&self) -> Space {
        let unknown = Space { total: u64::MAX, free: u64::MAX };
        rustix::fs::statvfs(&self.reader.packs.dir).map_or(unknown, |space| Space {
            total: space.f_blocks * space.f_frsize,
            free: space.f_bavail * space.f_frsize,
        })
    }

    /// What contents leave free ([`StoreOptions::keep_free_bytes`]).
    pub fn keep_free_bytes(&self) -> u64 {
        self.options.keep_free_bytes
    }

    /// Sets room aside for a collection if the disk fills up. To be called now and then; cheap.
    pub fn watch_disk(&self) {
        if !self.options.read_only {
            self.reserve.take();
        }
    }

    /// Appends copies of frames that are in the store already; the copies are read from now on.
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

    /// Takes keys from the index whose frames were in packs that are gone. Returns how many they were.
    fn forget(&self, keys: &[Key]) -> Result<u64, StoreError> {
        // No merge may run: it could bring back a row that is being taken out.
        let _persisted = lock(&self.persisted);
        let gone = self.reader.index.forget(keys, |pack| !self.reader.packs.has(pack));
        let gone = gone.inspect_err(|_| self.stale_rows.store(true, Ordering::Relaxed))?;
        lock(&self.counters).subtract(&gone);
        Ok(gone.chunks + gone.recipes)
    }

    /// Says which packs are about to be removed, so that their absence is not taken for damage after a crash.
    fn note_removing(&self, packs: impl Iterator<Item = u32>) -> Result<(), StoreError> {
        self.reader.index.note_removing(packs)
    }

    /// Takes rows from the index that a crash during a collection left: they lead to packs that are gone.
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

    /// A chunk's bytes.
    pub fn read(&self, id: &ChunkId) -> Result<Bytes, StoreError> {
        self.reader.chunk(id)
    }

    /// A recipe. To a collection under way this says that it and its chunks are needed.
    pub fn recipe(&self, id: &RecipeId) -> Result<Arc<Recipe>, StoreError> {
        let recipe = self.reader.recipe(id)?;
        self.reader.use_recipe(&recipe);
        Ok(recipe)
    }

    /// A hint that these chunks will be read soon. Costs nothing when the threads are busy: it is dropped.
    pub fn prefetch(&self, chunks: &[ChunkRef]) {
        self.prefetcher.hint(&self.reader, chunks);
    }

    /// Fills `buf` from byte `offset` of a file; gives less only at its end.
    pub fn read_at(&self, recipe: &Recipe, offset: u64, buf: &mut [u8]) -> Result<usize, StoreError> {
        self.reader.read_at(recipe, offset, buf)
    }

    /// Counts; cheap.
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

    /// Damage that was seen while opening. It does not change afterwards.
    pub fn damage(&self) -> &[Damage] {
        &self.damage_found
    }

    /// Checks every frame of every pack, and that the index finds it. With `deep` each is decoded and hashed.
    ///
    /// `progress` is told bytes done and bytes to do, `found` each finding. Returns how much was checked.
    /// It changes nothing on disk, and other threads may go on reading and writing. Content found damaged counts
    /// as unknown from then on, so that the next put of the same content stores it again.
    pub fn verify(
        &self,
        deep: bool,
        progress: &mut dyn FnMut(u64, u64),
        found: &mut dyn FnMut(Damage),
    ) -> Result<Verified, StoreError> {
        verify::verify(self, deep, progress, found)
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        if self.options.read_only {
            return;
        }
        // Only saves work: whatever is missing in the index is found in the packs.
        let result = self.appender.check().and_then(|()| self.persist_locked(&mut lock(&self.persisted)));
        if let Err(e) = result {
            tracing::warn!(error = %e, "the chunk index was not written on close");
        }
    }
}
