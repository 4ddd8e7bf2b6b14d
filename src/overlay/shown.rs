//! Paths in reports: text, in which bytes that are not UTF-8 show as U+FFFD.

use serde::{Serialize, Serializer};
use std::path::{Path, PathBuf};

pub(super) fn path<S: Serializer>(path: &Path, to: S) -> Result<S::Ok, S::Error> {
    path.to_string_lossy().serialize(to)
}

pub(super) fn paths<S: Serializer>(paths: &[PathBuf], to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(paths.iter().map(|path| path.to_string_lossy()))
}
