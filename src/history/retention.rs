//! Retention rules. Pure.
//!
//! A version is the content of a file for a while: from its commit until another replaced it, or the file was
//! removed. It is kept if it was the content at a moment that the rules name: any within the last `all`, or
//! the end of one of the last hours, days, weeks or months. So a content that was overwritten today can be
//! restored today, however old it was; and the content at midnight can be restored for as many days as there
//! are rules for.

use super::calendar::{DAY, FIRST_MONDAY, HOUR, WEEK};
use super::schedule::Schedule;
use crate::convert::Amount;
use std::time::Duration;

/// Limit of boundaries of a kind: a century of days.
const COUNT_MAX: u32 = 36_525;

/// How long versions are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Keep no versions.
    pub none: bool,
    /// Keep all within this time.
    pub all: Duration,
    /// Hours.
    pub hourly: u32,
    /// Days.
    pub daily: u32,
    /// Weeks.
    pub weekly: u32,
    /// Months.
    pub monthly: u32,
    /// Limit on disk for content that only versions, and snapshots without a name, need.
    pub max: Amount,
    /// When the daemon takes snapshots, and how many of those it keeps.
    pub snapshots: Schedule,
}

impl Default for Rules {
    fn default() -> Rules {
        let all = Duration::from_secs(DAY as u64);
        let max = Amount::Percent(10);
        let snapshots = Schedule::default();
        Rules { none: false, all, hourly: 48, daily: 30, weekly: 12, monthly: 12, max, snapshots }
    }
}

/// The moments that the rules name, relative to one time. Memory: 8 bytes a moment.
#[derive(Clone, Debug)]
pub struct Moments {
    none: bool,
    /// All moments from here on.
    all_from: i64,
    /// Sorted.
    ends: Vec<i64>,
}

impl Rules {
    /// Returns the moments relative to `now`, in seconds since 1970.
    pub fn moments(&self, now: i64) -> Moments {
        let mut ends = Vec::new();
        let mut every = |length: i64, offset: i64, count: u32| {
            let last = (now - offset).div_euclid(length) * length + offset;
            ends.extend((0..i64::from(count.min(COUNT_MAX))).map(|i| last - i * length));
        };
        every(HOUR, 0, self.hourly);
        every(DAY, 0, self.daily);
        every(WEEK, FIRST_MONDAY, self.weekly);
        ends.extend(month_starts(now, self.monthly.min(COUNT_MAX)));
        ends.sort_unstable();
        ends.dedup();
        let all_from = now.saturating_sub(self.all.as_secs().min(i64::MAX as u64) as i64);
        Moments { none: self.none, all_from, ends }
    }
}

impl Moments {
    /// Whether a snapshot is kept that was taken at `time` and followed by the next at `next`. Snapshots are
    /// kept even if no versions are: a user took them on purpose.
    pub fn keep_snapshot(&self, time: i64, next: Option<i64>) -> bool {
        self.none || self.keep(time, next)
    }

    /// Whether a version is kept that was the content from `from` until before `until`, in seconds since
    /// 1970; until now if that is `None`.
    pub fn keep(&self, from: i64, until: Option<i64>) -> bool {
        if self.none {
            return false;
        }
        let Some(until) = until else { return true };
        // A content that lasted less than a second still existed.
        let until = until.max(from.saturating_add(1));
        until > self.all_from || {
            let next = self.ends.partition_point(|end| *end < from);
            self.ends.get(next).is_some_and(|end| *end < until)
        }
    }
}

/// Returns the starts of the last months, the present one first.
fn month_starts(now: i64, count: u32) -> impl Iterator<Item = i64> {
    let first = jiff::Timestamp::from_second(now)
        .ok()
        .map(|now| now.to_zoned(jiff::tz::TimeZone::UTC).date().first_of_month());
    (0..count).map_while(move |back| {
        let month = first?.checked_sub(jiff::Span::new().months(i64::from(back))).ok()?;
        Some(month.to_zoned(jiff::tz::TimeZone::UTC).ok()?.timestamp().as_second())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(text: &str) -> i64 {
        text.parse::<jiff::Timestamp>().unwrap().as_second()
    }

    #[test]
    fn what_was_there_at_an_end_that_is_asked_for_is_kept() {
        let now = at("2026-03-18T10:30:00Z");
        let moments = Rules::default().moments(now);
        let keep = |from: &str, until: &str| moments.keep(at(from), Some(at(until)));
        // Overwritten today, however old.
        assert!(keep("2001-01-01T00:00:00Z", "2026-03-17T11:00:00Z"));
        // Within an hour of yesterday, and across its end.
        assert!(!keep("2026-03-16T11:05:00Z", "2026-03-16T11:55:00Z"));
        assert!(keep("2026-03-16T11:05:00Z", "2026-03-16T12:00:01Z"));
        // Within a day of the last month, and across midnight.
        assert!(!keep("2026-03-01T01:00:00Z", "2026-03-01T23:59:59Z"));
        assert!(keep("2026-03-01T01:00:00Z", "2026-03-02T00:00:01Z"));
        // Across a Monday, which 2026-01-12 was, and across a Tuesday.
        assert!(keep("2026-01-11T20:00:00Z", "2026-01-12T02:00:00Z"));
        assert!(!keep("2026-01-12T20:00:00Z", "2026-01-13T02:00:00Z"));
        // Across the first of a month of the last year, and of the one before.
        assert!(keep("2025-06-30T20:00:00Z", "2025-07-01T02:00:00Z"));
        assert!(!keep("2025-02-28T20:00:00Z", "2025-03-01T02:00:00Z"));
        assert!(moments.keep(at("1999-01-01T00:00:00Z"), None), "what is there now");
        let none = Rules { none: true, ..Rules::default() }.moments(now);
        assert!(!none.keep(now, None));
    }

    proptest! {
        /// Time alone never brings a version back, and never takes one of the last `all`.
        #[test]
        fn what_is_given_up_stays_given_up(
            from in 0i64..4_000_000_000, length in 0i64..40_000_000, later in 0i64..40_000_000
        ) {
            let (until, rules) = (from + length, Rules::default());
            let kept = |now: i64| rules.moments(now).keep(from, Some(until));
            let now = until + later;
            prop_assert!(kept(until + DAY - 2));
            if !kept(now) {
                prop_assert!(!kept(now + 12_345_678), "{from} {until} {now}");
            }
        }
    }
}
