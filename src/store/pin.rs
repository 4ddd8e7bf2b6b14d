//! Pins: who is about to refer to chunks says so, and the collector waits for those who began before it.
//!
//! Whoever finds that a chunk is stored already and means to refer to it (a commit, [`crate::store::Writer`])
//! holds a pin from before it looked until its reference is where the collector will find it. The collector
//! first makes every look-up count as a use, then waits for the pins that are older than that. Nobody waits
//! for the collector.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Keeps what its holder looks up from being collected before it is referred to.
pub struct Pin {
    pins: Arc<Pins>,
    epoch: u64,
}

#[derive(Default)]
pub(super) struct Pins {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    epoch: u64,
    /// Pins held, by the epoch in which they were taken.
    held: BTreeMap<u64, usize>,
}

impl Pins {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn take(self: &Arc<Self>) -> Pin {
        let mut state = self.lock();
        let epoch = state.epoch;
        *state.held.entry(epoch).or_default() += 1;
        Pin { pins: self.clone(), epoch }
    }

    /// Waits until every pin taken before this call is gone; false if `go_on` said no meanwhile.
    pub(super) fn wait_for_older(&self, go_on: &mut dyn FnMut() -> bool) -> bool {
        let mut state = self.lock();
        state.epoch += 1;
        let epoch = state.epoch;
        while state.held.range(..epoch).next().is_some() {
            state = self
                .changed
                .wait_timeout(state, Duration::from_millis(100))
                .unwrap_or_else(PoisonError::into_inner)
                .0;
            drop(state);
            if !go_on() {
                return false;
            }
            state = self.lock();
        }
        true
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        let mut state = self.pins.lock();
        if let Some(count) = state.held.get_mut(&self.epoch) {
            *count -= 1;
            if *count == 0 {
                state.held.remove(&self.epoch);
            }
        }
        self.pins.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_older_pins_are_waited_for() {
        let pins = Arc::new(Pins::default());
        let old = pins.take();
        assert!(!pins.wait_for_older(&mut || false));
        let young = pins.take();
        let waiter = std::thread::spawn({
            let pins = pins.clone();
            move || pins.wait_for_older(&mut || true)
        });
        drop(old);
        drop(young);
        assert!(waiter.join().unwrap());
        let _young = pins.take();
        // It was taken before this call, so it counts as older now.
        assert!(!pins.wait_for_older(&mut || false));
    }
}
