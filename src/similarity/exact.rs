//! Exact comparison of two byte sources: how much of each occurs in the other.
//!
//! A byte of `a` is covered if some substring of `a` of [`MATCH_BYTES_MIN`] bytes or more that holds it occurs
//! in `b`. That is the union, over all places where 32 bytes of `a` occur in `b`, of those places; and every
//! 32 bytes of `b` hold a 16-byte block at a multiple of 16. So the blocks of `b` are indexed, each position
//! of `a` is looked up, and what is found is compared byte by byte: hashes decide nothing.
//!
//! What must always be true: no byte is counted as covered that is not. The counts are exact, save that of
//! blocks of `b` with equal bytes only `blocks::EQUAL_BLOCKS_MAX` are tried at a place (of a run of them, as
//! in zeros, the first two and the last, which is enough): where more of them occur, each going on
//! differently, a count may be too low.
//!
//! Memory: sources are read in segments, each of one against each of the other, so time grows with the
//! product of the numbers of segments and is linear when both fit. Sources that are shorter than 32 bytes
//! have nothing in common unless they are identical.

mod blocks;

use blocks::Blocks;
use std::io;

/// Shorter matches say nothing.
pub const MATCH_BYTES_MIN: usize = 32;
/// Read around a segment, so that each match that overlaps it is seen whole.
const MARGIN_BYTES: u64 = MATCH_BYTES_MIN as u64;
const SEGMENT_BYTES_MIN: u64 = 64 << 10;
const STEP_BYTES: u64 = 128 << 10;

/// Bytes that can be read at any place.
pub trait Source {
    /// How many there are.
    fn len(&self) -> u64;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Fills some of `buf`, as [`std::os::unix::fs::FileExt::read_at`] does; 0 means the end.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize>;
}

impl Source for &[u8] {
    fn len(&self) -> u64 {
        <[u8]>::len(self) as u64
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let rest = usize::try_from(offset).ok().and_then(|at| self.get(at..)).unwrap_or_default();
        let count = rest.len().min(buf.len());
        buf[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    }
}

/// What two sources have in common.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Common {
    /// Bytes of `a` covered by substrings of at least [`MATCH_BYTES_MIN`] bytes that occur in `b`.
    pub a_bytes: u64,
    /// Bytes of `b` covered by such substrings of `a`.
    pub b_bytes: u64,
    /// All bytes of both are the same. Then both counts are the whole length, however short.
    pub identical: bool,
}

/// Compares `a` with `b` in about `memory_bytes` of memory (at least about 500 KiB).
///
/// Fails as the sources do, and with [`io::ErrorKind::UnexpectedEof`] if one is shorter than it said.
pub fn compare(a: &dyn Source, b: &dyn Source, memory_bytes: usize) -> io::Result<Common> {
    let (a_len, b_len) = (a.len(), b.len());
    let prefix = common_prefix(a, b)?;
    if prefix == a_len && prefix == b_len {
        return Ok(Common { a_bytes: a_len, b_bytes: b_len, identical: true });
    }
    if a_len.min(b_len) < MARGIN_BYTES {
        return Ok(Common::default());
    }
    let suffix = common_suffix(a, b, prefix)?;
    // A segment of each side, a map of one and the blocks of the other: up to 3.2 bytes to one of a segment.
    let segment = (memory_bytes as u64 * 5 / 16).max(SEGMENT_BYTES_MIN) / 64 * 64;
    let known = Known { prefix, suffix };
    Ok(Common {
        a_bytes: covered(a, b, known, segment)?,
        b_bytes: covered(b, a, known, segment)?,
        identical: false,
    })
}

/// Bytes at both ends of either source that the other has at the same ends.
#[derive(Clone, Copy)]
struct Known {
    prefix: u64,
    suffix: u64,
}

/// How many bytes of `a` are covered by matches in `b`.
fn covered(a: &dyn Source, b: &dyn Source, known: Known, segment: u64) -> io::Result<u64> {
    let a_len = a.len();
    let at_ends = |n: u64| if n >= MARGIN_BYTES { n } else { 0 };
    let (prefix, suffix) = (at_ends(known.prefix), at_ends(known.suffix));
    // The ends cover themselves; only matches that reach between them are left to find.
    let (first, end) = (prefix, a_len - suffix);
    let mut total = prefix + suffix;
    if first >= end {
        return Ok(a_len);
    }
    let mut one_segment: Option<Segment> = None;
    let mut at = first;
    while at < end {
        let a_segment = Segment::read(a, at, (at + segment).min(end))?;
        let mut map = CoverMap::new(a_segment.bytes.len());
        let mut b_at = 0;
        while b_at < b.len() {
            let b_end = (b_at + segment).min(b.len());
            let whole = b_end - b_at == b.len();
            let b_segment = match one_segment.take() {
                Some(segment) => segment,
                None => Segment::read(b, b_at, b_end)?,
            };
            let blocks = Blocks::of(&b_segment.bytes, b_segment.inner.clone());
            mark(&a_segment.bytes, &blocks, &mut map);
            if whole {
                one_segment = Some(b_segment);
            }
            b_at = b_end;
        }
        total += map.count(a_segment.inner);
        at = (at + segment).min(end);
    }
    Ok(total)
}

/// Marks in `map` what of `a` occurs in the bytes that `blocks` index.
fn mark(a: &[u8], blocks: &Blocks<'_>, map: &mut CoverMap) {
    let mut at = 0;
    // The last long match ends here. All 32 bytes that start in it before `skip_to` lie within it; those that
    // start before it and match elsewhere have a block that starts before `skip_from`.
    let (mut reached, mut skip_from, mut skip_to) = (0, 0, 0);
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
        blocks.each_equal(a, at, |there| {
            let b = blocks.bytes;
            let before = common_end(&a[around.start..at], &b[..there]);
            let after = 16 + common_start(&a[at + 16..around.end], &b[there + 16..]);
            if before + after >= MATCH_BYTES_MIN {
                map.set(at - before..at + after);
                if longest.is_none_or(|(_, length)| after > length) {
                    longest = Some((there, after));
                }
            }
            // No other block covers more of what is around this place.
            before == at - around.start && at + after == around.end
        });
        if let Some((there, _)) = longest.filter(|_| around.end > reached) {
            let after = common_start(&a[at..], &blocks.bytes[there..]);
            map.set(at..at + after);
            reached = at + after;
            let is_edge_known = map.is_covered(around.start..at);
            skip_from = if is_edge_known { at } else { at + 16 };
            skip_to = (reached + 1).saturating_sub(MATCH_BYTES_MIN);
        }
        at += 1;
    }
}

/// Length of what two slices have in common at the start.
fn common_start(a: &[u8], b: &[u8]) -> usize {
    let len = a.len().min(b.len());
    let (a, b) = (&a[..len], &b[..len]);
    let mut at = 0;
    // The slices compare as memcmp does.
    while at + 256 <= len && a[at..at + 256] == b[at..at + 256] {
        at += 256;
    }
    while let (Some(x), Some(y)) = (a[at..].first_chunk(), b[at..].first_chunk()) {
        let differs = u128::from_le_bytes(*x) ^ u128::from_le_bytes(*y);
        if differs != 0 {
            return at + differs.trailing_zeros() as usize / 8;
        }
        at += 16;
    }
    at + a[at..].iter().zip(&b[at..]).take_while(|(a, b)| a == b).count()
}

fn common_end(a: &[u8], b: &[u8]) -> usize {
    let len = a.len().min(b.len());
    let (a, b) = (&a[a.len() - len..], &b[b.len() - len..]);
    let mut left = len;
    while let (Some(x), Some(y)) = (a[..left].last_chunk(), b[..left].last_chunk()) {
        let differs = u128::from_le_bytes(*x) ^ u128::from_le_bytes(*y);
        if differs != 0 {
            return len - left + differs.leading_zeros() as usize / 8;
        }
        left -= 16;
    }
    let rest = a[..left].iter().rev().zip(b[..left].iter().rev());
    len - left + rest.take_while(|(a, b)| a == b).count()
}

fn read_exact_at(source: &dyn Source, mut offset: u64, mut buf: &mut [u8]) -> io::Result<()> {
    while !buf.is_empty() {
        match source.read_at(offset, buf) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => {
                offset += n as u64;
                buf = &mut buf[n..];
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

fn common_prefix(a: &dyn Source, b: &dyn Source) -> io::Result<u64> {
    let end = a.len().min(b.len());
    let step = end.min(STEP_BYTES);
    let (mut a_buf, mut b_buf) = (vec![0; step as usize], vec![0; step as usize]);
    let mut at = 0;
    while at < end {
        let len = step.min(end - at) as usize;
        read_exact_at(a, at, &mut a_buf[..len])?;
        read_exact_at(b, at, &mut b_buf[..len])?;
        let same = common_start(&a_buf[..len], &b_buf[..len]);
        at += same as u64;
        if same < len {
            break;
        }
    }
    Ok(at)
}

/// Of what the prefix leaves.
fn common_suffix(a: &dyn Source, b: &dyn Source, prefix: u64) -> io::Result<u64> {
    let end = a.len().min(b.len()) - prefix;
    let step = end.min(STEP_BYTES);
    let (mut a_buf, mut b_buf) = (vec![0; step as usize], vec![0; step as usize]);
    let mut length = 0;
    while length < end {
        let len = step.min(end - length) as usize;
        read_exact_at(a, a.len() - length - len as u64, &mut a_buf[..len])?;
        read_exact_at(b, b.len() - length - len as u64, &mut b_buf[..len])?;
        let same = common_end(&a_buf[..len], &b_buf[..len]);
        length += same as u64;
        if same < len {
            break;
        }
    }
    Ok(length)
}

/// Part of a source in memory, with a margin on both sides.
struct Segment {
    bytes: Vec<u8>,
    /// The part itself within `bytes`.
    inner: std::ops::Range<usize>,
}

impl Segment {
    fn read(source: &dyn Source, start: u64, end: u64) -> io::Result<Segment> {
        let from = start.saturating_sub(MARGIN_BYTES);
        let to = (end + MARGIN_BYTES).min(source.len());
        let mut bytes = vec![0; (to - from) as usize];
        read_exact_at(source, from, &mut bytes)?;
        let inner = (start - from) as usize..(end - from) as usize;
        Ok(Segment { bytes, inner })
    }
}

/// One bit for each byte of a segment: whether it is covered.
struct CoverMap(Vec<u64>);

impl CoverMap {
    fn new(len: usize) -> CoverMap {
        CoverMap(vec![0; len.div_ceil(64)])
    }

    /// The words that a range touches, each with the bits of it that are in the range.
    fn words(range: std::ops::Range<usize>) -> impl Iterator<Item = (usize, u64)> {
        (range.start / 64..range.end.div_ceil(64)).map(move |word| {
            let low = u64::MAX << range.start.saturating_sub(word * 64);
            let high = u64::MAX >> ((word + 1) * 64).saturating_sub(range.end);
            (word, low & high)
        })
    }

    fn set(&mut self, range: std::ops::Range<usize>) {
        Self::words(range).for_each(|(word, mask)| self.0[word] |= mask);
    }

    fn is_covered(&self, range: std::ops::Range<usize>) -> bool {
        Self::words(range).all(|(word, mask)| self.0[word] & mask == mask)
    }

    fn count(&self, range: std::ops::Range<usize>) -> u64 {
        Self::words(range).map(|(word, mask)| u64::from((self.0[word] & mask).count_ones())).sum()
    }
}

#[cfg(test)]
mod tests;
