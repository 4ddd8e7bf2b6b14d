//! Compaction of the log: removes events of paths whose versions were dropped.
//!
//! Invariants: kept versions keep their numbers and their end times, even if only some of the batches have
//! been rewritten, in their order. A collection that drops a version does not remove its event, so that
//! `dedupctl log` can report it as dropped until the next collection.
//!
//! 1. *Dead paths*: nothing is there, no kept version was there, the same holds for every path that it was
//!    renamed from or to, or linked with, and no directory above it was renamed. All events of files at such
//!    paths are removed.
//! 2. *Runs*: among dropped versions in sequence, of one file at one path, the first says when its
//!    predecessor ended, and the last how many they are (`Run`). Those in between are removed. The count in
//!    the last one is durable before.
//!
//! A removed event leaves its place empty: the others keep theirs. Its rows are removed first, so that
//! compaction finds it again after a kill.
//!
//! O(events) time; memory: about 50 bytes for each path with a dropped version, and for each renamed path.

use super::error::Result;
use super::event::{Batch, Event, EventId, Run, What};
use super::log::{Log, hash};
use crate::id::FileId;
use std::collections::btree_map::{BTreeMap, Entry};
use std::collections::{HashMap, HashSet};
use std::path::Path;

/// Batches rewritten at once.
const CHANGED_MAX: usize = 64;

/// Returns whether a file is at a path.
pub(super) type Exists<'a> = &'a mut dyn FnMut(&Path) -> Result<bool>;
/// Durably replaces batches with higher revisions of the same numbers.
pub(super) type Replace<'a> = &'a mut dyn FnMut(Vec<Batch>) -> Result<()>;

/// Compacts the batches below `end`. False if `keep_going` returned false: finished steps are complete. Does
/// nothing if a batch cannot be read: it may need all others.
pub(super) fn compact(
    log: &Log,
    end: u64,
    exists: Exists<'_>,
    replace: Replace<'_>,
    keep_going: &mut dyn FnMut() -> bool,
) -> Result<bool> {
    let mut paths = Paths::default();
    for pass in [Paths::join_events, Paths::look_at_events] {
        for number in 0..end {
            match log.batch(number) {
                Ok(Some(batch)) => pass(&mut paths, &batch.events, &mut *exists)?,
                Ok(None) => {}
                Err(_) => return Ok(true),
            }
            if !keep_going() {
                return Ok(false);
            }
        }
    }
    let mut changes = Changes { log, replace, longer: BTreeMap::new(), gone: BTreeMap::new() };
    let mut runs = Runs::default();
    for number in 0..end {
        let Some(batch) = log.batch(number)? else { continue };
        for (place, event) in batch.events.iter().enumerate() {
            let id = EventId::new(number, place);
            if paths.is_dead(&event.what) {
                changes.gone.entry(number).or_default().push(place);
            } else if let Some((between, run)) = runs.next(id, &event.what, &paths) {
                changes.longer.insert(id, run);
                changes.gone.entry(between.batch()).or_default().push(between.place());
            }
        }
        if changes.longer.len() + changes.gone.len() >= CHANGED_MAX {
            changes.write()?;
        }
        if !keep_going() {
            changes.write()?;
            return Ok(false);
        }
    }
    changes.write()?;
    Ok(true)
}

/// State of paths, by their hashes: two paths with one hash count as one, and so both stay if one does.
#[derive(Default)]
struct Paths {
    /// Related paths, as a forest.
    above: HashMap<u64, u64>,
    /// Renamed directories.
    moved: HashSet<u64>,
    looked_at: HashSet<u64>,
    /// Roots of trees in the forest with a path that is not dead.
    alive: HashSet<u64>,
}

impl Paths {
    fn root(&self, mut path: u64) -> u64 {
        while let Some(above) = self.above.get(&path) {
            path = *above;
        }
        path
    }

    fn join_events(&mut self, events: &[Event], _: Exists<'_>) -> Result<()> {
        for event in events {
            match &event.what {
                What::Renamed { from, to, directory: true, .. } => {
                    self.moved.extend([hash(from), hash(to)]);
                }
                What::Renamed { from, to, .. } | What::Linked { from, to } => {
                    let (from, to) = (self.root(hash(from)), self.root(hash(to)));
                    if from != to {
                        self.above.insert(from, to);
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn look_at_events(&mut self, events: &[Event], exists: Exists<'_>) -> Result<()> {
        for event in events {
            if let What::Version(version) = &event.what
                && version.kept
            {
                self.alive.insert(self.root(hash(&version.path)));
            }
        }
        for path in events.iter().flat_map(|event| event.what.paths()) {
            let (of, root) = (hash(path), self.root(hash(path)));
            if !self.alive.contains(&root)
                && self.looked_at.insert(of)
                && (self.was_moved(path) || exists(path)?)
            {
                self.alive.insert(root);
            }
        }
        Ok(())
    }

    /// Whether it or a directory above it was renamed as a directory.
    fn was_moved(&self, path: &Path) -> bool {
        !self.moved.is_empty() && path.ancestors().any(|above| self.moved.contains(&hash(above)))
    }

    fn is_dead(&self, what: &What) -> bool {
        let of_files = match what {
            What::Version(version) => !version.kept,
            What::Renamed { directory, .. } | What::Removed { directory, .. } => !directory,
            What::Linked { .. } => true,
            What::SnapshotRemoved(_) | What::Gone => false,
        };
        of_files && what.paths().all(|path| !self.alive.contains(&self.root(hash(path))))
    }
}

/// Runs that may continue.
#[derive(Default)]
struct Runs {
    /// For each path, the run that ends with the last event there, and its file.
    at: HashMap<u64, (FileId, Run, EventId)>,
    /// The last version of each of these files: a file with several names gets no run.
    of_file: HashMap<FileId, EventId>,
}

impl Runs {
    /// Adds an event. If it continues a run whose last event was not the first, returns that event, which may
    /// be removed, and the run that this event must record.
    fn next(&mut self, id: EventId, what: &What, paths: &Paths) -> Option<(EventId, Run)> {
        let given_up = match what {
            What::Version(version) if !version.kept && !paths.was_moved(&version.path) => version,
            _ => {
                // A rename from or to a path separates runs.
                what.paths().for_each(|path| {
                    self.at.remove(&hash(path));
                });
                if let What::Version(version) = what {
                    self.of_file.insert(version.file, id);
                }
                return None;
            }
        };
        let (path, file) = (hash(&given_up.path), given_up.file);
        let last_of_file = self.of_file.insert(file, id);
        let before = self.at.get(&path).filter(|(of, _, last)| *of == file && last_of_file == Some(*last));
        let begun = Run { first: id, count: 1 };
        let (run, between) = match before {
            Some((_, run, last)) => {
                let run = Run { count: run.count + 1, ..*run };
                // It counts the earlier ones.
                let known = given_up.run.filter(|known| known.first == run.first && known.count > run.count);
                (known.unwrap_or(run), (*last != run.first).then_some(*last))
            }
            None => (begun, None),
        };
        self.at.insert(path, (file, run, id));
        between.map(|between| (between, run))
    }
}

/// Pending rewrites.
struct Changes<'a> {
    log: &'a Log,
    replace: Replace<'a>,
    /// Runs that became longer, by their last events.
    longer: BTreeMap<EventId, Run>,
    /// Places of events to remove.
    gone: BTreeMap<u64, Vec<usize>>,
}

impl Changes<'_> {
    fn write(&mut self) -> Result<()> {
        let mut batches = BTreeMap::<u64, Batch>::new();
        for (id, run) in std::mem::take(&mut self.longer) {
            if let Some(batch) = self.changed(&mut batches, id.batch())?
                && let Some(Event { what: What::Version(version), .. }) = batch.events.get_mut(id.place())
            {
                version.run = Some(run);
            }
        }
        // Durable before any event that they count is removed.
        (self.replace)(batches.into_values().collect())?;
        let (mut batches, mut events) = (BTreeMap::<u64, Batch>::new(), Vec::new());
        for (number, places) in std::mem::take(&mut self.gone) {
            let Some(batch) = self.changed(&mut batches, number)? else { continue };
            for place in places {
                if let Some(event) = batch.events.get_mut(place) {
                    let gone = Event { time: Default::default(), what: What::Gone };
                    events.push((EventId::new(number, place), std::mem::replace(event, gone)));
                }
            }
        }
        self.log.forget_rows(&events)?;
        (self.replace)(batches.into_values().collect())
    }

    /// Returns a batch that is to be rewritten.
    fn changed<'b>(
        &self,
        batches: &'b mut BTreeMap<u64, Batch>,
        number: u64,
    ) -> Result<Option<&'b mut Batch>> {
        Ok(match batches.entry(number) {
            Entry::Occupied(known) => Some(known.into_mut()),
            Entry::Vacant(place) => {
                let Some(batch) = self.log.batch(number)? else { return Ok(None) };
                Some(place.insert(Batch { revision: batch.revision + 1, ..(*batch).clone() }))
            }
        })
    }
}

#[cfg(test)]
mod tests;
