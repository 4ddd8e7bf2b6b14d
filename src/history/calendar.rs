//! Lengths of calendar periods, in seconds. Hours, days, weeks and months are in UTC; a week begins on Monday.

pub(super) const HOUR: i64 = 3600;
pub(super) const DAY: i64 = 24 * HOUR;
pub(super) const WEEK: i64 = 7 * DAY;
/// 1970-01-05 was a Monday.
pub(super) const FIRST_MONDAY: i64 = 4 * DAY;
