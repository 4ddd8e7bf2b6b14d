//! History: versions of files, snapshots, and retention.
//!
//! ```text
//! overlay --events--> Recorder --> log (batches of events in the store; rows in the database)
//!                                   |  versions of a path, through renames: lineage
//! snapshots: trees of directories, each a document named by its hash
//!                                   |
//! garbage collection <------keep----+  the rules decide which versions are dropped
//! ```
//!
//! Invariants: everything can be rebuilt from the packs. A listed version or snapshot can be restored to the
//! byte. Reading a file of the overlay needs no history, so damage here cannot affect files.
//!
//! Durability: a version is written with the next batch, within two seconds or 512 events, and is durable
//! with the next commit or `settle`, or after a minute. Until then a crash loses the version, never the file.
//! The same holds for renames and removals. A snapshot is durable when it is complete.

mod browse;
mod budget;
mod calendar;
mod compact;
mod error;
mod event;
#[cfg(any(test, feature = "testing"))]
#[doc(hidden)]
pub mod fuzz;
mod keep;
mod lineage;
mod log;
mod node;
mod plain;
mod recorder;
mod retention;
mod schedule;
mod snapshots;
mod take;
mod tree;
mod unreadable;
mod wire;

pub use browse::{Browse, SNAPSHOTS_DIR, SnapshotFile};
pub use error::{HistoryError, Result};
pub use event::Version;
pub use keep::Former;
pub use lineage::Listed;
pub use log::begin;
pub use node::{Entry, Node};
pub use retention::{Moments, Rules};
pub use schedule::{BadSchedule, Schedule, Timer};
pub use snapshots::{Snapshot, short_id};
pub use take::{Step, Taken};
pub use tree::{Difference, How};

use crate::db::Db;
use crate::id::DocumentId;
use crate::overlay::Overlay;
use crate::store::DocumentKind;
use crate::tree::{Committed, Observer};
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
    /// When the next scheduled snapshot is due, in seconds since 1970; `None` while nothing takes them.
    next_scheduled: Mutex<Option<i64>>,
}

impl History {
    /// Opens the history in the overlay's store and in `db`, and brings it up to date with the packs. From
    /// then on the overlay reports events to it.
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
        overlay.tree.observed_by(recorder.clone());
        Ok(History {
            overlay: overlay.clone(),
            recorder,
            is_new,
            last_taken: Mutex::new(None),
            next_scheduled: Mutex::new(None),
        })
    }

    /// Whether there was no history before: then the tree must be scanned, so that present files get a
    /// version.
    pub fn is_new(&self) -> bool {
        self.is_new
    }

    /// Returns the retention rules.
    pub fn rules(&self) -> &Rules {
        &self.recorder.rules
    }

    /// Returns the versions of the file at `path` below the root, in order, including dropped ones; also of a
    /// removed file. O(events of the path and of its directories).
    pub fn versions(&self, path: &Path) -> Result<Vec<Listed>> {
        let log = &self.recorder.log;
        // Also by its number, if that cannot have been another file's then: events of its name may be
        // unknown.
        let mut own = Vec::new();
        if let Some((file, Some(birth))) = self.overlay.maintenance.file_and_birth_at(path)? {
            for row in log.of_file(file)?.into_iter().filter(|row| row.time >= birth.sec) {
                // Rows have seconds, and a number can be reused within one.
                let later = row.time > birth.sec
                    || log.event(row.event)?.is_none_or(|(event, _)| event.time >= birth);
                if later {
                    own.push(row.event);
                }
            }
        }
        lineage::versions(log, path, &own)
    }

    /// Returns version `n` of a file.
    pub fn version(&self, path: &Path, n: u64) -> Result<Listed> {
        // The last of several dropped versions in sequence may be listed alone.
        let found = self.versions(path)?.into_iter().find(|listed| listed.n >= n.max(1));
        match found {
            Some(listed) if listed.n == n && listed.version.kept => Ok(listed),
            Some(_) if n > 0 => Err(HistoryError::GivenUp { path: path.to_owned(), n }),
            Some(_) => Err(HistoryError::NoVersion { path: path.to_owned(), n }),
            None => Err(HistoryError::NoVersion { path: path.to_owned(), n }),
        }
    }

    /// Records a version of a file that the overlay does not report by itself.
    pub fn add_version(&self, file: Committed) {
        self.recorder.committed(file);
    }

    fn last_taken(&self) -> Option<DocumentId> {
        *self.last_taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_last_taken(&self, id: Option<DocumentId>) {
        *self.last_taken.lock().unwrap_or_else(PoisonError::into_inner) = id;
    }

    /// Returns all snapshots, the oldest first.
    pub fn snapshots(&self) -> Vec<(DocumentId, Arc<Snapshot>)> {
        self.recorder.snapshots.all()
    }

    /// Returns the snapshot with this name, or whose id begins like this (with at least four digits).
    pub fn find_snapshot(&self, text: &str) -> Result<(DocumentId, Arc<Snapshot>)> {
        self.recorder.snapshots.find(text)
    }

    /// Durably removes a snapshot. The next collection frees the content that only it needed.
    pub fn remove_snapshot(&self, id: &DocumentId) -> Result<()> {
        if self.overlay.maintenance.read_only() {
            return Err(crate::contents::OverlayError::ReadOnly.into());
        }
        let _changing = self.recorder.snapshots.change();
        self.recorder.snapshots.remove(&self.recorder.log, id)
    }

    /// Returns the scheduled snapshots, in the order in which they were taken.
    pub fn scheduled_snapshots(&self) -> Vec<(DocumentId, Arc<Snapshot>)> {
        let mut all = self.snapshots();
        all.retain(|(_, snapshot)| snapshot.is_scheduled());
        all
    }

    /// Durably removes the scheduled snapshots that the schedule does not keep; all stay if there is no schedule.
    pub fn drop_scheduled(&self) -> Result<()> {
        let schedule = &self.recorder.rules.snapshots;
        if schedule.is_empty() {
            return Ok(());
        }
        let all = self.scheduled_snapshots();
        let times: Vec<i64> = all.iter().map(|(_, snapshot)| snapshot.time.sec).collect();
        for ((id, _), keep) in all.iter().zip(schedule.keep(&times)) {
            if !keep {
                self.remove_snapshot(id)?;
            }
        }
        Ok(())
    }

    /// Returns when the next scheduled snapshot is due, in seconds since 1970; `None` if nothing takes them.
    pub fn next_scheduled(&self) -> Option<i64> {
        *self.next_scheduled.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes when the next scheduled snapshot is due.
    pub fn set_next_scheduled(&self, due: i64) {
        *self.next_scheduled.lock().unwrap_or_else(PoisonError::into_inner) = Some(due);
    }

    /// Returns which former contents are kept. `None` if `keep_going` returned false. O(versions) time.
    pub fn former(&self, keep_going: &mut dyn FnMut() -> bool) -> Result<Option<Former>> {
        let moments = self.recorder.rules.moments(crate::backing::stub::Time::now().sec);
        let snapshots = self.recorder.snapshots.all().len() as u64;
        let former = keep::Keeper::new(&self.recorder.log, &self.overlay, moments).former(keep_going)?;
        Ok(former.map(|former| Former { snapshots, ..former }))
    }

    /// Makes all recorded events durable.
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
