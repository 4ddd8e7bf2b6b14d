//! The interface for observers of file events. The history, a higher layer, implements it.
//!
//! Reported events have already happened. The observer keeps them in memory and returns at once: a rename
//! waits for no disk. The next scan of the tree reports events lost in a crash again, as far as possible
//! ([`Observer::met`]).

use crate::backing::stub::Time;
use crate::contents::error::Result;
use crate::id::{DocumentId, FileId, RecipeId};
use crate::store::Collection;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Directories whose paths are remembered; beyond that, all are forgotten.
pub(crate) const PATHS_MAX: usize = 4096;

/// An xattr: its name and its value.
pub type Xattr = (Vec<u8>, Vec<u8>);

/// Owner, mode, xattrs and times of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Meta {
    /// Permission bits, with setuid, setgid and sticky (12 bits).
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Last change of content.
    pub mtime: Time,
    /// Sorted by name, without our own; `None` if there are too many to keep them here.
    pub xattrs: Option<Vec<Xattr>>,
}

/// A file whose content is in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committed {
    /// All of its names, below the root.
    pub paths: Vec<PathBuf>,
    /// Its inode.
    pub file: FileId,
    /// Its content.
    pub recipe: RecipeId,
    /// Its length in bytes.
    pub size: u64,
    /// Owner, mode, xattrs and times.
    pub meta: Meta,
}

/// Contents that a garbage collection keeps only for the history.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeptForHistory {
    /// Bytes on disk.
    pub bytes: u64,
    /// Bytes of these that only versions and snapshots without a name need, and that can be given up for space.
    pub yielding_bytes: u64,
    /// Versions and snapshots without a name that the rules keep and that were given up for space, or would be.
    pub thinned: u64,
    /// Versions that are kept.
    pub versions: u64,
    /// Versions that are given up, or would be.
    pub dropped: u64,
    /// Snapshots that are kept.
    pub snapshots: u64,
    /// Versions and directories of snapshots that cannot be read: everything stored by the time they were found is kept.
    pub unreadable: u64,
}

/// Receives events of an overlay. All methods may be called from many threads.
pub trait Observer: Send + Sync {
    /// A file was committed and its content is durable in the store.
    fn committed(&self, file: Committed);

    /// A scan met a file whose content is in the store. The same event may have come before, also before a crash.
    fn met(&self, file: Committed);

    /// The file at `from` got the additional name `to`.
    fn linked(&self, from: &Path, to: &Path);

    /// `from` was renamed to `to`: whether it is a directory; whether both have exchanged their names.
    fn renamed(&self, from: &Path, to: &Path, directory: bool, exchanged: bool);

    /// The last entry at a path was removed.
    fn removed(&self, path: &Path, directory: bool);

    /// Called every 2 seconds: writes the events so far to where they survive a kill of the process.
    fn tick(&self);

    /// Makes the events so far as durable as the store, after [`crate::store::Store::sync`].
    fn flush(&self) -> Result<()>;

    /// Returns the last event of the file at a path, if nothing has happened to that path since.
    fn last_at(&self, path: &Path) -> Result<Option<Committed>>;

    /// Marks the contents that the history needs, without the snapshot `except`, if there is one. First gives up versions
    /// that need not be kept, unless `dry_run`. Keeps at most `room` bytes on disk, or the contents of named snapshots.
    /// Returns `None` if `keep_going` returned false. Called after the contents of files were marked.
    fn mark(
        &self,
        collection: &Collection<'_>,
        dry_run: bool,
        except: Option<&DocumentId>,
        room: u64,
        keep_going: &mut dyn FnMut() -> bool,
    ) -> Result<Option<KeptForHistory>>;

    /// Returns the limit in bytes on disk for contents that only versions and snapshots need; named snapshots may exceed it.
    fn bytes_max(&self) -> u64;

    /// Returns the newest pack that must not be changed, because an unreadable version may need a part of it.
    fn left_until(&self) -> Result<Option<u32>>;
}

/// Paths of directories, so that a rename need not ask the kernel. Forgotten when a directory gets another path.
#[derive(Default)]
pub(crate) struct DirPaths {
    known: Mutex<HashMap<FileId, Arc<Path>>>,
}

impl DirPaths {
    pub(crate) fn lock(&self) -> MutexGuard<'_, HashMap<FileId, Arc<Path>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets all paths: they may be wrong now.
    pub(crate) fn forget(&self) {
        self.lock().clear();
    }
}
