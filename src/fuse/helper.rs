//! Unmounting through the setuid program fusermount3, for ordinary users. (fuser mounts through it.)

use super::error::MountError;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const SEARCHED: [&str; 5] = ["/usr/bin", "/bin", "/usr/local/bin", "/usr/sbin", "/sbin"];

/// Returns the path of the program.
pub(super) fn find() -> Result<PathBuf, MountError> {
    let paths = SEARCHED.iter().map(|dir| Path::new(dir).join("fusermount3"));
    paths.into_iter().find(|path| path.exists()).ok_or(MountError::NoHelper)
}

/// Unmounts `path`.
pub(super) fn unmount(path: &Path, lazy: bool) -> Result<(), MountError> {
    let mut command = Command::new(find()?);
    command.arg("-u").args(lazy.then_some("-z")).arg("--").arg(path).stdin(Stdio::null());
    let output = command.output().map_err(|e| MountError::of(path, e))?;
    if output.status.success() {
        return Ok(());
    }
    let said = said(&output.stderr);
    if said.contains("busy") {
        Err(MountError::Busy(path.to_owned()))
    } else {
        Err(MountError::of(path, io::Error::other(said)))
    }
}

fn said(stderr: &[u8]) -> String {
    String::from_utf8_lossy(stderr).trim().trim_start_matches("fusermount3: ").to_owned()
}
