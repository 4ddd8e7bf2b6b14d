//! Cached pages of passthrough files, read for sendfile(2), splice(2) or copy_file_range(2).
//!
//! A handle whose I/O comes here (`request::passed_flags`) reads and writes past the kernel's page cache, but
//! splices through it. These pages are never updated, so they are dropped directly after they were read.
//!
//! Invariant: one thread at a time waits for the kernel to drop pages. The kernel waits for pages that are
//! being read, and another thread must read them.

use crate::backing::types::NodeId;
use crate::overlay::Overlay;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// Pages to drop.
#[derive(Default)]
pub(super) struct Spliced(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    ranges: Vec<(NodeId, Range<u64>)>,
    /// Whether a thread is dropping pages, including new ones.
    dropping: bool,
}

impl Spliced {
    /// Drops the pages of a range that was just read, or leaves that to the thread that is dropping.
    pub(super) fn read(&self, overlay: &Overlay, node: NodeId, range: Range<u64>) {
        let lock = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut waiting = lock();
        waiting.ranges.push((node, range));
        if waiting.dropping {
            return;
        }
        waiting.dropping = true;
        while let Some((node, range)) = waiting.ranges.pop() {
            drop(waiting);
            overlay.drop_pages(node, range);
            waiting = lock();
        }
        waiting.dropping = false;
    }
}
