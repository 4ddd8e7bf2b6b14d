//! Reading files for a method: progress, and what could not be read.

use super::super::Outcome;
use super::super::error::CliError;
use super::super::output::Output;
use crate::admin::Progress;
use crate::contents::OverlayError;
use crate::control::{self, Found};
use std::path::{Path, PathBuf};

/// Returns where the files of a directory can be read: below the mount point, if the directory is of an overlay that is
/// mounted elsewhere. There, the bare directory has empty files.
pub(in crate::cli) fn readable(dir: &Path) -> PathBuf {
    match control::find(dir) {
        Ok(Found::Daemon { info, path, .. }) => info.mountpoint.join(path),
        // If the overlay is not mounted, the record of a stub shows it when the file is opened.
        Ok(Found::Direct { .. }) | Err(_) => dir.to_owned(),
    }
}

/// Shows the progress of reading.
pub(super) fn reading<T>(
    out: &Output,
    read: impl FnOnce(&mut dyn FnMut(u64, u64) -> bool) -> Result<T, OverlayError>,
) -> Result<T, CliError> {
    let mut meter = out.meter();
    let mut show = |files, _| {
        meter.show(&Progress::files("reading", files, 0));
        true
    };
    Ok(read(&mut show)?)
}

/// Reports unreadable files.
pub(super) fn outcome(unreadable: &[(PathBuf, String)], out: &Output) -> Outcome {
    for (path, reason) in unreadable {
        out.note(&format!("{}: {reason}: left out", path.display()));
    }
    if unreadable.is_empty() { Outcome::Clean } else { Outcome::Findings }
}

/// Returns the outcome for this many unreadable files.
pub(super) fn found_all(unreadable: u64) -> Outcome {
    if unreadable == 0 { Outcome::Clean } else { Outcome::Findings }
}
