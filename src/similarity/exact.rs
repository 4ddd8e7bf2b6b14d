//! Exact comparison of two byte sources: how much of each occurs in the other.
//!
//! A byte of `a` is covered if some substring of `a` of [`MATCH_BYTES_MIN`] bytes or more that holds it occurs in `b`. That
//! is the union of all places of `a` whose 32 bytes occur in `b`. Every 32 bytes of `b` hold a 16-byte block whose offset is a
//! multiple of 16. So the blocks of `b` are indexed, each position of `a` is looked up, and hits are compared byte by byte:
//! hashes decide nothing.
//!
//! Invariants:
//! - No byte is counted as covered that is not.
//! - The counts are exact, with one exception: at most `blocks::EQUAL_BLOCKS_MAX` blocks of `b` with equal bytes are tried at
//!   a place. If more of them occur, each with a different continuation, a count may be too low. A run of equal blocks, as
//!   in zeros, counts as its first two and its last, which is enough.
//!
//! Memory: sources are read in segments, each segment of one against each of the other. So time grows with the product of the
//! numbers of segments, and is linear if both sources fit. Sources shorter than 32 bytes have nothing in common unless they
//! are identical.

mod blocks;
mod common;
mod cover;
mod padding;
mod ranges;
mod region;
mod regions;
mod side_by_side;
mod source;

pub use common::Common;
pub use padding::{PADDING_BYTES_MIN, PADDING_PERIOD, padding};
pub use ranges::Ranges;
pub use region::Region;
pub use regions::{Regions, compare_regions};
pub use side_by_side::{Patterns, SideBySide, compare_excluding, covered};
pub use source::{MATCH_BYTES_MIN, Source};

use common::{ends, segment_bytes};
use cover::cover;
use std::io;

/// Compares `a` with `b` in about `memory_bytes` of memory (at least about 500 KiB).
///
/// Fails as the sources do, and with [`io::ErrorKind::UnexpectedEof`] if one is shorter than it said.
pub fn compare(a: &dyn Source, b: &dyn Source, memory_bytes: usize) -> io::Result<Common> {
    let known = match ends(a, b)? {
        Ok(known) => known,
        Err(common) => return Ok(common),
    };
    let segment = segment_bytes(memory_bytes);
    let mut common = Common::default();
    cover(a, b, known, segment, None, &mut |run| common.a_bytes += run.end - run.start)?;
    cover(b, a, known, segment, None, &mut |run| common.b_bytes += run.end - run.start)?;
    Ok(common)
}

#[cfg(test)]
mod tests;
