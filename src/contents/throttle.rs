//! The speed of conversions, so that programs do not notice them: a rate that the user may set, on
//! low-priority threads.
//!
//! Conversions run at full speed while a command (`settle`, `unmount`, `scan`) waits for them.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Unused rate is kept for this long, so that bursts are not slower than the rate allows.
const BURST: Duration = Duration::from_millis(250);
/// A caller that begins to wait is delayed by a pause for no longer than this.
const NAP: Duration = Duration::from_millis(20);
const ROUND_SECONDS: u64 = 2;
const PORTIONS_PER_SECOND: u64 = 8;
/// Nice value of threads that work in the background.
const NICE: i32 = 19;

/// Decides when background work continues.
#[derive(Default)]
pub struct Throttle {
    /// Bytes a second; no limit if not set.
    rate: Option<u64>,
    /// Time up to which the bytes read so far use the rate.
    paid: Mutex<Option<Instant>>,
    /// Number of callers that wait for the work.
    awaited: AtomicUsize,
    ended: AtomicBool,
}

/// While this is held, a caller waits.
pub struct Hurry<'a>(&'a Throttle);

impl Drop for Hurry<'_> {
    fn drop(&mut self) {
        self.0.awaited.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Throttle {
    /// Allows at most `rate` bytes a second.
    pub fn new(rate: Option<u64>) -> Throttle {
        Throttle { rate, ..Throttle::default() }
    }

    /// Bytes a second, if there is a limit.
    pub fn rate(&self) -> Option<u64> {
        self.rate
    }

    /// Returns how many bytes a round takes of the `most` that it may: with a rate limit only those of a few seconds, because
    /// no collection can begin before its end.
    pub fn round_bytes(&self, most: u64) -> u64 {
        match self.rate.filter(|_| self.is_background()) {
            Some(rate) => rate.saturating_mul(ROUND_SECONDS).min(most),
            None => most,
        }
    }

    /// Returns how many of `most` bytes to read at a time: few if there is a limit, so that a program gets the file soon.
    pub fn portion(&self, most: usize) -> usize {
        match self.rate.filter(|_| self.is_background()) {
            Some(rate) => ((rate / PORTIONS_PER_SECOND) as usize).clamp(1, most),
            None => most,
        }
    }

    /// Allows full speed until the result is dropped.
    pub fn hurry(&self) -> Hurry<'_> {
        self.awaited.fetch_add(1, Ordering::AcqRel);
        Hurry(self)
    }

    /// Allows full speed from now on.
    pub fn end(&self) {
        self.ended.store(true, Ordering::Release);
    }

    /// Returns whether work has low priority.
    pub fn is_background(&self) -> bool {
        self.awaited.load(Ordering::Acquire) == 0 && !self.ended.load(Ordering::Acquire)
    }

    /// Records that `bytes` were read, and waits until the next bytes may be read.
    pub fn spend(&self, bytes: u64) {
        let Some(rate) = self.rate else { return };
        let due = {
            let mut paid = self.paid.lock().unwrap_or_else(PoisonError::into_inner);
            let now = Instant::now();
            let from = paid.unwrap_or(now).max(now.checked_sub(BURST).unwrap_or(now));
            let due = from + Duration::from_secs_f64(bytes as f64 / rate.max(1) as f64);
            // Bytes read while a caller waited do not delay later reads.
            *paid = Some(if self.is_background() { due } else { now });
            due
        };
        while self.is_background() {
            let left = due.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            std::thread::sleep(left.min(NAP));
        }
    }
}

/// The priority of the thread that owns this.
#[derive(Default)]
pub struct Priority {
    /// The nice value to restore, while it is low.
    before: Option<i32>,
}

impl Priority {
    /// Sets whether the thread has low priority, as far as the kernel allows: raising it needs privilege, so an ordinary
    /// user's thread stays low.
    pub fn set_low(&mut self, low: bool) {
        if low == self.before.is_some() {
            return;
        }
        let thread = Some(rustix::thread::gettid());
        let now = rustix::process::getpriority_process(thread).unwrap_or(0);
        let nice = self.before.unwrap_or(NICE.max(now));
        if rustix::process::setpriority_process(thread, nice).is_ok() {
            self.before = low.then_some(now);
        }
        set_io_priority(low);
    }
}

/// Sets low priority for disk I/O. Only some I/O schedulers support it.
fn set_io_priority(low: bool) {
    const WHO_PROCESS: libc::c_int = 1;
    const CLASS_SHIFT: u32 = 13;
    const BEST_EFFORT: libc::c_int = 2 << CLASS_SHIFT;
    let priority = if low { BEST_EFFORT | 7 } else { BEST_EFFORT | 4 };
    // SAFETY: the call takes plain numbers and changes only this thread.
    unsafe { libc::syscall(libc::SYS_ioprio_set, WHO_PROCESS, 0, priority) };
}

#[cfg(test)]
mod tests {
    use crate::contents::throttle::*;

    #[test]
    fn a_rate_is_kept_and_hurry_ends_the_waiting() {
        let throttle = Throttle::new(Some(1 << 20));
        let start = Instant::now();
        // The first quarter of a second is free at most.
        (0..16).for_each(|_| throttle.spend(64 << 10));
        assert!(start.elapsed() >= Duration::from_millis(700), "{:?}", start.elapsed());
        let throttle = Throttle::new(Some(1));
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| throttle.spend(1 << 20));
            std::thread::sleep(Duration::from_millis(50));
            assert!(!waiting.is_finished());
            let hurry = throttle.hurry();
            waiting.join().unwrap();
            throttle.spend(1 << 20);
            drop(hurry);
        });
        assert!(throttle.is_background());
        throttle.end();
        throttle.spend(1 << 20);
    }

    #[test]
    fn priority_of_the_own_thread_only() {
        let nice = || rustix::process::getpriority_process(Some(rustix::thread::gettid())).unwrap();
        let before = nice();
        std::thread::spawn(move || {
            let mut priority = Priority::default();
            priority.set_low(true);
            assert_eq!(nice(), NICE);
            priority.set_low(false);
            assert!(priority.before.is_some() || nice() == before, "given back, or still known to be low");
        })
        .join()
        .unwrap();
        assert_eq!(nice(), before);
    }
}
