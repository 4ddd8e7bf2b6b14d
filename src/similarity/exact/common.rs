//! Counts of common bytes, as far as the ends of two sources decide them.

use super::cover::Known;
use super::source::{MATCH_BYTES_MIN, Source, common_prefix, common_suffix};
use std::io;

const SEGMENT_BYTES_MIN: u64 = 64 << 10;

/// Bytes that two sources have in common.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Common {
    /// Bytes of `a` covered by substrings of at least [`MATCH_BYTES_MIN`] bytes that occur in `b`.
    pub a_bytes: u64,
    /// Bytes of `b` covered by such substrings of `a`.
    pub b_bytes: u64,
    /// All bytes of both are equal. Then both counts are the whole length, however short.
    pub identical: bool,
}

/// Returns the common bytes at the ends of the sources; or, as an `Err`, the whole result if the ends show it.
pub(super) fn ends(a: &dyn Source, b: &dyn Source) -> io::Result<Result<Known, Common>> {
    let (a_len, b_len) = (a.len(), b.len());
    let prefix = common_prefix(a, b)?;
    if prefix == a_len && prefix == b_len {
        return Ok(Err(Common { a_bytes: a_len, b_bytes: b_len, identical: true }));
    }
    if a_len.min(b_len) < MATCH_BYTES_MIN as u64 {
        return Ok(Err(Common::default()));
    }
    Ok(Ok(Known { prefix, suffix: common_suffix(a, b, prefix)? }))
}

/// A segment of each side, a map of one and the blocks of the other take up to 3.2 bytes for each byte of a segment.
pub(super) fn segment_bytes(memory_bytes: usize) -> u64 {
    (memory_bytes as u64 * 5 / 16).max(SEGMENT_BYTES_MIN) / 64 * 64
}
