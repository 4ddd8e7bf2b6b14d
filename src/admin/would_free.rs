use super::text::shown;
use super::{AdminError, Progress, Report, catch_up};
use crate::contents::OverlayError;
use crate::history::SNAPSHOTS_DIR;
use crate::repo::Repo;
use serde::{Deserialize, Serialize};
use std::io;
use std::path::{Component, Path};

/// Space that a removal would free. Bytes on disk unless noted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WouldFreeReport {
    /// The path, below the root.
    pub of: String,
    /// Files in it.
    pub files: u64,
    /// Bytes in them.
    pub logical_bytes: u64,
    /// Space that the next collection would free.
    pub frees_bytes: u64,
    /// Space that a collection would free once no version and no snapshot needs it any more.
    pub frees_after_history_bytes: u64,
    /// Space of plain files in the directory: freed at once.
    pub frees_plain_bytes: u64,
    /// Files with unknown needs.
    pub unknown: u64,
}

/// Computes it for a file, a directory, or a snapshot (`.snapshots/ID`).
pub(super) fn would_free(
    repo: &Repo,
    path: &Path,
    report: Report<'_>,
) -> Result<WouldFreeReport, AdminError> {
    catch_up(repo, report)?;
    let (overlay, history) = (repo.overlay(), repo.history());
    let mut keep_going = |stubs| report(Progress::files("marking what else is needed", stubs, 0));
    let mut parts = path.components();
    let is_snapshot = parts.next() == Some(Component::Normal(SNAPSHOTS_DIR.as_ref()))
        && overlay.snapshot_at(Path::new(SNAPSHOTS_DIR))?.is_none();
    let (found, files, bytes) = if is_snapshot {
        let id = parts.next().map(|id| id.as_os_str().to_string_lossy().into_owned());
        let id = id.filter(|_| parts.next().is_none()).ok_or_else(|| {
            AdminError::refused(
                format!("{}: a snapshot as a whole can be removed, and nothing in it", path.display()),
                "name it as .snapshots/ID".to_owned(),
            )
        })?;
        let (id, snapshot) = history.find_snapshot(&id)?;
        let recipes = history.contents_of(&snapshot)?;
        (overlay.would_free(None, Some((&id, &recipes)), &mut keep_going)?, snapshot.files, snapshot.bytes)
    } else {
        if path.as_os_str().is_empty() || overlay.snapshot_at(path)?.is_none() {
            let what =
                if path.as_os_str().is_empty() { "the root itself cannot be removed" } else { "not found" };
            return Err(
                OverlayError::io("look at", path, io::Error::new(io::ErrorKind::NotFound, what)).into()
            );
        }
        let found = overlay.would_free(Some(path), None, &mut keep_going)?;
        (found, found.map_or(0, |found| found.files), found.map_or(0, |found| found.bytes))
    };
    let found = found.ok_or(AdminError::Interrupted)?;
    Ok(WouldFreeReport {
        of: shown(path),
        files,
        logical_bytes: bytes,
        frees_bytes: found.freed_bytes,
        frees_after_history_bytes: found.after_history_bytes,
        frees_plain_bytes: found.plain_bytes,
        unknown: found.unknown,
    })
}
