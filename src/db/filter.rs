//! A Bloom filter over keys that are hashes: answers "not there" or "perhaps".
//!
//! Invariants: a key that was inserted is never "not there". The filter uses the first [`Filter::KEY_BYTES`]
//! bytes of a key, which must come from a good hash; it hashes nothing. The bits of one key are in one line
//! of 64 bytes (Putze, Sanders, Singler: Cache-, Hash- and Space-Efficient Bloom Filters, 2007), so a query
//! costs one cache miss. At 10 bits a key about one foreign key in 70 is "perhaps", at 6 one in 15.

const LINE_BYTES: usize = 64;
const LINE_BITS: u64 = 512;
/// Bits set for a key: seven times nine bits of its second eight bytes.
const PROBES: u32 = 7;

/// Bits for a set of keys: a multiple of the line size.
#[derive(Debug, Default)]
pub(super) struct Filter(Vec<u8>);

impl Filter {
    /// Bytes of a key that are used.
    pub(super) const KEY_BYTES: usize = 16;

    /// Creates a filter for `keys` keys at `bits_per_key`.
    pub(super) fn new(keys: u64, bits_per_key: u64) -> Filter {
        let lines = (keys * bits_per_key).div_ceil(LINE_BITS);
        Filter(vec![0; lines as usize * LINE_BYTES])
    }

    /// Restores a filter from [`Filter::bytes`]; `None` if the bytes are invalid.
    pub(super) fn from_bytes(bytes: Vec<u8>) -> Option<Filter> {
        (!bytes.is_empty() && bytes.len().is_multiple_of(LINE_BYTES)).then_some(Filter(bytes))
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }

    fn place(&self, key: &[u8]) -> (usize, u64) {
        let word = |at: usize| {
            u64::from_le_bytes(*key[at..].first_chunk().expect("a key has the bytes that are looked at"))
        };
        let lines = (self.0.len() / LINE_BYTES) as u64;
        let line = (u128::from(word(0)) * u128::from(lines)) >> 64;
        (line as usize * LINE_BYTES, word(8))
    }

    pub(super) fn insert(&mut self, key: &[u8]) {
        let (line, bits) = self.place(key);
        for probe in 0..PROBES {
            let bit = (bits >> (9 * probe)) as usize % LINE_BITS as usize;
            self.0[line + bit / 8] |= 1 << (bit % 8);
        }
    }

    /// Returns false only if `key` was never inserted.
    pub(super) fn may_contain(&self, key: &[u8]) -> bool {
        let (line, bits) = self.place(key);
        (0..PROBES).all(|probe| {
            let bit = (bits >> (9 * probe)) as usize % LINE_BITS as usize;
            self.0[line + bit / 8] & (1 << (bit % 8)) != 0
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(n: u32) -> [u8; 32] {
        *blake3::hash(&n.to_le_bytes()).as_bytes()
    }

    /// Setting one probe less on insert makes the first check fail; asking one probe only, the second.
    #[test]
    fn knows_all_it_was_given_and_few_others() {
        let mut filter = Filter::new(10_000, 10);
        (0..10_000).for_each(|n| filter.insert(&key(n)));
        let filter = Filter::from_bytes(filter.bytes().to_vec()).unwrap();
        assert!((0..10_000).all(|n| filter.may_contain(&key(n))));
        let wrong = (10_000..110_000).filter(|&n| filter.may_contain(&key(n))).count();
        assert!((100..3000).contains(&wrong), "{wrong} of 100,000");
        assert!(Filter::from_bytes(vec![0; 65]).is_none() && Filter::from_bytes(Vec::new()).is_none());
    }
}
