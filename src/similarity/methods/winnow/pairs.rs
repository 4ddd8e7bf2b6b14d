//! Pairs of documents by the number of fingerprints in common, as MOSS reports them (section 5.2): each document's
//! fingerprints are looked up, counted by the other document, and what is below the minimum is never a pair.

use super::{Winnow, WinnowSketch};
use crate::id::RecipeId;
use crate::similarity::SimilarityError;
use crate::similarity::methods::{Index, Method};
use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

/// What was handed out, and is in everyone's work: its fingerprints count nothing.
#[derive(Clone, Debug, Default)]
pub struct Base(BTreeSet<u64>);

impl Base {
    /// Adds a base file.
    pub fn add(&mut self, sketch: &WinnowSketch) {
        self.0.extend(sketch.prints.iter().map(|print| print.hash));
    }

    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A sketch without them.
    pub fn taken_from(&self, sketch: &WinnowSketch) -> WinnowSketch {
        let prints = sketch.prints.iter().filter(|print| !self.0.contains(&print.hash));
        WinnowSketch { grams: sketch.grams, prints: prints.copied().collect() }
    }
}

/// Which pairs are reported.
#[derive(Clone, Copy, Debug)]
pub struct PairOptions {
    /// Fewest different fingerprints in common.
    pub common_min: u32,
    /// At most so many pairs: those with most in common.
    pub limit: usize,
    /// A fingerprint that more documents than this have counts nothing, as what a teacher has written.
    pub documents_max: usize,
}

impl Default for PairOptions {
    fn default() -> Self {
        PairOptions { common_min: 2, limit: 1000, documents_max: usize::MAX }
    }
}

/// Two documents and what they have in common.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WinnowPair {
    /// The one that was added first.
    pub a: RecipeId,
    /// The other.
    pub b: RecipeId,
    /// Different fingerprints in both, without those of the base.
    pub common: u32,
    /// Share of the first one's that is.
    pub a_in_b: f64,
    /// Share of the second one's.
    pub b_in_a: f64,
}

/// The pairs of an index of winnowing, those with most in common first. Memory goes with the limit.
///
/// Fails with [`SimilarityError::Sketch`] if the index is of another method or damaged.
pub fn pairs(
    index: &Index,
    winnow: &Winnow,
    base: &Base,
    options: &PairOptions,
) -> Result<Vec<WinnowPair>, SimilarityError> {
    let (mut best, mut failed) = (BinaryHeap::new(), None);
    let hashes = |sketch: &[u8]| -> Result<Vec<u64>, SimilarityError> {
        Ok(base.taken_from(&winnow.decode(sketch)?).hashes())
    };
    index.contents(&mut |number, _, sketch| {
        let mut look = || -> Result<(), SimilarityError> {
            for (other, common) in index.sharing(&hashes(sketch)?, number + 1, options.documents_max)? {
                if common >= options.common_min {
                    best.push(Reverse((common, Reverse(number), Reverse(other))));
                    if best.len() > options.limit {
                        best.pop();
                    }
                }
            }
            Ok(())
        };
        failed = look().err();
        failed.is_none()
    })?;
    failed.map_or(Ok(()), Err)?;
    let mut found = Vec::with_capacity(best.len());
    for Reverse((common, Reverse(a), Reverse(b))) in best.into_sorted_vec() {
        if let (Some((a, of_a)), Some((b, of_b))) = (index.sketch_numbered(a)?, index.sketch_numbered(b)?) {
            let share = |of: usize| if of == 0 { 0.0 } else { f64::from(common) / of as f64 };
            let (a_in_b, b_in_a) = (share(hashes(&of_a)?.len()), share(hashes(&of_b)?.len()));
            found.push(WinnowPair { a, b, common, a_in_b, b_in_a });
        }
    }
    Ok(found)
}
