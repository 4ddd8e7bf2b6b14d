//! Opening the parts of a store, and building a new index if the old one is unusable.
//!
//! Invariants: an unusable index is moved aside, and a new one is filled from the packs. Only the index is
//! ever replaced. A read-only open replaces nothing: its new index is in memory. An index is deleted only for
//! a collection on a disk without any space ([`OpenOptions::give_up_index`]).

use super::error::RepoError;
use super::layout::{INDEX, Layout};
use super::memory::Memory;
use crate::convert::{Amount, keep_free_bytes};
use crate::db::{Batch, Compacted, Db, DbError, DbResult, IndexDb, MemDb, Shadow, Table};
use crate::env::{Refusal, Reserve};
use crate::id::StoreId;
use crate::indexes::Views;
use crate::similarity::{Similarity, SimilarityError, SimilarityOptions};
use crate::store::{Store, StoreError, StoreOptions};
use crate::tree::Dedup;
use rustix::io::Errno;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Row of [`Table::Meta`]: the index was closed cleanly.
pub(super) const CLEAN: &[u8] = b"clean";
pub(super) const INDEX_CACHE_BYTES: u64 = 32 << 20;

/// Space to rewrite one pack, and for the index meanwhile.
const RESERVE_BYTES: u64 = 80 << 20;

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

/// The parts that share the index.
pub(super) struct Parts {
    pub db: Arc<dyn Db>,
    pub store: Arc<Store>,
    pub similarity: Arc<Similarity>,
    pub views: Views,
    /// Whether the index was closed cleanly last time.
    pub clean: bool,
    /// Files that were not committed then.
    pub left: Vec<PathBuf>,
}

/// The settings that the parts need.
#[derive(Clone, Copy)]
pub(super) struct Tuning {
    pub memory: Memory,
    pub keep_free: Option<Amount>,
}

/// Approximate space to open the index for changes; the reserve is released for it.
const OPEN_BYTES: u64 = 2 << 20;
/// With less than this, sled is not even tried.
const OPEN_BYTES_MIN: u64 = 128 << 10;

enum Failure {
    /// The index is unusable.
    Index(String),
    Other(RepoError),
}

pub(super) fn open_parts(
    layout: &Layout,
    dir: &Path,
    id: StoreId,
    tuning: Tuning,
    options: &OpenOptions,
    progress: &mut dyn FnMut(Opening),
) -> Result<Parts, RepoError> {
    let index = dir.join(INDEX);
    if options.rebuild && index.exists() {
        move_aside(layout, &index, "old")?;
    }
    match attempt(layout, dir, id, tuning, options, progress) {
        Ok(parts) => Ok(parts),
        Err(Failure::Other(e)) => Err(e),
        // A failure for lack of space does not mean that the index is bad.
        Err(Failure::Index(_)) if !options.read_only && free_bytes(dir) < OPEN_BYTES => {
            Err(RepoError::NoRoom { path: layout.state.clone() })
        }
        Err(Failure::Index(reason)) if options.read_only => {
            match free_bytes(dir) < OPEN_BYTES {
                true => tracing::warn!("the disk is full: the packs are read in place of the index"),
                false => tracing::warn!(
                    "the index is damaged ({reason}); it stays, and the packs are read in its place"
                ),
            }
            match parts(layout, dir, id, tuning, options, Arc::new(MemDb::new()), progress) {
                Ok(parts) => Ok(parts),
                Err(Failure::Other(e)) => Err(e),
                Err(Failure::Index(reason)) => Err(part(layout, "the index", reason)),
            }
        }
        Err(Failure::Index(reason)) => {
            let aside = move_aside(layout, &index, "damaged")?;
            tracing::warn!(
                "the index is damaged ({reason}); it was moved to {} and is rebuilt",
                aside.display()
            );
            attempt(layout, dir, id, tuning, options, progress).map_err(|failure| match failure {
                Failure::Other(e) => e,
                Failure::Index(reason) => part(layout, "the index", reason),
            })
        }
    }
}

fn attempt(
    layout: &Layout,
    dir: &Path,
    id: StoreId,
    tuning: Tuning,
    options: &OpenOptions,
    progress: &mut dyn FnMut(Opening),
) -> Result<Parts, Failure> {
    let full = is_full_for_opening(dir);
    if full && options.give_up_index {
        // None of it is the only copy of anything, complete or not.
        match std::fs::remove_dir_all(dir.join(INDEX)) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                return Err(Failure::Other(RepoError::io("remove", &layout.file(INDEX), e)));
            }
            _ => return parts(layout, dir, id, tuning, options, Arc::new(MemDb::new()), progress),
        }
    }
    if full && !options.read_only {
        return Err(Failure::Other(RepoError::NoRoom { path: layout.state.clone() }));
    }
    let db: Arc<dyn Db> = match open_index(&dir.join(INDEX), tuning.memory.index_cache_bytes, options) {
        Ok(db) => Arc::new(db),
        Err(DbError::Locked { .. }) => {
            let holder = "another process".to_owned();
            return Err(Failure::Other(RepoError::Locked { path: layout.state.clone(), holder }));
        }
        // A read-only or full filesystem: everything can be read from the packs again, but not stored.
        Err(_) if options.read_only && (full || !writable(dir)) => Arc::new(MemDb::new()),
        Err(_) if !writable(dir) => {
            let denied = rustix::fs::access(dir, rustix::fs::Access::WRITE_OK).err();
            let denied = denied.unwrap_or(Errno::ACCESS);
            return Err(Failure::Other(RepoError::io("write to", &layout.state, denied)));
        }
        // Read-only use works without it, whatever its problem.
        Err(e) if options.read_only => return Err(Failure::Index(e.to_string())),
        Err(e) => return Err(index(layout, e)),
    };
    parts(layout, dir, id, tuning, options, db, progress)
}

fn parts(
    layout: &Layout,
    dir: &Path,
    id: StoreId,
    tuning: Tuning,
    options: &OpenOptions,
    db: Arc<dyn Db>,
    progress: &mut dyn FnMut(Opening),
) -> Result<Parts, Failure> {
    let Tuning { memory, keep_free } = tuning;
    let mut clean = db.get(Table::Meta, CLEAN).map_err(|e| index(layout, e))?.is_some();
    let mut left = Vec::new();
    db.scan(Table::Pending, &[], &mut |path, _| {
        left.push(PathBuf::from(OsStr::from_bytes(path)));
        true
    })
    .map_err(|e| index(layout, e))?;
    let defaults = StoreOptions::default();
    let store_options = StoreOptions {
        cache_bytes: memory.cache_bytes,
        recent_rows: memory.recent_rows,
        filter_bytes: memory.filter_bytes,
        read_only: options.read_only,
        pack_bytes_max: pack_bytes(dir).unwrap_or(defaults.pack_bytes_max),
        reserve_bytes: if options.read_only { 0 } else { RESERVE_BYTES },
        keep_free_bytes: keep_free_bytes(keep_free, total_bytes(dir).unwrap_or(u64::MAX)),
        ..defaults
    };
    let store = Store::open(dir, id, db.clone(), store_options, &mut |done, total| {
        progress(Opening { done_bytes: done, total_bytes: total });
    })
    .map_err(|e| match e {
        StoreError::Db(e) => index(layout, e),
        StoreError::NewerFormat { path, found, known } => {
            Failure::Other(RepoError::NewerFormat { path, found: found.into(), known: known.into() })
        }
        // The packs are unchanged: a new index would not help.
        StoreError::Io { operation, path, source } if Refusal::of(&source).is_some() => {
            Failure::Other(RepoError::io(operation, &path, source))
        }
        e => Failure::Other(part(layout, "the packs", e.to_string())),
    })?;
    let similarity_options =
        SimilarityOptions { buffer_bytes: memory.similarity_bytes, ..SimilarityOptions::default() };
    if clean && !options.read_only {
        // From here until a clean close the index may lack files.
        let mut batch = Batch::new();
        batch.remove(Table::Meta, CLEAN);
        match db.apply(batch).and_then(|()| db.flush()) {
            // A full disk must be mountable too, so that space can be freed; the index counts as incomplete.
            Err(DbError::Full { .. }) => clean = false,
            other => other.map_err(|e| index(layout, e))?,
        }
    }
    if !options.read_only {
        for tables in [db.clone(), Arc::new(Shadow::new(db.clone()))] {
            // Another program version's index can be built from the files again.
            if Similarity::clear_other_version(&*tables).map_err(|e| similar(layout, e))? {
                tracing::info!("the similarity index has the form of another version, and is rebuilt");
                clean = false;
            }
        }
    }
    let similarity = Similarity::open(db.clone(), similarity_options).map_err(|e| similar(layout, e))?;
    let views = Views::open(db.clone(), memory.views_bytes).map_err(|e| similar(layout, e))?;
    Ok(Parts { db, store: Arc::new(store), similarity: Arc::new(similarity), views, clean, left })
}

/// Returns the pack size: small enough that the reserve, a fiftieth of the filesystem, can rewrite one.
fn pack_bytes(dir: &Path) -> Option<u32> {
    let share = total_bytes(dir)? / 128;
    Some(share.clamp(1 << 20, 64 << 20) as u32)
}

/// Whether the index cannot be opened for changes for lack of space, even after releasing the reserve.
fn is_full_for_opening(dir: &Path) -> bool {
    for reserved in [IndexDb::reserved(&dir.join(INDEX)), dir.to_owned()] {
        Reserve::release(&reserved, OPEN_BYTES);
    }
    free_bytes(dir) < OPEN_BYTES_MIN
}

fn free_bytes(dir: &Path) -> u64 {
    space(dir).map_or(u64::MAX, |space| space.f_bavail * space.f_frsize)
}

/// Returns what the filesystem says of its space. Some, as ramfs, say nothing.
fn space(dir: &Path) -> Option<rustix::fs::StatVfs> {
    rustix::fs::statvfs(dir).ok().filter(|space| space.f_blocks > 0)
}

/// The size of the filesystem.
fn total_bytes(dir: &Path) -> Option<u64> {
    space(dir).map(|space| space.f_blocks * space.f_frsize)
}

fn open_index(path: &Path, cache_bytes: u64, options: &OpenOptions) -> DbResult<IndexDb> {
    if options.read_only && IndexDb::is_earlier(path) {
        let reason = "it has the form of an earlier version; the next mount rebuilds it".to_owned();
        return Err(DbError::Broken { path: path.to_owned(), reason });
    }
    let db = IndexDb::open(path, cache_bytes)?;
    if !options.read_only {
        match db.compact(&|| true) {
            Ok(Compacted::Done { before, now }) => {
                tracing::info!("the index was compacted: {before} bytes before, {now} now");
            }
            Ok(Compacted::NotWorth | Compacted::GivenUp) => {}
            // It cannot be read completely.
            Err(e @ DbError::Broken { .. }) => return Err(e),
            Err(e) => tracing::warn!("the index was not compacted: {e}"),
        }
    }
    Ok(db)
}

/// Classifies an error: the index is unusable, or the system only refused, and it stays as it is.
fn index(layout: &Layout, error: DbError) -> Failure {
    let refused = match error {
        DbError::Refused { source, .. } => source,
        DbError::Full { .. } => {
            return Failure::Other(RepoError::NoRoom { path: layout.state.clone() });
        }
        error => return Failure::Index(error.to_string()),
    };
    Failure::Other(RepoError::io("use", &layout.file(INDEX), refused))
}

fn similar(layout: &Layout, error: SimilarityError) -> Failure {
    match error {
        SimilarityError::Db(e) => index(layout, e),
        error => Failure::Index(error.to_string()),
    }
}

fn part(layout: &Layout, part: &'static str, reason: String) -> RepoError {
    RepoError::Part { path: layout.state.clone(), part, reason }
}

fn writable(dir: &Path) -> bool {
    rustix::fs::access(dir, rustix::fs::Access::WRITE_OK).is_ok()
}

fn move_aside(layout: &Layout, index: &Path, why: &str) -> Result<PathBuf, RepoError> {
    let time = jiff::Timestamp::now().strftime("%Y%m%dT%H%M%SZ").to_string();
    let name = (0..100)
        .map(|n| if n == 0 { format!("{INDEX}.{why}-{time}") } else { format!("{INDEX}.{why}-{time}-{n}") })
        .find(|name| !index.with_file_name(name).exists())
        .unwrap_or_else(|| format!("{INDEX}.{why}"));
    match std::fs::rename(index, index.with_file_name(&name)) {
        Ok(()) => Ok(layout.file(&name)),
        Err(e) => Err(RepoError::io("move aside", &layout.file(INDEX), e)),
    }
}
