//! Inflated groups: chunks of an archive piece, stored as the inflated bytes of their deflate streams, so
//! that versions of compressed files share content.
//!
//! ```text
//! decoded bytes of an inflated group
//!  0  4  number of deflate streams, at most 65,536
//!  4  4  bytes of the piece that come before its first chunk: the beginning of a stream that reaches into it
//!  8     for each stream: bytes before it that stay as they are 4 | bytes that it inflates to 4 | level of zlib 1
//!  .     the piece, with each stream replaced by what it inflates to
//! ```
//!
//! Invariants: only streams that zlib reproduces exactly are inflated ([`crate::deflate`]). A chunk is
//! returned only if its bytes have the hash that names it, because another deflater might produce other
//! bytes.
//!
//! Cost of a read: all streams up to the end of the wanted chunks are deflated again.

use crate::deflate::{Deflater, Level, Stream, inflate_into};
use std::cell::RefCell;

const HEAD_BYTES: usize = 8;
const STREAM_BYTES: usize = 9;
/// Limit of streams in a group: each takes a few microseconds, however short.
pub(super) const STREAMS_MAX: usize = 64 << 10;

/// Returns the stored form of a piece with these streams, without its first `skip` bytes; `None` if the
/// streams are not there.
pub(super) fn inflate(piece: &[u8], streams: &[Stream], skip: u32) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(HEAD_BYTES + streams.len() * STREAM_BYTES + piece.len());
    out.extend_from_slice(&(streams.len() as u32).to_le_bytes());
    out.extend_from_slice(&skip.to_le_bytes());
    let mut done = 0;
    for Stream { deflated, len, level } in streams {
        out.extend_from_slice(&((deflated.start - done) as u32).to_le_bytes());
        out.extend_from_slice(&(*len as u32).to_le_bytes());
        out.push(level.number());
        done = deflated.end;
    }
    done = 0;
    for Stream { deflated, len, .. } in streams {
        out.extend_from_slice(&piece[done..deflated.start]);
        let start = out.len();
        let read = inflate_into(&piece[deflated.clone()], &mut out, *len)?;
        if read != deflated.len() || out.len() - start != *len {
            return None;
        }
        done = deflated.end;
    }
    out.extend_from_slice(&piece[done..]);
    Some(out)
}

/// Returns the length of [`inflate`]'s result for a view of this length.
pub(super) fn stored_len(view_len: usize, streams: usize) -> usize {
    HEAD_BYTES + streams * STREAM_BYTES + view_len
}

/// Returns the `len` bytes of the chunks of a group with these decoded bytes.
pub(super) fn deflate(decoded: &[u8], len: usize) -> Result<Vec<u8>, &'static str> {
    thread_local! {
        static DEFLATER: RefCell<Deflater> = RefCell::default();
    }
    let short = "the streams of a group are cut short";
    let (head, rest) = decoded.split_at_checked(HEAD_BYTES).ok_or(short)?;
    let (count, skip) = (number(head, 0), number(head, 4));
    if count > STREAMS_MAX {
        return Err("a group says that it has too many streams");
    }
    let (table, mut rest) = rest.split_at_checked(count * STREAM_BYTES).ok_or(short)?;
    let mut out = Out { bytes: Vec::new(), skip, len };
    let done = DEFLATER.with_borrow_mut(|deflater| {
        for row in table.chunks_exact(STREAM_BYTES) {
            let level = Level::of(row[8]).ok_or("a stream of a group has a level that zlib has not")?;
            let (before, after) = rest.split_at_checked(number(row, 0)).ok_or(short)?;
            let (plain, after) = after.split_at_checked(number(row, 4)).ok_or(short)?;
            if plain.is_empty() {
                return Err("a stream of a group is of nothing");
            }
            rest = after;
            let given = out.give(before);
            if given.and_then(|()| deflater.deflate(plain, level, &mut |bytes| out.give(bytes))).is_err() {
                return Ok(());
            }
        }
        // Enough, or all of it.
        let _ = out.give(rest);
        Ok(())
    });
    done?;
    match out.bytes.len() == len {
        true => Ok(out.bytes),
        false => Err("the streams of a group do not come to the length of its chunks"),
    }
}

/// Collects a range of the bytes passed to it.
struct Out {
    bytes: Vec<u8>,
    /// Bytes to skip first.
    skip: usize,
    len: usize,
}

/// Signals that the wanted bytes are complete.
struct Enough;

impl Out {
    fn give(&mut self, bytes: &[u8]) -> Result<(), Enough> {
        let skipped = self.skip.min(bytes.len());
        self.skip -= skipped;
        let wanted = (self.len - self.bytes.len()).min(bytes.len() - skipped);
        self.bytes.extend_from_slice(&bytes[skipped..][..wanted]);
        if self.bytes.len() == self.len { Err(Enough) } else { Ok(()) }
    }
}

fn number(bytes: &[u8], at: usize) -> usize {
    super::frame::u32_at(bytes, at) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A piece with two streams, and what it is stored as without its first bytes.
    fn piece(skip: u32) -> (Vec<u8>, Vec<u8>) {
        let mut bytes = b"PK".to_vec();
        let mut streams = Vec::new();
        for (text, level) in [(&b"one and one and one and one"[..], 9), (&[b'x'; 5000][..], 1)] {
            let (start, level) = (bytes.len(), Level::of(level).unwrap());
            let mut give = |part: &[u8]| {
                bytes.extend_from_slice(part);
                Ok::<_, std::convert::Infallible>(())
            };
            let Ok(()) = Deflater::default().deflate(text, level, &mut give);
            streams.push(Stream { deflated: start..bytes.len(), len: text.len(), level });
            bytes.extend_from_slice(b" between ");
        }
        let decoded = inflate(&bytes, &streams, skip).unwrap();
        (bytes, decoded)
    }

    #[test]
    fn any_part_is_made_again() {
        let whole = piece(0).0.len();
        for skip in 0..whole {
            for len in 1..=whole - skip {
                let (bytes, decoded) = piece(skip as u32);
                assert_eq!(deflate(&decoded, len).unwrap(), bytes[skip..skip + len], "{len} from {skip}");
            }
        }
    }

    #[test]
    fn what_lies_is_refused() {
        let (bytes, decoded) = piece(0);
        let lie = |at: usize, number: u32| {
            let mut lies = decoded.clone();
            lies[at..at + 4].copy_from_slice(&number.to_le_bytes());
            deflate(&lies, bytes.len())
        };
        assert_eq!(deflate(&decoded, bytes.len()).unwrap(), bytes);
        assert!(deflate(&decoded, bytes.len() + 1).is_err());
        for at in [0, 4, 8, 12, 17, 21] {
            for number in [u32::MAX, 1 << 31, 1 << 24, 70_000, 6000] {
                assert!(lie(at, number).is_err(), "{number} at {at}");
            }
        }
        assert!(lie(12, 0).is_err(), "a stream of nothing");
        for cut in 0..decoded.len() {
            assert!(deflate(&decoded[..cut], bytes.len()).is_err(), "cut at {cut}");
        }
        let mut level = decoded.clone();
        level[16] = 10;
        assert!(deflate(&level, bytes.len()).is_err());
        // Streams that are other bytes than they say are not inflated.
        let other = Stream { deflated: 0..9, len: 3, level: Level::DEFAULT };
        assert!(inflate(b"no stream", &[other], 0).is_none());
    }
}
