//! Knowledge of a store beyond the tree: former contents of files, and similar files.

use super::error::SyncError;
use super::print::Print;
use super::tree::{ContentId, Time, TreePath};
use crate::beneath::Root;
use crate::chunk::ChunkParams;
use crate::id::RecipeId;
use std::collections::BTreeMap;
use std::fs::File;

/// The store's knowledge of a file's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// The present content has this recipe.
    Now(RecipeId),
    /// A former content has this recipe; the present content is another one.
    Before(RecipeId),
}

/// A version of a file.
pub struct Version {
    /// The recipe of its content.
    pub recipe: RecipeId,
    /// Bytes.
    pub size: u64,
    /// Time of the content.
    pub mtime: Time,
}

/// An entry as of one moment.
pub struct Row {
    /// Its path below the root.
    pub path: TreePath,
    /// Type and content.
    pub kind: RowKind,
    /// Permission bits.
    pub mode: u16,
    /// Inode, length and times; without a hash.
    pub print: Print,
    /// The ids of user and group, if the daemon knows them.
    pub owner: Option<(u32, u32)>,
    /// Xattrs of directories, and of files whose content is included, with those of ACLs.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// The type of an entry.
pub enum RowKind {
    /// A file; with its content if that changed or may have changed.
    File(Option<File>),
    /// A directory.
    Dir,
    /// A symlink.
    Symlink(Vec<u8>),
    /// A named pipe.
    Fifo,
    /// An entry of a type that is not synced.
    Other,
}

/// Changes that the daemon of a mount saw.
pub struct Changes {
    /// The moment of this answer, to ask for the changes after it.
    pub moment: String,
    /// Paths, and whether everything below them may have changed too; `None` if not all changes are known.
    pub changed: Option<Vec<(TreePath, bool)>>,
}

/// Queries to a store. All answers but those about changes are hints: the caller verifies contents by their hashes.
pub trait OldContents {
    /// Returns the recipe of the file at `path`, if it is known.
    fn recipe(&mut self, path: &TreePath) -> Option<Known>;
    /// Returns the versions of the file at `path`.
    fn versions(&mut self, _path: &TreePath) -> Vec<Version> {
        Vec::new()
    }
    /// Returns the chunk sizes of the store, if they are known.
    fn chunk_params(&self) -> Option<ChunkParams> {
        None
    }
    /// Returns which of these recipes the store can still read.
    fn has(&mut self, recipes: &[RecipeId]) -> Result<Vec<bool>, SyncError>;
    /// Returns the contents of these recipes, as far as they are known without reading.
    fn contents(&mut self, recipes: &[RecipeId]) -> Vec<Option<ContentId>> {
        vec![None; recipes.len()]
    }
    /// Returns these contents, as far as they can be read together: for small ones.
    fn read_together(&mut self, recipes: &[RecipeId]) -> Result<Vec<Option<Vec<u8>>>, SyncError> {
        Ok(vec![None; recipes.len()])
    }
    /// Returns the content in a file without a name; `None` if it is gone.
    fn read(&mut self, recipe: RecipeId) -> Result<Option<File>, SyncError>;
    /// Returns files that share data with the file at `path`, each with the share of that file that it has, 0 to 1.
    fn resembling(&mut self, path: &TreePath) -> Vec<(TreePath, f64)>;
    /// Returns the entries at `path`, and at `path` with each of these suffixes, at one moment without writes.
    /// Includes the contents of files that changed after `since`, as far as there is room. Returns `None` if there was
    /// no such moment.
    fn at_barrier(&mut self, path: &TreePath, beside: &[&[u8]], since: Time) -> Option<Vec<Row>>;
    /// Returns the moment now, and the changes since an earlier one: every change of a name, an attribute or a content that
    /// ended before now. Returns `None` if changes may happen that the daemon does not see.
    fn changes(&mut self, _since: Option<&str>) -> Option<Changes> {
        None
    }
    /// As [`OldContents::changes`], without those that only this thread has made through the mount.
    fn changes_by_others(&mut self, _since: &str) -> Option<Changes> {
        None
    }
    /// Returns the overlaid directory below its mount, if this process can write there as the mount would.
    fn below_mount(&self) -> Option<Root> {
        None
    }
    /// Makes everything durable that was written to the directory. Reports an error of any write since this was opened.
    fn sync_all(&mut self) -> Result<(), SyncError>;
    /// Waits until all written files are in the store; gives up if more than `most` files wait.
    fn settle(&mut self, most: Option<u64>) -> Result<(), SyncError>;
}
