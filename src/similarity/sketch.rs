//! Sketches: samples of the grams of a chunk, or of a queried file.
//!
//! Invariants:
//! - A sketch holds exactly the distinct features of the grams that its level selects. So two sketches can be compared at the
//!   coarser of their levels, and a file's sketch is the union of its chunks'.
//! - Grams that straddle a cut are not seen.
//!
//! A **bare** sketch is of a chunk that does not compress. Such bytes share grams with other files only if those have (nearly)
//! the whole chunk. The id shows that, in a hundredth of the space. A bare sketch has no grams, and counts as many features
//! as chunks of its length have on average.

use super::exact::{Ranges, padding};
use super::filter::{self, Filter};
use super::gram::{self, FEATURE_BITS, GRAM_BYTES, GramHash, LEVEL_MAX, LEVELS};
use super::rows::{ChunkKey, chunk_key};
use crate::id::ChunkId;

/// Densities of samples. An index on disk is built with one set of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SketchParams {
    /// A short chunk is sampled more densely, so that it has about this many features.
    pub floor_features: u32,
    /// And this many more grams in its filter, which are not looked up.
    pub filter_grams: u32,
    /// The densest level for that.
    pub level_min: u8,
}

impl Default for SketchParams {
    /// See `docs/decisions/0003-similarity-default.md` and `0027-estimates-of-bytes.md` for the measurements.
    fn default() -> Self {
        SketchParams { floor_features: 36, filter_grams: filter::GRAMS, level_min: 2 }
    }
}

impl SketchParams {
    /// Returns the level, from `level_min` to [`LEVEL_MAX`], for a chunk of `len` bytes: the coarsest of the densities
    /// `1/(3 * 2^(level - 2))` that still gives `floor_features` features.
    pub fn level_of(&self, len: usize) -> u8 {
        self.level_for(len, self.floor_features)
    }

    /// The same for the chunk's filter.
    pub fn filter_level_of(&self, len: usize) -> u8 {
        self.level_for(len, self.filter_grams).min(self.level_of(len))
    }

    fn level_for(&self, len: usize, grams: u32) -> u8 {
        let spacing = len / grams.max(1) as usize;
        let level = (spacing / 3).checked_ilog2().map_or(0, |log| log + 2) as u8;
        level.clamp(self.level_min.min(LEVEL_MAX), LEVEL_MAX)
    }
}

/// A feature with the highest level that selects its gram: its bits over 8.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Feature(u64);

impl Feature {
    fn of(gram: GramHash) -> Feature {
        Feature(gram.feature() << 8 | u64::from(gram.level()))
    }

    pub(crate) fn bits(self) -> u64 {
        self.0 >> 8
    }

    pub(crate) fn level(self) -> u8 {
        self.0 as u8
    }

    /// Returns whether its bits begin with `zeros` zeros. None begins with more zeros than there are bits.
    fn is_below(self, zeros: u32) -> bool {
        zeros <= FEATURE_BITS && self.bits() >> (FEATURE_BITS - zeros) == 0
    }
}

/// The sketch of one chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sketch {
    level: u8,
    /// Sorted, each once.
    features: Vec<Feature>,
    filter: Filter,
    /// Features that a bare sketch counts; 0 for other sketches.
    bare: u32,
}

impl Sketch {
    /// Returns a bare sketch of a chunk of `len` bytes.
    pub fn bare(len: usize) -> Sketch {
        let level = SketchParams::default().level_of(len);
        let grams = len.saturating_sub(GRAM_BYTES - 1);
        let bare = match level {
            0 => grams,
            level => (2 * grams / 3) >> (level - 1),
        };
        Sketch { level, features: Vec::new(), filter: Filter::default(), bare: bare.max(1) as u32 }
    }

    /// Returns whether it stands for a bare chunk: the index knows only its id.
    pub fn is_bare(&self) -> bool {
        self.bare > 0
    }

    /// Sketches a chunk with the default parameters. About one pass over the bytes.
    pub fn of_chunk(bytes: &[u8]) -> Sketch {
        Sketch::with_params(bytes, SketchParams::default())
    }

    /// Sketches a chunk with other parameters: for measuring. Never mix them in one index.
    ///
    /// A chunk that has grams has at least one feature: if none is selected, the level goes down until one is.
    pub fn with_params(bytes: &[u8], params: SketchParams) -> Sketch {
        let mut finest = params.filter_level_of(bytes.len());
        let mut grams = Vec::with_capacity((bytes.len() >> finest) * 7 / 4 + 16);
        gram::select(bytes, finest, &mut grams);
        while grams.is_empty() && finest > 0 && bytes.len() >= GRAM_BYTES {
            finest -= 1;
            gram::select(bytes, finest, &mut grams);
        }
        let highest = grams.iter().min().map_or(0, |gram| gram.level());
        let level = params.level_of(bytes.len()).min(highest);
        let (kept, others) = parted(&mut grams, level);
        let mut features: Vec<_> = kept.iter().map(|&gram| Feature::of(gram)).collect();
        features.sort_unstable();
        features.dedup_by_key(|f| f.bits());
        let filter = Filter::of(finest.min(level), others);
        Sketch { level, features, filter, bare: 0 }
    }

    /// Returns the level: one gram in `3 * 2^(level - 2)` was kept, and all at level 0.
    pub fn level(&self) -> u8 {
        self.level
    }

    /// Number of distinct features.
    pub fn len(&self) -> usize {
        self.features.len()
    }

    /// Whether it has no feature: the chunk was too short, or the sketch is bare.
    pub fn is_empty(&self) -> bool {
        self.features.is_empty()
    }

    /// The bits of its features, in order.
    pub(crate) fn feature_bits(&self) -> impl Iterator<Item = u64> + '_ {
        self.features.iter().map(|feature| feature.bits())
    }

    /// Its features, and its filter.
    pub(crate) fn into_parts(self) -> (Vec<Feature>, Filter) {
        (self.features, self.filter)
    }

    /// Returns the number of features that each level selects; only valid from the sketch's own level on.
    pub(crate) fn counts(&self) -> [u32; LEVELS] {
        let mut counts = [0; LEVELS];
        for feature in &self.features {
            counts[..=usize::from(feature.level())].iter_mut().for_each(|n| *n += 1);
        }
        let mut bare = self.bare;
        for n in &mut counts[usize::from(self.level)..] {
            *n += bare;
            bare /= 2;
        }
        counts[..usize::from(self.level)].fill(0);
        counts
    }
}

/// Returns the grams that `level` selects, and the others. No branch depends on a gram: in a small chunk one in four is selected.
fn parted(grams: &mut [GramHash], level: u8) -> (&[GramHash], &[GramHash]) {
    let mut count = 0;
    for at in 0..grams.len() {
        grams.swap(at, count);
        count += usize::from(grams[count].is_at(level));
    }
    grams.split_at(count)
}

/// Features of a query that are kept: about 24 MiB. A larger file keeps only features below a bound, so that the memory of
/// a query and the time of its look-ups do not grow with the file.
const QUERY_FEATURES_MAX: usize = 1 << 18;

/// Places of features of a query that are kept. A file with more keeps only places of features below a bound.
const PLACES_MAX: usize = 1 << 12;

/// A feature of a queried file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Asked {
    pub(crate) feature: Feature,
    /// The finest level of the chunks of the file that have it.
    pub(crate) level: u8,
    /// A chunk with that level.
    pub(crate) chunk: ChunkKey,
}

/// A place of a feature in a queried file; a feature may have several places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) feature: Feature,
    /// Bytes before its gram, without padding.
    pub(crate) at: u64,
    /// Whether it is looked up; others are only looked for in filters.
    pub(crate) is_asked: bool,
}

/// The sketch of a whole queried file, made from its chunks'. At most some 16 MiB of memory.
#[derive(Clone, Debug, Default)]
pub struct QuerySketch {
    bytes: u64,
    counted: u64,
    params: SketchParams,
    entries: Vec<Asked>,
    /// One in `2^thinned` features is kept: those with this many leading zeros.
    thinned: u32,
    /// In order.
    places: Vec<Place>,
    /// Features that are not looked up are placed from this level on.
    places_level: u8,
    /// As `thinned`, for placed features, once all of them are looked up.
    places_thinned: u32,
}

impl QuerySketch {
    /// The sketch of an empty file.
    pub fn new() -> QuerySketch {
        QuerySketch::default()
    }

    /// As [`QuerySketch::new`], with other parameters: for measuring.
    pub fn with_params(params: SketchParams) -> QuerySketch {
        QuerySketch { params, ..QuerySketch::default() }
    }

    /// Adds the next chunk of the file.
    pub fn add_chunk(&mut self, bytes: &[u8]) {
        self.add_chunks(bytes, 1);
    }

    /// Adds the next chunk of the file, which occurs `times` times in a row.
    pub fn add_chunks(&mut self, bytes: &[u8], times: u64) {
        self.add_named(&ChunkId::of(bytes), bytes, times);
    }

    /// As [`QuerySketch::add_chunks`], for a chunk whose id the caller knows.
    pub fn add_named(&mut self, id: &ChunkId, bytes: &[u8], times: u64) {
        let chunk = chunk_key(id);
        let (level, mut placed) = placed(bytes, self.params, self.places_level);
        let padding = padding(&bytes).unwrap_or_default();
        self.place(&placed, level, &padding, times);
        placed.retain(|(feature, _)| feature.level() >= level);
        placed.sort_unstable();
        placed.dedup_by_key(|(feature, _)| feature.bits());
        let kept = placed.into_iter().filter(|(feature, _)| feature.is_below(self.thinned));
        self.entries.extend(kept.map(|(feature, _)| Asked { feature, level, chunk }));
        self.bytes += bytes.len() as u64 * times;
        self.counted += (bytes.len() as u64 - padding.bytes()) * times;
        // Repetitions alone do not thin a file.
        if self.entries.len() > 2 * QUERY_FEATURES_MAX {
            compact(&mut self.entries);
            while self.entries.len() > QUERY_FEATURES_MAX {
                self.thinned += 1;
                self.entries.retain(|asked| asked.feature.is_below(self.thinned));
            }
        }
    }

    /// Records the places of the features of the next chunk. Those that touch padding do not count, and a chunk that occurs
    /// `times` in a row is stretched over all of them.
    fn place(&mut self, placed: &[(Feature, u32)], level: u8, padding: &Ranges, times: u64) {
        let (mut padding, mut passed) = (padding.iter().peekable(), 0);
        for &(feature, at) in placed {
            let at = u64::from(at);
            while let Some(range) = padding.next_if(|range| range.end <= at) {
                passed += range.end - range.start;
            }
            let is_padded = padding.peek().is_some_and(|range| range.start < at + GRAM_BYTES as u64);
            let is_asked = feature.level() >= level;
            if !is_padded
                && (is_asked || feature.level() >= self.places_level)
                && feature.is_below(self.places_thinned)
            {
                self.places.push(Place { feature, at: self.counted + (at - passed) * times, is_asked });
            }
        }
        while self.places.len() > PLACES_MAX {
            match self.places_level {
                LEVEL_MAX => {
                    self.places_thinned += 1;
                    self.places.retain(|place| place.feature.is_below(self.places_thinned));
                }
                _ => {
                    self.places_level += 1;
                    self.places.retain(|place| place.is_asked || place.feature.level() >= self.places_level);
                }
            }
        }
    }

    /// Returns the length of the file in bytes, as far as it was added.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the same without padding.
    pub(crate) fn counted(&self) -> u64 {
        self.counted
    }

    /// Returns how many features there are for each one kept.
    pub(crate) fn thinning(&self) -> f64 {
        f64::from(self.thinned).exp2()
    }

    /// Returns the distinct features that are kept, sorted.
    pub(crate) fn features(&self) -> Vec<Asked> {
        let mut entries = self.entries.clone();
        compact(&mut entries);
        entries
    }

    /// Returns their places, in order; for a large file only a part, those of the features with the least bits.
    pub(crate) fn places(&self) -> &[Place] {
        &self.places
    }
}

/// Sorts, and keeps the entry of the finest level for each feature.
fn compact(entries: &mut Vec<Asked>) {
    entries.sort_unstable();
    entries.dedup_by_key(|asked| asked.feature.bits());
}

/// Returns the level and the features that [`Sketch::with_params`] has for a chunk, at each place of their grams, in order.
/// From level `finest` on it includes features that the sketch lacks.
fn placed(bytes: &[u8], params: SketchParams, finest: u8) -> (u8, Vec<(Feature, u32)>) {
    let mut finest = params.level_of(bytes.len()).min(finest.max(params.level_min));
    let mut grams = Vec::with_capacity((bytes.len() >> finest) * 7 / 4 + 16);
    gram::select_placed(bytes, finest, &mut grams);
    while grams.is_empty() && finest > 0 && bytes.len() >= GRAM_BYTES {
        finest -= 1;
        gram::select_placed(bytes, finest, &mut grams);
    }
    let highest = grams.iter().map(|(gram, _)| gram.level()).max().unwrap_or(0);
    let level = params.level_of(bytes.len()).min(highest);
    (level, grams.into_iter().map(|(gram, at)| (Feature::of(gram), at)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn noise(len: usize, seed: u64) -> Vec<u8> {
        let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut next = || {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            (x >> 24) as u8
        };
        (0..len).map(|_| next()).collect()
    }

    #[test]
    fn levels_follow_length() {
        let params = SketchParams { floor_features: 32, filter_grams: 32, level_min: 2 };
        let levels = [0, 40, 191, 192, 384, 3071, 3072, 16 << 10, 1 << 24].map(|len| params.level_of(len));
        assert_eq!(levels, [2, 2, 2, 3, 4, 6, 7, 7, 7]);
    }

    /// What is on disk must not change by accident.
    #[test]
    fn golden() {
        let bytes: Vec<u8> = (0..20_000u32).flat_map(|i| (i * i).to_le_bytes()).collect();
        let sketch = Sketch::of_chunk(&bytes[..16 << 10]);
        let sum = sketch.features.iter().fold(0u64, |sum, f| sum.rotate_left(5) ^ f.0);
        assert_eq!((sketch.level(), sketch.len(), sum), (7, 174, 11544471347288869987));
    }

    #[test]
    fn the_floor_holds() {
        for len in [24, 40, 64, 100, 500, 2000, 9000, 16 << 10] {
            let mut features = 0;
            for seed in 0..100 {
                let sketch = Sketch::of_chunk(&noise(len, seed));
                assert!(!sketch.is_empty());
                features += sketch.len();
            }
            let floor = ((len - 23) / 3).min(36) * 100;
            assert!(features * 10 > floor * 8, "{len}: {features}");
        }
        assert!(Sketch::of_chunk(&[1; 23]).is_empty());
        assert_eq!(Sketch::of_chunk(&vec![0; 64 << 10]).len(), 1);
    }

    proptest! {
        /// A coarser sketch is the part of a finer one that its level selects.
        #[test]
        fn densities_are_nested(len in 24usize..6000, seed: u64, fine in 1u32..64, coarse in 1u32..64) {
            let bytes = noise(len, seed);
            let of = |m: u32| Sketch::with_params(&bytes, SketchParams { floor_features: m, filter_grams: m, level_min: 0 });
            let (fine, coarse) = (of(fine.max(coarse)), of(fine.min(coarse)));
            let filtered: Vec<_> = fine.features.iter().filter(|f| f.level() >= coarse.level).copied().collect();
            prop_assert!(fine.level <= coarse.level);
            prop_assert_eq!(&filtered, &coarse.features);
            prop_assert_eq!(coarse.counts()[usize::from(coarse.level)] as usize, coarse.len());
        }

        #[test]
        fn a_query_is_the_union_of_its_chunks(lens in prop::collection::vec(0usize..9000, 0..6)) {
            let chunks: Vec<_> = lens.iter().map(|&len| noise(len, len as u64 % 3)).collect();
            let mut query = QuerySketch::new();
            chunks.iter().for_each(|c| query.add_chunk(c));
            let mut union: Vec<_> = chunks.iter().flat_map(|c| Sketch::of_chunk(c).features).collect();
            union.sort_unstable();
            union.dedup();
            prop_assert_eq!(query.features().into_iter().map(|asked| asked.feature).collect::<Vec<_>>(), union);
            prop_assert_eq!(query.bytes(), lens.iter().sum::<usize>() as u64);
        }
    }
}
