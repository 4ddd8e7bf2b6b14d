use super::text::shown;
use super::{AdminError, Report, catch_up};
use crate::backing::stub::Time;
use crate::history::{History, HistoryError, Listed, Node, short_id};
use crate::overlay::Overlay;
use crate::repo::Repo;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// The versions of a file; without a file, the space of all versions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogReport {
    /// The file, below the overlay's root; empty without one.
    pub path: String,
    /// The oldest first, without dropped ones.
    pub versions: Vec<VersionRow>,
    /// Number of versions that the rules dropped.
    pub given_up: u64,
    /// For a file without versions, for example one that was never stored: the snapshots that contain it, the
    /// oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub snapshots: Vec<SnapshotOfFile>,
    /// Whether it has no new version because it is repeatedly rewritten as a whole.
    #[serde(default)]
    pub kept_plain: bool,
    /// Space of all versions and snapshots.
    #[serde(default)]
    pub history: HistoryUse,
}

/// Space of versions and snapshots at the last collection. Bytes on disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryUse {
    /// Bytes that only versions and unnamed snapshots need.
    pub bytes: u64,
    /// Their limit.
    pub max_bytes: u64,
    /// Further bytes that named snapshots need.
    pub named_snapshots_bytes: u64,
    /// Whether named snapshots alone keep the disk nearly full.
    pub snapshots_fill_disk: bool,
}

impl HistoryUse {
    /// Returns the present state of an overlay.
    pub(super) fn of(overlay: &Overlay) -> HistoryUse {
        let held = overlay.held_for_history();
        HistoryUse {
            bytes: held.yielding_bytes,
            max_bytes: overlay.history_bytes_max(),
            named_snapshots_bytes: held.bytes.saturating_sub(held.yielding_bytes),
            snapshots_fill_disk: overlay.bytes_of_filling_snapshots().is_some(),
        }
    }
}

/// A file in a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotOfFile {
    /// The snapshot's id.
    pub id: String,
    /// Its name, or empty.
    pub name: String,
    /// Time of the snapshot (RFC 3339).
    pub time: String,
    /// Last change of the content (RFC 3339).
    pub mtime: String,
    /// Its length in bytes.
    pub size: u64,
    /// The content; none if it is empty.
    pub recipe: Option<String>,
}

/// A version of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VersionRow {
    /// Its number: `FILE@N`.
    pub n: u64,
    /// Time of the commit (RFC 3339).
    pub time: String,
    /// Last change of its content (RFC 3339).
    pub mtime: String,
    /// Its length in bytes.
    pub size: u64,
    /// Its content.
    pub recipe: String,
    /// The machine.
    pub machine: String,
    /// Its path then, below the overlay's root.
    pub path: String,
    /// Permission bits, octal.
    pub mode: String,
}

/// Formats a time as RFC 3339 in UTC.
pub(super) fn time_text(time: Time) -> String {
    jiff::Timestamp::new(time.sec, time.nsec as i32)
        .map_or_else(|_| time.sec.to_string(), |time| time.to_string())
}

impl VersionRow {
    fn of(listed: Listed) -> VersionRow {
        let Listed { n, time, machine, version, .. } = listed;
        VersionRow {
            n,
            time: time_text(time),
            mtime: time_text(version.meta.mtime),
            size: version.size,
            recipe: version.recipe.to_string(),
            machine,
            path: shown(&version.path),
            mode: format!("{:04o}", version.meta.mode),
        }
    }
}

/// Lists the versions of a file, after earlier closed files are committed.
pub(super) fn log(repo: &Repo, path: &Path, report: Report<'_>) -> Result<LogReport, AdminError> {
    catch_up(repo, report)?;
    let history = HistoryUse::of(repo.overlay());
    if path.as_os_str().is_empty() {
        return Ok(LogReport { history, ..LogReport::default() });
    }
    let all = repo.history().versions(path)?;
    let numbered = all.last().map_or(0, |last| last.n);
    let versions: Vec<_> = all.into_iter().filter(|listed| listed.version.kept).map(VersionRow::of).collect();
    let given_up = numbered - versions.len() as u64;
    let snapshots = if versions.is_empty() { snapshots_of(repo.history(), path)? } else { Vec::new() };
    let kept_plain = repo.overlay().is_kept_plain(path);
    Ok(LogReport { path: shown(path), versions, given_up, snapshots, kept_plain, history })
}

/// Returns the snapshots with a file at a path. O(snapshots * depth * log entries).
fn snapshots_of(history: &History, path: &Path) -> Result<Vec<SnapshotOfFile>, AdminError> {
    let mut found = Vec::new();
    for (id, snapshot) in history.snapshots() {
        let entry = match history.entry_in(&id, &snapshot, path) {
            Ok(entry) => entry,
            Err(HistoryError::NotInSnapshot { .. }) => continue,
            Err(e) => return Err(e.into()),
        };
        if let Node::File { size, recipe, .. } = entry.node {
            found.push(SnapshotOfFile {
                id: short_id(&id),
                name: snapshot.name.clone(),
                time: time_text(snapshot.time),
                mtime: time_text(entry.meta.mtime),
                size,
                recipe: recipe.map(|recipe| recipe.to_string()),
            });
        }
    }
    Ok(found)
}
