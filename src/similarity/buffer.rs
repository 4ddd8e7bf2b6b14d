//! Additions and removals since the last bulk merge, in memory, and searchable.
//!
//! Invariants: the chunks of a buffer have consecutive numbers, because a chunk gets its number when it is
//! added.

use super::filter::Filter;
use super::gram::FEATURE_BITS;
use super::order;
use super::rows::{ChunkKey, ChunkRow, ContentRow, Sampled};
use super::sketch::Sketch;
use crate::id::RecipeId;
use std::collections::{BTreeMap, HashMap};

/// Rough cost in memory of the entries that adding a chunk or a content makes, in bytes.
const ENTRY_BYTES: usize = 160;

/// Leading bits of a feature that select the bucket of a posting.
const BUCKET_BITS: u32 = 12;
const _: () = assert!(FEATURE_BITS <= u32::BITS);

/// (feature, chunk number), in buckets by the feature's leading bits. Features are hashes, so a bucket has some 250 of a
/// million postings; looking a feature up means reading those.
#[derive(Debug, Default)]
struct Postings {
    buckets: Vec<Vec<(u32, u32)>>,
    len: usize,
}

impl Postings {
    fn bucket(feature: u64) -> usize {
        (feature >> (FEATURE_BITS - BUCKET_BITS)) as usize
    }

    fn add(&mut self, feature: u64, chunk: u32) {
        if self.buckets.is_empty() {
            self.buckets.resize(1 << BUCKET_BITS, Vec::new());
        }
        self.buckets[Postings::bucket(feature)].push((feature as u32, chunk));
        self.len += 1;
    }

    fn each(&self, feature: u64, mut visit: impl FnMut(u32)) {
        let bucket = self.buckets.get(Postings::bucket(feature)).into_iter().flatten();
        bucket.filter(|(other, _)| u64::from(*other) == feature).for_each(|&(_, chunk)| visit(chunk));
    }

    fn sorted(&self) -> Vec<(u32, u32)> {
        let mut all = Vec::with_capacity(self.len);
        for bucket in &self.buckets {
            all.extend_from_slice(bucket);
            let start = all.len() - bucket.len();
            all[start..].sort_unstable();
        }
        all
    }
}

/// Rows that are not in the database yet.
#[derive(Debug, Default)]
pub(super) struct Buffer {
    postings: Postings,
    pub(super) sketched: HashMap<ChunkKey, ChunkRow>,
    /// The filters that are not empty, by chunk number.
    pub(super) filters: BTreeMap<u32, Filter>,
    filters_len: usize,
    /// Chunk number to its sample and the contents that contain it.
    pub(super) contained: BTreeMap<u32, (Sampled, Vec<u32>)>,
    pub(super) contents: HashMap<u32, ContentRow>,
    pub(super) numbered: HashMap<RecipeId, u32>,
    /// Contents in older buffers or in the database that were removed, by number.
    pub(super) dead: HashMap<u32, RecipeId>,
    contained_len: usize,
    is_ordered: bool,
}

/// New numbers for the chunks of a buffer.
pub(super) struct Renumbering {
    /// The new number of the chunk `first + i`.
    numbers: Vec<u32>,
    first: u32,
}

impl Renumbering {
    fn of(&self, number: u32) -> u32 {
        let new = number.checked_sub(self.first).and_then(|at| self.numbers.get(at as usize));
        new.copied().unwrap_or(number)
    }
}

impl Buffer {
    pub(super) fn add_chunk(&mut self, key: ChunkKey, row: ChunkRow, sketch: Sketch) {
        let (features, filter) = sketch.into_parts();
        features.into_iter().for_each(|feature| self.postings.add(feature.bits(), row.number));
        self.sketched.insert(key, row);
        if !filter.is_empty() {
            self.filters_len += filter.grams().len();
            self.filters.insert(row.number, filter);
        }
    }

    pub(super) fn add_containment(&mut self, chunk: ChunkRow, content: u32) {
        let (_, contents) = self.contained.entry(chunk.number).or_insert((chunk.sampled(), Vec::new()));
        // Content numbers ascend and one content is added at a time, so a repeat is the last.
        if contents.last() != Some(&content) {
            contents.push(content);
            self.contained_len += 1;
        }
    }

    /// Calls `visit` with the number of each chunk that has `feature`.
    pub(super) fn chunks_with(&self, feature: u64, visit: impl FnMut(u32)) {
        self.postings.each(feature, visit);
    }

    /// Returns the postings in order.
    pub(super) fn postings(&self) -> Vec<(u32, u32)> {
        self.postings.sorted()
    }

    /// Returns new numbers for the chunks of this buffer, out of their present ones, so that similar chunks get successive
    /// numbers; `None` if they have them already.
    pub(super) fn renumbering(&self) -> Option<Renumbering> {
        let first = self.sketched.values().map(|row| row.number).min().filter(|_| !self.is_ordered)?;
        let mut numbers = vec![0; self.sketched.len()];
        for (new, old) in (first..).zip(order::order(first, numbers.len(), &self.postings())) {
            numbers[(old - first) as usize] = new;
        }
        Some(Renumbering { numbers, first })
    }

    /// Gives the chunks of this buffer new numbers.
    pub(super) fn renumber(&mut self, new: &Renumbering) {
        let numbers = self.postings.buckets.iter_mut().flatten().map(|(_, number)| number);
        numbers
            .chain(self.sketched.values_mut().map(|row| &mut row.number))
            .for_each(|number| *number = new.of(*number));
        let filters = std::mem::take(&mut self.filters);
        self.filters = filters.into_iter().map(|(number, filter)| (new.of(number), filter)).collect();
        self.renumber_contained(new);
        self.is_ordered = true;
    }

    /// The same for the containments of these chunks in a newer buffer.
    pub(super) fn renumber_contained(&mut self, new: &Renumbering) {
        let contained = std::mem::take(&mut self.contained);
        self.contained = contained.into_iter().map(|(number, of_chunk)| (new.of(number), of_chunk)).collect();
    }

    pub(super) fn is_empty(&self) -> bool {
        self.sketched.is_empty()
            && self.contents.is_empty()
            && self.dead.is_empty()
            && self.contained.is_empty()
    }

    /// Returns about how much memory this takes, merging included.
    pub(super) fn bytes(&self) -> usize {
        let entries = self.sketched.len() + self.contents.len() + self.dead.len();
        self.postings.len * 64 + self.filters_len * 16 + self.contained_len * 32 + entries * 3 * ENTRY_BYTES
    }
}
