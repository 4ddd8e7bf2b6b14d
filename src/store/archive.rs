//! Finds archives (zip, gzip) and other files with deflate streams (PDF, ELF) whose chunks can be stored as
//! inflated bytes ([`super::inflated`]).
//!
//! Chunk boundaries ignore stream boundaries. A **piece** is a run of consecutive chunks of an archive that
//! have their own frames, together with the streams that overlap them. Streams at its ends are inflated
//! completely; after deflating, the bytes that belong to other chunks are dropped.
//!
//! Memory: one archive, and the inflated bytes of one stream; about 100 bytes for each piece, and 40 for each
//! stream.

use super::entry::{Address, Entry};
use super::error::StoreError;
use super::frame::Key;
use super::inflated::{self, STREAMS_MAX};
use super::member::MEMBERS_MAX;
use super::read::Reader;
use crate::deflate::{self, Stream};
use crate::id::{ChunkId, RecipeId};
use crate::recipe::Recipe;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

/// Longer archives are skipped, and archives too short to matter.
const ARCHIVE_BYTES_MAX: u64 = 64 << 20;
const ARCHIVE_BYTES_MIN: u64 = 64;

/// A run of chunks of an archive.
pub(super) struct Piece {
    archive: Arc<Recipe>,
    /// Range of the archive, from the start of the first stream or chunk to the end of the last.
    range: Range<usize>,
    /// Bytes before the first chunk.
    skip: u32,
    /// Streams, relative to the range.
    streams: Vec<Stream>,
    pub(super) chunks: Vec<Entry>,
}

impl Piece {
    /// Returns the bytes to store for its chunks; `None` if they cannot be read, or changed.
    pub(super) fn inflate(&self, reader: &Reader) -> Result<Option<Vec<u8>>, StoreError> {
        let mut bytes = vec![0; self.range.len()];
        match whole(reader.read_at(&self.archive, self.range.start as u64, &mut bytes))? {
            Some(len) if len == bytes.len() => Ok(inflated::inflate(&bytes, &self.streams, self.skip)),
            _ => Ok(None),
        }
    }
}

/// Chunks with their own frames, and recipes, of some packs.
#[derive(Default)]
pub(super) struct Loose {
    chunks: HashMap<Key, Address>,
    recipes: Vec<RecipeId>,
}

impl Loose {
    /// Adds what a pack lists, sorted by offset.
    pub(super) fn add(&mut self, entries: &[Entry]) {
        for frame in entries.chunk_by(|a, b| a.address.offset == b.address.offset) {
            let [entry] = frame else { continue };
            if entry.key.chunk_id().is_some() {
                self.chunks.insert(entry.key, entry.address);
            } else if let Some(recipe) = entry.key.recipe_id() {
                self.recipes.push(recipe);
            }
        }
    }

    /// Returns the pieces of all archives among the recipes; one piece inflates to at most `bytes_max` bytes.
    /// `None` if `keep_going` returned false.
    pub(super) fn pieces(
        mut self,
        reader: &Reader,
        bytes_max: u32,
        keep_going: &mut dyn FnMut() -> bool,
    ) -> Result<Option<Vec<Piece>>, StoreError> {
        let mut pieces = Vec::new();
        for id in std::mem::take(&mut self.recipes) {
            if !keep_going() {
                return Ok(None);
            }
            let Some(recipe) = whole(reader.recipe(&id))? else { continue };
            for piece in self.pieces_of(reader, recipe, bytes_max as usize)? {
                // Other archives may contain them too.
                for entry in &piece.chunks {
                    self.chunks.remove(&entry.key);
                }
                pieces.push(piece);
            }
        }
        Ok(Some(pieces))
    }

    fn pieces_of(
        &self,
        reader: &Reader,
        recipe: Arc<Recipe>,
        bytes_max: usize,
    ) -> Result<Vec<Piece>, StoreError> {
        let is_loose = |id: &ChunkId| self.chunks.contains_key(&Key::chunk(id));
        let sizes = ARCHIVE_BYTES_MIN..=ARCHIVE_BYTES_MAX;
        if !sizes.contains(&recipe.size()) || !recipe.chunks().iter().any(|chunk| is_loose(&chunk.id)) {
            return Ok(Vec::new());
        }
        let head = whole(reader.chunk(&recipe.chunks()[0].id))?;
        if !head.is_some_and(|head| deflate::looks_like(&head)) {
            return Ok(Vec::new());
        }
        let mut archive = vec![0; recipe.size() as usize];
        if whole(reader.read_at(&recipe, 0, &mut archive))? != Some(archive.len()) {
            return Ok(Vec::new());
        }
        let mut cutter =
            Cutter { streams: deflate::streams(&archive, bytes_max), bytes_max, found: Vec::new() };
        let mut start = 0;
        let mut seen = HashMap::new();
        for chunk in recipe.chunks() {
            let range = start..start + chunk.len as usize;
            start = range.end;
            let key = Key::chunk(&chunk.id);
            let entry = self.chunks.get(&key).map(|address| Entry { key, address: *address });
            let mut takes = entry.filter(|entry| seen.insert(entry.key, ()).is_none());
            // A group must not make wrong bytes look right, nor move content that is elsewhere by now.
            if let Some(entry) = takes
                && (reader.index.find(&key)? != Some(entry.address)
                    || ChunkId::of(&archive[range.clone()]) != chunk.id)
            {
                takes = None;
            }
            cutter.push(range, takes);
        }
        let Cutter { streams, found, .. } = cutter;
        Ok(found.into_iter().map(|draft| draft.piece(&recipe, &streams)).collect())
    }
}

/// Cuts an archive into pieces.
struct Cutter {
    streams: Vec<Stream>,
    bytes_max: usize,
    found: Vec<Draft>,
}

/// A piece that may grow.
struct Draft {
    /// Range of its consecutive chunks.
    bytes: Range<usize>,
    range: Range<usize>,
    streams: Range<usize>,
    chunks: Vec<Entry>,
}

impl Cutter {
    /// Adds the next chunk with its range in the archive; `None` for a chunk that stays in place.
    fn push(&mut self, bytes: Range<usize>, entry: Option<Entry>) {
        let Some(entry) = entry.filter(|_| !self.touched_by(&bytes).is_empty()) else { return };
        if let Some(last) = self.found.last()
            && last.bytes.end == bytes.start
            && last.chunks.len() < MEMBERS_MAX
            && let Some(mut grown) = self.draft(last.bytes.start..bytes.end)
        {
            let last = self.found.last_mut().expect("there is one");
            grown.chunks = std::mem::take(&mut last.chunks);
            grown.chunks.push(entry);
            *last = grown;
        } else if let Some(mut draft) = self.draft(bytes) {
            draft.chunks.push(entry);
            self.found.push(draft);
        }
    }

    /// Returns the streams that overlap these bytes.
    fn touched_by(&self, bytes: &Range<usize>) -> Range<usize> {
        let first = self.streams.partition_point(|stream| stream.deflated.end <= bytes.start);
        let end = self.streams.partition_point(|stream| stream.deflated.start < bytes.end);
        first..end.max(first)
    }

    /// Returns a piece without chunks, unless it inflates to too much.
    fn draft(&self, bytes: Range<usize>) -> Option<Draft> {
        let touched = self.touched_by(&bytes);
        let streams = &self.streams[touched.clone()];
        let (first, last) = (streams.first()?, streams.last()?);
        let range = bytes.start.min(first.deflated.start)..bytes.end.max(last.deflated.end);
        let inflated: usize = streams.iter().map(|stream| stream.len).sum();
        let deflated: usize = streams.iter().map(|stream| stream.deflated.len()).sum();
        let len = inflated::stored_len(range.len() - deflated + inflated, streams.len());
        let fits = len <= self.bytes_max && streams.len() <= STREAMS_MAX;
        fits.then_some(Draft { bytes, range, streams: touched, chunks: Vec::new() })
    }
}

impl Draft {
    fn piece(self, archive: &Arc<Recipe>, streams: &[Stream]) -> Piece {
        let Draft { bytes, range, streams: touched, chunks } = self;
        let within = |stream: &Stream| {
            let Range { start, end } = stream.deflated;
            Stream { deflated: start - range.start..end - range.start, ..stream.clone() }
        };
        Piece {
            archive: Arc::clone(archive),
            skip: (bytes.start - range.start) as u32,
            streams: streams[touched].iter().map(within).collect(),
            range,
            chunks,
        }
    }
}

/// Maps damaged or missing content to `None`: an archive that cannot be read completely is skipped.
fn whole<T>(read: Result<T, StoreError>) -> Result<Option<T>, StoreError> {
    match read {
        Ok(found) => Ok(Some(found)),
        Err(StoreError::Damaged { .. } | StoreError::Missing { .. }) => Ok(None),
        Err(e) => Err(e),
    }
}
