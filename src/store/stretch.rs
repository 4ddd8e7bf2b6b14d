//! Stretches: frames that lie one after the other in a pack, as those of a file mostly do, read at once for who will
//! want them soon. One call of the system instead of one for each frame, and the disk is asked for much at a time.
//!
//! What cannot be read, or does not verify, is left for the read that follows, which finds out why and says so.

use super::frame::{HEADER_BYTES, Header, Key};
use super::pack::Address;
use super::read::{ByBytes, Groups, Reader};
use crate::id::ChunkId;
use quick_cache::sync::{DefaultLifecycle, GuardResult, PlaceholderGuard};
use std::time::Duration;

/// The most that is read at once, unless one frame is longer.
const STRETCH_BYTES_MAX: u64 = 1 << 20;
/// Reading so much that is not wanted costs less than another call.
const GAP_BYTES_MAX: u64 = 16 << 10;

/// Where a chunk is going to be put once it is decoded: who wants it meanwhile waits for that.
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
    /// Brings chunks into the cache that nobody else is just bringing there. `buffer` is only room to work in.
    pub(super) fn load_ahead(&self, ids: &[ChunkId], buffer: &mut Vec<u8>) {
        let mut stretch: Vec<Wanted<'_>> = Vec::new();
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
            if stretch.last().is_some_and(|last| !follows(&stretch[0].address, &last.address, &address)) {
                self.load_stretch(std::mem::take(&mut stretch), buffer);
            }
            stretch.push(Wanted { slot, key, address });
        }
        self.load_stretch(stretch, buffer);
        if buffer.capacity() > 2 * STRETCH_BYTES_MAX as usize {
            *buffer = Vec::new();
        }
    }

    fn load_stretch(&self, stretch: Vec<Wanted<'_>>, buffer: &mut Vec<u8>) {
        let (Some(first), Some(last)) = (stretch.first(), stretch.last()) else { return };
        let (pack, start) = (first.address.pack, u64::from(first.address.offset));
        let Ok(file) = self.packs.file(pack) else { return };
        // The lengths come from the index, which may be damaged: one that no chunk has is not believed.
        let len = (end(&last.address) - start) as usize;
        if stretch.iter().any(|wanted| wanted.address.stored_len > super::frame::Kind::Chunk.raw_bytes_max())
        {
            return;
        }
        buffer.resize(len, 0);
        if file.read_exact_at(buffer, start).is_err() {
            return;
        }
        for Wanted { slot, key, address } in stretch {
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

/// Whether a frame can be read together with those from `first` to `last`, or is the last one: of a group.
fn follows(first: &Address, last: &Address, next: &Address) -> bool {
    let next_at = u64::from(next.offset);
    if (next.pack, next.offset, next.stored_len) == (last.pack, last.offset, last.stored_len) {
        return true;
    }
    next.pack == last.pack
        && next_at >= end(last)
        && next_at - end(last) <= GAP_BYTES_MAX
        && end(next) - u64::from(first.offset) <= STRETCH_BYTES_MAX
}
