//! Writing a database anew when much of what it takes on disk is no longer in use.
//!
//! sled does not give back what it once took: after taking in many files its file is several times the rows
//! in it. So a database that has grown by half since it was last written anew, or a large one that has doubled, is copied, at
//! some 60 MB/s of rows, and the copy takes its place in one atomic exchange. So the time for this goes with what was taken
//! in, and a crash leaves the one or the other whole.
//!
//! One that ran into a full disk is copied whatever it takes (`sled`): its file is not to be trusted any more.
//!
//! It is used meanwhile. What is changed is told to the copy afterwards, in its order (`redo`); the last of it, and the
//! exchange, while nobody else uses the database: a few tenths of a second. If there is no such moment within two
//! seconds, the copy is given up.

use super::redo::Kept;
use super::sled::{failed, io, open_file, open_sled, panicked};
use super::{Batch, Compacted, Db, DbResult, SledDb, Table};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{PoisonError, RwLockWriteGuard, TryLockError};
use std::time::{Duration, Instant};

/// Row of [`Table::Meta`]: bytes of the database when it was last written anew.
const WRITTEN_ANEW: &[u8] = b"written anew";
/// Smaller databases are left as they are.
pub(super) const BYTES_MIN: u64 = 4 << 20;
/// One over this has to have doubled: copying it takes a second or more.
const LARGE_BYTES: u64 = 64 << 20;
/// What comes while a copy is made is told to it until it is no more than this, or so many times.
const LEFT_BYTES: u64 = 256 << 10;
const TOLD_TIMES: usize = 8;
/// How long nobody else using the database is waited for, and how often that is looked for.
pub(super) const PATIENCE: Duration = Duration::from_secs(2);
const TRY_INTERVAL: Duration = Duration::from_micros(50);
/// Entries that are copied at a time, and about how many bytes of them.
const ENTRIES_AT_ONCE: usize = 400;
const BYTES_AT_ONCE: usize = 8 << 20;

/// Copies all of `from` into a new database at `path`. Of entries that come to `from` meanwhile some may be missing.
///
/// sled writes each entry as a change to a node of its tree, and the node again with its tenth change and each split. A
/// node that is split by keys in ascending order keeps nine. So keys come first, one by one, and their values when nodes
/// have been split: those are written once, and the copy takes little more than its entries do, instead of twice as much.
pub fn copy(from: &dyn Db, path: &Path, cache_bytes: u64) -> DbResult<SledDb> {
    let to = SledDb::open(path, cache_bytes)?;
    copy_into(&to, from, &|| true)?;
    Ok(to)
}

/// False if `go_on` said no.
fn copy_into(to: &SledDb, from: &dyn Db, go_on: &dyn Fn() -> bool) -> DbResult<bool> {
    for table in Table::ALL {
        let (mut part, mut bytes, mut applied, mut goes_on) = (Vec::new(), 0, Ok(()), true);
        from.scan(table, &[], &mut |key, value| {
            part.push((key.to_vec(), value.to_vec()));
            bytes += key.len() + value.len();
            if part.len() >= ENTRIES_AT_ONCE || bytes >= BYTES_AT_ONCE {
                applied = add(to, table, std::mem::take(&mut part));
                (bytes, goes_on) = (0, go_on());
            }
            applied.is_ok() && goes_on
        })?;
        applied?;
        if !goes_on {
            return Ok(false);
        }
        add(to, table, part)?;
    }
    Ok(true)
}

/// Adds entries in ascending order. A batch has none: its changes are applied in any.
fn add(to: &SledDb, table: Table, entries: Vec<(Vec<u8>, Vec<u8>)>) -> DbResult<()> {
    entries.iter().try_for_each(|(key, _)| to.put(table, key, &[]))?;
    let mut batch = Batch::new();
    entries.into_iter().for_each(|(key, value)| batch.put(table, &key, value));
    to.apply(batch)
}

impl SledDb {
    /// As [`Db::compact`], of a database of so many bytes or more.
    pub(super) fn compact_above(&self, bytes_min: u64, go_on: &dyn Fn() -> bool) -> DbResult<Compacted> {
        let beside = self.path.with_extension("copy");
        // Left by a crash: it is either unfinished or what it was a copy of.
        let _ = std::fs::remove_dir_all(&beside);
        let (before, last) = (self.bytes_on_disk(), size_before(self)?);
        let grown = if before < LARGE_BYTES { last / 2 } else { last };
        let worth = match self.suspect.load(Ordering::Acquire) {
            true => self.has_room_for(before),
            false => before >= bytes_min && before >= last.saturating_add(grown) && !self.is_short(),
        };
        if !worth {
            return Ok(Compacted::NotWorth);
        }
        self.redo.lock().unwrap_or_else(PoisonError::into_inner).keep();
        let written = self.write_anew(&beside, go_on);
        self.redo.lock().unwrap_or_else(PoisonError::into_inner).keep_no_more();
        let _ = std::fs::remove_dir_all(&beside);
        written.map(|now| now.map_or(Compacted::GivenUp, |now| Compacted::Done { before, now }))
    }

    /// Returns the bytes of the copy, which has this one's place now, unless it was given up.
    fn write_anew(&self, beside: &Path, go_on: &dyn Fn() -> bool) -> DbResult<Option<u64>> {
        let take_kept = || self.redo.lock().unwrap_or_else(PoisonError::into_inner).take_kept();
        let to = SledDb::open(beside, self.cache_bytes)?;
        if !copy_into(&to, self, go_on)? {
            return Ok(None);
        }
        for _ in 0..TOLD_TIMES {
            let Some(kept) = take_kept() else { return Ok(None) };
            let is_little = kept.bytes <= LEFT_BYTES;
            to.tell(kept)?;
            if is_little {
                break;
            }
        }
        to.flush()?;
        let Some(mut db) = self.alone(PATIENCE) else { return Ok(None) };
        let Some(kept) = take_kept().filter(|_| db.is_some() && !self.stuck.load(Ordering::Acquire)) else {
            return Ok(None);
        };
        to.tell(kept)?;
        let now = to.bytes_on_disk();
        to.put(Table::Meta, WRITTEN_ANEW, &now.to_be_bytes())?;
        to.flush()?;
        drop(to);
        // Whatever fails from here on: who uses it next opens it, and tells it again what may be missing.
        self.stuck.store(true, Ordering::Release);
        // Nothing may be open while the directories change places.
        let old = db.take();
        catch_unwind(AssertUnwindSafe(|| drop(old))).map_err(|panic| panicked(&self.path, panic))?;
        let exchanged = exchange(&self.path, beside);
        let new = open_sled(&self.path, self.cache_bytes)?;
        *self.file.write().unwrap_or_else(PoisonError::into_inner) = open_file(&self.path);
        let mut redo = self.redo.lock().unwrap_or_else(PoisonError::into_inner);
        match &exchanged {
            // All of it is in the copy, and durable.
            Ok(()) => {
                let end = redo.end();
                redo.forget_before(end);
            }
            Err(_) => redo
                .iter()
                .try_for_each(|batch| new.apply_batch(batch.clone()))
                .map_err(|e| failed(&self.path, e))?,
        }
        *db = Some(new);
        self.stuck.store(false, Ordering::Release);
        self.suspect.fetch_and(exchanged.is_err(), Ordering::AcqRel);
        exchanged.map(|()| Some(now))
    }

    /// Applies what was kept for a copy to it.
    fn tell(&self, kept: Kept) -> DbResult<()> {
        kept.batches.into_iter().try_for_each(|(batch, bytes)| {
            self.guard(|db| db.apply_batch(batch.clone()))?;
            self.wait_for_writes(bytes)
        })
    }

    /// The database, once nobody uses it; none if that takes longer. Nobody is locked out for that, since who scans it
    /// may look something up in it along the way; who begins to use it lets a millisecond pass.
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
}

fn size_before(db: &dyn Db) -> DbResult<u64> {
    let row = db.get(Table::Meta, WRITTEN_ANEW)?;
    Ok(row.and_then(|row| Some(u64::from_be_bytes(row[..].try_into().ok()?))).unwrap_or(0))
}

/// Lets two directories change places, for good: what is written to the one from now on must not be found in the other
/// after a power cut.
fn exchange(path: &Path, beside: &Path) -> DbResult<()> {
    let exchanged =
        renameat_with(CWD, path, CWD, beside, RenameFlags::EXCHANGE).map_err(std::io::Error::from);
    let parent = path.parent().unwrap_or(path);
    exchanged.and_then(|()| File::open(parent)?.sync_all()).map_err(|e| failed(path, io(e)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    /// Entries of about a block each, and small ones.
    #[test]
    fn a_copy_takes_little_more_than_its_entries() {
        let dir = tempfile::tempdir().unwrap();
        let from = crate::db::MemDb::new();
        let mut rows = 0;
        for i in 0..6000u32 {
            for (table, times) in [(Table::Features, 60 + i as usize % 40), (Table::Meta, 1)] {
                let value = blake3::hash(&i.to_le_bytes()).as_bytes().repeat(times);
                rows += value.len() as u64 + 5;
                from.put(table, &i.to_be_bytes(), &value).unwrap();
            }
        }
        let to = copy(&from, &dir.path().join("copy"), 16 << 20).unwrap();
        to.flush().unwrap();
        let taken = to.bytes_on_disk();
        assert!(taken < rows * 14 / 10, "{taken} for {rows}");
        for table in Table::ALL {
            let all = |db: &dyn Db| {
                let mut all = Vec::new();
                db.scan(table, &[], &mut |key, value| {
                    all.push((key.to_vec(), value.to_vec()));
                    true
                })
                .unwrap();
                all
            };
            assert_eq!(all(&to), all(&from), "{table:?}");
        }
    }

    const SIZE_MIN: u64 = 1 << 20;

    fn value(round: u32, i: u32) -> Vec<u8> {
        blake3::hash(&(round << 16 | i).to_le_bytes()).as_bytes().repeat(60 + i as usize % 9)
    }

    /// A database whose rows were changed again and again.
    fn bloated(path: &Path) -> SledDb {
        let db = SledDb::open(path, 16 << 20).unwrap();
        for round in 0..4u32 {
            for i in 0..3000u32 {
                db.put(Table::Features, &i.to_be_bytes(), &value(round, i)).unwrap();
            }
        }
        db.flush().unwrap();
        db
    }

    /// Seen to fail with what a crash left of a copy taken for a part of the next one.
    #[test]
    fn a_bloated_database_shrinks_once_and_keeps_every_row() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("index");
        let db = bloated(&path);
        let rows: u64 = (0..3000).map(|i| value(3, i).len() as u64).sum();
        assert_eq!(db.compact_above(SIZE_MIN, &|| false).unwrap(), Compacted::GivenUp);
        assert!(!dir.path().join("index.copy").exists());
        let stale = SledDb::open(&dir.path().join("index.copy"), 1 << 20).unwrap();
        stale.put(Table::Chunks, b"stale", b"left by a crash").unwrap();
        drop(stale);
        let Compacted::Done { before, now } = db.compact_above(SIZE_MIN, &|| true).unwrap() else {
            panic!("not done")
        };
        assert!(now < before && now < 2 * rows, "{before} before, {now} now, {rows} of rows");
        assert_eq!(db.compact_above(SIZE_MIN, &|| true).unwrap(), Compacted::NotWorth);
        assert_eq!(db.get(Table::Chunks, b"stale").unwrap(), None);
        db.put(Table::Chunks, b"after", b"it").unwrap();
        db.flush().unwrap();
        for i in 0..3000u32 {
            assert_eq!(db.get(Table::Features, &i.to_be_bytes()).unwrap().unwrap()[..], value(3, i));
        }
        assert!(!dir.path().join("index.copy").exists());
        drop(db);
        let db = SledDb::open(&path, 16 << 20).unwrap();
        assert_eq!(db.get(Table::Chunks, b"after").unwrap().as_deref(), Some(&b"it"[..]));
        assert_eq!(db.get(Table::Features, &7u32.to_be_bytes()).unwrap().unwrap()[..], value(3, 7));
        assert_eq!(db.compact_above(SIZE_MIN, &|| true).unwrap(), Compacted::NotWorth);
    }

    /// Seen to fail without telling the copy what was changed meanwhile, and with that told in another order.
    #[test]
    fn what_is_changed_while_a_database_is_written_anew_is_in_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("index");
        let db = bloated(&path);
        let stop = AtomicBool::new(false);
        let (last, done) = std::thread::scope(|scope| {
            // Each has keys of its own, the last with values that only grow and rows that come and go.
            let writers: Vec<_> = (0..3u32)
                .map(|writer| {
                    let (db, stop) = (&db, &stop);
                    scope.spawn(move || {
                        let mut round = 4;
                        while !stop.load(Ordering::Relaxed) {
                            let i = writer + 3 * (round * 7919 % 1000);
                            let mut batch = Batch::new();
                            batch.put(Table::Features, &i.to_be_bytes(), value(round, i));
                            batch.put(Table::Contents, &writer.to_be_bytes(), round.to_be_bytes().to_vec());
                            batch.put(
                                Table::Chunks,
                                &[writer, round].map(u32::to_be_bytes).concat(),
                                vec![1],
                            );
                            if round > 4 {
                                let before = [writer, round - 1].map(u32::to_be_bytes).concat();
                                batch.remove(Table::Chunks, &before);
                            }
                            db.apply(batch).unwrap();
                            if round % 50 == 0 {
                                db.flush().unwrap();
                            }
                            let seen = db.get(Table::Contents, &writer.to_be_bytes()).unwrap().unwrap();
                            assert_eq!(seen[..], round.to_be_bytes(), "its own change, at any time");
                            round += 1;
                        }
                        round - 1
                    })
                })
                .collect();
            let reader = scope.spawn(|| {
                let mut seen = [0; 3];
                while !stop.load(Ordering::Relaxed) {
                    db.scan(Table::Contents, &[], &mut |key, value| {
                        // As who scans may: to look up something else along the way.
                        assert!(db.get(Table::Features, &0u32.to_be_bytes()).unwrap().is_some());
                        let (writer, round) =
                            (key[3] as usize, u32::from_be_bytes(value.try_into().unwrap()));
                        assert!(round >= seen[writer], "never older than what was seen before");
                        seen[writer] = round;
                        true
                    })
                    .unwrap();
                }
            });
            let mut done = 0;
            for _ in 0..6 {
                std::thread::sleep(Duration::from_millis(50));
                // Anew each time.
                db.put(Table::Meta, WRITTEN_ANEW, &[0; 8]).unwrap();
                done += u32::from(matches!(
                    db.compact_above(SIZE_MIN, &|| true).unwrap(),
                    Compacted::Done { .. }
                ));
            }
            stop.store(true, Ordering::Relaxed);
            reader.join().unwrap();
            let last: Vec<u32> = writers.into_iter().map(|writer| writer.join().unwrap()).collect();
            (last, done)
        });
        assert!(done > 1, "hardly ever written anew");
        db.flush().unwrap();
        drop(db);
        let db = SledDb::open(&path, 16 << 20).unwrap();
        let mut rows = 0;
        db.scan(Table::Chunks, &[], &mut |_, _| {
            rows += 1;
            true
        })
        .unwrap();
        assert_eq!(rows, 3, "what was removed does not come back");
        for (writer, last) in (0u32..).zip(last) {
            let row = db.get(Table::Contents, &writer.to_be_bytes()).unwrap().unwrap();
            assert_eq!(row[..], last.to_be_bytes());
            let mut expected = std::collections::HashMap::new();
            (4..=last).for_each(|round| {
                expected.insert(writer + 3 * (round * 7919 % 1000), round);
            });
            for (i, round) in expected {
                assert_eq!(
                    db.get(Table::Features, &i.to_be_bytes()).unwrap().unwrap()[..],
                    value(round, i),
                    "{i}"
                );
            }
        }
    }
}
