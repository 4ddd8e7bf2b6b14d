//! Files for saved results.

use crate::contents::error::{OverlayError, Result};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Has `write` make a file next to `path`, then renames it to `path`: at once or not at all. Replaces an existing file only
/// if it is `ours`.
pub(super) fn replace<T>(
    path: &Path,
    ours: impl FnOnce(&Path) -> bool,
    write: impl FnOnce(&Path) -> Result<T>,
) -> Result<T> {
    if path.symlink_metadata().is_ok() && !ours(path) {
        let reason =
            "is not a result saved by this method, so it is not replaced: name another file".to_owned();
        return Err(OverlayError::Unreadable { path: path.to_owned(), reason });
    }
    let beside = beside(path);
    let done = write(&beside).and_then(|done| {
        std::fs::rename(&beside, path).map_err(|e| OverlayError::io("save", path, e))?;
        Ok(done)
    });
    if done.is_err() {
        let _ = std::fs::remove_file(&beside);
    }
    done
}

fn beside(path: &Path) -> PathBuf {
    let mut name = OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(format!(".dedupfs-{}", std::process::id()));
    path.with_file_name(name)
}
