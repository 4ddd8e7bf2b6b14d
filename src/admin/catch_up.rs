use super::{AdminError, Progress, Report};
use crate::overlay::{OverlayError, Result as OverlayResult};
use crate::repo::Repo;
use std::io::ErrorKind;
use std::path::Path;

/// Takes in the files that the last user of the store left out, and waits for that. One does so at a time, and others
/// wait for it; returns at once if there is nothing to do.
pub fn catch_up(repo: &Repo, report: Report<'_>) -> Result<(), AdminError> {
    if !repo.behind() {
        return Ok(());
    }
    let _hurry = repo.overlay().hurry();
    bring_in(repo, &mut |path| {
        repo.overlay().scan(path, &mut |done, all, _, _| {
            report(Progress::files("catching up", done, all));
        })?;
        Ok(())
    })
}

/// As [`catch_up`], beside everything else: each file is taken in when it would be if it had just been closed. Returns
/// when all have been met; those that are left then are known as any that are closed.
pub fn catch_up_quietly(repo: &Repo) -> Result<(), AdminError> {
    bring_in(repo, &mut |path| repo.overlay().catch_up(path, &mut |_| {}))
}

fn bring_in(repo: &Repo, take_in: &mut dyn FnMut(&Path) -> OverlayResult<()>) -> Result<(), AdminError> {
    if !repo.behind() || repo.read_only() {
        return Ok(());
    }
    let backlog = repo.backlog();
    if backlog.all {
        tracing::info!("the index may be behind the files: scanning them");
        take_in(Path::new(""))?;
    } else {
        for path in &backlog.files {
            match take_in(path) {
                Ok(()) => {}
                Err(OverlayError::Io { source, .. }) if source.kind() == ErrorKind::NotFound => {}
                Err(OverlayError::Os(rustix::io::Errno::NOENT)) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }
    repo.caught_up(backlog).map_err(OverlayError::from)?;
    Ok(())
}
