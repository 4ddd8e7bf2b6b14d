//! Decoded bytes, and what they count in a cache.

use crate::id::{ChunkId, RecipeId};
use crate::recipe::Recipe;
use quick_cache::Weighter;
use std::sync::Arc;

/// Decoded bytes, shared with the cache.
pub type Bytes = Arc<[u8]>;

/// Approximate memory of a cache entry beyond its bytes.
pub(super) const ENTRY_OVERHEAD_BYTES: u64 = 112;

#[derive(Clone)]
pub(super) struct ByBytes;

impl Weighter<ChunkId, Bytes> for ByBytes {
    fn weight(&self, _: &ChunkId, bytes: &Bytes) -> u64 {
        bytes.len() as u64 + ENTRY_OVERHEAD_BYTES
    }
}

impl Weighter<RecipeId, Arc<Recipe>> for ByBytes {
    fn weight(&self, _: &RecipeId, recipe: &Arc<Recipe>) -> u64 {
        recipe.chunks().len() as u64 * 44 + ENTRY_OVERHEAD_BYTES
    }
}
