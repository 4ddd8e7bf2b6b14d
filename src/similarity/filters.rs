//! The filters of chunks, by number, in blocks.
//!
//! Invariants: a block's key is the number of its first chunk when it was written, and blocks do not overlap. The chunks
//! of a buffer have numbers that no earlier buffer had, and merging the buffer again makes the same blocks.

use super::filter::Filter;
use super::filter_block::{BLOCK_GRAMS, FilterReader, decode, encode};
use crate::db::{BATCH_CHANGES, Batch, Db, DbError, DbResult, Table};
use std::collections::{BTreeMap, HashMap};

fn damage() -> DbError {
    DbError::Row { table: Table::Filters, reason: "expected filters in ascending order" }
}

/// Writes the filters of a buffer to the database. O(filters).
pub(super) fn merge(db: &dyn Db, filters: &BTreeMap<u32, Filter>) -> DbResult<()> {
    let (mut batch, mut blocks, mut grams, mut block) = (Batch::new(), 0, 0, Vec::new());
    for (&chunk, filter) in filters {
        grams += filter.grams().len();
        block.push((chunk, filter));
        if grams >= BLOCK_GRAMS {
            put(&mut batch, &block);
            block.clear();
            (grams, blocks) = (0, blocks + 1);
            if blocks % BATCH_CHANGES == 0 {
                db.apply(std::mem::take(&mut batch))?;
            }
        }
    }
    put(&mut batch, &block);
    if batch.is_empty() { Ok(()) } else { db.apply(batch) }
}

fn put(batch: &mut Batch, block: &[(u32, &Filter)]) {
    if let Some((first, _)) = block.first() {
        batch.put(Table::Filters, &first.to_be_bytes(), encode(block));
    }
}

/// Adds the filters in the database of some sorted chunks to `filters`. One look-up for each block.
pub(super) fn read(db: &dyn Db, chunks: &[u32], filters: &mut HashMap<u32, Filter>) -> DbResult<()> {
    let mut at = 0;
    while let Some(first) = chunks.get(at) {
        let Some((_, block)) = db.at_or_below(Table::Filters, &first.to_be_bytes())? else {
            at += 1;
            continue;
        };
        let (mut reader, looked_up) = (FilterReader::new(&block).ok_or_else(damage)?, at);
        while let Some(&chunk) = chunks.get(at) {
            let found = reader.find(chunk).ok_or_else(damage)?;
            if at > looked_up && reader.is_before(chunk) {
                break;
            }
            filters.extend(found.map(|filter| (chunk, filter)));
            at += 1;
        }
    }
    Ok(())
}

/// Removes filters of chunks that `stays` refuses. O(filters); memory for some blocks.
pub(super) fn retain(db: &dyn Db, stays: impl Fn(u32) -> bool) -> DbResult<()> {
    let mut from = Some(Vec::new());
    while let Some(begin) = from.take() {
        let (mut batch, mut blocks, mut failed) = (Batch::new(), 0, None);
        db.scan(Table::Filters, &begin, &mut |key, block| {
            if blocks == BATCH_CHANGES {
                from = Some(key.to_vec());
                return false;
            }
            match decode(block) {
                Some(filters) if filters.iter().all(|(chunk, _)| stays(*chunk)) => return true,
                Some(filters) => {
                    let kept: Vec<_> = filters
                        .iter()
                        .filter(|(chunk, _)| stays(*chunk))
                        .map(|(chunk, f)| (*chunk, f))
                        .collect();
                    match kept.is_empty() {
                        true => batch.remove(Table::Filters, key),
                        false => batch.put(Table::Filters, key, encode(&kept)),
                    }
                    blocks += 1;
                }
                None => failed = Some(damage()),
            }
            failed.is_none()
        })?;
        failed.map_or(Ok(()), Err)?;
        if !batch.is_empty() {
            db.apply(batch)?;
        }
    }
    Ok(())
}
