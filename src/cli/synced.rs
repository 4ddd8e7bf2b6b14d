//! The last sync with each device, for `dedupctl status`: `synced.toml` in the sync state. Losing it loses nothing else, so it
//! is not synced to the disk.

use super::error::CliError;
use crate::sync::Session;
use crate::sync::tree::shown;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

const NAME: &str = "synced.toml";

/// The last sync with a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Row {
    /// The peer as the user named it; none on the called side.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    peer: Option<String>,
    /// RFC 3339.
    time: String,
    /// Number of entries that the selection of this device leaves out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    left_out: Option<u64>,
    /// Copies of files in conflict, below the root, in bytes as hexadecimal digits: names need not be text.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    copies: Vec<String>,
}

/// The last sync with a device, as `status` shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct LastSync {
    /// The device.
    pub device: String,
    /// The peer as the user named it; none if the other side began the sync.
    pub peer: Option<String>,
    /// RFC 3339.
    pub time: String,
    /// Number of entries that the selection of this device left out, if it had one.
    pub left_out: Option<u64>,
    /// Copies of files in conflict that are still there.
    pub conflicts: Vec<String>,
}

/// Returns a number of entries as text.
pub(super) fn entries(n: u64) -> String {
    if n == 1 { "1 entry".to_owned() } else { format!("{n} entries") }
}

/// Returns the path, if it stays below the root.
fn path_of(copy: &str) -> Option<PathBuf> {
    let digits = (0..copy.len()).step_by(2).map(|at| u8::from_str_radix(copy.get(at..at + 2)?, 16).ok());
    let path = PathBuf::from(OsString::from_vec(digits.collect::<Option<Vec<u8>>>()?));
    path.components().all(|part| matches!(part, Component::Normal(_))).then_some(path)
}

fn read(memory: &Path) -> BTreeMap<String, Row> {
    let text = std::fs::read_to_string(memory.join(NAME)).unwrap_or_default();
    toml::from_str(&text).unwrap_or_default()
}

/// Notes that `session` is over. Its conflicts join those that are still in the tree at `root`.
pub(super) fn note(
    memory: &Path,
    root: &Path,
    session: &Session,
    peer: Option<&str>,
) -> Result<(), CliError> {
    let Some(device) = session.peer() else { return Ok(()) };
    let mut rows = read(memory);
    let before = rows.remove(device.as_str());
    let hex = |path: &Vec<u8>| path.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let is_there =
        |copy: &String| path_of(copy).is_some_and(|path| root.join(path).symlink_metadata().is_ok());
    let mut copies: Vec<String> = before.iter().flat_map(|row| row.copies.clone()).filter(is_there).collect();
    copies.extend(session.outcome().conflicts.iter().map(|conflict| hex(&conflict.copy)));
    copies.sort();
    copies.dedup();
    let peer = peer.map(str::to_owned).or_else(|| before.and_then(|row| row.peer));
    let time = jiff::Timestamp::from_second(jiff::Timestamp::now().as_second()).unwrap_or_default();
    let left_out = session.outcome().left_out;
    rows.insert(device.to_string(), Row { peer, time: time.to_string(), left_out, copies });
    let path = memory.join(NAME);
    let text = toml::to_string(&rows).map_err(|e| CliError::new(e.to_string()))?;
    let new = memory.join("synced.toml.new");
    let written = std::fs::write(&new, text).and_then(|()| std::fs::rename(&new, &path));
    written.map_err(|e| CliError::io("write", &path, &e))
}

/// Returns the last sync with each device, with conflicts that are still in the tree at `root`.
pub(super) fn list(memory: &Path, root: &Path) -> Vec<LastSync> {
    let rows = read(memory).into_iter().map(|(device, row)| {
        let there = row.copies.iter().filter_map(|copy| path_of(copy));
        let there = there.filter(|path| root.join(path).symlink_metadata().is_ok());
        let conflicts = there.map(|path| shown(&path.into_os_string().into_vec())).collect();
        LastSync { device, peer: row.peer, time: row.time, left_out: row.left_out, conflicts }
    });
    rows.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_conflicts_that_are_there_are_listed() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("copy\u{fc}"), "x").unwrap();
        let hex = |name: &str| name.bytes().map(|byte| format!("{byte:02x}")).collect::<String>();
        let copies = vec![hex("copy\u{fc}"), hex("gone"), hex("/dev/null"), hex("../."), "xyz".to_owned()];
        let (peer, time) = (Some("disk".to_owned()), "2026-01-02T03:04:05Z".to_owned());
        let row = Row { peer, time, left_out: Some(3), copies };
        let rows = BTreeMap::from([("laptop-00000001".to_owned(), row)]);
        std::fs::write(dir.path().join(NAME), toml::to_string(&rows).unwrap()).unwrap();
        let found = list(dir.path(), dir.path());
        assert_eq!((found.len(), &*found[0].conflicts[0], found[0].conflicts.len()), (1, "copy\u{fc}", 1));
        assert_eq!(found[0].left_out, Some(3));
        std::fs::write(dir.path().join(NAME), "no table").unwrap();
        assert_eq!(list(dir.path(), dir.path()), []);
    }
}
