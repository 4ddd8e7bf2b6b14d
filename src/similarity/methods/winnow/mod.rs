//! Winnowing: the least of each window of w hashes of k-grams (Schleimer, Wilkerson and Aiken, "Winnowing: Local
//! Algorithms for Document Fingerprinting", SIGMOD 2003), as in MOSS.
//!
//! ```text
//! document -> front       the format's front end: takes out text that does not tell documents apart
//! bytes    -> select      hashes of k-grams, the least of each window, with their places
//! sketches -> regions     the parts that two documents have in common, side by side
//! index    -> query       files like one, without a base file, with as many look-ups as the user wants
//! index    -> pairs       pairs by the number of fingerprints in common, without a base file
//! ```
//!
//! - Guarantee: every common passage of t = w+k-1 bytes or more is found, and none below k bytes.
//! - The engine knows no formats; a front end knows no fingerprints.
//! - A sketch has places; an index does not need them, as the passages shown side by side are read from the documents.

pub mod front;
mod pairs;
mod query;
mod regions;
mod select;

pub use pairs::{Base, PairOptions, WinnowPair, WinnowPairs, pairs};
pub use query::Query;
pub use regions::{Region, Side, Spans, regions};
pub use select::{Fingerprint, HASH_BITS, each_hash};

use super::{Builder, Damaged, Entry, Likeness, Method, Options, Parametric, Sums, Whole};
use crate::recipe::{put_varint, take_varint};
use select::{Grams, Windows, thinned};
use std::ffi::OsStr;

/// Longer k-grams are useless.
pub const K_MAX: u32 = 4096;
/// Larger windows are useless too.
pub const W_MAX: u32 = 1 << 20;

/// The method and its parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Winnow {
    k: u32,
    w: u32,
    robust: bool,
}

impl Default for Winnow {
    /// The paper's values: k = 50, w = 100, robust.
    fn default() -> Self {
        Winnow { k: 50, w: 100, robust: true }
    }
}

impl Winnow {
    /// Takes noise threshold `k`, in bytes, and windows of `w` hashes. Robust winnowing (definition 3) keeps less of
    /// repetitive text; plain winnowing (definition 1) finds both copies at the same place.
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

    /// Takes noise threshold `k` and guarantee `t`, both in bytes: then w = t-k+1.
    ///
    /// Fails as [`Winnow::new`] does, and if `t` is below `k`.
    pub fn with_guarantee(k: u32, t: u32, robust: bool) -> Result<Winnow, String> {
        let w = t
            .checked_sub(k)
            .ok_or_else(|| format!("a guarantee of {t} bytes: expected {k} or more, as k is"))?;
        Winnow::new(k, w + 1, robust)
    }

    /// Returns k: shorter matches are not found.
    pub fn k(&self) -> u32 {
        self.k
    }

    /// Returns w: hashes in a window.
    pub fn w(&self) -> u32 {
        self.w
    }

    /// Returns t: common passages of this many bytes or more are always found.
    pub fn guarantee(&self) -> u32 {
        self.w + self.k - 1
    }
}

/// Facts of a whole file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WinnowHead {
    /// Number of k-grams.
    pub grams: u64,
    /// Number of fingerprints, repeats included.
    pub prints: u64,
}

/// The fingerprints of a file, with their places.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WinnowSketch {
    /// Number of k-grams.
    pub grams: u64,
    /// By place.
    pub prints: Vec<Fingerprint>,
}

impl WinnowSketch {
    /// Returns the fingerprints that a window of `w` hashes keeps, with `w` at least that of the method: a coarser query
    /// with fewer look-ups, on the same index (section 3.2).
    pub fn with_window(&self, w: u32) -> WinnowSketch {
        WinnowSketch { grams: self.grams, prints: thinned(&self.prints, self.grams, u64::from(w)) }
    }

    /// Returns the `n` smallest hashes, each once. A few are Broder's test of resemblance; all are the test of containment
    /// (section 3.2).
    pub fn smallest(&self, n: usize) -> WinnowSketch {
        let mut prints = self.prints.clone();
        prints.sort_unstable();
        prints.dedup_by_key(|print| print.hash);
        prints.truncate(n);
        prints.sort_unstable_by_key(|print| print.at);
        WinnowSketch { grams: self.grams, prints }
    }

    /// Returns the hashes, ascending, with the number of times that each occurs.
    pub(super) fn entries(&self) -> Vec<Entry> {
        let mut entries: Vec<Entry> = Vec::new();
        let mut hashes: Vec<u64> = self.prints.iter().map(|print| print.hash).collect();
        hashes.sort_unstable();
        for key in hashes {
            match entries.last_mut().filter(|last| last.key == key) {
                Some(last) => last.value += 1,
                None => entries.push(Entry { key, value: 1 }),
            }
        }
        entries
    }

    /// Returns the hashes, ascending, each once.
    pub fn hashes(&self) -> Vec<u64> {
        let mut hashes: Vec<u64> = self.prints.iter().map(|print| print.hash).collect();
        hashes.sort_unstable();
        hashes.dedup();
        hashes
    }
}

/// Returns Broder's estimate of resemblance: the share of the `n` smallest hashes in either that are in both.
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
    type Head = WinnowHead;
    type Builder = WinnowBuilder;

    const NAME: &'static str = "winnow";

    fn parameters(&self) -> String {
        let Winnow { k, w, robust } = self;
        format!("{} k={k} w={w}", if *robust { "robust" } else { "plain" })
    }

    fn described(&self) -> String {
        let (parameters, t, k) = (self.parameters(), self.guarantee(), self.k);
        format!("{parameters} t={t}: finds common passages of {t} bytes or more, and none below {k}")
    }

    fn builder(&self, _name: Option<&OsStr>) -> WinnowBuilder {
        let windows = Windows::new(self.w, self.robust);
        WinnowBuilder { grams: Grams::new(self.k), windows, drained: 0 }
    }

    fn head(&self, sketch: &WinnowSketch) -> WinnowHead {
        WinnowHead { grams: sketch.grams, prints: sketch.prints.len() as u64 }
    }

    /// Returns the entries; the value is the number of occurrences.
    fn entries(&self, sketch: &WinnowSketch) -> Vec<Entry> {
        sketch.entries()
    }

    fn encode(&self, head: &WinnowHead) -> Vec<u8> {
        let mut out = Vec::new();
        put_varint(&mut out, head.grams);
        put_varint(&mut out, head.prints);
        out
    }

    fn decode(&self, mut bytes: &[u8]) -> Result<WinnowHead, Damaged> {
        let head = take_varint(&mut bytes).zip(take_varint(&mut bytes)).filter(|_| bytes.is_empty());
        let head = head.map(|(grams, prints)| WinnowHead { grams, prints });
        head.filter(|head| head.prints <= head.grams)
            .ok_or(Damaged { method: Self::NAME, expected: "the numbers of k-grams and of fingerprints" })
    }

    fn joined(&self, one: u64, other: u64) -> u64 {
        one.saturating_add(other)
    }

    fn meet(&self, sums: &mut Sums, a: u64, b: u64) {
        sums.shared += 1;
        sums.a = sums.a.saturating_add(a.min(b));
    }

    fn without(&self, head: WinnowHead, sums: &Sums) -> WinnowHead {
        WinnowHead { prints: head.prints.saturating_sub(sums.a), ..head }
    }

    /// Returns containment both ways and resemblance, by fingerprints: one that occurs several times counts as often as both
    /// files have it. Robust winnowing keeps one in w of a repetitive passage, so such a passage counts about as much as it is
    /// long.
    fn likeness(&self, a: &Whole<WinnowHead>, b: &Whole<WinnowHead>, sums: &Sums) -> Likeness {
        let (of_a, of_b, common) = (a.head.prints, b.head.prints, sums.a);
        if of_a == 0 || of_b == 0 {
            return Likeness::default();
        }
        // A damaged index may claim more in common than a file has.
        let share = |of: u64| Some(common as f64 / of.max(1) as f64);
        Likeness {
            containment: share(of_a),
            contained_in: share(of_b),
            resemblance: share(of_a.saturating_add(of_b).saturating_sub(common)),
            distance: None,
        }
    }
}

impl Parametric for Winnow {
    const KEYS: &'static str = "k=50 bytes are the least that is found, of w=100 hashes one is kept, t=w+k-1 bytes are found \
        for sure (two of the three are enough), select=robust or plain";

    const EXAMPLE: &'static str = "k=50,w=100,select=robust (t=w+k-1 bytes in common are found for sure, and t may stand for \
        k or w)";

    fn with(options: &mut Options) -> Result<Winnow, String> {
        let [k, w, t] = ["k", "w", "t"].map(|key| options.parse::<u32>(key, "a number"));
        let robust = options.either("select", ["robust", "plain"])?.unwrap_or(true);
        let default = Winnow::default();
        match (k?, w?, t?) {
            (k, w, None) => Winnow::new(k.unwrap_or(default.k), w.unwrap_or(default.w), robust),
            (k, None, Some(t)) => Winnow::with_guarantee(k.unwrap_or(default.k), t, robust),
            (None, Some(w), Some(t)) => {
                let below =
                    || format!("a guarantee of {t} bytes: expected {w} or more, as w is, since t = w+k-1");
                Winnow::new(t.checked_sub(w).ok_or_else(below)?.saturating_add(1), w, robust)
            }
            (Some(k), Some(w), Some(t)) => {
                let winnow = Winnow::new(k, w, robust)?;
                let own = winnow.guarantee();
                let wrong = || {
                    format!("k={k}, w={w}, t={t}: expected t = w+k-1 = {own}; two of the three are enough")
                };
                (own == t).then_some(winnow).ok_or_else(wrong)
            }
        }
    }
}

/// Takes the bytes of one file.
pub struct WinnowBuilder {
    grams: Grams,
    windows: Windows,
    /// Fingerprints passed on so far.
    drained: u64,
}

impl Builder for WinnowBuilder {
    type Sketch = WinnowSketch;
    type Head = WinnowHead;

    fn add(&mut self, bytes: &[u8]) {
        let windows = &mut self.windows;
        self.grams.roll(bytes, |hash| windows.put(hash));
    }

    fn drain(&mut self, take: &mut dyn FnMut(Entry)) {
        for print in self.windows.take() {
            self.drained += 1;
            take(Entry { key: print.hash, value: 1 });
        }
    }

    fn close(self, take: &mut dyn FnMut(Entry)) -> WinnowHead {
        let drained = self.drained;
        let WinnowSketch { grams, prints } = self.finish();
        let head = WinnowHead { grams, prints: drained + prints.len() as u64 };
        prints.into_iter().for_each(|print| take(Entry { key: print.hash, value: 1 }));
        head
    }

    fn finish(self) -> WinnowSketch {
        let (grams, prints) = self.windows.finish();
        WinnowSketch { grams, prints }
    }
}

#[cfg(test)]
mod tests;
