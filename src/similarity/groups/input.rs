//! Source of features for a comparison.

use crate::id::RecipeId;
use crate::similarity::SimilarityError;
use crate::similarity::gram::LEVELS;

type Result<T> = std::result::Result<T, SimilarityError>;

/// Facts of one content from the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fact {
    /// Its number; they ascend as contents are added, with gaps where some were removed.
    pub number: u32,
    /// Which content.
    pub recipe: RecipeId,
    /// Its length in bytes.
    pub size: u64,
    /// The coarsest level of its chunks.
    pub level: u8,
    /// Number of features that each level from there on selects.
    pub counts: [u32; LEVELS],
}

/// Source of features: the index, or a substitute in tests. Each visit is in ascending order of the first argument; a
/// visitor that returns false ends it.
pub trait Input {
    /// Every content, by number.
    fn contents(&self, visit: &mut dyn FnMut(Fact) -> bool) -> Result<()>;
    /// Every chunk number with the contents that have it and its level, by chunk and content.
    fn contained(&self, visit: &mut dyn FnMut(u32, u32, u8) -> bool) -> Result<()>;
    /// Every feature with the chunks that have it, by feature and chunk.
    fn features(&self, visit: &mut dyn FnMut(u64, u32) -> bool) -> Result<()>;
    /// Every bare chunk (only its id is known) with the contents that have it, its level, and the number of features that it
    /// would have there, by chunk and content.
    fn bare(&self, visit: &mut dyn FnMut(u32, u32, u8, u32) -> bool) -> Result<()> {
        let _ = visit;
        Ok(())
    }
}
