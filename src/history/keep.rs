//! Garbage collection of the history: keeps versions by the rules, and everything that snapshots need.
//!
//! Invariants: a listed version can be restored. So a version that the rules drop is first marked, durably;
//! only then does the collection ignore it. If a version's recipe is damaged, its needs are unknown, so
//! everything stored by then is kept (`unreadable`).
//!
//! If the store exceeds the budget of the history, former versions are first gathered and then kept by their
//! value ([`super::budget`]).
//!
//! O(events) time; memory: one batch, the budget's candidates, and the directories of one snapshot at a time.

use super::budget::Budget;
use super::error::{HistoryError, Result};
use super::event::{Batch, Event, EventId, Version, What};
use super::lineage::{moved, other_end};
use super::log::{Log, Role, Row, is_missing};
use super::retention::Moments;
use super::unreadable::Unreadable;
use crate::backing::stub::Time;
use crate::contents::OverlayError;
use crate::db::DbError;
use crate::id::RecipeId;
use crate::overlay::Overlay;
use crate::store::{Collection, StoreError};
use crate::tree::KeptForHistory;
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

/// Limit of renames followed in sequence.
const DEPTH_MAX: usize = 64;
/// Directories whose renames are cached.
const DIRS_MAX: usize = 64 << 10;
/// Batches rewritten at once.
const REPLACED_MAX: usize = 64;

/// Former contents that would be lost with the store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Former {
    /// How many versions there are that no file has any more.
    pub versions: u64,
    /// The path of the first of them, below the root.
    pub first: Option<PathBuf>,
    /// How many snapshots there are.
    pub snapshots: u64,
}

/// The end of a version.
enum End {
    /// It is the present content.
    Open,
    /// Another content replaced it, or it was removed, at this time.
    At(i64),
    /// It is not there any more, and no event says when it disappeared.
    Unseen(PathBuf),
}

pub(super) struct Keeper<'a> {
    log: &'a Log,
    overlay: &'a Overlay,
    moments: Moments,
    /// Places of dropped versions, by batch, until they are written.
    given_up: BTreeMap<u64, Vec<usize>>,
    /// Renames and removals of each directory.
    dirs: HashMap<PathBuf, Vec<Row>>,
}

impl<'a> Keeper<'a> {
    pub(super) fn new(log: &'a Log, overlay: &'a Overlay, moments: Moments) -> Keeper<'a> {
        Keeper { log, overlay, moments, given_up: BTreeMap::new(), dirs: HashMap::new() }
    }

    /// Visits all versions, drops those that the rules do not keep, unless `dry_run`, and reports the rest to
    /// the collection.
    pub(super) fn versions(
        &mut self,
        collection: &Collection<'_>,
        unreadable: &mut Unreadable<'_>,
        budget: &mut Budget,
        dry_run: bool,
        kept: &mut KeptForHistory,
        keep_going: &mut dyn FnMut() -> bool,
    ) -> Result<bool> {
        let end = with_room(collection, || self.log.write())?;
        let mut unseen: Vec<PathBuf> = Vec::new();
        let (choose, now) = (!budget.covers(collection.stored_bytes()), Time::now().sec);
        for number in 0..end {
            let batch = match self.log.use_batch(number) {
                Ok(Some(batch)) => batch,
                Ok(None) => continue,
                Err(e) => {
                    let what = format!("batch {number} of the history");
                    unreadable.leave(&what, &number.to_be_bytes(), e).map_err(|e| unsure(what, e))?;
                    continue;
                }
            };
            for (place, event) in batch.events.iter().enumerate() {
                let What::Version(version) = &event.what else { continue };
                if !version.kept {
                    continue;
                }
                let until = match self.end_of(&version.path, EventId::new(number, place), version, 0)? {
                    End::Open => None,
                    End::At(time) => Some(time),
                    End::Unseen(path) => {
                        unseen.push(path);
                        Some(now)
                    }
                };
                let wanted = self.overlay.tree.keeps_history(&version.path);
                let id = EventId::new(number, place);
                if !(wanted && self.moments.keep(event.time.sec, until)) {
                    self.give_up(id, kept);
                } else if let Some(until) = until.filter(|_| choose) {
                    budget.add(id, version.recipe, event.time.sec, until, now);
                } else {
                    let what = || version.path.display().to_string();
                    self.keep(collection, unreadable, budget, (id, &version.recipe), &what, kept)?;
                }
            }
            if self.given_up.len() >= REPLACED_MAX {
                self.write_given_up(collection, dry_run)?;
            }
            if !keep_going() {
                return Ok(false);
            }
        }
        for one in budget.take_candidates() {
            let cost = collection.bytes_more(&one.recipe);
            if cost.is_ok_and(|bytes| !budget.fits(bytes)) {
                self.give_up(one.event, kept);
                kept.thinned += 1;
            } else {
                let what = || format!("a version of {}", one.recipe);
                self.keep(collection, unreadable, budget, (one.event, &one.recipe), &what, kept)?;
            }
            if self.given_up.len() >= REPLACED_MAX {
                self.write_given_up(collection, dry_run)?;
            }
            if !keep_going() {
                return Ok(false);
            }
        }
        self.write_given_up(collection, dry_run)?;
        if !dry_run {
            // Their time ends now.
            for path in unseen {
                let what = What::Removed { path, directory: false };
                self.log.add(Event { time: Time::now(), what });
            }
        }
        Ok(true)
    }

    /// Reports a version to the collection, or drops it if it cannot be restored.
    fn keep(
        &mut self,
        collection: &Collection<'_>,
        unreadable: &mut Unreadable<'_>,
        budget: &mut Budget,
        (id, recipe): (EventId, &RecipeId),
        what: &dyn Fn() -> String,
        kept: &mut KeptForHistory,
    ) -> Result<()> {
        match collection.keep_more(recipe) {
            Ok(bytes) => {
                budget.spend(bytes);
                kept.bytes += bytes;
                kept.yielding_bytes += bytes;
            }
            Err(e) if is_missing(&e) => {
                tracing::warn!("{}: a version of it cannot be had any more: {e}", what());
                self.give_up(id, kept);
                return Ok(());
            }
            Err(e) => {
                let left = unreadable.leave(&what(), &recipe.0, e.into());
                left.map_err(|e| unsure(what(), e))?;
            }
        }
        kept.versions += 1;
        Ok(())
    }

    fn give_up(&mut self, id: EventId, kept: &mut KeptForHistory) {
        kept.dropped += 1;
        self.given_up.entry(id.batch()).or_default().push(id.place());
    }

    /// Durably writes which versions are dropped.
    fn write_given_up(&mut self, collection: &Collection<'_>, dry_run: bool) -> Result<()> {
        let mut given_up = std::mem::take(&mut self.given_up).into_iter().peekable();
        while !dry_run && given_up.peek().is_some() {
            let mut batches = Vec::new();
            for (number, places) in given_up.by_ref().take(REPLACED_MAX) {
                batches.extend(self.log.use_batch(number)?.map(|batch| without(&batch, &places)));
            }
            with_room(collection, || self.log.replace(batches.clone()))?;
        }
        Ok(())
    }

    /// Returns which former versions are kept, without snapshots. `None` if `keep_going` returned false.
    pub(super) fn former(&mut self, keep_going: &mut dyn FnMut() -> bool) -> Result<Option<Former>> {
        let mut former = Former::default();
        for number in 0..self.log.write()? {
            let Some(batch) = self.log.batch(number)? else { continue };
            for (place, event) in batch.events.iter().enumerate() {
                if let What::Version(version) = &event.what
                    && version.kept
                    && !matches!(
                        self.end_of(&version.path, EventId::new(number, place), version, 0)?,
                        End::Open
                    )
                {
                    former.versions += 1;
                    former.first.get_or_insert_with(|| version.path.clone());
                }
            }
            if !keep_going() {
                return Ok(None);
            }
        }
        Ok(Some(former))
    }

    fn end_of(&mut self, path: &Path, after: EventId, version: &Version, depth: usize) -> Result<End> {
        if depth > DEPTH_MAX {
            return Ok(End::Open);
        }
        let mut next = self.log.after(path, after)?.map(|row| (row, path.to_owned()));
        for above in path.ancestors().skip(1).filter(|above| !above.as_os_str().is_empty()) {
            let rows = self.renames_of(above)?;
            let first = rows.iter().find(|row| row.event > after).copied();
            if let Some(row) = first
                && next.as_ref().is_none_or(|(next, _)| row.event < next.event)
            {
                next = Some((row, above.to_owned()));
            }
        }
        let Some((row, at)) = next else {
            // A file of a tree that was copied without xattrs is another inode, and empty: repair fixes it.
            let open = self.overlay.maintenance.file_at(path)? == Some(version.file)
                || self.overlay.maintenance.may_have_lost(path, version.meta.mtime)?;
            return Ok(if open { End::Open } else { End::Unseen(path.to_owned()) });
        };
        match row.role {
            Role::Version | Role::Removed { .. } | Role::Came { .. } => Ok(End::At(row.time)),
            Role::Left { .. } | Role::Exchanged { .. } => match other_end(self.log, &row, &at)? {
                Some(other) => self.end_of(&moved(path, &at, &other), row.event, version, depth + 1),
                None => self.end_of(path, row.event, version, depth + 1),
            },
        }
    }

    fn renames_of(&mut self, dir: &Path) -> Result<&[Row]> {
        if self.dirs.len() > DIRS_MAX {
            self.dirs.clear();
        }
        if !self.dirs.contains_key(dir) {
            let mut rows = self.log.of_path(dir)?;
            rows.retain(|row| row.role.of_directory() && !matches!(row.role, Role::Came { .. }));
            self.dirs.insert(dir.to_owned(), rows);
        }
        Ok(self.dirs.get(dir).map_or(&[], Vec::as_slice))
    }
}

/// Writes; on a full disk, into the space reserved for collections.
fn with_room<T>(collection: &Collection<'_>, write: impl Fn() -> Result<T>) -> Result<T> {
    match write() {
        Err(HistoryError::Store(StoreError::Full { .. }) | HistoryError::Db(DbError::Full { .. })) => {
            collection.make_room();
            write()
        }
        written => written,
    }
}

/// Creates the error for an object with unknown needs.
pub(super) fn unsure(what: String, error: HistoryError) -> HistoryError {
    match error {
        HistoryError::Store(source) => OverlayError::Unsure { path: what.into(), source }.into(),
        other => other,
    }
}

fn without(batch: &Batch, given_up: &[usize]) -> Batch {
    let mut batch = Batch { revision: batch.revision + 1, ..batch.clone() };
    for &place in given_up {
        if let Some(Event { what: What::Version(version), .. }) = batch.events.get_mut(place) {
            *version = Version::given_up(std::mem::take(&mut version.path), version.file);
        }
    }
    batch
}
