//! Write-back errors of an open file, kept until each of its handles has reported them.
//!
//! Linux reports a write-back error once to each descriptor that was open when it happened. All handles of an inode share
//! one descriptor here, so the kernel reports an error to this process once, and this process reports it to each handle.
//!
//! Invariants:
//! - A sync of a handle succeeds only if no error happened since the handle was opened, or the handle has reported the last one.
//! - A handle reports an error once.
//! - Syncs run in parallel. A successful one waits for those that run with it: the kernel may have given one of them an
//!   error that belongs to both.

use crate::contents::error::Result;
use rustix::io::Errno;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// The errors of one inode while it is open.
#[derive(Default)]
pub struct WriteErrors {
    state: Mutex<State>,
    ended: Condvar,
}

/// How many errors a handle has reported, or need not report because they are older than it.
pub struct Seen(AtomicU64);

#[derive(Default)]
struct State {
    errors: u64,
    last: Option<Errno>,
    /// The number of the next sync.
    next: u64,
    /// Syncs under way.
    running: Vec<u64>,
}

/// A sync under way; it ends when this is dropped.
struct Running<'a> {
    of: &'a WriteErrors,
    number: u64,
}

impl WriteErrors {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a new handle: errors that another handle has reported already are not its own.
    pub fn open(&self) -> Seen {
        Seen(AtomicU64::new(self.lock().errors))
    }

    /// Keeps an error for all handles.
    pub fn keep(&self, error: Errno) {
        let mut state = self.lock();
        state.errors += 1;
        state.last = Some(error);
    }

    /// Keeps the error of a write that also synced, if it means that earlier writes are lost.
    pub fn keep_lost(&self, error: Errno) {
        if error == Errno::IO {
            self.keep(error);
        }
    }

    /// Runs a sync of a handle; returns its error, or one that another handle's sync got before.
    pub fn sync(&self, seen: &Seen, sync: impl FnOnce() -> Result<()>) -> Result<()> {
        let running = self.begin();
        let result = sync();
        if let Err(e) = &result {
            self.keep(e.number());
        }
        drop(running);
        let state = self.lock();
        let until = state.next;
        let state = self.ended.wait_while(state, |state| state.running.iter().any(|number| *number < until));
        let state = state.unwrap_or_else(PoisonError::into_inner);
        let is_new = seen.0.swap(state.errors, Ordering::Relaxed) != state.errors;
        result?;
        state.last.filter(|_| is_new).map_or(Ok(()), |error| Err(error.into()))
    }

    fn begin(&self) -> Running<'_> {
        let mut state = self.lock();
        let number = state.next;
        state.next += 1;
        state.running.push(number);
        Running { of: self, number }
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.of.lock().running.retain(|number| *number != self.number);
        self.of.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    fn fails() -> Result<()> {
        Err(Errno::IO.into())
    }

    fn sync(errors: &WriteErrors, handle: &Seen, sync: impl FnOnce() -> Result<()>) -> Option<Errno> {
        errors.sync(handle, sync).err().map(|e| e.number())
    }

    #[test]
    fn each_handle_is_given_an_error_once() {
        let errors = WriteErrors::default();
        let [a, b] = [errors.open(), errors.open()];
        assert_eq!(sync(&errors, &a, fails), Some(Errno::IO));
        let later = errors.open();
        assert_eq!(sync(&errors, &later, || Ok(())), None, "another handle had it before");
        assert_eq!(sync(&errors, &b, || Ok(())), Some(Errno::IO));
        for handle in [&a, &b, &later] {
            assert_eq!(sync(&errors, handle, || Ok(())), None);
        }
        assert_eq!(sync(&errors, &later, || Err(Errno::NOSPC.into())), Some(Errno::NOSPC));
        assert_eq!(sync(&errors, &a, || Ok(())), Some(Errno::NOSPC));
        errors.keep(Errno::IO);
        assert_eq!(sync(&errors, &a, || Ok(())), Some(Errno::IO));
    }

    /// A sync that succeeds waits for one that runs with it.
    #[test]
    fn a_sync_learns_the_error_of_one_that_runs_with_it() {
        let errors = WriteErrors::default();
        let [a, b] = [errors.open(), errors.open()];
        let (begun, has_begun) = channel();
        let (keep_going, may_go_on) = channel();
        std::thread::scope(|scope| {
            let (errors, a) = (&errors, &a);
            scope.spawn(move || {
                sync(errors, a, || {
                    begun.send(()).unwrap();
                    // The kernel has given it the error, and it has not come back yet.
                    may_go_on.recv().unwrap();
                    fails()
                })
            });
            has_begun.recv().unwrap();
            let other = scope.spawn(|| sync(errors, &b, || Ok(())));
            // Until the second sync is done with the kernel.
            while { errors.lock().next < 2 } || errors.lock().running.len() > 1 {
                std::thread::yield_now();
            }
            keep_going.send(()).unwrap();
            assert_eq!(other.join().unwrap(), Some(Errno::IO));
        });
    }

    #[test]
    fn a_sync_that_panics_is_not_waited_for() {
        let errors = WriteErrors::default();
        let handle = errors.open();
        let panics = std::panic::AssertUnwindSafe(|| errors.sync(&handle, || panic!("on purpose")));
        assert!(std::panic::catch_unwind(panics).is_err());
        assert_eq!(sync(&errors, &handle, || Ok(())), None);
    }
}
