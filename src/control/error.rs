use super::proto::Fault;
use crate::repo::RepoError;
use std::io;
use std::path::PathBuf;

/// Why a daemon could not be reached or asked.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// No store belongs to the path.
    #[error("{0}: this is not in a dedupfs overlay (there is no .dedupfs here or above)")]
    NoStore(PathBuf),
    /// The daemon of a mount has ended and left the mount behind.
    #[error("{0}: the daemon of this mount has ended")]
    DeadMount(PathBuf),
    /// A file of the store has been found, but not where the mount shows it.
    #[error("{path}: expected a path below {root}")]
    Outside {
        /// The path.
        path: PathBuf,
        /// Its expected parent.
        root: PathBuf,
    },
    /// The runtime directory cannot be trusted.
    #[error("{path}: expected a directory of this user with mode 0700, found {found}")]
    Runtime {
        /// The directory.
        path: PathBuf,
        /// The finding.
        found: String,
    },
    /// The socket is another user's.
    #[error("the daemon of {0} belongs to another user")]
    Denied(PathBuf),
    /// The user who listens on the daemon's socket has no right to this directory.
    #[error("{socket}: user {user} answers there, expected root, this user or the owner of {root}")]
    Server {
        /// The socket.
        socket: PathBuf,
        /// The listening user.
        user: u32,
        /// The backing directory.
        root: PathBuf,
    },
    /// The connection ended before the answer.
    #[error("the daemon ended before it answered")]
    Ended,
    /// The connection carries another protocol.
    #[error("the daemon's answer was not understood: {0}")]
    Protocol(String),
    /// The daemon answered with an error.
    #[error("{0}")]
    Fault(Fault),
    /// The operating system returned an error.
    #[error("{operation} {path}: {source}")]
    Io {
        /// The operation.
        operation: &'static str,
        /// The path.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The store's files could not be read.
    #[error(transparent)]
    Repo(#[from] RepoError),
}

impl ControlError {
    pub(super) fn io(
        operation: &'static str,
        path: impl Into<PathBuf>,
        source: impl Into<io::Error>,
    ) -> Self {
        ControlError::Io { operation, path: path.into(), source: source.into() }
    }

    /// Returns advice for the user.
    pub fn hint(&self) -> Option<String> {
        match self {
            ControlError::NoStore(_) => Some(
                "give a path inside an overlay, or --store DIR; `dedupctl init DIR` makes a store".to_owned(),
            ),
            ControlError::DeadMount(path) => Some(format!(
                "mount again with `dedupfs`, which clears it, or clear it with `umount {0}` or `fusermount3 -u {0}`",
                path.display()
            )),
            ControlError::Denied(_) => Some("run this as that user, or as root".to_owned()),
            ControlError::Server { socket, .. } => Some(format!(
                "find out which program that is (`ss -lxp src {}`); nothing was sent to it",
                socket.display()
            )),
            ControlError::Runtime { path, .. } => {
                Some(format!("remove {}, or set XDG_RUNTIME_DIR", path.display()))
            }
            ControlError::Ended => Some("look into dedupfs.log in the store, or the journal".to_owned()),
            ControlError::Protocol(_) => Some("use dedupfs and dedupctl of the same version".to_owned()),
            ControlError::Fault(fault) => fault.hint.clone(),
            ControlError::Repo(e) => e.hint(),
            ControlError::Io { source, .. } if source.kind() == io::ErrorKind::NotFound => {
                Some("give a path that exists".to_owned())
            }
            ControlError::Io { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => {
                Some("run this as a user who may, or as root".to_owned())
            }
            ControlError::Outside { .. } | ControlError::Io { .. } => None,
        }
    }
}
