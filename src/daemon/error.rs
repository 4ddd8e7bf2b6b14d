use crate::control::ControlError;
use crate::fuse::MountError;
use crate::repo::RepoError;
use std::path::{Path, PathBuf};

/// Why an overlay could not be mounted, or not be ended cleanly.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// A directory cannot be used.
    #[error("{path}: expected {expected}, found {found}")]
    Unsuitable {
        /// The path.
        path: PathBuf,
        /// The requirement.
        expected: &'static str,
        /// The finding.
        found: String,
    },
    /// The directory is already mounted.
    #[error("{dir}: is mounted already, at {mountpoint} by process {pid}")]
    Mounted {
        /// The directory.
        dir: PathBuf,
        /// Its mount point.
        mountpoint: PathBuf,
        /// The daemon's process.
        pid: u32,
    },
    /// The directory has another store than the given one.
    #[error("{dir}: expected its store in {wanted}, found it in {found}")]
    OtherStore {
        /// The directory.
        dir: PathBuf,
        /// The given store.
        wanted: PathBuf,
        /// The directory's store.
        found: PathBuf,
    },
    /// This process may not open enough files.
    #[error("the limit of open files: expected {least} or more, found {limit}")]
    Descriptors {
        /// The process's limit.
        limit: u64,
        /// The required limit.
        least: u64,
    },
    /// The store.
    #[error(transparent)]
    Repo(#[from] RepoError),
    /// The control socket, or another daemon.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// Mounting.
    #[error(transparent)]
    Mount(#[from] MountError),
    /// Anything else.
    #[error("{0}")]
    Text(String),
}

impl DaemonError {
    pub(super) fn unsuitable(path: &Path, expected: &'static str, found: impl Into<String>) -> DaemonError {
        DaemonError::Unsuitable { path: path.to_owned(), expected, found: found.into() }
    }

    /// Returns advice for the user.
    pub fn hint(&self) -> Option<String> {
        match self {
            DaemonError::Unsuitable { path, found, .. } if found == "nothing of that name" => {
                Some(format!("make it with `mkdir {}`", path.display()))
            }
            DaemonError::Unsuitable { .. } | DaemonError::Text(_) => None,
            DaemonError::Descriptors { least, .. } => {
                Some(format!("raise it: `ulimit -n {least}` in a shell, or LimitNOFILE={least} in a unit"))
            }
            DaemonError::Mounted { mountpoint, .. } => {
                Some(format!("use it there, or end it with `dedupctl unmount {}`", mountpoint.display()))
            }
            DaemonError::OtherStore { found, .. } => {
                Some(format!("leave out --store, or give --store {}", found.display()))
            }
            DaemonError::Repo(e) => e.hint(),
            DaemonError::Control(e) => e.hint(),
            DaemonError::Mount(MountError::Busy(path)) => Some(busy_hint(path)),
            DaemonError::Mount(_) => None,
        }
    }
}

pub(super) fn busy_hint(path: &Path) -> String {
    format!("`fuser -vm {0}` or `lsof +f -- {0}` shows who uses it", path.display())
}
