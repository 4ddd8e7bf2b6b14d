//! The disk budget of the history, and the choice of versions to drop when it is exceeded.
//!
//! - The value of a version is its lifetime divided by its age. So among versions made at a steady rate the
//!   oldest are dropped first, and a version that lasted a week outlives one that lasted a second.
//! - The most valuable versions are kept first. A version that does not fit is dropped; smaller ones after it
//!   may still fit.
//!
//! Memory: 32 bytes for each former version, only while the whole store exceeds the budget.

use super::event::EventId;
use crate::id::RecipeId;

/// A former version that the rules keep.
pub(super) struct Candidate {
    pub(super) event: EventId,
    pub(super) recipe: RecipeId,
    value: f64,
}

/// Limit and use of the budget.
pub(super) struct Budget {
    max: u64,
    spent: u64,
    candidates: Vec<Candidate>,
}

impl Budget {
    /// Creates an unused budget of `max` bytes.
    pub(super) fn new(max: u64) -> Budget {
        Budget { max, spent: 0, candidates: Vec::new() }
    }

    /// Whether all of `bytes` may be kept: then nothing must be chosen.
    pub(super) fn covers(&self, bytes: u64) -> bool {
        self.max >= bytes
    }

    /// Whether `bytes` more fit.
    pub(super) fn fits(&self, bytes: u64) -> bool {
        self.spent.saturating_add(bytes) <= self.max
    }

    /// Counts kept bytes.
    pub(super) fn spend(&mut self, bytes: u64) {
        self.spent = self.spent.saturating_add(bytes);
    }

    /// Adds a candidate that was the content from `from` until `until`, in seconds since 1970.
    pub(super) fn add(&mut self, event: EventId, recipe: RecipeId, from: i64, until: i64, now: i64) {
        self.candidates.push(Candidate { event, recipe, value: value(from, until, now) });
    }

    /// Takes the candidates, the most valuable first, and the newest first among equals.
    pub(super) fn take_candidates(&mut self) -> Vec<Candidate> {
        let mut all = std::mem::take(&mut self.candidates);
        all.sort_by(|a, b| b.value.total_cmp(&a.value).then(b.event.cmp(&a.event)));
        all
    }
}

/// Returns the lifetime divided by the time since its end; each at least a second.
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
