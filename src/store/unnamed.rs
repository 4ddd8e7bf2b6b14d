//! Tables without names: such a group stores only the lengths of its members; the hash of a member's bytes is
//! its name.
//!
//! ```text
//! for each member: twice its length, plus 1 if it is unneeded   LEB128
//! ```
//!
//! Invariants: names come from decoding and hashing the group, so a name always fits its bytes. A single
//! member has the group's id. The footer of a sealed pack also has the names, so that planning need not read
//! groups.

use super::member::Name;
use crate::recipe::{put_varint, take_varint};

/// Bytes of a table for each member, at least.
pub(super) const MEMBER_BYTES_MIN: usize = 1;

/// Appends a member to a table.
pub(super) fn put(table: &mut Vec<u8>, len: u32) {
    put_varint(table, u64::from(len) << 1);
}

/// Parses need and length of `count` members; returns the bytes used.
pub(super) fn parse(bytes: &[u8], count: usize) -> Option<(Vec<(Name, u32)>, usize)> {
    if count > bytes.len() / MEMBER_BYTES_MIN {
        return None;
    }
    let mut rest = bytes;
    let mut take = || {
        let number = take_varint(&mut rest)?;
        let name = if number & 1 == 0 { Name::Untold } else { Name::Nobody };
        Some((name, u32::try_from(number >> 1).ok()?))
    };
    let members: Option<Vec<_>> = (0..count).map(|_| take()).collect();
    Some((members?, bytes.len() - rest.len()))
}

/// Marks members of a table as unneeded.
pub(super) fn drop(table: &mut [u8], gone: impl Fn(usize) -> bool) {
    let (mut member, mut begins) = (0, true);
    for byte in table {
        if begins && gone(member) {
            *byte |= 1;
        }
        begins = *byte & 0x80 == 0;
        member += usize::from(begins);
    }
}
