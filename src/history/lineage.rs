//! The versions of a file, followed through renames of it and of the directories above it.
//!
//! Of the path that is asked about all versions count that were ever there, whichever file it was: programs save by
//! writing another file and renaming it over the first. Where something came to the path by a rename, what it was before
//! counts too, as far back as it was the same thing: until its former path was vacated before.
//!
//! Versions are numbered from 1 in the order in which they came to the path, also those that were given up since. So a
//! number stays what it is.

use super::error::Result;
use super::event::{EventId, Version, What};
use super::log::{Log, Role, Row};
use crate::overlay::stub::Time;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Renames followed one after the other.
const DEPTH_MAX: usize = 64;

/// A version of a file as it is listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its number, from 1.
    pub n: u64,
    /// When it was committed.
    pub time: Time,
    /// On which machine.
    pub machine: String,
    /// The version; its path is the one that it had then.
    pub version: Version,
    pub(super) event: EventId,
}

struct Lineage<'a> {
    log: &'a Log,
    /// Events of versions, and the event by which each came to the path asked about.
    found: BTreeMap<EventId, EventId>,
}

/// All versions of `path`, in order. `others` are events of versions of the file that is there now.
pub(super) fn versions(log: &Log, path: &Path, others: &[EventId]) -> Result<Vec<Listed>> {
    let mut lineage = Lineage { log, found: BTreeMap::new() };
    lineage.walk(path, EventId(u64::MAX), None, 0)?;
    for event in others {
        lineage.found.entry(*event).or_insert(*event);
    }
    let mut order: Vec<(EventId, EventId)> =
        lineage.found.into_iter().map(|(event, came)| (came, event)).collect();
    order.sort_unstable();
    let mut listed = Vec::with_capacity(order.len());
    for (_, id) in order {
        if let Some((event, machine)) = log.event(id)?
            && let What::Version(version) = event.what
        {
            listed.push(Listed { n: listed.len() as u64 + 1, time: event.time, machine, version, event: id });
        }
    }
    Ok(listed)
}

/// The version at `path`, if nothing is known to have happened to the path since.
pub(super) fn last_at(log: &Log, path: &Path) -> Result<Option<Version>> {
    let Some((row, _)) = events(log, path)?.pop() else { return Ok(None) };
    let Some((event, _)) = log.event(row.event)? else { return Ok(None) };
    Ok(match event.what {
        What::Version(version) if version.path == path => Some(version),
        _ => None,
    })
}

/// Events that concern `path`: its own, and renames and removals of directories above it.
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

/// Where `path` was, or is, if `at`, which it is or which is above it, was or is `other`.
pub(super) fn moved(path: &Path, at: &Path, other: &Path) -> PathBuf {
    match path.strip_prefix(at) {
        Ok(rest) if rest.as_os_str().is_empty() => other.to_owned(),
        Ok(rest) => other.join(rest),
        Err(_) => path.to_owned(),
    }
}

/// Where a rename led from or to, seen from `at`; `None` if it is about another path with the same hash.
pub(super) fn other_end(log: &Log, row: &Row, at: &Path) -> Result<Option<PathBuf>> {
    let Some((event, _)) = log.event(row.event)? else { return Ok(None) };
    let What::Renamed { from, to, exchanged, .. } = event.what else { return Ok(None) };
    Ok(match row.role {
        Role::Left { .. } if from == at => Some(to),
        Role::Came { .. } if to == at => Some(from),
        Role::Exchanged { .. } if exchanged && from == at => Some(to),
        Role::Exchanged { .. } if exchanged && to == at => Some(from),
        _ => None,
    })
}

impl Lineage<'_> {
    /// Gathers the versions at `path` before an event. With `came`, by which they came to the path asked about, only as far
    /// back as it is the same thing.
    fn walk(&mut self, path: &Path, before: EventId, came: Option<EventId>, depth: usize) -> Result<()> {
        if depth > DEPTH_MAX {
            return Ok(());
        }
        for (row, at) in events(self.log, path)?.into_iter().rev().filter(|(row, _)| row.event < before) {
            match row.role {
                Role::Version => {
                    if self.is_at(row.event, path)? {
                        self.found.entry(row.event).or_insert(came.unwrap_or(row.event));
                    }
                }
                Role::Removed { .. } | Role::Left { .. } => {
                    if came.is_some() {
                        return Ok(());
                    }
                }
                Role::Came { .. } | Role::Exchanged { .. } => {
                    if let Some(other) = other_end(self.log, &row, &at)? {
                        let earlier = moved(path, &at, &other);
                        self.walk(&earlier, row.event, Some(came.unwrap_or(row.event)), depth + 1)?;
                        if came.is_some() && matches!(row.role, Role::Exchanged { .. }) {
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
}
