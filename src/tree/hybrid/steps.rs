//! Test hooks at the steps of a conversion: a test lets the process end, a step panic or a system call fail.
//!
//! Without the feature `testing` they do nothing.

use std::io;
#[cfg(any(test, feature = "testing"))]
pub use testing::Steps;

/// Steps that are not counted.
#[cfg(not(any(test, feature = "testing")))]
#[derive(Default)]
pub struct Steps;

#[cfg(not(any(test, feature = "testing")))]
impl Steps {
    /// Marks the end of a step.
    pub fn step(&self) {}

    /// Does `work`, a system call.
    pub fn io<T>(&self, work: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        work()
    }
}

#[cfg(any(test, feature = "testing"))]
mod testing {
    use crate::tree::hybrid::steps::io;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    /// Counts steps and system calls down to the one that a test chose.
    #[derive(Default)]
    pub struct Steps {
        /// Steps left until the chosen one; 0: none is chosen.
        left: AtomicU64,
        /// Whether the chosen step panics instead of ending the process.
        panics: AtomicBool,
        /// System calls left until the one that fails; 0: none does.
        fails: AtomicU64,
    }

    impl Steps {
        /// Aborts the process at the `count`th step from now on.
        pub fn abort_at(&self, count: u64) {
            self.panics.store(false, Ordering::SeqCst);
            self.left.store(count, Ordering::SeqCst);
        }

        /// Panics at the `count`th step from now on.
        pub fn panic_at(&self, count: u64) {
            self.panics.store(true, Ordering::SeqCst);
            self.left.store(count, Ordering::SeqCst);
        }

        /// Lets the `count`th call of [`Steps::io`] from now on fail with EIO.
        pub fn fail_at(&self, count: u64) {
            self.fails.store(count, Ordering::SeqCst);
        }

        /// Marks the end of a step.
        pub fn step(&self) {
            if is_chosen(&self.left) {
                assert!(!self.panics.load(Ordering::SeqCst), "a test asked for a panic at this step");
                std::process::abort();
            }
        }

        /// Does `work`, a system call, or fails in its place.
        pub fn io<T>(&self, work: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
            if is_chosen(&self.fails) { Err(io::Error::from_raw_os_error(libc::EIO)) } else { work() }
        }
    }

    /// Counts down; says whether this is the chosen one.
    fn is_chosen(left: &AtomicU64) -> bool {
        left.load(Ordering::Relaxed) > 0
            && left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1)) == Ok(1)
    }
}
