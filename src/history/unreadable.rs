//! Unreadable history objects. Their needs are unknown, so the collection that finds one keeps everything
//! stored by then. Later content is collected as usual, so one bad disk block does not keep garbage forever.
//!
//! Invariants: a pack that existed when an object was first found unreadable stays until the object can be
//! read again or is dropped. Chunks leave a pack only when it is rewritten, so all that the object needs is
//! in those packs. Losing the time of discovery (a row of the index) means finding it again, later: then more
//! is kept.

use super::error::{HistoryError, Result};
use crate::db::{Db, Table};
use crate::store::{Collection, StoreError};
use std::collections::BTreeMap;
use std::fmt::Display;

/// Row of `Table::Meta`: (first bytes of the object's id 16 | newest pack at its discovery 4) *.
const ROW: &[u8] = b"history.unreadable";
const ROW_LEN: usize = 20;
/// Beyond this many objects the time of discovery is not recorded.
const REMEMBERED_MAX: usize = 1024;
/// Limit of objects named in the log.
const NAMED_MAX: u64 = 20;

type Id = [u8; 16];

/// The findings of one collection.
pub(super) struct Unreadable<'a> {
    collection: &'a Collection<'a>,
    before: BTreeMap<Id, u32>,
    found: BTreeMap<Id, u32>,
    /// How many there are.
    pub(super) count: u64,
}

impl<'a> Unreadable<'a> {
    pub(super) fn new(db: &dyn Db, collection: &'a Collection<'a>) -> Result<Unreadable<'a>> {
        let before = db.get(Table::Meta, ROW)?.as_deref().map(decode).unwrap_or_default();
        Ok(Unreadable { collection, before, found: BTreeMap::new(), count: 0 })
    }

    /// Keeps everything that `what` may need, if it is damaged or lost. An error that may be temporary stops
    /// the collection.
    pub(super) fn leave(&mut self, what: &dyn Display, id: &[u8], error: HistoryError) -> Result<()> {
        match &error {
            HistoryError::Store(StoreError::Damaged { .. }) | HistoryError::Form { .. } => {}
            HistoryError::Store(e) if super::log::is_missing(e) => {}
            _ => return Err(error),
        }
        let mut key = Id::default();
        key.iter_mut().zip(id).for_each(|(to, from)| *to = *from);
        let pack = match self.before.get(&key).or_else(|| self.found.get(&key)) {
            Some(&pack) => {
                self.collection.leave_until(pack);
                pack
            }
            None => self.collection.leave_until_now()?,
        };
        self.count += 1;
        if self.count <= NAMED_MAX {
            tracing::error!(
                "{what}: cannot be read, so nothing is collected of packs up to {pack:08x}: {error}"
            );
        }
        if self.found.len() < REMEMBERED_MAX {
            self.found.insert(key, pack);
        }
        Ok(())
    }

    /// Saves the findings after everything was examined.
    pub(super) fn remember(self, db: &dyn Db) -> Result<()> {
        if self.found == self.before {
            return Ok(());
        }
        if let Err(e) = self.collection.begin_pack() {
            tracing::warn!("no pack could be begun, so more is kept: {e}");
        }
        Ok(super::log::full_or(db.put(Table::Meta, ROW, &encode(&self.found)))?)
    }
}

/// Returns the newest pack that must stay, according to all collections so far. Beyond the limit it is
/// unknown: then all packs stay.
pub(super) fn left_until(db: &dyn Db) -> Result<Option<u32>> {
    let found = db.get(Table::Meta, ROW)?.as_deref().map(decode).unwrap_or_default();
    let newest = found.values().copied().max();
    Ok(newest.map(|pack| if found.len() < REMEMBERED_MAX { pack } else { u32::MAX }))
}

fn encode(found: &BTreeMap<Id, u32>) -> Vec<u8> {
    found.iter().flat_map(|(id, pack)| id.iter().copied().chain(pack.to_be_bytes())).collect()
}

fn decode(row: &[u8]) -> BTreeMap<Id, u32> {
    let rows = row.chunks_exact(ROW_LEN).filter_map(|row| {
        let (id, pack) = row.split_first_chunk::<16>()?;
        Some((*id, u32::from_be_bytes(pack.try_into().ok()?)))
    });
    rows.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_come_back() {
        let found = BTreeMap::from([([1; 16], 7), ([2; 16], u32::MAX)]);
        assert_eq!(decode(&encode(&found)), found);
        assert!(decode(&[1; 19]).is_empty());
    }
}
