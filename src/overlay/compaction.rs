//! Online compaction of the index, when much of its disk space is unused.

use super::Overlay;
use crate::contents::throttle::Priority;
use crate::db::Compacted;
use std::time::{Duration, Instant};

/// Delay of the next attempt after one that saved nothing: it costs as much as a successful one.
const AFTER_NOTHING: Duration = Duration::from_secs(600);

impl Overlay {
    /// Compacts the index if that is worth it and no file waits to be converted, but not before it is due again.
    pub(super) fn compact_if_due(&self, not_before: &mut Instant) {
        if self.pending() > 0 || Instant::now() < *not_before {
            return;
        }
        let mut priority = Priority::default();
        priority.set_low(true);
        match self.db.compact(&|| !self.ticks.stopped()) {
            Ok(Compacted::NotWorth) => {}
            Ok(Compacted::GivenUp) => *not_before = Instant::now() + AFTER_NOTHING,
            Ok(Compacted::Done { before, now }) => {
                tracing::info!("the index was compacted: {before} bytes before, {now} now");
            }
            Err(e) => {
                tracing::warn!("the index was not compacted: {e}");
                *not_before = Instant::now() + AFTER_NOTHING;
            }
        }
        priority.set_low(false);
    }
}
