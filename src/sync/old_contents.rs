//! Knowledge of a store beyond the tree: former contents of files, and similar files.

use super::error::SyncError;
use super::memory::Print;
use super::tree::{Time, TreePath};
use crate::id::RecipeId;
use std::collections::BTreeMap;
use std::fs::File;

/// What the store says of a file's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// This recipe is the content.
    Now(RecipeId),
    /// The content is another, and was this one at some time before.
    Before(RecipeId),
}

/// One path at a moment.
pub struct Row {
    /// Below the root.
    pub path: TreePath,
    /// What it is.
    pub kind: RowKind,
    /// Permission bits.
    pub mode: u16,
    /// Inode, length and times; without a hash.
    pub print: Print,
    /// Of directories, and of files whose content is here.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// What is at a path.
pub enum RowKind {
    /// A file; with its content, if that changed or may have changed.
    File(Option<File>),
    /// A directory.
    Dir,
    /// A symlink.
    Symlink(Vec<u8>),
    /// A named pipe.
    Fifo,
    /// What is not synced.
    Other,
}

/// A store, asked. All answers are hints: whatever comes of them is verified by its hash.
pub trait OldContents {
    /// What is known of the file at `path`.
    fn recipe(&mut self, path: &TreePath) -> Option<Known>;
    /// Which of these the store can still give.
    fn has(&mut self, recipes: &[RecipeId]) -> Result<Vec<bool>, SyncError>;
    /// The content, in a file without a name; none if it is gone.
    fn read(&mut self, recipe: RecipeId) -> Result<Option<File>, SyncError>;
    /// Files that have much of the file at `path`, and the share of that which they have, 0 to 1.
    fn resembling(&mut self, path: &TreePath) -> Vec<(TreePath, f64)>;
    /// What is at `path`, and at `path` with each of `beside` after it, as of one moment at which nothing was changed; the contents of files that changed
    /// after `since` with it, as far as there is room. None if there was no such moment.
    fn at_barrier(&mut self, path: &TreePath, beside: &[&[u8]], since: Time) -> Option<Vec<Row>>;
    /// Waits until what was written is in the store.
    fn settle(&mut self) -> Result<(), SyncError>;
}
