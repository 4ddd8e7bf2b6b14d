//! Seeds: short matches, found through a table of every 16th offset of the bytes that may be copied.

use super::op::{CopyOp, Place};
use std::ops::Range;

/// Number of equal bytes that make a place a candidate.
pub(super) const SEED_BYTES: usize = 16;
/// Distance of seeds in bytes. Each match of `SEED_BYTES + STRIDE - 1` bytes contains one.
const STRIDE: usize = 16;
/// Minimum length of a match: shorter ones cost more than literals.
const MATCH_BYTES_MIN: usize = 48;
/// Minimum length of a match at the expected place, which costs less to encode.
const EXPECTED_BYTES_MIN: usize = 24;
/// Maximum number of places with equal seeds that are tried. Repetitive text has many.
const TRIES_MAX: usize = 16;
/// A shorter match may be dropped for a longer one that begins a little later.
const LAZY_BYTES: usize = 256;

/// Bytes that may be copied, joined from parts of views.
#[derive(Default)]
pub(super) struct Hay {
    pub bytes: Vec<u8>,
    pub parts: Vec<Part>,
}

/// The origin of a range of the hay.
pub(super) struct Part {
    pub view: usize,
    /// Offset in the view.
    pub offset: u64,
    /// Range in the hay.
    pub range: Range<usize>,
}

impl Hay {
    fn part(&self, at: usize) -> &Part {
        &self.parts[self.parts.partition_point(|part| part.range.end <= at)]
    }

    /// Returns the offset in the hay, and the part that contains it.
    fn find(&self, place: Place) -> Option<(usize, &Part)> {
        let holds = |part: &&Part| {
            place.view == part.view
                && place.offset >= part.offset
                && place.offset - part.offset <= part.range.len() as u64
        };
        let part = self.parts.iter().find(holds)?;
        Some((part.range.start + (place.offset - part.offset) as usize, part))
    }
}

/// A table of the seeds of a hay. Memory: 1 to 2 bytes for each byte of it.
pub(super) struct Seeds<'h> {
    hay: &'h Hay,
    table: Table,
}

/// The table without the hay.
pub(super) struct Table {
    /// By hash, the first place with it; places are in strides, plus 1.
    heads: Vec<u32>,
    /// By place, the next with the same hash.
    next: Vec<u32>,
    shift: u32,
}

fn key(bytes: &[u8], at: usize) -> u128 {
    let mut seed = [0; SEED_BYTES];
    seed.copy_from_slice(&bytes[at..at + SEED_BYTES]);
    u128::from_le_bytes(seed)
}

impl Table {
    pub fn of(hay: &Hay) -> Table {
        let places = hay.bytes.len().saturating_sub(SEED_BYTES - 1).div_ceil(STRIDE);
        let bits = (places.max(8) * 2).next_power_of_two().ilog2();
        let mut table = Table { heads: vec![0; 1 << bits], next: vec![0; places], shift: 64 - bits };
        // From the end, so that the first places are tried first.
        for place in (0..places).rev() {
            let bucket = table.bucket(key(&hay.bytes, place * STRIDE));
            table.next[place] = table.heads[bucket];
            table.heads[bucket] = place as u32 + 1;
        }
        table
    }

    fn bucket(&self, key: u128) -> usize {
        let mixed = (key as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ ((key >> 64) as u64);
        (mixed.wrapping_mul(0xd6e8_feb8_6659_fd93) >> self.shift) as usize
    }
}

/// A match: `len` equal bytes of the target from `at`, and of the hay from `hay`.
#[derive(Clone, Copy)]
struct Match {
    at: usize,
    hay: usize,
    len: usize,
}

impl<'h> Seeds<'h> {
    pub fn new(hay: &'h Hay, table: Table) -> Seeds<'h> {
        Seeds { hay, table }
    }

    pub fn into_table(self) -> Table {
        self.table
    }

    /// Appends the copies that it finds for `target[gap]` to `found`, in order. `place` is the end of the copy before
    /// the gap.
    pub fn fill(&self, target: &[u8], gap: Range<usize>, place: Place, found: &mut Vec<CopyOp>) {
        let (mut at, mut done, mut place) = (gap.start, gap.start, place);
        while at + SEED_BYTES <= gap.end {
            let bounds = done..gap.end;
            let Some(mut best) = self.best(target, at, &bounds, place) else {
                at += 1;
                continue;
            };
            if best.len < LAZY_BYTES {
                let until = (at + STRIDE).min(gap.end - SEED_BYTES);
                let later = (at + 1..=until).filter_map(|later| self.best(target, later, &bounds, place));
                for other in later {
                    // The later match must make up for the bytes that it skips.
                    let lost = other.at.saturating_sub(best.at);
                    if other.len > best.len + lost / 2 + 8 && other.at <= best.at + best.len {
                        best = other;
                    }
                }
            }
            let part = self.hay.part(best.hay);
            let offset = part.offset + (best.hay - part.range.start) as u64;
            let copy = CopyOp { at: best.at, len: best.len, view: part.view, offset };
            (at, done, place) = (copy.end(), copy.end(), copy.after());
            found.push(copy);
        }
    }

    /// Returns the longest match around `at`, if one is long enough.
    fn best(&self, target: &[u8], at: usize, bounds: &Range<usize>, place: Place) -> Option<Match> {
        let seed = key(target, at);
        let mut best: Option<Match> = None;
        let mut take = |hay: usize, part: &Part, expected: bool| {
            let found = self.extend(target, at, hay, bounds, part);
            let least = if expected { EXPECTED_BYTES_MIN } else { MATCH_BYTES_MIN };
            if found.len >= least && best.is_none_or(|best| found.len > best.len) {
                best = Some(found);
            }
        };
        if let Some((hay, part)) = self.hay.find(place) {
            // Tries both: bytes were replaced by equally many, or were inserted.
            for hay in [hay + (at - bounds.start), hay] {
                if hay + SEED_BYTES <= part.range.end && key(&self.hay.bytes, hay) == seed {
                    take(hay, part, true);
                }
            }
        }
        if self.table.next.is_empty() {
            return best;
        }
        let mut entry = self.table.heads[self.table.bucket(seed)];
        for _ in 0..TRIES_MAX {
            let Some(place) = entry.checked_sub(1) else { break };
            let hay = place as usize * STRIDE;
            entry = self.table.next[place as usize];
            let part = self.hay.part(hay);
            if hay + SEED_BYTES <= part.range.end && key(&self.hay.bytes, hay) == seed {
                take(hay, part, false);
            }
        }
        best
    }

    fn extend(&self, target: &[u8], at: usize, hay: usize, bounds: &Range<usize>, part: &Part) -> Match {
        let bytes = &self.hay.bytes;
        let back = common_before(&target[bounds.start..at], &bytes[part.range.start..hay]);
        let ahead = common(&target[at..bounds.end], &bytes[hay..part.range.end]);
        Match { at: at - back, hay: hay - back, len: back + ahead }
    }
}

/// Returns the length of the common start of two slices.
pub(super) fn common(a: &[u8], b: &[u8]) -> usize {
    let len = a.len().min(b.len());
    let (a, b) = (&a[..len], &b[..len]);
    let words = a.chunks_exact(32).zip(b.chunks_exact(32)).take_while(|(a, b)| a == b).count() * 32;
    words + a[words..].iter().zip(&b[words..]).take_while(|(a, b)| a == b).count()
}

/// Returns the length of the common end of two slices.
pub(super) fn common_before(a: &[u8], b: &[u8]) -> usize {
    a.iter().rev().zip(b.iter().rev()).take_while(|(a, b)| a == b).count()
}
