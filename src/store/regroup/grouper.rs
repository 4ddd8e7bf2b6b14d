//! The choice of chunks that share a group, and the resulting frames.

use super::options::RegroupOptions;
use super::regrouped::Regrouped;
use crate::id::ChunkId;
use crate::store::Store;
use crate::store::append::Frames;
use crate::store::bytes::ByBytes;
use crate::store::bytes::Bytes;
use crate::store::dictionary::{Dictionary, Encoder};
use crate::store::entry::Entry;
use crate::store::error::StoreError;
use crate::store::features::{features, most_shared};
use crate::store::frame::Kind;
use crate::store::gathered::{Gathered, With, compress};
use crate::store::member::MEMBERS_MAX;
use quick_cache::sync::Cache;
use std::collections::HashMap;
use std::sync::Arc;

/// A delta must be smaller than this percentage of its chunk's stored size.
const DELTA_SHARE_MAX: u64 = 60;
/// Limit of decoded bytes for the deltas of one group, or this many times a group's size.
const DELTAS_BYTES_MAX: u64 = 4 << 20;
const DELTAS_GROUPS_MAX: u64 = 8;
/// Bytes of decoded chunks kept for comparisons.
const BASES_BYTES: u64 = 16 << 20;
/// Larger groups have enough in common internally.
const DICTIONARY_GROUP_BYTES_MAX: u32 = 64 << 10;
/// Groups to try a dictionary on; it must save this many times its own size.
const TRIALS: usize = 64;
const DICTIONARY_GAIN_MIN: u64 = 2;
/// Frames are appended in batches of this many bytes.
const APPEND_BYTES: usize = 1 << 20;

/// Chunks that share a group, by their number in the round.
#[derive(Default)]
pub(super) struct Unit {
    pub(super) roots: Vec<u32>,
    deltas: Vec<u32>,
    pub(super) root_bytes: u64,
    /// Bytes of the shortest root.
    shortest: u64,
    delta_bytes: u64,
}

impl Unit {
    pub(super) fn add_root(&mut self, number: u32, len: u64) {
        self.shortest = if self.roots.is_empty() { len } else { self.shortest.min(len) };
        self.roots.push(number);
        self.root_bytes += len;
    }
}

/// Groups the chunks of a round.
pub(super) struct Grouper<'a> {
    store: &'a Store,
    pub(super) options: &'a RegroupOptions,
    pub(super) chunks: &'a [Entry],
    /// Recently compared decoded chunks.
    bases: Cache<ChunkId, Bytes, ByBytes>,
    done: &'a mut Regrouped,
}

impl<'a> Grouper<'a> {
    /// Creates a grouper for these chunks; it adds its results to `done`.
    pub(super) fn new(
        store: &'a Store,
        options: &'a RegroupOptions,
        chunks: &'a [Entry],
        done: &'a mut Regrouped,
    ) -> Grouper<'a> {
        let bases = Cache::with_weighter((BASES_BYTES / (16 << 10)) as usize, BASES_BYTES, ByBytes);
        Grouper { store, options, chunks, bases, done }
    }

    /// Passes frames to `append`; false if `keep_going` returned false. `keep_going` gets decoded bytes, each counted
    /// twice.
    pub(super) fn run(
        &mut self,
        keep_going: &mut dyn FnMut(u64) -> bool,
        append: &mut dyn FnMut(&mut Frames) -> Result<(), StoreError>,
    ) -> Result<bool, StoreError> {
        let mut at = 0;
        let units = match self.options.solid {
            true => self.line_up(&mut at, keep_going)?,
            false => self.assign(&mut at, keep_going)?,
        };
        let Some(units) = units else { return Ok(false) };
        let dictionary = self.dictionary(&units)?;
        let mut frames = Frames::default();
        for unit in &units {
            self.build(unit, &mut frames, dictionary.as_ref())?;
            at += unit.root_bytes + unit.delta_bytes;
            let go = keep_going(at);
            if frames.bytes.len() >= APPEND_BYTES || !go {
                append(&mut frames)?;
                frames.clear();
            }
            if !go {
                return Ok(false);
            }
        }
        append(&mut frames)?;
        self.done.after_bytes += dictionary.map_or(0, |(dictionary, _)| dictionary.copies_len());
        Ok(true)
    }

    /// Returns a dictionary for the roots, if it pays.
    fn dictionary(&mut self, units: &[Unit]) -> Result<Option<(Arc<Dictionary>, Encoder)>, StoreError> {
        if self.options.group_bytes > DICTIONARY_GROUP_BYTES_MAX {
            return Ok(None);
        }
        let roots: u64 = units.iter().map(|unit| unit.root_bytes).sum();
        let Some((samples_len, len)) = Dictionary::wanted(roots) else { return Ok(None) };
        let mut samples = Vec::new();
        let mut sizes = Vec::new();
        for unit in spread(units, (roots / samples_len as u64).max(1) as usize) {
            for number in &unit.roots {
                let bytes = self.read(&self.chunks[*number as usize])?;
                samples.extend_from_slice(&bytes);
                sizes.push(bytes.len());
            }
        }
        let Some(dictionary) = Dictionary::train(&samples, &sizes, len) else { return Ok(None) };
        drop(samples);
        let encoder = dictionary.encoder(self.options.level);
        let (mut raw, mut without, mut with) = (0, 0, 0);
        for unit in spread(units, (units.len() / TRIALS).max(1)) {
            let mut group = Vec::new();
            for number in &unit.roots {
                group.extend_from_slice(&self.read(&self.chunks[*number as usize])?);
            }
            raw += group.len() as u64;
            without += compress(&group, self.options.level, None).len() as u64;
            with += encoder.compress(&group).len() as u64;
        }
        let saved = u128::from(without.saturating_sub(with)) * u128::from(roots) / u128::from(raw.max(1));
        let pays = saved > u128::from(DICTIONARY_GAIN_MIN * dictionary.copies_len());
        Ok(pays.then(|| (Arc::new(dictionary), encoder)))
    }

    /// Decides which chunks become roots, in order, and which become deltas, and the root of each delta.
    fn assign(
        &mut self,
        at: &mut u64,
        keep_going: &mut dyn FnMut(u64) -> bool,
    ) -> Result<Option<Vec<Unit>>, StoreError> {
        let group_bytes = u64::from(self.options.group_bytes);
        let deltas_max = DELTAS_BYTES_MAX.max(DELTAS_GROUPS_MAX * group_bytes);
        let mut units: Vec<Unit> = Vec::new();
        // The unit of each root chunk.
        let mut unit_of = vec![u32::MAX; self.chunks.len()];
        // The last root with each feature: the newest version of a file is the most likely match.
        let mut root_with: HashMap<u32, u32> = HashMap::new();
        for (number, entry) in self.chunks.iter().enumerate() {
            let bytes = self.read(entry)?;
            let len = bytes.len() as u64;
            let features = features(&bytes);
            let base = most_shared(&features, &root_with, 1);
            let fits = |unit: &Unit| unit.delta_bytes + len <= deltas_max;
            let unit = base.map(|base| (base, unit_of[base as usize] as usize));
            match unit.filter(|(_, unit)| fits(&units[*unit])) {
                Some((base, unit)) if self.pays(entry, &bytes, base)? => {
                    units[unit].deltas.push(number as u32);
                    units[unit].delta_bytes += len;
                }
                _ => {
                    let room = |unit: &Unit| {
                        self.options.are_one(unit.root_bytes + len, unit.shortest.min(len))
                            && unit.roots.len() < MEMBERS_MAX
                    };
                    if !units.last().is_some_and(room) {
                        units.push(Unit::default());
                    }
                    unit_of[number] = units.len() as u32 - 1;
                    let unit = units.last_mut().expect("there is one now");
                    unit.add_root(number as u32, len);
                    root_with.extend(features.into_iter().map(|feature| (feature, number as u32)));
                }
            }
            *at += len;
            if number % 64 == 0 && !keep_going(*at) {
                return Ok(None);
            }
        }
        Ok(Some(units))
    }

    /// Whether a chunk really becomes smaller as a delta of another.
    fn pays(&self, entry: &Entry, bytes: &[u8], base: u32) -> Result<bool, StoreError> {
        let base = &self.chunks[base as usize];
        let id = ChunkId(*base.key.id());
        let base = match self.bases.get(&id) {
            Some(bytes) => bytes,
            None => {
                let bytes = self.read(base)?;
                self.bases.insert(id, bytes.clone());
                bytes
            }
        };
        let tried = compress(bytes, 1, Some(&base)).len() as u64;
        Ok(tried * 100 < u64::from(entry.address.stored_len) * DELTA_SHARE_MAX)
    }

    /// Builds the frames of a unit.
    fn build(
        &mut self,
        unit: &Unit,
        frames: &mut Frames,
        dictionary: Option<&(Arc<Dictionary>, Encoder)>,
    ) -> Result<(), StoreError> {
        let level = self.options.level;
        let before = (frames.bytes.len(), frames.headers.len());
        let mut root = Gathered::unnamed(Kind::Chunk);
        for number in &unit.roots {
            self.gather(*number, &mut root)?;
        }
        let alone = if self.options.is_lzma() { With::Lzma } else { With::Nothing(level) };
        let with = dictionary.map_or(alone, |(_, encoder)| With::Dictionary(encoder));
        frames.group(&root, with);
        dictionary.into_iter().for_each(|(dictionary, _)| frames.need(dictionary));
        let mut delta = Gathered::unnamed(Kind::Chunk);
        for number in &unit.deltas {
            let len = self.chunks[*number as usize].address.raw_len as usize;
            if !delta.has_room(len, |bytes, shortest| self.options.are_one(bytes, shortest)) {
                frames.group(&delta, With::Root(&root, level));
                delta.clear();
            }
            self.gather(*number, &mut delta)?;
        }
        if !delta.is_empty() {
            frames.group(&delta, With::Root(&root, level));
        }
        self.done.chunks += (unit.roots.len() + unit.deltas.len()) as u64;
        self.done.deltas += unit.deltas.len() as u64;
        self.done.groups += (frames.headers.len() - before.1) as u64;
        self.done.after_bytes += (frames.bytes.len() - before.0) as u64;
        Ok(())
    }

    fn gather(&mut self, number: u32, into: &mut Gathered) -> Result<(), StoreError> {
        let entry = &self.chunks[number as usize];
        self.done.before_bytes += entry.frame_bytes();
        into.push(&ChunkId(*entry.key.id()), &self.read(entry)?);
        Ok(())
    }

    /// Reads a chunk from its old location and checks its hash: a group must not make wrong bytes look right.
    pub(super) fn read(&self, entry: &Entry) -> Result<Bytes, StoreError> {
        let Entry { key, address } = entry;
        let bytes = self.store.reader.at(*key, address)?;
        match blake3::hash(&bytes).as_bytes() == key.id() {
            true => Ok(bytes),
            false => Err(self.store.reader.unlike_its_name(*key, address)),
        }
    }
}

/// Returns every `step`-th unit.
fn spread(units: &[Unit], step: usize) -> impl Iterator<Item = &Unit> {
    units.iter().step_by(step)
}
