//! Reading files for a method: progress, and what could not be read.

use super::super::Outcome;
use super::super::error::CliError;
use super::super::output::Output;
use crate::admin::Progress;
use crate::contents::OverlayError;
use std::path::PathBuf;

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
