use rustix::thread::{current_timer_slack, set_current_timer_slack};
use std::num::NonZeroU64;
use std::pin::pin;
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Waker};
use std::time::Duration;

/// How late sled's threads may wake up if they have no work.
pub(super) const SLACK: Duration = Duration::from_secs(60);

static STARTED: Mutex<bool> = Mutex::new(false);

/// Starts sled's threads if they do not run yet: `open` opens a database.
///
/// sled has seven threads per process, which wait for work and look around once a second: 420 wake-ups in a minute
/// without any work. Threads inherit the timer slack of the thread that starts them. With a slack of a minute an
/// idle processor is not woken for them; work wakes them at once, as before.
pub(super) fn start_by(open: impl FnOnce() -> sled::Result<sled::Db>) -> sled::Result<sled::Db> {
    let mut started = STARTED.lock().unwrap_or_else(PoisonError::into_inner);
    if *started {
        drop(started);
        return open();
    }
    let _slack = Slack::set(SLACK);
    let db = open()?;
    // The threads are started by the first work for them. It goes on although this thread does not wait for it.
    let _ = pin!(db.flush_async()).poll(&mut Context::from_waker(Waker::noop()));
    *started = true;
    Ok(db)
}

/// The timer slack of this thread; the former one is restored when this is dropped.
struct Slack(Option<NonZeroU64>);

impl Slack {
    fn set(slack: Duration) -> Slack {
        let former = current_timer_slack().ok().and_then(NonZeroU64::new);
        // Without it threads wake up as often as before.
        let _ = set_current_timer_slack(NonZeroU64::new(slack.as_nanos() as u64));
        Slack(former)
    }
}

impl Drop for Slack {
    fn drop(&mut self) {
        let _ = set_current_timer_slack(self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::db::{Db, SledDb};
    use std::path::Path;

    /// Returns the timer slacks of this process's threads of sled, in ns; root may see them.
    fn slacks() -> Vec<u64> {
        let mut slacks = Vec::new();
        for task in std::fs::read_dir("/proc/self/task").unwrap() {
            // Only directly below /proc has a thread all its files.
            let thread = Path::new("/proc").join(task.unwrap().file_name());
            let read = |name| std::fs::read_to_string(thread.join(name)).unwrap_or_default();
            if read("comm").starts_with("sled-io-") {
                slacks.extend(read("timerslack_ns").trim().parse::<u64>());
            }
        }
        slacks
    }

    #[test]
    fn threads_that_wait_do_not_wake_an_idle_machine() {
        let own = current_timer_slack().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let db = SledDb::open(dir.path(), 1 << 20).unwrap();
        db.flush().unwrap();
        assert_eq!(current_timer_slack().unwrap(), own, "of the thread that opened the database");
        if rustix::process::geteuid().is_root() {
            let lazy = slacks().into_iter().filter(|slack| u128::from(*slack) == SLACK.as_nanos()).count();
            assert!(lazy >= 7, "{:?}", slacks());
        }
    }
}
