//! `FILE@N`: version N of a file. A file with such a name takes precedence.

use super::Global;
use super::error::CliError;
use super::session::find;
use crate::control::{ControlError, Found, find_store};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// A file as the user named it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FileVersion {
    pub(super) path: PathBuf,
    pub(super) n: Option<u64>,
}

impl FileVersion {
    /// Reads `FILE` or `FILE@N`.
    pub(super) fn of(given: &Path) -> FileVersion {
        let whole = FileVersion { path: given.to_owned(), n: None };
        if given.symlink_metadata().is_ok() {
            return whole;
        }
        let bytes = given.as_os_str().as_bytes();
        let Some(at) = bytes.iter().rposition(|&byte| byte == b'@') else { return whole };
        let n = std::str::from_utf8(&bytes[at + 1..]).ok();
        let n = n.filter(|n| n.bytes().all(|byte| byte.is_ascii_digit())).and_then(|n| n.parse().ok());
        match n {
            Some(n) if at > 0 => FileVersion { path: OsStr::from_bytes(&bytes[..at]).into(), n: Some(n) },
            _ => whole,
        }
    }

    /// Finds its store. The file itself, and directories above it, may be gone.
    pub(super) fn find(&self, global: &Global) -> Result<Found, CliError> {
        find_gone(global, &self.path)
    }
}

/// Finds like [`find`], also a path that no longer exists: its nearest existing directory determines its place.
pub(super) fn find_gone(global: &Global, path: &Path) -> Result<Found, CliError> {
    if path.symlink_metadata().is_ok_and(|meta| !meta.is_symlink()) {
        return find(global, Some(path));
    }
    let absolute = std::path::absolute(path).map_err(|e| CliError::io("find", path, &e))?;
    let mut gone = Vec::new();
    let mut above = absolute.as_path();
    loop {
        let (Some(parent), Some(name)) = (above.parent(), above.file_name()) else {
            return find(global, Some(path));
        };
        gone.push(name.to_owned());
        above = parent;
        if above.exists() {
            break;
        }
    }
    let found = match &global.store {
        Some(store) => find_store(store, Some(above)),
        None => crate::control::find(above),
    };
    let mut found = found.map_err(|e: ControlError| CliError::from(e))?;
    let (Found::Daemon { path, .. } | Found::Direct { path, .. }) = &mut found;
    path.extend(gone.into_iter().rev());
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_read_from_the_end_and_a_name_wins() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("mail@7"), "x").unwrap();
        let of = |name: &str| {
            let FileVersion { path, n } = FileVersion::of(&dir.path().join(name));
            (path.file_name().unwrap().to_str().unwrap().to_owned(), n)
        };
        assert_eq!(of("mail@7"), ("mail@7".to_owned(), None));
        assert_eq!(of("mail@7@2"), ("mail@7".to_owned(), Some(2)));
        assert_eq!(of("mail@8"), ("mail".to_owned(), Some(8)));
        for name in ["a@", "a@b", "a@-1", "a@1x", "a@99999999999999999999", "plain"] {
            assert_eq!(of(name), (name.to_owned(), None));
        }
    }
}
