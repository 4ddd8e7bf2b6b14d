//! The plain files that are unchanged since the last snapshot, so that a walk does not read them again.
//!
//! Invariants: a file that is not read has the content that the last snapshot has at its path. All of these
//! must hold:
//!
//! - It is the inode that was read for an earlier snapshot, with the same length and the same times to the
//!   nanosecond: each change of content moves the ctime, which no program can set.
//! - The content read then is the one that the last snapshot has at this path, so it is stored.
//! - Its ctime was older than [`SETTLED`] when it was read: within one clock tick a file can change twice
//!   with one ctime. git does the same for its index.
//! - No damage is known in the store: otherwise an intact file here is stored again.
//!
//! All of it is a table of the index: losing it means reading once more. If a memory mapping changes the bare
//! file while it is read, the later write-back moves the ctime, and the next walk finds the change.

use super::error::Result;
use super::log::full_or;
use crate::backing::stub::Time;
use crate::db::{Db, Layout, Runs, Table};
use crate::id::{FileId, RecipeId};
use crate::overlay::Met;
use std::collections::HashSet;
use std::sync::Arc;

/// File id 8 | length 8 | mtime 8 + 4 | ctime 8 + 4 | recipe 16.
const PLAIN: Runs = Runs::new(Layout { table: Table::Plain, row_len: ROW_LEN, key_len: KEY_LEN });
const ROW_LEN: usize = 56;
const KEY_LEN: usize = 8;
/// A younger ctime, in seconds, may also be that of a later change: some filesystems count in two.
const SETTLED: i64 = 3;
/// Rows gathered before they are merged.
const PENDING_BYTES_MAX: usize = ROW_LEN * (64 << 10);

/// Known plain files, during a snapshot.
pub(super) struct PlainFiles {
    db: Arc<dyn Db>,
    /// False: nothing is known.
    believed: bool,
    pending: Vec<u8>,
    /// Files met that have a row.
    met: HashSet<FileId>,
}

impl PlainFiles {
    pub(super) fn new(db: Arc<dyn Db>, believed: bool) -> PlainFiles {
        PlainFiles { db, believed, pending: Vec::new(), met: HashSet::new() }
    }

    /// Whether the content of a plain file is `recipe`, without reading it.
    pub(super) fn is(&mut self, met: &Met, recipe: RecipeId) -> Result<bool> {
        if !self.believed {
            return Ok(false);
        }
        let known = PLAIN.find(&*self.db, &met.file.0.to_be_bytes())?;
        let same = known.is_some_and(|known| known == row(met, recipe));
        if same {
            self.met.insert(met.file);
        }
        Ok(same)
    }

    /// Records the content read from a file that was met at `time`, before it was read.
    pub(super) fn note(&mut self, met: &Met, time: Time, recipe: RecipeId) -> Result<()> {
        if met.ctime.sec.saturating_add(SETTLED) > time.sec {
            return Ok(());
        }
        self.met.insert(met.file);
        self.pending.extend(row(met, recipe));
        if self.pending.len() >= PENDING_BYTES_MAX {
            self.merge(Vec::new())?;
        }
        Ok(())
    }

    fn merge(&mut self, gone: Vec<u8>) -> Result<()> {
        Ok(full_or(PLAIN.merge(&*self.db, std::mem::take(&mut self.pending), gone))?)
    }

    /// Saves the records. With `all`, every file was met: others are dropped.
    pub(super) fn end(mut self, all: bool) -> Result<()> {
        let mut gone = Vec::new();
        if all {
            PLAIN.scan(&*self.db, &[], |row| {
                let (file, _) = row.split_at(KEY_LEN);
                let number = file.iter().fold(0, |number, &byte| number << 8 | u64::from(byte));
                if !self.met.contains(&FileId(number)) {
                    gone.extend_from_slice(file);
                }
                true
            })?;
        }
        self.merge(gone)
    }
}

fn row(met: &Met, recipe: RecipeId) -> [u8; ROW_LEN] {
    let (mut out, mut at) = ([0; ROW_LEN], 0);
    let mut put = |bytes: &[u8]| {
        out[at..at + bytes.len()].copy_from_slice(bytes);
        at += bytes.len();
    };
    put(&met.file.0.to_be_bytes());
    put(&met.bytes.to_be_bytes());
    for time in [met.meta.mtime, met.ctime] {
        put(&time.sec.to_be_bytes());
        put(&time.nsec.to_be_bytes());
    }
    put(&recipe.0);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backing::types::Kind;
    use crate::db::MemDb;
    use crate::overlay::{Held, Meta};

    fn time(sec: i64, nsec: u32) -> Time {
        Time { sec, nsec }
    }

    fn met(file: u64) -> Met {
        Met {
            name: "file".into(),
            kind: Kind::File,
            file: FileId(file),
            nlink: 1,
            rdev: 0,
            bytes: 5,
            ctime: time(1000, 7),
            held: Held::Plain,
            target: Vec::new(),
            meta: Meta { mtime: time(900, 3), ..Meta::default() },
        }
    }

    #[test]
    fn only_what_is_the_same_and_was_not_young_is_believed() {
        let db: Arc<dyn Db> = Arc::new(MemDb::new());
        let (own, other) = (RecipeId([1; 16]), RecipeId([2; 16]));
        let known = |believed| PlainFiles::new(db.clone(), believed);
        let mut first = known(true);
        assert!(!first.is(&met(1), own).unwrap());
        first.note(&met(1), time(1003, 0), own).unwrap();
        first.note(&met(2), time(1002, 999_999_999), own).unwrap();
        first.note(&met(3), time(2000, 0), own).unwrap();
        first.end(true).unwrap();
        let mut second = known(true);
        assert!(second.is(&met(1), own).unwrap());
        assert!(!second.is(&met(1), other).unwrap(), "the last snapshot has another content");
        assert!(!second.is(&met(2), own).unwrap(), "it may have been changed with that ctime");
        assert!(!second.is(&met(4), own).unwrap(), "another inode");
        let changes: [fn(&mut Met); 3] =
            [|met| met.bytes = 6, |met| met.ctime.nsec += 1, |met| met.meta.mtime.nsec += 1];
        for change in changes {
            let mut changed = met(1);
            change(&mut changed);
            assert!(!second.is(&changed, own).unwrap(), "{changed:?}");
        }
        assert!(!known(false).is(&met(1), own).unwrap());
        // Not everything was looked at: those that were not met stay.
        second.end(false).unwrap();
        let mut third = known(true);
        assert!(third.is(&met(3), own).unwrap());
        third.end(true).unwrap();
        assert!(!known(true).is(&met(1), own).unwrap(), "it was gone");
        assert!(known(true).is(&met(3), own).unwrap());
    }
}
