//! Stores pieces of archives ([`super::archive`]) inflated: some as roots, similar ones as deltas.
//!
//! ```text
//! assign: each piece is inflated and compared with the root that shares the most features. It becomes a delta of that root
//!         if that is much smaller, otherwise a root
//! build:  a root with its deltas, if together they save space: one group each
//! ```
//!
//! Memory: about 8 bytes for each KiB of inflated roots, 64 MiB of inflated pieces, the frames of one root
//! and its deltas, and a few times the longest piece. Time: each piece is inflated twice, or more often if it
//! is a root with late deltas.

use super::options::RegroupOptions;
use super::regrouped::Regrouped;
use crate::id::ChunkId;
use crate::store::Store;
use crate::store::append::Frames;
use crate::store::archive::Piece;
use crate::store::bytes::Bytes;
use crate::store::entry::Entry;
use crate::store::error::StoreError;
use crate::store::features::{features_at, most_shared};
use crate::store::frame::{HEADER_BYTES, Key};
use crate::store::gathered::{Gathered, With, compress};
use crate::store::group_table;
use quick_cache::Weighter;
use quick_cache::sync::Cache;
use std::collections::{HashMap, HashSet};

/// One feature for 2^this many bytes on average.
const FEATURE_ZEROS: u32 = 10;
/// A delta must be smaller than this percentage of its piece alone.
const DELTA_SHARE_MAX: u64 = 60;
/// A root with its deltas must be smaller than this percentage of their chunks' stored size.
const SHARE_MAX: u64 = 95;
/// zstd level for estimating the size of a piece.
const TRIAL_LEVEL: i32 = 9;
/// Limit of decoded bytes for the deltas of one root.
const DELTAS_BYTES_MAX: u64 = 64 << 20;
/// Bytes of inflated pieces kept for comparisons.
const KEPT_BYTES: u64 = 64 << 20;
/// Frames are appended in batches of this many bytes.
const APPEND_BYTES: usize = 1 << 20;

#[derive(Clone)]
struct ByLength;

impl Weighter<u32, Bytes> for ByLength {
    fn weight(&self, _: &u32, bytes: &Bytes) -> u64 {
        bytes.len() as u64
    }
}

/// A root and its deltas, by piece number.
struct Unit {
    root: u32,
    deltas: Vec<u32>,
    delta_bytes: u64,
    /// Stored size of the chunks now, and the estimate for later.
    before: u64,
    after: u64,
}

/// Groups pieces of a round.
pub(super) struct Inflater<'a> {
    store: &'a Store,
    options: &'a RegroupOptions,
    pieces: &'a [Piece],
    inflated: Cache<u32, Bytes, ByLength>,
    done: &'a mut Regrouped,
}

impl<'a> Inflater<'a> {
    pub(super) fn new(
        store: &'a Store,
        options: &'a RegroupOptions,
        pieces: &'a [Piece],
        done: &'a mut Regrouped,
    ) -> Inflater<'a> {
        Inflater {
            store,
            options,
            pieces,
            inflated: Cache::with_weighter((KEPT_BYTES >> 18) as usize, KEPT_BYTES, ByLength),
            done,
        }
    }

    /// Passes frames to `append`. Returns the chunks in them; `None` if `keep_going` returned false. `keep_going` gets
    /// decoded bytes, each counted twice.
    pub(super) fn run(
        &mut self,
        keep_going: &mut dyn FnMut(u64) -> bool,
        append: &mut dyn FnMut(&mut Frames) -> Result<(), StoreError>,
    ) -> Result<Option<HashSet<Key>>, StoreError> {
        let mut at = 0;
        let Some(units) = self.assign(&mut at, keep_going)? else { return Ok(None) };
        let mut stored = HashSet::new();
        let mut frames = Frames::default();
        for unit in units.iter().filter(|unit| unit.after * 100 < unit.before * SHARE_MAX) {
            self.build(unit, &mut frames, &mut stored)?;
            at += unit.before;
            let go = keep_going(at);
            if frames.bytes.len() >= APPEND_BYTES || !go {
                append(&mut frames)?;
                frames.clear();
            }
            if !go {
                return Ok(None);
            }
        }
        append(&mut frames)?;
        Ok(Some(stored))
    }

    fn assign(
        &mut self,
        at: &mut u64,
        keep_going: &mut dyn FnMut(u64) -> bool,
    ) -> Result<Option<Vec<Unit>>, StoreError> {
        let mut units: Vec<Unit> = Vec::new();
        // The unit of the last root with each feature.
        let mut root_with: HashMap<u32, u32> = HashMap::new();
        for (number, piece) in self.pieces.iter().enumerate() {
            if !keep_going(*at) {
                return Ok(None);
            }
            let before: u64 = piece.chunks.iter().map(Entry::frame_bytes).sum();
            *at += before;
            let Some(inflated) = self.inflated(number as u32)? else { continue };
            let alone = compress(&inflated, TRIAL_LEVEL.min(self.options.level), None).len() as u64;
            let table = (HEADER_BYTES + group_table::table_bytes(piece.chunks.len())) as u64;
            let features = features_at(&inflated, FEATURE_ZEROS);
            let base = most_shared(&features, &root_with, 1).map(|unit| unit as usize);
            let fits = |unit: &usize| units[*unit].delta_bytes + inflated.len() as u64 <= DELTAS_BYTES_MAX;
            if let Some(unit) = base.filter(fits)
                && let Some(root) = self.inflated(units[unit].root)?
            {
                let delta = compress(&inflated, 1, Some(&root)).len() as u64;
                if delta * 100 < alone * DELTA_SHARE_MAX {
                    let unit = &mut units[unit];
                    unit.deltas.push(number as u32);
                    unit.delta_bytes += inflated.len() as u64;
                    unit.before += before;
                    unit.after += delta + table;
                    continue;
                }
            }
            root_with.extend(features.into_iter().map(|feature| (feature, units.len() as u32)));
            let (root, deltas) = (number as u32, Vec::new());
            units.push(Unit { root, deltas, delta_bytes: 0, before, after: alone + table });
        }
        Ok(Some(units))
    }

    /// Builds the frames of a unit.
    fn build(
        &mut self,
        unit: &Unit,
        frames: &mut Frames,
        stored: &mut HashSet<Key>,
    ) -> Result<(), StoreError> {
        let level = self.options.level;
        let Some(root) = self.gather(unit.root)? else { return Ok(()) };
        let first = frames.bytes.len();
        frames.group(&root, With::Nothing(level));
        self.count(unit.root, stored);
        for number in &unit.deltas {
            let Some(delta) = self.gather(*number)? else { continue };
            frames.group(&delta, With::Root(&root, level));
            self.done.deltas += self.pieces[*number as usize].chunks.len() as u64;
            self.count(*number, stored);
        }
        self.done.after_bytes += (frames.bytes.len() - first) as u64;
        Ok(())
    }

    fn count(&mut self, number: u32, stored: &mut HashSet<Key>) {
        let chunks = &self.pieces[number as usize].chunks;
        self.done.groups += 1;
        self.done.chunks += chunks.len() as u64;
        self.done.inflated += chunks.len() as u64;
        self.done.before_bytes += chunks.iter().map(Entry::frame_bytes).sum::<u64>();
        stored.extend(chunks.iter().map(|entry| entry.key));
    }

    fn gather(&self, number: u32) -> Result<Option<Gathered>, StoreError> {
        let chunks = self.pieces[number as usize].chunks.iter();
        let chunks = chunks.map(|entry| (ChunkId(*entry.key.id()), entry.address.raw_len));
        let inflated = self.inflated(number)?;
        Ok(inflated.map(|inflated| Gathered::inflated(chunks, inflated.to_vec())))
    }

    /// Returns the stored form of a piece; `None` if it cannot be read.
    fn inflated(&self, number: u32) -> Result<Option<Bytes>, StoreError> {
        if let Some(found) = self.inflated.get(&number) {
            return Ok(Some(found));
        }
        let made = self.pieces[number as usize].inflate(&self.store.reader)?.map(Bytes::from);
        if let Some(made) = &made {
            self.inflated.insert(number, made.clone());
        }
        Ok(made)
    }
}
