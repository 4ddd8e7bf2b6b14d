//! The size of a round of commits in bytes.
//!
//! A round shares one fsync, so large rounds cost least. But leases hold its files until it ends, and a file
//! that a program opens meanwhile was read in vain. On a busy machine that can be nearly all of them,
//! repeatedly. So the next round after such a one is smaller, until files are left at the end or rounds are
//! short: files that are opened more often should not be converted now.

use std::time::Duration;

const BYTES_MAX: u64 = 64 << 20;
/// A round has at least one file, however large.
const BYTES_MIN: u64 = 64 << 10;
/// Rounds that are shorter would only cause more fsyncs.
const SHORT: Duration = Duration::from_millis(100);

/// The limit of bytes, for one thread that commits.
pub struct RoundSize {
    bytes: u64,
}

/// Result of a round for its files.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outcome {
    /// Files that were leased, to be converted.
    pub leased: usize,
    /// Files of those that another process opened or changed before they were converted.
    pub lost: usize,
}

impl RoundSize {
    /// Starts with the largest size.
    pub fn new() -> RoundSize {
        RoundSize { bytes: BYTES_MAX }
    }

    /// Returns the size of the next round.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Records how a round of that many bytes ended.
    pub fn ended(&mut self, bytes: u64, outcome: Outcome, took: Duration) {
        if outcome.leased == 0 {
            return;
        }
        let mostly_lost = outcome.lost > outcome.leased / 2;
        self.bytes = match (mostly_lost, took > SHORT) {
            (true, true) => bytes.min(self.bytes) / 2,
            (true, false) => self.bytes,
            (false, _) => self.bytes * 2,
        };
        self.bytes = self.bytes.clamp(BYTES_MIN, BYTES_MAX);
    }
}

#[cfg(test)]
mod tests {
    use crate::convert::round_size::*;

    const LONG: Duration = Duration::from_secs(2);

    #[test]
    fn rounds_whose_files_are_taken_away_get_smaller_and_grow_again() {
        let (mut size, lost) = (RoundSize::new(), Outcome { leased: 30, lost: 28 });
        size.ended(4 << 20, lost, LONG);
        assert_eq!(size.bytes(), 2 << 20, "half of what it was, not of what it might have been");
        size.ended(2 << 20, lost, LONG);
        assert_eq!(size.bytes(), 1 << 20);
        size.ended(1 << 20, lost, Duration::from_millis(20));
        assert_eq!(size.bytes(), 1 << 20, "short enough: those files are in use all the time");
        (0..20).for_each(|_| size.ended(5 << 30, Outcome { leased: 1, lost: 1 }, LONG));
        assert_eq!(size.bytes(), BYTES_MIN, "one large file after the other");
        size.ended(10_000, Outcome { leased: 2, lost: 1 }, LONG);
        assert_eq!(size.bytes(), 2 * BYTES_MIN);
        size.ended(10_000, Outcome::default(), LONG);
        assert_eq!(size.bytes(), 2 * BYTES_MIN, "nothing is known of a round without leases");
        (0..20).for_each(|_| size.ended(10_000, Outcome { leased: 2, lost: 0 }, LONG));
        assert_eq!(size.bytes(), BYTES_MAX);
    }
}
