//! The error number that a program sees. Only this file decides it, and logs dedupfs's own failures.

use crate::contents::OverlayError;
use crate::store::StoreError;
use fuser::Errno;

/// Returns the error number for a failed request; logs failures that are not the backing filesystem's own.
pub(super) fn errno(error: &OverlayError) -> Errno {
    let number = match error {
        OverlayError::Os(errno) => return Errno::from_i32(errno.raw_os_error()),
        OverlayError::Io { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
        OverlayError::Stale(_) => libc::ESTALE,
        OverlayError::Reserved(_) => return Errno::EPERM,
        OverlayError::Outside { .. } => libc::EXDEV,
        OverlayError::ReadOnly => return Errno::EROFS,
        OverlayError::Unmarked => return Errno::EAGAIN,
        OverlayError::Store(StoreError::Full { .. }) => libc::ENOSPC,
        OverlayError::BadStub { .. }
        | OverlayError::Unsure { .. }
        | OverlayError::Unreadable { .. }
        | OverlayError::Store(_)
        | OverlayError::Db(_)
        | OverlayError::Similarity(_)
        | OverlayError::Graph(_)
        | OverlayError::WorkerGone => libc::EIO,
    };
    tracing::error!("a request failed: {error}");
    Errno::from_i32(number)
}
