//! Compaction: copies a database when much of its disk space is unused.
//!
//! sled does not return disk space: after many inserts its file is several times as large as its rows. So a
//! database that has grown by half since its last compaction, or a large one that has doubled, is copied at
//! about 60 MB/s of rows. The copy replaces the original in one atomic exchange. So the cost is proportional
//! to the inserts, and a crash leaves one or the other complete.
//!
//! A database that met a full disk is always copied (`sled`): its file is no longer trusted.
//!
//! The database stays in use meanwhile. Changes are applied to the copy afterwards, in order (`redo`). For
//! the last of them, and the exchange, no other thread may use the database: a few tenths of a second. If
//! there is no such moment within two seconds, the copy is dropped.

use super::redo::Kept;
use super::sled::{PATIENCE, failed, io, open_file, open_sled, panicked};
use super::{BATCH_CHANGES, Batch, Compacted, Db, DbResult, SledDb, Table};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

/// Row of [`Table::Meta`]: bytes of the database at its last compaction. The key is part of the disk format.
const SIZE_AT_COMPACTION: &[u8] = b"written\x20anew";
/// Smaller databases are not compacted.
const BYTES_MIN: u64 = 4 << 20;
/// A larger one must have doubled: copying it takes a second or more.
const LARGE_BYTES: u64 = 64 << 20;
/// Changes made during the copy are applied to it until at most this much is left, or this many times.
const LEFT_BYTES: u64 = 256 << 10;
const TOLD_TIMES: usize = 8;
/// Entries copied at a time, and about how many bytes of them.
const ENTRIES_AT_ONCE: usize = 400;
const BYTES_AT_ONCE: usize = 8 << 20;

/// Copies all of `from` into a new database at `path`. Entries added to `from` meanwhile may be missing.
///
/// sled writes each entry as a change to a tree node, and the node again at its tenth change and at each
/// split. A node that is split by ascending keys keeps nine entries. So keys come first, one by one, and
/// their values when the nodes have been split: values are written once, and the copy takes little more than
/// its entries, instead of twice as much.
pub fn copy(from: &dyn Db, path: &Path, cache_bytes: u64) -> DbResult<SledDb> {
    let to = SledDb::open(path, cache_bytes)?;
    copy_into(&to, from, &|| true)?;
    Ok(to)
}

/// Returns false if `keep_going` did.
fn copy_into(to: &SledDb, from: &dyn Db, keep_going: &dyn Fn() -> bool) -> DbResult<bool> {
    for table in Table::ALL {
        let (mut part, mut bytes, mut applied, mut goes_on) = (Vec::new(), 0, Ok(()), true);
        from.scan(table, &[], &mut |key, value| {
            part.push((key.to_vec(), value.to_vec()));
            bytes += key.len() + value.len();
            if part.len() >= ENTRIES_AT_ONCE || bytes >= BYTES_AT_ONCE {
                applied = add(to, table, std::mem::take(&mut part));
                (bytes, goes_on) = (0, keep_going());
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

/// Adds entries in ascending order. A batch would not keep the order.
fn add(to: &SledDb, table: Table, entries: Vec<(Vec<u8>, Vec<u8>)>) -> DbResult<()> {
    entries.iter().try_for_each(|(key, _)| to.put(table, key, &[]))?;
    let mut entries = entries.into_iter().peekable();
    while entries.peek().is_some() {
        let mut batch = Batch::new();
        entries.by_ref().take(BATCH_CHANGES).for_each(|(key, value)| batch.put(table, &key, value));
        to.apply(batch)?;
    }
    Ok(())
}

impl SledDb {
    /// Does [`Db::compact`].
    pub(super) fn compact_if_worth(&self, keep_going: &dyn Fn() -> bool) -> DbResult<Compacted> {
        self.compact_above(BYTES_MIN, keep_going)
    }

    /// Like [`Db::compact`], for a database of at least this many bytes.
    pub(super) fn compact_above(&self, bytes_min: u64, keep_going: &dyn Fn() -> bool) -> DbResult<Compacted> {
        let beside = self.path.with_extension("copy");
        // Left by a crash: unfinished, or the original after an exchange.
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
        let written = self.write_copy(&beside, keep_going);
        self.redo.lock().unwrap_or_else(PoisonError::into_inner).keep_no_more();
        let _ = std::fs::remove_dir_all(&beside);
        written.map(|now| now.map_or(Compacted::GivenUp, |now| Compacted::Done { before, now }))
    }

    /// Returns the bytes of the copy after it replaced the database; `None` if it was dropped.
    fn write_copy(&self, beside: &Path, keep_going: &dyn Fn() -> bool) -> DbResult<Option<u64>> {
        let take_kept = || self.redo.lock().unwrap_or_else(PoisonError::into_inner).take_kept();
        let to = SledDb::open(beside, self.cache_bytes)?;
        if !copy_into(&to, self, keep_going)? {
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
        to.put(Table::Meta, SIZE_AT_COMPACTION, &now.to_be_bytes())?;
        to.flush()?;
        drop(to);
        // If a step fails from here on, the next user opens the database and applies possibly missing
        // changes.
        self.stuck.store(true, Ordering::Release);
        // Nothing may be open during the exchange.
        let old = db.take();
        catch_unwind(AssertUnwindSafe(|| drop(old))).map_err(|panic| panicked(&self.path, panic))?;
        let exchanged = exchange(&self.path, beside);
        let new = open_sled(&self.path, self.cache_bytes)?;
        *self.file.write().unwrap_or_else(PoisonError::into_inner) = open_file(&self.path);
        let mut redo = self.redo.lock().unwrap_or_else(PoisonError::into_inner);
        match &exchanged {
            // The copy has all of it, durably.
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

    /// Applies the changes kept for a copy to it.
    fn tell(&self, kept: Kept) -> DbResult<()> {
        kept.batches.into_iter().try_for_each(|(batch, cost)| self.apply_changes(batch, cost))
    }
}

fn size_before(db: &dyn Db) -> DbResult<u64> {
    let row = db.get(Table::Meta, SIZE_AT_COMPACTION)?;
    Ok(row.and_then(|row| Some(u64::from_be_bytes(row[..].try_into().ok()?))).unwrap_or(0))
}

/// Durably exchanges two directories: after a power cut, later writes to one must not appear in the other.
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
    use std::time::Duration;

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
    fn what_is_changed_during_a_compaction_is_in_the_copy() {
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
                            // Else four threads take the processors from the one that copies.
                            std::thread::sleep(Duration::from_micros(200));
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
                    std::thread::sleep(Duration::from_micros(200));
                }
            });
            let mut done = 0;
            for _ in 0..4 {
                std::thread::sleep(Duration::from_millis(50));
                // Anew each time.
                db.put(Table::Meta, SIZE_AT_COMPACTION, &[0; 8]).unwrap();
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
