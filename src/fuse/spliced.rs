//! Pages of a file that the kernel was given, read for sendfile(2), splice(2) or copy_file_range(2).
//!
//! A handle whose I/O comes here (`request::passed_flags`) reads and writes past the kernel's page cache, but is spliced
//! from through it. Nobody keeps those pages up to date, so they are dropped as soon as they have been read.
//!
//! Invariant: one thread at a time waits for the kernel to drop pages. The kernel waits for pages that are being read, and
//! another thread has to read them.

use crate::overlay::{NodeId, Overlay};
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// Pages to drop.
#[derive(Default)]
pub(super) struct Spliced(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    ranges: Vec<(NodeId, Range<u64>)>,
    /// Whether a thread drops what is here, and what comes.
    dropping: bool,
}

impl Spliced {
    /// Drops the pages of a range that was just read, or leaves that to the thread that drops others.
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
