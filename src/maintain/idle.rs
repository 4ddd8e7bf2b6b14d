//! Since when the store has rested.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long the store has not changed.
#[derive(Default)]
pub(crate) struct Idle(Mutex<State>);

#[derive(Default)]
struct State {
    /// How long the store must rest before chunks are grouped; `None` for never.
    rest: Option<Duration>,
    /// Unique bytes, and since when their number has not changed.
    since: Option<(u64, Instant)>,
}

impl Idle {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets how long the store must rest; `None` for never.
    pub(crate) fn set_rest(&self, rest: Option<Duration>) {
        self.lock().rest = rest;
    }

    /// Returns whether the store, which has `unique_bytes` now, has rested for long enough. It does not rest while it is
    /// `busy`.
    pub(crate) fn has_rested(&self, unique_bytes: u64, busy: bool) -> bool {
        let mut state = self.lock();
        let Some(rest) = state.rest else { return false };
        match state.since {
            Some((bytes, since)) if bytes == unique_bytes && !busy => since.elapsed() >= rest,
            _ => {
                state.since = Some((unique_bytes, Instant::now()));
                false
            }
        }
    }
}
