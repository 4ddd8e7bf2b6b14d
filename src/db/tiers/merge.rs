//! Reads several runs of a table as one; among rows with the same key, the newest.

use super::super::{Codec, Db, DbResult, Layout};
use super::Tiers;
use super::run::{Run, lower_bound, run_key};
use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::Arc;

/// Blocks of a run read ahead while merging or scanning.
const BLOCKS_AHEAD: usize = 64;

impl<C: Codec> Tiers<C> {
    /// Calls `visit` with every row whose key starts with `prefix`, in order, until it breaks.
    pub fn scan(
        &self,
        db: &dyn Db,
        prefix: &[u8],
        mut visit: impl FnMut(&[u8]) -> ControlFlow<()>,
    ) -> DbResult<()> {
        let snapshot = self.snapshot();
        let runs = snapshot.iter().filter(|run| self.may_start_with(run, prefix));
        let mut merge = Merge::new(self, db, runs, prefix)?;
        while let Some(row) = merge.next()? {
            if !row.starts_with(prefix) || (!self.is_removal(row) && visit(row).is_break()) {
                break;
            }
        }
        Ok(())
    }
}

/// Reads one run from a key on.
struct Cursor {
    number: u32,
    blocks: VecDeque<Vec<u8>>,
    /// Offset in the first block.
    at: usize,
    /// Database key of the last block read; `None` if there are no more.
    last: Option<Vec<u8>>,
}

/// Rows of several runs, newest first, in one order.
pub(super) struct Merge<'a, C: Codec> {
    tiers: &'a Tiers<C>,
    db: &'a dyn Db,
    cursors: Vec<Cursor>,
    row: Vec<u8>,
}

impl<'a, C: Codec> Merge<'a, C> {
    pub(super) fn new<'r>(
        tiers: &'a Tiers<C>,
        db: &'a dyn Db,
        runs: impl Iterator<Item = &'r Arc<Run>>,
        from: &[u8],
    ) -> DbResult<Merge<'a, C>> {
        let mut merge = Merge { tiers, db, cursors: Vec::new(), row: Vec::new() };
        for run in runs {
            let last = Some(run_key(b'r', run.number, &[]));
            let mut cursor = Cursor { number: run.number, blocks: VecDeque::new(), at: 0, last };
            let start = db.at_or_below(tiers.layout.table, &run_key(b'r', run.number, from))?;
            if let Some((key, block)) =
                start.filter(|(key, _)| key.starts_with(&run_key(b'r', run.number, &[])))
            {
                let block = tiers.decoded(&block)?;
                cursor.at = lower_bound(&block, tiers.layout.row_len, from) * tiers.layout.row_len;
                cursor.blocks.push_back(block);
                cursor.last = Some(key);
            }
            merge.cursors.push(cursor);
        }
        for i in 0..merge.cursors.len() {
            merge.settle(i)?;
        }
        Ok(merge)
    }

    /// Moves a cursor to a row, unless its run has ended.
    fn settle(&mut self, i: usize) -> DbResult<()> {
        let cursor = &mut self.cursors[i];
        if cursor.blocks.front().is_some_and(|block| cursor.at >= block.len()) {
            cursor.blocks.pop_front();
            cursor.at = 0;
        }
        if !cursor.blocks.is_empty() {
            return Ok(());
        }
        let Some(mut after) = cursor.last.take() else { return Ok(()) };
        after.push(0);
        let prefix = run_key(b'r', cursor.number, &[]);
        let (mut blocks, mut end, mut failed) = (Vec::new(), None, None);
        self.db.scan_prefix(self.tiers.layout.table, &prefix, &after, &mut |key, block| {
            match self.tiers.decoded(block) {
                Ok(block) => blocks.push(block),
                Err(e) => {
                    failed = Some(e);
                    return false;
                }
            }
            if blocks.len() == BLOCKS_AHEAD {
                end = Some(key.to_vec());
            }
            blocks.len() < BLOCKS_AHEAD
        })?;
        cursor.last = end;
        cursor.blocks.extend(blocks);
        failed.map_or(Ok(()), Err)
    }

    fn key(&self, i: usize) -> Option<&[u8]> {
        let cursor = &self.cursors[i];
        cursor.blocks.front().map(|block| &block[cursor.at..cursor.at + self.tiers.layout.key_len])
    }

    pub(super) fn next(&mut self) -> DbResult<Option<&[u8]>> {
        let Layout { row_len, key_len, .. } = self.tiers.layout;
        // The first among equals is the newest.
        let least = (0..self.cursors.len())
            .filter(|&i| self.key(i).is_some())
            .min_by(|&a, &b| self.key(a).cmp(&self.key(b)));
        let Some(newest) = least else { return Ok(None) };
        let Cursor { blocks, at, .. } = &self.cursors[newest];
        self.row.clear();
        self.row.extend_from_slice(&blocks[0][*at..*at + row_len]);
        for i in newest..self.cursors.len() {
            if self.key(i) == Some(&self.row[..key_len]) {
                self.cursors[i].at += row_len;
                self.settle(i)?;
            }
        }
        Ok(Some(&self.row))
    }
}
