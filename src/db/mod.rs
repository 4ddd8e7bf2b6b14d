//! The index database: ordered tables of byte strings, atomic batches, a durable flush.
//!
//! Invariants: everything in here can be rebuilt from packs and stubs, and is never the only copy of
//! anything. So losing it costs time, never data.
//!
//! [`IndexDb`] keeps it on disk: most of it in [`SledDb`], the only code that knows sled, and the blocks of large tables
//! in files. [`MemDb`] keeps it in memory, for tests and for read-only work with a damaged index. [`Runs`] stores many
//! small rows in few keys; [`Tiers`] does so for very many rows whose keys are hashes.

mod block_files;
mod compaction;
mod filter;
mod index_db;
mod mem;
mod redo;
mod runs;
mod shadow;
mod sled;
mod sled_threads;
mod table;
mod tiers;

pub use compaction::copy;
pub use index_db::IndexDb;
pub use mem::MemDb;
pub use runs::{Codec, Layout, Plain, Runs};
pub use shadow::Shadow;
pub use sled::SledDb;
pub use table::Table;
pub use tiers::{Merging, Tiers};

use crate::env::Refusal;
use std::path::PathBuf;

/// Errors of the index database. None is a loss of user data: the index can be rebuilt.
#[derive(Debug, thiserror::Error)]
pub enum DbError {
    /// The database could not be opened, read or written.
    #[error("index {path}: {reason}")]
    Broken {
        /// Path of the database.
        path: PathBuf,
        /// The database's message.
        reason: String,
    },
    /// The disk has no space for changes. The content can be read.
    #[error("index {path}: no space left")]
    Full {
        /// Path of the database.
        path: PathBuf,
    },
    /// The system lacks descriptors or memory, or denies access. The content is not damaged.
    #[error("index {path}: {source}")]
    Refused {
        /// Path of the database.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// Another process has it open.
    #[error("index {path} is in use by another process")]
    Locked {
        /// Path of the database.
        path: PathBuf,
    },
    /// A value has an unexpected form.
    #[error("index row in table {table:?} is damaged: {reason}")]
    Row {
        /// The table.
        table: Table,
        /// The expected form.
        reason: &'static str,
    },
}

impl DbError {
    /// Returns the machine's refusal behind this error; `None` if the error can mean damage.
    pub fn refusal(&self) -> Option<Refusal> {
        match self {
            DbError::Refused { source, .. } => Refusal::of(source),
            DbError::Full { .. } => Some(Refusal::NO_SPACE),
            _ => None,
        }
    }
}

/// Result of a database operation.
pub type DbResult<T> = Result<T, DbError>;

/// A value in the database: shared, so that reading it copies nothing.
pub type Value = std::sync::Arc<[u8]>;

/// Changes per batch where only single changes must be atomic. A large batch is written slowly, and blocks all
/// other writers meanwhile.
pub const BATCH_CHANGES: usize = 32;

/// Changes that become visible together or not at all.
#[derive(Debug, Default)]
pub struct Batch {
    changes: Vec<(Vec<u8>, Option<Vec<u8>>)>,
}

impl Batch {
    /// An empty batch.
    pub fn new() -> Batch {
        Batch::default()
    }

    /// Sets `key` to `value`.
    pub fn put(&mut self, table: Table, key: &[u8], value: Vec<u8>) {
        self.changes.push((full_key(table, key), Some(value)));
    }

    /// Removes `key`; a missing key is no error.
    pub fn remove(&mut self, table: Table, key: &[u8]) {
        self.changes.push((full_key(table, key), None));
    }

    /// Whether there are no changes.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// Returns the bytes of its keys and values.
    pub fn bytes(&self) -> usize {
        let bytes =
            |(key, value): &(Vec<u8>, Option<Vec<u8>>)| key.len() + value.as_ref().map_or(0, Vec::len);
        self.changes.iter().map(bytes).sum()
    }

    /// Appends the changes of `other`.
    pub fn append(&mut self, mut other: Batch) {
        self.changes.append(&mut other.changes);
    }
}

/// Result of a compaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compacted {
    /// Too little to gain.
    NotWorth,
    /// It was cancelled, too much changed meanwhile, or other threads used the database all the time.
    GivenUp,
    /// Done. Sizes in bytes on disk.
    Done {
        /// Size before.
        before: u64,
        /// Size now.
        now: u64,
    },
}

/// An ordered key-value database. All methods may be called from many threads.
pub trait Db: Send + Sync {
    /// Returns the value at `key`.
    fn get(&self, table: Table, key: &[u8]) -> DbResult<Option<Value>>;

    /// Returns the entry with the greatest key that is not above `key`.
    fn at_or_below(&self, table: Table, key: &[u8]) -> DbResult<Option<(Vec<u8>, Value)>>;

    /// Calls `visit` with each entry from `from` on, in key order, until it returns false.
    fn scan(&self, table: Table, from: &[u8], visit: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> DbResult<()>;

    /// Like [`Db::scan`], with the entries only whose keys begin with `prefix`.
    fn scan_prefix(
        &self,
        table: Table,
        prefix: &[u8],
        from: &[u8],
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> DbResult<()> {
        self.scan(table, from, &mut |key, value| key.starts_with(prefix) && visit(key, value))
    }

    /// Calls `visit` with each key from `from` on, in order, until it returns false. Reads no values of size.
    fn scan_keys(&self, table: Table, from: &[u8], visit: &mut dyn FnMut(&[u8]) -> bool) -> DbResult<()> {
        self.scan(table, from, &mut |key, _| visit(key))
    }

    /// Applies all changes of a batch, atomically. Durable only after [`Db::flush`].
    fn apply(&self, batch: Batch) -> DbResult<()>;

    /// Makes everything applied before durable: it survives a power cut after this call.
    fn flush(&self) -> DbResult<()>;

    /// Returns the bytes that the database takes on disk.
    fn bytes_on_disk(&self) -> u64;

    /// Compacts the database if much of its disk space is unused. Other threads may read and change it
    /// meanwhile; they wait for a moment at the end. Cancelled when `keep_going` returns false.
    fn compact(&self, keep_going: &dyn Fn() -> bool) -> DbResult<Compacted> {
        let _ = keep_going;
        Ok(Compacted::NotWorth)
    }

    /// Sets one value.
    fn put(&self, table: Table, key: &[u8], value: &[u8]) -> DbResult<()> {
        let mut batch = Batch::new();
        batch.put(table, key, value.to_vec());
        self.apply(batch)
    }

    /// Removes every entry of `table` whose key begins with `prefix`, a few at a time.
    fn clear(&self, table: Table, prefix: &[u8]) -> DbResult<()> {
        let mut from = prefix.to_vec();
        loop {
            let (mut batch, mut room) = (Batch::new(), BATCH_CHANGES);
            self.scan_keys(table, &from.clone(), &mut |key| {
                let goes = key.starts_with(prefix) && room > 0;
                if goes {
                    batch.remove(table, key);
                    from = key.to_vec();
                    room -= 1;
                }
                goes
            })?;
            if batch.is_empty() {
                return Ok(());
            }
            self.apply(batch)?;
        }
    }
}

fn full_key(table: Table, key: &[u8]) -> Vec<u8> {
    let mut full = Vec::with_capacity(1 + key.len());
    full.push(table as u8);
    full.extend_from_slice(key);
    full
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keeps_its_contract(db: &dyn Db) {
        let mut batch = Batch::new();
        for key in [b"b", b"d", b"f"] {
            batch.put(Table::Chunks, key, key.to_vec());
        }
        batch.put(Table::Contained, b"z", vec![1]);
        batch.put(Table::Chunks, b"x", vec![]);
        batch.remove(Table::Chunks, b"x");
        db.apply(batch).unwrap();
        db.flush().unwrap();
        assert_eq!(db.get(Table::Chunks, b"d").unwrap().as_deref(), Some(&b"d"[..]));
        assert_eq!(db.get(Table::Chunks, b"x").unwrap(), None);
        assert_eq!(db.get(Table::Contained, b"d").unwrap(), None);
        let below = |key: &[u8]| db.at_or_below(Table::Chunks, key).unwrap().map(|(key, _)| key);
        assert_eq!(below(b"a"), None, "the table before it must not leak in");
        assert_eq!(below(b"d"), Some(b"d".to_vec()));
        assert_eq!(below(b"e"), Some(b"d".to_vec()));
        assert_eq!(below(b"zz"), Some(b"f".to_vec()));
        let mut seen = Vec::new();
        db.scan(Table::Chunks, b"c", &mut |key, _| {
            seen.push(key.to_vec());
            true
        })
        .unwrap();
        assert_eq!(seen, [b"d", b"f"]);
        db.clear(Table::Chunks, &[]).unwrap();
        assert_eq!(below(b"zz"), None);
        assert!(db.get(Table::Contained, b"z").unwrap().is_some());
    }

    #[test]
    fn memory_keeps_the_contract() {
        keeps_its_contract(&MemDb::new());
    }

    #[test]
    fn sled_keeps_the_contract_and_the_data() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("index");
        let db = SledDb::open(&path, 16 << 20).unwrap();
        keeps_its_contract(&db);
        assert!(matches!(SledDb::open(&path, 16 << 20), Err(DbError::Locked { .. })));
        drop(db);
        let db = SledDb::open(&path, 16 << 20).unwrap();
        assert!(db.get(Table::Contained, b"z").unwrap().is_some());
    }

    /// sled's lock outlives the database by a moment: without the wait 2 of 4 stores opened as soon as they were made
    /// were refused.
    #[test]
    fn a_database_just_closed_can_be_opened_again() {
        let dir = tempfile::tempdir().unwrap();
        for _ in 0..100 {
            drop(SledDb::open(&dir.path().join("index"), 16 << 20).unwrap());
        }
    }

    /// Four threads, each with as many changes as a bulk merge, while others scan. Not seen to fail with sled left to
    /// itself: what made it wait for ever was a busy mount.
    #[test]
    fn many_large_changes_at_once_come_to_an_end() {
        let dir = tempfile::tempdir().unwrap();
        let db = std::sync::Arc::new(SledDb::open(&dir.path().join("index"), 2 << 20).unwrap());
        let (done, finished) = std::sync::mpsc::channel();
        for thread in 0..4u8 {
            let (db, done) = (db.clone(), done.clone());
            std::thread::spawn(move || {
                for round in 0..40u32 {
                    let mut batch = Batch::new();
                    for i in 0..256u32 {
                        let key = [[thread].as_slice(), &i.to_be_bytes()].concat();
                        batch.put(Table::Chunks, &key, vec![round as u8; 2048]);
                    }
                    db.apply(batch).unwrap();
                    let mut left = 500;
                    let scan = db.scan(Table::Chunks, &[thread ^ 1], &mut |_, _| {
                        left -= 1;
                        left > 0
                    });
                    scan.unwrap();
                }
                done.send(thread).unwrap();
            });
        }
        for _ in 0..4 {
            let ended = finished.recv_timeout(std::time::Duration::from_secs(120));
            ended.expect("sled goes on");
        }
        assert!(db.get(Table::Chunks, &[3, 0, 0, 0, 0]).unwrap().is_some_and(|value| *value == [39; 2048]));
    }

    /// Whatever sled makes of damage, it comes out as an error or as missing rows, never as a panic.
    #[test]
    fn a_damaged_sled_does_not_panic() {
        for (file, at) in [("conf", 0), ("db", 0), ("db", 600), ("db", 5000)] {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("index");
            let db = SledDb::open(&path, 16 << 20).unwrap();
            for i in 0..2000u32 {
                db.put(Table::Chunks, &i.to_be_bytes(), &[7; 100]).unwrap();
            }
            db.flush().unwrap();
            drop(db);
            let mut bytes = std::fs::read(path.join(file)).unwrap();
            let end = bytes.len().min(at + 100_000);
            bytes.get_mut(at..end).unwrap_or_default().fill(0xa5);
            std::fs::write(path.join(file), bytes).unwrap();
            let Ok(db) = SledDb::open(&path, 16 << 20) else {
                continue;
            };
            for i in 0..2000u32 {
                let _ = db.get(Table::Chunks, &i.to_be_bytes());
            }
        }
    }
}
