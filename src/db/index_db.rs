use super::block_files::{Address, BlockFiles, FileName, failed};
use super::{Batch, Compacted, Db, DbError, DbResult, SledDb, Table, Value};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

/// The database of an index on disk: sled, with the blocks of runs in files next to it.
///
/// ```text
/// rows/     sled: all entries. Of a block of a run: 1 | its address, or, if the disk was nearly full, 0 | the block
/// runs/     the blocks, in a file for each run
/// ```
///
/// Invariants:
/// - Blocks are durable before later changes: [`Db::flush`] syncs the files first.
/// - A file is removed when its entries are durably gone. Files without entries are removed at open.
/// - An index with a damaged block is used until it is closed, and not opened again: then it is rebuilt.
///
/// sled has space set aside for a full disk, and these files have none: so blocks go into sled if little is left.
///
/// An earlier form had sled's files where now these directories are; it is replaced by an empty index.
pub struct IndexDb {
    path: PathBuf,
    sled: SledDb,
    files: BlockFiles,
    /// Whether the addresses of blocks are more than sled caches.
    beyond_cache: AtomicBool,
}

const ROWS: &str = "rows";
const RUNS: &str = "runs";
/// Name of the mark that a block was damaged.
const DAMAGED: &str = "damaged";
/// A file that sled makes in its directory.
const OF_SLED: &str = "conf";
/// The tables that consist of runs ([`Tiers`](super::Tiers)).
const TABLES: [Table; 7] = [
    Table::Chunks,
    Table::Features,
    Table::Sketched,
    Table::Numbered,
    Table::ViewFeatures,
    Table::ViewSketched,
    Table::ViewNumbered,
];
/// An address with its key takes at most this part of the bytes of its block.
const ADDRESS_PART: u64 = 16;
/// Addresses may fill this part of sled's cache.
const CACHE_PART: u64 = 2;
/// The part of a run's keys that has its blocks.
const BLOCKS: u8 = b'r';
/// First byte of their values. The block follows, or its address.
const HERE: u8 = 0;
const IN_FILE: u8 = 1;

impl IndexDb {
    /// Opens the index in directory `path`, and creates it if it is missing, with about `cache_bytes` of cache.
    pub fn open(path: &Path, cache_bytes: u64) -> DbResult<IndexDb> {
        if IndexDb::is_earlier(path) {
            tracing::info!("index {}: it has the form of an earlier version, and is rebuilt", path.display());
            std::fs::remove_dir_all(path).map_err(|e| failed(path, e))?;
        }
        if path.join(DAMAGED).exists() {
            let reason = "a block of it was damaged when it was last used".to_owned();
            return Err(DbError::Broken { path: path.to_owned(), reason });
        }
        std::fs::create_dir_all(path).map_err(|e| failed(path, e))?;
        let sled = SledDb::open(&path.join(ROWS), cache_bytes)?;
        let (files, beyond_cache) = (BlockFiles::open(&path.join(RUNS))?, AtomicBool::default());
        let index = IndexDb { path: path.to_owned(), sled, files, beyond_cache };
        index.remove_strays()?;
        index.weigh_addresses();
        Ok(index)
    }

    /// Returns the directory with the space that is set aside for the index in directory `path`.
    pub fn reserved(path: &Path) -> PathBuf {
        path.join(ROWS)
    }

    /// Whether the index in directory `path` has the form of an earlier version.
    pub fn is_earlier(path: &Path) -> bool {
        path.join(OF_SLED).exists()
    }

    /// Removes files that no entry names: left by a crash, or by a `rows` that is gone.
    fn remove_strays(&self) -> DbResult<()> {
        for name in self.files.names()? {
            if !self.has_entries(name)? {
                self.files.remove(name)?;
            }
        }
        Ok(())
    }

    fn weigh_addresses(&self) {
        let beyond_cache = self.files.bytes() / ADDRESS_PART > self.sled.cache_bytes / CACHE_PART;
        self.beyond_cache.store(beyond_cache, Ordering::Relaxed);
    }

    fn has_entries(&self, name: FileName) -> DbResult<bool> {
        let Some(table) = TABLES.into_iter().find(|table| *table as u8 == name.table) else {
            return Ok(false);
        };
        let (prefix, mut found) = (block_prefix(name.number), false);
        self.sled.scan_keys(table, &prefix, &mut |key| {
            found = key.starts_with(&prefix);
            false
        })?;
        Ok(found)
    }

    /// Returns the block of a run that `value`, at `key`, stands for; `None` if it is another entry.
    fn block(&self, table: Table, key: &[u8], value: &[u8]) -> DbResult<Option<Value>> {
        let Some(name) = file_of(table as u8, key) else { return Ok(None) };
        let address = match value.split_first() {
            Some((&HERE, block)) => return Ok(Some(block.into())),
            Some((&IN_FILE, address)) => Address::of_bytes(address),
            _ => None,
        };
        match address.map(|address| self.files.read(name, address)).transpose()?.flatten() {
            Some(block) => Ok(Some(block)),
            None => {
                // Without the mark it is found again at the next look-up.
                let _ = File::create(self.path.join(DAMAGED));
                Err(DbError::Row { table, reason: "a block of a run. The next mount rebuilds the index" })
            }
        }
    }

    fn resolved(&self, table: Table, key: &[u8], value: Value) -> DbResult<Value> {
        Ok(self.block(table, key, &value)?.unwrap_or(value))
    }

    /// Writes blocks to their file; returns the values that stand for them.
    fn put_away(&self, name: FileName, blocks: &[Vec<u8>]) -> DbResult<Vec<Vec<u8>>> {
        let appended = match self.sled.has_room_for(blocks.iter().map(|block| block.len() as u64).sum()) {
            true => self.files.append(name, blocks),
            false => Err(DbError::Full { path: self.sled.path.clone() }),
        };
        match appended {
            Ok(addresses) => {
                Ok(addresses.iter().map(|at| [&[IN_FILE], &at.to_bytes()[..]].concat()).collect())
            }
            Err(DbError::Full { .. }) => {
                Ok(blocks.iter().map(|block| [&[HERE], &block[..]].concat()).collect())
            }
            Err(e) => Err(e),
        }
    }

    /// The files of the entries of `table` whose keys begin with `prefix`.
    fn files_below(&self, table: Table, prefix: &[u8]) -> DbResult<BTreeSet<FileName>> {
        if !TABLES.contains(&table) {
            return Ok(BTreeSet::new());
        }
        let names = self.files.names()?.into_iter().filter(|name| name.table == table as u8);
        Ok(names.filter(|name| block_prefix(name.number).starts_with(prefix)).collect())
    }
}

/// The file that the block at `key` belongs to; `None` if the entry stays in sled.
fn file_of(table: u8, key: &[u8]) -> Option<FileName> {
    if !TABLES.iter().any(|of_runs| *of_runs as u8 == table) {
        return None;
    }
    let number = key.strip_prefix(&[BLOCKS])?.first_chunk()?;
    Some(FileName { table, number: u32::from_be_bytes(*number) })
}

fn block_prefix(number: u32) -> [u8; 5] {
    let [a, b, c, d] = number.to_be_bytes();
    [BLOCKS, a, b, c, d]
}

impl Db for IndexDb {
    fn get(&self, table: Table, key: &[u8]) -> DbResult<Option<Value>> {
        self.sled.get(table, key)?.map(|value| self.resolved(table, key, value)).transpose()
    }

    fn at_or_below(&self, table: Table, key: &[u8]) -> DbResult<Option<(Vec<u8>, Value)>> {
        let found = match file_of(table as u8, key) {
            Some(_) => self.sled.find_at_or_below(table, key, self.beyond_cache.load(Ordering::Relaxed)),
            None => self.sled.at_or_below(table, key),
        };
        let Some((key, value)) = found? else { return Ok(None) };
        let value = self.resolved(table, &key, value)?;
        Ok(Some((key, value)))
    }

    fn scan(&self, table: Table, from: &[u8], visit: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> DbResult<()> {
        self.scan_prefix(table, &[], from, visit)
    }

    fn scan_prefix(
        &self,
        table: Table,
        prefix: &[u8],
        from: &[u8],
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> DbResult<()> {
        let mut read = Ok(());
        self.sled.scan(table, from, &mut |key, value| {
            if !key.starts_with(prefix) {
                return false;
            }
            match self.block(table, key, value) {
                Ok(Some(block)) => visit(key, &block),
                Ok(None) => visit(key, value),
                Err(e) => {
                    read = Err(e);
                    false
                }
            }
        })?;
        read
    }

    fn scan_keys(&self, table: Table, from: &[u8], visit: &mut dyn FnMut(&[u8]) -> bool) -> DbResult<()> {
        self.sled.scan_keys(table, from, visit)
    }

    fn apply(&self, mut batch: Batch) -> DbResult<()> {
        let mut blocks: BTreeMap<FileName, (Vec<usize>, Vec<Vec<u8>>)> = BTreeMap::new();
        for (i, (key, value)) in batch.changes.iter_mut().enumerate() {
            let Some((&table, key)) = key.split_first() else { continue };
            if let (Some(name), Some(value)) = (file_of(table, key), value) {
                let (places, blocks) = blocks.entry(name).or_default();
                places.push(i);
                blocks.push(std::mem::take(value));
            }
        }
        for (name, (places, blocks)) in blocks {
            for (i, value) in places.into_iter().zip(self.put_away(name, &blocks)?) {
                batch.changes[i].1 = Some(value);
            }
        }
        self.sled.apply(batch)
    }

    fn flush(&self) -> DbResult<()> {
        self.files.sync()?;
        self.weigh_addresses();
        self.sled.flush()
    }

    fn bytes_on_disk(&self) -> u64 {
        self.sled.bytes_on_disk() + self.files.bytes()
    }

    fn compact(&self, keep_going: &dyn Fn() -> bool) -> DbResult<Compacted> {
        self.sled.compact(keep_going)
    }

    fn clear(&self, table: Table, prefix: &[u8]) -> DbResult<()> {
        self.sled.clear(table, prefix)?;
        let gone = self.files_below(table, prefix)?;
        if !gone.is_empty() {
            self.sled.flush()?;
        }
        gone.into_iter().try_for_each(|name| self.files.remove(name))
    }
}

// Seen to fail with strays found by a scan that reads their blocks.
#[cfg(test)]
mod tests {
    use super::*;
    use crate::db::{Layout, Merging, Plain, Tiers};

    const LAYOUT: Layout = Layout { table: Table::Chunks, row_len: 24, key_len: 16 };

    fn rows(from: u32, to: u32) -> Vec<Vec<u8>> {
        let mut rows: Vec<_> =
            (from..to).map(|i| blake3::hash(&i.to_le_bytes()).as_bytes()[..24].to_vec()).collect();
        rows.sort();
        rows
    }

    fn table(db: &IndexDb) -> Tiers<Plain> {
        let tiers = Tiers::new(LAYOUT, Merging::Doubling, 1 << 20);
        tiers.load(db).unwrap();
        tiers
    }

    fn add(tiers: &Tiers<Plain>, db: &IndexDb, from: u32, to: u32) {
        let rows = rows(from, to);
        tiers.add(db, rows.len() as u64, rows.iter()).unwrap();
        tiers.merge_due(db).unwrap();
    }

    fn has(tiers: &Tiers<Plain>, db: &IndexDb, from: u32, to: u32) -> bool {
        rows(from, to).iter().all(|row| tiers.find(db, &row[..16]).unwrap().as_ref() == Some(row))
    }

    #[test]
    fn runs_are_in_files_and_come_and_go_with_them() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("index");
        let db = IndexDb::open(&path, 8 << 20).unwrap();
        let tiers = table(&db);
        for step in 0..9 {
            add(&tiers, &db, step * 1000, step * 1000 + 1000);
        }
        assert!(has(&tiers, &db, 0, 9000));
        let files = db.files.bytes();
        assert!((9000 * 24..9000 * 30).contains(&files), "what was merged is gone: {files}");
        assert!(db.sled.bytes_on_disk() < db.bytes_on_disk());
        drop((tiers, db));
        let db = IndexDb::open(&path, 8 << 20).unwrap();
        let tiers = table(&db);
        assert!(has(&tiers, &db, 0, 9000));
        assert_eq!(db.files.bytes(), files);
        tiers.clear(&db).unwrap();
        assert_eq!(db.files.bytes(), 0);
        assert!(!has(&tiers, &db, 0, 1));
    }

    #[test]
    fn files_without_entries_are_removed_at_open() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("index");
        let db = IndexDb::open(&path, 8 << 20).unwrap();
        add(&table(&db), &db, 0, 1000);
        drop(db);
        for stray in ["63-900", "66-1", "7a-1"] {
            std::fs::write(path.join(RUNS).join(stray), "left by a crash").unwrap();
        }
        std::fs::write(path.join(RUNS).join("of somebody else"), "stays").unwrap();
        let db = IndexDb::open(&path, 8 << 20).unwrap();
        assert!(has(&table(&db), &db, 0, 1000));
        assert_eq!(std::fs::read_dir(path.join(RUNS)).unwrap().count(), 2);
        drop(db);
        std::fs::remove_dir_all(path.join(ROWS)).unwrap();
        let db = IndexDb::open(&path, 8 << 20).unwrap();
        assert!(!has(&table(&db), &db, 0, 1));
        assert_eq!(std::fs::read_dir(path.join(RUNS)).unwrap().count(), 1);
    }

    /// As after a power cut: of a run that the manifest does not name the entries may be there and the blocks not.
    #[test]
    fn an_unfinished_run_costs_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("index");
        let db = IndexDb::open(&path, 8 << 20).unwrap();
        add(&table(&db), &db, 0, 1000);
        let key = [&block_prefix(77)[..], &[1; 16]].concat();
        db.put(Table::Chunks, &key, &[1; 24]).unwrap();
        db.flush().unwrap();
        drop(db);
        std::fs::write(path.join(RUNS).join("63-77"), "").unwrap();
        let db = IndexDb::open(&path, 8 << 20).unwrap();
        assert!(has(&table(&db), &db, 0, 1000));
        assert_eq!(db.files.names().unwrap().len(), 1);
    }

    #[test]
    fn a_run_that_misses_blocks_is_found_at_load() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("index");
        let db = IndexDb::open(&path, 8 << 20).unwrap();
        add(&table(&db), &db, 0, 1000);
        let file = path.join(RUNS).join(db.files.names().unwrap().first().unwrap().to_string());
        let whole = std::fs::read(&file).unwrap();
        drop(db);
        let load = || {
            let db = IndexDb::open(&path, 8 << 20).unwrap();
            Tiers::<Plain>::new(LAYOUT, Merging::Doubling, 1 << 20).load(&db)
        };
        for damage in [0, whole.len() / 2, whole.len() - 1] {
            std::fs::write(&file, &whole[..damage]).unwrap();
            assert!(matches!(load(), Err(DbError::Row { .. })), "{damage}");
            let again = IndexDb::open(&path, 8 << 20).map(drop);
            assert!(matches!(again, Err(DbError::Broken { .. })), "{damage}");
            std::fs::remove_file(path.join(DAMAGED)).unwrap();
        }
        std::fs::remove_dir_all(path.join(RUNS)).unwrap();
        assert!(matches!(load(), Err(DbError::Row { .. })));
        std::fs::remove_file(path.join(DAMAGED)).unwrap();
        std::fs::create_dir_all(path.join(RUNS)).unwrap();
        std::fs::write(&file, &whole).unwrap();
        load().unwrap();
    }

    #[test]
    fn an_index_of_an_earlier_form_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("index");
        SledDb::open(&path, 8 << 20).unwrap().put(Table::Meta, b"clean", b"1").unwrap();
        let db = IndexDb::open(&path, 8 << 20).unwrap();
        assert_eq!(db.get(Table::Meta, b"clean").unwrap(), None);
        assert!(!path.join("db").exists());
    }

    /// What is read along the way of a copy must not be copied into it.
    #[test]
    fn a_compaction_leaves_blocks_where_they_are() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("index");
        let db = IndexDb::open(&path, 8 << 20).unwrap();
        let tiers = table(&db);
        add(&tiers, &db, 0, 5000);
        let (files, entries) = (db.files.names().unwrap(), db.files.bytes());
        for round in 0..40u32 {
            for i in 0..500u32 {
                db.put(Table::Files, &i.to_be_bytes(), &[round as u8; 400]).unwrap();
            }
        }
        let done = db.sled.compact_above(0, &|| true).unwrap();
        assert!(matches!(done, Compacted::Done { .. }), "{done:?}");
        assert_eq!((db.files.names().unwrap(), db.files.bytes()), (files, entries));
        assert!(has(&tiers, &db, 0, 5000));
    }
}
