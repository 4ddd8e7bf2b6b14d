//! Steps that commits of hybrid files and of pieces share.

use super::Converter;
use crate::backing;
use crate::contents::error::Result;
use crate::id::RecipeId;
use crate::recipe::Recipe;
use crate::tree::inode::{Inode, Phase, State as InodeState};
use rustix::fs::Stat;
use std::fs::File;
use std::sync::Arc;

impl Converter {
    /// Returns the attributes of a file that was taken, if no other thread has taken or changed it since; else queues it again.
    pub(crate) fn still_ours(
        &self,
        inode: &Arc<Inode>,
        state: &mut InodeState,
        file: &Arc<File>,
        before: &Stat,
    ) -> Result<Option<Stat>> {
        if !matches!(&state.phase, Phase::Converting(ours) if Arc::ptr_eq(ours, file)) {
            self.tree.enqueue_if_due(inode, state);
            return Ok(None);
        }
        let now = rustix::fs::fstat(&**file)?;
        let same = now.st_size == before.st_size
            && backing::mtime(&now) == backing::mtime(before)
            && backing::ctime(&now) == backing::ctime(before);
        if !same || state.opens > 0 || !backing::holds_lease(file) {
            state.interrupt_conversion();
            self.tree.enqueue_if_due(inode, state);
            return Ok(None);
        }
        Ok(Some(now))
    }

    /// Stores a recipe; it is durable with all its chunks.
    pub(crate) fn store_recipe(&self, recipe: &Recipe) -> Result<RecipeId> {
        let mut writer = self.contents.store.writer();
        let id = writer.put_recipe(recipe)?;
        writer.flush()?;
        self.tree.steps.step();
        self.contents.store.sync()?;
        self.tree.steps.step();
        Ok(id)
    }
}
