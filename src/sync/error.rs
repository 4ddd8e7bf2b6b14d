//! Why a sync ended early. Both trees are complete in any case, and the next sync continues.

use super::tree::{TreeError, shown};
use super::version::VersionError;
use std::io;

/// `e` about what was tried on `path`.
pub fn on(operation: &'static str, path: &[u8], e: rustix::io::Errno) -> SyncError {
    SyncError::io(operation, shown(path), e)
}

/// Opens the directory at `path`, which the user named.
pub fn open_root(path: &std::path::Path) -> Result<crate::beneath::Root, SyncError> {
    crate::beneath::Root::open(path).map_err(|e| SyncError::io("open", path.display().to_string(), e))
}

/// An error of this side, or one that the peer made.
#[derive(Debug, thiserror::Error)]
pub enum SyncError {
    /// The operating system refused.
    #[error("{operation} {object}: {source}")]
    Io {
        /// What was tried.
        operation: &'static str,
        /// On what.
        object: String,
        /// What the system answered.
        source: io::Error,
    },
    /// The peer broke the protocol; nothing of what it sent is shown.
    #[error("the peer {0}")]
    Peer(String),
    /// What the peer sent is no tree, or not the one that was announced.
    #[error("the peer sent a wrong tree: {0}")]
    Tree(#[from] TreeError),
    /// Snapshots do not fit together.
    #[error("{0}")]
    Version(#[from] VersionError),
    /// The peer ended with an error of its own.
    #[error("on the other side: {message}")]
    Remote {
        /// What it said.
        message: String,
        /// What can be done.
        hint: Option<String>,
    },
    /// The connection ended too early.
    #[error("the connection ended before the sync was complete")]
    Cut,
    /// The connection stands, and nothing goes over it.
    #[error("the other side neither said nor took anything for {} s", .0.as_secs_f32())]
    Silent(std::time::Duration),
    /// No common version of the protocol.
    #[error("the other side speaks the sync protocol {theirs:?}, this one {ours:?}")]
    Protocol {
        /// Lowest and highest that the peer speaks.
        theirs: (u16, u16),
        /// Lowest and highest of this program.
        ours: (u16, u16),
    },
    /// Both sides are the same replica.
    #[error("both sides are the replica {0}")]
    Itself(String),
    /// A guard spoke up.
    #[error("{0}")]
    Guard(String),
    /// Something was changed while the sync was under way.
    #[error("{0}")]
    Changed(String),
    /// A chunk of so many bytes, which this side said it has, was changed since.
    #[error("a file was changed while {0} bytes of it were used for the sync")]
    Stale(u32),
    /// What this program keeps about syncs is not readable.
    #[error("{object}: {reason}")]
    State {
        /// The file.
        object: String,
        /// What is wrong.
        reason: String,
    },
    /// Another sync has this replica.
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

    /// Whether there is no room for something on this side.
    pub fn is_full(&self) -> bool {
        use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
        matches!(self, SyncError::Io { source, .. }
            if matches!(source.kind(), StorageFull | QuotaExceeded | FileTooLarge))
    }

    /// Whether it concerns one file only, so that all others can be synced: with what the user can do about it.
    pub fn of_one_file(&self) -> Option<String> {
        use rustix::io::Errno;
        let source = match self {
            SyncError::Io { source, .. } => source,
            SyncError::Changed(why) => return Some(why.clone()),
            _ => return None,
        };
        let remedy = match source.raw_os_error().map(Errno::from_raw_os_error) {
            // The mount is gone, or this process has no room left.
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

    /// What the user can do about it.
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            SyncError::Remote { hint, .. } => return hint.clone(),
            SyncError::Cut | SyncError::Changed(_) | SyncError::Stale(_) => {
                "run it again: what has arrived is not sent again"
            }
            SyncError::Silent(_) => {
                "see whether it still runs; what has arrived is not sent again, and `--timeout` sets the limit"
            }
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
                    "make room and run it again: what has arrived is not sent again"
                }
                _ => return None,
            },
        };
        Some(hint.to_owned())
    }
}
