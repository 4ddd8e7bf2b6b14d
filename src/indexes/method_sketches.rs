//! Sketches of contents for the indexes of published methods.

use super::Indexes;
use super::method_indexes::{MethodIndexes, TOGETHER_BYTES_MAX};
use crate::backing;
use crate::catalog::FileRow;
use crate::contents::collection::Stored;
use crate::contents::error::{OverlayError, Result};
use crate::id::RecipeId;
use crate::recipe::Recipe;
use crate::similarity::exact::Source;
use crate::similarity::methods::Index;
use crate::tree::inode::Inode;
use rustix::fs::Stat;
use std::sync::{Arc, PoisonError};

impl Indexes {
    /// Returns the indexes of published methods.
    pub fn method_indexes(&self) -> Option<&MethodIndexes> {
        self.method_indexes.as_ref()
    }

    pub(crate) fn flush_method_indexes(&self) -> Result<()> {
        Ok(self.method_indexes.iter().flat_map(MethodIndexes::indexes).try_for_each(Index::flush)?)
    }

    /// Forgets contents that have no file any more.
    pub(crate) fn forget_kept(&self, orphans: &[RecipeId]) -> Result<()> {
        let Some(kept) = self.method_indexes.as_ref().filter(|kept| !kept.indexes.is_empty()) else {
            return Ok(());
        };
        let _alone = kept.forgetting.write().unwrap_or_else(PoisonError::into_inner);
        let mut gone = Vec::new();
        for orphan in orphans {
            if self.catalog.holders(orphan)?.is_empty() {
                gone.push(*orphan);
            }
        }
        Ok(kept.indexes.iter().try_for_each(|index| index.forget_all(&gone))?)
    }

    /// Sketches a content that was just committed and recorded: from the store if it is there, else from the file. If the
    /// file has changed meanwhile, the next commit sketches it.
    pub(crate) fn keep_committed(
        &self,
        inode: &Inode,
        id: RecipeId,
        stored: Option<&Recipe>,
        file: &Arc<std::fs::File>,
        before: &Stat,
    ) {
        let as_before = || stored.is_some() || rustix::fs::fstat(&**file).is_ok_and(|now| same(&now, before));
        let open = || Ok(self.content_of(stored, file, before));
        if let Err(e) = self.keep(id, open, &as_before, &mut |_| {}) {
            tracing::warn!("{}: not sketched: {e}", self.tree.name_of(inode));
        }
    }

    /// Sketches a stub's content for indexes that lack it; returns whether there was one.
    pub(crate) fn keep_stored(&self, id: RecipeId) -> Result<bool> {
        let open = || {
            let recipe = self.contents.store.recipe(&id)?;
            Ok(Box::new(Stored::of(&self.contents.store, recipe)) as Box<dyn Source>)
        };
        self.keep(id, open, &|| true, &mut |bytes| self.throttle.spend(bytes))
    }

    /// The same for a plain file that the catalog knows as `row`.
    pub(crate) fn keep_plain(&self, inode: &Inode, row: &FileRow) -> Result<bool> {
        let as_known = || {
            let stat = inode.path_fd().and_then(rustix::fs::fstat);
            stat.is_ok_and(|stat| stat.st_size as u64 == row.size && backing::mtime(&stat) == row.mtime)
        };
        self.keep(row.recipe, || self.tree.plain_source(inode), &as_known, &mut |bytes| {
            self.throttle.spend(bytes)
        })
    }

    /// Adds a content to each index that lacks it, if `is_it` still returns true after the bytes were read.
    fn keep(
        &self,
        id: RecipeId,
        open: impl FnOnce() -> Result<Box<dyn Source>>,
        is_it: &dyn Fn() -> bool,
        read: &mut dyn FnMut(u64),
    ) -> Result<bool> {
        let Some(kept) = &self.method_indexes else { return Ok(false) };
        let without = kept.without(&id)?;
        if without.is_empty() {
            return Ok(false);
        }
        let source = open()?;
        let is_long = source.len() > TOGETHER_BYTES_MAX;
        let alone = is_long.then(|| kept.sketching.lock().unwrap_or_else(PoisonError::into_inner));
        let methods: Vec<_> = without.iter().map(|index| index.method().clone()).collect();
        let made = kept.sketches(&methods, &*source, read).map_err(|e| match e {
            OverlayError::Io { source, .. } => OverlayError::io("read", format!("content {id}"), source),
            e => e,
        })?;
        if !is_it() {
            return Ok(false);
        }
        let _adding = kept.forgetting.read().unwrap_or_else(PoisonError::into_inner);
        for (index, sketch) in without.into_iter().zip(made) {
            index.add(id, &sketch)?;
        }
        drop(alone);
        Ok(true)
    }
}

fn same(now: &Stat, before: &Stat) -> bool {
    now.st_size == before.st_size && backing::mtime(now) == backing::mtime(before)
}
