//! Winnowing: of each window of w hashes of k-grams the least (Schleimer, Wilkerson and Aiken, "Winnowing: Local
//! Algorithms for Document Fingerprinting", SIGMOD 2003), as in MOSS.
//!
//! ```text
//! document -> front       the format's front end: what does not tell documents apart is taken out
//! bytes    -> select      hashes of k-grams, the least of each window, with their places
//! sketches -> regions     the parts that two documents have in common, side by side
//! index    -> pairs       pairs by the number of fingerprints in common, beside a base file
//! ```
//!
//! Promise: whatever two files have in common that is of t = w+k-1 bytes or more is seen, and nothing below k bytes is.
//! The engine knows no formats; a front end knows no fingerprints.

pub mod front;
mod pairs;
mod query;
mod regions;
mod select;

pub use pairs::{Base, PairOptions, WinnowPair, pairs};
pub use query::Query;
pub use regions::{Region, regions};
pub use select::{Fingerprint, HASH_BITS, each_hash};

use super::{Builder, Damaged, Likeness, Method};
use crate::recipe::{put_varint, take_varint};
use select::{Grams, Windows, thinned};
use std::ffi::OsStr;

const HASH_BYTES: usize = HASH_BITS as usize / 8;
/// Longer k-grams are of no use to anyone.
pub const K_MAX: u32 = 4096;
/// Nor are larger windows.
pub const W_MAX: u32 = 1 << 20;

/// The method and its parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Winnow {
    k: u32,
    w: u32,
    robust: bool,
}

impl Default for Winnow {
    /// As the paper measures: k = 50, w = 100, robust.
    fn default() -> Self {
        Winnow { k: 50, w: 100, robust: true }
    }
}

impl Winnow {
    /// With noise threshold `k`, in bytes, and windows of `w` hashes. Robust winnowing (definition 3) keeps less of
    /// text that repeats itself; plain winnowing (definition 1) finds both copies at the same place.
    ///
    /// Fails if `k` is not 1 to [`K_MAX`] or `w` not 1 to [`W_MAX`].
    pub fn new(k: u32, w: u32, robust: bool) -> Result<Winnow, String> {
        if !(1..=K_MAX).contains(&k) {
            return Err(format!("k-grams of {k} bytes: expected 1 to {K_MAX}"));
        }
        if !(1..=W_MAX).contains(&w) {
            return Err(format!("windows of {w} hashes: expected 1 to {W_MAX}"));
        }
        Ok(Winnow { k, w, robust })
    }

    /// With noise threshold `k` and guarantee `t`, both in bytes: then w = t-k+1.
    ///
    /// Fails as [`Winnow::new`] does, and if `t` is below `k`.
    pub fn with_guarantee(k: u32, t: u32, robust: bool) -> Result<Winnow, String> {
        let w = t
            .checked_sub(k)
            .ok_or_else(|| format!("a guarantee of {t} bytes: expected {k} or more, as k is"))?;
        Winnow::new(k, w + 1, robust)
    }

    /// Shorter matches are not seen.
    pub fn k(&self) -> u32 {
        self.k
    }

    /// Hashes in a window.
    pub fn w(&self) -> u32 {
        self.w
    }

    /// t: matches of so many bytes or more are found for sure.
    pub fn guarantee(&self) -> u32 {
        self.w + self.k - 1
    }
}

/// The fingerprints of a file, with their places.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WinnowSketch {
    /// How many k-grams there were.
    pub grams: u64,
    /// By place.
    pub prints: Vec<Fingerprint>,
}

impl WinnowSketch {
    /// Those that a window of `w` hashes keeps, where `w` is no smaller than that of the method: a query with fewer
    /// look-ups, coarser, on the same index (section 3.2).
    pub fn with_window(&self, w: u32) -> WinnowSketch {
        WinnowSketch { grams: self.grams, prints: thinned(&self.prints, self.grams, u64::from(w)) }
    }

    /// The `n` smallest hashes, each once. A few are Broder's test of resemblance; all are the test of containment
    /// (section 3.2).
    pub fn smallest(&self, n: usize) -> WinnowSketch {
        let mut prints = self.prints.clone();
        prints.sort_unstable();
        prints.dedup_by_key(|print| print.hash);
        prints.truncate(n);
        prints.sort_unstable_by_key(|print| print.at);
        WinnowSketch { grams: self.grams, prints }
    }

    /// Hashes, ascending, each once.
    pub fn hashes(&self) -> Vec<u64> {
        let mut hashes: Vec<u64> = self.prints.iter().map(|print| print.hash).collect();
        hashes.sort_unstable();
        hashes.dedup();
        hashes
    }
}

/// Broder's estimate of resemblance: of the `n` smallest hashes in either those that are in both.
pub fn resemblance(a: &WinnowSketch, b: &WinnowSketch, n: usize) -> Option<f64> {
    let (a, b) = (a.smallest(n).hashes(), b.smallest(n).hashes());
    let mut all = [&a[..], &b].concat();
    all.sort_unstable();
    all.dedup();
    all.truncate(n);
    let both =
        all.iter().filter(|hash| a.binary_search(hash).is_ok() && b.binary_search(hash).is_ok()).count();
    (!all.is_empty()).then(|| both as f64 / all.len() as f64)
}

impl Method for Winnow {
    type Sketch = WinnowSketch;
    type Builder = WinnowBuilder;

    const NAME: &'static str = "winnow";

    fn parameters(&self) -> String {
        let Winnow { k, w, robust } = self;
        format!("{} k={k} w={w}", if *robust { "robust" } else { "plain" })
    }

    fn builder(&self, _name: Option<&OsStr>) -> WinnowBuilder {
        WinnowBuilder { grams: Grams::new(self.k), windows: Windows::new(self.w, self.robust) }
    }

    fn encode(&self, sketch: &WinnowSketch) -> Vec<u8> {
        let mut out = Vec::with_capacity(8 + (1 + HASH_BYTES) * sketch.prints.len());
        put_varint(&mut out, sketch.grams);
        put_varint(&mut out, sketch.prints.len() as u64);
        let mut last = 0;
        for print in &sketch.prints {
            put_varint(&mut out, print.at - last);
            out.extend_from_slice(&print.hash.to_be_bytes()[8 - HASH_BYTES..]);
            last = print.at;
        }
        out
    }

    fn decode(&self, bytes: &[u8]) -> Result<WinnowSketch, Damaged> {
        decode(bytes).ok_or(Damaged { method: Self::NAME, expected: "hashes with ascending places" })
    }

    fn keys(&self, sketch: &WinnowSketch) -> Vec<u64> {
        sketch.hashes()
    }

    /// Containment both ways and resemblance, of different hashes.
    fn compare(&self, a: &WinnowSketch, b: &WinnowSketch) -> Likeness {
        let (a, b) = (a.hashes(), b.hashes());
        if a.is_empty() || b.is_empty() {
            return Likeness::default();
        }
        let mut rest = b.iter().peekable();
        let mut common = 0;
        for hash in &a {
            while rest.next_if(|other| *other < hash).is_some() {}
            common += usize::from(rest.next_if(|other| *other == hash).is_some());
        }
        let share = |of: usize| Some(common as f64 / of as f64);
        Likeness {
            containment: share(a.len()),
            contained_in: share(b.len()),
            resemblance: share(a.len() + b.len() - common),
            distance: None,
        }
    }
}

fn decode(mut bytes: &[u8]) -> Option<WinnowSketch> {
    let grams = take_varint(&mut bytes)?;
    let count = usize::try_from(take_varint(&mut bytes)?).ok()?;
    // A fingerprint takes so many bytes or more.
    let mut prints =
        Vec::with_capacity(Some(count).filter(|count| *count <= bytes.len() / (1 + HASH_BYTES))?);
    let mut at = 0u64;
    for i in 0..count {
        let gap = take_varint(&mut bytes)?;
        let (hash, rest) = bytes.split_first_chunk::<HASH_BYTES>()?;
        at = at.checked_add(gap).filter(|at| (i == 0 || gap > 0) && *at < grams)?;
        prints.push(Fingerprint { hash: hash.iter().fold(0, |hash, &byte| hash << 8 | u64::from(byte)), at });
        bytes = rest;
    }
    bytes.is_empty().then_some(WinnowSketch { grams, prints })
}

/// Takes the bytes of one file.
pub struct WinnowBuilder {
    grams: Grams,
    windows: Windows,
}

impl Builder for WinnowBuilder {
    type Sketch = WinnowSketch;

    fn add(&mut self, bytes: &[u8]) {
        let windows = &mut self.windows;
        self.grams.roll(bytes, |hash| windows.put(hash));
    }

    fn finish(self) -> WinnowSketch {
        let (grams, prints) = self.windows.finish();
        WinnowSketch { grams, prints }
    }
}

#[cfg(test)]
mod tests;
