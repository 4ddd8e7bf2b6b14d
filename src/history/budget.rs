//! How much of the disk the history may keep, and what it gives up first when that is not enough.
//!
//! - A version is worth more the longer it was there, and less the longer that is ago: its value is the one over the
//!   other. So of versions made at a steady rate the oldest go first, and what stood for a week outlives what
//!   stood for a second.
//! - The most valuable are kept first. One that does not fit is given up, and smaller ones after it may still fit.
//!
//! Memory: 32 bytes for each version that is not the present one, only while the whole store is larger than the budget.

use super::event::EventId;
use crate::id::RecipeId;

/// A version that the rules keep and that is not the present one.
pub(super) struct Candidate {
    pub(super) event: EventId,
    pub(super) recipe: RecipeId,
    value: f64,
}

/// What may be kept, and what was.
pub(super) struct Budget {
    max: u64,
    spent: u64,
    candidates: Vec<Candidate>,
}

impl Budget {
    /// Nothing is spent of `max` bytes.
    pub(super) fn new(max: u64) -> Budget {
        Budget { max, spent: 0, candidates: Vec::new() }
    }

    /// Whether all of `bytes` may be kept: then nothing has to be chosen.
    pub(super) fn covers(&self, bytes: u64) -> bool {
        self.max >= bytes
    }

    /// Whether `bytes` more fit.
    pub(super) fn fits(&self, bytes: u64) -> bool {
        self.spent.saturating_add(bytes) <= self.max
    }

    /// Counts what is kept.
    pub(super) fn spend(&mut self, bytes: u64) {
        self.spent = self.spent.saturating_add(bytes);
    }

    /// Adds a version to be chosen from, which was the content from `from` on and until `until`; seconds since 1970.
    pub(super) fn add(&mut self, event: EventId, recipe: RecipeId, from: i64, until: i64, now: i64) {
        self.candidates.push(Candidate { event, recipe, value: value(from, until, now) });
    }

    /// Takes the versions to be chosen from out, the most valuable first; of equal ones the newest.
    pub(super) fn take_candidates(&mut self) -> Vec<Candidate> {
        let mut all = std::mem::take(&mut self.candidates);
        all.sort_by(|a, b| b.value.total_cmp(&a.value).then(b.event.cmp(&a.event)));
        all
    }
}

/// For how long it was there, over how long ago that ended; each at least a second.
fn value(from: i64, until: i64, now: i64) -> f64 {
    let seconds = |from: i64, to: i64| to.saturating_sub(from).max(1) as f64;
    seconds(from, until) / seconds(until, now)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_and_the_shortest_lived_go_first() {
        let mut budget = Budget::new(100);
        let now = 1_000_000;
        // Three a minute apart, one that stood for a week long ago, and one that stood for a second an hour ago.
        let lives = [(0, now - 180, now - 120), (1, now - 120, now - 60), (2, now - 60, now)];
        let others = [(3, now - 990_000, now - 385_000), (4, now - 3601, now - 3600)];
        for (place, from, until) in lives.into_iter().chain(others) {
            budget.add(EventId::new(0, place), RecipeId([place as u8; 16]), from, until, now);
        }
        let order: Vec<u8> = budget.take_candidates().iter().map(|one| one.recipe.0[0]).collect();
        assert_eq!(order, [2, 3, 1, 0, 4]);
    }

    #[test]
    fn what_is_spent_is_not_spent_again() {
        let mut budget = Budget::new(100);
        assert!(budget.fits(100) && !budget.fits(101));
        budget.spend(60);
        assert!(budget.fits(40) && !budget.fits(41));
        assert!(budget.covers(100) && !budget.covers(101));
    }
}
