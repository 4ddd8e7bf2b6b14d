use super::{AdminError, Progress, Report};
use crate::contents::OverlayError;
use crate::overlay::ScanReport;
use crate::repo::Repo;
use std::path::Path;

/// Commits or indexes files below `path`.
pub(super) fn scan(repo: &Repo, path: &Path, report: Report<'_>) -> Result<ScanReport, AdminError> {
    // A scan of the whole tree also catches up, unless another thread already does.
    let backlog = (path.as_os_str().is_empty() && repo.behind()).then(|| repo.backlog());
    let _hurry = repo.overlay().hurry();
    let done = repo.overlay().scan(path, &mut |_, _, bytes, bytes_all| {
        report(Progress::bytes("scanning", bytes, bytes_all));
    })?;
    if let Some(backlog) = backlog {
        repo.caught_up(backlog).map_err(OverlayError::from)?;
    }
    Ok(done)
}
