//! A writer: compresses unknown chunks into its own buffer and appends the buffer in one write.
//!
//! Invariants: content counts as known to others only once it is appended. Buffered content is lost with the
//! writer; flushed content is durable after `Store::sync`.

use super::Store;
use super::append::Frames;
use super::error::StoreError;
use super::frame::{CODEC_RAW, Key, Kind, build, compresses};
use crate::id::{ChunkId, RecipeId};
use crate::recipe::Recipe;
use std::collections::HashMap;
use std::sync::Arc;
use zstd::bulk::Compressor;

/// A buffer larger than this is appended by `put` itself.
const BUFFER_BYTES: usize = 1 << 20;
/// A buffer that grew beyond this for a large recipe is freed.
const BUFFER_BYTES_KEPT: usize = 4 << 20;

/// Puts content into a store. Use one in each thread.
pub struct Writer {
    store: Arc<Store>,
    compressor: Option<Compressor<'static>>,
    frames: Frames,
    /// Whether the frame of each key in the buffer is compressed.
    buffered: HashMap<Key, bool>,
    /// The index generation at the look-up of the first frame in the buffer.
    generation: u64,
}

impl Store {
    /// Returns a writer; give each thread its own.
    pub fn writer(self: &Arc<Self>) -> Writer {
        Writer::new(Arc::clone(self))
    }
}

impl Writer {
    fn new(store: Arc<Store>) -> Writer {
        Writer { store, compressor: None, frames: Frames::default(), buffered: HashMap::new(), generation: 0 }
    }

    /// Stores a chunk unless it is known; returns whether it was new. `id` must be the BLAKE3 of `bytes`.
    pub fn put(&mut self, id: ChunkId, bytes: &[u8]) -> Result<bool, StoreError> {
        debug_assert_eq!(id, ChunkId::of(bytes));
        self.add(Kind::Chunk, id.0, bytes)
    }

    /// Whether a chunk compresses: its own frame decides, if it has one. `id` must be the BLAKE3 of `bytes`.
    ///
    /// Compresses only if the store lacks the chunk or has it in a group.
    pub fn compresses(&mut self, id: &ChunkId, bytes: &[u8]) -> Result<bool, StoreError> {
        let key = Key::chunk(id);
        if let Some(compressed) = self.buffered.get(&key) {
            return Ok(*compressed);
        }
        match self.store.reader.index.find(&key)? {
            Some(address) if address.stored_len <= address.raw_len => {
                Ok(address.stored_len < address.raw_len)
            }
            _ => Ok(compresses(bytes, compressor(&mut self.compressor, &self.store)?)),
        }
    }

    /// Stores a recipe unless it is known. Put its chunks first.
    pub fn put_recipe(&mut self, recipe: &Recipe) -> Result<RecipeId, StoreError> {
        let encoded = recipe.encode();
        let hash = *blake3::hash(&encoded).as_bytes();
        self.add(Kind::Recipe, hash, &encoded)?;
        Ok(RecipeId::of(&encoded))
    }

    pub(super) fn add(&mut self, kind: Kind, id: [u8; 32], raw: &[u8]) -> Result<bool, StoreError> {
        let max = kind.raw_bytes_max();
        if raw.len() > max as usize {
            return Err(StoreError::TooLarge { bytes: raw.len() as u64, max: u64::from(max) });
        }
        let key = Key::new(&id, kind as u8);
        if self.frames.headers.is_empty() {
            self.generation = self.store.reader.index.generation();
        }
        if self.buffered.contains_key(&key) || self.store.reader.is_sound(&key)? {
            return Ok(false);
        }
        self.store.appender.check()?;
        let compressor = compressor(&mut self.compressor, &self.store)?;
        let header = build(&mut self.frames.bytes, kind, id, raw, compressor);
        self.frames.headers.push(header);
        self.buffered.insert(key, header.codec != CODEC_RAW);
        if self.frames.bytes.len() >= BUFFER_BYTES {
            self.flush()?;
        }
        Ok(true)
    }

    /// Appends the buffer, without content that another writer stored meanwhile. It is readable afterwards,
    /// and durable after `Store::sync`. On an error the buffer is lost.
    pub fn flush(&mut self) -> Result<(), StoreError> {
        if self.frames.headers.is_empty() {
            return Ok(());
        }
        let result = self.store.append(&mut self.frames, self.generation);
        self.frames.clear();
        self.buffered.clear();
        if self.frames.bytes.capacity() > BUFFER_BYTES_KEPT {
            self.frames.bytes = Vec::new();
        }
        result?;
        self.store.persist_if_due()
    }
}

fn compressor<'a>(
    slot: &'a mut Option<Compressor<'static>>,
    store: &Store,
) -> Result<&'a mut Compressor<'static>, StoreError> {
    if slot.is_none() {
        let made = Compressor::new(store.options.zstd_level);
        *slot = Some(made.map_err(|e| StoreError::io("start zstd for", &store.reader.packs.dir, e))?);
    }
    Ok(slot.as_mut().expect("it was just made"))
}
