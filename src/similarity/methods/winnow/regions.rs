//! The common parts of two documents, side by side, as MOSS shows them: fingerprints that are in both, in the
//! same order and at about the same distance, joined to regions.

use super::WinnowSketch;
use std::collections::HashMap;
use std::ops::Range;

/// Places of one fingerprint in the second document that are tried.
const PLACES_MAX: usize = 16;

/// A common part of two documents: equal at least at its fingerprints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Region {
    /// In the first, in bytes of its front end's output.
    pub a: Range<u64>,
    /// In the second.
    pub b: Range<u64>,
    /// Fingerprints in common.
    pub prints: usize,
}

/// Returns the regions of two sketches made with the same `k` and windows of at most `w`; by place in the first, the longest
/// first if several begin together. A part that is twice in the second is two regions.
///
/// Fingerprints are joined if at most `w` bytes lie between them in both documents, and the distance is the same up to w-1:
/// robust winnowing may take another of several equal hashes.
pub fn regions(a: &WinnowSketch, b: &WinnowSketch, k: u32, w: u32) -> Vec<Region> {
    let (k, w) = (u64::from(k), u64::from(w));
    let mut places: HashMap<u64, Vec<u64>> = HashMap::new();
    for print in &b.prints {
        let places = places.entry(print.hash).or_default();
        if places.len() < PLACES_MAX {
            places.push(print.at);
        }
    }
    let mut done: Vec<Region> = Vec::new();
    let mut open: Vec<Region> = Vec::new();
    for print in &a.prints {
        let (ended, goes_on) = open.into_iter().partition(|region| region.a.end + w < print.at + k);
        open = goes_on;
        done.extend::<Vec<Region>>(ended);
        for &at in places.get(&print.hash).into_iter().flatten() {
            // The nearest of the regions that this place can continue.
            let off = |region: &Region| {
                let (there, here) =
                    (at as i128 - print.at as i128, region.b.end as i128 - region.a.end as i128);
                (there - here).unsigned_abs()
            };
            let joins = |region: &&mut Region| {
                let next = at + k > region.b.end && print.at + k > region.a.end && at + k <= region.b.end + w;
                next && off(region) < u128::from(w)
            };
            match open.iter_mut().filter(joins).min_by_key(|region| off(region)) {
                Some(region) => {
                    region.a.end = print.at + k;
                    region.b.end = at + k;
                    region.prints += 1;
                }
                None => open.push(Region { a: print.at..print.at + k, b: at..at + k, prints: 1 }),
            }
        }
    }
    done.extend(open);
    done.sort_by_key(|region| (region.a.start, u64::MAX - region.a.end, region.b.start));
    done
}
