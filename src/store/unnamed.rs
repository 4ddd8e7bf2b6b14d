//! Tables without names: a group of these tells how long its members are; what names each is the hash of its bytes.
//!
//! ```text
//! for each member: twice its length, and 1 more if nobody needs it any more   LEB128
//! ```
//!
//! What must always be true: whoever wants the names decodes the group and hashes it, so a name always fits its bytes; that of an
//! only member is what names the group. Of a pack that is sealed the footer has the names too, so that who plans reads no groups.

use super::group_table::Name;
use crate::recipe::{put_varint, take_varint};

/// Bytes of a table for each member, at least.
pub(super) const MEMBER_BYTES_MIN: usize = 1;

/// Appends what a table says of a member.
pub(super) fn put(table: &mut Vec<u8>, len: u32) {
    put_varint(table, u64::from(len) << 1);
}

/// Of each of `count` members whether somebody may need it and its length, and how many bytes say so.
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

/// Says of members of a table that nobody needs them any more.
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
