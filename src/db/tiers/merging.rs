//! Adding runs to a table, and merging them by size.

use super::merge::Merge;
use super::run::Run;
use super::writer::RunWriter;
use super::{MANIFEST, Merging, Tiers, encode_manifest, lock};
use crate::db::{Codec, Db, DbResult};
use std::sync::{Arc, MutexGuard};

/// Fewer runs are not worth merging.
const RUNS_MERGED_MIN: usize = 4;

/// With this many runs, a writer waits for the running merge.
const RUNS_MAX: usize = 48;

/// Rows of a run of the smallest size class.
pub(super) const CLASS_ROWS: u64 = 1 << 16;

impl<C: Codec> Tiers<C> {
    /// Adds at most `count` rows, in ascending order of their keys, no key twice; durable on return. They
    /// replace rows with the same key. Call [`Tiers::merge_due`] afterwards.
    pub fn add<R: AsRef<[u8]>>(
        &self,
        db: &dyn Db,
        count: u64,
        mut rows: impl Iterator<Item = R>,
    ) -> DbResult<()> {
        if self.snapshot().len() >= RUNS_MAX {
            // Another thread is merging, or should be.
            self.merge_once(db, &lock(&self.merging))?;
        }
        let run = self.written(db, count, &mut |writer| {
            for row in &mut rows {
                writer.push(row.as_ref())?;
            }
            Ok(())
        })?;
        self.replace(db, &[], run)
    }

    /// Writes a new run of at most `count` rows from `write`. After an error nothing of it is left, if
    /// possible.
    fn written(
        &self,
        db: &dyn Db,
        count: u64,
        write: &mut dyn FnMut(&mut RunWriter<'_, C>) -> DbResult<()>,
    ) -> DbResult<Run> {
        let mut writer = RunWriter::new(self, db, count);
        let number = writer.number();
        let run = write(&mut writer).and_then(|()| writer.finish());
        if run.is_err() {
            let _ = self.delete(db, b'r', number).and_then(|()| self.delete(db, b'f', number));
        }
        run
    }

    /// Merges runs while that pays, unless another thread is doing so.
    pub fn merge_due(&self, db: &dyn Db) -> DbResult<()> {
        if let Ok(merging) = self.merging.try_lock() {
            while self.merge_once(db, &merging)? {}
        }
        Ok(())
    }

    /// Merges all runs into one, and calls `visit` with every row.
    pub fn merge_all(&self, db: &dyn Db, visit: &mut dyn FnMut(&[u8])) -> DbResult<()> {
        let merging = lock(&self.merging);
        let runs = self.snapshot().to_vec();
        self.merge_runs(db, runs, &merging, &mut |row| {
            visit(row);
            true
        })
    }

    /// Merges all runs into one, without the rows that `stays` refuses; returns how many it dropped.
    pub fn retain(&self, db: &dyn Db, stays: impl Fn(&[u8]) -> bool) -> DbResult<u64> {
        let merging = lock(&self.merging);
        let (runs, mut gone) = (self.snapshot().to_vec(), 0);
        if !runs.is_empty() {
            self.merge_runs(db, runs, &merging, &mut |row| {
                let stays = stays(row);
                gone += u64::from(!stays);
                stays
            })?;
        }
        Ok(gone)
    }

    fn merge_once(&self, db: &dyn Db, merging: &MutexGuard<'_, ()>) -> DbResult<bool> {
        let runs = self.snapshot();
        let rows: Vec<_> = runs.iter().map(|run| run.rows).collect();
        let (due, least) = match self.merge {
            Merging::Doubling => (runs_due(&rows), RUNS_MERGED_MIN),
            Merging::Classes(factor) => (runs_of_class(&rows, factor), factor as usize),
        };
        if due < least {
            return Ok(false);
        }
        let due = runs[..due].to_vec();
        drop(runs);
        self.merge_runs(db, due, merging, &mut |_| true)?;
        Ok(true)
    }

    /// Replaces `old`, which are neighbours, with one run of the rows that `stays` accepts.
    fn merge_runs(
        &self,
        db: &dyn Db,
        old: Vec<Arc<Run>>,
        _: &MutexGuard<'_, ()>,
        stays: &mut dyn FnMut(&[u8]) -> bool,
    ) -> DbResult<()> {
        let mut merge = Merge::new(self, db, old.iter(), &[])?;
        // Below the oldest run there is nothing to hide.
        let oldest =
            self.snapshot().last().is_none_or(|last| old.iter().any(|run| run.number == last.number));
        let run = self.written(db, old.iter().map(|run| run.rows).sum(), &mut |writer| {
            while let Some(row) = merge.next()? {
                let stays = if self.is_removal(row) { !oldest } else { stays(row) };
                if stays {
                    writer.push(row)?;
                }
            }
            Ok(())
        })?;
        drop(merge);
        self.replace(db, &old, run)?;
        lock(&self.garbage).extend(old);
        self.collect_garbage(db)
    }

    /// Makes a written run current, in the place of `old` or as the newest.
    fn replace(&self, db: &dyn Db, old: &[Arc<Run>], run: Run) -> DbResult<()> {
        db.flush()?;
        {
            let _changing = lock(&self.changing);
            let now = self.snapshot();
            let mut runs = Vec::with_capacity(now.len() + 1);
            let at = old.first().and_then(|first| now.iter().position(|run| Arc::ptr_eq(run, first)));
            let (newer, rest) = now.split_at(at.unwrap_or(0));
            runs.extend_from_slice(newer);
            runs.extend((run.rows > 0).then(|| Arc::new(run)));
            runs.extend_from_slice(&rest[old.len()..]);
            db.put(self.layout.table, MANIFEST, &encode_manifest(&runs))?;
            db.flush()?;
            self.set(runs);
        }
        Ok(())
    }

    /// Deletes merged runs without readers.
    fn collect_garbage(&self, db: &dyn Db) -> DbResult<()> {
        let unread: Vec<Arc<Run>> =
            lock(&self.garbage).extract_if(.., |run| Arc::strong_count(run) == 1).collect();
        for run in unread {
            self.delete(db, b'r', run.number)?;
            self.delete(db, b'f', run.number)?;
        }
        Ok(())
    }
}

/// Returns how many of the newest runs to merge, given their rows: while the next is not larger than all
/// before it.
pub(super) fn runs_due(rows: &[u64]) -> usize {
    let mut sum = 0;
    rows.iter()
        .take_while(|&&rows| {
            let fits = sum == 0 || rows <= sum;
            sum += rows;
            fits
        })
        .count()
}

/// Returns how many of the newest runs, given their rows, belong to the newest one's class or below.
pub(super) fn runs_of_class(rows: &[u64], factor: u64) -> usize {
    let class = |rows: u64| (rows / CLASS_ROWS).checked_ilog(factor.max(2)).unwrap_or(0);
    let newest = rows.first().map_or(0, |&rows| class(rows));
    rows.iter().take_while(|&&rows| class(rows) <= newest).count()
}
