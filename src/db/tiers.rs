//! Many rows keyed by hash, written in bulk and never changed in place: a log-structured merge tree in the
//! database.
//!
//! [`Runs`](super::Runs) rewrites each block that a bulk of rows falls into. Rows with hash keys fall into
//! all blocks, so filling such a table is quadratic. Here each bulk becomes a **run**: sorted rows in blocks
//! that are written once, with a filter of the keys. Runs are merged by size ([`Merging`]), so that a row is
//! rewritten a few times in its life and there are few runs: about the logarithm of the rows.
//!
//! ```text
//! 'm'                                      -> manifest: the current runs, newest first
//! 'r' | number of the run 4 | its first key -> block: rows in the table's codec
//! 'f' | number of the run 4 | part 4        -> up to FILTER_PART_BYTES of the run's filter
//! ```
//!
//! Invariants:
//! - A run named by the manifest is complete and durable before the manifest is. No number is reused while
//!   anything of it exists.
//! - Among rows with one key the newest run's counts. A row whose bytes after the key are all 0xff marks a
//!   removed key. If the key is the whole row there are no such rows, and [`Tiers::retain`] removes.
//! - A merged run is deleted only when no reader has it. Leftovers of a crash, and of runs that were never
//!   named, are deleted on open.
//!
//! [`IndexDb`](super::IndexDb) keeps the blocks in files, one for each run.
//!
//! Locks: `merging`, then `changing`, then `runs`. Memory: filters, within a limit; one batch; a few blocks
//! of each run in a merge.

mod each;
mod merge;
mod merging;
mod run;
#[cfg(test)]
mod tests;
mod writer;

use self::run::{Run, lower_bound, run_key};
use super::filter::Filter;
use super::{Codec, Db, DbError, DbResult, Layout, Plain};
use std::borrow::Cow;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

const FILTER_BITS_MAX: u64 = 10;
/// A filter with fewer bits a key is not worth asking.
const FILTER_BITS_MIN: u64 = 3;
const MANIFEST: &[u8] = b"m";
const MANIFEST_VERSION: u8 = 1;

/// Newest first. A holder keeps its runs from being deleted.
type Snapshot = Arc<Vec<Arc<Run>>>;

/// When runs are merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Merging {
    /// When the newer ones together are as large as the next: few runs.
    Doubling,
    /// When one size class has this many runs. Each class is this many times as large as the one before: few rewrites.
    Classes(u64),
}

/// A table of rows whose keys begin with a hash.
#[derive(Debug)]
pub struct Tiers<C: Codec = Plain> {
    layout: Layout,
    merge: Merging,
    codec: PhantomData<fn() -> C>,
    /// Limit for filters in memory, in bytes.
    filter_bytes_max: u64,
    /// Leading bytes of a key that filters know.
    filter_key_len: usize,
    runs: RwLock<Snapshot>,
    next_number: AtomicU32,
    /// Held while the manifest changes.
    changing: Mutex<()>,
    /// Held while runs are merged.
    merging: Mutex<()>,
    /// Merged runs, perhaps still read.
    garbage: Mutex<Vec<Arc<Run>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<C: Codec> Tiers<C> {
    /// Creates an empty table; [`Tiers::load`] reads what a database has. Filters take at most about
    /// `filter_bytes_max`; without a filter each run costs a look-up.
    pub fn new(layout: Layout, merge: Merging, filter_bytes_max: u64) -> Tiers<C> {
        assert!(layout.key_len <= layout.row_len);
        Tiers {
            layout,
            merge,
            codec: PhantomData,
            filter_bytes_max,
            filter_key_len: layout.key_len.min(Filter::KEY_BYTES),
            runs: RwLock::default(),
            next_number: AtomicU32::new(1),
            changing: Mutex::default(),
            merging: Mutex::default(),
            garbage: Mutex::default(),
        }
    }

    /// Lets filters know only the first `key_len` bytes of keys: for tables that are searched by these.
    pub fn with_filter_key(mut self, key_len: usize) -> Tiers<C> {
        self.filter_key_len = key_len.min(self.filter_key_len);
        self
    }

    /// Reads the list of runs and their filters; deletes leftovers of a crash.
    ///
    /// # Errors
    ///
    /// [`DbError::Row`] if the table has another form; [`Tiers::clear`] makes it usable.
    pub fn load(&self, db: &dyn Db) -> DbResult<()> {
        let table = self.layout.table;
        let bad = DbError::Row { table, reason: "a list of runs" };
        let Some(manifest) = db.get(table, MANIFEST)? else {
            let mut empty = true;
            db.scan_keys(table, &[], &mut |_| {
                empty = false;
                false
            })?;
            return if empty { Ok(()) } else { Err(bad) };
        };
        let listed = decode_manifest(&manifest).ok_or(bad)?;
        let mut room = self.filter_bytes_max;
        let mut runs = Vec::with_capacity(listed.len());
        for &(number, rows) in &listed {
            let filter = self.load_filter(db, number, room)?;
            room -= filter.as_ref().map_or(0, |filter| filter.bytes().len() as u64);
            // A run that was cut short ends the load, and not a look-up much later.
            if self.block_at(db, number, &[0xff; 64])?.is_none() {
                return Err(DbError::Row { table, reason: "the end of a run" });
            }
            runs.push(Arc::new(Run { number, rows, filter }));
        }
        let mut last = self.delete_strays(db, b'r', &listed)?;
        last = last.max(self.delete_strays(db, b'f', &listed)?);
        self.next_number.store(last + 1, Ordering::Relaxed);
        self.set(runs);
        Ok(())
    }

    fn load_filter(&self, db: &dyn Db, number: u32, room: u64) -> DbResult<Option<Filter>> {
        let mut bytes = Vec::new();
        let prefix = run_key(b'f', number, &[]);
        db.scan(self.layout.table, &prefix, &mut |key, part| {
            let goes_on = key.starts_with(&prefix) && (bytes.len() + part.len()) as u64 <= room;
            if goes_on {
                bytes.extend_from_slice(part);
            } else if key.starts_with(&prefix) {
                bytes.clear();
            }
            goes_on
        })?;
        bytes.shrink_to_fit();
        Ok(Filter::from_bytes(bytes))
    }

    /// Deletes data of unlisted runs; returns the greatest number found.
    fn delete_strays(&self, db: &dyn Db, part: u8, listed: &[(u32, u64)]) -> DbResult<u32> {
        let mut from = 0;
        let mut last = 0;
        while let Some(number) = self.next_run(db, part, from)? {
            if !listed.iter().any(|(listed, _)| *listed == number) {
                self.delete(db, part, number)?;
            }
            last = number;
            let Some(next) = number.checked_add(1) else { break };
            from = next;
        }
        Ok(last)
    }

    /// Returns the number of the first run, from `from` on, that has data.
    fn next_run(&self, db: &dyn Db, part: u8, from: u32) -> DbResult<Option<u32>> {
        let mut found = None;
        db.scan_keys(self.layout.table, &run_key(part, from, &[]), &mut |key| {
            found = key.strip_prefix(&[part]).and_then(<[u8]>::first_chunk).map(|n| u32::from_be_bytes(*n));
            false
        })?;
        Ok(found)
    }

    fn delete(&self, db: &dyn Db, part: u8, number: u32) -> DbResult<()> {
        db.clear(self.layout.table, &run_key(part, number, &[]))
    }

    fn snapshot(&self) -> Snapshot {
        Arc::clone(&self.runs.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn set(&self, runs: Vec<Arc<Run>>) {
        *self.runs.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(runs);
    }

    /// Removes every row.
    pub fn clear(&self, db: &dyn Db) -> DbResult<()> {
        let _merging = lock(&self.merging);
        let _changing = lock(&self.changing);
        self.set(Vec::new());
        lock(&self.garbage).clear();
        // After a crash an empty list is found, and rows without a list are deleted at the next load.
        db.put(self.layout.table, MANIFEST, &encode_manifest(&[]))?;
        [&b"f"[..], b"r", b""].into_iter().try_for_each(|part| db.clear(self.layout.table, part))
    }

    /// Returns the row with `key`.
    pub fn find(&self, db: &dyn Db, key: &[u8]) -> DbResult<Option<Vec<u8>>> {
        let Layout { row_len, key_len, .. } = self.layout;
        let hash = self.hash_of(key);
        for run in self.snapshot().iter().filter(|run| run.may_contain(&hash)) {
            let Some(block) = self.block_at(db, run.number, key)? else { continue };
            let at = lower_bound(&block, row_len, key) * row_len;
            if let Some(row) = block.get(at..at + row_len).filter(|row| row[..key_len] == *key) {
                return Ok((!self.is_removal(row)).then(|| row.to_vec()));
            }
        }
        Ok(None)
    }

    /// Returns the block of a run that would contain `key`.
    fn block_at(&self, db: &dyn Db, number: u32, key: &[u8]) -> DbResult<Option<Vec<u8>>> {
        let found = db.at_or_below(self.layout.table, &run_key(b'r', number, key))?;
        match found.filter(|(at, _)| at.starts_with(&run_key(b'r', number, &[]))) {
            Some((_, block)) => self.decoded(&block).map(Some),
            None => Ok(None),
        }
    }

    /// Returns the rows of a block.
    fn decoded(&self, block: &[u8]) -> DbResult<Vec<u8>> {
        let mut rows = Vec::with_capacity(block.len());
        let decoded = C::decode(block, self.layout.row_len, &mut rows).filter(|()| !rows.is_empty());
        decoded.ok_or(DbError::Row { table: self.layout.table, reason: "a block of sorted rows" })?;
        Ok(rows)
    }

    fn is_removal(&self, row: &[u8]) -> bool {
        let value = &row[self.layout.key_len..];
        !value.is_empty() && value.iter().all(|&byte| byte == 0xff)
    }

    /// Returns the hash that filters use for a key, which may be short.
    fn hash_of<'k>(&self, row: &'k [u8]) -> Cow<'k, [u8]> {
        match self.filter_key_len {
            Filter::KEY_BYTES.. => Cow::Borrowed(row),
            key_len => Cow::Owned(widened(&row[..key_len])),
        }
    }

    /// Whether a run may have a row that starts with `prefix`, by its filter.
    fn may_start_with(&self, run: &Run, prefix: &[u8]) -> bool {
        run.filter.is_none() || prefix.len() < self.filter_key_len || run.may_contain(&self.hash_of(prefix))
    }

    /// Returns the bits a key for the filter of a new run, so that all filters stay within their limit while
    /// both a run and its replacement have one.
    fn filter_bits(&self, rows: u64) -> u64 {
        let all: u64 = self.snapshot().iter().map(|run| run.rows).sum::<u64>().max(rows);
        let bits = self.filter_bytes_max * 8 / (2 * all).max(1);
        if bits < FILTER_BITS_MIN { 0 } else { bits.min(FILTER_BITS_MAX) }
    }
}

/// Makes 16 bytes of hash from a short one.
fn widened(key: &[u8]) -> Vec<u8> {
    let number = key.iter().take(8).fold(0u64, |number, &byte| number << 8 | u64::from(byte));
    let mix = |x: u64| {
        let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    };
    let first = mix(number.wrapping_add(0x9e37_79b9_7f4a_7c15));
    [first.to_le_bytes(), mix(first).to_le_bytes()].concat()
}

fn encode_manifest(runs: &[Arc<Run>]) -> Vec<u8> {
    let mut out = vec![MANIFEST_VERSION];
    for run in runs {
        out.extend_from_slice(&run.number.to_be_bytes());
        out.extend_from_slice(&run.rows.to_be_bytes());
    }
    out
}

fn decode_manifest(value: &[u8]) -> Option<Vec<(u32, u64)>> {
    let (&MANIFEST_VERSION, runs) = value.split_first()? else { return None };
    let run = |bytes: &[u8]| {
        let (number, rows) = bytes.split_first_chunk()?;
        Some((u32::from_be_bytes(*number), u64::from_be_bytes(rows.try_into().ok()?)))
    };
    runs.chunks(12).map(run).collect()
}
