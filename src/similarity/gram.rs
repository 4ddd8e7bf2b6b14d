//! Grams: every run of [`GRAM_BYTES`] bytes, hashed while rolling over the input, some of them selected.
//!
//! Invariants:
//! - A gram's selection and feature depend only on its bytes, not on its position.
//! - Grams selected at one level are selected at every lower level.
//! - Both are on disk: changing anything here makes an existing index useless.
//!
//! FracMinHash, also called scaled MinHash (Irber et al. 2022, "Lightweight compositional analysis of
//! metagenomes with FracMinHash and minimum metagenome covers"; Hera, Pierce-Ward and Koslicki 2023,
//! "Deriving confidence intervals for mutation rates across a wide range of evolutionary distances using
//! FracMinHash"): a gram is kept if its hash is below a [`bound`], here `2^64 / (3 * 2^(level - 2))`. The rolling
//! hash is a cyclic polynomial (Cohen 1997, "Recursive hashing functions for n-grams"), multiplied by an odd
//! constant so that the high bits, which select, depend on all of it.

/// Length of a gram in bytes.
pub const GRAM_BYTES: usize = 24;
/// The coarsest level: one gram in 96 is selected.
pub const LEVEL_MAX: u8 = 7;
/// Number of levels, [`LEVEL_MAX`] included.
pub(crate) const LEVELS: usize = LEVEL_MAX as usize + 1;
/// Bits of a feature. With 2^27 distinct features in an index, about a TiB, one look-up in 32 finds an unrelated feature: a
/// candidate with one feature in common, which is compared, or estimated too low to be shown.
pub const FEATURE_BITS: u32 = 32;

const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
static ENTER: [u64; 256] = table(0);
static LEAVE: [u64; 256] = table(GRAM_BYTES as u32);

const fn table(rotation: u32) -> [u64; 256] {
    let mut table = [0; 256];
    let mut seed = 0x6465_6475_7066_7331;
    let mut i = 0;
    while i < 256 {
        seed = SPREAD.wrapping_add(seed);
        table[i] = mix(seed).rotate_left(rotation);
        i += 1;
    }
    table
}

/// The finalizer of SplitMix64: a bijection in which every bit of the input changes every bit of the output.
const fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Returns the largest hash of grams that `level` selects: level 0 selects all, level 1 two thirds, and each further level
/// half of the one before.
fn bound(level: u8) -> u64 {
    match level {
        0 => u64::MAX,
        level => (u64::MAX / 3 * 2) >> (level - 1),
    }
}

/// The hash of a selected gram; the leading bits determine its level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct GramHash(u64);

impl GramHash {
    /// Returns the highest level, up to [`LEVEL_MAX`], at which this gram is selected.
    pub(crate) fn level(self) -> u8 {
        let zeros = (self.0.leading_zeros() as u8).min(LEVEL_MAX);
        if zeros < LEVEL_MAX && self.0 <= bound(zeros + 1) { zeros + 1 } else { zeros }
    }

    /// Returns whether `level` selects it.
    pub(crate) fn is_at(self, level: u8) -> bool {
        self.0 <= bound(level)
    }

    /// Returns the bits by which the index knows the gram: [`FEATURE_BITS`] bits that are independent of the level.
    pub(crate) fn feature(self) -> u64 {
        mix(self.0) >> (64 - FEATURE_BITS)
    }
}

/// Parts of the input that are rolled over in parallel: each step of one has to wait for the step before.
const LANES: usize = 4;
/// Grams of a part that are hashed between two checks of its bounds.
const STEP: usize = 32;
/// From this level on few grams are selected, and a branch for each of those is cheaper than none.
const SPARSE_LEVEL: u8 = 7;
/// Hashes held before the selected ones are stored, in the code without branches.
const HELD: usize = 128;

/// Appends the grams of `bytes` that are selected at `level`, in any order, with repeats: up to twice as many as there are
/// different ones, or as many as fit in the capacity of `out`. O(bytes), allocates only for `out`.
pub(crate) fn select(bytes: &[u8], level: u8, out: &mut Vec<GramHash>) {
    let bound = bound(level);
    let steps = bytes.len().saturating_sub(GRAM_BYTES) / (LANES * STEP);
    if steps > 0 && level >= SPARSE_LEVEL {
        roll_lanes(bytes, steps, |hashes| {
            hashes.into_iter().filter(|&hash| hash <= bound).for_each(|hash| put(out, &[GramHash(hash)]));
        });
    } else if steps > 0 {
        let (mut held, mut count) = ([GramHash(0); HELD], 0);
        roll_lanes(bytes, steps, |hashes| {
            for hash in hashes {
                held[count % HELD] = GramHash(hash);
                count += usize::from(hash <= bound);
            }
            if count > HELD - LANES {
                put(out, &held[..count]);
                count = 0;
            }
        });
        put(out, &held[..count]);
    }
    roll(&bytes[LANES * STEP * steps..], |_, hash| {
        if hash <= bound {
            put(out, &[GramHash(hash)]);
        }
        true
    });
}

/// As [`select`], one after the other, each with its start: half as fast.
pub(crate) fn select_placed(bytes: &[u8], level: u8, out: &mut Vec<(GramHash, u32)>) {
    let bound = bound(level);
    roll(bytes, |at, hash| {
        let is_repeat = out.last().is_some_and(|(last, _)| last.0 == hash);
        if hash <= bound && !is_repeat {
            out.push((GramHash(hash), at as u32));
        }
        true
    });
}

/// Appends grams. Drops repeated ones first if there is no more room: zeros give very many.
#[inline(always)]
fn put(out: &mut Vec<GramHash>, grams: &[GramHash]) {
    if out.capacity() - out.len() < grams.len() {
        make_room(out, grams.len());
    }
    out.extend_from_slice(grams);
}

#[cold]
fn make_room(out: &mut Vec<GramHash>, room: usize) {
    out.sort_unstable();
    out.dedup();
    if out.len() > out.capacity() / 2 {
        out.reserve(out.capacity());
    }
    out.reserve(room);
}

/// Hashes the first `LANES * STEP * steps` grams, a part of them in each lane, and calls `see` with the next hash of each
/// lane. At least one more gram must follow.
#[inline(always)]
fn roll_lanes(bytes: &[u8], steps: usize, mut see: impl FnMut([u64; LANES])) {
    let starts: [usize; LANES] = std::array::from_fn(|lane| lane * steps * STEP);
    let mut rolled = starts.map(|start| hash_whole(&bytes[start..start + GRAM_BYTES]));
    for step in 0..steps {
        let part = |at: usize| -> &[u8; STEP] {
            bytes[at + step * STEP..].first_chunk().expect("a gram follows those that are hashed")
        };
        let (entering, leaving) = (starts.map(|start| part(start + GRAM_BYTES)), starts.map(part));
        for i in 0..STEP {
            see(rolled.map(|rolled| rolled.wrapping_mul(SPREAD)));
            for lane in 0..LANES {
                let change = ENTER[usize::from(entering[lane][i])] ^ LEAVE[usize::from(leaving[lane][i])];
                rolled[lane] = rolled[lane].rotate_left(1) ^ change;
            }
        }
    }
}

fn hash_whole(gram: &[u8]) -> u64 {
    gram.iter().fold(0, |h, &byte| h.rotate_left(1) ^ ENTER[usize::from(byte)])
}

/// Returns the start of the first gram with that feature.
pub(crate) fn find(bytes: &[u8], feature: u64) -> Option<usize> {
    let mut found = None;
    roll(bytes, |at, hash| {
        found = (GramHash(hash).feature() == feature).then_some(at);
        found.is_none()
    });
    found
}

/// Calls `see` with the place and the hash of each gram, in order, until it returns false.
#[inline(always)]
fn roll(bytes: &[u8], mut see: impl FnMut(usize, u64) -> bool) {
    let Some((first, _)) = bytes.split_at_checked(GRAM_BYTES) else {
        return;
    };
    let mut rolled = hash_whole(first);
    if !see(0, rolled.wrapping_mul(SPREAD)) {
        return;
    }
    for (at, (&entering, &leaving)) in bytes[GRAM_BYTES..].iter().zip(bytes).enumerate() {
        rolled = rolled.rotate_left(1) ^ ENTER[usize::from(entering)] ^ LEAVE[usize::from(leaving)];
        if !see(at + 1, rolled.wrapping_mul(SPREAD)) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The selected grams, each once.
    fn selected(bytes: &[u8], level: u8) -> Vec<GramHash> {
        let mut out = Vec::new();
        select(bytes, level, &mut out);
        out.sort_unstable();
        out.dedup();
        out
    }

    proptest! {
        #[test]
        fn a_gram_hashes_alike_wherever_it_stands(before in prop::collection::vec(0u8..3, 0..99), gram: [u8; GRAM_BYTES]) {
            let mut bytes = before;
            bytes.extend_from_slice(&gram);
            prop_assert!(selected(&bytes, 0).contains(&selected(&gram, 0)[0]));
        }

        /// Side by side is as one after the other, at every length and level, with repeats and runs.
        #[test]
        fn lanes_give_what_rolling_gives(
            mut bytes in prop::collection::vec(any::<u8>(), 0..1500),
            alphabet in 1u8..=255, run in 0usize..1500, run_len in 0usize..400, level in 0..=LEVEL_MAX,
        ) {
            bytes.iter_mut().for_each(|byte| *byte %= alphabet);
            let run = run.min(bytes.len());
            let end = (run + run_len).min(bytes.len());
            bytes[run..end].fill(7);
            let hashes = bytes.windows(GRAM_BYTES).map(|gram| hash_whole(gram).wrapping_mul(SPREAD));
            let mut expected: Vec<_> = hashes.filter(|&hash| hash <= bound(level)).map(GramHash).collect();
            expected.sort_unstable();
            expected.dedup();
            prop_assert_eq!(selected(&bytes, level), expected);
        }

        #[test]
        fn placed_grams_are_those_selected_and_stand_there(bytes in prop::collection::vec(0u8..3, 0..900), level in 0u8..4) {
            let mut placed = Vec::new();
            select_placed(&bytes, level, &mut placed);
            let there = |&(hash, at): &(GramHash, u32)| selected(&bytes[at as usize..][..GRAM_BYTES], level) == [hash];
            prop_assert!(placed.iter().all(there));
            let mut hashes: Vec<_> = placed.into_iter().map(|(hash, _)| hash).collect();
            hashes.sort_unstable();
            hashes.dedup();
            prop_assert_eq!(hashes, selected(&bytes, level));
        }

        #[test]
        fn levels_are_nested(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
            for level in 0..LEVEL_MAX {
                let finer: Vec<_> = selected(&bytes, level).into_iter().filter(|g| g.level() > level).collect();
                prop_assert_eq!(finer, selected(&bytes, level + 1));
            }
        }
    }

    /// Text of few words must be sampled as evenly as noise: the shares of grams selected, and the spread of
    /// features over buckets.
    #[test]
    fn low_entropy_text_is_sampled_evenly() {
        for alphabet in [b"ab".as_slice(), b"0123456789", b"\x00\x01", b"etaoin shrdlu\n"] {
            let mut x = 88172645463325252u64;
            let bytes: Vec<u8> = (0..400_000)
                .map(|_| {
                    x ^= x << 13;
                    x ^= x >> 7;
                    x ^= x << 17;
                    alphabet[(x >> 33) as usize % alphabet.len()]
                })
                .collect();
            let mut all = selected(&bytes, 0);
            all.sort_unstable();
            all.dedup();
            let share = all.iter().filter(|g| g.level() == LEVEL_MAX).count() as f64 / all.len() as f64;
            assert!((share * 96.0 - 1.0).abs() < 0.1, "{alphabet:?}: {share}");
            let mut buckets = [0u32; 256];
            for gram in &all {
                buckets[(gram.feature() >> (FEATURE_BITS - 8)) as usize] += 1;
            }
            let expected = all.len() as f64 / 256.0;
            let chi2: f64 = buckets.iter().map(|&n| (f64::from(n) - expected).powi(2) / expected).sum();
            assert!(chi2 < 255.0 + 6.0 * (2.0f64 * 255.0).sqrt(), "{alphabet:?}: {chi2}");
        }
    }

    #[test]
    fn a_level_is_that_of_the_last_bound_that_holds() {
        for level in 1..=LEVEL_MAX {
            let most = bound(level);
            assert_eq!([most, most + 1].map(|hash| GramHash(hash).level()), [level, level - 1]);
        }
        assert_eq!([0, u64::MAX].map(|hash| GramHash(hash).level()), [LEVEL_MAX, 0]);
    }

    #[test]
    fn short_input_and_runs() {
        assert!(selected(&[1; GRAM_BYTES - 1], 0).is_empty());
        assert_eq!(selected(&[1; GRAM_BYTES], 0).len(), 1);
        let mut run = Vec::new();
        select(&vec![0; 100_000], 0, &mut run);
        assert!(run.iter().all(|gram| *gram == run[0]) && run.capacity() <= 2 * HELD, "{}", run.capacity());
    }
}
