//! Takes down what the overlay tells of, and says to collections what is still needed.

use super::event::{Event, Version, What};
use super::keep::Keeper;
use super::lineage;
use super::log::Log;
use super::retention::Rules;
use super::snapshots::{Snapshots, Wanted};
use super::unread::Unread;
use super::{HistoryError, Result};
use crate::id::DocumentId;
use crate::overlay::stub::Time;
use crate::overlay::{Committed, KeptForHistory, Observer, Overlay, OverlayError};
use crate::store::{Collection, Store};
use std::path::Path;
use std::sync::{Arc, Weak};

pub(super) struct Recorder {
    pub(super) log: Log,
    pub(super) snapshots: Snapshots,
    pub(super) rules: Rules,
    pub(super) store: Arc<Store>,
    /// Which has this one, so it must not be kept by it.
    pub(super) overlay: Weak<Overlay>,
}

impl Recorder {
    fn add(&self, what: What) {
        if !self.rules.none {
            self.log.add(Event { time: Time::now(), what });
        }
    }

    /// Writes full batches: for threads that may wait for the disk.
    fn write_if_due(&self) {
        if self.log.has_full_batches()
            && let Err(e) = self.log.write()
        {
            tracing::warn!("what happened to files was not written, and will be tried again: {e}");
        }
    }

    /// Whether the last version of that inode is this one.
    fn knows(&self, file: &Committed) -> Result<bool> {
        let Some(last) = self.log.of_file(file.file)?.pop() else { return Ok(false) };
        let Some((Event { what: What::Version(version), .. }, _)) = self.log.event(last.event)? else {
            return Ok(false);
        };
        Ok(version.kept && version.recipe == file.recipe && version.path == file.path)
    }

    fn mark_all(
        &self,
        collection: &Collection<'_>,
        dry_run: bool,
        except: Option<&DocumentId>,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<Option<KeptForHistory>> {
        let Some(overlay) = self.overlay.upgrade() else { return Err(HistoryError::Interrupted) };
        let mut kept = KeptForHistory::default();
        let now = Time::now().sec;
        let moments = self.rules.moments(now);
        let mut unread = Unread::new(self.log.db(), collection)?;
        let mut keeper = Keeper::new(&self.log, &overlay, moments.clone());
        if !keeper.versions(collection, &mut unread, dry_run, &mut kept, go_on)? {
            return Ok(None);
        }
        let what = Wanted { moments: &moments, dry_run, except };
        if !self.snapshots.mark(&self.log, collection, &mut unread, what, &mut kept, go_on)? {
            return Ok(None);
        }
        kept.unreadable = unread.count;
        if !dry_run {
            unread.remember(self.log.db())?;
        }
        Ok(Some(kept))
    }
}

fn version(file: Committed) -> What {
    let Committed { path, file, recipe, size, meta } = file;
    What::Version(Version { path, file, recipe, size, meta, kept: true })
}

impl Observer for Recorder {
    fn committed(&self, file: Committed) {
        self.add(version(file));
        self.write_if_due();
    }

    fn met(&self, file: Committed) {
        match self.knows(&file) {
            Ok(true) => {}
            Ok(false) => self.committed(file),
            Err(e) => tracing::warn!("{}: its versions cannot be read: {e}", file.path.display()),
        }
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
            tracing::warn!("what happened to files was not written, and will be tried again: {e}");
        }
    }

    fn flush(&self) -> std::result::Result<(), OverlayError> {
        self.log.persist().map_err(OverlayError::from)
    }

    fn last_at(&self, path: &Path) -> std::result::Result<Option<Committed>, OverlayError> {
        let last = lineage::last_at(&self.log, path).map_err(OverlayError::from)?;
        Ok(last.filter(|version| version.kept).map(|version| {
            let Version { path, file, recipe, size, meta, .. } = version;
            Committed { path, file, recipe, size, meta }
        }))
    }

    fn mark(
        &self,
        collection: &Collection<'_>,
        dry_run: bool,
        except: Option<&DocumentId>,
        go_on: &mut dyn FnMut() -> bool,
    ) -> std::result::Result<Option<KeptForHistory>, OverlayError> {
        self.mark_all(collection, dry_run, except, go_on).map_err(OverlayError::from)
    }
}
