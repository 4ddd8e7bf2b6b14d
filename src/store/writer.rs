//! A writer: compresses unknown chunks into a buffer of its own and appends the buffer as one write.
//!
//! What must always be true: content counts as known to others only once it is appended. What is still in
//! the buffer is lost with the writer; what is flushed is durable after `Store::sync`.

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
/// A buffer that grew beyond this for a large recipe is given back.
const BUFFER_BYTES_KEPT: usize = 4 << 20;

/// Puts content into a store. One to a thread.
pub struct Writer {
    store: Arc<Store>,
    compressor: Option<Compressor<'static>>,
    frames: Frames,
    /// Whether the frame of each key in the buffer is compressed.
    buffered: HashMap<Key, bool>,
    /// The index's generation when the first frame in the buffer was looked up in it.
    generation: u64,
}

impl Writer {
    pub(super) fn new(store: Arc<Store>) -> Writer {
        Writer { store, compressor: None, frames: Frames::default(), buffered: HashMap::new(), generation: 0 }
    }

    /// Stores a chunk unless it is known; true if it was not. `id` must be the BLAKE3 of `bytes`.
    pub fn put(&mut self, id: ChunkId, bytes: &[u8]) -> Result<bool, StoreError> {
        debug_assert_eq!(id, ChunkId::of(bytes));
        self.add(Kind::Chunk, id.0, bytes)
    }

    /// Whether a chunk compresses: as its frame says, if it has one of its own. `id` must be the BLAKE3 of `bytes`.
    ///
    /// Compresses only what the store does not have, or has in a group.
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

    /// Appends what is buffered, less what another writer stored meanwhile. Readable afterwards; durable
    /// after `Store::sync`. On an error the buffer is lost.
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
