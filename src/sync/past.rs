//! What a store knows beside the tree: contents that files had before, and which files resemble each other.

use super::error::SyncError;
use super::tree::TreePath;
use crate::id::RecipeId;
use std::any::Any;
use std::fs::File;

/// What the store says of a file's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// This recipe is the content.
    Now(RecipeId),
    /// The content is another, and was this one at some time before.
    Before(RecipeId),
}

/// A store, asked. All answers are hints: whatever comes of them is verified by its hash.
pub trait Past {
    /// What is known of the file at `path`.
    fn recipe(&mut self, path: &TreePath) -> Option<Known>;
    /// Which of these the store can still give.
    fn has(&mut self, recipes: &[RecipeId]) -> Result<Vec<bool>, SyncError>;
    /// The content, in a file without a name; none if it is gone.
    fn read(&mut self, recipe: RecipeId) -> Result<Option<File>, SyncError>;
    /// Files that have much of the file at `path`, and the share of that which they have, 0 to 1.
    fn resembling(&mut self, path: &TreePath) -> Vec<(TreePath, f64)>;
    /// Holds up programs that write to files until what is returned is dropped, or for as long as they can be; none if they cannot be.
    fn hold(&mut self) -> Option<Box<dyn Any>>;
    /// Waits until what was written is in the store.
    fn settle(&mut self) -> Result<(), SyncError>;
}
