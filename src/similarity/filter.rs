//! Filters: approximate sets of the further grams of a small chunk, at a few bits a gram.
//!
//! A looked-up feature takes about 21 bits, so a chunk of a KiB has two dozen: enough to find it, too few to
//! tell how much of it another chunk has. A filter answers for a found chunk whether it has a gram, and is
//! wrong about one in fifty that it lacks. It is a set of short hashes, Rice-coded (`filter_block`) in about
//! 8 bits each, and in 5 for similar chunks: a compressed filter with a single hash function (Putze, Sanders
//! and Singler 2007, "Cache-, hash- and space-efficient Bloom filters", section 3.2: Golomb-coded).
//!
//! Invariants: a filter contains every gram that it was made from.

use super::gram::{FEATURE_BITS, GramHash, LEVEL_MAX};

/// Bits of a gram's feature in a filter.
pub(super) const GRAM_BITS: u32 = 13;
/// Grams by which a chunk with a filter is known, including those that are looked up.
pub(super) const GRAMS: u32 = 140;
/// A longer chunk has no filter: this many of its grams are looked up.
pub(super) const BYTES_MAX: u64 = (GRAMS as u64 * 3) << (LEVEL_MAX - 2);

/// The grams of a chunk that are selected from one level on and are no features.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Filter {
    /// From this level on every selected gram is in the filter, or is a feature.
    pub(super) level: u8,
    /// Sorted, each once, below `2^GRAM_BITS`.
    grams: Vec<u16>,
}

/// Returns the bits of a feature by which a filter knows its gram.
pub(super) fn short(bits: u64) -> u16 {
    (bits >> (FEATURE_BITS - GRAM_BITS)) as u16
}

impl Filter {
    /// Makes the filter of grams that `level` selects, in any order.
    pub(super) fn of(level: u8, grams: &[GramHash]) -> Filter {
        if grams.is_empty() {
            return Filter { level, grams: Vec::new() };
        }
        // Sorted with one bit for each possible gram: faster than comparing.
        let mut has = [0u64; 1 << (GRAM_BITS - 6)];
        for gram in grams.iter().map(|gram| short(gram.feature())) {
            has[usize::from(gram >> 6)] |= 1 << (gram & 63);
        }
        let (mut sorted, mut count) = (vec![0; grams.len() + 1], 0);
        for (mut word, at) in has.into_iter().zip((0u16..).step_by(64)) {
            let mut take_one = || {
                sorted[count] = at + word.trailing_zeros() as u16;
                count += usize::from(word != 0);
                word &= word.wrapping_sub(1);
                word != 0
            };
            // Most words have at most two bits, and taking those needs no branch that depends on their number.
            take_one();
            while take_one() {}
        }
        sorted.truncate(count);
        Filter { level, grams: sorted }
    }

    /// Makes the filter from the result of [`Filter::grams`].
    pub(super) fn of_grams(level: u8, grams: Vec<u16>) -> Filter {
        Filter { level, grams }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.grams.is_empty()
    }

    /// Returns its grams, as [`short`] makes them, in order.
    pub(super) fn grams(&self) -> &[u16] {
        &self.grams
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::similarity::methods::laws::noise;
    use crate::similarity::sketch::Feature;
    use crate::similarity::{Sketch, SketchParams};

    /// Of many chunks: a filter has all that its sketch has not, and little else.
    #[test]
    fn has_what_it_was_made_of() {
        let (mut asked, mut wrong) = (0, 0);
        for seed in 0..200 {
            let bytes = noise(100 + 60 * seed as usize, seed);
            let (features, filter) = Sketch::of_chunk(&bytes).into_parts();
            let all = Sketch::with_params(
                &bytes,
                SketchParams { floor_features: GRAMS, ..SketchParams::default() },
            );
            let has = |gram: &Feature| filter.grams().binary_search(&short(gram.bits())).is_ok();
            assert!(all.into_parts().0.iter().all(|gram| features.contains(gram) || has(gram)), "{seed}");
            let others = Sketch::of_chunk(&noise(100_000, seed + 1000));
            asked += others.len();
            wrong += others.into_parts().0.iter().filter(|gram| has(gram)).count();
        }
        assert!(wrong * 50 < asked, "{wrong} of {asked}");
    }
}
