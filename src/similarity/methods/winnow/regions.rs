//! The common parts of two documents, side by side, as MOSS shows them. Common fingerprints find a part; comparing the bytes
//! around them finds its extent.
//!
//! - A part that is several times in one document is a region for each time. No byte of the first document is in two regions
//!   because the second repeats itself, and the other way round. A passage that both repeat is one region.
//! - Every common fingerprint is in a region, on either side.

use super::{Fingerprint, WinnowSketch};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::Range;

/// Places of one fingerprint in the other document that are tried: the first ones, and as many near the last region.
const PLACES_MAX: usize = 8;

/// A common part of two documents: equal bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Region {
    /// In the first, in bytes of its front end's output.
    pub a: Range<u64>,
    /// In the second.
    pub b: Range<u64>,
    /// Fingerprints in it.
    pub prints: usize,
}

/// A document to compare.
#[derive(Clone, Copy, Debug)]
pub struct Side<'a> {
    /// Its fingerprints.
    pub sketch: &'a WinnowSketch,
    /// The front end's output.
    pub text: &'a [u8],
    /// Parts of the text that no region reaches into.
    pub ignored: &'a Spans,
}

/// Sets of bytes of a document: spans that do not touch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spans(BTreeMap<u64, u64>);

impl Spans {
    /// Adds some bytes.
    pub fn add(&mut self, span: &Range<u64>) {
        let (mut start, mut end) = (span.start, span.end);
        while let Some((&other, &other_end)) = self.0.range(..=end).next_back().filter(|(_, e)| **e >= start)
        {
            self.0.remove(&other);
            (start, end) = (start.min(other), end.max(other_end));
        }
        self.0.insert(start, end);
    }

    /// Returns the span that has the byte at `at`.
    fn at(&self, at: u64) -> Option<Range<u64>> {
        let (&start, &end) = self.0.range(..=at).next_back()?;
        (at < end).then_some(start..end)
    }

    /// Returns the bytes around `at` that are in no span; `at` is in none.
    fn free_around(&self, at: u64, len: u64) -> Range<u64> {
        let start = self.0.range(..=at).next_back().map_or(0, |(_, &end)| end);
        let end = self.0.range(at..).next().map_or(len, |(&start, _)| start);
        start..end
    }
}

/// Returns the regions of two documents whose sketches were made with the same `k`; by place in the first, the longest first
/// if several begin together.
pub fn regions(a: Side<'_>, b: Side<'_>, k: u32) -> Vec<Region> {
    let k = u64::from(k);
    let (mut in_a, mut in_b) = (Spans::default(), Spans::default());
    let mut found = Vec::new();
    for (here, there) in scan(a, b, k, &mut in_a) {
        in_b.add(&there);
        found.push(Region { prints: prints_in(a.sketch, &here, k), a: here, b: there });
    }
    // Parts of the second document that the first has too, but that no region shows yet: copies.
    for (here, there) in scan(b, a, k, &mut in_b) {
        found.push(Region { prints: prints_in(b.sketch, &here, k), a: there, b: here });
    }
    found.sort_by_key(|region| (region.a.start, Reverse(region.a.end), region.b.start));
    found
}

fn prints_in(sketch: &WinnowSketch, span: &Range<u64>, k: u64) -> usize {
    let count = |at: u64| sketch.prints.partition_point(|print| print.at < at);
    // The one that found it may begin before.
    count((span.end + 1).saturating_sub(k)).saturating_sub(count(span.start)).max(1)
}

/// Finds parts of `one` that `other` has, from the first byte on, outside of `covered`; covers them. At each place
/// the longest is taken, so comparing takes linear time.
fn scan(one: Side<'_>, other: Side<'_>, k: u64, covered: &mut Spans) -> Vec<(Range<u64>, Range<u64>)> {
    let mut places = other.sketch.prints.clone();
    places.sort_unstable();
    let (mut found, mut shift) = (Vec::new(), 0i64);
    // A fingerprint that begins in a region crosses an edit, and so has no counterpart beyond it. Such
    // fingerprints come last.
    for crossing in [false, true] {
        for &Fingerprint { hash, at } in &one.sketch.prints {
            // The part of the fingerprint that is not covered.
            let start = covered.at(at).map_or(at, |span| span.end);
            if start >= at + k || (start > at) != crossing {
                continue;
            }
            let from = places.partition_point(|print| print.hash < hash);
            let count = places[from..].partition_point(|print| print.hash == hash);
            let places = &places[from..from + count];
            if places.is_empty() {
                continue;
            }
            let free = covered.free_around(start, one.text.len() as u64);
            let near = places.partition_point(|place| (place.at as i64) < at as i64 + shift);
            let near = near.saturating_sub(PLACES_MAX / 2)..places.len().min(near + PLACES_MAX / 2);
            let tried = places.iter().take(PLACES_MAX).chain(&places[near]);
            let equal = tried.filter_map(|place| {
                let by = place.at as i64 - at as i64;
                extent(one, other, at..at + k, &free, by).map(|here| (here, by))
            });
            let longest = equal.max_by_key(|(here, by)| (here.end - here.start, Reverse((by - shift).abs())));
            if let Some((here, by)) = longest {
                covered.add(&here);
                let there = here.start.wrapping_add_signed(by)..here.end.wrapping_add_signed(by);
                shift = by;
                found.push((here, there));
            }
        }
    }
    found
}

/// Returns how far the two documents are equal around `gram`, which `other` has `by` bytes later, within `free`; `None` if
/// that is less than the length of `gram`.
fn extent(
    one: Side<'_>,
    other: Side<'_>,
    gram: Range<u64>,
    free: &Range<u64>,
    by: i64,
) -> Option<Range<u64>> {
    let there = gram.start.wrapping_add_signed(by);
    let len = gram.end - gram.start;
    let bytes = |text: &[u8], at: u64| -> Option<Range<usize>> {
        let span = usize::try_from(at).ok()?..usize::try_from(at.checked_add(len)?).ok()?;
        (span.end <= text.len()).then_some(span)
    };
    // Hashes may be equal by chance.
    if one.text[bytes(one.text, gram.start)?] != other.text[bytes(other.text, there)?] {
        return None;
    }
    if touches(one.ignored, &gram) || touches(other.ignored, &(there..there + len)) {
        return None;
    }
    let in_one = one.ignored.free_around(gram.start, one.text.len() as u64);
    let in_other = other.ignored.free_around(there, other.text.len() as u64);
    let first = free.start.max(in_one.start).max(in_other.start.saturating_add_signed(-by));
    let last = free.end.min(in_one.end).min(in_other.end.saturating_add_signed(-by));
    let (mut start, mut end) = (gram.start.max(first), gram.end.min(last));
    let equal = |at: u64| one.text.get(at as usize) == other.text.get(at.wrapping_add_signed(by) as usize);
    while start > first && equal(start - 1) {
        start -= 1;
    }
    while end < last && equal(end) {
        end += 1;
    }
    (end >= start + len).then_some(start..end)
}

fn touches(spans: &Spans, gram: &Range<u64>) -> bool {
    let free = spans.free_around(gram.start, u64::MAX);
    spans.at(gram.start).is_some() || free.end < gram.end
}
