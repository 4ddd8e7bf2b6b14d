use super::text::shown;
use super::{AdminError, Report, catch_up};
use crate::history::{History, HistoryError, Listed, Node, short_id};
use crate::overlay::Overlay;
use crate::overlay::stub::Time;
use crate::repo::Repo;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// The versions of a file, or, without one, what all versions take.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogReport {
    /// The file, below the overlay's root; empty if none was asked for.
    pub path: String,
    /// The oldest first; those that were given up are left out.
    pub versions: Vec<VersionRow>,
    /// How many were given up by the rules.
    pub given_up: u64,
    /// Of a file without versions, as one that was never taken into the store by itself: the snapshots that have it, the
    /// oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub snapshots: Vec<SnapshotOfFile>,
    /// Whether it has no new version because it is rewritten as a whole again and again.
    #[serde(default)]
    pub kept_plain: bool,
    /// What all versions and snapshots take.
    #[serde(default)]
    pub history: HistoryUse,
}

/// What versions and snapshots take, as of the last collection. Bytes on disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryUse {
    /// What only versions and snapshots without a name need.
    pub bytes: u64,
    /// The most that this may be.
    pub max_bytes: u64,
    /// What snapshots with a name need besides.
    pub named_snapshots_bytes: u64,
    /// Whether those alone keep the disk nearly full.
    pub snapshots_fill_disk: bool,
}

impl HistoryUse {
    /// Of an overlay as it is now.
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

/// A file as a snapshot has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotOfFile {
    /// The snapshot's id.
    pub id: String,
    /// Its name, or empty.
    pub name: String,
    /// When it was taken (RFC 3339).
    pub time: String,
    /// When the content was last changed (RFC 3339).
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
    /// When it was taken into the store (RFC 3339).
    pub time: String,
    /// When its content was last changed (RFC 3339).
    pub mtime: String,
    /// Its length in bytes.
    pub size: u64,
    /// Its content.
    pub recipe: String,
    /// On which machine.
    pub machine: String,
    /// Where it was then, below the overlay's root.
    pub path: String,
    /// Permission bits, octal.
    pub mode: String,
}

/// A time as it is shown: RFC 3339 in UTC.
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

/// Lists what there is of a file, once what was closed before is taken in.
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

/// The snapshots that have a file at a path. O(snapshots * depth * log entries).
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
