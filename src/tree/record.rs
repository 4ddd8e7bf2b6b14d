//! Rows of files in the catalog.

use super::Tree;
use super::inode::Inode;
use crate::backing;
use crate::catalog::FileRow;
use crate::contents::error::Result;
use crate::id::RecipeId;
use rustix::fs::Stat;
use std::path::PathBuf;

impl Tree {
    /// Records a file's content and directory in the catalog.
    pub(crate) fn record(&self, inode: &Inode, recipe: RecipeId, stat: &Stat) -> Result<()> {
        self.touched(inode);
        let path = self.backing.relative_path(&inode.path_fd()?)?;
        self.record_row(inode, recipe, stat, path)
    }

    /// The same for a file that is being converted, with the path of the name that it was opened by. Its content was listed as
    /// changed before.
    pub(crate) fn record_converted(
        &self,
        inode: &Inode,
        recipe: RecipeId,
        stat: &Stat,
        path: Option<PathBuf>,
    ) -> Result<()> {
        self.converted(inode);
        self.record_row(inode, recipe, stat, path)
    }

    fn record_row(&self, inode: &Inode, recipe: RecipeId, stat: &Stat, path: Option<PathBuf>) -> Result<()> {
        let path = match path {
            // That name is gone; it may have others.
            None => self.catalog.finder(&self.backing).path_of(inode.file_id())?,
            path => path,
        };
        let Some(path) = path else { return self.catalog.remove_file(inode.file_id()) };
        let row = FileRow { recipe, size: stat.st_size as u64, mtime: backing::mtime(stat) };
        self.catalog.set_file(inode.file_id(), row)?;
        self.catalog.place(&self.backing, inode.file_id(), &path)
    }
}
