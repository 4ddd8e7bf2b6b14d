//! Paths in JSON: text if they are UTF-8, otherwise an array of bytes, so that each path round-trips.

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

#[cfg(test)]
mod tests {
    use super::super::Request;
    use std::ffi::OsString;
    use std::os::unix::ffi::OsStringExt;
    use std::path::PathBuf;

    #[test]
    fn every_path_survives() {
        for bytes in [&b"a/b"[..], b"", b"\xff\xfe", "\u{e9}\n\"".as_bytes()] {
            let path = PathBuf::from(OsString::from_vec(bytes.to_vec()));
            let json = serde_json::to_string(&Request::Scan { path: path.clone() }).unwrap();
            let Request::Scan { path: back } = serde_json::from_str(&json).unwrap() else { panic!("{json}") };
            assert_eq!(back, path);
        }
    }
}
