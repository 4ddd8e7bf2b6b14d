//! Pairs of documents by the number of fingerprints in common, as MOSS reports them (section 5.2): counted fingerprint by
//! fingerprint; pairs below the minimum are never kept.

use super::WinnowSketch;
use crate::id::RecipeId;
use crate::similarity::SimilarityError;
use crate::similarity::methods::{Index, PairsAsked};
use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};
use std::sync::Arc;

/// Material that every author was given: its fingerprints count nothing.
#[derive(Clone, Debug, Default)]
pub struct Base(Arc<BTreeSet<u64>>);

impl Base {
    /// Adds a base file.
    pub fn add(&mut self, sketch: &WinnowSketch) {
        Arc::make_mut(&mut self.0).extend(sketch.prints.iter().map(|print| print.hash));
    }

    /// Returns whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Its hashes.
    pub fn hashes(&self) -> &Arc<BTreeSet<u64>> {
        &self.0
    }

    /// Returns a sketch without these hashes.
    pub fn taken_from(&self, sketch: &WinnowSketch) -> WinnowSketch {
        let prints = sketch.prints.iter().filter(|print| !self.0.contains(&print.hash));
        WinnowSketch { grams: sketch.grams, prints: prints.copied().collect() }
    }
}

/// Rules for the pairs to report.
#[derive(Clone, Copy, Debug)]
pub struct PairOptions {
    /// Smallest share of one document's fingerprints, 0 to 1.
    pub score_min: f64,
    /// Fewest different fingerprints in common.
    pub common_min: u32,
    /// At most this many pairs: those with most in common.
    pub limit: usize,
    /// A fingerprint that more documents than this have counts nothing, like text written by the teacher.
    pub documents_max: usize,
    /// Memory for counting.
    pub memory_bytes: usize,
}

impl Default for PairOptions {
    fn default() -> Self {
        PairOptions {
            score_min: 0.0,
            common_min: 1,
            limit: 1000,
            documents_max: usize::MAX,
            memory_bytes: 64 << 20,
        }
    }
}

/// Two documents with many fingerprints in common.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WinnowPair {
    /// The one that was added first.
    pub a: RecipeId,
    /// The other.
    pub b: RecipeId,
    /// Different fingerprints in both, without those of the base.
    pub common: u32,
    /// Share of the first one's fingerprints.
    pub a_in_b: f64,
    /// Share of the second one's fingerprints.
    pub b_in_a: f64,
}

/// Pairs of documents, and how many were left out.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WinnowPairs {
    /// Those with most in common first.
    pub pairs: Vec<WinnowPair>,
    /// How many there are without the limit.
    pub found: u64,
    /// Pairs that have a fingerprint in common, but too small a share, or too few.
    pub below_min: u64,
}

/// Returns the pairs of a winnowing index, those with most in common first. `copies` returns how many files have a document: one
/// with two is a pair with itself, and one without any takes no part. Memory grows with the limit, plus that of counting
/// ([`Index::pairs`]).
///
/// Fails with [`SimilarityError::Sketch`] if the index is of another method or damaged.
pub fn pairs(
    index: &Index,
    base: &Base,
    options: &PairOptions,
    copies: &dyn Fn(&RecipeId) -> usize,
) -> Result<WinnowPairs, SimilarityError> {
    let mut best: BinaryHeap<Reverse<Ranked>> = BinaryHeap::new();
    let asked = PairsAsked {
        score_min: options.score_min,
        without: base.hashes().clone(),
        contents_max: options.documents_max,
        itself: true,
        memory_bytes: options.memory_bytes,
    };
    let (mut order, mut too_few) = (0, 0);
    let counted = index.pairs(&asked, &mut |id| copies(id) > 0, &mut |found| {
        let common = found.sums.shared as u32;
        if found.a == found.b && copies(&found.a) < 2 {
            return Ok(true);
        }
        if common < options.common_min {
            too_few += 1;
            return Ok(true);
        }
        order += 1;
        let weakest = best.peek().map_or(0, |Reverse(ranked)| ranked.common);
        if best.len() >= options.limit && common <= weakest {
            return Ok(true);
        }
        let share = |share: Option<f64>| share.unwrap_or_default();
        let (a_in_b, b_in_a) = (share(found.likeness.containment), share(found.likeness.contained_in));
        let pair = WinnowPair { a: found.a, b: found.b, common, a_in_b, b_in_a };
        best.push(Reverse(Ranked { common, order: Reverse(order), pair }));
        if best.len() > options.limit {
            best.pop();
        }
        Ok(true)
    })?;
    let pairs = best.into_sorted_vec().into_iter().map(|Reverse(ranked)| ranked.pair).collect();
    Ok(WinnowPairs { pairs, found: order, below_min: counted.below_min + too_few })
}

/// A pair by its rank; ties in the order in which they were found.
struct Ranked {
    common: u32,
    order: Reverse<u64>,
    pair: WinnowPair,
}

impl Ord for Ranked {
    fn cmp(&self, other: &Ranked) -> std::cmp::Ordering {
        (self.common, self.order).cmp(&(other.common, other.order))
    }
}

impl PartialOrd for Ranked {
    fn partial_cmp(&self, other: &Ranked) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Ranked {
    fn eq(&self, other: &Ranked) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Ranked {}
