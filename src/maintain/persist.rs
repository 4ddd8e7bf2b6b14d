//! Waiting for the queue of conversions, and writing the index to disk.

use super::Maintenance;
use crate::backing;
use crate::contents::error::{OverlayError, Result};

impl Maintenance {
    /// Waits for the files in the queue, at its usual speed. `progress` gets the number of files left, and stops the waiting by
    /// returning false.
    pub(crate) fn wait_for_queue(&self, progress: &mut dyn FnMut(usize) -> bool) -> Result<bool> {
        let settled = self.converter.queue.settle(progress);
        self.persist()?;
        if !self.tree.read_only {
            // For the records of stubs: not every filesystem writes them out with the packs.
            let root = backing::open_dir(self.tree.backing.root())?;
            rustix::fs::syncfs(&root).map_err(|e| OverlayError::io("sync", "the backing filesystem", e))?;
        }
        Ok(settled)
    }

    /// Writes the index to disk and makes it durable.
    pub fn persist(&self) -> Result<()> {
        if self.tree.read_only {
            return Ok(());
        }
        // First: the catalog must not know more about a file than the history.
        if let Some(observer) = self.tree.observer()
            && let Err(e) = observer.flush()
        {
            tracing::warn!("recent changes were not written to the history, will try again: {e}");
        }
        let mut garbage = 0;
        let orphans = self.catalog.take_orphans()?;
        self.indexes.forget_kept(&orphans)?;
        for orphan in &orphans {
            if !self.indexes.forget_content(orphan)? {
                continue;
            }
            garbage += self.contents.store.recipe(orphan).map_or(0, |recipe| recipe.size());
        }
        if garbage > 0 {
            self.garbage.set_bytes(self.garbage.bytes() + garbage)?;
            self.tree.ticks.stir();
        }
        self.catalog.flush()?;
        self.contents.similarity.flush()?;
        self.indexes.flush_views()?;
        self.indexes.flush_method_indexes()?;
        self.contents.store.persist()?;
        self.db.flush()?;
        Ok(())
    }
}
