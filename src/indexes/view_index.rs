//! Views of contents, added as the contents are committed or met by a scan.

use super::Indexes;
use super::views::{Shared, view_of};
use crate::backing::io::read_full;
use crate::contents::collection::Stored;
use crate::contents::error::{OverlayError, Result};
use crate::id::RecipeId;
use crate::indexes::Views;
use crate::recipe::Recipe;
use crate::similarity::exact::Source;
use crate::tree::inode::Inode;
use crate::view::View;
use rustix::fs::Stat;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;

impl Indexes {
    /// The index of views.
    pub fn views(&self) -> Option<&Views> {
        self.views.as_ref()
    }

    pub(crate) fn forget_view(&self, recipe: &RecipeId) -> Result<()> {
        self.views.as_ref().map_or(Ok(()), |views| Ok(views.index.remove_content(recipe)?))
    }

    pub(crate) fn flush_views(&self) -> Result<()> {
        self.views.as_ref().map_or(Ok(()), |views| Ok(views.index.flush()?))
    }

    /// Returns the view through which a plain file will be indexed. Reads its first bytes, which will be read anyway.
    pub(crate) fn view_wanted(&self, inode: &Inode, file: &File, size: u64) -> Option<View> {
        let views = self.views.as_ref().filter(|views| !views.wanted.is_empty())?;
        // Names only distinguish views of text.
        let by_name = views.wanted.iter().any(|view| !view.hides_bytes());
        let path = by_name.then(|| self.tree.path_of(inode)).flatten();
        let read = &mut |at, buffer: &mut [u8]| read_full(file, buffer, at).map_err(io::Error::other);
        let view = View::of_file(size, path.as_deref().and_then(Path::file_name), read).ok()?;
        views.suits(view).then_some(view)
    }

    /// Indexes a content that the catalog has a file of through a view.
    pub(crate) fn index_view(&self, inode: &Inode, view: View, id: RecipeId, source: &dyn Source) {
        let Some(views) = &self.views else { return };
        if let Err(e) = views.add(id, view, source, self.contents.ingest.params(), &self.forgetting) {
            tracing::warn!("{}: not indexed as {}: {e}", self.tree.name_of(inode), view.name());
        }
    }

    /// Opens a content that was just committed: from the store if it is there, else from the file.
    pub(crate) fn content_of(
        &self,
        stored: Option<&Recipe>,
        file: &Arc<File>,
        stat: &Stat,
    ) -> Box<dyn Source> {
        match stored {
            Some(recipe) => Box::new(Stored::of(&self.contents.store, Arc::new(recipe.clone()))),
            None => Box::new(Shared(file.clone(), stat.st_size as u64)),
        }
    }

    /// Indexes the view of a content that the index of bytes has, or is about to have. With `any_name` its first bytes
    /// are read in any case; else only if its name promises a view that is wanted, so that a scan of known files reads
    /// none of them. Returns whether there was something to do.
    pub(crate) fn catch_up_view(
        &self,
        inode: &Inode,
        id: RecipeId,
        any_name: bool,
        open: impl FnOnce() -> Result<Box<dyn Source>>,
    ) -> Result<bool> {
        let Some(views) = self.views.as_ref().filter(|views| !views.wanted.is_empty()) else {
            return Ok(false);
        };
        let path = self.tree.path_of(inode);
        let name = path.as_deref().and_then(Path::file_name);
        let promised = name.and_then(View::promised).is_some_and(|view| views.suits(view));
        let is_known = || {
            let _adding = self.forgetting.adding();
            views.index.has_content(&id)
        };
        if !(promised || any_name) || is_known()? {
            return Ok(false);
        }
        let source = open()?;
        let view = view_of(&*source, name);
        let view = view.map_err(|e| OverlayError::io("read", self.tree.name_of(inode), e))?;
        let wanted = views.suits(view);
        if wanted {
            self.index_view(inode, view, id, &*source);
        }
        Ok(wanted)
    }
}
