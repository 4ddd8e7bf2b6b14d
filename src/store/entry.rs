//! Places of frames, and of chunks in frames.

use super::frame::{HEADER_BYTES, Header, Key, Kind};
use super::member::Named;

/// Location and length of a frame; the target of an index row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Address {
    pub(super) pack: u32,
    pub(super) offset: u32,
    pub(super) stored_len: u32,
    pub(super) raw_len: u32,
}

/// A frame in a pack, or a chunk in such a frame, by id.
#[derive(Clone, Copy)]
pub(super) struct Entry {
    pub(super) key: Key,
    pub(super) address: Address,
}

impl Entry {
    pub(super) fn of(header: &Header, pack: u32, offset: u32) -> Entry {
        Entry {
            key: header.key(),
            address: Address { pack, offset, stored_len: header.stored_len, raw_len: header.raw_len },
        }
    }

    /// Returns the footer entries of a frame: itself, and its chunks if it is a group.
    pub(super) fn all_of(
        header: &Header,
        chunks: impl IntoIterator<Item = Named>,
        pack: u32,
        offset: u32,
    ) -> Vec<Entry> {
        let frame = Entry::of(header, pack, offset);
        let entry = |(id, raw_len): Named| Entry {
            key: Key::new(&id.0, header.member_kind() as u8),
            address: Address { raw_len, ..frame.address },
        };
        std::iter::once(frame).chain(chunks.into_iter().map(entry)).collect()
    }

    /// Returns the bytes of its frame.
    pub(super) fn frame_bytes(&self) -> u64 {
        HEADER_BYTES as u64 + u64::from(self.address.stored_len)
    }

    /// Whether the index has a row for it.
    pub(super) fn is_row(&self) -> bool {
        Kind::of(self.key.kind()).is_some_and(Kind::is_indexed)
    }
}
