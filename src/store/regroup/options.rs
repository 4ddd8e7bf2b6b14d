//! Options of grouping.

/// A group of longer chunks may be twice the usual length, but at most this many times its shortest chunk:
/// the old cost of reading that chunk bounds the new one.
const SHORTEST_TIMES: u64 = 4;
/// Larger groups are solid.
const SOLID_BYTES_MIN: u32 = 1 << 20;
/// Solid groups use LZMA from this zstd level on.
const LZMA_LEVEL_MIN: i32 = 19;

/// Options of grouping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegroupOptions {
    /// zstd level, 1 to 22. Solid groups use LZMA from 19 on.
    pub level: i32,
    /// Limit of decoded bytes in a group, or one chunk; twice as many if that is at most four times the
    /// shortest chunk. A read decodes a group, or a delta and its group.
    pub group_bytes: u32,
    /// Limit of inflated bytes in an archive piece; 0 skips archives. Reading a chunk of one deflates the
    /// whole piece again.
    pub archive_bytes: u32,
    /// Whether groups need no base and have no names: smaller if groups are long enough that similar chunks
    /// meet inside them.
    pub solid: bool,
}

impl RegroupOptions {
    /// Uses solid groups above 1 MiB.
    pub fn new(level: i32, group_bytes: u32, archive_bytes: u32) -> RegroupOptions {
        RegroupOptions { level, group_bytes, archive_bytes, solid: group_bytes > SOLID_BYTES_MIN }
    }

    /// Whether groups are made as small as possible, at any decoding time.
    pub(super) fn is_lzma(&self) -> bool {
        self.solid && self.level >= LZMA_LEVEL_MIN
    }

    /// Whether chunks of this total length may form a group.
    pub(super) fn are_one(&self, bytes: u64, shortest: u64) -> bool {
        let most = u64::from(self.group_bytes);
        bytes <= most || bytes <= (2 * most).min(SHORTEST_TIMES * shortest)
    }

    /// The smallest result, for rarely read data.
    pub fn cold() -> RegroupOptions {
        RegroupOptions::new(19, 16 << 20, 4 << 20)
    }
}

/// For data that is read as before.
impl Default for RegroupOptions {
    fn default() -> Self {
        RegroupOptions::new(15, 16 << 10, 0)
    }
}
