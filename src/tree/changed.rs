//! Reports that a file has changed and can be converted.

use super::Tree;
use super::event::Event;
use super::inode::{Inode, State as InodeState};
use crate::backing::types::Kind;
use std::sync::Arc;
use std::time::Instant;

impl Tree {
    /// Reports a file that is changed and closed: it can be converted.
    pub(crate) fn enqueue_if_due(&self, inode: &Arc<Inode>, state: &mut InodeState) {
        let due =
            state.dirty && state.opens == 0 && !state.queued && inode.on_root_fs && inode.kind == Kind::File;
        if !due || self.read_only {
            return;
        }
        self.tell(Event::Due(inode, state));
    }

    /// As [`Tree::enqueue_if_due`], for a file whose content was just changed: also if it could not be committed
    /// before, and stands in the queue to be tried again at long intervals.
    pub(crate) fn enqueue_changed(&self, inode: &Arc<Inode>, state: &mut InodeState) {
        self.touched(inode);
        state.dirty = true;
        state.closed = Instant::now();
        self.tell(Event::Changed(inode, state));
        self.enqueue_if_due(inode, state);
    }
}
