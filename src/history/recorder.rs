//! Records events of the overlay, and reports needed content to collections.

use super::budget::Budget;
use super::event::{Event, Version, What};
use super::keep::Keeper;
use super::log::Log;
use super::retention::Rules;
use super::snapshots::{Snapshots, Wanted};
use super::unreadable::{self, Unreadable};
use super::{HistoryError, Result, compact, lineage};
use crate::backing::stub::Time;
use crate::contents::OverlayError;
use crate::db::DbError;
use crate::id::DocumentId;
use crate::overlay::Overlay;
use crate::store::{Collection, Store, StoreError};
use crate::tree::{Committed, KeptForHistory, Observer};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

pub(super) struct Recorder {
    pub(super) log: Log,
    pub(super) snapshots: Snapshots,
    pub(super) rules: Rules,
    pub(super) store: Arc<Store>,
    /// The overlay owns the recorder, so this is weak.
    pub(super) overlay: Weak<Overlay>,
}

impl Recorder {
    fn add(&self, what: What) {
        if !self.rules.none {
            self.log.add(Event { time: Time::now(), what });
        }
    }

    /// Adds a version under each name of the file, with one time.
    fn add_versions(&self, file: Committed) {
        if self.rules.none {
            return;
        }
        let Committed { paths, file, recipe, size, meta } = file;
        let time = Time::now();
        for path in paths {
            let what = What::Version(Version {
                path,
                file,
                recipe,
                size,
                meta: meta.clone(),
                kept: true,
                run: None,
            });
            self.log.add(Event { time, what });
        }
        self.write_if_due();
    }

    /// Writes full batches, on threads that may wait for the disk.
    fn write_if_due(&self) {
        if self.log.has_full_batches()
            && let Err(e) = self.log.write()
        {
            tracing::warn!("changes of files were not recorded yet; the next write tries again: {e}");
        }
    }

    /// Returns the names of a file under which its content is not a version yet, as far as versions are known
    /// by its number.
    fn news(&self, file: &Committed) -> Result<Vec<PathBuf>> {
        let mut news = file.paths.clone();
        for row in self.log.of_file(file.file)?.into_iter().rev() {
            let Some((Event { what: What::Version(version), .. }, _)) = self.log.event(row.event)? else {
                break;
            };
            if news.is_empty() || !version.kept || version.recipe != file.recipe {
                break;
            }
            news.retain(|path| *path != version.path);
        }
        Ok(news)
    }

    /// Removes events of versions that earlier collections dropped from the log. False if `keep_going` returned false.
    fn compact(&self, overlay: &Overlay, keep_going: &mut dyn FnMut() -> bool) -> Result<bool> {
        let mut exists = |path: &Path| Ok(overlay.maintenance.file_at(path)?.is_some());
        let mut replace = |batches| self.log.replace(batches);
        let done = self
            .log
            .write()
            .and_then(|end| compact::compact(&self.log, end, &mut exists, &mut replace, &mut *keep_going));
        match done {
            // It takes some space to free some; kept events are not affected.
            Err(HistoryError::Store(StoreError::Full { .. }) | HistoryError::Db(DbError::Full { .. })) => {
                Ok(true)
            }
            done => done,
        }
    }

    fn mark_all(
        &self,
        collection: &Collection<'_>,
        dry_run: bool,
        except: Option<&DocumentId>,
        room: u64,
        keep_going: &mut dyn FnMut() -> bool,
    ) -> Result<Option<KeptForHistory>> {
        let Some(overlay) = self.overlay.upgrade() else { return Err(HistoryError::Interrupted) };
        let mut kept = KeptForHistory::default();
        let now = Time::now().sec;
        let moments = self.rules.moments(now);
        let mut unreadable = Unreadable::new(&**self.log.db(), collection)?;
        if !dry_run && !self.compact(&overlay, keep_going)? {
            return Ok(None);
        }
        let scheduled = !self.rules.snapshots.is_empty();
        let wanted = Wanted { moments: &moments, scheduled, dry_run, except };
        let mut budget = {
            let snapshots = &self.snapshots;
            let _changing = snapshots.change();
            if !snapshots.mark_named(collection, &mut unreadable, wanted, &mut kept, keep_going)? {
                return Ok(None);
            }
            let mut budget = Budget::new(self.bytes_max().min(room.saturating_sub(kept.bytes)));
            let unnamed = (&mut budget, &mut kept);
            if !snapshots.mark_unnamed(&self.log, collection, &mut unreadable, unnamed, wanted, keep_going)? {
                return Ok(None);
            }
            budget
        };
        let mut keeper = Keeper::new(&self.log, &overlay, moments.clone());
        if !keeper.versions(collection, &mut unreadable, &mut budget, dry_run, &mut kept, keep_going)? {
            return Ok(None);
        }
        kept.unreadable = unreadable.count;
        if !dry_run {
            unreadable.remember(&**self.log.db())?;
        }
        Ok(Some(kept))
    }
}

impl Observer for Recorder {
    fn committed(&self, file: Committed) {
        self.add_versions(file);
    }

    fn met(&self, mut file: Committed) {
        match self.news(&file) {
            Ok(news) => {
                file.paths = news;
                self.add_versions(file);
            }
            Err(e) => tracing::warn!("inode {}: its versions cannot be read: {e}", file.file.0),
        }
    }

    fn linked(&self, from: &Path, to: &Path) {
        self.add(What::Linked { from: from.to_owned(), to: to.to_owned() });
    }

    fn renamed(&self, from: &Path, to: &Path, directory: bool, exchanged: bool) {
        let (from, to) = (from.to_owned(), to.to_owned());
        self.add(What::Renamed { from, to, directory, exchanged });
    }

    fn removed(&self, path: &Path, directory: bool) {
        self.add(What::Removed { path: path.to_owned(), directory });
    }

    fn tick(&self) {
        if let Err(e) = self.log.write() {
            tracing::warn!("changes of files were not recorded yet; the next write tries again: {e}");
        }
    }

    fn flush(&self) -> std::result::Result<(), OverlayError> {
        self.log.persist().map_err(OverlayError::from)
    }

    fn last_at(&self, path: &Path) -> std::result::Result<Option<Committed>, OverlayError> {
        let last = lineage::last_at(&self.log, path).map_err(OverlayError::from)?;
        Ok(last.filter(|version| version.kept).map(|version| {
            let Version { path, file, recipe, size, meta, .. } = version;
            Committed { paths: vec![path], file, recipe, size, meta }
        }))
    }

    fn mark(
        &self,
        collection: &Collection<'_>,
        dry_run: bool,
        except: Option<&DocumentId>,
        room: u64,
        keep_going: &mut dyn FnMut() -> bool,
    ) -> std::result::Result<Option<KeptForHistory>, OverlayError> {
        self.mark_all(collection, dry_run, except, room, keep_going).map_err(OverlayError::from)
    }

    fn bytes_max(&self) -> u64 {
        self.rules.max.of(self.store.space().total)
    }

    fn left_until(&self) -> std::result::Result<Option<u32>, OverlayError> {
        unreadable::left_until(self.log.db().as_ref()).map_err(OverlayError::from)
    }
}
