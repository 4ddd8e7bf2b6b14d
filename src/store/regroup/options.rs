//! How chunks are grouped.

use super::solid;

/// A group of longer chunks may be twice as long as groups are, but no more than so many times its shortest chunk: what a read
/// of that one took by itself bounds what it takes now.
const SHORTEST_TIMES: u64 = 4;
/// Solid groups are compressed by LZMA from this level of zstd on.
const LZMA_LEVEL_MIN: i32 = 19;

/// How chunks are grouped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegroupOptions {
    /// Level of zstd, 1 to 22. Solid groups are compressed by LZMA from 19 on.
    pub level: i32,
    /// Groups have no more decoded bytes than this, or one chunk; twice as many if that is no more than four times the
    /// shortest. A read decodes a group, or a delta and its group.
    pub group_bytes: u32,
    /// What pieces of archives inflate to has no more bytes than this; 0: they are left as they are. A read of a chunk
    /// of one deflates all of the piece again.
    pub archive_bytes: u32,
    /// Whether groups need nothing else and tell no names: smaller where they are so long that what is alike meets within them.
    pub solid: bool,
}

impl RegroupOptions {
    /// With solid groups above 1 MiB.
    pub fn new(level: i32, group_bytes: u32, archive_bytes: u32) -> RegroupOptions {
        RegroupOptions { level, group_bytes, archive_bytes, solid: group_bytes > solid::GROUP_BYTES_MIN }
    }

    /// Whether a group is as small as can be, however long it takes to be decoded.
    pub(super) fn is_lzma(&self) -> bool {
        self.solid && self.level >= LZMA_LEVEL_MIN
    }

    /// Whether chunks that come to so many bytes may be a group.
    pub(super) fn are_one(&self, bytes: u64, shortest: u64) -> bool {
        let most = u64::from(self.group_bytes);
        bytes <= most || bytes <= (2 * most).min(SHORTEST_TIMES * shortest)
    }

    /// As small as it gets, for what is hardly read.
    pub fn cold() -> RegroupOptions {
        RegroupOptions::new(19, 16 << 20, 4 << 20)
    }
}

/// For what is read as it was before.
impl Default for RegroupOptions {
    fn default() -> Self {
        RegroupOptions::new(15, 16 << 10, 0)
    }
}
