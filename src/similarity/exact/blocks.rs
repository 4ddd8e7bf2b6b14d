//! An index of the blocks of 16 bytes of a segment, by their bytes.

use std::ops::Range;

const BLOCK_BYTES: usize = 16;
/// At most this many blocks with equal bytes are tried at one place.
pub(super) const EQUAL_BLOCKS_MAX: usize = 32;
/// At most this many blocks of one hash bucket are tried: only input made to collide has more.
const BUCKET_BLOCKS_MAX: usize = 256;
/// Bits of the filter to a block.
const FILTER_BITS_PER_BLOCK: usize = 16;
const NONE: u32 = u32::MAX;

/// Blocks start at multiples of 16 of their segment's start. Only the first two and the last of a run of equal blocks are
/// kept. That is enough: 32 bytes that reach out of the run hold its first or its last block, or one outside; and around
/// the second of four or more lie all 32 bytes that the run can hold.
pub(super) struct Blocks<'a> {
    /// All bytes, the margins too.
    pub(super) bytes: &'a [u8],
    /// Ends of the pieces, in order; no match crosses the border of a piece. One piece if empty.
    ends: &'a [usize],
    /// Start of block 0.
    start: usize,
    /// First block of each bucket.
    heads: Vec<u32>,
    /// Next block of the same bucket.
    next: Vec<u32>,
    /// A Bloom filter of the hashes that occur, with all bits of a hash in one word: most places without a match cost one
    /// access to the cache. About one in 150 passes.
    filter: Vec<u64>,
    head_shift: u32,
    filter_shift: u32,
}

impl<'a> Blocks<'a> {
    /// Indexes the blocks that start in `inner`. O(bytes).
    pub(super) fn of(bytes: &'a [u8], inner: Range<usize>) -> Blocks<'a> {
        Blocks::of_pieces(bytes, inner, &[])
    }

    /// The same for successive pieces, which end at `ends`.
    pub(super) fn of_pieces(bytes: &'a [u8], inner: Range<usize>, ends: &'a [usize]) -> Blocks<'a> {
        let start = inner.start;
        // The last block may reach into the margin: every place at which a block could start counts.
        let count = inner.len().div_ceil(BLOCK_BYTES).min((bytes.len() - start) / BLOCK_BYTES);
        let head_bits = count.next_power_of_two().ilog2().max(1);
        let filter_bits = (count * FILTER_BITS_PER_BLOCK).next_power_of_two().ilog2().max(7);
        let mut blocks = Blocks {
            bytes,
            ends,
            start,
            heads: vec![NONE; 1 << head_bits],
            next: vec![NONE; count],
            filter: vec![0; 1 << (filter_bits - 6)],
            head_shift: 64 - head_bits,
            filter_shift: 64 - (filter_bits - 6),
        };
        let (mut before, mut piece) = ([None; 2], blocks.piece(start));
        for block in 0..count {
            let at = start + block * BLOCK_BYTES;
            if at + BLOCK_BYTES > piece.end {
                // The block lies in two pieces, or is the first of the next.
                (before, piece) = ([None; 2], blocks.piece(at));
                if at + BLOCK_BYTES > piece.end {
                    continue;
                }
            }
            let words = words_at(bytes, at);
            let has_next = block + 1 < count && at + 2 * BLOCK_BYTES <= piece.end;
            let after = has_next.then(|| words_at(bytes, at + BLOCK_BYTES));
            let is_inside = before == [Some(words); 2] && after == Some(words);
            before = [before[1], Some(words)];
            if is_inside {
                continue;
            }
            let hash = hash(words);
            let head = &mut blocks.heads[(hash >> blocks.head_shift) as usize];
            blocks.next[block] = std::mem::replace(head, block as u32);
            blocks.filter[(hash >> blocks.filter_shift) as usize] |= filter_bits_of(hash);
        }
        blocks
    }

    /// Returns the piece that holds byte `at`.
    pub(super) fn piece(&self, at: usize) -> Range<usize> {
        if self.ends.is_empty() {
            return 0..self.bytes.len();
        }
        let next = self.ends.partition_point(|&end| end <= at);
        let start = if next == 0 { 0 } else { self.ends[next - 1] };
        start..self.ends.get(next).copied().unwrap_or(self.bytes.len())
    }

    /// Returns the first place in `a`, from `at` on, at which a block may occur.
    pub(super) fn next_candidate(&self, a: &[u8], at: usize) -> Option<usize> {
        let found = a.get(at..)?.windows(BLOCK_BYTES).position(|window| {
            let hash = hash(words_at(window, 0));
            let bits = filter_bits_of(hash);
            self.filter[(hash >> self.filter_shift) as usize] & bits == bits
        });
        Some(at + found?)
    }

    /// Calls `visit` with the place of each block that equals `a[at..at + 16]`, and with its piece, until it returns
    /// true.
    pub(super) fn each_equal(&self, a: &[u8], at: usize, mut visit: impl FnMut(usize, Range<usize>) -> bool) {
        let words = words_at(a, at);
        let mut block = self.heads[(hash(words) >> self.head_shift) as usize];
        let (mut steps, mut equal) = (0, 0);
        while block != NONE && steps < BUCKET_BLOCKS_MAX && equal < EQUAL_BLOCKS_MAX {
            let there = self.start + block as usize * BLOCK_BYTES;
            if words_at(self.bytes, there) == words {
                equal += 1;
                if visit(there, self.piece(there)) {
                    return;
                }
            }
            steps += 1;
            block = self.next[block as usize];
        }
    }
}

/// Returns three bits of a word, from parts of the hash that do not select the word.
fn filter_bits_of(hash: u64) -> u64 {
    1 << (hash >> 16 & 63) | 1 << (hash >> 22 & 63) | 1 << (hash >> 28 & 63)
}

fn words_at(bytes: &[u8], at: usize) -> (u64, u64) {
    let block = bytes[at..].first_chunk::<BLOCK_BYTES>().expect("a block lies within its bytes");
    let block = u128::from_le_bytes(*block);
    (block as u64, (block >> 64) as u64)
}

/// Returns a hash. Only its high bits are used, and they depend on the whole block.
fn hash((low, high): (u64, u64)) -> u64 {
    let x =
        low.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ high.rotate_left(29).wrapping_mul(0xc2b2_ae3d_27d4_eb4f);
    (x ^ (x >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93)
}
