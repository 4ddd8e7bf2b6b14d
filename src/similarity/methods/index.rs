//! The index of a method: which contents have sketches like this one.
//!
//! ```text
//! Meta "method.NAME"        -> version 1 | prefix 1 | next number 8 | contents 8 | postings 8 | parameters
//! MethodKeys                -> (prefix, key, number), see `postings`
//! MethodSketches            -> prefix 1 | number 4  ->  content id 16 | encoded sketch
//! MethodNumbered            -> prefix 1 | content id 16 | number 4
//! ```
//!
//! All methods share the tables; each has a prefix of its own, the lowest that was free. What must always be true: a
//! number is given out once, so what a crash leaves of a content names no other; the row that says that a content is
//! known is written last and removed first; an index answers only for the parameters that it was made with. As all of
//! similarity it is a hint, made anew from the files.
//!
//! Additions gather in memory, up to a bound, and whoever asks merges them first: so a query sees everything.

use super::postings::{POSTING_BYTES, POSTINGS, key_and_content, key_prefix, posting};
use super::{AnyMethod, Likeness};
use crate::db::{Batch, Codec, Db, DbError, Layout, Runs, Table};
use crate::id::RecipeId;
use crate::similarity::SimilarityError;
use std::collections::{BTreeMap, HashMap};
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

type Result<T> = std::result::Result<T, SimilarityError>;

const META_VERSION: u8 = 1;
const ID_BYTES: usize = 16;
/// Keys removed at once.
const CLEARED_BYTES: usize = 4 << 20;
/// Contents removed at once.
const FORGOTTEN_MAX: usize = 1024;
const META_PREFIX: &[u8] = b"method.";
static NUMBERED: Runs =
    Runs::new(Layout { table: Table::MethodNumbered, row_len: 1 + ID_BYTES + 4, key_len: 1 + ID_BYTES });

/// How an index is used; none of it changes what is stored.
#[derive(Clone, Copy, Debug)]
pub struct IndexOptions {
    /// About how many bytes of memory additions may take before they are merged into the database.
    pub buffer_bytes: usize,
    /// A key that more contents than this have is not followed. The papers have no such bound.
    pub frequency_cap: usize,
    /// Of the contents that share a key with a query so many are compared with it, those first that share most.
    pub candidates_max: usize,
}

impl Default for IndexOptions {
    fn default() -> Self {
        IndexOptions { buffer_bytes: 32 << 20, frequency_cap: usize::MAX, candidates_max: 10_000 }
    }
}

/// A content that was found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Found {
    /// Which content.
    pub id: RecipeId,
    /// How the query, as a, compares with it, as b.
    pub likeness: Likeness,
}

/// Two contents that are alike.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FoundPair {
    /// The one that was added first.
    pub a: RecipeId,
    /// The other.
    pub b: RecipeId,
    /// How they compare.
    pub likeness: Likeness,
}

/// How much an index holds.
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
    /// Rows of postings to add and to remove, end to end.
    added: Vec<u8>,
    removed: Vec<u8>,
    numbered: BTreeMap<RecipeId, u32>,
    sketches: BTreeMap<u32, Vec<u8>>,
    sketch_bytes: usize,
}

impl State {
    fn bytes(&self) -> usize {
        let row = 2 * (ID_BYTES + 4) + 64;
        self.added.len() + self.removed.len() + self.sketch_bytes + row * self.numbered.len()
    }
}

/// The index of one method. May be used from many threads.
pub struct Index {
    db: Arc<dyn Db>,
    method: Arc<dyn AnyMethod>,
    options: IndexOptions,
    prefix: u8,
    state: Mutex<State>,
}

impl Index {
    /// Opens the index of `method` in `db`, empty if there is none.
    ///
    /// Fails with [`SimilarityError::Parameters`] if the method had others when it was made, and with
    /// [`SimilarityError::Format`] if another version of this program wrote it.
    pub fn open(db: Arc<dyn Db>, method: Arc<dyn AnyMethod>, options: IndexOptions) -> Result<Index> {
        let mut state = State::default();
        let row = db.get(Table::Meta, &meta_key(method.name()))?;
        let is_new = row.is_none();
        let prefix = match row {
            None => free_prefix(&*db)?,
            Some(value) => {
                let (prefix, parameters) = read_meta(&value, &mut state).ok_or(SimilarityError::Format)?;
                if parameters != method.settings() {
                    let (method, wanted) = (method.name(), method.settings());
                    return Err(SimilarityError::Parameters { method, has: parameters, wanted });
                }
                prefix
            }
        };
        let index = Index { db, method, options, prefix, state: Mutex::new(state) };
        if is_new {
            index.write_meta(&index.lock())?;
        }
        Ok(index)
    }

    /// Whether `db` has an index of `method` that [`Index::open`] would open.
    pub fn is_there(db: &dyn Db, method: &dyn AnyMethod) -> Result<bool> {
        let row = db.get(Table::Meta, &meta_key(method.name()))?;
        let meta = row.and_then(|value| read_meta(&value, &mut State::default()));
        Ok(meta.is_some_and(|(_, parameters)| parameters == method.settings()))
    }

    /// Removes the index of the method of that name from `db`, if there is one, whatever it was made with.
    pub fn remove(db: &dyn Db, name: &str) -> Result<()> {
        let Some(value) = db.get(Table::Meta, &meta_key(name))? else { return Ok(()) };
        let (_, &prefix) = value.first().zip(value.get(1)).ok_or(SimilarityError::Format)?;
        clear(&NUMBERED, db, prefix, 1 + ID_BYTES)?;
        clear(&POSTINGS, db, prefix, POSTING_BYTES)?;
        let mut batch = Batch::new();
        db.scan(Table::MethodSketches, &[prefix], &mut |key, _| {
            let is_of_it = key.first() == Some(&prefix);
            if is_of_it {
                batch.remove(Table::MethodSketches, key);
            }
            is_of_it
        })?;
        batch.remove(Table::Meta, &meta_key(name));
        Ok(db.apply(batch)?)
    }

    /// The method that it is of.
    pub fn method(&self) -> &dyn AnyMethod {
        &*self.method
    }

    /// How much it holds.
    pub fn stats(&self) -> IndexStats {
        self.lock().stats
    }

    /// Whether the content was added and not removed since.
    pub fn has(&self, id: &RecipeId) -> Result<bool> {
        Ok(self.number(&self.lock(), id)?.is_some())
    }

    /// Calls `visit` with the places in `ids`, which are sorted, of contents that are not known. Reads the rows between
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

    /// The encoded sketch of a content, if it is known.
    pub fn sketch(&self, id: &RecipeId) -> Result<Option<Vec<u8>>> {
        self.flush()?;
        let Some(number) = self.number(&self.lock(), id)? else { return Ok(None) };
        Ok(self.sketch_numbered(number)?.map(|(_, sketch)| sketch))
    }

    /// Adds a content with its encoded sketch; without effect if it is known. May merge the buffer, which takes time.
    pub fn add(&self, id: RecipeId, sketch: Vec<u8>) -> Result<()> {
        let keys = self.method.keys_of(&sketch)?;
        let mut state = self.lock();
        if self.number(&state, &id)?.is_some() {
            return Ok(());
        }
        let number = u32::try_from(state.next_number).map_err(|_| SimilarityError::Full)?;
        state.next_number += 1;
        state.stats.contents += 1;
        state.stats.postings += keys.len() as u64;
        keys.iter().for_each(|&key| state.added.extend_from_slice(&posting(self.prefix, key, number)));
        let value = [&id.0[..], &sketch].concat();
        state.sketch_bytes += value.len();
        state.sketches.insert(number, value);
        state.numbered.insert(id, number);
        if state.bytes() < self.options.buffer_bytes { Ok(()) } else { self.merge(&mut state) }
    }

    /// Removes a content; without effect if it is not known.
    pub fn forget(&self, id: &RecipeId) -> Result<()> {
        self.forget_all(std::slice::from_ref(id))
    }

    /// Removes contents, those that are known. Some at a time, so that rows next to each other are written once.
    pub fn forget_all(&self, ids: &[RecipeId]) -> Result<()> {
        ids.chunks(FORGOTTEN_MAX).try_for_each(|ids| self.forget_some(ids))
    }

    fn forget_some(&self, ids: &[RecipeId]) -> Result<()> {
        let mut state = self.lock();
        // Then all of a content is in the database, or none.
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
        let mut batch = Batch::new();
        for &number in numbers.keys() {
            let Some((_, sketch)) = self.sketch_numbered(number)? else { continue };
            let keys = self.method.keys_of(&sketch)?;
            let rows = keys.iter().flat_map(|&key| posting(self.prefix, key, number));
            state.removed.extend(rows);
            state.stats.postings = state.stats.postings.saturating_sub(keys.len() as u64);
            batch.remove(Table::MethodSketches, &self.sketch_key(number));
            if state.bytes() >= self.options.buffer_bytes {
                self.db.apply(std::mem::take(&mut batch))?;
                self.merge(&mut state)?;
            }
        }
        self.db.apply(batch)?;
        self.write_meta(&state)
    }

    /// Merges everything into the database. Durable once the caller has flushed that.
    pub fn flush(&self) -> Result<()> {
        self.merge(&mut self.lock())
    }

    /// Contents whose likeness to the encoded sketch scores at least `score_min`, the best first, at most `limit`.
    pub fn query(&self, sketch: &[u8], score_min: f64, limit: usize) -> Result<Vec<Found>> {
        self.flush()?;
        let mut found = Vec::new();
        let comparer = self.method.comparer(sketch)?;
        for number in self.candidates(sketch, 0)? {
            let Some((id, other)) = self.sketch_numbered(number)? else { continue };
            let likeness = comparer.with(&other)?;
            if likeness.score() > 0.0 && likeness.score() >= score_min {
                found.push(Found { id, likeness });
            }
        }
        found.sort_by(|a, b| b.likeness.score().total_cmp(&a.likeness.score()).then(a.id.cmp(&b.id)));
        found.truncate(limit);
        Ok(found)
    }

    /// Gives `visit` each two contents whose likeness scores at least `score_min`, by the one that was added first,
    /// until it returns false. No pair below that is kept anywhere; memory is that of one query.
    pub fn pairs(&self, score_min: f64, visit: &mut dyn FnMut(FoundPair) -> Result<bool>) -> Result<()> {
        self.flush()?;
        let end = self.lock().next_number as u32;
        for number in 0..end {
            let Some((a, sketch)) = self.sketch_numbered(number)? else { continue };
            let comparer = self.method.comparer(&sketch)?;
            let mut others = self.candidates(&sketch, number + 1)?;
            others.sort_unstable();
            for other in others {
                let Some((b, other)) = self.sketch_numbered(other)? else { continue };
                let likeness = comparer.with(&other)?;
                let alike = likeness.score() > 0.0 && likeness.score() >= score_min;
                if alike && !visit(FoundPair { a, b, likeness })? {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Gives `visit` each key with the numbers of the contents that have it, both ascending, until it returns false.
    pub fn keys(&self, visit: &mut dyn FnMut(u64, &[u32]) -> bool) -> Result<()> {
        self.flush()?;
        let (mut current, mut contents) = (0, Vec::new());
        let mut goes_on = true;
        POSTINGS.scan(&*self.db, &[self.prefix], |row| {
            let (key, content) = key_and_content(row);
            if key != current && !contents.is_empty() {
                goes_on = visit(current, &contents);
                contents.clear();
            }
            current = key;
            contents.push(content);
            goes_on
        })?;
        if goes_on && !contents.is_empty() {
            visit(current, &contents);
        }
        Ok(())
    }

    /// Gives `visit` each content with its number and its encoded sketch, by number, until it returns false.
    pub fn contents(&self, visit: &mut dyn FnMut(u32, RecipeId, &[u8]) -> bool) -> Result<()> {
        self.flush()?;
        let mut damage = false;
        self.db.scan(Table::MethodSketches, &[self.prefix], &mut |key, value| match (
            key.split_first(),
            split_value(value),
        ) {
            (Some((&prefix, _)), _) if prefix != self.prefix => false,
            (Some((_, number)), Some((id, sketch))) if number.len() == 4 => {
                let number = number.iter().fold(0, |number, &byte| number << 8 | u32::from(byte));
                visit(number, id, sketch)
            }
            _ => {
                damage = true;
                false
            }
        })?;
        if damage { Err(bad_row(Table::MethodSketches)) } else { Ok(()) }
    }

    /// The numbers from `from` on of contents that have some of `keys` (sorted, each once), with how many they have;
    /// without keys that more than `contents_max` have. In no order.
    pub fn sharing(&self, keys: &[u64], from: u32, contents_max: usize) -> Result<Vec<(u32, u32)>> {
        let ranges = keys.iter().map(|&key| key..=key).collect();
        self.sharing_ranges(ranges, from, contents_max)
    }

    fn sharing_ranges(
        &self,
        ranges: Vec<RangeInclusive<u64>>,
        from: u32,
        contents_max: usize,
    ) -> Result<Vec<(u32, u32)>> {
        let mut shared: HashMap<u32, u32> = HashMap::new();
        let mut count = |contents: &mut Vec<u32>| {
            if contents.len() <= contents_max {
                let counted = contents.iter().filter(|&&content| content >= from);
                counted.for_each(|&content| *shared.entry(content).or_default() += 1);
            }
            contents.clear();
        };
        let (single, wide): (Vec<_>, Vec<_>) =
            ranges.into_iter().partition(|range| range.start() == range.end());
        let prefixes: Vec<_> = single.iter().map(|range| key_prefix(self.prefix, *range.start())).collect();
        let (mut at, mut contents) = (0, Vec::new());
        POSTINGS.scan_each(&*self.db, &prefixes, |prefix, row| {
            if prefix != at {
                count(&mut contents);
                at = prefix;
            }
            contents.push(key_and_content(row).1);
            true
        })?;
        count(&mut contents);
        for range in wide {
            let mut last = None;
            let from = key_prefix(self.prefix, *range.start());
            POSTINGS.scan_from(&*self.db, &[self.prefix], &from, |row| {
                let (key, content) = key_and_content(row);
                if key > *range.end() {
                    return false;
                }
                if last.is_some_and(|last| last != key) {
                    count(&mut contents);
                }
                last = Some(key);
                contents.push(content);
                true
            })?;
            count(&mut contents);
        }
        Ok(shared.into_iter().collect())
    }

    /// Numbers from `from` on that are worth comparing with a sketch, those first that share most.
    fn candidates(&self, sketch: &[u8], from: u32) -> Result<Vec<u32>> {
        let ranges = self.method.ranges_of(sketch)?;
        let mut candidates = self.sharing_ranges(ranges, from, self.options.frequency_cap)?;
        candidates.sort_unstable_by_key(|&(content, shared)| (u32::MAX - shared, content));
        candidates.truncate(self.options.candidates_max);
        Ok(candidates.into_iter().map(|(content, _)| content).collect())
    }

    fn number(&self, state: &State, id: &RecipeId) -> Result<Option<u32>> {
        if let Some(number) = state.numbered.get(id) {
            return Ok(Some(*number));
        }
        let row = NUMBERED.find(&*self.db, &self.numbered_key(id))?;
        Ok(row.map(|row| row[1 + ID_BYTES..].iter().fold(0, |number, &byte| number << 8 | u32::from(byte))))
    }

    /// The content of a number, with its encoded sketch; `None` if it was removed.
    pub fn sketch_numbered(&self, number: u32) -> Result<Option<(RecipeId, Vec<u8>)>> {
        let Some(value) = self.db.get(Table::MethodSketches, &self.sketch_key(number))? else {
            return Ok(None);
        };
        let (id, sketch) = split_value(&value).ok_or_else(|| bad_row(Table::MethodSketches))?;
        Ok(Some((id, sketch.to_vec())))
    }

    fn merge(&self, state: &mut State) -> Result<()> {
        if state.bytes() == 0 {
            return Ok(());
        }
        // First the counters: a number that was given out is not given out again.
        self.write_meta(state)?;
        POSTINGS.merge(&*self.db, std::mem::take(&mut state.added), std::mem::take(&mut state.removed))?;
        let mut batch = Batch::new();
        let mut bytes = 0;
        for (number, value) in std::mem::take(&mut state.sketches) {
            bytes += value.len();
            batch.put(Table::MethodSketches, &self.sketch_key(number), value);
            if bytes >= 1 << 20 {
                self.db.apply(std::mem::take(&mut batch))?;
                bytes = 0;
            }
        }
        self.db.apply(batch)?;
        state.sketch_bytes = 0;
        let rows = std::mem::take(&mut state.numbered).into_iter().flat_map(|(id, number)| {
            self.numbered_key(&id).into_iter().chain(number.to_be_bytes()).collect::<Vec<u8>>()
        });
        Ok(NUMBERED.merge(&*self.db, rows.collect(), Vec::new())?)
    }

    fn write_meta(&self, state: &State) -> Result<()> {
        let mut value = vec![META_VERSION, self.prefix];
        for number in [state.next_number, state.stats.contents, state.stats.postings] {
            value.extend_from_slice(&number.to_le_bytes());
        }
        value.extend_from_slice(self.method.settings().as_bytes());
        Ok(self.db.put(Table::Meta, &meta_key(self.method.name()), &value)?)
    }

    fn sketch_key(&self, number: u32) -> [u8; 5] {
        let [a, b, c, d] = number.to_be_bytes();
        [self.prefix, a, b, c, d]
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

/// Prefix and parameters.
fn read_meta(value: &[u8], state: &mut State) -> Option<(u8, String)> {
    let (head, rest) = value.split_first_chunk::<2>()?;
    let (numbers, parameters) = rest.split_first_chunk::<24>()?;
    let mut numbers = numbers
        .chunks_exact(8)
        .map(|number| number.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte)));
    state.next_number = numbers.next()?;
    state.stats = IndexStats { contents: numbers.next()?, postings: numbers.next()? };
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

/// Removes all rows of a prefix, some at a time.
fn clear<C: Codec>(runs: &Runs<C>, db: &dyn Db, prefix: u8, key_len: usize) -> Result<()> {
    loop {
        let mut keys = Vec::new();
        runs.scan(db, &[prefix], |row| {
            keys.extend_from_slice(&row[..key_len]);
            keys.len() < CLEARED_BYTES
        })?;
        if keys.is_empty() {
            return Ok(());
        }
        runs.merge(db, Vec::new(), keys)?;
    }
}

fn split_value(value: &[u8]) -> Option<(RecipeId, &[u8])> {
    value.split_first_chunk().map(|(id, sketch)| (RecipeId(*id), sketch))
}

fn bad_row(table: Table) -> SimilarityError {
    DbError::Row { table, reason: "a content id and a sketch" }.into()
}
