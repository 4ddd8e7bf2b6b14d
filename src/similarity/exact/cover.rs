//! The bytes of one source that matches in another cover.

use super::blocks::Blocks;
use super::ranges::Ranges;
use super::region::{Region, tile};
use super::source::{MATCH_BYTES_MIN, Source, common_end, common_start, read_exact_at};
use std::io;
use std::ops::Range;

/// Bytes read around a segment, so that each match that overlaps it is seen whole.
const MARGIN_BYTES: u64 = MATCH_BYTES_MIN as u64;

/// Common bytes at the starts and at the ends of both sources.
#[derive(Clone, Copy, Default)]
pub(super) struct Known {
    pub(super) prefix: u64,
    pub(super) suffix: u64,
}

impl Known {
    /// Drops ends that are too short to be matches.
    fn matches(self) -> Known {
        let long = |n: u64| if n >= MARGIN_BYTES { n } else { 0 };
        Known { prefix: long(self.prefix), suffix: long(self.suffix) }
    }
}

/// Calls `covered` with the ranges of `a` that matches in `b` cover, in order; they may touch. Also calls `regions`
/// with their places in `b`, if given.
pub(super) fn cover(
    a: &dyn Source,
    b: &dyn Source,
    known: Known,
    segment: u64,
    mut regions: Option<&mut dyn FnMut(Region)>,
    covered: &mut dyn FnMut(Range<u64>),
) -> io::Result<()> {
    let (a_len, b_len) = (a.len(), b.len());
    let Known { prefix, suffix } = known.matches();
    // The ends cover themselves; only matches between them are left to find. They can overlap.
    let (first, end) = (prefix, (a_len - suffix).max(prefix));
    covered(0..first);
    if let Some(tell) = regions.as_deref_mut().filter(|_| first > 0) {
        tell(Region { a: 0, b: 0, len: first });
    }
    let mut one_segment: Option<Segment> = None;
    let mut at = first;
    while at < end {
        let a_segment = Segment::read(a, at, (at + segment).min(end))?;
        let mut map = CoverMap::new(a_segment.bytes.len());
        let mut found = Vec::new();
        let mut b_at = 0;
        while b_at < b_len {
            let b_end = (b_at + segment).min(b_len);
            let whole = b_end - b_at == b_len;
            let b_segment = match one_segment.take() {
                Some(segment) => segment,
                None => Segment::read(b, b_at, b_end)?,
            };
            let blocks = Blocks::of(&b_segment.bytes, b_segment.inner.clone());
            let mut note = |range: Range<usize>, there: usize| {
                let (a, b) = (a_segment.start + range.start as u64, b_segment.start + there as u64);
                found.push(Region { a, b, len: range.len() as u64 });
            };
            let note: Option<&mut Note<'_>> = if regions.is_some() { Some(&mut note) } else { None };
            mark(&a_segment.bytes, &blocks, &mut map, note);
            if whole {
                one_segment = Some(b_segment);
            }
            b_at = b_end;
        }
        map.runs(a_segment.inner.clone(), &mut |run| covered(a_segment.place(run)));
        if let Some(tell) = regions.as_deref_mut() {
            tile(found, a_segment.place(a_segment.inner.clone())).into_iter().for_each(&mut *tell);
        }
        at = (at + segment).min(end);
    }
    covered(end..a_len);
    if let Some(tell) = regions.filter(|_| end < a_len) {
        tell(Region { a: end, b: b_len - (a_len - end), len: a_len - end });
    }
    Ok(())
}

/// Returns the bytes of `a` in matches with the bytes that `blocks` index.
pub(super) fn cover_by(a: &dyn Source, blocks: &Blocks<'_>, segment: u64) -> io::Result<Ranges> {
    let (mut covered, mut at) = (Ranges::default(), 0);
    while at < a.len() {
        let end = (at + segment).min(a.len());
        let a_segment = Segment::read(a, at, end)?;
        let mut map = CoverMap::new(a_segment.bytes.len());
        mark(&a_segment.bytes, blocks, &mut map, None);
        map.runs(a_segment.inner.clone(), &mut |run| covered.push(a_segment.place(run)));
        at = end;
    }
    Ok(covered)
}

/// Gets a match that covers something new: its range in `a`, and its start in the other.
type Note<'a> = dyn FnMut(Range<usize>, usize) + 'a;

/// Marks in `map` the bytes of `a` that occur in the bytes that `blocks` index.
fn mark(a: &[u8], blocks: &Blocks<'_>, map: &mut CoverMap, mut note: Option<&mut Note<'_>>) {
    let mut at = 0;
    // End of the last long match. All 32 bytes that start in it before `skip_to` lie within it; those that start before it
    // and match elsewhere have a block that starts before `skip_from`.
    let (mut reached, mut skip_from, mut skip_to) = (0, 0, 0);
    let b = blocks.bytes;
    loop {
        if at >= skip_from {
            at = at.max(skip_to);
        }
        match blocks.next_candidate(a, at) {
            Some(next) if at < skip_from && next >= skip_from && next < skip_to => {
                at = next;
                continue;
            }
            Some(next) => at = next,
            None => return,
        }
        // Every 32 bytes that hold this block lie within these 48.
        let around = at.saturating_sub(16)..(at + 32).min(a.len());
        if map.is_covered(around.clone()) {
            at += 1;
            continue;
        }
        let mut longest: Option<(usize, usize)> = None;
        blocks.each_equal(a, at, |there, piece| {
            let before = common_end(&a[around.start..at], &b[piece.start..there]);
            let after = 16 + common_start(&a[at + 16..around.end], &b[there + 16..piece.end]);
            if before + after >= MATCH_BYTES_MIN {
                let mut range = at - before..at + after;
                if let Some(note) = note.as_deref_mut().filter(|_| !map.is_covered(range.clone())) {
                    range.start = at - common_end(&a[..at], &b[piece.start..there]);
                    range.end = at + common_start(&a[at..], &b[there..piece.end]);
                    note(range.clone(), there - (at - range.start));
                }
                map.set(range);
                if longest.is_none_or(|(_, length)| after > length) {
                    longest = Some((there, after));
                }
            }
            // No other block covers more around this place.
            before == at - around.start && at + after == around.end
        });
        if let Some((there, _)) = longest.filter(|_| around.end > reached) {
            let after = common_start(&a[at..], &b[there..blocks.piece(there).end]);
            if let Some(note) = note.as_deref_mut().filter(|_| !map.is_covered(at..at + after)) {
                note(at..at + after, there);
            }
            map.set(at..at + after);
            reached = at + after;
            let is_edge_known = map.is_covered(around.start..at);
            skip_from = if is_edge_known { at } else { at + 16 };
            skip_to = (reached + 1).saturating_sub(MATCH_BYTES_MIN);
        }
        at += 1;
    }
}

/// Part of a source in memory, with a margin on both sides.
struct Segment {
    bytes: Vec<u8>,
    /// Their start in the source.
    start: u64,
    /// The part itself within `bytes`.
    inner: Range<usize>,
}

impl Segment {
    fn read(source: &dyn Source, start: u64, end: u64) -> io::Result<Segment> {
        let from = start.saturating_sub(MARGIN_BYTES);
        let to = (end + MARGIN_BYTES).min(source.len());
        let mut bytes = vec![0; (to - from) as usize];
        read_exact_at(source, from, &mut bytes)?;
        let inner = (start - from) as usize..(end - from) as usize;
        Ok(Segment { bytes, start: from, inner })
    }

    /// Returns the range of a part of `bytes` in the source.
    fn place(&self, part: Range<usize>) -> Range<u64> {
        self.start + part.start as u64..self.start + part.end as u64
    }
}

/// One bit for each byte of a segment: whether it is covered.
struct CoverMap(Vec<u64>);

impl CoverMap {
    fn new(len: usize) -> CoverMap {
        CoverMap(vec![0; len.div_ceil(64)])
    }

    /// The words that a range touches, each with the bits of it that are in the range.
    fn words(range: Range<usize>) -> impl Iterator<Item = (usize, u64)> {
        (range.start / 64..range.end.div_ceil(64)).map(move |word| {
            let low = u64::MAX << range.start.saturating_sub(word * 64);
            let high = u64::MAX >> ((word + 1) * 64).saturating_sub(range.end);
            (word, low & high)
        })
    }

    fn set(&mut self, range: Range<usize>) {
        Self::words(range).for_each(|(word, mask)| self.0[word] |= mask);
    }

    fn is_covered(&self, range: Range<usize>) -> bool {
        Self::words(range).all(|(word, mask)| self.0[word] & mask == mask)
    }

    /// Calls `visit` with each run of covered bytes of a range, in order.
    fn runs(&self, range: Range<usize>, visit: &mut dyn FnMut(Range<usize>)) {
        let mut run: Option<Range<usize>> = None;
        for (word, mask) in Self::words(range) {
            let bits = self.0[word] & mask;
            let mut bit = 0;
            while bit < 64 {
                let skipped = (bits >> bit).trailing_zeros().min(64 - bit);
                bit += skipped;
                if bit == 64 {
                    break;
                }
                let length = (bits >> bit).trailing_ones();
                let (start, end) = (word * 64 + bit as usize, word * 64 + (bit + length) as usize);
                match &mut run {
                    Some(run) if run.end == start => run.end = end,
                    _ => {
                        run.take().into_iter().for_each(&mut *visit);
                        run = Some(start..end);
                    }
                }
                bit += length;
            }
        }
        run.into_iter().for_each(visit);
    }
}
