//! The chunk index: from a key to the address of its frame.
//!
//! It has two parts: rows in the database ([`Tiers`] in `Table::Chunks`), and recent rows in memory, which
//! enter the database in sorted bulk. The Meta row "store.position" says up to which byte of the packs the
//! database is complete; opening reads the frames after it again.
//!
//! Invariants: everything here can be rebuilt from the packs. The position in the database never runs ahead
//! of the durable packs or of the durable rows. So the order is: fdatasync pack, rows, flush, position,
//! flush.

use super::entry::{Address, Entry};
use super::error::StoreError;
use super::frame::{Key, Kind};
use crate::db::{Db, DbError, Layout, Merging, Table, Tiers};
use crate::id::{RecipeId, StoreId};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

const ROW_BYTES: usize = Key::BYTES + 16;
const LAYOUT: Layout = Layout { table: Table::Chunks, row_len: ROW_BYTES, key_len: Key::BYTES };
const POSITION_KEY: &[u8] = b"store.position";
/// 1 was a table with another row format.
const POSITION_VERSION: u8 = 2;
const REMOVING_KEY: &[u8] = b"store.removing";
const GROUPING_KEY: &[u8] = b"store.grouping";

/// Marks a row whose key was removed ([`Tiers`]).
const REMOVED: Address =
    Address { pack: u32::MAX, offset: u32::MAX, stored_len: u32::MAX, raw_len: u32::MAX };

/// A position in the sequence of all packs, in append order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Position {
    pub(super) pack: u32,
    pub(super) offset: u32,
}

/// Counters that are stored with the index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counters {
    pub(super) chunks: u64,
    pub(super) recipes: u64,
    /// Raw bytes of the chunks.
    pub(super) unique_bytes: u64,
}

impl Counters {
    pub(super) fn add(&mut self, key: &Key, address: &Address) {
        match Kind::of(key.kind()) {
            Some(Kind::Chunk) => {
                self.chunks += 1;
                self.unique_bytes += u64::from(address.raw_len);
            }
            Some(Kind::Recipe) => self.recipes += 1,
            Some(
                Kind::Footer
                | Kind::Void
                | Kind::Node
                | Kind::Events
                | Kind::Snapshot
                | Kind::Group
                | Kind::Delta
                | Kind::Dictionary,
            )
            | None => {}
        }
    }

    pub(super) fn subtract(&mut self, gone: &Counters) {
        self.chunks = self.chunks.saturating_sub(gone.chunks);
        self.recipes = self.recipes.saturating_sub(gone.recipes);
        self.unique_bytes = self.unique_bytes.saturating_sub(gone.unique_bytes);
    }
}

/// Total effect of grouping since the index was built. Sizes in bytes on disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Grouping {
    /// Chunks grouped.
    pub chunks: u64,
    /// Their bytes before.
    pub before_bytes: u64,
    /// Their bytes after.
    pub after_bytes: u64,
}

#[derive(Default)]
struct Recent {
    fresh: BTreeMap<Key, Address>,
    /// Being merged into the database; still looked up here until all rows are there.
    merging: Arc<BTreeMap<Key, Address>>,
}

impl Recent {
    fn find_recipe(&self, id: &RecipeId) -> Option<Entry> {
        let (mut low, mut high) = ([0; Key::BYTES], [0xff; Key::BYTES]);
        low[..16].copy_from_slice(&id.0);
        high[..16].copy_from_slice(&id.0);
        for map in [&self.fresh, &*self.merging] {
            let mut rows = map.range(Key(low)..=Key(high));
            if let Some((&key, &address)) = rows.find(|(key, _)| key.recipe_id().is_some()) {
                return Some(Entry { key, address });
            }
        }
        None
    }
}

/// The index. Rows found in memory are newer than rows in the database.
pub(super) struct Index {
    db: Arc<dyn Db>,
    tiers: Tiers,
    recent: RwLock<Recent>,
    /// Number of rows ever added: a writer can cheaply check that nothing changed since its look-up.
    generation: AtomicU64,
}

impl Index {
    /// Opens the index in `db`; unusable content counts as empty. Filters take at most about `filter_bytes`.
    pub(super) fn open(db: Arc<dyn Db>, filter_bytes: u64) -> Result<Index, StoreError> {
        let tiers = Tiers::new(LAYOUT, Merging::Doubling, filter_bytes);
        let index = Index { db, tiers, recent: RwLock::default(), generation: AtomicU64::new(0) };
        match index.tiers.load(&*index.db) {
            Err(DbError::Row { .. }) => index.clear()?,
            other => other?,
        }
        Ok(index)
    }

    fn recent(&self) -> RwLockReadGuard<'_, Recent> {
        self.recent.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn recent_mut(&self) -> RwLockWriteGuard<'_, Recent> {
        self.recent.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Returns the address from memory, if present.
    pub(super) fn find_recent(&self, key: &Key) -> Option<Address> {
        let recent = self.recent();
        recent.fresh.get(key).or_else(|| recent.merging.get(key)).copied()
    }

    pub(super) fn find_in_db(&self, key: &Key) -> Result<Option<Address>, StoreError> {
        let row = self.tiers.find(&*self.db, &key.0)?;
        Ok(row.map(|row| address_of(&row)))
    }

    pub(super) fn find(&self, key: &Key) -> Result<Option<Address>, StoreError> {
        // Memory first: a row leaves memory only once it is in the database.
        match self.find_recent(key) {
            Some(address) => Ok(Some(address)),
            None => self.find_in_db(key),
        }
    }

    /// Returns a recipe's key and address by its 16-byte id.
    pub(super) fn find_recipe(&self, id: &RecipeId) -> Result<Option<Entry>, StoreError> {
        Ok(self.find_recipes(std::slice::from_ref(id))?[0])
    }

    /// As [`Index::find_recipe`] for many recipes, in ascending order: a block of the table is read once for all in it.
    pub(super) fn find_recipes(&self, ids: &[RecipeId]) -> Result<Vec<Option<Entry>>, StoreError> {
        debug_assert!(ids.is_sorted());
        // Memory first: a row leaves memory only once it is in the database.
        let mut found: Vec<_> = {
            let recent = self.recent();
            ids.iter().map(|id| recent.find_recipe(id)).collect()
        };
        let (places, prefixes): (Vec<usize>, Vec<&[u8; 16]>) =
            (0..ids.len()).filter(|at| found[*at].is_none()).map(|at| (at, &ids[at].0)).unzip();
        self.tiers.scan_each(&*self.db, &prefixes, usize::MAX, |i, row| {
            let (entry, found) = (entry_of(row), &mut found[places[i]]);
            *found = found.or(entry.key.recipe_id().map(|_| entry));
        })?;
        Ok(found)
    }

    /// As [`Index::find`] for many keys, in ascending order.
    pub(super) fn find_all(&self, keys: &[Key]) -> Result<Vec<Option<Address>>, StoreError> {
        debug_assert!(keys.is_sorted());
        let mut found: Vec<_> = keys.iter().map(|key| self.find_recent(key)).collect();
        let (places, rows): (Vec<usize>, Vec<&[u8; Key::BYTES]>) =
            (0..keys.len()).filter(|at| found[*at].is_none()).map(|at| (at, &keys[at].0)).unzip();
        self.tiers
            .scan_each(&*self.db, &rows, usize::MAX, |i, row| found[places[i]] = Some(address_of(row)))?;
        Ok(found)
    }

    pub(super) fn insert(&self, entries: &[Entry]) {
        let mut recent = self.recent_mut();
        recent.fresh.extend(entries.iter().map(|entry| (entry.key, entry.address)));
        self.generation.fetch_add(entries.len() as u64, Ordering::Release);
    }

    /// Returns how many rows in memory are not yet part of a merge.
    pub(super) fn fresh_rows(&self) -> usize {
        self.recent().fresh.len()
    }

    /// Freezes the recent rows for [`Index::merge_frozen`]. The caller holds a lock, so that one merge runs
    /// at a time.
    pub(super) fn freeze(&self) {
        let mut recent = self.recent_mut();
        let fresh = std::mem::take(&mut recent.fresh);
        match recent.merging.is_empty() {
            true => recent.merging = Arc::new(fresh),
            // An earlier merge failed.
            false => Arc::make_mut(&mut recent.merging).extend(fresh),
        }
    }

    /// Writes the frozen rows to the database, durably. On an error they stay in memory.
    pub(super) fn merge_frozen(&self) -> Result<(), StoreError> {
        let merging = Arc::clone(&self.recent().merging);
        if merging.is_empty() {
            return Ok(());
        }
        self.add_rows(merging.len(), merging.iter().map(|(key, address)| (*key, *address)))?;
        drop(merging);
        let done = std::mem::take(&mut self.recent_mut().merging);
        // Freeing many rows takes time; no caller should wait for it.
        drop(done);
        Ok(())
    }

    fn add_rows(&self, count: usize, rows: impl Iterator<Item = (Key, Address)>) -> Result<(), StoreError> {
        let rows = rows.map(|(key, address)| row_of(&key, &address));
        Ok(self.tiers.add(&*self.db, count as u64, rows)?)
    }

    /// Merges database runs if there are enough of them. Other calls may run meanwhile.
    pub(super) fn merge_due(&self) -> Result<(), StoreError> {
        Ok(self.tiers.merge_due(&*self.db)?)
    }

    /// Adds many entries to the database, past the recent rows, for a rebuild. The last entry of a key wins.
    pub(super) fn bulk(&self, entries: &mut Vec<Entry>) -> Result<(), StoreError> {
        // A stable sort keeps the last given entry last among equal keys.
        entries.sort_by_key(|entry| entry.key);
        entries.reverse();
        entries.dedup_by_key(|entry| entry.key);
        self.add_rows(entries.len(), entries.iter().rev().map(|entry| (entry.key, entry.address)))?;
        self.merge_due()
    }

    /// Ends a rebuild: calls `visit` with each entry.
    pub(super) fn settle(&self, mut visit: impl FnMut(Entry)) -> Result<(), StoreError> {
        Ok(self.tiers.merge_all(&*self.db, &mut |row| visit(entry_of(row)))?)
    }

    /// Removes the rows of `keys` that point to `gone` packs, and counts them. The caller holds the merge
    /// lock.
    pub(super) fn forget(&self, keys: &[Key], gone: impl Fn(u32) -> bool) -> Result<Counters, StoreError> {
        let mut counters = Counters::default();
        let mut removes = Vec::new();
        for key in keys {
            if let Some(address) = self.find_in_db(key)?.filter(|address| gone(address.pack)) {
                counters.add(key, &address);
                removes.push((*key, REMOVED));
            }
        }
        let in_memory = {
            let mut recent = self.recent_mut();
            let Recent { fresh, merging } = &mut *recent;
            let mut found = Vec::new();
            for key in keys {
                for map in [&mut *fresh, Arc::make_mut(merging)] {
                    if map.get(key).is_some_and(|address| gone(address.pack)) {
                        found.extend(map.remove(key).map(|address| Entry { key: *key, address }));
                    }
                }
            }
            found
        };
        for Entry { key, address } in in_memory {
            // Already counted if an older row was in the database.
            if self.find_in_db(&key)?.is_none() {
                counters.add(&key, &address);
            }
        }
        if !removes.is_empty() {
            removes.sort_unstable_by_key(|(key, _)| *key);
            removes.dedup_by_key(|(key, _)| *key);
            self.add_rows(removes.len(), removes.into_iter())?;
        }
        Ok(counters)
    }

    /// Durably notes the packs that are being removed; empty once no rows point to them.
    pub(super) fn note_removing(&self, packs: impl Iterator<Item = u32>) -> Result<(), StoreError> {
        let value: Vec<u8> = packs.flat_map(u32::to_le_bytes).collect();
        self.db.put(Table::Meta, REMOVING_KEY, &value)?;
        Ok(self.db.flush()?)
    }

    /// Returns the packs noted as being removed.
    pub(super) fn removing(&self) -> Result<Vec<u32>, StoreError> {
        let value = self.db.get(Table::Meta, REMOVING_KEY)?;
        let number = |bytes: &[u8]| bytes.first_chunk().map(|bytes| u32::from_le_bytes(*bytes));
        Ok(value.map(|value| value.chunks_exact(4).filter_map(number).collect()).unwrap_or_default())
    }

    /// Returns the total effect of grouping.
    pub(super) fn grouping(&self) -> Result<Grouping, StoreError> {
        let value = self.db.get(Table::Meta, GROUPING_KEY)?.unwrap_or_default();
        let number = |i: usize| {
            let bytes = value.get(8 * i..).and_then(|bytes| bytes.first_chunk());
            bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes))
        };
        Ok(Grouping { chunks: number(0), before_bytes: number(1), after_bytes: number(2) })
    }

    /// Adds to the total effect of grouping.
    pub(super) fn add_grouping(&self, more: Grouping) -> Result<(), StoreError> {
        let now = self.grouping()?;
        let sums = [
            now.chunks.saturating_add(more.chunks),
            now.before_bytes.saturating_add(more.before_bytes),
            now.after_bytes.saturating_add(more.after_bytes),
        ];
        let value: Vec<u8> = sums.into_iter().flat_map(u64::to_le_bytes).collect();
        Ok(self.db.put(Table::Meta, GROUPING_KEY, &value)?)
    }

    /// Removes everything.
    pub(super) fn clear(&self) -> Result<(), StoreError> {
        // The position goes first: without it, leftover rows after a crash are known to be worthless.
        let mut batch = crate::db::Batch::new();
        batch.remove(Table::Meta, POSITION_KEY);
        self.db.apply(batch)?;
        self.db.flush()?;
        *self.recent_mut() = Recent::default();
        Ok(self.tiers.clear(&*self.db)?)
    }

    /// Visits every row of the database, then every row in memory, until `visit` breaks.
    pub(super) fn for_each(&self, mut visit: impl FnMut(Entry) -> ControlFlow<()>) -> Result<(), StoreError> {
        let mut stopped = false;
        self.tiers.scan(&*self.db, &[], |row| {
            let flow = visit(entry_of(row));
            stopped = flow.is_break();
            flow
        })?;
        let rows: Vec<Entry> = {
            let recent = self.recent();
            let maps = [&*recent.merging, &recent.fresh].into_iter();
            maps.flatten().map(|(&key, &address)| Entry { key, address }).collect()
        };
        if !stopped {
            let _ = rows.into_iter().try_for_each(visit);
        }
        Ok(())
    }

    /// Returns position and counters from the database; `None` if there are none for this store.
    pub(super) fn load_position(&self, store: StoreId) -> Result<Option<(Position, Counters)>, StoreError> {
        let Some(value) = self.db.get(Table::Meta, POSITION_KEY)? else {
            return Ok(None);
        };
        Ok(decode_position(&value, store))
    }

    /// Writes the position, durably.
    pub(super) fn save_position(
        &self,
        store: StoreId,
        at: Position,
        counters: Counters,
    ) -> Result<(), StoreError> {
        self.db.put(Table::Meta, POSITION_KEY, &encode_position(store, at, counters))?;
        Ok(self.db.flush()?)
    }
}

/// Whether an error means that the index is unusable and a rebuild may help.
pub(super) fn is_bad_row(error: &StoreError) -> bool {
    matches!(error, StoreError::Db(DbError::Row { .. }))
}

pub(super) fn encode_position(store: StoreId, at: Position, counters: Counters) -> Vec<u8> {
    let mut out = vec![POSITION_VERSION];
    out.extend_from_slice(&store.0);
    out.extend_from_slice(&at.pack.to_le_bytes());
    out.extend_from_slice(&at.offset.to_le_bytes());
    for count in [counters.chunks, counters.recipes, counters.unique_bytes] {
        out.extend_from_slice(&count.to_le_bytes());
    }
    let crc = crc32fast::hash(&out);
    out.extend_from_slice(&crc.to_le_bytes());
    out
}

pub(super) fn decode_position(value: &[u8], store: StoreId) -> Option<(Position, Counters)> {
    let (body, crc) = value.split_last_chunk::<4>()?;
    if u32::from_le_bytes(*crc) != crc32fast::hash(body) {
        return None;
    }
    let (&version, rest) = body.split_first()?;
    let (id, rest) = rest.split_first_chunk::<16>()?;
    let (pack, rest) = rest.split_first_chunk::<4>()?;
    let (offset, counts) = rest.split_first_chunk::<4>()?;
    let counts: &[u8; 24] = counts.try_into().ok()?;
    let count = |i: usize| counts[8 * i..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
    let at = Position { pack: u32::from_le_bytes(*pack), offset: u32::from_le_bytes(*offset) };
    let counters = Counters { chunks: count(0), recipes: count(1), unique_bytes: count(2) };
    (version == POSITION_VERSION && *id == store.0).then_some((at, counters))
}

/// Numbers are big-endian, as in every table.
fn row_of(key: &Key, address: &Address) -> [u8; ROW_BYTES] {
    let mut row = [0; ROW_BYTES];
    row[..Key::BYTES].copy_from_slice(&key.0);
    let numbers = [address.pack, address.offset, address.stored_len, address.raw_len];
    for (place, number) in row[Key::BYTES..].chunks_exact_mut(4).zip(numbers) {
        place.copy_from_slice(&number.to_be_bytes());
    }
    row
}

fn entry_of(row: &[u8]) -> Entry {
    Entry { key: Key(*row.first_chunk().expect("a row is longer than its key")), address: address_of(row) }
}

fn address_of(row: &[u8]) -> Address {
    let number = |i: usize| {
        let bytes = row[Key::BYTES + 4 * i..].first_chunk().expect("a row has four numbers");
        u32::from_be_bytes(*bytes)
    };
    Address { pack: number(0), offset: number(1), stored_len: number(2), raw_len: number(3) }
}
