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
mod cover;
mod padding;
mod ranges;
mod regions;
mod side_by_side;

pub use padding::{PADDING_BYTES_MIN, PADDING_PERIOD, padding};
pub use ranges::Ranges;
pub use regions::{Region, Regions, compare_regions};
pub use side_by_side::{Patterns, SideBySide, compare_excluding, covered};

use cover::{Known, cover};
use std::io;

/// Shorter matches say nothing.
pub const MATCH_BYTES_MIN: usize = 32;
const SEGMENT_BYTES_MIN: u64 = 64 << 10;
const STEP_BYTES: u64 = 128 << 10;

/// Bytes that can be read at any offset.
pub trait Source {
    /// Returns their number.
    fn len(&self) -> u64;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the first offset, from `offset` on, at which a byte may not be zero; the end if there is none. Bytes before it
    /// need not be read.
    fn data_from(&self, offset: u64) -> u64 {
        offset
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

/// Returns the common bytes at the ends of the sources; or, as an `Err`, the whole result if the ends show it.
fn ends(a: &dyn Source, b: &dyn Source) -> io::Result<Result<Known, Common>> {
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
fn segment_bytes(memory_bytes: usize) -> u64 {
    (memory_bytes as u64 * 5 / 16).max(SEGMENT_BYTES_MIN) / 64 * 64
}

/// Returns the length of the common start of two slices.
fn common_start(a: &[u8], b: &[u8]) -> usize {
    let len = a.len().min(b.len());
    let (a, b) = (&a[..len], &b[..len]);
    let mut at = 0;
    // Slices are compared as by memcmp.
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

/// Returns the length of the common suffix of the bytes after the prefix.
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

#[cfg(test)]
mod tests;
