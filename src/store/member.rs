//! Members of a group: their names, and limits of the table that lists them.

use crate::id::ChunkId;

pub(super) const HEAD_BYTES: usize = 16;

pub(super) const MEMBER_BYTES: usize = 36;

/// Limit of members in a group.
pub(super) const MEMBERS_MAX: usize = 4096;

/// Limit of payload bytes before the members' bytes.
pub(super) const TABLE_BYTES_MAX: u32 = (HEAD_BYTES + MEMBERS_MAX * MEMBER_BYTES) as u32;

/// A chunk in a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Member {
    pub(super) name: Name,
    /// Its start in the decoded bytes.
    pub(super) start: u32,
    pub(super) len: u32,
}

/// Name of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Name {
    Told(ChunkId),
    /// Not in the table: the hash of its bytes.
    Untold,
    /// The member is unneeded.
    Nobody,
}

/// Id and length of a chunk in a group that may be needed.
pub(super) type Named = (ChunkId, u32);
