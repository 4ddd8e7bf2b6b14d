//! Coalesced reads: adjacent frames of a pack, as most files have them, are read in one call and decoded for
//! later reads.
//!
//! Unreadable or invalid frames are left to the read that follows, which reports the reason.

use super::bytes::ByBytes;
use super::entry::Address;
use super::frame::{HEADER_BYTES, Header, Key};
use super::read::{Groups, Reader};
use crate::id::ChunkId;
use quick_cache::sync::{DefaultLifecycle, GuardResult, PlaceholderGuard};
use std::time::Duration;

/// Limit of one read, unless one frame is longer.
const COALESCED_BYTES_MAX: u64 = 1 << 20;
/// Reading a gap of this many bytes costs less than another call.
const GAP_BYTES_MAX: u64 = 16 << 10;

/// The cache slot of a chunk that is being decoded; other readers of the chunk wait for it.
type Slot<'a> = PlaceholderGuard<
    'a,
    ChunkId,
    super::Bytes,
    ByBytes,
    quick_cache::DefaultHashBuilder,
    DefaultLifecycle<ChunkId, super::Bytes>,
>;

struct Wanted<'a> {
    slot: Slot<'a>,
    key: Key,
    address: Address,
}

fn end(address: &Address) -> u64 {
    u64::from(address.offset) + HEADER_BYTES as u64 + u64::from(address.stored_len)
}

impl Reader {
    /// Loads chunks into the cache that no other thread is loading. `buffer` is scratch space.
    pub(super) fn load_ahead(&self, ids: &[ChunkId], buffer: &mut Vec<u8>) {
        let mut frames: Vec<Wanted<'_>> = Vec::new();
        for id in ids {
            let GuardResult::Guard(slot) = self.chunks.get_value_or_guard(id, Some(Duration::ZERO)) else {
                continue;
            };
            let key = Key::chunk(id);
            let Ok(Some(address)) = self.index.find(&key) else { continue };
            if let Some(bytes) = self.in_group_at_hand(&key, &address) {
                drop(slot.insert(bytes));
                continue;
            }
            if frames.last().is_some_and(|last| !follows(&frames[0].address, &last.address, &address)) {
                self.load_coalesced(std::mem::take(&mut frames), buffer);
            }
            frames.push(Wanted { slot, key, address });
        }
        self.load_coalesced(frames, buffer);
        if buffer.capacity() > 2 * COALESCED_BYTES_MAX as usize {
            *buffer = Vec::new();
        }
    }

    fn load_coalesced(&self, frames: Vec<Wanted<'_>>, buffer: &mut Vec<u8>) {
        let (Some(first), Some(last)) = (frames.first(), frames.last()) else { return };
        let (pack, start) = (first.address.pack, u64::from(first.address.offset));
        let Ok(file) = self.packs.file(pack) else { return };
        // The lengths come from the index, which may be damaged: impossible ones are ignored.
        let len = (end(&last.address) - start) as usize;
        if frames.iter().any(|wanted| wanted.address.stored_len > super::frame::Kind::Chunk.raw_bytes_max()) {
            return;
        }
        buffer.resize(len, 0);
        if file.read_exact_at(buffer, start).is_err() {
            return;
        }
        for Wanted { slot, key, address } in frames {
            let from = (u64::from(address.offset) - start) as usize;
            let frame = &buffer[from..(end(&address) - start) as usize];
            let decoded = match self.in_group_at_hand(&key, &address) {
                Some(bytes) => Ok(bytes),
                None => self.decode_frame(&key, &address, frame, Header::decode, Groups::AtHand),
            };
            match decoded {
                Ok(bytes) => drop(slot.insert(bytes)),
                Err(flaw) => tracing::debug!(%flaw, "decode-ahead"),
            }
        }
    }
}

/// Whether a frame can be read together with those from `first` to `last`, or is in the last one (a group).
fn follows(first: &Address, last: &Address, next: &Address) -> bool {
    let next_at = u64::from(next.offset);
    if (next.pack, next.offset, next.stored_len) == (last.pack, last.offset, last.stored_len) {
        return true;
    }
    next.pack == last.pack
        && next_at >= end(last)
        && next_at - end(last) <= GAP_BYTES_MAX
        && end(next) - u64::from(first.offset) <= COALESCED_BYTES_MAX
}
