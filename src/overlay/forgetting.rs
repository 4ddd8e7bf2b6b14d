//! Removal of contents without files from the similarity indexes.
//!
//! Invariants: a content that a file has is not removed. A commit adds its file to the catalog before it adds
//! the content, and a removal asks the catalog while nothing can be added: it either sees the file, or the
//! content is added again afterwards. The content's chunks were known when it was read, so they were not
//! sketched; if only the removed content had them, a sweep may have dropped their sketches. So a commit must
//! be ready to sketch its chunks again.
//!
//! A kill may leave rows of removed files, and contents without files. A walk of the whole tree drops both.

use super::Overlay;
use crate::catalog::FileRow;
use crate::contents::Indexing;
use crate::contents::error::Result;
use crate::id::{FileId, RecipeId};
use crate::recipe::Recipe;
use crate::similarity::Similarity;
use crate::similarity::exact::Source;

/// Rows examined before the stale ones of them are dropped.
const ROWS_AT_ONCE: usize = 1 << 14;

impl Overlay {
    /// Adds a content that the catalog has a file of, unless `indexing` leaves it out. The bytes of `open` are read only if chunks
    /// have to be sketched again.
    pub(super) fn index_content(
        &self,
        id: RecipeId,
        recipe: &Recipe,
        indexing: Indexing,
        open: impl FnOnce() -> Result<Box<dyn Source>>,
    ) -> Result<()> {
        match indexing {
            Indexing::Off => Ok(()),
            _ => self.contents.index(id, recipe, indexing, Some(&self.forgetting), open),
        }
    }

    /// Forgets a content unless a file has it; returns whether no file has it.
    pub(super) fn forget_content(&self, id: &RecipeId) -> Result<bool> {
        let _alone = self.forgetting.removing();
        let is_gone = self.catalog.holders(id)?.is_empty();
        if is_gone {
            self.contents.similarity.remove_content(id)?;
            self.forget_view(id)?;
        }
        Ok(is_gone)
    }

    /// Drops leftovers of a kill: rows of files that are not among those `met` in the whole tree and cannot be found, and
    /// contents that no file has. O(files + contents) look-ups.
    pub(super) fn drop_stale(&self, mut met: Vec<FileId>) -> Result<()> {
        met.sort_unstable();
        let mut from = FileId(0);
        loop {
            let (mut unmet, mut last): (Vec<(FileId, FileRow)>, _) = (Vec::new(), None);
            self.catalog.for_each_from(from, |file, row| {
                last = Some(file);
                if met.binary_search(&file).is_err() {
                    unmet.push((file, row));
                }
                unmet.len() < ROWS_AT_ONCE
            })?;
            let mut finder = self.catalog.finder(&self.backing);
            for (file, row) in unmet {
                // A file may have been created during the walk.
                if finder.path_of(file)?.is_none() {
                    self.catalog.remove_row(file, row)?;
                }
            }
            match last.and_then(|last| last.0.checked_add(1)) {
                Some(next) => from = FileId(next),
                None => break,
            }
        }
        self.drop_unheld(&self.contents.similarity)?;
        self.views().map_or(Ok(()), |views| self.drop_unheld(views.index()))
    }

    fn drop_unheld(&self, index: &Similarity) -> Result<()> {
        let (mut from, mut failed) = (0, Ok(()));
        loop {
            let (mut unheld, mut last) = (Vec::new(), None);
            index.each_content_from(from, &mut |number, recipe| {
                last = Some(number);
                match self.catalog.holders(recipe) {
                    Ok(files) if files.is_empty() => unheld.push(*recipe),
                    Ok(_) => {}
                    Err(e) => failed = Err(e),
                }
                failed.is_ok() && unheld.len() < ROWS_AT_ONCE
            })?;
            std::mem::replace(&mut failed, Ok(()))?;
            for recipe in unheld {
                self.forget_content(&recipe)?;
            }
            match last.and_then(|last| u32::checked_add(last, 1)) {
                Some(next) => from = next,
                None => return Ok(()),
            }
        }
    }
}
