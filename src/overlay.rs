//! The overlay: a filesystem over a backing directory and a store, with everything that works on it.
//!
//! | part | does |
//! | --- | --- |
//! | [`Tree`] | serves files and names, and reads stubs |
//! | [`Indexes`] | know which contents the files have |
//! | [`Converter`] | makes stubs of closed files |
//! | [`Queries`] | answer questions about similar files |
//! | [`Maintenance`] | scans, collects garbage, exports, repairs |
//!
//! Each part calls only those above it in this table. Events go the other way, as values ([`Event`]).

#[cfg(test)]
pub(crate) mod testing;

pub use crate::backing::resolved::{Directory, Resolved};
pub use crate::backing::types::{Attr, Caller, Kind, NodeId, ROOT, SetAttr, SetTime};
pub use crate::backing::{Backing, NOTE, STATE_DIR, is_hidden, stub};
pub use crate::catalog::{Catalog, FileRow};
pub use crate::contents::{
    Contents, ContentsBuilder, Filter, Indexing, Look, OverlayError, Ranking, Result, Shares, SimilarOptions,
};
pub use crate::convert::{Amount, Converter, Garbage, HeldForHistory, keep_free_bytes, snapshots_fill_disk};
pub use crate::indexes::{Indexes, MethodIndexOptions, MethodIndexes, Totals, Views};
pub use crate::maintain::{
    ExportNeeds, ExportOptions, Exported, Finding, GcOutcome, GcStep, Held, INSTALL_PREFIX, Maintenance, Met,
    OptimizeOutcome, OptimizeStep, ScanReport, Trouble, WouldFree, search_tree,
};
pub use crate::query::{
    ContainedFile, FileRef, Group, GroupMember, GroupOptions, GroupProgress, Groups, IdenticalSet,
    IndexedContent, Match, Matches, Place, Queries, TreeContained, compare, methods, templates,
};
pub use crate::tree::{
    BadGlob, Change, Committed, Content, Dedup, DirEntry, DirHandle, DropPages, Event, FormerRecord,
    HYBRID_BYTES_MIN, Handle, HotOptions, HybridOptions, Inode, Io, KeptForHistory, Meta, Observer,
    OpenFlags, Opened, PassToken, Policies, Policy, Rule, Seen, Still, StoredContent, Tree, TreeParts, Xattr,
    xattrs_of,
};

use crate::chunk::ChunkParams;
use crate::contents::throttle::Throttle;
use crate::db::Db;
use crate::env::Heap;
use crate::similarity::Similarity;
use crate::similarity::methods::Chosen;
use crate::store::Store;
use crate::tree::ticks::turn;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use stub::GuardKey;

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

/// Settings of an overlay that have defaults.
#[derive(Default)]
pub struct Options {
    /// When which files are converted; all as [`Parts::dedup`] says if not set.
    pub policies: Option<Policies>,
    /// Bytes a second that are read for conversions that no caller waits for; no limit if not set.
    pub convert_rate: Option<u64>,
    /// Limits for hot files, which are kept plain because they are read often.
    pub hot: HotOptions,
    /// The index of views.
    pub views: Option<Views>,
    /// The indexes of published methods.
    pub method_indexes: Option<MethodIndexes>,
}

/// A filesystem over a backing directory. All methods may be called from many threads.
pub struct Overlay {
    /// Serves files and names.
    pub tree: Arc<Tree>,
    /// Know which contents the files have.
    pub indexes: Arc<Indexes>,
    /// Makes stubs.
    pub converter: Arc<Converter>,
    /// Answer questions.
    pub queries: Queries,
    /// Scans, collects garbage, exports, repairs.
    pub maintenance: Maintenance,
}

/// Interval between checks of open files for growth.
const STEP_INTERVAL: Duration = Duration::from_secs(2);
/// Interval between updates of the index on disk. It can always be rebuilt, so this only saves work.
const PERSIST_INTERVAL: Duration = Duration::from_secs(60);
/// Interval between checks whether garbage should be collected and whether the disk fills up.
const GC_INTERVAL: Duration = Duration::from_secs(2);

impl Overlay {
    /// Makes an overlay with default options. Changes nothing, and starts no threads but the workers.
    pub fn new(parts: Parts) -> Result<Overlay> {
        Overlay::with(parts, Options::default())
    }

    /// Makes an overlay. Changes nothing, and starts no threads but the workers.
    pub fn with(parts: Parts, options: Options) -> Result<Overlay> {
        let db = parts.db;
        let contents = Contents::new(parts.store, parts.similarity, db.clone(), parts.params, parts.threads);
        let tree = Arc::new(Tree::new(TreeParts {
            backing: parts.backing,
            contents: Arc::new(contents),
            catalog: Arc::new(Catalog::new(db.clone())),
            key: parts.key,
            policies: options.policies.unwrap_or_else(|| Policies::uniform(parts.dedup)),
            hybrid: parts.hybrid,
            hot: options.hot,
            read_only: parts.read_only,
        })?);
        let throttle = Arc::new(Throttle::new(options.convert_rate));
        let indexes = Arc::new(Indexes::new(tree.clone(), throttle, options.views, options.method_indexes));
        let garbage = Arc::new(Garbage::new(db.clone())?);
        let converter = Arc::new(Converter::new(indexes.clone(), garbage));
        let maintenance = Maintenance::new(converter.clone(), db);
        let (weak, renamed) = (Arc::downgrade(&converter), maintenance.renamed.clone());
        tree.reports_to(Box::new(move |event| match event {
            Event::DirMoved(dir) => renamed.add(dir),
            event => {
                if let Some(converter) = weak.upgrade() {
                    converter.handle(event);
                }
            }
        }));
        Ok(Overlay { tree, queries: Queries::new(indexes.clone()), indexes, converter, maintenance })
    }

    /// Starts the threads that commit closed files, follow growing ones and keep the index on disk.
    pub fn start(self: &Arc<Self>) -> Background {
        let mut threads = Vec::new();
        let mut spawn = |name: &str, work: fn(&Overlay)| {
            let overlay = self.clone();
            let thread = std::thread::Builder::new().name(name.to_owned());
            threads.push(thread.spawn(move || work(&overlay)).expect("a thread can be started"));
        };
        if !self.tree.read_only {
            // Two, so that one reads and compresses while the other waits for the disk.
            spawn("commit-0", |overlay| overlay.converter.commit_queue());
            spawn("commit-1", |overlay| overlay.converter.commit_queue());
            spawn("warm", |overlay| overlay.converter.warm_files());
            spawn("growing", |overlay| {
                let (mut seen, mut heap) = (0, Heap::default());
                while overlay.tree.ticks.wait(STEP_INTERVAL, &mut seen) {
                    turn(|| {
                        overlay.converter.step_growing_files();
                    });
                    overlay.tree.inodes.sweep();
                    heap.trim_if_due();
                }
            });
            spawn("history", |overlay| {
                let mut seen = 0;
                while overlay.tree.ticks.wait(STEP_INTERVAL, &mut seen) {
                    if let Some(observer) = overlay.tree.observer() {
                        turn(|| observer.tick());
                    }
                }
            });
            spawn("renamed", |overlay| {
                let mut seen = 0;
                while overlay.tree.ticks.wait(STEP_INTERVAL, &mut seen) {
                    turn(|| {
                        overlay.maintenance.look_below_renamed(&mut || true);
                    });
                }
            });
            spawn("gc", |overlay| {
                let mut compact_not_before = Instant::now();
                let mut seen = 0;
                while overlay.tree.ticks.wait(GC_INTERVAL, &mut seen) {
                    turn(|| {
                        overlay.tree.contents.store.watch_disk();
                        overlay.maintenance.gc_if_due();
                        overlay.maintenance.optimize_if_due();
                        overlay.maintenance.compact_if_due(&mut compact_not_before);
                    });
                }
            });
            spawn("persist", |overlay| {
                let mut seen = 0;
                while overlay.tree.ticks.wait(PERSIST_INTERVAL, &mut seen) {
                    turn(|| {
                        if let Err(e) = overlay.maintenance.persist() {
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
        &self.tree.backing
    }

    /// The store.
    pub fn store(&self) -> &Arc<Store> {
        &self.tree.contents.store
    }

    /// The similarity index.
    pub fn similarity(&self) -> &Arc<Similarity> {
        &self.tree.contents.similarity
    }

    /// The catalog.
    pub fn catalog(&self) -> &Catalog {
        &self.tree.catalog
    }

    /// Groups similar files, as [`Queries::groups`], once the index is on disk.
    pub fn groups(
        &self,
        path: &Path,
        options: &GroupOptions,
        dir: &Path,
        progress: GroupProgress<'_>,
    ) -> Result<Groups> {
        self.maintenance.persist()?;
        self.queries.groups(path, options, dir, progress)
    }

    /// Returns how many files the index of a method lacks, as [`Queries::not_kept`], with those that wait to be converted.
    pub fn not_kept(&self, method: &Chosen) -> Result<Option<u64>> {
        let pending = self.converter.pending() as u64;
        Ok(self.queries.not_kept(method)?.map(|files| files + pending))
    }
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
            let path = self.overlay.tree.path_of(inode);
            inode.close();
            path
        };
        left.iter().filter_map(path_of).collect()
    }

    fn end(&mut self) -> Vec<Arc<Inode>> {
        self.overlay.tree.ticks.stop();
        self.overlay.indexes.throttle.end();
        self.overlay.converter.queue.stop();
        self.overlay.converter.warming.stop();
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a background thread had panicked");
            }
        }
        // Not from the queue: the kernel does not report the close of a file if it is unmounted just then, and rounds that end
        // after the queue put back files that they could not commit.
        self.overlay.tree.inodes.collect(|inode, state| {
            inode.is_root_fs_file() && (state.dirty || state.queued || state.writers > 0)
        })
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.end();
    }
}
