//! The sweep: removes rows that only removed contents needed.
//!
//! The next merge drops a removed content's own rows, which takes it out of all answers. The sweep drops its containments, and
//! the sketches and features of chunks that no content has any more. It makes one pass over the tables, when removals since
//! the last sweep are a quarter of the rest.
//!
//! Invariants:
//! - A chunk that any content has, in the database or in the buffer, keeps its rows.
//! - So does every chunk that was added since the merge before the last, because its content may be about to be added.
//! - Names are removed before features: a chunk that is known has its features.

use super::hashed::Hashed;
use super::rows::{CONTAINED, CONTENTS, ChunkRow, ContentRow, containment_of, posting_number};
use super::state::{Meta, State};
use super::{SimilarityError, filters};
use crate::db::{Codec, Db, DbResult, Runs};

/// Keys collected before they are removed: bounds the memory of a sweep.
const KEYS_PER_PASS: usize = 1 << 22;

pub(super) fn is_due(meta: &Meta) -> bool {
    meta.dead > 0 && meta.dead >= meta.stats.contents / 4
}

/// A set of numbers out of a dense range.
struct NumberSet(Vec<u64>);

impl NumberSet {
    fn below(end: u64) -> NumberSet {
        NumberSet(vec![0; end.div_ceil(64) as usize])
    }

    fn insert(&mut self, number: u32) {
        if let Some(word) = self.0.get_mut(number as usize / 64) {
            *word |= 1 << (number % 64);
        }
    }

    fn contains(&self, number: u32) -> bool {
        let word = self.0.get(number as usize / 64);
        word.is_some_and(|word| word >> (number % 64) & 1 == 1)
    }
}

/// Runs with the state locked and no merge under way; additions and queries wait. O(index).
pub(super) fn sweep(db: &dyn Db, tables: &Hashed, state: &mut State) -> Result<(), SimilarityError> {
    let mut contents = NumberSet::below(state.meta.next_content);
    CONTENTS.scan(db, &[], |row| {
        contents.insert(ContentRow::of_row(row).0);
        true
    })?;
    let mut chunks = NumberSet::below(state.meta.next_chunk);
    state.buffer.contained.keys().for_each(|&chunk| chunks.insert(chunk));
    CONTAINED.scan(db, &[], |row| {
        let (chunk, content, _) = containment_of(row);
        if contents.contains(content) {
            chunks.insert(chunk);
        }
        true
    })?;
    let settled = state.meta.settled;
    let stays = |chunk: u32| u64::from(chunk) >= settled || chunks.contains(chunk);
    remove(&CONTAINED, db, 8, |row| {
        let (chunk, content, _) = containment_of(row);
        contents.contains(content) && stays(chunk)
    })?;
    tables.numbered.retain(db, |row| contents.contains(posting_number(row)))?;
    let gone = tables.sketched.retain(db, |row| stays(ChunkRow::of_row(row).number))?;
    state.meta.stats.chunks = state.meta.stats.chunks.saturating_sub(gone);
    let gone = tables.features.retain(db, |row| stays(posting_number(row)))?;
    state.meta.stats.postings = state.meta.stats.postings.saturating_sub(gone);
    filters::retain(db, stays)?;
    state.meta.dead = 0;
    state.meta.store(db)
}

/// Removes the rows that `stays` refuses; returns how many.
fn remove<C: Codec>(
    runs: &Runs<C>,
    db: &dyn Db,
    key_len: usize,
    stays: impl Fn(&[u8]) -> bool,
) -> DbResult<u64> {
    let mut removed = 0;
    loop {
        let mut keys = Vec::new();
        runs.scan(db, &[], |row| {
            if !stays(row) {
                keys.extend_from_slice(&row[..key_len]);
            }
            keys.len() < KEYS_PER_PASS * key_len
        })?;
        let count = keys.len() / key_len;
        removed += count as u64;
        if count > 0 {
            runs.merge(db, Vec::new(), keys)?;
        }
        if count < KEYS_PER_PASS {
            return Ok(removed);
        }
    }
}
