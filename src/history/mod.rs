//! What files were: versions, snapshots, and which of them are kept.
//!
//! ```text
//! overlay --tells--> Recorder --> log (batches of events in the store; rows in the database)
//!                                   |  versions of a path, through renames: lineage
//! snapshots: trees of directories, each a document named by its hash
//!                                   |
//! collection of garbage <--keep-----+  the rules say what is given up
//! ```
//!
//! Invariants: all of it can be had from the packs again; a version or snapshot that is listed can be
//! restored to the byte; nothing here is needed to read a file of the overlay, so none of it can cost one.
//!
//! Durability: a version is written with the next batch, within two seconds or 512 events, and durable with the next commit,
//! `settle` or after a minute; until then a crash loses it (never the file). Renames and removals too. A snapshot is
//! durable when it has been made.

mod browse;
mod budget;
mod compact;
mod error;
mod event;
#[doc(hidden)]
pub mod fuzz;
mod keep;
mod lineage;
mod log;
mod node;
mod plain;
mod recorder;
mod retention;
mod snapshots;
mod take;
mod tree;
mod unread;
mod wire;

pub use browse::{Browse, SNAPSHOTS_DIR, SnapshotFile};
pub use error::{HistoryError, Result};
pub use event::Version;
pub use lineage::Listed;
pub use log::begin;
pub use node::{Entry, Node};
pub use retention::{Moments, Rules};
pub use snapshots::{Snapshot, short_id};
pub use take::{Step, Taken};
pub use tree::{Difference, How};

use crate::db::Db;
use crate::id::DocumentId;
use crate::overlay::{Committed, Observer, Overlay};
use crate::store::DocumentKind;
use log::Log;
use recorder::Recorder;
use snapshots::Snapshots;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

/// The history of one overlay. All methods may be called from many threads.
pub struct History {
    overlay: Arc<Overlay>,
    recorder: Arc<Recorder>,
    is_new: bool,
    /// The snapshot since which all changes are noted.
    last_taken: Mutex<Option<DocumentId>>,
}

impl History {
    /// The history kept in the overlay's store and in `db`, brought up to date with the packs. From now on the overlay tells
    /// it what happens.
    pub fn open(overlay: &Arc<Overlay>, db: Arc<dyn Db>, rules: Rules, read_only: bool) -> Result<History> {
        let store = overlay.store().clone();
        let found = store.take_documents_found();
        let of = |kind: DocumentKind| -> Vec<_> {
            found.iter().filter(|(found, _)| *found == kind).map(|(_, id)| *id).collect()
        };
        let (log, is_new, removed) =
            Log::open(store.clone(), db.clone(), machine(), &of(DocumentKind::Events), read_only)?;
        let snapshots = Snapshots::open(&store, db, &of(DocumentKind::Snapshot), &removed, read_only)?;
        let is_new = is_new && !rules.none && !read_only;
        let recorder = Arc::new(Recorder { log, snapshots, rules, store, overlay: Arc::downgrade(overlay) });
        overlay.observed_by(recorder.clone());
        Ok(History { overlay: overlay.clone(), recorder, is_new, last_taken: Mutex::new(None) })
    }

    /// Whether there was none before: then the tree is to be scanned, so that what is there already has a version.
    pub fn is_new(&self) -> bool {
        self.is_new
    }

    /// Which versions are kept.
    pub fn rules(&self) -> &Rules {
        &self.recorder.rules
    }

    /// The versions of the file at `path` below the root, in order, with those that were given up; also of a file that is
    /// not there any more. O(events of the path and of its directories).
    pub fn versions(&self, path: &Path) -> Result<Vec<Listed>> {
        let log = &self.recorder.log;
        // By its number too, if that cannot have been another file's then: what happened to its name may not be known.
        let mut own = Vec::new();
        if let Some((file, Some(birth))) = self.overlay.file_and_birth_at(path)? {
            for row in log.of_file(file)?.into_iter().filter(|row| row.time >= birth.sec) {
                // Rows know seconds, and in one of them a number can be used again.
                let later = row.time > birth.sec
                    || log.event(row.event)?.is_none_or(|(event, _)| event.time >= birth);
                if later {
                    own.push(row.event);
                }
            }
        }
        lineage::versions(log, path, &own)
    }

    /// Version `n` of a file.
    pub fn version(&self, path: &Path, n: u64) -> Result<Listed> {
        // Of several that were given up one after the other the last may be listed alone.
        let found = self.versions(path)?.into_iter().find(|listed| listed.n >= n.max(1));
        match found {
            Some(listed) if listed.n == n && listed.version.kept => Ok(listed),
            Some(_) if n > 0 => Err(HistoryError::GivenUp { path: path.to_owned(), n }),
            Some(_) => Err(HistoryError::NoVersion { path: path.to_owned(), n }),
            None => Err(HistoryError::NoVersion { path: path.to_owned(), n }),
        }
    }

    /// Takes down a version of a file that the overlay does not tell of by itself.
    pub fn add_version(&self, file: Committed) {
        self.recorder.committed(file);
    }

    fn last_taken(&self) -> Option<DocumentId> {
        *self.last_taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_last_taken(&self, id: Option<DocumentId>) {
        *self.last_taken.lock().unwrap_or_else(PoisonError::into_inner) = id;
    }

    /// All snapshots, the oldest first.
    pub fn snapshots(&self) -> Vec<(DocumentId, Arc<Snapshot>)> {
        self.recorder.snapshots.all()
    }

    /// The snapshot with this name, or whose id begins like this (with four digits or more).
    pub fn find_snapshot(&self, text: &str) -> Result<(DocumentId, Arc<Snapshot>)> {
        self.recorder.snapshots.find(text)
    }

    /// Removes a snapshot, durably. What it alone needs is given back by the next collection.
    pub fn remove_snapshot(&self, id: &DocumentId) -> Result<()> {
        if self.overlay.read_only() {
            return Err(crate::overlay::OverlayError::ReadOnly.into());
        }
        let _changing = self.recorder.snapshots.change();
        self.recorder.snapshots.remove(&self.recorder.log, id)
    }

    /// How many versions are kept that are not what is there now, and how many snapshots. `None` if `go_on` said no.
    /// O(versions) time.
    pub fn former(&self, go_on: &mut dyn FnMut() -> bool) -> Result<Option<(u64, u64)>> {
        let moments = self.recorder.rules.moments(crate::overlay::stub::Time::now().sec);
        let versions = keep::Keeper::new(&self.recorder.log, &self.overlay, moments).former(go_on)?;
        Ok(versions.map(|versions| (versions, self.recorder.snapshots.all().len() as u64)))
    }

    /// Makes everything that was taken down durable.
    pub fn flush(&self) -> Result<()> {
        self.recorder.log.persist()?;
        Ok(self.recorder.store.sync()?)
    }
}

fn machine() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = name.trim();
    if name.is_empty() { "unknown".to_owned() } else { name.chars().take(255).collect() }
}
