use super::{AdminError, Progress, Report};
use crate::overlay::OverlayError;
use crate::repo::Repo;
use std::io::ErrorKind;
use std::path::Path;

/// Brings files into the index that the last user of the store left out. One does so at a time, and others
/// wait for it; returns at once if there is nothing to do.
pub fn catch_up(repo: &Repo, report: Report<'_>) -> Result<(), AdminError> {
    if !repo.behind() || repo.read_only() {
        return Ok(());
    }
    let backlog = repo.backlog();
    let mut tell = |done, all, _, _| {
        report(Progress::files("catching up", done, all));
    };
    if backlog.all {
        tracing::info!("the index may be behind the files: scanning them");
        repo.overlay().scan(Path::new(""), &mut tell)?;
    } else {
        for path in &backlog.files {
            match repo.overlay().scan(path, &mut tell) {
                Ok(_) => {}
                Err(OverlayError::Io { source, .. }) if source.kind() == ErrorKind::NotFound => {}
                Err(OverlayError::Os(rustix::io::Errno::NOENT)) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }
    repo.caught_up(backlog).map_err(OverlayError::from)?;
    Ok(())
}
