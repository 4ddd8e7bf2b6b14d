//! A store on disk with its overlay: creating, locking, opening, wiring, closing.
//!
//! The state directory holds `format.toml`, `key`, `config.toml`, `packs/`, `index/` and `lock`; [`Layout`]
//! finds it. It is accessed only through a descriptor that is opened first, so it stays reachable when the
//! overlay is mounted over the directory that contains it.
//!
//! Invariants: one process at a time has a store open. The mark `clean` is in the index only while no process
//! has the store open, and only if the index has everything that the overlay knew. Without the mark,
//! [`Repo::behind`] is true until the tree has been scanned. The mark concerns only the index: no data
//! depends on it.

mod error;
mod format;
#[cfg(any(test, feature = "testing"))]
#[doc(hidden)]
pub mod fuzz;
mod guard;
mod init;
mod key;
mod layout;
mod lock;
mod memory;
mod open;
mod plain;
mod removal;
#[cfg(test)]
mod tests;
mod trust;

pub use error::RepoError;
pub use init::InitOptions;
pub use layout::{DAEMON, LOG, Layout};
pub use memory::{MEMORY_BYTES, MEMORY_BYTES_MIN, Memory};
pub use removal::finish_removal;

use crate::backing::Backing;
use crate::chunk::ChunkParams;
use crate::config::{Config, views_auto};
use crate::db::{BATCH_CHANGES, Batch, Db, DbResult, Table};
use crate::history::History;
use crate::id::StoreId;
use crate::overlay::{
    self, Dedup, HYBRID_BYTES_MIN, HotOptions, HybridOptions, MethodIndexOptions, MethodIndexes, Overlay,
    Policies,
};
use format::Format;
use lock::Lock;
use rustix::fs::{CWD, Mode, OFlags};
use std::ffi::OsStr;
use std::fmt::Display;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Row of [`Table::Meta`]: the index was closed cleanly.
const CLEAN: &[u8] = b"clean";
/// Row of [`Table::Meta`]: files were only indexed, and the next mount must convert them.
const UNCONVERTED: &[u8] = b"unconverted";
const INDEX_CACHE_BYTES: u64 = 32 << 20;

/// Options for opening a store. `None` means the value from its `config.toml`.
#[derive(Clone, Copy, Debug, Default)]
pub struct OpenOptions {
    /// When files are converted.
    pub dedup: Option<Dedup>,
    /// Whether files may become stubs, as the policies say. Without a mount a stub looks like an empty file,
    /// so only the daemon sets this, and commands whose user agreed to it.
    pub convert: bool,
    /// Changes nothing in the overlay.
    pub read_only: bool,
    /// Approximate memory limit for everything that is bounded.
    pub memory_bytes: Option<u64>,
    /// Bytes of decoded chunks in memory: overrides their part of `memory_bytes`.
    pub cache_bytes: Option<u64>,
    /// Moves the index aside and builds a new one.
    pub rebuild: bool,
    /// If the disk has no space to open the index: removes it, and keeps the new one only in memory. For a
    /// collection, which needs a little space before it frees any.
    pub give_up_index: bool,
}

/// Progress of opening while the index catches up with the packs.
#[derive(Clone, Copy, Debug)]
pub struct Opening {
    /// Bytes of packs read.
    pub done_bytes: u64,
    /// Bytes of packs in total.
    pub total_bytes: u64,
}

/// An open store and its overlay.
pub struct Repo {
    overlay: Arc<Overlay>,
    history: Arc<History>,
    db: Arc<dyn Db>,
    id: StoreId,
    layout: Layout,
    chunk: ChunkParams,
    read_only: bool,
    /// Whether a file may be missing in the index.
    behind: AtomicBool,
    /// Whether the policies convert files but this use of the store does not.
    withholds: bool,
    auto_gc: bool,
    /// Pending catch-up work; the thread that does it holds the lock.
    backlog: Mutex<Backlog>,
    state: OwnedFd,
    // Last, so that the lock is held until everything else is closed.
    _lock: Lock,
}

/// Work for the index to catch up.
#[derive(Debug, Default)]
pub struct Backlog {
    /// The whole tree has to be scanned.
    pub all: bool,
    /// These files have to be scanned.
    pub files: Vec<PathBuf>,
}

impl Repo {
    /// Creates the store of directory `dir`: in `store`, or in `dir/.dedupfs`. Fails if there is one.
    pub fn init(dir: &Path, store: Option<&Path>, options: &InitOptions) -> Result<Layout, RepoError> {
        init::init(dir, store, options)
    }

    /// Fails if [`Repo::init`] would refuse `dir`.
    pub fn check_directory(dir: &Path, options: &InitOptions) -> Result<(), RepoError> {
        init::check_directory(dir, options).map(drop)
    }

    /// Opens the store. `progress` is called while the index catches up with the packs.
    pub fn open(
        layout: &Layout,
        options: &OpenOptions,
        progress: &mut dyn FnMut(Opening),
    ) -> Result<Repo, RepoError> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let state = rustix::fs::openat(CWD, &layout.state, flags, Mode::empty())
            .map_err(|e| RepoError::io("open", &layout.state, e))?;
        let dir = proc_path(&state);
        let format = Format::read(&layout.file(layout::FORMAT))?;
        let config_path = layout.file(layout::CONFIG);
        let config = match layout::read_text(&config_path)? {
            Some(text) => Config::parse(&text).map_err(|e| RepoError::form(&config_path, e.to_string()))?,
            None => Config::default(),
        };
        let key = key::read(layout, format.key_check)?;
        let lock = Lock::take(&dir, &layout.state)?;
        removal::check_stays(&layout.root)?;
        let backing = Backing::open(&layout.root).map_err(|e| part(layout, "the directory", e))?;
        let bad_glob = |e: overlay::BadGlob| RepoError::form(&config_path, e.to_string());
        let mut policies = config.policies(options.dedup).map_err(bad_glob)?;
        if policies.convert() && !options.read_only && !keeps_xattrs(&layout.root) {
            tracing::warn!(
                "{}: this filesystem keeps no user xattrs, so files stay as they are and are only indexed",
                layout.root.display()
            );
            policies = Policies::uniform(Dedup::Off);
        }
        let converts = policies.convert() && !options.read_only;
        let withholds = converts && !options.convert;
        if withholds {
            policies = policies.withholding();
        }
        let memory = Memory::divide(
            options.memory_bytes.or(config.memory_bytes),
            options.cache_bytes.or(config.cache_bytes),
        );
        let tuning = open::Tuning { memory, keep_free: config.keep_free };
        let opened = open::open_parts(layout, &dir, format.id, tuning, options, progress)
            .map_err(|e| readable(e, &dir, &layout.state))?;
        let hot = HotOptions::default();
        let overlay = Overlay::new(overlay::Parts {
            backing,
            store: opened.store,
            similarity: opened.similarity,
            db: opened.db.clone(),
            key,
            params: format.chunk,
            dedup: policies.fallback().dedup,
            read_only: options.read_only,
            threads: std::thread::available_parallelism().map_or(2, usize::from),
            hybrid: HybridOptions {
                dir: dir.join(layout::EXTENTS),
                bytes_min: config.hybrid_min_bytes.unwrap_or(HYBRID_BYTES_MIN),
            },
        })
        .map_err(|e| part(layout, "the overlay", replace(&e, &dir, &layout.state)))?
        .with_policies(policies)
        .with_convert_rate(config.convert_rate)
        .with_hot(HotOptions {
            bytes_max: config.hot_bytes.unwrap_or(hot.bytes_max),
            rest: config.hot_time.unwrap_or(hot.rest),
        });
        let mut views = opened.views;
        if !options.read_only {
            let wanted = config.views.unwrap_or_else(views_auto);
            views = views.wanting(wanted).map_err(|e| part(layout, "the index of views", e))?;
        }
        let methods = config.methods.unwrap_or_default();
        let kept_options = MethodIndexOptions {
            buffer_bytes: memory.kept_bytes,
            sketch_bytes: memory.kept_sketch_bytes,
            work_dir: dir.to_owned(),
        };
        let kept = MethodIndexes::open(&opened.db, &methods, kept_options, options.read_only)
            .map_err(|e| part(layout, "the indexes of methods", e))?;
        let is_new = kept.is_new();
        let overlay = overlay.with_views(views).with_method_indexes(kept);
        let overlay = Arc::new(overlay);
        let rules = config.history.unwrap_or_default();
        let history = History::open(&overlay, opened.db.clone(), rules, options.read_only)
            .map_err(|e| part(layout, "the history", replace(&e, &dir, &layout.state)))?;
        let is_new = is_new || history.is_new();
        let unconverted = converts
            && opened.db.get(Table::Meta, UNCONVERTED).map_err(|e| part(layout, "the index", e))?.is_some();
        let backlog =
            Backlog { all: !opened.clean || is_new || unconverted && !withholds, files: opened.left };
        let behind = backlog.all || !backlog.files.is_empty();
        let auto_gc = config.gc.unwrap_or(true);
        overlay.set_auto_gc(auto_gc && !behind);
        overlay.set_auto_optimize(config.optimize.flatten());
        overlay.keep_templates_in(dir.join(overlay::templates::TEMPLATES_DIR));
        Ok(Repo {
            overlay,
            history: Arc::new(history),
            db: opened.db,
            id: format.id,
            layout: layout.clone(),
            chunk: format.chunk,
            read_only: options.read_only,
            behind: AtomicBool::new(behind),
            withholds,
            auto_gc,
            backlog: Mutex::new(backlog),
            state,
            _lock: lock,
        })
    }

    /// Returns the overlay.
    pub fn overlay(&self) -> &Arc<Overlay> {
        &self.overlay
    }

    /// Returns the history.
    pub fn history(&self) -> &Arc<History> {
        &self.history
    }

    /// Returns the id of the store.
    pub fn id(&self) -> StoreId {
        self.id
    }

    /// Returns its location.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Returns its chunk sizes.
    pub fn chunk_params(&self) -> ChunkParams {
        self.chunk
    }

    /// Whether nothing may be changed.
    pub fn read_only(&self) -> bool {
        self.read_only
    }

    /// Returns a path in the state directory that works even while an overlay is mounted over it.
    pub fn state_file(&self, name: impl AsRef<Path>) -> PathBuf {
        proc_path(&self.state).join(name)
    }

    /// Writes a file of the state directory atomically.
    pub fn write_state_file(&self, name: &str, bytes: &[u8]) -> Result<(), RepoError> {
        init::write_durable(&self.state_file(name), bytes, 0o600)
    }

    /// Returns the bytes of the index on disk.
    pub fn index_bytes(&self) -> u64 {
        self.db.bytes_on_disk()
    }

    /// Whether files may be missing in the index: the last user did not close cleanly, or left work behind.
    /// Never blocks.
    pub fn behind(&self) -> bool {
        self.behind.load(Ordering::Acquire)
    }

    /// Whether files stay plain that a mount would convert ([`OpenOptions::convert`]).
    pub fn withholds(&self) -> bool {
        self.withholds
    }

    /// Returns the catch-up work. The holder does it, then calls [`Repo::caught_up`].
    pub fn backlog(&self) -> MutexGuard<'_, Backlog> {
        self.backlog.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that the index knows every file again.
    pub fn caught_up(&self, mut backlog: MutexGuard<'_, Backlog>) -> DbResult<()> {
        let all = backlog.all;
        *backlog = Backlog::default();
        self.behind.store(false, Ordering::Release);
        self.overlay.set_auto_gc(self.auto_gc);
        if all && !self.withholds {
            let mut batch = Batch::new();
            batch.remove(Table::Meta, UNCONVERTED);
            self.db.apply(batch)?;
        }
        self.db.clear(Table::Pending, &[])
    }

    /// Whether the store was removed since it was opened.
    pub fn is_gone(&self) -> bool {
        layout::exists(&self.state_file(layout::FORMAT)).is_ok_and(|exists| !exists)
    }

    /// Replaces the internal path of the state directory with its name, for messages.
    pub fn readable(&self, message: &dyn Display) -> String {
        replace(message, &proc_path(&self.state), &self.layout.state)
    }

    /// Closes cleanly. `left` are closed files that were not committed: they are complete, and the next open
    /// commits them.
    pub fn close(self, left: Vec<PathBuf>) -> Result<(), RepoError> {
        if self.read_only {
            return Ok(());
        }
        let behind_whole_tree = match self.backlog.try_lock() {
            Ok(backlog) => backlog.all,
            // A thread did not finish.
            Err(_) => self.behind(),
        };
        let close = || {
            self.overlay.persist().map_err(|e| e.to_string())?;
            // In parts: without the mark of a clean close the next open walks the whole tree in any case.
            for part in left.chunks(BATCH_CHANGES) {
                let mut batch = Batch::new();
                for path in part {
                    batch.put(Table::Pending, path.as_os_str().as_bytes(), Vec::new());
                }
                self.db.apply(batch).map_err(|e| e.to_string())?;
            }
            let mut batch = Batch::new();
            if self.overlay.withheld() > 0 {
                batch.put(Table::Meta, UNCONVERTED, vec![1]);
            }
            if !behind_whole_tree {
                batch.put(Table::Meta, CLEAN, vec![1]);
            }
            self.db.apply(batch).and_then(|()| self.db.flush()).map_err(|e| e.to_string())
        };
        close().map_err(|reason| part(&self.layout, "the index", self.readable(&reason)))
    }
}

fn part(layout: &Layout, part: &'static str, reason: impl Display) -> RepoError {
    RepoError::Part { path: layout.state.clone(), part, reason: reason.to_string() }
}

fn proc_path(fd: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd()))
}

fn replace(message: &dyn Display, from: &Path, to: &Path) -> String {
    // With the slash: /proc/self/fd/1 is also the beginning of /proc/self/fd/12.
    message.to_string().replace(&format!("{}/", from.display()), &format!("{}/", to.display()))
}

fn readable(error: RepoError, from: &Path, to: &Path) -> RepoError {
    match error {
        RepoError::Part { path, part, reason } => {
            RepoError::Part { path, part, reason: replace(&reason, from, to) }
        }
        RepoError::NewerFormat { path, found, known } => {
            let path = path.strip_prefix(from).map_or(path.clone(), |below| to.join(below));
            RepoError::NewerFormat { path, found, known }
        }
        other => other,
    }
}

fn path_of(bytes: &[u8]) -> PathBuf {
    PathBuf::from(OsStr::from_bytes(bytes))
}

/// Whether the filesystem of `root` keeps xattrs in the user namespace. Changes nothing.
pub fn keeps_xattrs(root: &Path) -> bool {
    let mut value = [0; 1];
    let asked = rustix::fs::getxattr(root, "user.dedupfs.probe", &mut value[..]);
    !matches!(asked, Err(rustix::io::Errno::NOTSUP))
}
