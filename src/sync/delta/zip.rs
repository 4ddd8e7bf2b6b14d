//! Zip archives (docx, odt, jar, wheel) with their members inflated, so that a change of a member stays a small one.
//!
//! The view of an archive is its bytes with the data of each deflated member replaced by what it inflates to. It is
//! defined without the archive's directory, so that both sides agree on it for any bytes: at each local file header
//! (`PK 03 04`) whose method is 8, the data behind it is inflated; if that comes to an end, it is a member.
//!
//! A target may be sent as its view only if zlib deflates its members to the very bytes again, at one of its nine
//! levels; this is tried, member by member, before. Members that other programs deflated stay as they are.
//!
//! zlib itself is linked, and statically: other implementations, and other versions of it, may deflate to other bytes.

use super::{DeltaError, MEMBERS_MAX};
use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};
use std::ops::Range;

/// Longer archives are taken as they are.
pub(super) const ARCHIVE_BYTES_MAX: u64 = 64 << 20;
/// Members beyond it stay as they are.
pub(super) const VIEW_BYTES_MAX: u64 = 128 << 20;

const HEADER: &[u8] = b"PK\x03\x04";
/// Of a local file header, without the name.
pub(super) const HEADER_BYTES: usize = 30;
const BUFFER_BYTES: usize = 32 << 10;

/// How a member is deflated again: zlib's level, 1 to 9.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Method(pub u8);

impl Method {
    pub fn of(level: u8) -> Option<Method> {
        (1..=9).contains(&level).then_some(Method(level))
    }
}

/// A member in a view, for whoever writes the archive again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Member {
    /// Bytes before it that stay as they are.
    pub before: u64,
    /// Bytes that it inflates to.
    pub len: u64,
    pub method: Method,
}

/// An archive as its view.
pub(super) struct Inflated {
    pub view: Vec<u8>,
    /// Of each member the range of the view, and that of the archive.
    members: Vec<(Range<usize>, Range<usize>)>,
}

/// Whether these first bytes of a file could begin an archive.
pub(super) fn looks_like(head: &[u8]) -> bool {
    head.starts_with(HEADER)
}

/// The view of an archive; of other bytes it is they themselves.
pub(super) fn inflate(archive: &[u8]) -> Inflated {
    let mut inflated = Inflated { view: Vec::new(), members: Vec::new() };
    let (mut done, mut at) = (0, 0);
    while let Some(found) = memchr::memmem::find(&archive[at..], HEADER) {
        at += found + HEADER.len();
        let header = &archive[at - HEADER.len()..];
        let Some(data) = data_start(header) else { continue };
        let start = at - HEADER.len() + data;
        // What stays as it is counts too, whatever the rest is.
        let room = (VIEW_BYTES_MAX as usize).saturating_sub(inflated.view.len() + archive.len() - done);
        inflated.view.extend_from_slice(&archive[done..start]);
        let from = inflated.view.len();
        match inflate_into(&archive[start..], &mut inflated.view, room) {
            Some(read) => {
                inflated.members.push((from..inflated.view.len(), start..start + read));
                (done, at) = (start + read, start + read);
            }
            None => {
                inflated.view.truncate(from);
                done = start;
            }
        }
    }
    inflated.view.extend_from_slice(&archive[done..]);
    inflated
}

/// Where the data begins behind a local file header of a deflated, unencrypted member.
fn data_start(header: &[u8]) -> Option<usize> {
    let number = |at: usize| Some(u16::from_le_bytes([*header.get(at)?, *header.get(at + 1)?]));
    let (flags, method) = (number(6)?, number(8)?);
    let start = HEADER_BYTES + usize::from(number(26)?) + usize::from(number(28)?);
    (method == 8 && flags & 1 == 0 && start < header.len()).then_some(start)
}

/// Appends what `deflated` inflates to. Returns how much of it that took; `None` if it does not come to an end, or
/// to more than `room` bytes.
fn inflate_into(deflated: &[u8], view: &mut Vec<u8>, room: usize) -> Option<usize> {
    let mut stream = Decompress::new(false);
    let mut buffer = vec![0; BUFFER_BYTES];
    let start = view.len();
    loop {
        let (read, written) = (stream.total_in(), stream.total_out());
        let status =
            stream.decompress(&deflated[read as usize..], &mut buffer, FlushDecompress::None).ok()?;
        let got = (stream.total_out() - written) as usize;
        if view.len() - start + got > room {
            return None;
        }
        view.extend_from_slice(&buffer[..got]);
        match status {
            Status::StreamEnd => return Some(stream.total_in() as usize),
            _ if got == 0 && stream.total_in() == read => return None,
            _ => {}
        }
    }
}

/// A target as its view, with only those members inflated that can be deflated again.
pub(super) struct Target {
    pub view: Vec<u8>,
    pub members: Vec<Member>,
    /// Whether there were others.
    pub others: bool,
}

/// The view to send of an archive; `None` if no member can be deflated again, or there are too many.
pub(super) fn target(archive: &[u8]) -> Option<Target> {
    let inflated = inflate(archive);
    let mut target = Target { view: Vec::new(), members: Vec::new(), others: false };
    let (mut done, mut end) = (0, 0);
    let mut likely = 6;
    for (plain, deflated) in inflated.members {
        let bytes = &inflated.view[plain];
        let levels = std::iter::once(likely).chain((1..=9).rev().filter(|&level| level != likely));
        let level = levels.into_iter().find(|&level| deflates_to(bytes, level, &archive[deflated.clone()]));
        let Some(level) = level else {
            target.others = true;
            continue;
        };
        likely = level;
        target.view.extend_from_slice(&archive[done..deflated.start]);
        let before = (target.view.len() - end) as u64;
        target.view.extend_from_slice(bytes);
        (done, end) = (deflated.end, target.view.len());
        target.members.push(Member { before, len: bytes.len() as u64, method: Method(level) });
    }
    target.view.extend_from_slice(&archive[done..]);
    (1..=MEMBERS_MAX).contains(&target.members.len()).then_some(target)
}

fn deflates_to(plain: &[u8], level: u8, deflated: &[u8]) -> bool {
    let mut left = deflated;
    let same = deflate(plain, Method(level), &mut |bytes| {
        let Some(rest) = left.strip_prefix(bytes) else { return Err(()) };
        left = rest;
        Ok(())
    });
    same.is_ok() && left.is_empty()
}

/// Deflates `plain`, and gives the bytes piece by piece.
fn deflate<E>(plain: &[u8], method: Method, give: &mut dyn FnMut(&[u8]) -> Result<(), E>) -> Result<(), E> {
    let mut stream = Compress::new(Compression::new(u32::from(method.0)), false);
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let (read, written) = (stream.total_in() as usize, stream.total_out());
        let status = stream.compress(&plain[read..], &mut buffer, FlushCompress::Finish);
        let status = status.expect("memory can be deflated");
        give(&buffer[..(stream.total_out() - written) as usize])?;
        if status == Status::StreamEnd {
            return Ok(());
        }
    }
}

/// Writes the archive of a view whose members lie within it.
pub(super) fn deflate_again(
    view: &[u8],
    members: &[Member],
    give: &mut dyn FnMut(&[u8]) -> Result<(), DeltaError>,
) -> Result<(), DeltaError> {
    let mut rest = view;
    for member in members {
        let (before, after) = rest.split_at(member.before as usize);
        let (plain, after) = after.split_at(member.len as usize);
        give(before)?;
        deflate(plain, member.method, give)?;
        rest = after;
    }
    give(rest)
}
