//! The thread of a program whose request this thread serves: so that a sync can tell its own changes from those of others.

use std::cell::Cell;

thread_local! {
    static SERVED: Cell<u32> = const { Cell::new(0) };
}

/// While this is held, the current thread serves a request.
#[cfg_attr(not(feature = "mount"), allow(dead_code))]
pub(crate) struct Serving(());

/// Begins to serve a request of the thread with this number, as the kernel names it; 0 if it names none.
#[cfg_attr(not(feature = "mount"), allow(dead_code))]
pub(crate) fn serve(thread: u32) -> Serving {
    SERVED.set(thread);
    Serving(())
}

/// Returns the thread whose request is served; 0 if none is known.
pub(super) fn served() -> u32 {
    SERVED.get()
}

impl Drop for Serving {
    fn drop(&mut self) {
        SERVED.set(0);
    }
}
