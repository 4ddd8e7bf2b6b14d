use super::{Batch, Db, DbResult, Table, Value, full_key};
use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Included};
use std::sync::{PoisonError, RwLock};

/// A database in memory; its content is lost when it is dropped.
#[derive(Debug, Default)]
pub struct MemDb {
    map: RwLock<BTreeMap<Vec<u8>, Value>>,
}

impl MemDb {
    /// An empty database.
    pub fn new() -> MemDb {
        MemDb::default()
    }

    /// Returns another database with the same contents.
    #[cfg(test)]
    pub(crate) fn copy(&self) -> MemDb {
        MemDb { map: RwLock::new(self.read().clone()) }
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, BTreeMap<Vec<u8>, Value>> {
        self.map.read().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Db for MemDb {
    fn get(&self, table: Table, key: &[u8]) -> DbResult<Option<Value>> {
        Ok(self.read().get(&full_key(table, key)).cloned())
    }

    fn at_or_below(&self, table: Table, key: &[u8]) -> DbResult<Option<(Vec<u8>, Value)>> {
        let range = (Included(vec![table as u8]), Included(full_key(table, key)));
        Ok(self.read().range(range).next_back().map(|(key, value)| (key[1..].to_vec(), value.clone())))
    }

    fn scan(&self, table: Table, from: &[u8], visit: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> DbResult<()> {
        let mut from = Included(full_key(table, from));
        // In pages, so that `visit` may write to the database.
        loop {
            let end = Excluded(vec![table as u8 + 1]);
            let page: Vec<_> = self
                .read()
                .range((from, end))
                .take(256)
                .map(|(key, value)| (key.clone(), value.clone()))
                .collect();
            let Some((last, _)) = page.last() else {
                return Ok(());
            };
            from = Excluded(last.clone());
            if !page.iter().all(|(key, value)| visit(&key[1..], value)) {
                return Ok(());
            }
        }
    }

    fn apply(&self, batch: Batch) -> DbResult<()> {
        let mut map = self.map.write().unwrap_or_else(PoisonError::into_inner);
        for (key, value) in batch.changes {
            match value {
                Some(value) => map.insert(key, value.into()),
                None => map.remove(&key),
            };
        }
        Ok(())
    }

    fn flush(&self) -> DbResult<()> {
        Ok(())
    }

    fn bytes_on_disk(&self) -> u64 {
        0
    }
}
