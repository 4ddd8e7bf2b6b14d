use crate::db::DbError;
use crate::id::DocumentId;
use crate::overlay::OverlayError;
use crate::store::StoreError;
use std::path::PathBuf;

/// What went wrong in the history.
#[derive(Debug, thiserror::Error)]
pub enum HistoryError {
    /// A document is not what it should be. It verifies, so it was written so: by a newer program, perhaps.
    #[error("document {document}: expected {what} in a form that this program knows")]
    Form {
        /// What it should be.
        what: &'static str,
        /// Which one.
        document: DocumentId,
    },
    /// The rows by which events are found are damaged.
    #[error("the index of the history is damaged; `dedupctl check --rebuild` makes it anew")]
    Rows,
    /// A file has no such version.
    #[error("{path}: there is no version {n}")]
    NoVersion {
        /// The file.
        path: PathBuf,
        /// What was asked for.
        n: u64,
    },
    /// A version that is not kept any more.
    #[error("{path}: version {n} was given up by the rules")]
    GivenUp {
        /// The file.
        path: PathBuf,
        /// What was asked for.
        n: u64,
    },
    /// There is no such snapshot.
    #[error("{0}: there is no such snapshot")]
    NoSnapshot(String),
    /// Several snapshots could be meant.
    #[error("{0}: several snapshots begin like this")]
    Ambiguous(String),
    /// A name that cannot be one of a snapshot.
    #[error("snapshot name {name:?}: {reason}")]
    Name {
        /// As it was given.
        name: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A snapshot has nothing at that path.
    #[error("{path}: not in snapshot {snapshot}")]
    NotInSnapshot {
        /// Below the root.
        path: PathBuf,
        /// Which snapshot.
        snapshot: String,
    },
    /// What it is to be restored to cannot be.
    #[error("{path}: {reason}")]
    Target {
        /// Where.
        path: PathBuf,
        /// What is in the way.
        reason: String,
    },
    /// Whoever asked does not wait any more.
    #[error("interrupted")]
    Interrupted,
    /// The overlay.
    #[error(transparent)]
    Overlay(#[from] OverlayError),
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The index.
    #[error(transparent)]
    Db(#[from] DbError),
}

/// Result of an operation of the history.
pub type Result<T> = std::result::Result<T, HistoryError>;
