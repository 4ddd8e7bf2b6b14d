use crate::control::ControlError;
use crate::fuse::MountError;
use crate::repo::RepoError;
use std::path::{Path, PathBuf};

/// Why an overlay could not be mounted or not be ended well.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// A directory cannot be used for this.
    #[error("{path}: expected {expected}, found {found}")]
    Unsuitable {
        /// Which.
        path: PathBuf,
        /// What it has to be.
        expected: &'static str,
        /// What it is.
        found: String,
    },
    /// It is mounted already.
    #[error("{dir}: is mounted already, at {mountpoint} by process {pid}")]
    Mounted {
        /// The directory.
        dir: PathBuf,
        /// Where.
        mountpoint: PathBuf,
        /// By whom.
        pid: u32,
    },
    /// The directory has another store than the one given.
    #[error("{dir}: expected its store in {wanted}, found it in {found}")]
    OtherStore {
        /// The directory.
        dir: PathBuf,
        /// What was given.
        wanted: PathBuf,
        /// Where it is.
        found: PathBuf,
    },
    /// This process may not open enough files.
    #[error("the limit of open files: expected {least} or more, found {limit}")]
    Descriptors {
        /// How many it may open.
        limit: u64,
        /// How many it needs.
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

    /// What the user can do about it.
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
