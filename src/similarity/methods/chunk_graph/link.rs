//! The graph that an analysis finds: its files, and the links between them.

use super::graph::{hash, number};

/// A link: two files and their bytes in common.
pub(super) const LINK_BYTES: usize = 4 + 4 + 8;

/// A file of a collection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileNode {
    /// Its length in bytes.
    pub size: u64,
    /// Bytes of its chunks that are not templates. Shares refer to these.
    pub payload: u64,
    /// Whether a file with a lower number is identical.
    pub copy: bool,
}

/// Two files that are linked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// The one with the lower number.
    pub a: u32,
    /// The other.
    pub b: u32,
    /// Bytes of the chunks that both have: a lower bound of the bytes in common.
    pub bytes: u64,
}

impl Link {
    /// The share of the smaller file's payload, 0 to 1. (In the paper's Figure 5 files of 671 and 3,305 bytes are 54%
    /// similar, which no share of the larger could be.)
    pub fn similarity(&self, files: &[FileNode]) -> f64 {
        let smaller = files[self.a as usize].payload.min(files[self.b as usize].payload);
        if smaller == 0 { 0.0 } else { self.bytes as f64 / smaller as f64 }
    }

    pub(super) fn to_bytes(self) -> [u8; LINK_BYTES] {
        let mut bytes = [0; LINK_BYTES];
        bytes[..4].copy_from_slice(&self.a.to_be_bytes());
        bytes[4..8].copy_from_slice(&self.b.to_be_bytes());
        bytes[8..].copy_from_slice(&self.bytes.to_be_bytes());
        bytes
    }

    pub(super) fn of_bytes(bytes: [u8; LINK_BYTES]) -> Link {
        Link { a: number(&bytes), b: number(&bytes[4..]), bytes: hash(&bytes[8..]) }
    }
}
