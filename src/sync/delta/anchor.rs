//! Anchors: content-defined pieces of large bases, found again in a target by their hash.

use super::DeltaError;
use super::view::View;
use crate::chunk::ChunkParams;
use std::collections::HashMap;

/// Average length in bytes.
const ANCHOR_BYTES: u64 = 2048;
/// Maximum number of anchors. They are longer if the bases have more than 4 GiB in all.
const ANCHORS_MAX: u64 = 1 << 21;
const READ_BYTES: usize = 4 << 20;

pub(super) struct Anchors {
    pub params: ChunkParams,
    /// View and offset of each anchor, by hash; the first one if several are equal.
    places: HashMap<u64, (u8, u64)>,
}

impl Anchors {
    /// Reads all of `views`, which have the given numbers.
    pub fn of(views: &[(usize, &View<'_>)]) -> Result<Anchors, DeltaError> {
        let bytes: u64 = views.iter().map(|(_, view)| view.size).sum();
        let mut avg = ANCHOR_BYTES;
        while bytes / avg > ANCHORS_MAX && avg < 1 << 20 {
            avg *= 2;
        }
        let params = ChunkParams::with_average(avg).expect("a power of two in its range");
        let mut places = HashMap::new();
        for &(number, view) in views {
            let (mut buffer, mut offset, mut read) = (Vec::new(), 0, 0);
            while offset < view.size {
                let have = buffer.len();
                let more = (view.size - read).min(READ_BYTES as u64);
                buffer.resize(have + more as usize, 0);
                view.read_exact(read, &mut buffer[have..])?;
                read += more;
                let mut start = 0;
                for len in params.cut(&buffer, read == view.size) {
                    let end = start + len as usize;
                    if places.len() < 2 * ANCHORS_MAX as usize {
                        places.entry(hash(&buffer[start..end])).or_insert((number as u8, offset));
                    }
                    offset += u64::from(len);
                    start = end;
                }
                buffer.drain(..start);
            }
        }
        Ok(Anchors { params, places })
    }

    /// Returns view and offset of a piece with the same hash.
    pub fn find(&self, piece: &[u8]) -> Option<(usize, u64)> {
        self.places.get(&hash(piece)).map(|&(view, offset)| (usize::from(view), offset))
    }
}

/// Returns a short hash. It is a hint only: the matcher compares the bytes.
fn hash(piece: &[u8]) -> u64 {
    let mut first = [0; 8];
    first.copy_from_slice(&blake3::hash(piece).as_bytes()[..8]);
    u64::from_le_bytes(first)
}
