use crate::db::DbError;
use crate::env::Refusal;
use crate::similarity::SimilarityError;
use crate::similarity::methods::chunk_graph::GraphError;
use crate::store::StoreError;
use std::path::PathBuf;

/// Errors of the overlay.
#[derive(Debug, thiserror::Error)]
pub enum OverlayError {
    /// The backing filesystem refused; its error is passed on unchanged.
    #[error("{0}")]
    Os(#[from] rustix::io::Errno),
    /// An I/O operation of ours on the backing directory failed.
    #[error("{operation} {path}: {source}")]
    Io {
        /// The operation.
        operation: &'static str,
        /// The path.
        path: PathBuf,
        /// The error of the system.
        source: std::io::Error,
    },
    /// A path does not stay inside the overlay.
    #[error(
        "{path}: leads out of this overlay (an absolute path, `..` or another mount); give a path below its directory"
    )]
    Outside {
        /// The path.
        path: PathBuf,
    },
    /// No inode has the given number.
    #[error("no inode is known under number {0}")]
    Stale(u64),
    /// The name or xattr is reserved for dedupfs.
    #[error("{0} is reserved for dedupfs")]
    Reserved(String),
    /// The stub's record is not valid, so its content is not known.
    #[error("{path}: stub record: {reason}; run `dedupctl check`")]
    BadStub {
        /// The file.
        path: PathBuf,
        /// The defect of the record.
        reason: String,
    },
    /// The recipe of a file cannot be read, so its chunks are not known.
    #[error("{path}: its chunks are not known, because its recipe cannot be read: {source}")]
    Unsure {
        /// The file.
        path: PathBuf,
        /// Why its recipe cannot be read.
        source: StoreError,
    },
    /// A file cannot be read.
    #[error("{path}: {reason}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// The overlay was opened for reading only.
    #[error("the overlay is read-only")]
    ReadOnly,
    /// A collection has only the tree to mark from, and the tree kept changing or has files of unknown content.
    #[error(
        "the index does not know all files, and the tree alone does not say what they need: make room and run this again"
    )]
    Unmarked,
    /// The content could not be read from or written to the store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The index failed. It can be rebuilt.
    #[error(transparent)]
    Db(#[from] DbError),
    /// The similarity index failed. It can be rebuilt.
    #[error(transparent)]
    Similarity(#[from] SimilarityError),
    /// Files could not be compared by the chunk graph.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// A worker thread ended before its work was done.
    #[error("a worker thread stopped; the log says why")]
    WorkerGone,
}

impl OverlayError {
    /// Returns the error as a refusal of the system; `None` if it may mean damage.
    pub fn refusal(&self) -> Option<Refusal> {
        match self {
            OverlayError::Os(errno) => Refusal::of_errno(*errno),
            OverlayError::Io { source, .. } => Refusal::of(source),
            OverlayError::Store(error) | OverlayError::Unsure { source: error, .. } => error.refusal(),
            OverlayError::Db(error) => error.refusal(),
            _ => None,
        }
    }

    /// Makes an I/O error of `operation` on `path`.
    pub fn io(operation: &'static str, path: impl Into<PathBuf>, source: impl Into<std::io::Error>) -> Self {
        OverlayError::Io { operation, path: path.into(), source: source.into() }
    }

    /// The system's number of the error; EIO if it is not the system's.
    pub fn number(&self) -> rustix::io::Errno {
        let number = match self {
            OverlayError::Os(number) => Some(*number),
            OverlayError::Io { source, .. } => rustix::io::Errno::from_io_error(source),
            _ => None,
        };
        number.unwrap_or(rustix::io::Errno::IO)
    }
}

/// Result of an overlay operation.
pub type Result<T> = std::result::Result<T, OverlayError>;
