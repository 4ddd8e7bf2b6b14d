//! Counts of changes, for callers that wait for the next one.
//!
//! Invariant: a change is counted after it was done. So a caller that reads the counts, then looks at the tree, then waits
//! for other counts, misses none.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Changes noted.
    pub changes: u64,
    /// Files opened for writing: from then on they can change unseen.
    pub opens: u64,
}

#[derive(Default)]
struct State {
    counts: Counts,
    waiting: usize,
    ended: bool,
}

/// See the module.
#[derive(Default)]
pub(crate) struct News {
    state: Mutex<State>,
    came: Condvar,
}

impl News {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count(&self, count: impl FnOnce(&mut Counts)) {
        let mut state = self.lock();
        count(&mut state.counts);
        if state.waiting > 0 {
            self.came.notify_all();
        }
    }

    pub(crate) fn changed(&self) {
        self.count(|counts| counts.changes += 1);
    }

    pub(crate) fn opened(&self) {
        self.count(|counts| counts.opens += 1);
    }

    /// Ends all waits, now and later.
    pub(crate) fn end(&self) {
        self.lock().ended = true;
        self.came.notify_all();
    }

    pub(crate) fn counts(&self) -> Counts {
        self.lock().counts
    }

    /// Waits for counts other than `seen`, at most `time`. Returns `None` after [`News::end`].
    pub(crate) fn wait(&self, seen: Counts, time: Duration) -> Option<Counts> {
        let mut state = self.lock();
        state.waiting += 1;
        let same = |state: &mut State| !state.ended && state.counts == seen;
        let (mut state, _) =
            self.came.wait_timeout_while(state, time, same).unwrap_or_else(PoisonError::into_inner);
        state.waiting -= 1;
        (!state.ended).then_some(state.counts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_ends_with_a_change_or_with_the_tree() {
        let news = News::default();
        let none = news.counts();
        assert_eq!(news.wait(none, Duration::from_millis(1)), Some(none));
        let long = Duration::from_secs(600);
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| news.wait(none, long));
            news.changed();
            assert_eq!(waiter.join().unwrap(), Some(Counts { changes: 1, opens: 0 }));
            let waiter = scope.spawn(|| news.wait(news.counts(), long));
            news.end();
            assert!(waiter.join().unwrap().is_none() || news.counts().changes > 1);
            assert_eq!(news.wait(news.counts(), long), None);
        });
    }
}
