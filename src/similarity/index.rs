//! The index: chunks and contents in, buffered in memory, merged into the database in sorted bulk.
//!
//! Invariants:
//! - A number of a chunk or of a content is given out once: the counters are stored before any row that uses them. Numbers
//!   ascend, but the chunks of one buffer exchange theirs once, before the buffer is merged.
//! - Rows are merged in the order features, chunks, containments, contents, names; so after a crash in the
//!   middle a known chunk has its features and a known content has its chunks.
//! - Rows are merged from a buffer that queries still see; seeing a row twice changes no answer.
//!
//! Locks, in this order: `merging`, `state`. The first is held for a whole bulk merge, the second only briefly, except by
//! a sweep.

use super::buffer::Buffer;
use super::hashed::{Hashed, add};
use super::rows::{
    CHUNK_BYTES, CONTAINED, CONTENTS, ChunkRow, ContentRow, Counts, KEY_BYTES, POSTING_BYTES, chunk_key,
    containment, name, posting,
};
use super::sketch::Sketch;
use super::state::{Meta, SimilarityStats, State};
use super::{SimilarityError, filters, sweep};
use crate::db::{Db, Table};
use crate::id::{ChunkId, RecipeId};
use crate::recipe::Recipe;
use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

type Result<T> = std::result::Result<T, SimilarityError>;

/// Filters of chunk ids take a part of the memory that additions may take.
const FILTERS_PER_BUFFER: u64 = 4;

/// Settings of the index that do not change the stored data.
#[derive(Clone, Copy, Debug)]
pub struct SimilarityOptions {
    /// About how many bytes of memory additions may take before they are merged into the database. More memory means
    /// larger runs and fewer rewrites. Filters of chunks take a quarter of as much, those of names a sixteenth.
    pub buffer_bytes: usize,
    /// A feature that more contents than this have says nothing, and is not followed.
    pub frequency_cap: usize,
}

impl Default for SimilarityOptions {
    fn default() -> Self {
        SimilarityOptions { buffer_bytes: 64 << 20, frequency_cap: 2000 }
    }
}

/// The similarity index. All methods may be called from many threads.
pub struct Similarity {
    pub(super) db: Arc<dyn Db>,
    pub(super) tables: Hashed,
    pub(super) options: SimilarityOptions,
    merging: Mutex<()>,
    state: RwLock<State>,
}

impl Similarity {
    /// Opens the index in `db`, empty if there is none.
    ///
    /// Fails with [`SimilarityError::Format`] if another version wrote it.
    pub fn open(db: Arc<dyn Db>, options: SimilarityOptions) -> Result<Similarity> {
        let meta = Meta::load(&*db)?;
        let tables = Hashed::open(&*db, options.buffer_bytes as u64 / FILTERS_PER_BUFFER)?;
        Ok(Similarity {
            db,
            tables,
            options,
            merging: Mutex::default(),
            state: RwLock::new(State { meta, ..State::default() }),
        })
    }

    /// Removes everything if another version of this program wrote it, so that it can be opened; returns whether it did.
    pub fn clear_other_version(db: &dyn Db) -> Result<bool> {
        match Meta::load(db) {
            Err(SimilarityError::Format) => {
                clear(db)?;
                Meta::default().store(db)?;
                Ok(true)
            }
            other => other.map(|_| false),
        }
    }

    /// Returns whether the chunk was sketched.
    pub fn knows_chunk(&self, id: &ChunkId) -> Result<bool> {
        Ok(self.read().chunk(&*self.db, &self.tables, &chunk_key(id))?.is_some())
    }

    /// Adds a chunk's sketch; does nothing if the chunk is known. May merge the buffer, which takes time.
    pub fn add_chunk(&self, id: ChunkId, sketch: Sketch) -> Result<()> {
        let key = chunk_key(&id);
        let mut state = self.write();
        if state.chunk(&*self.db, &self.tables, &key)?.is_some() {
            return Ok(());
        }
        let number = take_number(&mut state.meta.next_chunk)?;
        state.meta.stats.chunks += 1;
        state.meta.stats.postings += sketch.len() as u64;
        let counts = Counts { level: sketch.level(), at: sketch.counts() };
        let row = ChunkRow { number, is_bare: sketch.is_bare(), counts };
        state.buffer.add_chunk(key, row, sketch);
        self.merge_if_large(state)
    }

    /// Adds a content; all its chunks must have been added. Does nothing if the content is known.
    ///
    /// Fails with [`SimilarityError::UnknownChunk`] if a chunk is missing: it was never added, or a sweep removed it because
    /// no content had it for a while. The caller then adds the chunk and tries again.
    pub fn add_content(&self, id: RecipeId, recipe: &Recipe) -> Result<()> {
        let mut state = self.write();
        if state.content_number(&*self.db, &self.tables, &id)?.is_some() {
            return Ok(());
        }
        let mut seen = HashSet::new();
        let mut chunks = Vec::new();
        for chunk in recipe.chunks().iter().filter(|chunk| seen.insert(chunk.id)) {
            let row = state.chunk(&*self.db, &self.tables, &chunk_key(&chunk.id))?;
            chunks.push(row.ok_or(SimilarityError::UnknownChunk(chunk.id))?);
        }
        let number = take_number(&mut state.meta.next_content)?;
        state.meta.stats.contents += 1;
        let content = ContentRow { recipe: id, size: recipe.size(), counts: united(&chunks) };
        state.buffer.contents.insert(number, content);
        state.buffer.numbered.insert(id, number);
        for chunk in chunks {
            state.buffer.add_containment(chunk, number);
        }
        self.merge_if_large(state)
    }

    /// Returns whether the content was added and not removed since.
    pub fn has_content(&self, id: &RecipeId) -> Result<bool> {
        Ok(self.read().content_number(&*self.db, &self.tables, id)?.is_some())
    }

    /// Visits the contents that are in the database, by number, from one on, until `visit` returns false.
    pub fn each_content_from(&self, from: u32, visit: &mut dyn FnMut(u32, &RecipeId) -> bool) -> Result<()> {
        Ok(CONTENTS.scan_from(&*self.db, &[], &from.to_be_bytes(), |row| {
            let (number, content) = ContentRow::of_row(row);
            visit(number, &content.recipe)
        })?)
    }

    /// Removes a content from all answers; does nothing if it is not known. Later merges remove its rows.
    pub fn remove_content(&self, id: &RecipeId) -> Result<()> {
        let mut state = self.write();
        let Some(number) = state.content_number(&*self.db, &self.tables, id)? else {
            return Ok(());
        };
        state.meta.stats.contents = state.meta.stats.contents.saturating_sub(1);
        state.meta.dead += 1;
        state.buffer.contents.remove(&number);
        state.buffer.numbered.remove(id);
        // Even if it was only in this buffer: the name may be in an older one under a dead number.
        state.buffer.dead.insert(number, *id);
        self.merge_if_large(state)
    }

    /// Merges everything buffered so far into the database, so it ends however much is added meanwhile. Durable
    /// once the caller has flushed the database.
    pub fn flush(&self) -> Result<()> {
        let _merging = self.lock_merging();
        self.merge()
    }

    /// Returns about how many bytes of memory comparing all against all may take by default: twice the buffer, so a
    /// quarter of a store's setting. The memory is free again afterwards.
    pub fn groups_bytes(&self) -> usize {
        2 * self.options.buffer_bytes
    }

    /// Returns the size of the index.
    pub fn stats(&self) -> SimilarityStats {
        self.read().meta.stats
    }

    /// Removes everything, for a rebuild.
    pub fn clear(&self) -> Result<()> {
        let _merging = self.lock_merging();
        let mut state = self.write();
        self.tables.clear(&*self.db)?;
        clear(&*self.db)?;
        *state = State::default();
        state.meta.store(&*self.db)
    }

    pub(super) fn read(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_merging(&self) -> MutexGuard<'_, ()> {
        self.merging.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn merge_if_large(&self, state: RwLockWriteGuard<'_, State>) -> Result<()> {
        let limit = self.options.buffer_bytes;
        if state.buffer.bytes() < limit {
            return Ok(());
        }
        drop(state);
        let _merging = self.lock_merging();
        // Another thread may have merged it while this one waited.
        if self.read().buffer.bytes() < limit {
            return Ok(());
        }
        self.merge()
    }

    /// Merges a buffer, under the merging lock. After an error the buffer stays visible and the next merge starts with it.
    fn merge(&self) -> Result<()> {
        let failed_before = self.read().merging.is_some();
        for _ in 0..=u8::from(failed_before) {
            let (buffer, meta) = {
                let mut state = self.write();
                if state.merging.is_none() {
                    if state.buffer.is_empty() {
                        return Ok(());
                    }
                    state.merging = Some(Arc::new(std::mem::take(&mut state.buffer)));
                }
                match &state.merging {
                    Some(buffer) => (buffer.clone(), state.meta),
                    None => return Ok(()),
                }
            };
            let buffer = self.ordered(buffer);
            meta.store(&*self.db)?;
            merge_rows(&*self.db, &self.tables, &buffer)?;
            let mut state = self.write();
            state.merging = None;
            if sweep::is_due(&state.meta) {
                sweep::sweep(&*self.db, &self.tables, &mut state)?;
            }
            state.meta.settled = meta.next_chunk;
        }
        Ok(())
    }

    /// Renumbers the buffer that is being merged so that similar chunks have successive numbers. Only the exchange of numbers
    /// holds the lock, for both buffers at once.
    pub(super) fn ordered(&self, buffer: Arc<Buffer>) -> Arc<Buffer> {
        let Some(renumbering) = buffer.renumbering() else { return buffer };
        let mut state = self.write();
        let State { buffer: newer, merging, .. } = &mut *state;
        drop(buffer);
        let merging = merging.get_or_insert_default();
        if let Some(merging) = Arc::get_mut(merging) {
            merging.renumber(&renumbering);
            newer.renumber_contained(&renumbering);
        }
        merging.clone()
    }
}

/// Removes first the rows that make something known, and the counters last, so that an interrupted clear leaves no number
/// to be given out twice.
fn clear(db: &dyn Db) -> Result<()> {
    let tables = [
        Table::Numbered,
        Table::Contents,
        Table::Sketched,
        Table::Contained,
        Table::Features,
        Table::Filters,
    ];
    for table in tables {
        db.clear(table, &[])?;
    }
    Ok(())
}

fn take_number(next: &mut u64) -> Result<u32> {
    let number = u32::try_from(*next).map_err(|_| SimilarityError::Full)?;
    *next += 1;
    Ok(number)
}

/// Returns the counts of a content, from the coarsest level of its chunks on, at which all of them can be added up.
fn united(chunks: &[ChunkRow]) -> Counts {
    let with_features = || chunks.iter().filter(|chunk| chunk.counts.at.iter().any(|&n| n > 0));
    let level = with_features().map(|chunk| chunk.counts.level).max().unwrap_or(0);
    let mut at = [0u32; super::gram::LEVELS];
    for chunk in with_features() {
        for (sum, n) in at.iter_mut().zip(chunk.counts.at).skip(usize::from(level)) {
            *sum = sum.saturating_add(n);
        }
    }
    Counts { level, at }
}

fn merge_rows(db: &dyn Db, tables: &Hashed, buffer: &Buffer) -> Result<()> {
    let postings = buffer.postings();
    let mut rows = Vec::with_capacity(postings.len() * POSTING_BYTES);
    for (feature, chunk) in postings {
        rows.extend_from_slice(&posting(feature.into(), chunk));
    }
    add(&tables.features, db, &rows, POSTING_BYTES, POSTING_BYTES)?;
    filters::merge(db, &buffer.filters)?;
    let rows: Vec<u8> = buffer.sketched.iter().flat_map(|(key, row)| row.to_row(key)).collect();
    add(&tables.sketched, db, &rows, CHUNK_BYTES, KEY_BYTES)?;
    let mut rows = Vec::new();
    for (&chunk, (sampled, contents)) in &buffer.contained {
        let live = contents.iter().filter(|content| !buffer.dead.contains_key(content));
        live.for_each(|&content| rows.extend_from_slice(&containment(chunk, content, *sampled)));
    }
    CONTAINED.merge(db, rows, Vec::new())?;
    let rows = buffer.contents.iter().flat_map(|(&number, row)| row.to_row(number)).collect();
    let removed = buffer.dead.keys().flat_map(|number| number.to_be_bytes()).collect();
    CONTENTS.merge(db, rows, removed)?;
    // A sweep removes names of removed contents: a name without a content means nothing.
    let rows: Vec<u8> = buffer.numbered.iter().flat_map(|(id, &number)| name(id, number)).collect();
    add(&tables.numbered, db, &rows, POSTING_BYTES, POSTING_BYTES)?;
    Ok(())
}
