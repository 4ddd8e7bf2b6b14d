//! Recipes of arriving contents, as the store will have them once their files are converted. So a sync that brings much need not wait
//! for that before it remembers them as bases of later deltas.

use super::print::Print;
use super::tree::{ContentId, TreePath};
use crate::chunk::ChunkParams;
use crate::id::ChunkId;
use crate::recipe::{ChunkRef, RecipeHasher};
use std::collections::{BTreeMap, HashMap};

/// See the module.
pub struct Recipes {
    params: ChunkParams,
    /// Bytes of the present content that are not cut yet.
    buffer: Vec<u8>,
    /// The chunks before them.
    hasher: RecipeHasher,
    /// Whether there are any.
    is_cut: bool,
    known: HashMap<ContentId, [u8; 16]>,
    /// Bytes of all contents.
    bytes: u64,
}

/// Maximum number of contents, and of their bytes, that count as few: the store has them soon.
pub const CONTENTS_FEW: u64 = 1000;
const BYTES_FEW: u64 = 64 << 20;

impl Recipes {
    /// Begins for a store with these chunk sizes.
    pub fn new(params: ChunkParams) -> Recipes {
        let hasher = RecipeHasher::default();
        Recipes { params, buffer: Vec::new(), hasher, is_cut: false, known: HashMap::new(), bytes: 0 }
    }

    /// Begins a content.
    pub fn begin(&mut self) {
        self.buffer.clear();
        self.hasher = RecipeHasher::default();
        self.is_cut = false;
    }

    /// Appends bytes to it. Memory: a few of the longest chunks, and `bytes`.
    pub fn write(&mut self, bytes: &[u8]) {
        self.bytes += bytes.len() as u64;
        self.buffer.extend_from_slice(bytes);
        if self.buffer.len() >= 4 * self.params.max as usize {
            self.cut(false);
        }
    }

    /// Ends it; its hash is `content`.
    pub fn finish(&mut self, content: ContentId) {
        let size = self.buffer.len() as u32;
        if size > 0 && !self.is_cut && self.params.cut(&self.buffer, true) == [size] {
            // Its hash is known.
            self.hasher.add(ChunkRef { id: ChunkId(content.0), len: size }, 1);
        } else {
            self.cut(true);
        }
        self.known.insert(content, std::mem::take(&mut self.hasher).finish().0);
        self.begin();
    }

    /// Returns whether few contents arrived.
    pub fn are_few(&self) -> bool {
        self.known.len() as u64 <= CONTENTS_FEW && self.bytes <= BYTES_FEW
    }

    fn cut(&mut self, last: bool) {
        let mut at = 0;
        for len in self.params.cut(&self.buffer, last) {
            let chunk = &self.buffer[at..at + len as usize];
            self.hasher.add(ChunkRef { id: ChunkId::of(chunk), len }, 1);
            at += len as usize;
        }
        self.is_cut |= at > 0;
        self.buffer.drain(..at);
    }

    /// Adds the recipes to files with these contents.
    pub fn note(&self, prints: &mut BTreeMap<TreePath, Print>) {
        for print in prints.values_mut().filter(|print| print.recipe.is_none()) {
            print.recipe = print.content.and_then(|content| self.known.get(&content).copied());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::Recipe;

    #[test]
    fn they_are_those_of_the_whole_content() {
        let params = ChunkParams::default();
        let mut recipes = Recipes::new(params);
        let mut seed = 3_u64;
        let mut byte = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 56) as u8
        };
        for len in [0, 1, 4096, 5000, 30_000, 300_000, 3_000_000] {
            let bytes: Vec<u8> = (0..len).map(|_| byte()).collect();
            let content = ContentId::of(&bytes);
            recipes.begin();
            recipes.write(b"an attempt that was given up");
            recipes.begin();
            bytes.chunks(70_001).for_each(|some| recipes.write(some));
            recipes.finish(content);
            let mut at = 0;
            let chunk = |len: u32| {
                let id = ChunkId::of(&bytes[at..at + len as usize]);
                at += len as usize;
                ChunkRef { id, len }
            };
            let whole = Recipe::new(params.cut(&bytes, true).into_iter().map(chunk).collect());
            assert_eq!(recipes.known[&content], whole.id().0, "{len} bytes");
        }
    }
}
