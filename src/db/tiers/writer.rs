//! Writing one run of a table: sorted rows in blocks, and the filter of their keys.

use super::super::filter::Filter;
use super::super::{BATCH_CHANGES, Batch, Codec, Db, DbResult};
use super::Tiers;
use super::run::{Run, run_key};
use std::sync::atomic::Ordering;

/// Blocks of 1 and 2 KiB took 1.4 and 1.3 times as much processor time to fill a table, and no less memory, than the
/// default of 4 KiB (when they were in sled).
///
/// Rows are gathered until their block probably has that size, judging by the previous block.
const FULL: usize = 7;
const FULL_OF: usize = 8;
const FILTER_PART_BYTES: usize = 4096;

/// Writes one run.
pub(super) struct RunWriter<'a, C: Codec> {
    tiers: &'a Tiers<C>,
    db: &'a dyn Db,
    number: u32,
    rows: u64,
    block: Vec<u8>,
    /// Bytes of rows in a block.
    block_rows_bytes: usize,
    batch: Batch,
    blocks: usize,
    filter: Option<Filter>,
}

impl<'a, C: Codec> RunWriter<'a, C> {
    pub(super) fn new(tiers: &'a Tiers<C>, db: &'a dyn Db, rows_max: u64) -> RunWriter<'a, C> {
        let bits = tiers.filter_bits(rows_max);
        RunWriter {
            tiers,
            db,
            number: tiers.next_number.fetch_add(1, Ordering::Relaxed),
            rows: 0,
            block: Vec::with_capacity(C::BLOCK_BYTES_MAX),
            block_rows_bytes: C::BLOCK_BYTES_MAX,
            batch: Batch::new(),
            blocks: 0,
            filter: (bits > 0 && rows_max > 0).then(|| Filter::new(rows_max, bits)),
        }
    }

    pub(super) fn number(&self) -> u32 {
        self.number
    }

    pub(super) fn push(&mut self, row: &[u8]) -> DbResult<()> {
        debug_assert_eq!(row.len(), self.tiers.layout.row_len);
        if self.block.len() + row.len() > self.block_rows_bytes {
            self.cut()?;
        }
        self.block.extend_from_slice(row);
        self.rows += 1;
        if let Some(filter) = &mut self.filter {
            filter.insert(&self.tiers.hash_of(row));
        }
        Ok(())
    }

    fn cut(&mut self) -> DbResult<()> {
        let Some(first) = self.block.get(..self.tiers.layout.key_len) else { return Ok(()) };
        let key = run_key(b'r', self.number, first);
        let block = C::encode(&self.block, self.tiers.layout.row_len);
        if block.len() < self.block.len() {
            let full = C::BLOCK_BYTES_MAX * FULL / FULL_OF;
            self.block_rows_bytes = self.block.len().saturating_mul(full) / block.len().max(1);
        }
        self.block.clear();
        self.put(key, block)
    }

    fn put(&mut self, key: Vec<u8>, value: Vec<u8>) -> DbResult<()> {
        self.batch.put(self.tiers.layout.table, &key, value);
        self.blocks += 1;
        if self.blocks.is_multiple_of(BATCH_CHANGES) {
            self.apply()?;
        }
        Ok(())
    }

    fn apply(&mut self) -> DbResult<()> {
        self.db.apply(std::mem::take(&mut self.batch))
    }

    pub(super) fn finish(mut self) -> DbResult<Run> {
        self.cut()?;
        if let Some(filter) = self.filter.take().filter(|_| self.rows > 0) {
            for (part, bytes) in filter.bytes().chunks(FILTER_PART_BYTES).enumerate() {
                let key = run_key(b'f', self.number, &(part as u32).to_be_bytes());
                self.put(key, bytes.to_vec())?;
            }
            self.filter = Some(filter);
        }
        self.apply()?;
        Ok(Run { number: self.number, rows: self.rows, filter: self.filter })
    }
}
