//! Writing the index anew when most of its file is no longer in use.
//!
//! sled does not give back what it once took: after taking in many files its file is several times the rows
//! in it. So an index that has grown by half since it was last written anew, or a large one that has doubled, is
//! copied when it is opened, at the speed of some 60 MB/s of rows, and the copy takes its place in one atomic
//! exchange. So the time for this goes with what was taken in, and a crash leaves the one or the other whole.

use crate::db::{self, Db, DbResult, SledDb, Table};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use std::path::Path;

/// Row of [`Table::Meta`]: bytes of the database when it was last written anew.
const WRITTEN_ANEW: &[u8] = b"written anew";
/// Smaller databases are left as they are.
const BYTES_MIN: u64 = 4 << 20;
/// One over this has to have doubled: copying it takes a second or more.
const LARGE_BYTES: u64 = 64 << 20;
/// Beside the index, while it is being written.
const COPY: &str = "index.copy";

/// Opens the index at `path`, written anew if that is worth it.
pub(super) fn open(path: &Path, cache_bytes: u64) -> DbResult<SledDb> {
    open_above(path, cache_bytes, BYTES_MIN)
}

fn open_above(path: &Path, cache_bytes: u64, bytes_min: u64) -> DbResult<SledDb> {
    let copy = path.with_file_name(COPY);
    // Left by a crash: it is either unfinished or what it was a copy of.
    let _ = std::fs::remove_dir_all(&copy);
    let db = SledDb::open(path, cache_bytes)?;
    let (size, before) = (db.bytes_on_disk(), size_before(&db)?);
    let grown = if size < LARGE_BYTES { before / 2 } else { before };
    if size < bytes_min || size < before.saturating_add(grown) {
        return Ok(db);
    }
    match write_anew(&db, &copy, cache_bytes) {
        Ok(now) => tracing::info!("the index was written anew: {size} bytes before, {now} now"),
        Err(reason) => {
            tracing::warn!("the index was not written anew: {reason}");
            let _ = std::fs::remove_dir_all(&copy);
            return Ok(db);
        }
    }
    // Nothing may be open while the directories change places.
    drop(db);
    if let Err(e) = renameat_with(CWD, path, CWD, &copy, RenameFlags::EXCHANGE) {
        tracing::warn!("the index was not written anew: exchange: {e}");
    }
    let _ = std::fs::remove_dir_all(&copy);
    SledDb::open(path, cache_bytes)
}

fn size_before(db: &SledDb) -> DbResult<u64> {
    let row = db.get(Table::Meta, WRITTEN_ANEW)?;
    Ok(row.and_then(|row| Some(u64::from_be_bytes(row[..].try_into().ok()?))).unwrap_or(0))
}

fn write_anew(from: &SledDb, path: &Path, cache_bytes: u64) -> Result<u64, String> {
    let text = |e: crate::db::DbError| e.to_string();
    let to = db::copy(from, path, cache_bytes).map_err(text)?;
    let size = to.bytes_on_disk();
    to.put(Table::Meta, WRITTEN_ANEW, &size.to_be_bytes()).map_err(text)?;
    to.flush().map_err(text)?;
    Ok(size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bloated_index_shrinks_once_and_keeps_every_row() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("index");
        let value = |round: u32, i: u32| {
            blake3::hash(&(round, i).0.to_le_bytes()).as_bytes().repeat(60 + i as usize % 9)
        };
        let db = SledDb::open(&path, 16 << 20).unwrap();
        for round in 0..8u32 {
            for i in 0..6000u32 {
                db.put(Table::Features, &i.to_be_bytes(), &value(round, i)).unwrap();
            }
        }
        db.flush().unwrap();
        let before = db.bytes_on_disk();
        drop(db);
        let db = open_above(&path, 16 << 20, 1 << 20).unwrap();
        let after = db.bytes_on_disk();
        let rows: u64 = (0..6000).map(|i| value(7, i).len() as u64).sum();
        assert!(after < before && after < 2 * rows, "{before} before, {after} after, {rows} of rows");
        for i in 0..6000u32 {
            assert_eq!(db.get(Table::Features, &i.to_be_bytes()).unwrap().unwrap()[..], value(7, i));
        }
        assert!(size_before(&db).unwrap() > 0);
        assert!(!dir.path().join(COPY).exists());
        drop(db);
        assert!(open_above(&path, 16 << 20, 1 << 20).unwrap().bytes_on_disk() <= after * 3 / 2);
    }
}
