use super::redo::{Cost, Redo};
use super::{Batch, Compacted, Db, DbError, DbResult, Table, Value, full_key, sled_threads};
use crate::env::{Refusal, Reserve};
use std::cell::Cell;
use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Mutex, OnceLock, PoisonError, RwLock, RwLockWriteGuard, TryLockError};
use std::time::{Duration, Instant};

/// A database on disk, in sled 0.34.
///
/// - **Durability.** sled's own `flush` calls `sync_file_range`, which survives a killed process but not a
///   power cut. [`Db::flush`] here also fsyncs sled's file and its directory.
/// - **Panics.** sled panics on some damage: every call into it is caught and returns [`DbError::Broken`].
/// - **Full disk.** sled does not recover from a full disk: it keeps what it could not write and waits for it
///   forever. So when the disk fills up, space is allocated behind the end of its file before any change. A
///   change without space is [`DbError::Full`] and never reaches sled. sled itself sometimes shortens its
///   file and loses that space, and another process may take it. Then a reserve is released, sled is
///   reopened, and the unwritten changes are applied again. If even that finds no space, reads return what
///   sled still has (not always everything, because it tidies up along the way), and each change is
///   [`DbError::Full`] until there is space.
/// - **After a full disk.** The file that sled wrote by then may be damaged: sled may have lost a page's new
///   location and reused the old one. Unreadable pages were seen in one of about a hundred cases, at once or
///   at the next open. So the database is copied as soon as there is space; a mark stays until that is done.
///   If it cannot be opened or copied, it is [`DbError::Broken`], also at the next open.
/// - **Backlog.** sled deadlocks if it shortens its file while more than six of its log buffers are unwritten:
///   decision 0062. So a batch waits until sled has written the ones before it, if all together could take
///   more than 1 MiB. sled's timer is off: it cleans up without such a limit.
pub struct SledDb {
    pub(super) path: PathBuf,
    /// `None` only while it is reopened, or after that failed.
    pub(super) db: RwLock<Option<sled::Db>>,
    /// Changes that sled may not have written, to apply again after a full disk.
    pub(super) redo: Mutex<Redo>,
    /// It met a full disk, and writes nothing any more.
    pub(super) stuck: AtomicBool,
    /// It once met a full disk and was not compacted since: its pages may be damaged.
    pub(super) suspect: AtomicBool,
    /// Why it could not be reopened after that; permanent.
    lost: OnceLock<String>,
    reserve: Reserve,
    /// sled's file, and how much space to allocate behind its end.
    pub(super) file: RwLock<Option<File>>,
    room_bytes: u64,
    pub(super) cache_bytes: u64,
    /// Whether the database was larger than its cache at open or at the last flush.
    beyond_cache: AtomicBool,
    /// A thread waits for a moment when no other uses the database.
    pub(super) wanted_alone: AtomicBool,
}

thread_local! {
    /// Whether this thread is using a database: then it may use it once more along the way.
    static USES: Cell<bool> = const { Cell::new(false) };
}

/// Space allocated behind the end of sled's file, at most a 16th of the filesystem. A change needs a multiple
/// of its size: for each byte sled may write a whole tree node of about 16 blocks.
const ROOM_BYTES: u64 = 48 << 20;
const ROOM_SHARE: u64 = 16;
/// The share of it that any change must leave. No more than that is allocated
const ROOM_LEFT_SHARE: u64 = 8;
/// unless this much is left to others, at most a 50th of the filesystem: gc needs it.
const OTHERS_BYTES: u64 = 64 << 20;
const OTHERS_SHARE: u64 = 50;
/// While this many times as much is free, nothing needs to be allocated.
const FREE_ROOMS: u64 = 32;
const BYTES_PER_BYTE: u64 = 16;
/// Reserved while the disk fills up, for reopening sled.
const RESERVE_BYTES: u64 = 16 << 20;
/// Name of the mark that the database met a full disk.
const SUSPECT: &str = "full";
const LOST: &str = "the disk was full, and sled cannot read what it has written there. No content is lost: unmount and mount \
                    again, and a new index is made from the packs";
/// A flush that takes longer has failed, or will soon return an error.
const FLUSH_WAIT: Duration = Duration::from_secs(1);
/// sled's threads keep its lock for a moment after closing, and so does a program that is being started.
const LOCK_WAIT: Duration = Duration::from_secs(2);
/// The bytes that sled may have to write for the batches since the last flush. Its log buffers have 512 KiB.
const LOG_BYTES_MAX: u64 = 1 << 20;
/// Log bytes per change, besides its key and value: each tenth change of a tree node writes the node, which has
/// about 16 entries, and while sled cleans up, each change moves another node.
const CHANGE_LOG_BYTES: u64 = 16 << 10;
/// A thread that begins to use the database waits this long while another waits for exclusive use.
const WAY: Duration = Duration::from_millis(1);
/// How long to wait for a moment without other users of the database, and how often to look.
pub(super) const PATIENCE: Duration = Duration::from_secs(2);
const TRY_INTERVAL: Duration = Duration::from_micros(50);
/// sled's cache has 256 shards, and evicts from a shard only after 64 accesses to pages in it. Look-ups all
/// over a large table would keep 16,384 pages of about 40 KiB at any capacity (685 MiB were seen with 32 MiB
/// requested). So each page that is read is accessed this many more times; an access in memory takes about a
/// microsecond. Scans do not need it: evicting their pages early seemed to slow merges.
const ACCESSES_MORE: usize = 7;

impl SledDb {
    /// Opens the database in directory `path`, and creates it if it is missing, with about `cache_bytes` of
    /// cache.
    pub fn open(path: &Path, cache_bytes: u64) -> DbResult<SledDb> {
        let db = RwLock::new(Some(open_sled(path, cache_bytes)?));
        let file = RwLock::new(open_file(path));
        let room_bytes = ROOM_BYTES.min(space(path).0 / ROOM_SHARE);
        let beyond_cache = AtomicBool::new(false);
        let db = SledDb {
            path: path.to_owned(),
            db,
            redo: Mutex::default(),
            stuck: AtomicBool::new(false),
            suspect: AtomicBool::new(path.join(SUSPECT).exists()),
            lost: OnceLock::new(),
            reserve: Reserve::new(path, RESERVE_BYTES, 0),
            file,
            room_bytes,
            cache_bytes,
            beyond_cache,
            wanted_alone: AtomicBool::new(false),
        };
        db.look_at_size();
        Ok(db)
    }

    /// Ensures that sled finds space for a change of this many bytes.
    fn make_room(&self, bytes: u64) -> DbResult<()> {
        let file = self.file.read().unwrap_or_else(PoisonError::into_inner);
        let Some(file) = &*file else { return Ok(()) };
        if !self.is_short() {
            return Ok(());
        }
        self.reserve.take();
        let stat = || rustix::fs::fstat(file).map_err(|e| failed(&self.path, io(e)));
        let left =
            |stat: &rustix::fs::Stat| (stat.st_blocks as u64 * 512).saturating_sub(stat.st_size as u64);
        // Otherwise a large batch would never fit; sled writes most of it at once, to other nodes.
        let needed = (bytes * BYTES_PER_BYTE).min(self.room_bytes * 3 / 4);
        let before = stat()?;
        if left(&before) >= self.room_bytes / 2 && left(&before) >= needed {
            return Ok(());
        }
        let needed = needed.max(self.room_bytes / ROOM_LEFT_SHARE);
        let (all, free) = space(&self.path);
        // A failing allocation still takes the available space.
        let room = match free >= self.room_bytes + OTHERS_BYTES.min(all / OTHERS_SHARE) {
            true => self.room_bytes,
            false if left(&before) >= needed => return Ok(()),
            false if free < needed - left(&before) => return Err(self.full()),
            false => needed,
        };
        let end = before.st_size as u64;
        let flags = rustix::fs::FallocateFlags::KEEP_SIZE;
        match rustix::fs::fallocate(file, flags, end, room) {
            Ok(()) => Ok(()),
            // The filesystem cannot allocate: sled must see for itself.
            Err(rustix::io::Errno::OPNOTSUPP) => Ok(()),
            Err(_) if left(&stat()?) >= needed => Ok(()),
            Err(rustix::io::Errno::NOSPC | rustix::io::Errno::DQUOT) => Err(self.full()),
            Err(e) => Err(failed(&self.path, io(e))),
        }
    }

    /// Whether the disk is filling up.
    pub(super) fn is_short(&self) -> bool {
        let (all, free) = space(&self.path);
        free <= (self.room_bytes * FREE_ROOMS).min(all / 2)
    }

    /// Whether a copy of this size fits, with sled's own needs.
    pub(super) fn has_room_for(&self, bytes: u64) -> bool {
        space(&self.path).1 > bytes + 2 * self.room_bytes
    }

    /// Reopens sled after it met a full disk, if there is space, and applies the possibly unwritten changes
    /// again. Threads that use it now may look something up along the way, and cannot be waited for here.
    fn come_back(&self, patience: Duration) -> DbResult<()> {
        let Some(mut db) = self.alone(patience) else { return Err(self.full()) };
        if db.is_some() && !self.stuck.load(Ordering::Acquire) {
            return Ok(());
        }
        if self.lost.get().is_some() {
            return Err(self.gone());
        }
        // sled writes its page table when it opens.
        if !self.reserve.give_up_if_short() && space(&self.path).1 < self.reserve.bytes() {
            return Err(self.full());
        }
        let old = db.take();
        if old.is_some() {
            self.suspect.store(true, Ordering::Release);
            // Its directory entry takes the reserve's place, if that was released.
            if let Err(e) = File::create(self.path.join(SUSPECT)) {
                tracing::warn!("index {}: no mark that it ran into a full disk: {e}", self.path.display());
            }
        }
        let new = catch_unwind(AssertUnwindSafe(|| drop(old)))
            .map_err(|panic| panicked(&self.path, panic))
            .and_then(|()| open_sled(&self.path, self.cache_bytes))
            .and_then(|new| self.tell_again(&new).map(|()| new))
            .map_err(|e| match e {
                DbError::Broken { reason, .. } => {
                    let _ = self.lost.set(format!("{LOST} ({reason})"));
                    tracing::error!("{}", self.gone());
                    self.gone()
                }
                other => other,
            })?;
        *self.file.write().unwrap_or_else(PoisonError::into_inner) = open_file(&self.path);
        tracing::warn!("index {}: it ran into a full disk, and was reopened", self.path.display());
        *db = Some(new);
        self.stuck.store(false, Ordering::Release);
        Ok(())
    }

    /// Returns the database once no other thread uses it; `None` if that takes longer. No thread is locked
    /// out meanwhile, because a scan may look something up along the way; a thread that begins to use it
    /// waits a millisecond first.
    pub(super) fn alone(&self, patience: Duration) -> Option<RwLockWriteGuard<'_, Option<sled::Db>>> {
        let end = Instant::now() + patience;
        self.wanted_alone.store(true, Ordering::Relaxed);
        let alone = loop {
            match self.db.try_write() {
                Ok(db) => break Some(db),
                Err(TryLockError::Poisoned(e)) => break Some(e.into_inner()),
                Err(TryLockError::WouldBlock) if Instant::now() > end => break None,
                Err(TryLockError::WouldBlock) => std::thread::sleep(TRY_INTERVAL),
            }
        };
        self.wanted_alone.store(false, Ordering::Relaxed);
        alone
    }

    fn come_back_for_changes(&self) -> DbResult<()> {
        match self.stuck.load(Ordering::Acquire) {
            // Only by a thread that is not using it along the way.
            true if USES.get() => Err(self.gone()),
            true => self.come_back(PATIENCE),
            false => Ok(()),
        }
    }

    /// Applies changes that may not have been written to a freshly opened database.
    fn tell_again(&self, new: &sled::Db) -> DbResult<()> {
        let redo = self.redo.lock().unwrap_or_else(PoisonError::into_inner);
        let tell = || redo.iter().try_for_each(|batch| new.apply_batch(batch.clone()));
        match catch_unwind(AssertUnwindSafe(tell)) {
            Ok(told) => told.map_err(|e| failed(&self.path, e)),
            Err(panic) => Err(panicked(&self.path, panic)),
        }
    }

    /// Returns why there is no usable database.
    fn gone(&self) -> DbError {
        match self.lost.get() {
            Some(reason) => DbError::Broken { path: self.path.clone(), reason: reason.clone() },
            None => self.full(),
        }
    }

    fn full(&self) -> DbError {
        DbError::Full { path: self.path.clone() }
    }

    /// Waits until sled has written all applied changes.
    fn write_out(&self) -> DbResult<()> {
        let upto = self.redo.lock().unwrap_or_else(PoisonError::into_inner).end();
        self.guard(|db| self.flush_sled(db))?;
        self.redo.lock().unwrap_or_else(PoisonError::into_inner).forget_before(upto);
        Ok(())
    }

    /// Applies a batch; waits first until sled has written others, if there are too many.
    pub(super) fn apply_changes(&self, mut changes: sled::Batch, cost: Cost) -> DbResult<()> {
        self.guard(|db| {
            // One at a time, as in sled itself, so that re-applying keeps the order.
            let mut redo = self.redo.lock().unwrap_or_else(PoisonError::into_inner);
            let unwritten = redo.log_bytes();
            if unwritten > 0 && unwritten + cost.log_bytes > LOG_BYTES_MAX {
                self.flush_sled(db)?;
                let upto = redo.end();
                redo.forget_before(upto);
            }
            db.apply_batch(changes.clone())?;
            redo.push(std::mem::take(&mut changes), cost);
            Ok(())
        })
    }

    /// Waits until sled has written everything.
    fn flush_sled(&self, db: &sled::Db) -> sled::Result<()> {
        if self.is_short() { flush_or_fail(db) } else { db.flush().map(drop) }
    }

    fn look_at_size(&self) {
        self.beyond_cache.store(self.bytes_on_disk() > self.cache_bytes, Ordering::Relaxed);
    }

    /// Runs `work`; once more if sled met a full disk and recovered.
    pub(super) fn guard<T>(&self, work: impl FnMut(&sled::Db) -> sled::Result<T>) -> DbResult<T> {
        let uses = USES.replace(true);
        if !uses && self.wanted_alone.load(Ordering::Relaxed) {
            std::thread::sleep(WAY);
        }
        let result = self.guard_within(uses, work);
        USES.set(uses);
        result
    }

    fn guard_within<T>(
        &self,
        nested: bool,
        mut work: impl FnMut(&sled::Db) -> sled::Result<T>,
    ) -> DbResult<T> {
        for _ in 0..2 {
            if self.stuck.load(Ordering::Acquire) && !nested {
                // Reads work without it.
                let _ = self.come_back(WAY);
            }
            let db = self.db.read().unwrap_or_else(PoisonError::into_inner);
            let Some(sled) = &*db else { return Err(self.gone()) };
            match catch_unwind(AssertUnwindSafe(|| work(sled))) {
                Ok(Ok(value)) => return Ok(value),
                Ok(Err(e)) if is_full(&e) => self.stuck.store(true, Ordering::Release),
                Ok(Err(e)) => return Err(failed(&self.path, e)),
                Err(panic) => return Err(panicked(&self.path, panic)),
            }
        }
        Err(self.full())
    }
}

impl Drop for SledDb {
    /// sled writes everything when it is dropped, and could wait forever for a full disk: it must know before.
    fn drop(&mut self) {
        let (stuck, is_short) = (self.stuck.load(Ordering::Acquire), self.is_short());
        let db = self.db.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(db) = db.as_ref().filter(|_| is_short && !stuck) {
            let _ = catch_unwind(AssertUnwindSafe(|| flush_or_fail(db)));
        }
    }
}

fn is_full(error: &sled::Error) -> bool {
    matches!(error, sled::Error::Io(e) if e.kind() == std::io::ErrorKind::StorageFull)
}

pub(super) fn open_sled(path: &Path, cache_bytes: u64) -> DbResult<sled::Db> {
    let open = || sled::Config::new().path(path).cache_capacity(cache_bytes).flush_every_ms(None).open();
    let give_up = Instant::now() + LOCK_WAIT;
    loop {
        return match catch_unwind(|| sled_threads::start_by(open)) {
            Ok(Ok(db)) => Ok(db),
            Ok(Err(sled::Error::Io(e))) if is_lock_conflict(&e) => {
                if Instant::now() < give_up {
                    std::thread::sleep(Duration::from_millis(20));
                    continue;
                }
                Err(DbError::Locked { path: path.to_owned() })
            }
            Ok(Err(e)) => Err(failed(path, e)),
            Err(panic) => Err(panicked(path, panic)),
        };
    }
}

pub(super) fn open_file(path: &Path) -> Option<File> {
    File::options().write(true).open(path.join("db")).ok()
}

fn cost(batch: &Batch) -> Cost {
    let bytes = batch.bytes() as u64;
    Cost { bytes, log_bytes: bytes + batch.changes.len() as u64 * CHANGE_LOG_BYTES }
}

/// Flushes if writing may fail: sled does not wake all waiters of a failed write, but a flush after it
/// reports the failure.
fn flush_or_fail(db: &sled::Db) -> sled::Result<()> {
    let (done, flushed) = channel();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            while flushed.recv_timeout(FLUSH_WAIT) == Err(RecvTimeoutError::Timeout) {
                let _ = db.flush();
            }
        });
        let result = db.flush().map(drop);
        let _ = done.send(());
        result
    })
}

/// Returns the size of the filesystem and its free bytes.
fn space(path: &Path) -> (u64, u64) {
    rustix::fs::statvfs(path)
        .map_or((0, 0), |space| (space.f_blocks * space.f_frsize, space.f_bavail * space.f_frsize))
}

/// sled reports a lock held elsewhere as an I/O error; only its text shows it.
fn is_lock_conflict(error: &std::io::Error) -> bool {
    error.to_string().contains("could not acquire lock")
}

pub(super) fn io(error: impl Into<std::io::Error>) -> sled::Error {
    sled::Error::Io(error.into())
}

pub(super) fn failed(path: &Path, error: sled::Error) -> DbError {
    let full = is_full(&error);
    match error {
        _ if full => DbError::Full { path: path.to_owned() },
        sled::Error::Io(source) if Refusal::of(&source).is_some() => {
            DbError::Refused { path: path.to_owned(), source }
        }
        error => DbError::Broken { path: path.to_owned(), reason: error.to_string() },
    }
}

pub(super) fn panicked(path: &Path, panic: Box<dyn std::any::Any + Send>) -> DbError {
    let text = panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("it panicked");
    DbError::Broken { path: path.to_owned(), reason: text.to_owned() }
}

impl SledDb {
    /// As [`Db::at_or_below`], of a table that is larger than the cache, or not.
    pub(super) fn find_at_or_below(
        &self,
        table: Table,
        key: &[u8],
        beyond_cache: bool,
    ) -> DbResult<Option<(Vec<u8>, Value)>> {
        let range = || vec![table as u8]..=full_key(table, key);
        let times = if beyond_cache { ACCESSES_MORE } else { 0 };
        let entry = self.guard(|db| {
            let entry = db.range(range()).next_back().transpose()?;
            if let Some((key, _)) = &entry {
                (0..times).try_for_each(|_| db.get(key).map(drop))?;
            }
            Ok(entry)
        })?;
        Ok(entry.map(|(key, value)| (key[1..].to_vec(), Value::from(&value[..]))))
    }
}

impl Db for SledDb {
    fn get(&self, table: Table, key: &[u8]) -> DbResult<Option<Value>> {
        let value = self.guard(|db| db.get(full_key(table, key)))?;
        Ok(value.map(|value| Value::from(&value[..])))
    }

    fn at_or_below(&self, table: Table, key: &[u8]) -> DbResult<Option<(Vec<u8>, Value)>> {
        self.find_at_or_below(table, key, self.beyond_cache.load(Ordering::Relaxed))
    }

    fn scan(&self, table: Table, from: &[u8], visit: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> DbResult<()> {
        let mut from = full_key(table, from);
        self.guard(|db| {
            for entry in db.range(from.clone()..vec![table as u8 + 1]) {
                let (key, value) = entry?;
                // The scan continues after this key if sled must be reopened.
                from.clear();
                from.extend_from_slice(&key);
                from.push(0);
                if !visit(&key[1..], &value) {
                    break;
                }
            }
            Ok(())
        })
    }

    fn apply(&self, batch: Batch) -> DbResult<()> {
        let cost = cost(&batch);
        self.come_back_for_changes()?;
        self.make_room(cost.bytes)?;
        let mut changes = sled::Batch::default();
        for (key, value) in batch.changes {
            match value {
                Some(value) => changes.insert(key, value),
                None => changes.remove(key),
            }
        }
        self.apply_changes(changes, cost)
    }

    fn flush(&self) -> DbResult<()> {
        self.come_back_for_changes()?;
        self.write_out()?;
        let synced = File::open(self.path.join("db"))
            .and_then(|file| file.sync_all())
            .and_then(|()| File::open(&self.path))
            .and_then(|dir| dir.sync_all());
        self.look_at_size();
        synced.map_err(|e| failed(&self.path, io(e)))
    }

    fn bytes_on_disk(&self) -> u64 {
        self.guard(|db| db.size_on_disk()).unwrap_or(0)
    }

    fn compact(&self, keep_going: &dyn Fn() -> bool) -> DbResult<Compacted> {
        self.compact_if_worth(keep_going)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seen to fail without the wait in `apply_changes`.
    #[test]
    fn unwritten_changes_are_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let db = SledDb::open(&dir.path().join("index"), 16 << 20).unwrap();
        let unwritten = || db.redo.lock().unwrap().log_bytes();
        let (mut last, mut waits) = (0, 0);
        for round in 0..100u32 {
            let mut batch = Batch::new();
            for i in 0..8u32 {
                batch.put(Table::Chunks, &(round * 8 + i).to_be_bytes(), vec![0; 4096]);
            }
            db.apply(batch).unwrap();
            assert!(unwritten() <= LOG_BYTES_MAX, "{}", unwritten());
            waits += u32::from(unwritten() < last);
            last = unwritten();
        }
        assert!(waits > 10, "{waits}");
        // A batch of more is still one batch.
        db.clear(Table::Chunks, &[]).unwrap();
        let mut batch = Batch::new();
        (0..200u32).for_each(|i| batch.put(Table::Chunks, &i.to_be_bytes(), vec![1; 4096]));
        db.apply(batch).unwrap();
        assert!(unwritten() > LOG_BYTES_MAX);
        db.put(Table::Chunks, b"more", b"").unwrap();
        assert!(unwritten() <= LOG_BYTES_MAX);
    }
}
