//! Steps between which a crash may come: a test lets the process end at one of them.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts steps; does nothing unless told to.
#[derive(Default)]
pub struct Steps(AtomicU64);

impl Steps {
    /// Lets the process abort at the `count`th step from now on.
    pub fn abort_at(&self, count: u64) {
        self.0.store(count, Ordering::SeqCst);
    }

    /// A step has been done.
    pub fn step(&self) {
        let counting = self.0.load(Ordering::Relaxed) > 0;
        if counting && self.0.fetch_sub(1, Ordering::SeqCst) == 1 {
            std::process::abort();
        }
    }
}
