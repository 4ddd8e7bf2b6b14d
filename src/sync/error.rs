//! Errors that end a sync. Both trees stay complete in any case, and the next sync continues.

use super::tree::{TreeError, shown};
use super::version::VersionError;
use std::io;
use std::time::Duration;

/// Returns the error `e` of `operation` on `path`.
pub fn on(operation: &'static str, path: &[u8], e: rustix::io::Errno) -> SyncError {
    SyncError::io(operation, shown(path), e)
}

/// Opens the directory at `path`, which the user named.
pub fn open_root(path: &std::path::Path) -> Result<crate::beneath::Root, SyncError> {
    crate::beneath::Root::open(path).map_err(|e| SyncError::io("open", path.display().to_string(), e))
}

/// The other side was silent for too long.
#[derive(Debug, thiserror::Error)]
#[error("silent for {} s", .0.as_secs())]
pub struct Silence(pub Duration);

/// An error of this side or of the peer.
#[derive(Debug, thiserror::Error)]
pub enum SyncError {
    /// The operating system returned an error.
    #[error("{operation} {object}: {source}")]
    Io {
        /// The operation that failed.
        operation: &'static str,
        /// The file or other object.
        object: String,
        /// The error of the system.
        source: io::Error,
    },
    /// The peer broke the protocol; this side uses nothing that it sent.
    #[error("the peer {0}")]
    Peer(String),
    /// The peer sent bytes that are no tree, or not the announced tree.
    #[error("the peer sent a wrong tree: {0}")]
    Tree(#[from] TreeError),
    /// Snapshots do not fit together.
    #[error("{0}")]
    Version(#[from] VersionError),
    /// The peer ended with its own error.
    #[error("on the other side: {message}")]
    Remote {
        /// The message of the peer.
        message: String,
        /// A remedy.
        hint: Option<String>,
    },
    /// The connection ended too early.
    #[error("the connection ended before the sync was complete")]
    Cut,
    /// The connection is open, but no bytes pass.
    #[error("the other side neither sent nor received anything for {} s", .0.as_secs_f32())]
    Silent(std::time::Duration),
    /// The two sides have no common version of the protocol.
    #[error("the other side speaks the sync protocol {theirs:?}, this one {ours:?}")]
    Protocol {
        /// Lowest and highest version of the peer.
        theirs: (u16, u16),
        /// Lowest and highest version of this program.
        ours: (u16, u16),
    },
    /// Both sides are the same replica.
    #[error("both sides are the replica {0}")]
    Itself(String),
    /// A guard stopped the sync.
    #[error("{0}")]
    Guard(String),
    /// A file was changed during the sync.
    #[error("{0}")]
    Changed(String),
    /// A chunk of this many bytes, which this side announced, has changed since.
    #[error("a file was changed while {0} bytes of it were used for the sync")]
    Stale(u32),
    /// The stored state of syncs is not readable.
    #[error("{object}: {reason}")]
    State {
        /// The file.
        object: String,
        /// The defect.
        reason: String,
    },
    /// The peer is of an earlier version, which does not take owners and ACLs.
    #[error("the other side's dedupfs is older: it cannot take the owners and ACLs that this tree has")]
    WithoutOwners,
    /// Another sync holds the lock of this replica.
    #[error("{0}: another sync is under way")]
    Busy(String),
}

impl SyncError {
    pub(crate) fn io(
        operation: &'static str,
        object: impl Into<String>,
        source: impl Into<io::Error>,
    ) -> SyncError {
        SyncError::Io { operation, object: object.into(), source: source.into() }
    }

    pub(crate) fn peer(what: impl Into<String>) -> SyncError {
        SyncError::Peer(what.into())
    }

    pub(crate) fn codec(source: io::Error) -> SyncError {
        SyncError::io("compress", "a content", source)
    }

    /// Returns whether this side has no room.
    pub fn is_full(&self) -> bool {
        use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
        matches!(self, SyncError::Io { source, .. }
            if matches!(source.kind(), StorageFull | QuotaExceeded | FileTooLarge))
    }

    /// Returns the remedy if the error concerns one file only, so that all others can be synced.
    pub fn of_one_file(&self) -> Option<String> {
        use rustix::io::Errno;
        let source = match self {
            SyncError::Io { source, .. } => source,
            SyncError::Changed(why) => return Some(why.clone()),
            _ => return None,
        };
        let remedy = match source.raw_os_error().map(Errno::from_raw_os_error) {
            // The mount is gone, or this process has no resources left.
            Some(Errno::NOTCONN | Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NXIO) => return None,
            Some(Errno::ACCESS | Errno::PERM) => {
                "give this user the right to read it, or add it to .dedupfsignore"
            }
            Some(Errno::IO) => "it is damaged; `dedupctl check --repair` mends what can be mended",
            _ => "run the sync again",
        };
        let SyncError::Io { operation, .. } = self else { return None };
        Some(format!("{operation}: {source}; {remedy}"))
    }

    /// Returns a remedy for the user.
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            SyncError::Remote { hint, .. } => return hint.clone(),
            SyncError::Cut | SyncError::Changed(_) | SyncError::Stale(_) => {
                "run it again: the part that arrived is not sent again"
            }
            SyncError::Silent(_) => {
                "check that it still runs; the part that arrived is not sent again, and `--timeout` sets the limit"
            }
            SyncError::WithoutOwners => "install this release on the other side",
            SyncError::Protocol { .. } => "use the same release of dedupfs on both sides",
            SyncError::Itself(_) => {
                "give another directory; if this is a copy made with its .dedupfs, remove .dedupfs/sync in the copy"
            }
            SyncError::Version(VersionError::Forked { .. }) => {
                "remove .dedupfs/sync in the copy, and sync it again"
            }
            SyncError::Guard(_) => "look at both sides; `--force` does it all the same",
            SyncError::State { .. } => {
                "move .dedupfs/sync aside: the next sync compares everything and deletes nothing"
            }
            SyncError::Busy(_) => "wait until it has ended",
            SyncError::Peer(_) | SyncError::Tree(_) | SyncError::Version(_) => {
                "nothing was changed here; check what program runs on the other side"
            }
            SyncError::Io { source, .. } => match source.kind() {
                io::ErrorKind::PermissionDenied => "run this as the owner of the files, or as root",
                io::ErrorKind::StorageFull => {
                    "make room and run it again: the part that arrived is not sent again"
                }
                _ => return None,
            },
        };
        Some(hint.to_owned())
    }
}
