//! Background comparison of all files: takes minutes, runs once at a time, and keeps its last report.

use super::super::error::CliError;
use crate::admin::Progress;
use crate::query::Groups;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Progress of a comparison.
#[derive(Clone)]
pub(super) enum State {
    Running(Option<Progress>),
    Done(Arc<Groups>),
    Failed(CliError),
}

pub(super) struct Job {
    /// The smallest share that it was started with.
    pub min: f64,
    state: Mutex<State>,
    ended: Condvar,
}

impl Job {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn state(&self) -> State {
        self.lock().clone()
    }

    pub(super) fn is_running(&self) -> bool {
        matches!(*self.lock(), State::Running(_))
    }

    /// Waits until it has ended, at most for this time.
    pub(super) fn wait(&self, time: Duration) {
        let running = |state: &mut State| matches!(state, State::Running(_));
        drop(self.ended.wait_timeout_while(self.lock(), time, running));
    }
}

/// The last comparison, if there was one.
#[derive(Default)]
pub(super) struct Jobs(Mutex<Option<Arc<Job>>>);

impl Jobs {
    fn lock(&self) -> MutexGuard<'_, Option<Arc<Job>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn last(&self) -> Option<Arc<Job>> {
        self.lock().clone()
    }

    /// Starts a comparison unless one is running. Returns the running one.
    pub(super) fn start(
        &self,
        min: f64,
        work: impl FnOnce(&mut dyn FnMut(Progress)) -> Result<Groups, CliError> + Send + 'static,
    ) -> Result<Arc<Job>, CliError> {
        let mut last = self.lock();
        if let Some(running) = last.as_ref().filter(|job| job.is_running()) {
            return Ok(running.clone());
        }
        let job = Arc::new(Job { min, state: Mutex::new(State::Running(None)), ended: Condvar::new() });
        let own = job.clone();
        let run = move || {
            let done = work(&mut |step| *own.lock() = State::Running(Some(step)));
            *own.lock() = match done {
                Ok(report) => State::Done(Arc::new(report)),
                Err(e) => State::Failed(e),
            };
            own.ended.notify_all();
        };
        let started = std::thread::Builder::new().name("groups".to_owned()).spawn(run);
        started.map_err(|e| CliError::new(format!("start a thread: {e}")))?;
        *last = Some(job.clone());
        Ok(job)
    }
}
