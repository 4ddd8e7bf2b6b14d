//! A copy of a database, without what the original's file no longer needs.

use super::{Batch, Db, DbResult, SledDb, Table};
use std::path::Path;

const ENTRIES_PER_BATCH: usize = 256;

/// Copies all of `from` into a new database at `path`. Of entries that come to `from` meanwhile some may be missing.
///
/// sled writes each entry as a change to a node of its tree, and the node again with each tenth change and each split; so
/// even a copy takes some 1.7 times what its entries do.
pub fn copy(from: &dyn Db, path: &Path, cache_bytes: u64) -> DbResult<SledDb> {
    let to = SledDb::open(path, cache_bytes)?;
    for table in Table::ALL {
        let (mut batch, mut entries, mut applied) = (Batch::new(), 0, Ok(()));
        from.scan(table, &[], &mut |key, value| {
            batch.put(table, key, value.to_vec());
            entries += 1;
            if entries % ENTRIES_PER_BATCH == 0 {
                applied = to.apply(std::mem::take(&mut batch));
            }
            applied.is_ok()
        })?;
        applied?;
        to.apply(batch)?;
    }
    Ok(to)
}
