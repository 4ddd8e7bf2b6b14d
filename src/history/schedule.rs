//! The schedule of snapshots: when the next one is due, and which ones stay. Pure.
//!
//! Invariants: a scheduled snapshot is known by its name, which is made of its time, so its stored form is that of any
//! snapshot. The schedule removes no other. The last one taken stays, whatever the clock says.

use super::calendar::{DAY, FIRST_MONDAY, HOUR, WEEK};
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// The beginning of the names of scheduled snapshots.
pub(super) const NAME_PREFIX: &str = "scheduled-";
/// Limit of snapshots of one class: a century of days.
const COUNT_MAX: u32 = 36_525;

/// A calendar period in UTC. The schedule keeps a snapshot of each of the last ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Class {
    Hourly,
    Daily,
    /// A week begins on Monday.
    Weekly,
    Monthly,
    Yearly,
}

/// All classes, the shortest period first.
const CLASSES: [Class; 5] = [Class::Hourly, Class::Daily, Class::Weekly, Class::Monthly, Class::Yearly];

impl Class {
    fn name(self) -> &'static str {
        match self {
            Class::Hourly => "hourly",
            Class::Daily => "daily",
            Class::Weekly => "weekly",
            Class::Monthly => "monthly",
            Class::Yearly => "yearly",
        }
    }

    /// Returns the seconds from one snapshot to the next. No month or year is without one.
    fn interval(self) -> i64 {
        match self {
            Class::Hourly => HOUR,
            Class::Daily => DAY,
            Class::Weekly => WEEK,
            Class::Monthly => 28 * DAY,
            Class::Yearly => 364 * DAY,
        }
    }

    /// Returns the number of the period with this time.
    fn period(self, time: i64) -> i64 {
        match self {
            Class::Hourly => time.div_euclid(HOUR),
            Class::Daily => time.div_euclid(DAY),
            Class::Weekly => (time - FIRST_MONDAY).div_euclid(WEEK),
            Class::Monthly | Class::Yearly => {
                let Ok(time) = jiff::Timestamp::from_second(time) else { return 0 };
                let date = time.to_zoned(jiff::tz::TimeZone::UTC).date();
                match self {
                    Class::Yearly => i64::from(date.year()),
                    _ => i64::from(date.year()) * 12 + i64::from(date.month()),
                }
            }
        }
    }
}

/// When snapshots are taken, and how many of each class stay. Without a class none are taken.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Schedule {
    counts: BTreeMap<Class, u32>,
}

/// The text of a schedule is not valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadSchedule;

impl FromStr for Schedule {
    type Err = BadSchedule;

    /// Reads `hourly:24 daily:7 weekly:4`. An empty text is a schedule without snapshots.
    fn from_str(text: &str) -> Result<Schedule, BadSchedule> {
        let mut counts = BTreeMap::new();
        for word in text.split_whitespace() {
            let (name, count) = word.split_once(':').ok_or(BadSchedule)?;
            let class = CLASSES.into_iter().find(|class| class.name() == name).ok_or(BadSchedule)?;
            let count = count.parse().ok().filter(|count| (1..=COUNT_MAX).contains(count));
            if counts.insert(class, count.ok_or(BadSchedule)?).is_some() {
                return Err(BadSchedule);
            }
        }
        Ok(Schedule { counts })
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words: Vec<_> =
            self.counts.iter().map(|(class, count)| format!("{}:{count}", class.name())).collect();
        f.write_str(&words.join(" "))
    }
}

impl Schedule {
    /// Whether it takes no snapshots.
    pub fn is_empty(&self) -> bool {
        self.counts.is_empty()
    }

    /// Returns which of the snapshots with these times stay; they are in the order in which they were taken. Each class
    /// keeps the newest of each of its last periods that have one. The last one taken stays too.
    pub fn keep(&self, times: &[i64]) -> Vec<bool> {
        let mut keep = vec![false; times.len()];
        // By time: a clock may have been set back.
        let mut newest_first: Vec<usize> = (0..times.len()).collect();
        newest_first.sort_by_key(|&i| std::cmp::Reverse((times[i], i)));
        for (&class, &count) in &self.counts {
            let (mut left, mut last) = (count, None);
            for &i in &newest_first {
                let period = class.period(times[i]);
                if last == Some(period) {
                    continue;
                }
                if left == 0 {
                    break;
                }
                (left, last) = (left - 1, Some(period));
                keep[i] = true;
            }
        }
        if let Some(last) = keep.last_mut() {
            *last = true;
        }
        keep
    }
}

/// Says when the next snapshot is due, by the wall clock, which may be set at any time. Times are in seconds since 1970.
#[derive(Clone, Debug)]
pub struct Timer {
    interval: i64,
    /// The interval counts from then; `None` if there was no snapshot.
    from: Option<i64>,
}

impl Timer {
    /// Starts from the last scheduled snapshot. `None` if the schedule takes none.
    pub fn new(schedule: &Schedule, last: Option<i64>) -> Option<Timer> {
        let interval = schedule.counts.keys().next()?.interval();
        Some(Timer { interval, from: last })
    }

    /// Returns when the next one is due. If the last one is in the future, the clock was set back: the interval then
    /// counts from now.
    pub fn due(&mut self, now: i64) -> i64 {
        if self.from.is_some_and(|from| from > now) {
            self.from = Some(now);
        }
        self.from.map_or(now, |from| from.saturating_add(self.interval))
    }

    /// Notes that one was taken, or that nothing had changed.
    pub fn done(&mut self, time: i64) {
        self.from = Some(time);
    }

    /// Notes that none could be taken: the next try comes after an hour.
    pub fn failed(&mut self, now: i64) {
        self.from = Some(now - self.interval + HOUR.min(self.interval));
    }
}

/// Returns the name of a scheduled snapshot that was taken at `time`.
pub(super) fn name_at(time: i64) -> String {
    match jiff::Timestamp::from_second(time) {
        Ok(time) => time.strftime("scheduled-%Y-%m-%d-%H%M%S").to_string(),
        Err(_) => format!("{NAME_PREFIX}{time}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(text: &str) -> i64 {
        text.parse::<jiff::Timestamp>().unwrap().as_second()
    }

    fn kept(schedule: &str, times: &[i64]) -> Vec<i64> {
        let keep = schedule.parse::<Schedule>().unwrap().keep(times);
        times.iter().zip(keep).filter_map(|(time, keep)| keep.then_some(*time)).collect()
    }

    #[test]
    fn names_have_the_time() {
        assert_eq!(name_at(at("2026-11-26T16:00:05Z")), "scheduled-2026-11-26-160005");
        assert!(name_at(i64::MAX).starts_with(NAME_PREFIX));
    }

    #[test]
    fn each_class_keeps_the_newest_of_its_last_periods() {
        let hours = |n: i64| (0..n).map(|i| at("2026-11-01T00:10:00Z") + i * HOUR).collect::<Vec<_>>();
        // 2026-11-01 is a Sunday; the last one is of Thursday, 2026-11-26, 16:10.
        let all = hours(25 * 24 + 17);
        assert_eq!(kept("hourly:3", &all), all[all.len() - 3..]);
        let text = |times: Vec<i64>| -> Vec<String> {
            times.into_iter().map(|time| name_at(time)["scheduled-2026-".len()..].to_owned()).collect()
        };
        assert_eq!(
            text(kept("hourly:2 daily:3 weekly:4 monthly:2 yearly:5", &all)),
            [
                "11-08-231000",
                "11-15-231000",
                "11-22-231000",
                "11-24-231000",
                "11-25-231000",
                "11-26-151000",
                "11-26-161000"
            ]
        );
        // One that two classes keep counts for both.
        assert_eq!(text(kept("daily:1 weekly:1", &all)), ["11-26-161000"]);
        assert_eq!(
            text(kept("monthly:1", &[at("2026-10-31T23:59:59Z"), at("2026-11-01T00:00:00Z")])),
            ["11-01-000000"]
        );
        assert_eq!(kept("yearly:2", &[1, at("2025-12-31T23:59:59Z"), at("2026-01-01T00:00:00Z")]).len(), 2);
    }

    /// A machine that was off for months keeps its last 24 hours of work.
    #[test]
    fn periods_without_a_snapshot_do_not_count() {
        let old: Vec<i64> = (0..10).map(|i| at("2026-01-05T08:00:00Z") + i * HOUR).collect();
        let all = [&old[..], &[at("2026-11-26T16:00:00Z")]].concat();
        assert_eq!(kept("hourly:11", &all), all);
        assert_eq!(kept("hourly:10", &all), all[1..]);
    }

    /// Times in the future come from a clock that was set back. They do not push out the present.
    #[test]
    fn the_last_one_taken_stays() {
        let now = at("2026-11-26T16:00:00Z");
        assert_eq!(kept("hourly:1", &[now + DAY, now - HOUR, now]), [now + DAY, now]);
        assert!(kept("hourly:1", &[]).is_empty());
    }

    proptest! {
        /// Removing some changes nothing about the rest, and each class keeps as many as it says.
        #[test]
        fn removal_is_stable(steps in prop::collection::vec(0i64..200_000, 0..60), h in 1u32..30, d in 1u32..9) {
            let times: Vec<i64> = steps.iter().scan(0, |at, step| { *at += step; Some(*at) }).collect();
            let schedule = format!("hourly:{h} daily:{d} monthly:2");
            let stays = kept(&schedule, &times);
            prop_assert_eq!(kept(&schedule, &stays), stays.clone());
            let mut hours: Vec<i64> = times.iter().map(|time| time.div_euclid(HOUR)).collect();
            hours.dedup();
            prop_assert!(stays.len() >= hours.len().min(h as usize));
            prop_assert!(stays.len() <= (h + d + 2) as usize + 1);
        }
    }

    #[test]
    fn one_is_due_after_the_shortest_interval() {
        let schedule: Schedule = "daily:7 hourly:24".parse().unwrap();
        assert!(Timer::new(&Schedule::default(), None).is_none());
        let now = at("2026-11-26T16:00:00Z");
        assert_eq!(Timer::new(&schedule, None).unwrap().due(now), now, "there is none");
        let mut timer = Timer::new(&schedule, Some(now - 600)).unwrap();
        assert_eq!(timer.due(now), now + HOUR - 600);
        // After a suspend, or a clock that was set forward, it is due at once, and only once.
        let later = now + 9 * DAY;
        assert!(timer.due(later) < later);
        timer.done(later);
        assert_eq!(timer.due(later), later + HOUR);
        let mut daily = Timer::new(&"daily:7".parse().unwrap(), Some(now)).unwrap();
        daily.failed(now + DAY);
        assert_eq!(daily.due(now + DAY), now + DAY + HOUR, "another try");
    }

    #[test]
    fn a_time_in_the_future_counts_from_now() {
        let now = at("2026-11-26T16:00:00Z");
        let mut timer = Timer::new(&"hourly:24".parse().unwrap(), Some(now + 50 * DAY)).unwrap();
        assert_eq!(timer.due(now), now + HOUR);
        assert_eq!(timer.due(now + 300), now + HOUR, "not from each check");
        // The clock was set back while the daemon runs.
        timer.done(now);
        assert_eq!(timer.due(now - DAY), now - DAY + HOUR);
    }
}
