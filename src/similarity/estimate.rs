//! Estimates of shares of bytes, which users expect, from samples of grams.
//!
//! A change of one byte removes [`GRAM_BYTES`] grams, but only that byte is not in common. A gram that occurs many times is
//! one feature, but all its bytes count. The bytes of the queried file are at hand, so the estimate uses the places of its
//! features ([`Places`]). The two contents differ somewhere between a feature in common and a neighbour that is not. A run
//! of common grams extends [`REACH`] of the way to the far end of the neighbour. The rest of a gap is not in common, except
//! a part of the bytes [`BETWEEN`] two grams that are not.
//!
//! For the other content no places are known. There, changes are taken as breaks that fall evenly, `x` per byte. A gram is
//! in common with probability `e^(-24x)`. A byte lies in a common run of [`MATCH_BYTES_MIN`] or more with probability
//! `(1 + 32x) e^(-32x)`: the run around a given byte has length `l` with density `x^2 l e^(-xl)`. If changes come in blocks
//! instead, the share of grams is the share of bytes. The estimate is the middle of the two.
//!
//! `docs/decisions/0027-estimates-of-bytes.md` has measurements on releases, documentation and executables.

use super::exact::MATCH_BYTES_MIN;
use super::gram::{GRAM_BYTES, LEVELS};
use super::sketch::Place;
use std::collections::HashMap;

/// How scattered changes are if no places show it.
const SCATTER: f64 = 0.5;
/// How far a run extends into the gap next to it, as a part of the possible distance: half if changes are longer than gaps,
/// all if they are single bytes.
const REACH: f64 = 2.0 / 3.0;
/// The common part of the bytes between two grams that are not in common, if all other grams are.
const BETWEEN: f64 = 0.1;

/// Returns the share of each content's bytes that is in the other, from the shares of distinct grams, 0 to 1.
///
/// Both shares grow by the factor that follows from the larger one: a small file that is wholly in a large one leaves the
/// large one's share as it is.
pub(super) fn shares_of_bytes(a_grams: f64, b_grams: f64) -> (f64, f64) {
    let most = a_grams.max(b_grams);
    if most <= 0.0 {
        return (0.0, 0.0);
    }
    let factor = 1.0 + SCATTER * (of_scattered(most) / most - 1.0).max(0.0);
    ((a_grams * factor).min(1.0), (b_grams * factor).min(1.0))
}

/// Returns the share of bytes if changes are scattered evenly.
fn of_scattered(grams: f64) -> f64 {
    let breaks = -grams.clamp(f64::MIN_POSITIVE, 1.0).ln() / GRAM_BYTES as f64 * MATCH_BYTES_MIN as f64;
    (1.0 + breaks) * (-breaks).exp()
}

/// Places of the features in the queried file.
pub(super) struct Places {
    /// The level that selects each feature.
    levels: Vec<u8>,
    /// For each level, the places that a content with features of that level sees.
    rows: [Row; LEVELS],
    end: f64,
}

/// The features that a level selects, with their places.
#[derive(Default)]
struct Row {
    /// For each place: the feature, and the start of its gram.
    places: Vec<(u16, f64)>,
    /// Number of features.
    features: usize,
}

impl Places {
    /// Makes the places of the features that count, at most 65,536, each with an index of its own from 0 on. Other features
    /// are in no estimate, nor are the bytes around them. `places` are in order, in a file of `bytes` without padding.
    pub(super) fn of(places: &[Place], counting: &HashMap<u64, u16>, bytes: u64) -> Places {
        let mut levels = vec![0; counting.len()];
        let mut rows: [Row; LEVELS] = Default::default();
        let (mut end, mut before, mut weight_before) = (0.0, 0, None);
        for place in places {
            let feature = counting.get(&place.feature.bits()).copied();
            let weight = f64::from(u8::from(feature.is_some()));
            end += (place.at - before) as f64 * (weight + weight_before.unwrap_or(weight)) / 2.0;
            (before, weight_before) = (place.at, Some(weight));
            let Some(feature) = feature else { continue };
            levels[usize::from(feature)] = place.feature.level();
            let selected = &mut rows[..=usize::from(place.feature.level())];
            selected.iter_mut().for_each(|row| row.places.push((feature, end)));
        }
        end += (bytes - before) as f64 * weight_before.unwrap_or(0.0);
        let mut of = Places { levels, rows, end };
        for level in 0..LEVELS {
            of.rows[level].features = of.levels.iter().filter(|&&of| usize::from(of) >= level).count();
        }
        of
    }

    /// Returns the share of bytes in common with a content whose features are selected at `level` and that has those `found`,
    /// each once. `None` if that says nothing. O(places).
    pub(super) fn share(&self, found: &[u16], level: u8) -> Option<f64> {
        let row = &self.rows[usize::from(level)];
        let mut is_found = vec![false; self.levels.len()];
        found.iter().for_each(|&feature| is_found[usize::from(feature)] = true);
        let count = found.iter().filter(|&&feature| self.levels[usize::from(feature)] >= level).count();
        let grams = count as f64 / row.features.max(1) as f64;
        (count > 0).then(|| covered(&row.places, &is_found, self.end, grams))
    }
}

/// Returns the common share of `end` bytes if a share `grams` of the features is common. `places` are in order: the feature,
/// and the start of its gram. O(places).
pub(super) fn covered(places: &[(u16, f64)], is_found: &[bool], end: f64, grams: f64) -> f64 {
    const GRAM: f64 = GRAM_BYTES as f64;
    let is_found = |place: &(u16, f64)| is_found[usize::from(place.0)];
    let mut runs = places.chunk_by(|a, b| is_found(a) == is_found(b)).peekable();
    let (mut covered, mut parted) = (0.0, None);
    while let Some(run) = runs.next() {
        let (first, last) = (run[0].1, run[run.len() - 1].1);
        if !is_found(&run[0]) {
            let gaps = run.windows(2).map(|pair| (pair[1].1 - pair[0].1 - GRAM).max(0.0));
            covered += BETWEEN * grams * gaps.sum::<f64>();
            parted = Some(last);
            continue;
        }
        // The farthest byte that may differ is the one at which the neighbour starts, or the one at which it ends.
        let (before, reach_before) = match parted {
            Some(parted) => ((first - parted - 1.0).max(0.0), REACH),
            None => (first, 1.0),
        };
        let (after, reach_after) = match runs.peek() {
            Some(next) => ((next[0].1 - last - 1.0).max(0.0), REACH),
            None => ((end - last - GRAM).max(0.0), 1.0),
        };
        let least = last - first + GRAM;
        covered += of_run(least, least + before * reach_before + after * reach_after, least + before + after);
    }
    (covered / end.max(1.0)).min(1.0)
}

/// Returns the counted bytes of a run with `least` to `most` bytes, probably `likely`: 0 if it is too short for a match.
fn of_run(least: f64, likely: f64, most: f64) -> f64 {
    const MATCH: f64 = MATCH_BYTES_MIN as f64;
    if least >= MATCH {
        return likely;
    }
    let reaches = (most - MATCH + 1.0).max(0.0) / (most - least + 1.0);
    reaches * likely.max(MATCH)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::similarity::{QuerySketch, exact};

    #[test]
    fn ends_stay_and_the_order_too() {
        assert_eq!(shares_of_bytes(0.0, 0.0), (0.0, 0.0));
        assert_eq!(shares_of_bytes(1.0, 0.02), (1.0, 0.02), "what is whole says nothing of changes");
        let mut last = 0.0;
        for grams in (1..=1000).map(|i| f64::from(i) / 1000.0) {
            let (bytes, same) = shares_of_bytes(grams, grams);
            assert!(bytes >= grams && bytes <= 1.0 && bytes >= last && bytes == same, "{grams}: {bytes}");
            last = bytes;
        }
    }

    fn noise(seed: u64) -> impl FnMut() -> u64 {
        let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        move || {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            x >> 20
        }
    }

    /// A simulation of the model: breaks fall evenly, and runs of 32 bytes and more count.
    #[test]
    fn scattered_changes_are_as_the_model_says() {
        let mut next = noise(1);
        for one_in in [40, 100, 400] {
            let broken: Vec<bool> = (0..1_000_000).map(|_| next().is_multiple_of(one_in)).collect();
            let runs: Vec<usize> = broken.split(|broken| *broken).map(<[bool]>::len).collect();
            let share = |part: usize| part as f64 / broken.len() as f64;
            let grams = share(runs.iter().map(|len| (len + 1).saturating_sub(GRAM_BYTES)).sum());
            let bytes = share(runs.iter().filter(|len| **len >= MATCH_BYTES_MIN).sum());
            assert!((of_scattered(grams) - bytes).abs() < 0.02, "{one_in}: {grams} {bytes}");
        }
    }

    /// What is estimated of `bytes` that some of their grams are in `other`, and what is true. Without the features that
    /// are `left_out` by place.
    fn estimate(bytes: &[u8], other: &[u8], left_out: impl Fn(u64) -> bool) -> (f64, f64) {
        let of = |bytes: &[u8]| {
            let mut query = QuerySketch::new();
            bytes.chunks(16 << 10).for_each(|chunk| query.add_chunk(chunk));
            query
        };
        let (query, there) = (of(bytes), of(other).features());
        let mut counting = HashMap::new();
        for place in query.places().iter().filter(|place| !left_out(place.at)) {
            let next = counting.len() as u16;
            counting.entry(place.feature.bits()).or_insert(next);
        }
        let places = Places::of(query.places(), &counting, query.counted());
        let has = |bits: &u64| there.iter().any(|asked| asked.feature.bits() == *bits);
        let found: Vec<u16> = counting.iter().filter(|(bits, _)| has(bits)).map(|(_, &i)| i).collect();
        let share = places.share(&found, 7).unwrap();
        let common = exact::compare(&bytes, &other, 1 << 22).unwrap().a_bytes;
        (share, common as f64 / bytes.len() as f64)
    }

    #[test]
    fn changes_in_blocks_and_scattered_ones() {
        let mut next = noise(2);
        let bytes: Vec<u8> = (0..200_000).map(|_| next() as u8).collect();
        let changed = |is_changed: &dyn Fn(usize) -> bool| -> Vec<u8> {
            bytes.iter().enumerate().map(|(at, &byte)| if is_changed(at) { !byte } else { byte }).collect()
        };
        for is_changed in [&(|at: usize| at < 120_000) as &dyn Fn(usize) -> bool, &|at| at % 20_000 < 12_000]
        {
            let (estimate, truth) = estimate(&changed(is_changed), &bytes, |_| false);
            assert!((estimate - truth).abs() < 0.03, "{estimate} for {truth}");
        }
        for every in [50, 100, 400] {
            let (estimate, truth) = estimate(&changed(&|at| at % every == 0), &bytes, |_| false);
            assert!(truth > 0.97 && (truth - estimate) < 0.35, "{estimate} for {truth}");
        }
    }

    /// What is there over and over is few features, and what does not count is in no share.
    #[test]
    fn repeats_count_and_what_is_left_out_does_not() {
        let mut next = noise(3);
        let mut of = |len: usize| -> Vec<u8> { (0..len).map(|_| next() as u8).collect() };
        let (markup, own, others) = (of(3000).repeat(12), of(24_000), of(24_000));
        let (one, other) = ([&markup[..], &own].concat(), [&markup[..], &others].concat());
        let (said, truth) = estimate(&one, &other, |_| false);
        assert!((said - truth).abs() < 0.05, "{said} for {truth}, and 0.11 of distinct grams");
        let part = [&own[..6000], &others[..6000], &markup[..36_000]].concat();
        let (said, _) = estimate(&part, &own, |at| at >= 12_000);
        assert!((said - 0.5).abs() < 0.1, "{said} for half of what counts");
    }
}
