//! The versions of a file, followed through renames of the file and of its parent directories.
//!
//! All versions that were ever at the given path count, of any file: programs save by writing another file
//! and renaming it over the first. If a file came to the path by a rename, its earlier versions count too,
//! back to the point where its former path was empty.
//!
//! Versions are numbered from 1 in the order in which they came to the path, including dropped ones. So a
//! number never changes. Versions that came by renames stand where the last of them was, in the order of the
//! earlier ones.
//!
//! A file with several names has its versions under each of them, all with the time of the commit. If a
//! commit appears under two names in sequence, one is listed.

use super::error::Result;
use super::event::{EventId, Version, What};
use super::log::{Log, Role, Row};
use crate::backing::stub::Time;
use crate::id::FileId;
use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};

/// Limit of renames followed in sequence.
const DEPTH_MAX: usize = 64;

/// A listed version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its number, from 1.
    pub n: u64,
    /// When it was committed.
    pub time: Time,
    /// The machine of the commit.
    pub machine: String,
    /// The version, with its path then.
    pub version: Version,
    pub(super) event: EventId,
}

struct Lineage<'a> {
    log: &'a Log,
    /// Events of versions, and the order of each: the renames by which it came to the given path, the last
    /// one first, then its own.
    found: BTreeMap<EventId, Vec<EventId>>,
}

/// Returns all versions of `path`, in order. `others` are events of versions of the present file.
pub(super) fn versions(log: &Log, path: &Path, others: &[EventId]) -> Result<Vec<Listed>> {
    let mut lineage = Lineage { log, found: BTreeMap::new() };
    lineage.walk(path, EventId(u64::MAX), &[])?;
    let mut listed: Vec<(Vec<EventId>, Listed)> = Vec::new();
    for (id, order) in std::mem::take(&mut lineage.found) {
        listed.extend(lineage.listed(id)?.map(|found| (order, found)));
    }
    let commits: HashSet<_> = listed.iter().map(|(_, found)| found.commit()).collect();
    let known: HashSet<_> = listed.iter().map(|(_, found)| found.event).collect();
    for id in others.iter().filter(|id| !known.contains(id)) {
        let found = lineage.listed(*id)?.filter(|found| !commits.contains(&found.commit()));
        listed.extend(found.map(|found| (vec![*id], found)));
    }
    listed.sort_unstable_by(|a, b| a.0.cmp(&b.0));
    let mut listed: Vec<Listed> = listed.into_iter().map(|(_, found)| found).collect();
    listed.dedup_by_key(|found| found.commit());
    number(&mut listed);
    Ok(listed)
}

/// Numbers versions from 1. A dropped one may stand for others before it.
fn number(listed: &mut [Listed]) {
    for i in 0..listed.len() {
        let (before, rest) = listed.split_at_mut(i);
        let Some(found) = rest.first_mut() else { return };
        found.n = before.last().map_or(0, |last| last.n) + 1;
        if let Some(run) = found.version.run
            && let Some(first) = before.iter().rev().find(|other| other.event <= run.first)
            && first.event == run.first
        {
            found.n = found.n.max(first.n + run.count - 1);
        }
    }
}

/// Returns the version at `path`, if no later event of the path is known.
pub(super) fn last_at(log: &Log, path: &Path) -> Result<Option<Version>> {
    let Some((row, _)) = events(log, path)?.pop() else { return Ok(None) };
    let Some((event, _)) = log.event(row.event)? else { return Ok(None) };
    Ok(match event.what {
        What::Version(version) if version.path == path => Some(version),
        _ => None,
    })
}

/// Returns the events of `path`: its own, and renames and removals of directories above it.
fn events(log: &Log, path: &Path) -> Result<Vec<(Row, PathBuf)>> {
    let mut rows: Vec<(Row, PathBuf)> =
        log.of_path(path)?.into_iter().map(|row| (row, path.to_owned())).collect();
    for above in path.ancestors().skip(1).filter(|above| !above.as_os_str().is_empty()) {
        let of_directory = log.of_path(above)?.into_iter().filter(|row| row.role.of_directory());
        rows.extend(of_directory.map(|row| (row, above.to_owned())));
    }
    rows.sort_unstable_by_key(|(row, _)| row.event);
    Ok(rows)
}

/// Maps `path` by a rename of `at` (itself or a directory above it) to or from `other`.
pub(super) fn moved(path: &Path, at: &Path, other: &Path) -> PathBuf {
    match path.strip_prefix(at) {
        Ok(rest) if rest.as_os_str().is_empty() => other.to_owned(),
        Ok(rest) => other.join(rest),
        Err(_) => path.to_owned(),
    }
}

/// Returns the other end of a rename, seen from `at`; `None` if it concerns another path with the same hash.
pub(super) fn other_end(log: &Log, row: &Row, at: &Path) -> Result<Option<PathBuf>> {
    let Some((event, _)) = log.event(row.event)? else { return Ok(None) };
    let (from, to, exchanged) = match event.what {
        What::Renamed { from, to, exchanged, .. } => (from, to, exchanged),
        What::Linked { from, to } => (from, to, false),
        _ => return Ok(None),
    };
    Ok(match row.role {
        Role::Left { .. } if from == at => Some(to),
        Role::Came { .. } if to == at => Some(from),
        Role::Exchanged { .. } if exchanged && from == at => Some(to),
        Role::Exchanged { .. } if exchanged && to == at => Some(from),
        _ => None,
    })
}

impl Lineage<'_> {
    /// Gathers the versions at `path` before an event. For a path with a rename to the given one, stops where
    /// it was another file.
    fn walk(&mut self, path: &Path, before: EventId, came: &[EventId]) -> Result<()> {
        if came.len() > DEPTH_MAX {
            return Ok(());
        }
        let order = |event: EventId| [came, &[event]].concat();
        for (row, at) in events(self.log, path)?.into_iter().rev().filter(|(row, _)| row.event < before) {
            match row.role {
                Role::Version => {
                    if self.is_at(row.event, path)? {
                        self.found.entry(row.event).or_insert_with(|| order(row.event));
                    }
                }
                Role::Removed { .. } | Role::Left { .. } => {
                    if !came.is_empty() {
                        return Ok(());
                    }
                }
                Role::Came { .. } | Role::Exchanged { .. } => {
                    if let Some(other) = other_end(self.log, &row, &at)? {
                        let earlier = moved(path, &at, &other);
                        self.walk(&earlier, row.event, &order(row.event))?;
                        if !came.is_empty() && matches!(row.role, Role::Exchanged { .. }) {
                            return Ok(());
                        }
                    }
                }
            }
        }
        Ok(())
    }

    fn is_at(&self, id: EventId, path: &Path) -> Result<bool> {
        let event = self.log.event(id)?;
        Ok(event
            .is_some_and(|(event, _)| matches!(event.what, What::Version(version) if version.path == path)))
    }

    /// Returns the version of an event, without a number.
    fn listed(&self, id: EventId) -> Result<Option<Listed>> {
        let Some((event, machine)) = self.log.event(id)? else { return Ok(None) };
        let What::Version(version) = event.what else { return Ok(None) };
        Ok(Some(Listed { n: 0, time: event.time, machine, version, event: id }))
    }
}

impl Listed {
    /// Identifies the commit of an event.
    fn commit(&self) -> (FileId, Time) {
        (self.version.file, self.time)
    }
}
