//! Zip archives (docx, odt, jar, wheel) with their members inflated, so that a change of a member stays a small one.
//!
//! The view of an archive is its bytes, with the data of each deflated member replaced by the inflated data. Its
//! definition does not use the archive's directory, so that both sides agree on it for any bytes: at each local file
//! header (`PK 03 04`) whose method is 8, the data after it is inflated. If the deflate stream is complete, it is a
//! member.
//!
//! A target may be sent as its view only if zlib deflates its members to the original bytes at one of its nine levels.
//! The sender tries this for each member first. Members that other programs deflated stay as they are.
//!
//! [`crate::deflate`] finds streams and deflates them again.

use super::{DeltaError, MEMBERS_MAX};
use crate::deflate::{Deflater, Level, Starts, inflate_into};
use std::ops::Range;

pub(super) use crate::deflate::{ZIP_HEADER_BYTES as HEADER_BYTES, looks_like_zip as looks_like};

/// Longer archives are not inflated.
pub(super) const ARCHIVE_BYTES_MAX: u64 = 64 << 20;
/// Maximum length of a view: members beyond it stay as they are.
pub(super) const VIEW_BYTES_MAX: u64 = 128 << 20;

/// A member in a view, as the decoder needs it to restore the archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Member {
    /// Bytes before it that stay as they are.
    pub before: u64,
    /// Bytes that it inflates to.
    pub len: u64,
    pub level: Level,
}

/// An archive as its view.
pub(super) struct Inflated {
    pub view: Vec<u8>,
    /// For each member: its range in the view, and in the archive.
    members: Vec<(Range<usize>, Range<usize>)>,
}

/// Returns the view of an archive; other bytes are their own view.
pub(super) fn inflate(archive: &[u8]) -> Inflated {
    let mut inflated = Inflated { view: Vec::new(), members: Vec::new() };
    let mut done = 0;
    let mut starts = Starts::zip(archive);
    while let Some(start) = starts.next() {
        // The bytes after the last member count too, even if they contain no other members.
        let room = (VIEW_BYTES_MAX as usize).saturating_sub(inflated.view.len() + archive.len() - done);
        let from = inflated.view.len();
        let Some(read) = inflate_into(&archive[start..], &mut inflated.view, room) else {
            // It may contain the header of a member that does inflate, so the search continues right after this
            // header.
            inflated.view.truncate(from);
            continue;
        };
        let before = &archive[done..start];
        inflated.view.splice(from..from, before.iter().copied());
        done = start + read;
        inflated.members.push((from + before.len()..inflated.view.len(), start..done));
        starts.go_on_at(done);
    }
    inflated.view.extend_from_slice(&archive[done..]);
    inflated
}

/// A target as its view, with only those members inflated that can be deflated again.
pub(super) struct Target {
    pub view: Vec<u8>,
    pub members: Vec<Member>,
    /// Whether there were other members.
    pub others: bool,
}

/// Returns the view to send of an archive; `None` if no member can be deflated again, or there are too many.
pub(super) fn target(archive: &[u8]) -> Option<Target> {
    let inflated = inflate(archive);
    let mut target = Target { view: Vec::new(), members: Vec::new(), others: false };
    let (mut done, mut end) = (0, 0);
    let mut deflater = Deflater::default();
    let mut likely = Level::DEFAULT;
    for (plain, deflated) in inflated.members {
        let bytes = &inflated.view[plain];
        let Some(level) = deflater.level_of(bytes, &archive[deflated.clone()], likely) else {
            target.others = true;
            continue;
        };
        likely = level;
        target.view.extend_from_slice(&archive[done..deflated.start]);
        let before = (target.view.len() - end) as u64;
        target.view.extend_from_slice(bytes);
        (done, end) = (deflated.end, target.view.len());
        target.members.push(Member { before, len: bytes.len() as u64, level });
    }
    target.view.extend_from_slice(&archive[done..]);
    (1..=MEMBERS_MAX).contains(&target.members.len()).then_some(target)
}

/// Writes the archive of a view whose members are within it.
pub(super) fn deflate_again(
    view: &[u8],
    members: &[Member],
    give: &mut dyn FnMut(&[u8]) -> Result<(), DeltaError>,
) -> Result<(), DeltaError> {
    let mut rest = view;
    let mut deflater = Deflater::default();
    for member in members {
        let (before, after) = rest.split_at(member.before as usize);
        let (plain, after) = after.split_at(member.len as usize);
        give(before)?;
        deflater.deflate(plain, member.level, give)?;
        rest = after;
    }
    give(rest)
}
