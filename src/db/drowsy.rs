//! Threads whose timers may go off late.
//!
//! sled keeps seven threads that look for work each second, and one that writes. A thread inherits the timer slack of the one
//! that starts it (prctl(2), `PR_SET_TIMERSLACK`): with much of it, the kernel lets those timers go off with others, and does not wake an idle
//! processor up for them. Work that is given to such a thread wakes it up at once, as before.

use rustix::thread::set_current_timer_slack;
use std::num::NonZeroU64;

/// In nanoseconds.
const SLACK: Option<NonZeroU64> = NonZeroU64::new(20_000_000_000);

/// Runs `work`. Timers of the threads that it starts may go off 20 s late while the processor is idle.
pub(super) fn with_drowsy_threads<T>(work: impl FnOnce() -> T) -> T {
    // Where slack cannot be set, timers are on time.
    let is_set = set_current_timer_slack(SLACK).is_ok();
    let result = work();
    if is_set {
        // Back to what this thread was started with.
        let _ = set_current_timer_slack(None);
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    /// prctl returns an int, which is too short for it.
    fn slack() -> u64 {
        let thread = rustix::thread::gettid().as_raw_nonzero();
        std::fs::read_to_string(format!("/proc/{thread}/timerslack_ns")).unwrap().trim().parse().unwrap()
    }

    #[test]
    fn only_threads_that_are_started_within_have_slack() {
        let before = slack();
        let within = with_drowsy_threads(|| std::thread::spawn(slack).join().unwrap());
        assert_eq!(within, SLACK.unwrap().get());
        assert_eq!(slack(), before);
    }
}
