//! State of the index in memory: counters, and buffers of additions.

use super::SimilarityError;
use super::buffer::Buffer;
use super::hashed::Hashed;
use super::rows::{CONTENTS, ChunkKey, ChunkRow, ContentRow, hash_prefix, head, name_hash, posting_number};
use crate::db::{Db, Table};
use crate::id::RecipeId;
use std::sync::Arc;

type Result<T> = std::result::Result<T, SimilarityError>;

const META_KEY: &[u8] = b"similarity";

const META_VERSION: u8 = 7;

/// Size of the index. After a crash the numbers may count a few additions that were lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SimilarityStats {
    /// Sketched chunks.
    pub chunks: u64,
    /// Contents that queries can find.
    pub contents: u64,
    /// (feature, chunk) pairs.
    pub postings: u64,
}

/// Counters that outlive a restart.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Meta {
    pub(super) next_chunk: u64,
    pub(super) next_content: u64,
    pub(super) stats: SimilarityStats,
    /// Contents removed since the last sweep.
    pub(super) dead: u64,
    /// Chunks numbered below this were all merged before the last merge: a sweep may remove them.
    pub(super) settled: u64,
}

impl Meta {
    fn fields(&mut self) -> [&mut u64; 7] {
        [
            &mut self.next_chunk,
            &mut self.next_content,
            &mut self.stats.chunks,
            &mut self.stats.contents,
            &mut self.stats.postings,
            &mut self.dead,
            &mut self.settled,
        ]
    }

    pub(super) fn load(db: &dyn Db) -> Result<Meta> {
        let mut meta = Meta::default();
        let Some(value) = db.get(Table::Meta, META_KEY)? else {
            return Ok(meta);
        };
        if value.first() != Some(&META_VERSION) || value.len() != 1 + 8 * meta.fields().len() {
            return Err(SimilarityError::Format);
        }
        for (field, bytes) in meta.fields().into_iter().zip(value[1..].chunks_exact(8)) {
            *field = u64::from_le_bytes(head(bytes));
        }
        Ok(meta)
    }

    pub(super) fn store(mut self, db: &dyn Db) -> Result<()> {
        let mut value = vec![META_VERSION];
        self.fields().iter().for_each(|field| value.extend_from_slice(&field.to_le_bytes()));
        Ok(db.put(Table::Meta, META_KEY, &value)?)
    }
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) meta: Meta,
    pub(super) buffer: Buffer,
    /// The buffer that is being merged, or whose merge failed.
    pub(super) merging: Option<Arc<Buffer>>,
}

impl State {
    /// Both buffers, the newer first.
    pub(super) fn buffers(&self) -> impl Iterator<Item = &Buffer> {
        std::iter::once(&self.buffer).chain(self.merging.as_deref())
    }

    pub(super) fn is_dead(&self, content: u32) -> bool {
        self.buffers().any(|buffer| buffer.dead.contains_key(&content))
    }

    pub(super) fn chunk(&self, db: &dyn Db, tables: &Hashed, key: &ChunkKey) -> Result<Option<ChunkRow>> {
        if let Some(row) = self.buffers().find_map(|buffer| buffer.sketched.get(key)) {
            return Ok(Some(*row));
        }
        Ok(tables.sketched.find(db, key)?.map(|row| ChunkRow::of_row(&row)))
    }

    pub(super) fn content_number(&self, db: &dyn Db, tables: &Hashed, id: &RecipeId) -> Result<Option<u32>> {
        let number = match self.buffers().find_map(|buffer| buffer.numbered.get(id)) {
            Some(number) => Some(*number),
            None => stored_number(db, tables, id)?,
        };
        Ok(number.filter(|&number| !self.is_dead(number)))
    }
}

/// Returns the number of a content in the database. If several names begin alike, the row has to have the whole id.
fn stored_number(db: &dyn Db, tables: &Hashed, id: &RecipeId) -> Result<Option<u32>> {
    let mut numbers = Vec::new();
    let name = [hash_prefix(name_hash(id))];
    tables.numbered.scan_each(db, &name, usize::MAX, |_, row| numbers.push(posting_number(row)))?;
    for number in numbers {
        let row = CONTENTS.find(db, &number.to_be_bytes())?;
        if row.is_some_and(|row| ContentRow::of_row(&row).1.recipe == *id) {
            return Ok(Some(number));
        }
    }
    Ok(None)
}
