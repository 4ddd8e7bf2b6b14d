//! The overlay: a filesystem over a backing directory and a store, without any FUSE type.
//!
//! The backing directory keeps the namespace: names, modes, owners, times, links and xattrs are its own.
//! A regular file there is *plain* (it holds its bytes), or a *stub* (it is empty, and the xattr
//! `user.dedupfs` names the recipe by which the store has its bytes). What a file is, is decided by what
//! is on disk ([`stub`], `recover`); the index only helps to find things.
//!
//! Files are converted when nobody has them open (`commit`) and written back before anyone writes to them
//! (`hydrate`). Neither shows through the overlay: size, times and inode number stay.
//!
//! Durability: a stub is only made of a recipe that is durable in the store; a write to a former stub is
//! only allowed once the file is durable as plain. Closing a file does not make it durable, as below.

mod anchor;
mod backing;
mod catalog;
mod collect;
mod commit;
mod contents;
mod error;
mod file;
mod growing;
mod hydrate;
mod ingest;
mod inode;
mod mark;
mod namespace;
mod queue;
mod recover;
mod repair;
mod scan;
mod similar;
pub mod stub;
mod types;

pub use backing::{Backing, NOTE, STATE_DIR, is_hidden};
pub use catalog::{Catalog, FileRow};
pub use collect::{GcOutcome, GcStep};
pub use contents::{Contents, Shares};
pub use error::{OverlayError, Result};
pub use file::{Handle, Io, OpenFlags, Opened};
pub use inode::{Content, Inode, PassToken};
pub use namespace::{DirEntry, DirHandle};
pub use repair::{FormerRecord, search_tree};
pub use scan::{Finding, ScanReport, Trouble};
pub use similar::{Match, Matches, Ranking, SimilarOptions};
pub use types::{Attr, Caller, Kind, NodeId, ROOT, SetAttr, SetTime};

use crate::chunk::ChunkParams;
use crate::db::Db;
use crate::similarity::Similarity;
use crate::store::Store;
use inode::Inodes;
use queue::Queue;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use stub::GuardKey;

/// When plain files become stubs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dedup {
    /// As soon as the last program has closed them.
    OnClose,
    /// When nobody has had them open for so long.
    Idle(Duration),
    /// Never: files stay plain and are only indexed.
    Off,
}

/// What an overlay is made of.
pub struct Parts {
    /// The directory tree.
    pub backing: Backing,
    /// Where bytes go.
    pub store: Arc<Store>,
    /// Where sketches go.
    pub similarity: Arc<Similarity>,
    /// Where the catalog goes.
    pub db: Arc<dyn Db>,
    /// Key of the stubs' guard.
    pub key: GuardKey,
    /// How files are cut.
    pub params: ChunkParams,
    /// When files are converted.
    pub dedup: Dedup,
    /// Change nothing at all.
    pub read_only: bool,
    /// Worker threads that hash and compress.
    pub threads: usize,
}

/// A filesystem over a backing directory. All methods may be called from many threads.
pub struct Overlay {
    backing: Backing,
    contents: Contents,
    db: Arc<dyn Db>,
    catalog: Catalog,
    key: GuardKey,
    dedup: Dedup,
    read_only: bool,
    inodes: Inodes,
    queue: Queue,
    converted: AtomicU64,
    /// About how many bytes of contents have lost their last file.
    garbage: AtomicU64,
    /// A commit found no room in the store.
    no_room: AtomicBool,
    /// Whether garbage is collected without being asked.
    auto_gc: AtomicBool,
    stop: Stop,
}

/// How often open files are looked at for growth.
const STEP_INTERVAL: Duration = Duration::from_secs(2);
/// How often the index is brought up to date on disk. It can always be rebuilt, so this only saves work.
const PERSIST_INTERVAL: Duration = Duration::from_secs(60);
/// How often it is asked whether garbage is to be collected and whether the disk fills up.
const GC_INTERVAL: Duration = Duration::from_secs(2);

impl Overlay {
    /// Puts an overlay together. Nothing is changed and no thread but the workers started.
    pub fn new(parts: Parts) -> Result<Overlay> {
        let root = parts.backing.root().try_clone_to_owned();
        let root = root.map_err(|e| OverlayError::io("open", "the backing directory again", e))?;
        let garbage = parts.db.get(crate::db::Table::Meta, collect::GARBAGE)?;
        let garbage = garbage.and_then(|row| row[..].try_into().ok()).map_or(0, u64::from_be_bytes);
        let Parts { store, similarity, .. } = &parts;
        let contents =
            Contents::new(store.clone(), similarity.clone(), parts.db.clone(), parts.params, parts.threads);
        Ok(Overlay {
            backing: parts.backing,
            catalog: Catalog::new(parts.db.clone()),
            contents,
            db: parts.db,
            key: parts.key,
            dedup: parts.dedup,
            read_only: parts.read_only,
            inodes: Inodes::new(root),
            queue: Queue::default(),
            converted: AtomicU64::new(0),
            garbage: AtomicU64::new(garbage),
            no_room: AtomicBool::new(false),
            auto_gc: AtomicBool::new(false),
            stop: Stop::default(),
        })
    }

    /// Starts the threads that commit closed files, follow growing ones and keep the index on disk.
    pub fn start(self: &Arc<Self>) -> Background {
        let mut threads = Vec::new();
        let mut spawn = |name: &str, work: fn(&Overlay)| {
            let overlay = self.clone();
            let thread = std::thread::Builder::new().name(name.to_owned());
            threads.push(thread.spawn(move || work(&overlay)).expect("a thread can be started"));
        };
        if !self.read_only {
            // Two, so that one reads and compresses while the other waits for the disk.
            spawn("commit-0", Overlay::commit_queue);
            spawn("commit-1", Overlay::commit_queue);
            spawn("growing", |overlay| {
                while overlay.stop.wait(STEP_INTERVAL) {
                    overlay.step_growing_files();
                    overlay.inodes.sweep();
                }
            });
            spawn("gc", |overlay| {
                while overlay.stop.wait(GC_INTERVAL) {
                    overlay.contents.store.watch_disk();
                    overlay.gc_if_due();
                }
            });
            spawn("persist", |overlay| {
                while overlay.stop.wait(PERSIST_INTERVAL) {
                    if let Err(e) = overlay.persist() {
                        tracing::error!("the index could not be written: {e}");
                    }
                }
            });
        }
        Background { overlay: self.clone(), threads }
    }

    /// The tree below.
    pub fn backing(&self) -> &Backing {
        &self.backing
    }

    /// The store.
    pub fn store(&self) -> &Arc<Store> {
        &self.contents.store
    }

    /// The similarity index.
    pub fn similarity(&self) -> &Arc<Similarity> {
        &self.contents.similarity
    }

    /// The catalog.
    pub fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    /// When files are converted.
    pub fn dedup(&self) -> Dedup {
        self.dedup
    }

    /// Files that were closed and are not committed yet.
    pub fn pending(&self) -> usize {
        self.queue.pending()
    }

    /// Waits until every closed file is chunked, indexed and durable. `progress` is told how many are
    /// left and stops the waiting by returning false; the result says whether it came to the end.
    pub fn settle(&self, progress: &mut dyn FnMut(usize) -> bool) -> Result<bool> {
        let settled = self.queue.settle(progress);
        self.persist()?;
        if !self.read_only {
            // The records of stubs: not every filesystem writes them out with the packs.
            let root = backing::open_dir(self.backing.root())?;
            rustix::fs::syncfs(&root).map_err(|e| OverlayError::io("sync", "the backing filesystem", e))?;
        }
        Ok(settled)
    }

    /// Writes the index to disk and makes it durable.
    pub fn persist(&self) -> Result<()> {
        if self.read_only {
            return Ok(());
        }
        let mut garbage = 0;
        for orphan in self.catalog.take_orphans()? {
            self.contents.similarity.remove_content(&orphan)?;
            garbage += self.contents.store.recipe(&orphan).map_or(0, |recipe| recipe.size());
        }
        if garbage > 0 {
            self.set_garbage(self.garbage() + garbage)?;
        }
        self.catalog.flush()?;
        self.contents.similarity.flush()?;
        self.contents.store.persist()?;
        self.db.flush()?;
        Ok(())
    }

    /// Whether chunks are stored, or files only indexed.
    fn keeps_bytes(&self) -> bool {
        self.dedup != Dedup::Off
    }

    /// A name for messages.
    fn name_of(&self, inode: &Inode) -> String {
        match self.path_of(inode) {
            Some(path) => path.display().to_string(),
            None => format!("(inode {} without a name)", inode.identity.ino),
        }
    }

    /// Where an inode is now, below the root, if it has a name.
    fn path_of(&self, inode: &Inode) -> Option<PathBuf> {
        self.backing.relative_path(inode.path_fd().ok()?).ok()?
    }
}

/// The overlay's threads.
pub struct Background {
    overlay: Arc<Overlay>,
    threads: Vec<JoinHandle<()>>,
}

impl Background {
    /// Ends the threads after the files that they are working on. Returns the paths of those that still
    /// waited: they are plain and whole, and can be committed another time.
    pub fn stop(mut self) -> Vec<PathBuf> {
        let left = self.end();
        left.iter().filter_map(|inode| self.overlay.path_of(inode)).collect()
    }

    fn end(&mut self) -> Vec<Arc<Inode>> {
        self.overlay.stop.stop();
        self.overlay.queue.stop();
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a background thread had panicked");
            }
        }
        // Not what stood in the queue: the kernel does not say that a file was closed if it is unmounted just then,
        // and rounds that end after the queue put back what they could not commit.
        self.overlay.inodes.collect(|inode| {
            let waits = |state: &inode::State| state.dirty || state.queued || state.writers > 0;
            inode.home && inode.kind == types::Kind::File && waits(&inode.lock())
        })
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.end();
    }
}

/// Ends periodic work at once instead of at its next turn.
#[derive(Default)]
struct Stop {
    stopped: AtomicBool,
    lock: Mutex<()>,
    changed: Condvar,
}

impl Stop {
    /// Waits for `interval`; false once it is time to end.
    fn wait(&self, interval: Duration) -> bool {
        let guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.stopped.load(Ordering::Acquire) {
            drop(self.changed.wait_timeout(guard, interval).unwrap_or_else(PoisonError::into_inner));
        }
        !self.stopped.load(Ordering::Acquire)
    }

    fn stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    fn stop(&self) {
        let _guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        self.stopped.store(true, Ordering::Release);
        self.changed.notify_all();
    }
}
