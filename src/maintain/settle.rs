//! Waiting until everything that was written is in the store.

use super::Maintenance;
use crate::contents::error::Result;

impl Maintenance {
    /// Waits until every file that was closed before this call is chunked, indexed and durable, also files that have not
    /// rested, at full speed. Does not wait for files that are opened again meanwhile, so it ends however much is written.
    /// Nor does it wait for files that are mapped or open below the mount, or that are often rewritten as a whole.
    /// `progress` gets the number of files left and stops the waiting by returning false; returns whether all were done.
    pub fn settle(&self, progress: &mut dyn FnMut(usize) -> bool) -> Result<bool> {
        let _hurry = self.converter.hurry();
        Ok(self.look_below_renamed(&mut || progress(0)) && self.wait_for_queue(progress)?)
    }

    /// Waits likewise, but gives up once more than `most` files wait, or one pass below renamed directories has queued more than that.
    pub fn settle_few(&self, most: usize, keep_going: &mut dyn FnMut() -> bool) -> Result<()> {
        let are_few = || self.converter.pending().max(self.renamed.queued()) <= most;
        if are_few() {
            self.settle(&mut |_| are_few() && keep_going())?;
        }
        Ok(())
    }
}
