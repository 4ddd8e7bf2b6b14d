//! Features of a chunk. Two chunks that share features resemble each other.
//!
//! A feature is a 64-bit hash, taken where the hash happens to begin with enough zeros that a chunk of any
//! length has 32 to 64 of them on average (FracMinHash; the rolling hash is that of FastCDC: Xia et al.,
//! USENIX ATC 2016). A hash with more zeros also qualifies for fewer, so chunks of different lengths can be
//! compared.

use std::collections::HashMap;

const GEAR: [u64; 256] = gear();
/// Bytes that a hash depends on.
const WINDOW: usize = 64;

/// Random numbers, one for each byte (splitmix64).
const fn gear() -> [u64; 256] {
    let mut table = [0; 256];
    let mut state = 0x6465_6475_7066_7331_u64;
    let mut i = 0;
    while i < table.len() {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = state;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        table[i] = x ^ (x >> 31);
        i += 1;
    }
    table
}

/// Returns the distinct features of a chunk, sorted; none for a very short chunk.
pub(super) fn features(bytes: &[u8]) -> Vec<u32> {
    features_at(bytes, bytes.len().max(1).ilog2().saturating_sub(5).max(1))
}

/// Like [`features`], but samples one in 2^`zeros` positions at any length, so that a short chunk matches
/// inside a long one.
pub(super) fn features_at(bytes: &[u8], zeros: u32) -> Vec<u32> {
    let mut found = Vec::with_capacity(96);
    let mut hash = 0_u64;
    for (i, byte) in bytes.iter().enumerate() {
        hash = (hash << 1).wrapping_add(GEAR[usize::from(*byte)]);
        // The high bits depend on the whole window, the low ones on little of it.
        if hash >> (64 - zeros) == 0 && i + 1 >= WINDOW {
            found.push((hash >> 16) as u32);
        }
    }
    found.sort_unstable();
    found.dedup();
    found
}

/// Returns the root that shares the most features with a chunk, if it shares at least `least`; among equals
/// the last.
pub(super) fn most_shared(features: &[u32], root_with: &HashMap<u32, u32>, least: usize) -> Option<u32> {
    let mut roots: Vec<u32> = features.iter().filter_map(|feature| root_with.get(feature)).copied().collect();
    roots.sort_unstable();
    let runs = roots.chunk_by(|a, b| a == b).filter(|run| run.len() >= least);
    runs.max_by_key(|run| (run.len(), run[0])).map(|run| run[0])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(seed: u64, len: usize) -> Vec<u8> {
        let mut x = seed;
        let next = |_| {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (x >> 56) as u8
        };
        (0..len).map(next).collect()
    }

    #[test]
    fn chunks_of_any_length_have_some_and_share_as_many_as_they_resemble_each_other() {
        for len in [500, 4000, 16_000, 60_000] {
            let count = features(&noise(1, len)).len();
            assert!((8..160).contains(&count), "{len}: {count}");
        }
        let (one, other) = (noise(1, 16_000), noise(2, 16_000));
        let half = [&one[..8000], &other[..8000]].concat();
        let shared = |a: &[u8], b: &[u8]| {
            let of_b = features(b);
            features(a).iter().filter(|feature| of_b.contains(feature)).count()
        };
        assert_eq!(shared(&one, &other), 0);
        let all = features(&one).len();
        assert!((all / 4..=all * 3 / 4).contains(&shared(&one, &half)));
        // A part of it, at another place and in a chunk of another length.
        assert!(shared(&one, &one[5000..9000]) > all / 16);
        assert!(features(b"short").is_empty());
        assert!(features(&[0; 5000]).len() <= 1);
    }
}
