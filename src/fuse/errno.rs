//! Which error number a program sees. The one place where that is decided, and where our own failures
//! are logged.

use crate::overlay::OverlayError;
use crate::store::StoreError;
use fuser::Errno;

/// The error number for a failed request; failures that are not the backing filesystem's own are logged.
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
