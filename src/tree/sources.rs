//! Contents of files as sources of bytes to compare.

use super::Tree;
use super::inode::{Content, Inode};
use crate::backing;
use crate::backing::plain::Plain;
use crate::backing::types::Kind;
use crate::catalog::Finder;
use crate::contents::collection::Stored;
use crate::contents::error::{OverlayError, Result};
use crate::id::{FileId, RecipeId};
use crate::similarity::exact::Source;
use rustix::fs::OFlags;
use std::io;
use std::path::Path;

impl Tree {
    /// Opens a content: from the store, or from a plain file that has it.
    pub(crate) fn source_of(&self, recipe: &RecipeId, finder: &mut Finder) -> Result<Box<dyn Source>> {
        if let Ok(recipe) = self.contents.store.recipe(recipe) {
            return Ok(Box::new(Stored::of(&self.contents.store, recipe)));
        }
        for file in self.catalog.holders(recipe)? {
            if let Some(path) = finder.path_of(file)? {
                return Ok(self.source(&path)?.0);
            }
        }
        Err(OverlayError::io("find", "a content", io::Error::other("no file has this content any more")))
    }

    /// Opens the content of a plain file.
    pub(crate) fn plain_source(&self, inode: &Inode) -> Result<Box<dyn Source>> {
        let file = backing::open_io(inode.path_fd()?, OFlags::RDONLY)?;
        let size = rustix::fs::fstat(&file)?.st_size as u64;
        Ok(Box::new(Plain(file, size)))
    }

    /// Opens the content of the regular file at `path` below the root.
    pub fn source(&self, path: &Path) -> Result<(Box<dyn Source>, FileId)> {
        let found = self.backing.resolve_named("open", path)?;
        if found.kind() != Kind::File {
            return Err(OverlayError::io("open", path, io::Error::other("not a regular file")));
        }
        let inode = self.inodes.enter(&self.backing, found, 0)?;
        let id = inode.file_id();
        let content = self.lock_loaded(&inode).map(|state| state.content);
        let source = content.and_then(|content| match content {
            Some(Content::Stub(stub)) => {
                let recipe = self.recipe_of(&inode, &stub)?;
                Ok(Box::new(Stored::of(&self.contents.store, recipe)) as Box<dyn Source>)
            }
            Some(Content::Hybrid(stub)) => {
                let hybrid = inode.lock().hybrid.clone();
                match hybrid {
                    Some(hybrid) => Ok(Box::new(self.merged(&inode, &stub, &hybrid)?) as Box<dyn Source>),
                    None => Err(rustix::io::Errno::AGAIN.into()),
                }
            }
            Some(Content::Unknown(reason)) => Err(self.bad_stub(&inode, reason)),
            _ => self.plain_source(&inode),
        });
        self.inodes.release(inode);
        Ok((source?, id))
    }
}
