//! The recipe of a stub, and its chunks.

use super::Tree;
use super::inode::Inode;
use crate::backing::stub::Stub;
use crate::contents::error::{OverlayError, Result};
use crate::id::ChunkId;
use crate::recipe::{ChunkRef, Recipe};
use std::sync::Arc;

impl Tree {
    /// The recipe of a stub.
    pub(crate) fn recipe_of(&self, inode: &Inode, stub: &Stub) -> Result<Arc<Recipe>> {
        let recipe = self.contents.store.recipe(&stub.recipe).inspect_err(|e| {
            tracing::error!("{}: {e}", self.name_of(inode));
        })?;
        if recipe.size() != stub.size {
            return Err(self.bad_stub(inode, "its size is not that of its recipe"));
        }
        Ok(recipe)
    }

    pub(crate) fn bad_stub(&self, inode: &Inode, reason: &str) -> OverlayError {
        OverlayError::BadStub { path: self.name_of(inode).into(), reason: reason.to_owned() }
    }

    /// Hashes a chunk once more, because the store's checksums no longer protect it outside the store.
    pub(crate) fn check_chunk(&self, inode: &Inode, chunk: &ChunkRef, bytes: &[u8]) -> Result<()> {
        if bytes.len() == chunk.len as usize && ChunkId::of(bytes) == chunk.id {
            return Ok(());
        }
        let reason = format!("chunk {}: the bytes in the store have another hash", chunk.id);
        Err(OverlayError::Unreadable { path: self.name_of(inode).into(), reason })
    }
}
