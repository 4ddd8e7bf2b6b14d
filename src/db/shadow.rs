//! A second set of the similarity tables in the same database, for a second index.

use super::{Batch, Db, DbResult, Table, Value};
use std::sync::Arc;

/// Prefix of its rows in [`Table::Meta`].
const META_PREFIX: &[u8] = b"views.";
/// Tables of similarity, and their replacements.
const TABLES: [(Table, Table); 6] = [
    (Table::Features, Table::ViewFeatures),
    (Table::Sketched, Table::ViewSketched),
    (Table::Contained, Table::ViewContained),
    (Table::Contents, Table::ViewContents),
    (Table::Numbered, Table::ViewNumbered),
    (Table::Filters, Table::ViewFilters),
];

/// The database as the index of views sees it: with other similarity tables and other rows of
/// [`Table::Meta`].
pub struct Shadow(Arc<dyn Db>);

impl Shadow {
    /// Creates the view index's side of `db`.
    pub fn new(db: Arc<dyn Db>) -> Shadow {
        Shadow(db)
    }
}

fn table(table: Table) -> Table {
    TABLES.iter().find(|(here, _)| *here == table).map_or(table, |(_, there)| *there)
}

fn key_in(table: Table, key: &[u8]) -> Vec<u8> {
    if table == Table::Meta { [META_PREFIX, key].concat() } else { key.to_vec() }
}

impl Db for Shadow {
    fn get(&self, from: Table, key: &[u8]) -> DbResult<Option<Value>> {
        self.0.get(table(from), &key_in(from, key))
    }

    fn at_or_below(&self, from: Table, key: &[u8]) -> DbResult<Option<(Vec<u8>, Value)>> {
        self.0.at_or_below(table(from), key)
    }

    fn scan(&self, of: Table, from: &[u8], visit: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> DbResult<()> {
        self.0.scan(table(of), from, visit)
    }

    fn scan_prefix(
        &self,
        of: Table,
        prefix: &[u8],
        from: &[u8],
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> DbResult<()> {
        self.0.scan_prefix(table(of), prefix, from, visit)
    }

    fn scan_keys(&self, of: Table, from: &[u8], visit: &mut dyn FnMut(&[u8]) -> bool) -> DbResult<()> {
        self.0.scan_keys(table(of), from, visit)
    }

    fn clear(&self, of: Table, prefix: &[u8]) -> DbResult<()> {
        self.0.clear(table(of), &key_in(of, prefix))
    }

    fn apply(&self, mut batch: Batch) -> DbResult<()> {
        for (key, _) in &mut batch.changes {
            let Some((&first, rest)) = key.split_first() else { continue };
            if first == Table::Meta as u8 {
                *key = super::full_key(Table::Meta, &key_in(Table::Meta, rest));
            } else if let Some((_, there)) = TABLES.iter().find(|(here, _)| *here as u8 == first) {
                key[0] = *there as u8;
            }
        }
        self.0.apply(batch)
    }

    fn flush(&self) -> DbResult<()> {
        self.0.flush()
    }

    fn bytes_on_disk(&self) -> u64 {
        self.0.bytes_on_disk()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::db::MemDb;

    /// What is changed beside is seen beside and nowhere else, and the other way round.
    #[test]
    fn neither_sees_the_other() {
        let db: Arc<dyn Db> = Arc::new(MemDb::new());
        let shadow = Shadow::new(db.clone());
        for table in [Table::Features, Table::Numbered, Table::Contents, Table::Meta] {
            db.put(table, b"k", b"bytes").unwrap();
            assert_eq!(shadow.get(table, b"k").unwrap(), None, "{table:?}");
            shadow.put(table, b"k", b"view").unwrap();
            assert_eq!(db.get(table, b"k").unwrap().as_deref(), Some(&b"bytes"[..]), "{table:?}");
            assert_eq!(shadow.get(table, b"k").unwrap().as_deref(), Some(&b"view"[..]), "{table:?}");
        }
        shadow.clear(Table::Features, &[]).unwrap();
        assert_eq!(shadow.get(Table::Features, b"k").unwrap(), None);
        assert!(db.get(Table::Features, b"k").unwrap().is_some());
        shadow.flush().unwrap();
    }
}
