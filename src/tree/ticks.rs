//! Timing of background threads: at an interval, less often while nothing happens, and never after the end.
//!
//! An idle mount on a laptop should not wake the processor: a thread without news since its last turn waits
//! for up to [`QUIET`], and returns to its interval as soon as something happens ([`Ticks::stir`]).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A turn comes at least this often, also while nothing happens: other programs can fill the disk.
const QUIET: Duration = Duration::from_secs(30);

/// State of the timing; see the module.
#[derive(Default)]
pub(crate) struct Ticks {
    stopped: AtomicBool,
    /// Counts events, and changes under way whose end is not reported: writes that bypass this process.
    stirs: AtomicU64,
    busy: AtomicU64,
    /// Whether a thread waits for something to happen.
    quiet: AtomicBool,
    lock: Mutex<()>,
    changed: Condvar,
}

impl Ticks {
    /// Records an event that may mean work for background threads. Costs two atomic operations.
    pub(crate) fn stir(&self) {
        self.stirs.fetch_add(1, Ordering::SeqCst);
        if self.quiet.load(Ordering::SeqCst) {
            let _guard = self.guard();
            self.quiet.store(false, Ordering::SeqCst);
            self.changed.notify_all();
        }
    }

    /// Records that a file was opened for writing: events happen until [`Ticks::end_writing`].
    pub(crate) fn begin_writing(&self) {
        self.busy.fetch_add(1, Ordering::SeqCst);
        self.stir();
    }

    /// Undoes one [`Ticks::begin_writing`].
    pub(crate) fn end_writing(&self) {
        self.busy.fetch_sub(1, Ordering::SeqCst);
        self.stir();
    }

    /// Waits for `interval`, and longer while nothing happens; false once the thread must end. `seen` is the caller's, 0 at first.
    pub(crate) fn wait(&self, interval: Duration, seen: &mut u64) -> bool {
        self.wait_quietly(interval, QUIET, seen)
    }

    fn wait_quietly(&self, interval: Duration, quiet: Duration, seen: &mut u64) -> bool {
        let mut guard = self.wait_until(self.guard(), Instant::now() + interval, |ticks| ticks.stopped());
        let until = Instant::now() + quiet.saturating_sub(interval);
        if self.is_quiet(*seen) {
            self.quiet.store(true, Ordering::SeqCst);
            let seen = *seen;
            guard = self.wait_until(guard, until, |ticks| ticks.stopped() || !ticks.is_quiet(seen));
            if !self.is_quiet(seen) {
                // A change that began just now gets the time that it would have had.
                guard = self.wait_until(guard, Instant::now() + interval, |ticks| ticks.stopped());
            }
        }
        drop(guard);
        *seen = self.stirs.load(Ordering::SeqCst);
        !self.stopped()
    }

    fn is_quiet(&self, seen: u64) -> bool {
        self.stirs.load(Ordering::SeqCst) == seen && self.busy.load(Ordering::SeqCst) == 0
    }

    fn wait_until<'a>(
        &'a self,
        mut guard: MutexGuard<'a, ()>,
        until: Instant,
        done: impl Fn(&Ticks) -> bool,
    ) -> MutexGuard<'a, ()> {
        while !done(self) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            guard = self.changed.wait_timeout(guard, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        guard
    }

    /// Returns whether threads must end.
    pub(crate) fn stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    /// Ends all waiting, now and from now on.
    pub(crate) fn stop(&self) {
        let _guard = self.guard();
        self.stopped.store(true, Ordering::Release);
        self.changed.notify_all();
    }

    fn guard(&self) -> MutexGuard<'_, ()> {
        self.lock.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Does one turn of a background thread's work. A panic ends the turn, not the thread; the next turn does the rest.
pub(crate) fn turn(work: impl FnOnce()) {
    if std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).is_err() {
        let thread = std::thread::current();
        tracing::error!("thread {} panicked, and goes on", thread.name().unwrap_or_default());
    }
}

#[cfg(test)]
mod tests {
    use crate::tree::ticks::*;
    use std::sync::Arc;
    use std::sync::mpsc::{Receiver, channel};

    const LONG: Duration = Duration::from_secs(20);

    /// A thread that tells of each of its turns.
    fn turns(ticks: &Arc<Ticks>, interval: Duration, quiet: Duration) -> Receiver<()> {
        let (tell, told) = channel();
        let ticks = ticks.clone();
        std::thread::spawn(move || {
            let mut seen = 0;
            while ticks.wait_quietly(interval, quiet, &mut seen) && tell.send(()).is_ok() {}
        });
        told
    }

    #[test]
    fn turns_wait_while_nothing_happens_and_come_when_something_does() {
        let ticks = Arc::new(Ticks::default());
        let told = turns(&ticks, Duration::from_millis(5), 10 * LONG);
        assert!(told.recv_timeout(Duration::from_millis(200)).is_err(), "nothing happened");
        for _ in 0..3 {
            ticks.stir();
            told.recv_timeout(LONG).expect("a turn after something happened");
            assert!(told.recv_timeout(Duration::from_millis(200)).is_err(), "that was all");
        }
        ticks.begin_writing();
        (0..20).for_each(|_| told.recv_timeout(LONG).expect("turns while a file is being written"));
        ticks.end_writing();
        ticks.stop();
        while told.recv_timeout(LONG).is_ok() {}
    }

    #[test]
    fn a_turn_comes_though_nothing_happens() {
        let ticks = Arc::new(Ticks::default());
        let told = turns(&ticks, Duration::from_millis(5), Duration::from_millis(100));
        (0..3).for_each(|_| told.recv_timeout(LONG).expect("a turn"));
        ticks.stop();
    }
}
