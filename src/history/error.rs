use crate::contents::OverlayError;
use crate::db::DbError;
use crate::id::DocumentId;
use crate::store::StoreError;
use std::path::PathBuf;

/// Errors of the history.
#[derive(Debug, thiserror::Error)]
pub enum HistoryError {
    /// A document has an unexpected form. It verifies, so it was written like this: perhaps by a newer
    /// program.
    #[error("document {document}: expected {what} in a form that this program knows")]
    Form {
        /// The expected form.
        what: &'static str,
        /// The document.
        document: DocumentId,
    },
    /// The rows that find events are damaged.
    #[error("the index of the history is damaged; `dedupctl check --rebuild` rebuilds it")]
    Rows,
    /// A file has no such version.
    #[error("{path}: there is no version {n}")]
    NoVersion {
        /// The file.
        path: PathBuf,
        /// The requested version.
        n: u64,
    },
    /// A version that was dropped.
    #[error("{path}: version {n} was given up by the rules")]
    GivenUp {
        /// The file.
        path: PathBuf,
        /// The requested version.
        n: u64,
    },
    /// There is no such snapshot.
    #[error("{0}: there is no such snapshot")]
    NoSnapshot(String),
    /// Several snapshots match.
    #[error("{0}: several snapshots begin like this")]
    Ambiguous(String),
    /// An invalid snapshot name.
    #[error("snapshot name {name:?}: {reason}")]
    Name {
        /// The given name.
        name: String,
        /// The problem.
        reason: &'static str,
    },
    /// A snapshot has no entry at that path.
    #[error("{path}: not in snapshot {snapshot}")]
    NotInSnapshot {
        /// Path below the root.
        path: PathBuf,
        /// The snapshot.
        snapshot: String,
    },
    /// The target of a restore is unusable.
    #[error("{path}: {reason}")]
    Target {
        /// The target.
        path: PathBuf,
        /// The obstacle.
        reason: String,
    },
    /// The caller no longer waits.
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
