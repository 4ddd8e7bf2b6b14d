//! Paths in JSON. In requests: text if they are UTF-8, otherwise an array of bytes, so that each path round-trips.
//! In answers: text for people.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

#[derive(Deserialize)]
#[serde(untagged)]
enum Form {
    Text(String),
    Bytes(Vec<u8>),
}

pub(crate) fn serialize<S: Serializer>(path: &Path, to: S) -> Result<S::Ok, S::Error> {
    match path.to_str() {
        Some(text) => text.serialize(to),
        None => path.as_os_str().as_bytes().serialize(to),
    }
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<PathBuf, D::Error> {
    Ok(match Form::deserialize(from)? {
        Form::Text(text) => PathBuf::from(text),
        Form::Bytes(bytes) => PathBuf::from(OsString::from_vec(bytes)),
    })
}

/// Formats a path for people: non-text bytes show as U+FFFD.
pub(crate) fn shown(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// Writes the path as [`shown`] formats it.
pub(crate) fn lossy<S: Serializer>(path: &Path, to: S) -> Result<S::Ok, S::Error> {
    path.to_string_lossy().serialize(to)
}

/// As [`lossy`], for several.
pub(crate) fn all_lossy<S: Serializer>(paths: &[PathBuf], to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(paths.iter().map(|path| path.to_string_lossy()))
}

/// As [`lossy`], or null.
pub(crate) fn lossy_if_any<S: Serializer>(path: &Option<PathBuf>, to: S) -> Result<S::Ok, S::Error> {
    path.as_deref().map(Path::to_string_lossy).serialize(to)
}
