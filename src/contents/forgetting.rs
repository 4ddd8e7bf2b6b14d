//! The lock that keeps contents from being added to an index and forgotten at the same time.

use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Locked for reading by threads that add contents, for writing by threads that forget some.
#[derive(Debug, Default)]
pub(crate) struct Forgetting(RwLock<()>);

impl Forgetting {
    /// Prevents forgetting while the result is held: only briefly.
    pub(crate) fn adding(&self) -> RwLockReadGuard<'_, ()> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Prevents adding while the result is held: only briefly.
    pub(crate) fn removing(&self) -> RwLockWriteGuard<'_, ()> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}
