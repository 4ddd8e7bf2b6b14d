//! Counting tags: how often each of 16 strings of 8 bits occurs, at any bit (section 4.1 of the paper).
//!
//! A string that occurs again before 8 bits have passed is not counted again, so two zero bytes are two hits of `0x00`, not
//! nine. Hits of other tags may overlap it.

use std::sync::LazyLock;

/// Number of tags.
pub const TAG_COUNT: usize = 16;

/// The tags. The paper names three (zero bytes, and `e` and `t` as signs of text) and asks for others without structure, not
/// all of them ASCII: they are the first other bytes of the fraction of pi.
pub const TAGS: [u8; TAG_COUNT] =
    [0x00, b'e', b't', 0x24, 0x3f, 0x6a, 0x88, 0x85, 0xa3, 0x08, 0xd3, 0x13, 0x19, 0x8a, 0x2e, 0x03];

const NO_TAG: u8 = 0xff;

/// Place of each byte in [`TAGS`].
static PLACES: [u8; 256] = places();

const fn places() -> [u8; 256] {
    let mut places = [NO_TAG; 256];
    let mut at = 0;
    while at < TAG_COUNT {
        places[TAGS[at] as usize] = at as u8;
        at += 1;
    }
    places
}

/// For each two bytes: bit `i` is set if the 8 bits that end at bit `i` of the second (0 is its highest) are a tag.
static ENDING: LazyLock<Box<[u8]>> = LazyLock::new(|| {
    let ending =
        |pair: u32| (0..8).filter(|&i| PLACES[window(pair, i)] != NO_TAG).fold(0, |set, i| set | 1 << i);
    (0..1 << 16).map(ending).collect()
});

/// Returns the 8 bits that end at bit `i` of the second of two bytes.
fn window(pair: u32, i: u32) -> usize {
    (pair >> (7 - i)) as usize & 0xff
}

/// Counts hits in the bytes of one file.
#[derive(Clone, Debug, Default)]
pub struct TagCounter {
    sums: [u64; TAG_COUNT],
    /// The skip counters: hits of a tag that end at an earlier bit than this are not counted.
    skipped_to: [u64; TAG_COUNT],
    last: u8,
    len: u64,
}

impl TagCounter {
    /// Takes the next bytes.
    pub fn add(&mut self, bytes: &[u8]) {
        let ending = &**ENDING;
        for &byte in bytes {
            let pair = u32::from(self.last) << 8 | u32::from(byte);
            let mut hits = ending[pair as usize];
            if self.len == 0 {
                // Only the last of the windows is complete.
                hits &= 1 << 7;
            }
            while hits != 0 {
                let i = hits.trailing_zeros();
                hits &= hits - 1;
                let (tag, end) = (usize::from(PLACES[window(pair, i)]), 8 * self.len + u64::from(i));
                if end >= self.skipped_to[tag] {
                    self.sums[tag] += 1;
                    self.skipped_to[tag] = end + 8;
                }
            }
            (self.last, self.len) = (byte, self.len + 1);
        }
    }

    /// Hits of each tag so far: the sum table.
    pub fn sums(&self) -> [u64; TAG_COUNT] {
        self.sums
    }

    /// Bytes so far.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there were no bytes yet.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sums(bytes: &[u8]) -> [u64; TAG_COUNT] {
        let mut counter = TagCounter::default();
        counter.add(bytes);
        counter.sums()
    }

    /// Bit by bit, with a counter for each tag that is set at a hit and counted down: as the paper says it.
    fn slowly(bytes: &[u8]) -> [u64; TAG_COUNT] {
        let bits: Vec<u8> = bytes.iter().flat_map(|byte| (0..8).rev().map(move |i| byte >> i & 1)).collect();
        let (mut sums, mut skip) = ([0; TAG_COUNT], [0u8; TAG_COUNT]);
        for bits in bits.windows(8) {
            let value = bits.iter().fold(0, |value, bit| value << 1 | bit);
            for (tag, &wanted) in TAGS.iter().enumerate() {
                if skip[tag] > 0 {
                    skip[tag] -= 1;
                } else if value == wanted {
                    sums[tag] += 1;
                    skip[tag] = 7;
                }
            }
        }
        sums
    }

    proptest! {
        #[test]
        fn counts_as_bit_by_bit(bytes in prop::collection::vec(prop_oneof![Just(0u8), Just(0x88), Just(b'e'), any::<u8>()], 0..300)) {
            prop_assert_eq!(sums(&bytes), slowly(&bytes));
        }
    }

    /// The paper's own example.
    #[test]
    fn two_zero_bytes_are_two_hits() {
        assert_eq!(sums(&[0, 0])[0], 2);
        assert_eq!(sums(&[0x80, 0, 0xff])[0], 1, "a byte of zeros that starts at another bit");
        assert_eq!(sums(&[0xf0, 0x0f])[0], 1, "and where no byte is zero");
    }

    #[test]
    fn tags_differ() {
        assert!((0..TAG_COUNT).all(|at| !TAGS[..at].contains(&TAGS[at])));
    }
}
