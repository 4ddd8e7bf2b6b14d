//! The tables of the index with hash keys: stored in runs ([`Tiers`]), so that later additions cost as much
//! as earlier ones.

use super::rows::{CHUNK_BYTES, Chunks, HASH_BYTES, KEY_BYTES, Names, POSTING_BYTES, Postings};
use crate::db::{Codec, Db, DbResult, Layout, Merging, Table, Tiers};

/// Runs of one size class that are merged: fewer cost more rewrites, more cost more look-ups.
const RUNS_OF_CLASS: u64 = 6;

/// Filters of names may take this part of the memory of filters of chunks. Without them each run costs a look-up and a
/// decoded block for each name, and `scan` looks up the name of every file.
const NUMBERED_FILTERS: u64 = 4;

/// The tables whose keys are hashes.
#[derive(Debug)]
pub(super) struct Hashed {
    /// (feature, chunk number)
    pub(super) features: Tiers<Postings>,
    /// chunk id -> [`ChunkRow`]
    pub(super) sketched: Tiers<Chunks>,
    /// (32 bits of a recipe id, content number), as postings are. Some rows of removed contents remain.
    pub(super) numbered: Tiers<Names>,
}

impl Hashed {
    /// Opens the tables in `db`. Filters of chunk ids take at most about `filter_bytes_max` bytes of memory.
    pub(super) fn open(db: &dyn Db, filter_bytes_max: u64) -> DbResult<Hashed> {
        let merging = Merging::Classes(RUNS_OF_CLASS);
        let layout = |table, row_len, key_len| Layout { table, row_len, key_len };
        let posting = |table| layout(table, POSTING_BYTES, POSTING_BYTES);
        let sketched = layout(Table::Sketched, CHUNK_BYTES, KEY_BYTES);
        let tables = Hashed {
            features: Tiers::new(posting(Table::Features), merging, 0),
            sketched: Tiers::new(sketched, merging, filter_bytes_max),
            numbered: Tiers::new(posting(Table::Numbered), merging, filter_bytes_max / NUMBERED_FILTERS)
                .with_filter_key(HASH_BYTES),
        };
        tables.features.load(db)?;
        tables.sketched.load(db)?;
        tables.numbered.load(db)?;
        Ok(tables)
    }

    /// Removes every row, first those that make something known.
    pub(super) fn clear(&self, db: &dyn Db) -> DbResult<()> {
        self.numbered.clear(db)?;
        self.sketched.clear(db)?;
        self.features.clear(db)
    }
}

/// Adds rows in any order, end to end, to a table, each key once.
pub(super) fn add<C: Codec>(
    tiers: &Tiers<C>,
    db: &dyn Db,
    rows: &[u8],
    row_len: usize,
    key_len: usize,
) -> DbResult<()> {
    if rows.is_empty() {
        return Ok(());
    }
    let mut rows: Vec<&[u8]> = rows.chunks_exact(row_len).collect();
    rows.sort_unstable();
    rows.dedup_by_key(|row| &row[..key_len]);
    tiers.add(db, rows.len() as u64, rows.iter())?;
    tiers.merge_due(db)
}
