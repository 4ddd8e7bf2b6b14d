//! The overlay: a filesystem over a backing directory and a store, without any FUSE type.
//!
//! The backing directory owns the namespace: names, modes, owners, times, links and xattrs. A regular file in
//! it is *plain* (it has its bytes), or a *stub* (it is empty, and the xattr `user.dedupfs` names the recipe
//! of its bytes in the store). The disk decides which ([`stub`], `recover`); the index only speeds up
//! searches. A large stub that was written to is *hybrid* for a while: changes are in the file, the rest is
//! still in the store (`hybrid`).
//!
//! Files are converted when no program has them open (`commit`) and hydrated before a program writes to them
//! (`hydrate`). Programs see neither: size, times and inode number stay.
//!
//! Durability: a stub is made only from a recipe that is durable in the store. A write to a former stub is
//! allowed only once the file is durable as plain. Closing a file does not make it durable, as below.
//!
//! Truncations: a file's record says that its content is elsewhere before its bytes are removed, and a
//! conversion first proves that the file is in the tree (`proof`). `docs/durability.md` lists every
//! truncation and replacement of a file in this program, and why each is safe (`tests/house/truncations.rs` checks
//! the list).

mod anchor;
mod changes;
mod commit;
mod compaction;
pub mod compare;
mod contained;
mod content_out;
mod directory;
mod export;
mod file;
mod forgetting;
mod gc;
mod gc_mark;
mod groups;
mod growing;
mod heat;
mod hybrid;
mod hydrate;
mod hydrating;
mod indexing;
mod inode;
mod install;
mod method_indexes;
pub mod methods;
mod namespace;
mod observe;
mod optimize;
mod policy;
mod proof;
mod queue;
mod recover;
mod renamed;
mod repair;
mod rewrite_backoff;
mod rewrites;
mod room;
mod round_size;
mod scan;
mod similar;
mod snapshot_walk;
mod sparse;
mod strip_records;
pub mod templates;
#[cfg(test)]
mod testing;
pub(crate) mod text;
mod ticks;
mod totals;
mod views;
mod warm;
mod with_paths;
mod write_errors;

pub use crate::backing::resolved::{Directory, Resolved};
pub use crate::backing::types::{Attr, Caller, Kind, NodeId, ROOT, SetAttr, SetTime};
pub use crate::backing::{Backing, NOTE, STATE_DIR, is_hidden, stub};
pub use crate::catalog::{Catalog, FileRow};
pub use crate::contents::{
    Contents, ContentsBuilder, Filter, Indexing, Look, OverlayError, Ranking, Result, Shares, SimilarOptions,
};
pub use changes::{Change, Still};
pub use contained::{FileContained, Place, TreeContained};
pub use content_out::{StoredContent, xattrs_of};
pub use directory::{DirEntry, DirHandle};
pub use export::{ExportNeeds, ExportOptions, Exported};
pub use file::{DropPages, Handle, Io, OpenFlags, Opened};
pub use gc::{GcOutcome, GcStep, Held as HeldForHistory, WouldFree};
pub use groups::{Group, GroupMember, GroupOptions, GroupProgress, Groups, IdenticalSet};
pub use heat::HotOptions;
pub use hybrid::{HYBRID_BYTES_MIN, HybridOptions};
pub use inode::{Content, Inode, PassToken};
pub use install::INSTALL_PREFIX;
pub(crate) use install::{install_name, set_attributes, write_file};
pub use method_indexes::{FileRef, IndexedContent, MethodIndexOptions, MethodIndexes};
pub use observe::{Committed, KeptForHistory, Meta, Observer, Xattr};
pub use optimize::{OptimizeOutcome, OptimizeStep};
pub use policy::{BadGlob, Policies, Policy, Rule};
pub use repair::{FormerRecord, search_tree};
pub use room::{Amount, keep_free_bytes, snapshots_fill_disk};
pub use scan::{Finding, ScanReport, Trouble};
pub use similar::{Match, Matches};
pub use snapshot_walk::{Held, Met};
pub use totals::Totals;
pub use views::Views;

use crate::backing;
use crate::backing::stub::GuardKey;
use crate::catalog::Finder;
use crate::chunk::ChunkParams;
use crate::contents::forgetting::Forgetting;
use crate::contents::throttle::{self, Throttle};
use crate::db::Db;
use crate::env::Heap;
use crate::similarity::Similarity;
use crate::store::Store;
use heat::Heat;
use inode::Inodes;
use queue::Queue;
use renamed::Renamed;
use rewrite_backoff::RewriteBackoff;
use rewrites::Rewrites;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use ticks::Ticks;

/// When plain files become stubs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dedup {
    /// As soon as the last program has closed them.
    OnClose,
    /// When no program has had them open for this long.
    Idle(Duration),
    /// Never: files stay plain and are only indexed.
    Off,
}

/// Parts that an overlay is made of.
pub struct Parts {
    /// The directory tree.
    pub backing: Backing,
    /// Stores chunks and recipes.
    pub store: Arc<Store>,
    /// Keeps sketches.
    pub similarity: Arc<Similarity>,
    /// Keeps the catalog.
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
    /// Which stubs become hybrid instead of being written back.
    pub hybrid: HybridOptions,
}

/// A filesystem over a backing directory. All methods may be called from many threads.
pub struct Overlay {
    backing: Backing,
    contents: Contents,
    views: Option<Views>,
    method_indexes: Option<MethodIndexes>,
    db: Arc<dyn Db>,
    catalog: Catalog,
    forgetting: Forgetting,
    key: GuardKey,
    policies: RwLock<Arc<Policies>>,
    throttle: Throttle,
    rewrite_backoff: RewriteBackoff,
    rewrites: Rewrites,
    summed: Mutex<Option<totals::Summed>>,
    heat: Heat,
    warming: warm::Warming,
    read_only: bool,
    inodes: Inodes,
    queue: Queue,
    renamed: Renamed,
    hybrid: HybridOptions,
    steps: Arc<hybrid::Steps>,
    converted: AtomicU64,
    /// Files that stay plain because of [`Policy::withheld`].
    withheld: AtomicU64,
    /// About how many bytes of contents have lost their last file.
    garbage: AtomicU64,
    /// Contents that the last collection kept only for the history.
    held: Mutex<gc::Held>,
    /// A commit found no room in the store.
    no_room: AtomicBool,
    room: room::Room,
    /// Whether the daemon collects garbage by itself.
    auto_gc: AtomicBool,
    idle: optimize::Idle,
    templates_dir: OnceLock<PathBuf>,
    drop_pages: OnceLock<Box<DropPages>>,
    observer: OnceLock<Arc<dyn Observer>>,
    dir_paths: observe::DirPaths,
    changes: changes::Changes,
    ticks: Ticks,
}

/// Interval between checks of open files for growth.
const STEP_INTERVAL: Duration = Duration::from_secs(2);
/// Interval between updates of the index on disk. It can always be rebuilt, so this only saves work.
const PERSIST_INTERVAL: Duration = Duration::from_secs(60);
/// Interval between checks whether garbage should be collected and whether the disk fills up.
const GC_INTERVAL: Duration = Duration::from_secs(2);

impl Overlay {
    /// Makes an overlay. Changes nothing, and starts no threads but the workers.
    pub fn new(parts: Parts) -> Result<Overlay> {
        let root = parts.backing.root().try_clone_to_owned();
        let root = root.map_err(|e| OverlayError::io("open", "the backing directory again", e))?;
        let garbage = parts.db.get(crate::db::Table::Meta, gc::GARBAGE)?;
        let garbage = garbage.and_then(|row| row[..].try_into().ok()).map_or(0, u64::from_be_bytes);
        let held = parts.db.get(crate::db::Table::Meta, gc::HELD)?;
        let held = held.as_deref().and_then(gc::Held::decode).unwrap_or_default();
        let Parts { store, similarity, .. } = &parts;
        let contents =
            Contents::new(store.clone(), similarity.clone(), parts.db.clone(), parts.params, parts.threads);
        Ok(Overlay {
            backing: parts.backing,
            catalog: Catalog::new(parts.db.clone()),
            forgetting: Forgetting::default(),
            contents,
            views: None,
            method_indexes: None,
            db: parts.db,
            key: parts.key,
            policies: RwLock::new(Arc::new(Policies::uniform(parts.dedup))),
            throttle: Throttle::default(),
            rewrite_backoff: RewriteBackoff::new(),
            rewrites: Rewrites::new(),
            summed: Mutex::default(),
            heat: Heat::new(HotOptions::default()),
            warming: warm::Warming::default(),
            read_only: parts.read_only,
            inodes: Inodes::new(root),
            queue: Queue::default(),
            renamed: Renamed::default(),
            hybrid: parts.hybrid,
            steps: Arc::default(),
            converted: AtomicU64::new(0),
            withheld: AtomicU64::new(0),
            garbage: AtomicU64::new(garbage),
            held: Mutex::new(held),
            no_room: AtomicBool::new(false),
            room: room::Room::default(),
            auto_gc: AtomicBool::new(false),
            idle: optimize::Idle::default(),
            templates_dir: OnceLock::new(),
            drop_pages: OnceLock::new(),
            observer: OnceLock::new(),
            dir_paths: observe::DirPaths::default(),
            changes: changes::Changes::default(),
            ticks: Ticks::default(),
        })
    }

    /// The same overlay, with other policies than one for all files.
    pub fn with_policies(self, policies: Policies) -> Overlay {
        Overlay { policies: RwLock::new(Arc::new(policies)), ..self }
    }

    /// The same overlay, which reads at most `rate` bytes a second for conversions that no caller waits for.
    pub fn with_convert_rate(self, rate: Option<u64>) -> Overlay {
        Overlay { throttle: Throttle::new(rate), ..self }
    }

    /// The same overlay, with other limits than the default for hot files (kept plain because they are read often).
    pub fn with_hot(self, options: HotOptions) -> Overlay {
        Overlay { heat: Heat::new(options), ..self }
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
            spawn("warm", Overlay::warm_files);
            spawn("growing", |overlay| {
                let (mut seen, mut heap) = (0, Heap::default());
                while overlay.ticks.wait(STEP_INTERVAL, &mut seen) {
                    turn(|| {
                        overlay.step_growing_files();
                    });
                    overlay.inodes.sweep();
                    heap.trim_if_due();
                }
            });
            spawn("history", |overlay| {
                let mut seen = 0;
                while overlay.ticks.wait(STEP_INTERVAL, &mut seen) {
                    if let Some(observer) = overlay.observer() {
                        turn(|| observer.tick());
                    }
                }
            });
            spawn("renamed", |overlay| {
                let mut seen = 0;
                while overlay.ticks.wait(STEP_INTERVAL, &mut seen) {
                    turn(|| overlay.look_below_renamed());
                }
            });
            spawn("gc", |overlay| {
                let mut compact_not_before = Instant::now();
                let mut seen = 0;
                while overlay.ticks.wait(GC_INTERVAL, &mut seen) {
                    turn(|| {
                        overlay.contents.store.watch_disk();
                        overlay.gc_if_due();
                        overlay.optimize_if_due();
                        overlay.compact_if_due(&mut compact_not_before);
                    });
                }
            });
            spawn("persist", |overlay| {
                let mut seen = 0;
                while overlay.ticks.wait(PERSIST_INTERVAL, &mut seen) {
                    turn(|| {
                        if let Err(e) = overlay.persist() {
                            tracing::error!("the index could not be written: {e}");
                        }
                    });
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

    /// Returns when files without a rule are converted.
    pub fn dedup(&self) -> Dedup {
        self.policies().fallback().dedup
    }

    /// Returns the rules that decide how each file is treated.
    pub fn policies(&self) -> Arc<Policies> {
        self.policies.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Adds a rule after all others. It is in force at once, also for files that wait to be converted.
    pub fn add_rule(&self, rule: Rule) -> std::result::Result<(), BadGlob> {
        let mut policies = self.policies.write().unwrap_or_else(PoisonError::into_inner);
        *policies = Arc::new(policies.with_rule(rule)?);
        Ok(())
    }

    /// Returns how many bytes a second conversions read while no caller waits for them, if that is limited.
    pub fn convert_rate(&self) -> Option<u64> {
        self.throttle.rate()
    }

    /// Returns how many files rest for longer because they are written often.
    pub fn resting(&self) -> usize {
        self.queue.resting()
    }

    /// Returns how many files stay plain because they are often rewritten as a whole.
    pub fn kept_plain(&self) -> usize {
        self.queue.rewritten()
    }

    /// Returns how many files stay plain until there is space for their content.
    pub fn waiting_for_room(&self) -> usize {
        self.queue.waiting()
    }

    /// Returns how many files were closed and are not committed yet.
    pub fn pending(&self) -> usize {
        self.queue.pending()
    }

    /// Until the result is dropped, conversions run at full speed and take files that have not rested: a caller
    /// waits for them.
    pub fn hurry(&self) -> Hurry<'_> {
        Hurry { _throttle: self.throttle.hurry(), _queue: self.queue.hurry() }
    }

    /// Returns how many files were indexed and stay plain because only a mount converts them ([`Policy::withheld`]).
    pub fn withheld(&self) -> u64 {
        self.withheld.load(Ordering::Relaxed)
    }

    /// Waits until every file that was closed before this call is chunked, indexed and durable, also files that have not
    /// rested, at full speed. Does not wait for files that are opened again meanwhile, so it ends however much is written.
    /// Nor does it wait for files that are mapped or open below the mount, or that are often rewritten as a whole.
    /// `progress` gets the number of files left and stops the waiting by returning false; returns whether all were done.
    pub fn settle(&self, progress: &mut dyn FnMut(usize) -> bool) -> Result<bool> {
        let _hurry = self.hurry();
        self.wait_for_queue(progress)
    }

    fn wait_for_queue(&self, progress: &mut dyn FnMut(usize) -> bool) -> Result<bool> {
        let settled = self.queue.settle(progress);
        self.persist()?;
        if !self.read_only {
            // For the records of stubs: not every filesystem writes them out with the packs.
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
        // First: the catalog must not know more about a file than the history.
        if let Some(observer) = self.observer()
            && let Err(e) = observer.flush()
        {
            tracing::warn!("recent changes were not written to the history, will try again: {e}");
        }
        let mut garbage = 0;
        let orphans = self.catalog.take_orphans()?;
        self.forget_kept(&orphans)?;
        for orphan in &orphans {
            if !self.forget_content(orphan)? {
                continue;
            }
            garbage += self.contents.store.recipe(orphan).map_or(0, |recipe| recipe.size());
        }
        if garbage > 0 {
            self.set_garbage(self.garbage() + garbage)?;
            self.ticks.stir();
        }
        self.catalog.flush()?;
        self.contents.similarity.flush()?;
        self.flush_views()?;
        self.flush_method_indexes()?;
        self.contents.store.persist()?;
        self.db.flush()?;
        Ok(())
    }

    /// Returns the policy of a file by its names; `None` if names matter and none of its names is known.
    ///
    /// The strictest of several names decides: the name it was opened by, and those in directories that the catalog knows.
    fn policy_of(&self, inode: &Inode, names: u64, finder: &mut Finder<'_>) -> Result<Option<Policy>> {
        let policies = self.policies();
        if policies.rules() == 0 {
            return Ok(Some(policies.fallback()));
        }
        let mut paths: Vec<_> = self.path_of(inode).into_iter().collect();
        if names > 1 || paths.is_empty() {
            finder.paths_of(inode.file_id(), &mut paths)?;
        }
        Ok(paths.iter().map(|path| policies.of(path)).reduce(Policy::strictest))
    }

    /// Returns whether a file of `bytes` bytes may become a stub, by the name it was opened by.
    fn may_convert(&self, inode: &Inode, bytes: u64) -> bool {
        let policy = self.policy_of(inode, 1, &mut self.catalog.finder(&self.backing));
        policy.ok().flatten().is_some_and(|policy| policy.converts(bytes))
    }

    /// A name for messages.
    fn name_of(&self, inode: &Inode) -> String {
        match self.path_of(inode) {
            Some(path) => path.display().to_string(),
            None => format!("(inode {} without a name)", inode.identity.ino),
        }
    }

    /// Returns the present path of an inode below the root, if it has a name.
    fn path_of(&self, inode: &Inode) -> Option<PathBuf> {
        self.backing.relative_path(inode.path_fd().ok()?).ok()?
    }
}

/// While this is held, a caller waits for conversions.
pub struct Hurry<'a> {
    _throttle: throttle::Hurry<'a>,
    _queue: queue::Hurry<'a>,
}

/// The overlay's threads.
pub struct Background {
    overlay: Arc<Overlay>,
    threads: Vec<JoinHandle<()>>,
}

impl Background {
    /// Ends the threads after the files that they have read. Returns the paths of files that still
    /// waited: they are plain and whole, and can be committed another time.
    pub fn stop(mut self) -> Vec<PathBuf> {
        let left = self.end();
        // There may be more files than descriptors, and each needs one to get its path.
        let path_of = |inode: &Arc<Inode>| {
            let path = self.overlay.path_of(inode);
            inode.close();
            path
        };
        left.iter().filter_map(path_of).collect()
    }

    fn end(&mut self) -> Vec<Arc<Inode>> {
        self.overlay.ticks.stop();
        self.overlay.throttle.end();
        self.overlay.queue.stop();
        self.overlay.warming.stop();
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a background thread had panicked");
            }
        }
        // Not from the queue: the kernel does not report the close of a file if it is unmounted just then, and rounds that end
        // after the queue put back files that they could not commit.
        self.overlay.inodes.collect(|inode, state| {
            inode.is_root_fs_file() && (state.dirty || state.queued || state.writers > 0)
        })
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.end();
    }
}

/// Does one turn of a background thread's work. A panic ends the turn, not the thread; the next turn does the rest.
fn turn(work: impl FnOnce()) {
    if std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).is_err() {
        let thread = std::thread::current();
        tracing::error!("thread {} panicked, and goes on", thread.name().unwrap_or_default());
    }
}
