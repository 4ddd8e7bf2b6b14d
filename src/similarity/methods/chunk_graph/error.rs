//! Errors of comparing many files.

use crate::similarity::SimilarityError;
use std::io;
use std::path::{Path, PathBuf};

/// Errors of the chunk graph. None of them affects the compared files.
#[derive(Debug, thiserror::Error)]
pub enum GraphError {
    /// A file could not be read or written.
    #[error("{operation} {path}: {source}")]
    Io {
        /// The operation.
        operation: &'static str,
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// A saved collection does not have the form that this program writes.
    #[error("collection {path} is damaged: expected {expected}; chunk its files again")]
    Damaged {
        /// The collection.
        path: PathBuf,
        /// The form expected there.
        expected: &'static str,
    },
    /// A list of templates has a line that names no chunk.
    #[error("templates {path}, line {line}: expected 16 hexadecimal digits, found {found:?}")]
    Template {
        /// The list.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// The text on that line.
        found: String,
    },
    /// Files are numbered with 32 bits.
    #[error("expected at most 4,294,967,295 files in one collection, found more")]
    TooMany,
    /// A setting makes no sense.
    #[error("{name} {found}: expected {expected}")]
    Setting {
        /// The setting.
        name: &'static str,
        /// The value given.
        found: f64,
        /// The values allowed.
        expected: &'static str,
    },
    /// A temporary file could not be written or read.
    #[error(transparent)]
    Work(#[from] SimilarityError),
    /// A table could not be written.
    #[error("write a table: {0}")]
    Table(#[from] csv::Error),
}

pub(super) fn io(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> GraphError {
    move |source| GraphError::Io { operation, path: path.to_owned(), source }
}
