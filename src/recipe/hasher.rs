//! Computes the identity of a recipe chunk by chunk, in bounded memory.
//!
//! The encoding begins with the number of chunks, a varint that is known last. A long recipe is therefore hashed once
//! for each length that this varint may have, without the first block; at the end the hash for the right length is joined
//! with that block. BLAKE3 allows this: it hashes blocks of 1 KiB as the leaves of a tree, and the first 2^k of them are
//! always a subtree (the BLAKE3 specification, section 2.1).

use super::{ChunkRef, VERSION, put_varint};
use crate::id::RecipeId;
use blake3::Hasher;
use blake3::hazmat::{ChainingValue, HasherExt, Mode, merge_subtrees_non_root, merge_subtrees_root};

const LEAF_BYTES: u64 = 1024;
/// Runs of equal chunks that are kept before hashing begins. For more, the number of chunks takes three bytes or more.
const KEPT_MAX: usize = 1 << 14;
const COUNT_BYTES: std::ops::RangeInclusive<u64> = 3..=5;

/// Finds the identity of a recipe without its encoding, in at most a few MiB of memory.
#[derive(Clone, Debug, Default)]
pub struct RecipeHasher {
    count: u64,
    kept: Vec<(ChunkRef, u64)>,
    /// One for each of [`COUNT_BYTES`], once there are too many chunks to keep.
    bodies: Vec<Body>,
}

impl RecipeHasher {
    /// Adds a chunk that occurs `times` times in a row.
    pub fn add(&mut self, chunk: ChunkRef, times: u64) {
        self.count += times;
        match self.kept.last_mut().filter(|(last, _)| *last == chunk) {
            Some((_, count)) => *count += times,
            None => self.kept.push((chunk, times)),
        }
        if self.kept.len() > KEPT_MAX {
            if self.bodies.is_empty() {
                self.bodies = COUNT_BYTES.map(|bytes| Body::after(1 + bytes)).collect();
            }
            self.hash_kept();
        }
    }

    /// The identity of the recipe of these chunks. O(chunks).
    pub fn finish(mut self) -> RecipeId {
        let mut head = vec![VERSION];
        put_varint(&mut head, self.count);
        if self.bodies.is_empty() {
            self.bodies.push(Body::after(head.len() as u64));
        }
        self.hash_kept();
        let of_length = |body: &Body| body.head_bytes == head.len() as u64;
        let body = self.bodies.into_iter().find(of_length);
        RecipeId::of_hash(&body.expect("no file has 2^35 chunks").finish(&head))
    }

    fn hash_kept(&mut self) {
        let mut part = Vec::new();
        for (chunk, times) in self.kept.drain(..) {
            for _ in 0..times {
                chunk.encode(&mut part);
                if part.len() >= 32 << 10 {
                    self.bodies.iter_mut().for_each(|body| body.update(&part));
                    part.clear();
                }
            }
        }
        self.bodies.iter_mut().for_each(|body| body.update(&part));
    }
}

/// Hashes the bytes that follow a head of known length but unknown bytes.
#[derive(Clone, Debug)]
struct Body {
    head_bytes: u64,
    /// The bytes that follow the head in the first leaf.
    first: Vec<u8>,
    /// Subtrees after the first leaf, each as long as all before it.
    whole: Vec<ChainingValue>,
    /// The start of the subtree that is being hashed.
    start: u64,
    hasher: Hasher,
}

impl Body {
    fn after(head_bytes: u64) -> Body {
        let (first, whole) = (Vec::new(), Vec::new());
        Body { head_bytes, first, whole, start: LEAF_BYTES, hasher: subtree(LEAF_BYTES) }
    }

    fn update(&mut self, mut bytes: &[u8]) {
        let room = (LEAF_BYTES - self.head_bytes) as usize - self.first.len();
        let (first, rest) = bytes.split_at(room.min(bytes.len()));
        self.first.extend_from_slice(first);
        bytes = rest;
        while !bytes.is_empty() {
            let room = self.start - self.hasher.count();
            if room == 0 {
                self.whole.push(self.hasher.finalize_non_root());
                self.start *= 2;
                self.hasher = subtree(self.start);
                continue;
            }
            let (part, rest) = bytes.split_at(room.min(bytes.len() as u64) as usize);
            self.hasher.update(part);
            bytes = rest;
        }
    }

    fn finish(self, head: &[u8]) -> blake3::Hash {
        let mut first = Hasher::new();
        first.update(head).update(&self.first);
        if self.hasher.count() == 0 {
            return first.finalize();
        }
        let join = |left, right: &ChainingValue| merge_subtrees_non_root(&left, right, Mode::Hash);
        let left = self.whole.iter().fold(first.finalize_non_root(), join);
        merge_subtrees_root(&left, &self.hasher.finalize_non_root(), Mode::Hash)
    }
}

fn subtree(start: u64) -> Hasher {
    let mut hasher = Hasher::new();
    hasher.set_input_offset(start);
    hasher
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::ChunkId;
    use crate::recipe::{CHUNK_BYTES_MAX, Recipe};
    use proptest::prelude::*;

    fn chunk(n: u64, len: u32) -> ChunkRef {
        ChunkRef { id: ChunkId::of(&n.to_le_bytes()), len }
    }

    fn check(runs: &[(u64, u32, u64)]) {
        let mut hasher = RecipeHasher::default();
        let mut all = Vec::new();
        for &(n, len, times) in runs {
            hasher.add(chunk(n, len), times);
            all.extend(vec![chunk(n, len); times as usize]);
        }
        assert_eq!(hasher.finish(), Recipe::new(all).id(), "{} runs", runs.len());
    }

    proptest! {
        #[test]
        fn gives_the_identity_of_the_recipe(
            runs in prop::collection::vec((0u64..4, 1..=CHUNK_BYTES_MAX, 1u64..300), 0..40),
        ) {
            check(&runs);
        }
    }

    /// At the numbers of chunks at which something changes: leaves, subtrees, bytes of the number, no longer kept.
    #[test]
    fn is_right_at_every_edge() {
        let short: Vec<(u64, u32, u64)> = (0..150).map(|n| (n, 9, 1)).collect();
        (0..150).for_each(|count| check(&short[..count]));
        let long: Vec<(u64, u32, u64)> = (0..70_000).map(|n| (n, 1 + n as u32 % 70_000, 1)).collect();
        for count in [16_383, 16_384, 16_385, 16_386, 30_000, 32_768, 40_000, 70_000] {
            check(&long[..count]);
        }
        // Few runs of many, and more than three bytes can count.
        check(&[(1, 4096, 16_383), (2, 1, 1)]);
        let mut many = long[..20_000].to_vec();
        many.push((7, 65_536, 2_100_000));
        check(&many);
    }
}
