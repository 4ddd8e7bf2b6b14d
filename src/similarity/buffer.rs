//! What was added or removed since the last bulk merge, in memory, and searchable.

use super::filter::Filter;
use super::rows::{ChunkKey, ChunkRow, ContentRow};
use super::sketch::Sketch;
use crate::id::RecipeId;
use std::collections::{BTreeMap, HashMap};

/// Rough cost in memory of the entries that adding a chunk or a content makes, in bytes.
const ENTRY_BYTES: usize = 160;

/// Sorted runs of (feature, chunk number), each at least twice as long as the next: adding one posting costs
/// O(log n) in all, and looking one feature up O(log² n).
#[derive(Debug, Default)]
struct SortedRuns(Vec<Vec<(u64, u32)>>);

impl SortedRuns {
    fn push(&mut self, run: Vec<(u64, u32)>) {
        self.0.push(run);
        while let [.., before, last] = &self.0[..]
            && before.len() < 2 * last.len()
        {
            let last = self.0.pop().unwrap_or_default();
            if let Some(before) = self.0.last_mut() {
                *before = merged(before, &last);
            }
        }
    }

    fn each(&self, feature: u64, mut visit: impl FnMut(u32)) {
        for run in &self.0 {
            let at = run.partition_point(|&(f, _)| f < feature);
            run[at..].iter().take_while(|&&(f, _)| f == feature).for_each(|&(_, chunk)| visit(chunk));
        }
    }
}

fn merged(a: &[(u64, u32)], b: &[(u64, u32)]) -> Vec<(u64, u32)> {
    let mut out = Vec::with_capacity(a.len() + b.len());
    let mut b = b.iter().copied().peekable();
    for &a in a {
        while let Some(b) = b.next_if(|b| *b < a) {
            out.push(b);
        }
        out.push(a);
    }
    out.extend(b);
    out
}

/// Rows that are not in the database yet.
#[derive(Debug, Default)]
pub(super) struct Buffer {
    postings: SortedRuns,
    postings_len: usize,
    pub(super) sketched: HashMap<ChunkKey, ChunkRow>,
    /// By chunk number, those that are not empty.
    pub(super) filters: BTreeMap<u32, Filter>,
    filters_len: usize,
    /// Chunk number to its level and the contents that contain it.
    pub(super) contained: BTreeMap<u32, (u8, Vec<u32>)>,
    pub(super) contents: HashMap<u32, ContentRow>,
    pub(super) numbered: HashMap<RecipeId, u32>,
    /// Contents in older buffers or in the database that were removed, by number.
    pub(super) dead: HashMap<u32, RecipeId>,
    contained_len: usize,
}

impl Buffer {
    pub(super) fn add_chunk(&mut self, key: ChunkKey, row: ChunkRow, sketch: Sketch) {
        let (features, filter) = sketch.into_parts();
        let run: Vec<_> = features.into_iter().map(|f| (f.bits(), row.number)).collect();
        self.postings_len += run.len();
        if !run.is_empty() {
            self.postings.push(run);
        }
        self.sketched.insert(key, row);
        if !filter.is_empty() {
            self.filters_len += filter.grams().len();
            self.filters.insert(row.number, filter);
        }
    }

    pub(super) fn add_containment(&mut self, chunk: ChunkRow, content: u32) {
        let (_, contents) = self.contained.entry(chunk.number).or_insert((chunk.counts.level, Vec::new()));
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

    /// In order: what is merged into a table is sorted first, which takes next to nothing then.
    pub(super) fn postings(&self) -> Vec<(u64, u32)> {
        self.postings.0.iter().rev().fold(Vec::new(), |all, run| merged(run, &all))
    }

    pub(super) fn postings_len(&self) -> usize {
        self.postings_len
    }

    pub(super) fn is_empty(&self) -> bool {
        self.sketched.is_empty()
            && self.contents.is_empty()
            && self.dead.is_empty()
            && self.contained.is_empty()
    }

    /// About how much memory this takes, merging it included.
    pub(super) fn bytes(&self) -> usize {
        let entries = self.sketched.len() + self.contents.len() + self.dead.len();
        self.postings_len * 64 + self.filters_len * 16 + self.contained_len * 32 + entries * 3 * ENTRY_BYTES
    }
}
