//! Takes snapshots on schedule, in a thread of its own.
//!
//! Invariants: the thread wakes at most once a minute. It compares the wall clock with the times of the snapshots, so a
//! suspend or a clock that is set makes one late by at most [`SLEEP_MAX`]. It takes none once the mount may be gone, as
//! other programs then reach the bare directory, and ends with the overlay's threads. If snapshots fail, the log says so
//! once, until one succeeds.

use crate::admin::{self, Context};
use crate::backing::stub::Time;
use crate::history::Timer;
use crate::repo::Repo;
use crate::tree::ticks::turn;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Limits of the time between two looks at the clock. A monotonic clock stands still while the machine is suspended.
const SLEEP_MIN: Duration = Duration::from_secs(61);
const SLEEP_MAX: Duration = Duration::from_secs(300);

struct Keeper {
    repo: Weak<Repo>,
    mountpoint: PathBuf,
    timer: Timer,
    failing: bool,
    ending: Arc<AtomicBool>,
}

/// Starts the thread if the settings have a schedule. It takes no snapshot once `ending` is set.
pub(super) fn keep_schedule(repo: &Arc<Repo>, mountpoint: &Path, ending: &Arc<AtomicBool>) {
    let history = repo.history();
    let last = history.scheduled_snapshots().pop().map(|(_, last)| last.time.sec);
    let Some(timer) = Timer::new(&history.rules().snapshots, last) else { return };
    if repo.read_only() {
        tracing::warn!("{}: mounted read-only, so no scheduled snapshots are taken", mountpoint.display());
        return;
    }
    let keeper = Keeper {
        repo: Arc::downgrade(repo),
        mountpoint: mountpoint.to_owned(),
        timer,
        failing: false,
        ending: ending.clone(),
    };
    if let Err(e) = std::thread::Builder::new().name("schedule".to_owned()).spawn(move || keeper.run()) {
        tracing::error!("no scheduled snapshots will be taken: {e}");
    }
}

impl Keeper {
    fn run(mut self) {
        let mut seen = 0;
        while let Some(repo) = self.repo.upgrade() {
            turn(|| self.step(&repo));
            let now = Time::now().sec;
            let due = self.timer.due(now);
            repo.history().set_next_scheduled(due);
            let left = Duration::from_secs(due.saturating_sub(now).try_into().unwrap_or(0));
            let overlay = repo.overlay().clone();
            // A sleeping thread must not keep the store open.
            drop(repo);
            if !overlay.tree.ticks.wait(left.clamp(SLEEP_MIN, SLEEP_MAX), &mut seen) {
                return;
            }
        }
    }

    /// Takes a snapshot if one is due.
    fn step(&mut self, repo: &Repo) {
        let now = Time::now().sec;
        // The files that the last daemon left over come first, at their low priority.
        if self.timer.due(now) > now || repo.behind() || self.ends() {
            return;
        }
        // Also if this panics.
        self.timer.failed(now);
        let context = Context { repo, mountpoint: Some(&self.mountpoint) };
        match admin::take_scheduled(context, &mut |_| !self.ends()) {
            Ok(taken) => {
                self.timer.done(taken.unwrap_or(now));
                if std::mem::take(&mut self.failing) {
                    tracing::info!("snapshots are taken on schedule again");
                }
            }
            Err(_) if self.ends() => {}
            Err(e) => {
                self.timer.failed(Time::now().sec);
                if !std::mem::replace(&mut self.failing, true) {
                    tracing::warn!(
                        "no scheduled snapshot was taken: {}; the daemon tries again every hour, and `dedupctl status` \
                         shows the last one",
                        repo.readable(&e)
                    );
                }
            }
        }
    }

    fn ends(&self) -> bool {
        self.ending.load(Ordering::Acquire)
    }
}
