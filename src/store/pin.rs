//! Pins: a caller that is about to refer to chunks holds one, and the collector waits for older pins.
//!
//! A caller that finds a chunk stored and wants to refer to it (a commit, [`crate::store::Writer`]) holds a
//! pin from before its look-up until the collector can find its reference. The collector first makes every
//! look-up count as a use, then waits for older pins. No caller waits for the collector.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Protects everything that its holder looks up from gc until the holder has referred to it.
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
    /// Held pins, by the epoch of their creation.
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

    /// Waits until every earlier pin is gone; false if `keep_going` returned false.
    pub(super) fn wait_for_older(&self, keep_going: &mut dyn FnMut() -> bool) -> bool {
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
            if !keep_going() {
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
