//! Cached totals of the files in the catalog.
//!
//! Summing reads the whole catalog. The totals stay valid until the catalog or the store changes. On a large,
//! constantly changing tree they are kept for [`PAUSE`] times as long as summing took.

use std::time::{Duration, Instant};

pub(crate) const PAUSE: u32 = 20;
/// Sums that took no longer than this are made again at every change.
pub(crate) const QUICK: Duration = Duration::from_millis(100);

/// Sums over all files that the catalog knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Number of files.
    pub files: u64,
    /// Bytes in them.
    pub bytes: u64,
    /// Bytes in those whose content is not in the store.
    pub plain_bytes: u64,
    /// Those whose content is not in the similarity index, if a rule leaves some out.
    pub not_indexed: u64,
}

/// Sums, and the state that they were made from.
pub(crate) struct Summed {
    pub(crate) totals: Totals,
    pub(crate) state: [u64; 4],
    pub(crate) made: Instant,
    pub(crate) took: Duration,
}

impl Summed {
    pub(crate) fn holds(&self, state: [u64; 4], now: Instant) -> bool {
        let pause = self.took.saturating_sub(QUICK).saturating_mul(PAUSE);
        self.state == state || now.saturating_duration_since(self.made) < pause
    }
}
