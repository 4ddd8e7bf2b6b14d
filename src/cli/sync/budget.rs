//! The share of time that syncs may take which follow one another: a file that is written to all the time must not keep the
//! processor busy.

use std::time::{Duration, Instant};

/// In the long run, syncs take at most one in this many seconds.
const SHARE: u32 = 3;
/// Syncs may take this much time before the next one has to wait.
const CREDIT: Duration = Duration::from_secs(10);
/// Maximum pause.
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// See the module.
pub(super) struct Budget {
    spent: Duration,
    at: Instant,
}

impl Budget {
    pub(super) fn new(now: Instant) -> Budget {
        Budget { spent: Duration::ZERO, at: now }
    }

    /// Counts a sync. Returns the time from its end to the earliest beginning of the next one.
    pub(super) fn spend(&mut self, began: Instant, ended: Instant) -> Duration {
        let earned = ended.saturating_duration_since(self.at) / SHARE;
        self.spent = self.spent.saturating_sub(earned) + ended.saturating_duration_since(began);
        self.at = ended;
        (self.spent.saturating_sub(CREDIT) * SHARE).min(PAUSE_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_syncs_need_no_pause_and_many_take_a_third_of_the_time() {
        let start = Instant::now();
        let (mut budget, mut now, mut busy) = (Budget::new(start), start, Duration::ZERO);
        let took = Duration::from_secs(1);
        for n in 0..600 {
            let pause = budget.spend(now, now + took);
            assert!(n > 8 || pause.is_zero(), "{n}: {pause:?}");
            (now, busy) = (now + took + pause, busy + took);
        }
        let all = now - start;
        assert!(busy * 3 < all + CREDIT * 4 && busy * 4 > all, "{busy:?} of {all:?}");
        // After a rest they need none again.
        now += Duration::from_secs(60);
        assert!(budget.spend(now, now + took).is_zero());
    }
}
