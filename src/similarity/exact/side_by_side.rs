//! Comparison that ignores known passages and padding.

use super::blocks::Blocks;
use super::common::{Common, ends, segment_bytes};
use super::cover::{cover, cover_by};
use super::padding::padding;
use super::ranges::Ranges;
use super::source::{MATCH_BYTES_MIN, Source};
use std::io;

/// Passages that do not count, indexed. No match crosses the border of two of them. [`padding`] does not count either,
/// unless everything counts.
pub struct Patterns<'a> {
    blocks: Option<Blocks<'a>>,
    padding: bool,
}

impl<'a> Patterns<'a> {
    /// Takes passages that lie one after the other in `bytes`; `ends` has the end of each. O(bytes).
    pub fn new(bytes: &'a [u8], ends: &'a [usize]) -> Patterns<'a> {
        let blocks = (bytes.len() >= MATCH_BYTES_MIN).then(|| Blocks::of_pieces(bytes, 0..bytes.len(), ends));
        Patterns { blocks, padding: true }
    }

    /// Makes patterns without passages: only padding does not count.
    pub fn padding() -> Patterns<'static> {
        Patterns { blocks: None, padding: true }
    }

    /// Makes no patterns: every byte counts.
    pub fn none() -> Patterns<'static> {
        Patterns { blocks: None, padding: false }
    }

    /// Returns the bytes of `source` that do not count: padding, and substrings of 32 bytes or more that a passage has
    /// too.
    pub fn covered(&self, source: &dyn Source, memory_bytes: usize) -> io::Result<Ranges> {
        let padding = if self.padding { padding(source)? } else { Ranges::default() };
        match &self.blocks {
            Some(blocks) => Ok(cover_by(source, blocks, segment_bytes(memory_bytes))?.union(&padding)),
            None => Ok(padding),
        }
    }
}

/// Common bytes of two sources, and bytes that do not count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SideBySide {
    /// The bytes in common that count. Identical sources have all bytes in common, whatever the passages.
    pub common: Common,
    /// Bytes of `a` that do not count.
    pub a_patterns: u64,
    /// Bytes of `b` that do not count.
    pub b_patterns: u64,
    /// Bytes of `a` that are in `b` and do not count.
    pub suppressed: u64,
}

/// As [`super::compare`], without the bytes that `patterns` cover; `a_covered` are those of `a`. If fewer than 32 bytes of a
/// match remain, they do not count either: they are the edge of a passage.
pub fn compare_excluding(
    a: &dyn Source,
    a_covered: &Ranges,
    b: &dyn Source,
    patterns: &Patterns<'_>,
    memory_bytes: usize,
) -> io::Result<SideBySide> {
    let a_patterns = a_covered.bytes();
    let known = match ends(a, b)? {
        Ok(known) => known,
        Err(common) => {
            let b_patterns = match common.identical {
                true => a_patterns,
                false => patterns.covered(b, memory_bytes)?.bytes(),
            };
            return Ok(SideBySide { common, a_patterns, b_patterns, suppressed: 0 });
        }
    };
    let b_covered = patterns.covered(b, memory_bytes)?;
    let segment = segment_bytes(memory_bytes);
    let (mut of_a, mut of_b) = (Ranges::default(), Ranges::default());
    cover(a, b, known, segment, None, &mut |run| of_a.push(run))?;
    cover(b, a, known, segment, None, &mut |run| of_b.push(run))?;
    let left = |of: &Ranges, covered: &Ranges| of.without(covered, MATCH_BYTES_MIN as u64).bytes();
    let common =
        Common { a_bytes: left(&of_a, a_covered), b_bytes: left(&of_b, &b_covered), identical: false };
    let suppressed = of_a.bytes() - common.a_bytes;
    Ok(SideBySide { common, a_patterns, b_patterns: b_covered.bytes(), suppressed })
}

/// Returns the bytes of `a` that are in `b`.
pub fn covered(a: &dyn Source, b: &dyn Source, memory_bytes: usize) -> io::Result<Ranges> {
    let known = match ends(a, b)? {
        Ok(known) => known,
        Err(common) => {
            let all = 0..if common.identical { a.len() } else { 0 };
            return Ok(std::iter::once(all).collect());
        }
    };
    let mut ranges = Ranges::default();
    cover(a, b, known, segment_bytes(memory_bytes), None, &mut |run| ranges.push(run))?;
    Ok(ranges)
}
