//! A recipe: the chunks that make up a file, in order.
//!
//! Encoding: version byte `1`, number of chunks, then for each chunk its 32-byte id and its length;
//! numbers are LEB128. The encoding is canonical, so equal chunk lists have equal [`RecipeId`]s.

mod hasher;

pub use hasher::RecipeHasher;

use crate::id::{ChunkId, RecipeId};

const VERSION: u8 = 1;
/// Limit of a chunk's length, whatever a recipe claims: 16 MiB.
pub const CHUNK_BYTES_MAX: u32 = 16 << 20;

/// One chunk of a recipe: its identity and its length in bytes (1 to [`CHUNK_BYTES_MAX`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkRef {
    /// Its id.
    pub id: ChunkId,
    /// Its length in bytes.
    pub len: u32,
}

/// The ordered chunks of one file's content.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recipe {
    chunks: Vec<ChunkRef>,
    /// `ends[i]` is the offset in the file directly after chunk `i`.
    ends: Vec<u64>,
}

/// Bytes that are not a valid recipe.
#[derive(Debug, thiserror::Error)]
#[error("not a recipe: {0}")]
pub struct RecipeError(&'static str);

impl Recipe {
    /// Builds a recipe from its chunks. Every length must be 1 to [`CHUNK_BYTES_MAX`].
    pub fn new(chunks: Vec<ChunkRef>) -> Recipe {
        let ends = chunks
            .iter()
            .scan(0, |end, chunk| {
                debug_assert!((1..=CHUNK_BYTES_MAX).contains(&chunk.len));
                *end += u64::from(chunk.len);
                Some(*end)
            })
            .collect();
        Recipe { chunks, ends }
    }

    /// Returns the length in bytes of the file that this recipe describes.
    pub fn size(&self) -> u64 {
        self.ends.last().copied().unwrap_or(0)
    }

    /// Returns the chunks, in file order.
    pub fn chunks(&self) -> &[ChunkRef] {
        &self.chunks
    }

    /// Returns the offset in the file at which chunk `index` starts. O(1).
    pub fn start_of(&self, index: usize) -> u64 {
        if index == 0 { 0 } else { self.ends[index - 1] }
    }

    /// Returns the index of the chunk that holds byte `offset`, or `None` at or past the end. O(log chunks).
    pub fn chunk_at(&self, offset: u64) -> Option<usize> {
        (offset < self.size()).then(|| self.ends.partition_point(|&end| end <= offset))
    }

    /// Returns the id of this recipe: a hash of its canonical encoding.
    pub fn id(&self) -> RecipeId {
        RecipeId::of(&self.encode())
    }

    /// Returns the canonical encoding (see the module header).
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(4 + self.chunks.len() * 35);
        out.push(VERSION);
        put_varint(&mut out, self.chunks.len() as u64);
        for chunk in &self.chunks {
            chunk.encode(&mut out);
        }
        out
    }

    /// Decodes [`Recipe::encode`]'s output; anything else is an error, never a panic or a huge allocation.
    pub fn decode(bytes: &[u8]) -> Result<Recipe, RecipeError> {
        let (&version, mut rest) = bytes.split_first().ok_or(RecipeError("it is empty"))?;
        if version != VERSION {
            return Err(RecipeError("its version is not known to this program"));
        }
        let count = take_varint(&mut rest).ok_or(RecipeError("its chunk count is cut short"))?;
        // A chunk takes at least 33 bytes, so an impossible count is rejected first.
        if count > rest.len() as u64 / 33 {
            return Err(RecipeError("it names more chunks than it has room for"));
        }
        let mut chunks = Vec::with_capacity(count as usize);
        for _ in 0..count {
            let (id, tail) = rest.split_first_chunk::<32>().ok_or(RecipeError("it is cut short"))?;
            rest = tail;
            let len = take_varint(&mut rest).ok_or(RecipeError("it is cut short"))?;
            if !(1..=u64::from(CHUNK_BYTES_MAX)).contains(&len) {
                return Err(RecipeError("a chunk length is out of range"));
            }
            chunks.push(ChunkRef { id: ChunkId(*id), len: len as u32 });
        }
        if !rest.is_empty() {
            return Err(RecipeError("bytes follow its last chunk"));
        }
        Ok(Recipe::new(chunks))
    }
}

impl ChunkRef {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.id.0);
        put_varint(out, self.len.into());
    }
}

/// Appends `value` as unsigned LEB128.
pub fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Takes one unsigned LEB128 number from the front of `bytes`; `None` if it is cut short, over 64 bits or not
/// in the shortest form.
pub fn take_varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for (i, &byte) in bytes.iter().enumerate().take(10) {
        if i == 9 && byte > 1 {
            return None;
        }
        value |= u64::from(byte & 0x7f) << (7 * i);
        if byte & 0x80 == 0 {
            if byte == 0 && i > 0 {
                return None;
            }
            *bytes = &bytes[i + 1..];
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn recipe(lens: &[u32]) -> Recipe {
        let chunk = |(i, &len): (usize, &u32)| ChunkRef { id: ChunkId::of(&i.to_le_bytes()), len };
        Recipe::new(lens.iter().enumerate().map(chunk).collect())
    }

    proptest! {
        #[test]
        fn encoding_round_trips(lens in prop::collection::vec(1..=CHUNK_BYTES_MAX, 0..50)) {
            let recipe = recipe(&lens);
            prop_assert_eq!(Recipe::decode(&recipe.encode()).unwrap(), recipe);
        }

        #[test]
        fn garbage_is_an_error_or_canonical(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(recipe) = Recipe::decode(&bytes) {
                prop_assert_eq!(recipe.encode(), bytes);
            }
        }

        #[test]
        fn every_offset_lies_in_its_chunk(lens in prop::collection::vec(1u32..100, 1..20)) {
            let recipe = recipe(&lens);
            for offset in 0..recipe.size() {
                let i = recipe.chunk_at(offset).unwrap();
                prop_assert!(recipe.start_of(i) <= offset);
                prop_assert!(offset < recipe.start_of(i) + u64::from(recipe.chunks()[i].len));
            }
            prop_assert_eq!(recipe.chunk_at(recipe.size()), None);
        }
    }
}
