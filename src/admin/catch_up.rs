use super::{AdminError, Progress, Report};
use crate::contents::{OverlayError, Result as OverlayResult};
use crate::repo::Repo;
use std::io::ErrorKind;
use std::path::Path;

/// Commits the files that the last user of the store left over, and waits for that. One thread does so at a
/// time, and others wait for it. Returns at once if there is nothing to do.
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

/// Like [`catch_up`], in the background: each file is committed as if it had just been closed. Returns when
/// all files have been visited; the remaining ones then wait in the queue as usual.
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
