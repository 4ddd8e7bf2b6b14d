use super::{Batch, Db, DbError, DbResult, Table, Value, full_key};
use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

/// A database on disk, in sled 0.34.
///
/// sled's own `flush` calls `sync_file_range`, which survives a killed process but not a power cut; so
/// [`Db::flush`] here fsyncs sled's file and its directory too. sled panics on some damage: every call
/// into it is caught and comes out as [`DbError::Broken`].
pub struct SledDb {
    path: PathBuf,
    db: sled::Db,
    cache_bytes: u64,
    /// Whether the database was larger than its cache when that was last looked at, at open and with each flush.
    beyond_cache: AtomicBool,
}

/// How often sled writes out what was applied, without being asked.
const FLUSH_INTERVAL_MS: u64 = 500;
/// sled's cache has 256 parts, and looks at what a part holds only after 64 accesses to pages in it. Look-ups all
/// over a large table would so make it keep 16,384 pages of some 40 KiB whatever its capacity (685 MiB were seen with
/// 32 MiB asked for), if each page that is read were not accessed some more. An access of a page in memory takes
/// about a microsecond. Scans do without: shedding their pages early seemed to make merging slower.
const ACCESSES_MORE: usize = 7;

impl SledDb {
    /// Opens the database in directory `path`, made if missing, with about `cache_bytes` of cache.
    pub fn open(path: &Path, cache_bytes: u64) -> DbResult<SledDb> {
        let open = || {
            sled::Config::new()
                .path(path)
                .cache_capacity(cache_bytes)
                .flush_every_ms(Some(FLUSH_INTERVAL_MS))
                .open()
        };
        match catch_unwind(open) {
            Ok(Ok(db)) => {
                let beyond_cache = AtomicBool::new(false);
                let db = SledDb { path: path.to_owned(), db, cache_bytes, beyond_cache };
                db.look_at_size();
                Ok(db)
            }
            Ok(Err(sled::Error::Io(e))) if is_lock_conflict(&e) => {
                Err(DbError::Locked { path: path.to_owned() })
            }
            Ok(Err(e)) => Err(broken(path, &e)),
            Err(panic) => Err(panicked(path, panic)),
        }
    }

    /// Accesses the page of `key` again, if not all pages have room in the cache: see [`ACCESSES_MORE`].
    fn access_more(&self, key: &[u8]) -> sled::Result<()> {
        let times = if self.beyond_cache.load(Ordering::Relaxed) { ACCESSES_MORE } else { 0 };
        (0..times).try_for_each(|_| self.db.get(key).map(drop))
    }

    fn look_at_size(&self) {
        self.beyond_cache.store(self.bytes_on_disk() > self.cache_bytes, Ordering::Relaxed);
    }

    fn guard<T>(&self, work: impl FnOnce() -> sled::Result<T>) -> DbResult<T> {
        match catch_unwind(AssertUnwindSafe(work)) {
            Ok(result) => result.map_err(|e| broken(&self.path, &e)),
            Err(panic) => Err(panicked(&self.path, panic)),
        }
    }
}

/// sled reports a lock held elsewhere as an I/O error whose only mark is its text.
fn is_lock_conflict(error: &std::io::Error) -> bool {
    error.kind() == std::io::ErrorKind::WouldBlock || error.to_string().contains("could not acquire lock")
}

fn broken(path: &Path, error: &dyn std::error::Error) -> DbError {
    DbError::Broken { path: path.to_owned(), reason: error.to_string() }
}

fn panicked(path: &Path, panic: Box<dyn std::any::Any + Send>) -> DbError {
    let text = panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("it panicked");
    DbError::Broken { path: path.to_owned(), reason: text.to_owned() }
}

impl Db for SledDb {
    fn get(&self, table: Table, key: &[u8]) -> DbResult<Option<Value>> {
        let value = self.guard(|| self.db.get(full_key(table, key)))?;
        Ok(value.map(|value| Value::from(&value[..])))
    }

    fn at_or_below(&self, table: Table, key: &[u8]) -> DbResult<Option<(Vec<u8>, Value)>> {
        let range = vec![table as u8]..=full_key(table, key);
        let entry = self.guard(|| {
            let entry = self.db.range(range).next_back().transpose()?;
            if let Some((key, _)) = &entry {
                self.access_more(key)?;
            }
            Ok(entry)
        })?;
        Ok(entry.map(|(key, value)| (key[1..].to_vec(), Value::from(&value[..]))))
    }

    fn scan(&self, table: Table, from: &[u8], visit: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> DbResult<()> {
        self.guard(|| {
            for entry in self.db.range(full_key(table, from)..vec![table as u8 + 1]) {
                let (key, value) = entry?;
                if !visit(&key[1..], &value) {
                    break;
                }
            }
            Ok(())
        })
    }

    fn apply(&self, batch: Batch) -> DbResult<()> {
        let mut changes = sled::Batch::default();
        for (key, value) in batch.changes {
            match value {
                Some(value) => changes.insert(key, value),
                None => changes.remove(key),
            }
        }
        self.guard(|| self.db.apply_batch(changes))
    }

    fn flush(&self) -> DbResult<()> {
        self.guard(|| self.db.flush())?;
        let synced = File::open(self.path.join("db"))
            .and_then(|file| file.sync_all())
            .and_then(|()| File::open(&self.path))
            .and_then(|dir| dir.sync_all());
        self.look_at_size();
        synced.map_err(|e| broken(&self.path, &e))
    }

    fn bytes_on_disk(&self) -> u64 {
        self.guard(|| self.db.size_on_disk()).unwrap_or(0)
    }
}
