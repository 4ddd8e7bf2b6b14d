//! Result of following a query's features: how many each content has, and which.

use super::gram::{LEVEL_MAX, LEVELS};
use super::sketch::{Asked, QuerySketch};
use std::collections::{HashMap, HashSet};

/// Chunks of a content that are noted: a content with more is larger than filters cover.
pub(super) const CHUNKS_NOTED: usize = 4;

/// Features in common with one content, by the coarser level of the two sides.
#[derive(Default)]
pub(super) struct Tally {
    pub(super) at: [u32; LEVELS],
    /// The placed features among them, each once.
    pub(super) placed: Vec<u16>,
    /// The chunks of the content that have a feature; only some if there are more than [`CHUNKS_NOTED`].
    pub(super) chunks: Vec<u32>,
}

impl Tally {
    /// Counts a feature in common at `level`, with its index if it has a place.
    pub(super) fn count(&mut self, level: u8, placed: Option<u16>) {
        self.at[usize::from(level)] += 1;
        self.placed.extend(placed);
    }

    /// Notes a chunk of the content that has a feature. All chunks that have it must be noted: the filter of any of them may
    /// have grams that the others' lack.
    pub(super) fn note(&mut self, chunk: u32) {
        if self.chunks.len() <= CHUNKS_NOTED && !self.chunks.contains(&chunk) {
            self.chunks.push(chunk);
        }
    }

    /// Returns the number of features in common.
    pub(super) fn features(&self) -> u32 {
        self.at.iter().sum()
    }

    /// Returns the share of features in common, for a file that has `count` of them at each level.
    pub(super) fn share(&self, count: impl Fn(u8) -> f64) -> f64 {
        let parts =
            (0..=LEVEL_MAX).map(|level| f64::from(self.at[usize::from(level)]) / count(level).max(1.0));
        parts.sum::<f64>().min(1.0)
    }
}

/// Result of following features.
pub(super) struct Seen {
    /// Rows that were read.
    pub(super) rows: usize,
    pub(super) weights: QueryCounts,
    pub(super) tallies: HashMap<u32, Tally>,
    /// Features that have a place.
    placed: HashSet<u64>,
    /// Those of them that were followed, each with an index.
    pub(super) counting: HashMap<u64, u16>,
}

impl Seen {
    pub(super) fn of(sketch: &QuerySketch) -> Seen {
        let placed = sketch.places().iter().map(|place| place.feature.bits()).collect();
        let (weights, tallies, counting) = Default::default();
        Seen { rows: 0, weights, tallies, placed, counting }
    }

    /// Counts a followed feature. Returns its index among the placed ones, if it has a place.
    pub(super) fn count(&mut self, asked: Asked) -> Option<u16> {
        self.weights.add(asked);
        let (bits, next) = (asked.feature.bits(), self.counting.len() as u16);
        self.placed.contains(&bits).then(|| *self.counting.entry(bits).or_insert(next))
    }
}

/// Number of features that the query would have at each level: a feature of a finer level counts if the level selects it;
/// one of a coarser level stands for all that the level would have selected in addition.
#[derive(Default)]
pub(super) struct QueryCounts {
    at: [f64; LEVELS],
    /// Number of all features.
    pub(super) features: u32,
}

impl QueryCounts {
    fn add(&mut self, Asked { feature, level: selected_at, .. }: Asked) {
        self.features += 1;
        for level in 0..=LEVEL_MAX {
            self.at[usize::from(level)] += if level < selected_at {
                f64::from(1u32 << (selected_at - level))
            } else {
                f64::from(u8::from(feature.level() >= level))
            };
        }
    }

    pub(super) fn at(&self, level: u8) -> f64 {
        self.at[usize::from(level)]
    }
}
