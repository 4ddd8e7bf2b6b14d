//! Cached totals of the files in the catalog.
//!
//! Summing reads the whole catalog. The totals stay valid until the catalog or the store changes. On a large,
//! constantly changing tree they are kept for [`PAUSE`] times as long as summing took.

use super::Overlay;
use crate::contents::error::{OverlayError, Result};
use std::sync::PoisonError;
use std::time::{Duration, Instant};

const PAUSE: u32 = 20;
/// Sums that took no longer than this are made again at every change.
const QUICK: Duration = Duration::from_millis(100);

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
pub(super) struct Summed {
    totals: Totals,
    state: [u64; 4],
    made: Instant,
    took: Duration,
}

impl Summed {
    fn holds(&self, state: [u64; 4], now: Instant) -> bool {
        let pause = self.took.saturating_sub(QUICK).saturating_mul(PAUSE);
        self.state == state || now.saturating_duration_since(self.made) < pause
    }
}

impl Overlay {
    /// Sums over all files. O(1) if nothing has changed since the last call, else O(files).
    pub fn totals(&self) -> Result<Totals> {
        let mut summed = self.summed.lock().unwrap_or_else(PoisonError::into_inner);
        // Taken before the rows are read: a change meanwhile makes the next call read them again.
        let stats = self.contents.store.stats();
        let indexed = self.contents.similarity.stats().contents;
        let state = [self.catalog.changes(), stats.recipes, stats.damaged, indexed];
        if let Some(known) = summed.as_ref().filter(|known| known.holds(state, Instant::now())) {
            return Ok(known.totals);
        }
        let start = Instant::now();
        let totals = self.sum()?;
        *summed = Some(Summed { totals, state, made: Instant::now(), took: start.elapsed() });
        Ok(totals)
    }

    fn sum(&self) -> Result<Totals> {
        let (mut totals, mut failed) = (Totals::default(), None);
        let leave_out = self.policies().leave_out();
        self.catalog.for_each(|_, row| {
            totals.files += 1;
            totals.bytes += row.size;
            match self.contents.store.knows_recipe(&row.recipe) {
                Ok(known) => totals.plain_bytes += if known { 0 } else { row.size },
                Err(e) => failed = Some(OverlayError::from(e)),
            }
            if leave_out {
                match self.contents.similarity.has_content(&row.recipe) {
                    Ok(known) => totals.not_indexed += u64::from(!known),
                    Err(e) => failed = Some(e.into()),
                }
            }
            failed.is_none()
        })?;
        failed.map_or(Ok(totals), Err)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::overlay::testing::World;

    #[test]
    fn the_sums_follow_every_change() {
        let world = World::new();
        let sums = || {
            let totals = world.overlay.totals().unwrap();
            assert_eq!(totals, world.overlay.sum().unwrap());
            (totals.files, totals.bytes, totals.plain_bytes)
        };
        assert_eq!(sums(), (0, 0, 0));
        world.stub("a", &[1; 5000]);
        assert_eq!(sums(), (1, 5000, 0));
        let b = world.stub("b", &[2; 7000]);
        assert_eq!(sums(), (2, 12_000, 0));
        world.overlay.catalog().remove_file(b.file_id()).unwrap();
        assert_eq!(sums(), (1, 5000, 0));
    }

    #[test]
    fn slow_sums_are_remembered_for_a_while() {
        let made = Instant::now();
        let summed = |took| Summed { totals: Totals::default(), state: [1; 4], made, took };
        let slow = summed(2 * QUICK);
        assert!(
            slow.holds([2, 1, 1, 1], made + PAUSE * QUICK / 2)
                && !slow.holds([2, 1, 1, 1], made + PAUSE * QUICK)
        );
        assert!(slow.holds([1; 4], made + Duration::from_secs(3600)), "nothing has changed");
        assert!(!summed(QUICK).holds([2, 1, 1, 1], made));
    }
}
