//! The index of a method: which contents have sketches like this one.
//!
//! ```text
//! Meta "method.NAME"        -> version 1 | prefix 1 | next number 8 | contents 8 | postings 8 | dead 8 | parameters
//! MethodKeys                -> (prefix, key, number) with a value, see `postings`
//! MethodSketches            -> (prefix, number) with content id, keys and head, see `heads`
//! MethodNumbered            -> prefix 1 | content id 16 | number 4
//! ```
//!
//! All methods share the tables; each has a prefix of its own, the lowest that was free. No row grows with a file. As all of
//! similarity the index is a hint and can be rebuilt from the files.
//!
//! Invariants:
//! - A number is given out once, so leftovers of a crash or a removal never name another content.
//! - The row that makes a content known is written last and removed first.
//! - An index answers only for the parameters that it was made with.
//!
//! Additions gather in memory, up to a bound, and each query merges them first, so it sees everything. Postings of
//! removed contents stay until they are a quarter of the rest; then one pass drops them.

mod ask;

pub use ask::{Found, FoundPair, PairCounts, PairsAsked};

use super::heads::{HEAD_ROW_BYTES, HEADS, HeadRow, head_key};
use super::postings::{KEY_BYTES, POSTING_BYTES, POSTINGS, Postings, key_prefix, of_posting, posting};
use super::{AnyMethod, AnySketch, Entry, KeyVisitor};
use crate::db::{Batch, Codec, Db, Layout, Runs, Table};
use crate::id::RecipeId;
use crate::similarity::SimilarityError;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

type Result<T> = std::result::Result<T, SimilarityError>;

const META_VERSION: u8 = 3;
const ID_BYTES: usize = 16;
/// Gets a content: its number, id, number of keys, and encoded head. False ends the visit.
pub type VisitContent<'a> = dyn FnMut(u32, RecipeId, u64, &[u8]) -> bool + 'a;

/// Bytes of keys that one step removes.
const CLEARED_BYTES: usize = 4 << 20;
/// Contents that one step removes.
const FORGOTTEN_MAX: usize = 1024;
/// Bytes of memory that merging takes for each byte of a gathered row: a reference to it, to be sorted.
const MERGED_BYTES: usize = 3;
const META_PREFIX: &[u8] = b"method.";
static NUMBERED: Runs =
    Runs::new(Layout { table: Table::MethodNumbered, row_len: 1 + ID_BYTES + 4, key_len: 1 + ID_BYTES });

/// Options of an index that do not change the stored data.
#[derive(Clone, Copy, Debug)]
pub struct IndexOptions {
    /// About how many bytes of memory additions may take before they are merged into the database.
    pub buffer_bytes: usize,
    /// A key that more contents than this have is not followed. The papers have no such bound.
    pub frequency_cap: usize,
}

impl Default for IndexOptions {
    fn default() -> Self {
        IndexOptions { buffer_bytes: 32 << 20, frequency_cap: usize::MAX }
    }
}

/// Size of an index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IndexStats {
    /// Contents that can be found.
    pub contents: u64,
    /// (key, content) pairs.
    pub postings: u64,
}

#[derive(Default)]
struct State {
    next_number: u64,
    stats: IndexStats,
    /// Postings of removed contents.
    dead: u64,
    /// Rows of postings to add, end to end.
    added: Vec<u8>,
    numbered: BTreeMap<RecipeId, u32>,
    heads: BTreeMap<u32, HeadRow>,
    head_bytes: usize,
    /// Bytes of the index when it last had this size.
    measured: Option<(IndexStats, u64, u64)>,
}

impl State {
    fn bytes(&self) -> usize {
        let row = 2 * (ID_BYTES + 4) + 128;
        MERGED_BYTES * self.added.len() + self.head_bytes + row * self.numbered.len()
    }
}

/// The index of one method. May be used from many threads.
pub struct Index {
    db: Arc<dyn Db>,
    method: Arc<dyn AnyMethod>,
    options: IndexOptions,
    prefix: u8,
    state: Arc<Mutex<State>>,
}

/// The set of numbers of known contents.
struct Live(Vec<u64>);

impl Live {
    fn has(&self, number: u32) -> bool {
        self.0.get(number as usize / 64).is_some_and(|word| word >> (number % 64) & 1 == 1)
    }
}

impl Index {
    /// Opens the index of `method` in `db`, empty if there is none.
    ///
    /// Fails with [`SimilarityError::Parameters`] if it was made with other parameters, and with
    /// [`SimilarityError::Format`] if another version of this program wrote it.
    pub fn open(db: Arc<dyn Db>, method: Arc<dyn AnyMethod>, options: IndexOptions) -> Result<Index> {
        let mut state = State::default();
        let row = db.get(Table::Meta, &meta_key(method.name()))?;
        let is_new = row.is_none();
        let prefix = match row {
            None => free_prefix(&*db)?,
            Some(value) => {
                let (prefix, parameters) = read_meta(&value, &mut state).ok_or(SimilarityError::Format)?;
                same_parameters(parameters, &*method)?;
                prefix
            }
        };
        let index = Index { db, method, options, prefix, state: Arc::new(Mutex::new(state)) };
        if is_new {
            index.write_meta(&index.lock())?;
        }
        Ok(index)
    }

    /// Returns the same index for a method with other settings that no sketch depends on, such as tolerances.
    ///
    /// Fails with [`SimilarityError::Parameters`] if sketches depend on them.
    pub fn asked_by(&self, method: Arc<dyn AnyMethod>) -> Result<Index> {
        same_parameters(self.method.settings(), &*method)?;
        let Index { db, options, prefix, state, .. } = self;
        Ok(Index { db: db.clone(), method, options: *options, prefix: *prefix, state: state.clone() })
    }

    /// Returns whether `db` has an index of `method` that [`Index::open`] would open.
    pub fn is_there(db: &dyn Db, method: &dyn AnyMethod) -> Result<bool> {
        let row = db.get(Table::Meta, &meta_key(method.name()))?;
        let meta = row.and_then(|value| read_meta(&value, &mut State::default()));
        Ok(meta.is_some_and(|(_, parameters)| parameters == method.settings()))
    }

    /// Removes the index of the method of that name from `db`, if there is one, whatever it was made with.
    pub fn remove(db: &dyn Db, name: &str) -> Result<()> {
        let Some(value) = db.get(Table::Meta, &meta_key(name))? else { return Ok(()) };
        let (_, &prefix) = value.first().zip(value.get(1)).ok_or(SimilarityError::Format)?;
        let every = &mut |_: &[u8]| true;
        clear(&NUMBERED, db, prefix, 1 + ID_BYTES, every)?;
        clear(&POSTINGS, db, prefix, KEY_BYTES, every)?;
        clear(&HEADS, db, prefix, 5, every)?;
        let mut batch = Batch::new();
        batch.remove(Table::Meta, &meta_key(name));
        Ok(db.apply(batch)?)
    }

    /// Removes all indexes from `db` if another version of this program wrote one of them: their tables have another
    /// form. Returns whether there was one.
    pub fn remove_outdated(db: &dyn Db) -> Result<bool> {
        let (mut outdated, mut names) = (false, Vec::new());
        db.scan(Table::Meta, META_PREFIX, &mut |key, value| {
            let is_one = key.starts_with(META_PREFIX);
            if is_one {
                outdated |= value.first() != Some(&META_VERSION);
                names.push(key.to_vec());
            }
            is_one
        })?;
        if !outdated {
            return Ok(false);
        }
        for table in [Table::MethodNumbered, Table::MethodKeys, Table::MethodSketches] {
            db.clear(table, &[])?;
        }
        let mut batch = Batch::new();
        names.iter().for_each(|name| batch.remove(Table::Meta, name));
        db.apply(batch)?;
        Ok(true)
    }

    /// Returns its method.
    pub fn method(&self) -> &Arc<dyn AnyMethod> {
        &self.method
    }

    /// Returns its size.
    pub fn stats(&self) -> IndexStats {
        self.lock().stats
    }

    /// Returns whether the content was added and not removed since.
    pub fn has(&self, id: &RecipeId) -> Result<bool> {
        Ok(self.number(&self.lock(), id)?.is_some())
    }

    /// Calls `visit` with the places in `ids`, which are sorted, of unknown contents. Reads the rows between
    /// the first and the last once.
    pub fn each_missing(&self, ids: &[RecipeId], visit: &mut dyn FnMut(usize)) -> Result<()> {
        self.flush()?;
        let (Some(first), Some(last)) = (ids.first(), ids.last()) else { return Ok(()) };
        let mut at = 0;
        NUMBERED.scan_from(&*self.db, &[self.prefix], &self.numbered_key(first), |row| {
            let id = &row[1..1 + ID_BYTES];
            while ids.get(at).is_some_and(|wanted| wanted.0[..] < *id) {
                visit(at);
                at += 1;
            }
            at += usize::from(ids.get(at).is_some_and(|wanted| wanted.0[..] == *id));
            *id < last.0[..]
        })?;
        (at..ids.len()).for_each(visit);
        Ok(())
    }

    /// Returns the encoded head of a content, and its number of keys; `None` if it is not known.
    pub fn head(&self, id: &RecipeId) -> Result<Option<(Vec<u8>, u64)>> {
        self.flush()?;
        let Some(number) = self.number(&self.lock(), id)? else { return Ok(None) };
        Ok(self.head_numbered(number)?.map(|row| (row.head, row.keys)))
    }

    /// Adds a content; does nothing if it is known. May merge the buffer, which takes time.
    pub fn add(&self, id: RecipeId, sketch: &AnySketch) -> Result<()> {
        // A bad sketch must fail here, not in a later query.
        self.method.comparer(sketch.head(), sketch.keys())?;
        let mut state = self.lock();
        if self.number(&state, &id)?.is_some() {
            return Ok(());
        }
        let number = u32::try_from(state.next_number).map_err(|_| SimilarityError::Full)?;
        state.next_number += 1;
        // Its postings count as dead until its head is there.
        state.dead += sketch.keys();
        sketch.each(&mut |entry| {
            state.added.extend_from_slice(&posting(self.prefix, entry, number));
            if state.bytes() < self.options.buffer_bytes { Ok(()) } else { self.merge(&mut state) }
        })?;
        state.dead -= sketch.keys();
        state.stats.contents += 1;
        state.stats.postings += sketch.keys();
        let row = HeadRow { id, keys: sketch.keys(), head: sketch.head().to_vec() };
        state.head_bytes += row.head.len();
        state.heads.insert(number, row);
        state.numbered.insert(id, number);
        if state.bytes() < self.options.buffer_bytes { Ok(()) } else { self.merge(&mut state) }
    }

    /// Removes a content; does nothing if it is not known.
    pub fn forget(&self, id: &RecipeId) -> Result<()> {
        self.forget_all(std::slice::from_ref(id))
    }

    /// Removes those of the contents that are known. Several at a time, so that adjacent rows are written once.
    pub fn forget_all(&self, ids: &[RecipeId]) -> Result<()> {
        ids.chunks(FORGOTTEN_MAX).try_for_each(|ids| self.forget_some(ids))
    }

    fn forget_some(&self, ids: &[RecipeId]) -> Result<()> {
        let mut state = self.lock();
        // Then the whole of a content is in the database, or nothing of it.
        self.merge(&mut state)?;
        let mut numbers = BTreeMap::new();
        for id in ids {
            numbers.extend(self.number(&state, id)?.map(|number| (number, *id)));
        }
        if numbers.is_empty() {
            return Ok(());
        }
        let known = numbers.values().flat_map(|id| self.numbered_key(id)).collect();
        NUMBERED.merge(&*self.db, Vec::new(), known)?;
        state.stats.contents = state.stats.contents.saturating_sub(numbers.len() as u64);
        let all: Vec<u32> = numbers.into_keys().collect();
        let mut keys = 0;
        self.each_head(&all, &mut |_, row| {
            keys += row.keys;
            Ok(true)
        })?;
        state.stats.postings = state.stats.postings.saturating_sub(keys);
        state.dead += keys;
        let heads = all.iter().flat_map(|&number| head_key(self.prefix, number)).collect();
        HEADS.merge(&*self.db, Vec::new(), heads)?;
        if state.dead > state.stats.postings / 4 {
            self.sweep(&mut state)?;
        }
        self.write_meta(&state)
    }

    /// Removes the postings of removed contents. O(index).
    fn sweep(&self, state: &mut State) -> Result<()> {
        let live = self.live()?;
        clear(&POSTINGS, &*self.db, self.prefix, KEY_BYTES, &mut |row| !live.has(of_posting(row).1))?;
        state.dead = 0;
        Ok(())
    }

    /// Merges everything into the database. Durable once the caller has flushed the database.
    pub fn flush(&self) -> Result<()> {
        self.merge(&mut self.lock())
    }

    /// Calls `visit` with each key, the contents that have it and their values, ascending, until it returns false. Includes
    /// removed contents.
    fn each_key(&self, visit: KeyVisitor<'_>) -> Result<()> {
        let (mut current, mut list) = (0, Vec::new());
        let mut goes_on = true;
        POSTINGS.scan(&*self.db, &[self.prefix], |row| {
            let (Entry { key, value }, content) = of_posting(row);
            if key != current && !list.is_empty() {
                goes_on = visit(current, &list);
                list.clear();
            }
            current = key;
            list.push((content, value));
            goes_on
        })?;
        if goes_on && !list.is_empty() {
            visit(current, &list);
        }
        Ok(())
    }

    /// Calls `visit` with each key from `from` on, the numbers of the contents that have it and the values, both ascending,
    /// until it returns false.
    pub fn keys(&self, from: u64, visit: KeyVisitor<'_>) -> Result<()> {
        self.flush()?;
        let live = self.live()?;
        let (mut current, mut list) = (0, Vec::new());
        let mut goes_on = true;
        POSTINGS.scan_from(&*self.db, &[self.prefix], &key_prefix(self.prefix, from), |row| {
            let (Entry { key, value }, content) = of_posting(row);
            if key != current && !list.is_empty() {
                goes_on = visit(current, &list);
                list.clear();
            }
            current = key;
            if live.has(content) {
                list.push((content, value));
            }
            goes_on
        })?;
        if goes_on && !list.is_empty() {
            visit(current, &list);
        }
        Ok(())
    }

    /// Returns [`Index::keys`] packed into bytes, until they are `most` rows or more; and the key for the next call, if there
    /// are more. [`super::unpack_keys`] reads them.
    pub fn packed_keys(&self, from: u64, most: usize) -> Result<(Vec<u8>, Option<u64>)> {
        let (mut rows, mut next) = (Vec::new(), None);
        self.keys(from, &mut |key, list| {
            if rows.len() >= most.saturating_mul(POSTING_BYTES) {
                next = Some(key);
                return false;
            }
            for &(content, value) in list {
                rows.extend_from_slice(&posting(self.prefix, Entry { key, value }, content));
            }
            true
        })?;
        Ok((Postings::encode(&rows, POSTING_BYTES), next))
    }

    /// Calls `visit` with each content from a number on: its number, id, number of keys and encoded head, by number, until it
    /// returns false.
    pub fn contents(&self, from: u32, visit: &mut VisitContent<'_>) -> Result<()> {
        self.flush()?;
        self.each_row(from, &mut |number, row| visit(number, row.id, row.keys, &row.head))
    }

    fn each_row(&self, from: u32, visit: &mut dyn FnMut(u32, HeadRow) -> bool) -> Result<()> {
        Ok(HEADS.scan_from(&*self.db, &[self.prefix], &head_key(self.prefix, from), |row| {
            let (number, row) = HeadRow::of_row(row);
            visit(number, row)
        })?)
    }

    /// Calls `visit` with the place in `numbers`, which ascend, and the content of each that was not removed.
    pub(super) fn each_head(
        &self,
        numbers: &[u32],
        visit: &mut dyn FnMut(usize, HeadRow) -> Result<bool>,
    ) -> Result<()> {
        let keys: Vec<_> = numbers.iter().map(|&number| head_key(self.prefix, number)).collect();
        let mut failed = Ok(true);
        HEADS.scan_each(&*self.db, &keys, |at, row| {
            if matches!(failed, Ok(true)) {
                failed = visit(at, HeadRow::of_row(row).1);
            }
            matches!(failed, Ok(true))
        })?;
        failed.map(drop)
    }

    fn head_numbered(&self, number: u32) -> Result<Option<HeadRow>> {
        let row = HEADS.find(&*self.db, &head_key(self.prefix, number))?;
        Ok(row.map(|row| HeadRow::of_row(&row).1))
    }

    fn live(&self) -> Result<Live> {
        let mut live = Live(Vec::new());
        self.each_row(0, &mut |number, _| {
            let word = number as usize / 64;
            live.0.resize(live.0.len().max(word + 1), 0);
            live.0[word] |= 1 << (number % 64);
            true
        })?;
        Ok(live)
    }

    /// Returns the bytes of its packed rows. Reads all of them, unless its size is the same as the last time.
    pub fn bytes(&self) -> Result<u64> {
        self.flush()?;
        let (stats, dead, measured) = {
            let state = self.lock();
            (state.stats, state.dead, state.measured)
        };
        if let Some((_, _, bytes)) = measured.filter(|(of, gone, _)| (*of, *gone) == (stats, dead)) {
            return Ok(bytes);
        }
        let (db, prefix) = (&*self.db, self.prefix);
        let bytes = packed_bytes(&POSTINGS, db, prefix, POSTING_BYTES)?
            + packed_bytes(&HEADS, db, prefix, HEAD_ROW_BYTES)?
            + packed_bytes(&NUMBERED, db, prefix, 1 + ID_BYTES + 4)?;
        self.lock().measured = Some((stats, dead, bytes));
        Ok(bytes)
    }

    fn number(&self, state: &State, id: &RecipeId) -> Result<Option<u32>> {
        if let Some(number) = state.numbered.get(id) {
            return Ok(Some(*number));
        }
        let row = NUMBERED.find(&*self.db, &self.numbered_key(id))?;
        Ok(row.map(|row| row[1 + ID_BYTES..].iter().fold(0, |number, &byte| number << 8 | u32::from(byte))))
    }

    fn merge(&self, state: &mut State) -> Result<()> {
        if state.bytes() == 0 {
            return Ok(());
        }
        // The counters come first, so that no number is given out twice.
        self.write_meta(state)?;
        POSTINGS.merge(&*self.db, std::mem::take(&mut state.added), Vec::new())?;
        let heads = std::mem::take(&mut state.heads).into_iter();
        let rows = heads.flat_map(|(number, row)| row.to_row(self.prefix, number)).collect();
        HEADS.merge(&*self.db, rows, Vec::new())?;
        state.head_bytes = 0;
        let rows = std::mem::take(&mut state.numbered).into_iter().flat_map(|(id, number)| {
            self.numbered_key(&id).into_iter().chain(number.to_be_bytes()).collect::<Vec<u8>>()
        });
        Ok(NUMBERED.merge(&*self.db, rows.collect(), Vec::new())?)
    }

    fn write_meta(&self, state: &State) -> Result<()> {
        let mut value = vec![META_VERSION, self.prefix];
        for number in [state.next_number, state.stats.contents, state.stats.postings, state.dead] {
            value.extend_from_slice(&number.to_le_bytes());
        }
        value.extend_from_slice(self.method.settings().as_bytes());
        Ok(self.db.put(Table::Meta, &meta_key(self.method.name()), &value)?)
    }

    fn numbered_key(&self, id: &RecipeId) -> [u8; 1 + ID_BYTES] {
        let mut key = [self.prefix; 1 + ID_BYTES];
        key[1..].copy_from_slice(&id.0);
        key
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn meta_key(name: &str) -> Vec<u8> {
    [META_PREFIX, name.as_bytes()].concat()
}

fn same_parameters(has: String, method: &dyn AnyMethod) -> Result<()> {
    let (method, wanted) = (method.name(), method.settings());
    if has == wanted { Ok(()) } else { Err(SimilarityError::Parameters { method, has, wanted }) }
}

/// Reads prefix and parameters.
fn read_meta(value: &[u8], state: &mut State) -> Option<(u8, String)> {
    let (head, rest) = value.split_first_chunk::<2>()?;
    let (numbers, parameters) = rest.split_first_chunk::<32>()?;
    let mut numbers = numbers
        .chunks_exact(8)
        .map(|number| number.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte)));
    state.next_number = numbers.next()?;
    state.stats = IndexStats { contents: numbers.next()?, postings: numbers.next()? };
    state.dead = numbers.next()?;
    let parameters = String::from_utf8(parameters.to_vec()).ok()?;
    (head[0] == META_VERSION).then_some((head[1], parameters))
}

fn free_prefix(db: &dyn Db) -> Result<u8> {
    let mut taken = [false; 256];
    db.scan(Table::Meta, META_PREFIX, &mut |key, value| {
        if let Some(prefix) = value.get(1).filter(|_| key.starts_with(META_PREFIX)) {
            taken[usize::from(*prefix)] = true;
        }
        key.starts_with(META_PREFIX)
    })?;
    taken.iter().position(|taken| !taken).map(|prefix| prefix as u8).ok_or(SimilarityError::Full)
}

/// Removes the rows of a prefix that `goes` returns true for, several at a time.
fn clear<C: Codec>(
    runs: &Runs<C>,
    db: &dyn Db,
    prefix: u8,
    key_len: usize,
    goes: &mut dyn FnMut(&[u8]) -> bool,
) -> Result<()> {
    let mut from = vec![prefix];
    loop {
        let mut keys = Vec::new();
        runs.scan_from(db, &[prefix], &from, |row| {
            if goes(row) {
                keys.extend_from_slice(&row[..key_len]);
            }
            keys.len() < CLEARED_BYTES
        })?;
        let Some(last) = keys.chunks_exact(key_len).next_back() else { return Ok(()) };
        from = last.to_vec();
        runs.merge(db, Vec::new(), keys)?;
    }
}

/// Returns the bytes of the packed rows of a prefix.
fn packed_bytes<C: Codec>(runs: &Runs<C>, db: &dyn Db, prefix: u8, row_len: usize) -> Result<u64> {
    let (mut rows, mut bytes) = (Vec::new(), 0);
    runs.scan(db, &[prefix], |row| {
        rows.extend_from_slice(row);
        if rows.len() >= 1000 * row_len {
            bytes += C::encode(&rows, row_len).len() as u64;
            rows.clear();
        }
        true
    })?;
    Ok(bytes + C::encode(&rows, row_len).len() as u64)
}
