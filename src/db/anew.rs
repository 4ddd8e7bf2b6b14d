//! A copy of a database that takes little more room than its rows.
//!
//! sled keeps a node of its tree as a base and up to nine changes after it; the next change makes it write the node anew,
//! and so does a split, which a node of more than 16 entries meets. Copied in order, each entry is so written two to
//! three times, and half of the file is what was written before. Here the tree grows first, of entries without values:
//! then nodes have nine entries at most, each gets its values as changes, and nothing is written twice.

use super::{Batch, Db, DbResult, SledDb, Table};
use std::path::Path;

/// Keys without values, and values, that are written at a time.
const KEYS_PER_BATCH: usize = 4096;
const VALUES_PER_BATCH: usize = 256;

/// Copies all of `from` into a new database at `path`.
///
/// The copy is not durable before its flush. Entries that come to `from` meanwhile may be missing.
pub fn copy(from: &dyn Db, path: &Path, cache_bytes: u64) -> DbResult<SledDb> {
    let to = SledDb::open(path, cache_bytes)?;
    for (per_batch, with_values) in [(KEYS_PER_BATCH, false), (VALUES_PER_BATCH, true)] {
        for table in Table::ALL {
            let (mut batch, mut entries, mut applied) = (Batch::new(), 0, Ok(()));
            from.scan(table, &[], &mut |key, value| {
                batch.put(table, key, if with_values { value.to_vec() } else { Vec::new() });
                entries += 1;
                if entries % per_batch == 0 {
                    applied = to.apply(std::mem::take(&mut batch));
                }
                applied.is_ok()
            })?;
            applied?;
            to.apply(batch)?;
        }
    }
    Ok(to)
}
