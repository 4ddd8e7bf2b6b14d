//! The live set of a garbage collection: a Bloom filter that many threads add to.
//!
//! Invariants: every added key is found. Other keys may be found too (about one in 300, more if the memory
//! cap is low for the size of the store). That only keeps some garbage until the next collection, which uses
//! another salt and so errs on other keys. Ids are hashes already, so the filter needs no hash function
//! (Bloom, "Space/time trade-offs in hash coding", CACM 1970; two hashes for all probes after Kirsch and
//! Mitzenmacher, ESA 2006).

use super::frame::Key;
use std::sync::atomic::{AtomicU64, Ordering};

const BITS_PER_KEY: u64 = 12;
const PROBES: u64 = 7;
const BYTES_MIN: u64 = 4096;

pub(super) struct LiveSet {
    words: Box<[AtomicU64]>,
    salt: u64,
    all: bool,
}

impl LiveSet {
    /// An empty set with room for `keys` keys, in at most `bytes_max` bytes.
    pub(super) fn new(keys: u64, bytes_max: u64, salt: u64) -> LiveSet {
        let bytes = (keys.saturating_mul(BITS_PER_KEY) / 8).min(bytes_max).max(BYTES_MIN);
        LiveSet {
            words: (0..bytes.div_ceil(8)).map(|_| AtomicU64::new(0)).collect(),
            salt: salt | 1,
            all: false,
        }
    }

    /// The set of all keys.
    pub(super) fn everything() -> LiveSet {
        LiveSet { words: Box::default(), salt: 1, all: true }
    }

    pub(super) fn insert(&self, key: &Key) {
        if self.all {
            return;
        }
        for bit in self.bits(key) {
            self.words[(bit / 64) as usize].fetch_or(1 << (bit % 64), Ordering::SeqCst);
        }
    }

    pub(super) fn contains(&self, key: &Key) -> bool {
        self.all
            || self
                .bits(key)
                .all(|bit| self.words[(bit / 64) as usize].load(Ordering::SeqCst) & 1 << (bit % 64) != 0)
    }

    fn bits(&self, key: &Key) -> impl Iterator<Item = u64> {
        let word = |at: usize| key.id()[at..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        let mix = |word: u64| (word ^ u64::from(key.kind())).wrapping_mul(self.salt).rotate_left(29);
        let (first, step) = (mix(word(0)), mix(word(8)) | 1);
        let all = self.words.len() as u64 * 64;
        // The high half of a product spreads evenly over any number of bits.
        (0..PROBES).map(move |i| {
            let hash = first.wrapping_add(step.wrapping_mul(i));
            ((u128::from(hash) * u128::from(all)) >> 64) as u64
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::ChunkId;

    fn key(n: u32) -> Key {
        Key::chunk(&ChunkId::of(&n.to_le_bytes()))
    }

    #[test]
    fn what_was_added_is_found_and_little_else() {
        let wrong = |keys: u64, bytes_max: u64, salt: u64| {
            let set = LiveSet::new(keys, bytes_max, salt);
            (0..10_000).for_each(|n| set.insert(&key(n)));
            assert!((0..10_000).all(|n| set.contains(&key(n))));
            (10_000..110_000).filter(|n| set.contains(&key(*n))).collect::<Vec<_>>()
        };
        let one = wrong(10_000, u64::MAX, 1);
        assert!(one.len() < 1000, "{}", one.len());
        let other = wrong(10_000, u64::MAX, 0x9e37_79b9_7f4a_7c15);
        let both = one.iter().filter(|n| other.contains(n)).count();
        assert!(both * 20 < one.len(), "another salt errs about others: {both} of {}", one.len());
        assert!(wrong(10_000, 8192, 1).len() < 50_000, "a low cap costs garbage, not memory");
    }
}
