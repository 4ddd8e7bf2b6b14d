//! A copy of a database, without what the original's file no longer needs.

use super::{Batch, Db, DbResult, SledDb, Table};
use std::path::Path;

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
    for table in Table::ALL {
        let (mut part, mut bytes, mut applied) = (Vec::new(), 0, Ok(()));
        from.scan(table, &[], &mut |key, value| {
            part.push((key.to_vec(), value.to_vec()));
            bytes += key.len() + value.len();
            if part.len() >= ENTRIES_AT_ONCE || bytes >= BYTES_AT_ONCE {
                applied = add(&to, table, std::mem::take(&mut part));
                bytes = 0;
            }
            applied.is_ok()
        })?;
        applied?;
        add(&to, table, part)?;
    }
    Ok(to)
}

/// Adds entries in ascending order. A batch has none: its changes are applied in any.
fn add(to: &SledDb, table: Table, entries: Vec<(Vec<u8>, Vec<u8>)>) -> DbResult<()> {
    entries.iter().try_for_each(|(key, _)| to.put(table, key, &[]))?;
    let mut batch = Batch::new();
    entries.into_iter().for_each(|(key, value)| batch.put(table, &key, value));
    to.apply(batch)
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
