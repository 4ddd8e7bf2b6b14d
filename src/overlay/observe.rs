//! The interface for observers of file events. The history, a higher layer, implements it.
//!
//! Reported events have already happened. The observer keeps them in memory and returns at once: a rename
//! waits for no disk. The next scan of the tree reports events lost in a crash again, as far as possible
//! ([`Observer::met`]).

use super::Overlay;
use super::inode::Inode;
use crate::backing;
use crate::backing::stub::{Stub, Time};
use crate::catalog::Finder;
use crate::contents::error::Result;
use crate::id::{DocumentId, FileId, RecipeId};
use crate::recipe::Recipe;
use crate::store::Collection;
use rustix::fs::Stat;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Directories whose paths are remembered; beyond that, all are forgotten.
const PATHS_MAX: usize = 4096;
/// Xattrs of a file are recorded with its version if they take no more than this together.
const XATTR_BYTES_MAX: usize = 4096;

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
pub(super) struct DirPaths {
    known: Mutex<HashMap<FileId, Arc<Path>>>,
}

impl DirPaths {
    fn lock(&self) -> MutexGuard<'_, HashMap<FileId, Arc<Path>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets all paths: they may be wrong now.
    pub(super) fn forget(&self) {
        self.lock().clear();
    }
}

impl Overlay {
    /// Reports events to `observer` from now on.
    pub fn observed_by(&self, observer: Arc<dyn Observer>) {
        // An overlay has one history: a second observer is ignored.
        let _ = self.observer.set(observer);
    }

    pub(super) fn observer(&self) -> Option<&dyn Observer> {
        self.observer.get().map(|observer| &**observer).filter(|_| !self.read_only)
    }

    /// Returns the path of a directory, from memory if it is known there.
    pub(super) fn dir_path(&self, dir: &Inode) -> Option<Arc<Path>> {
        if !dir.on_root_fs {
            return None;
        }
        if let Some(path) = self.dir_paths.lock().get(&dir.file_id()) {
            return Some(path.clone());
        }
        let path: Arc<Path> = self.path_of(dir)?.into();
        let mut known = self.dir_paths.lock();
        if known.len() >= PATHS_MAX {
            known.clear();
        }
        known.insert(dir.file_id(), path.clone());
        Some(path)
    }

    /// Reports a file that was committed or met, with the attributes in `stat`.
    pub(super) fn tell_committed(
        &self,
        inode: &Inode,
        (recipe, size): (RecipeId, u64),
        stat: &Stat,
        met: bool,
        finder: &mut Finder<'_>,
    ) {
        self.ticks.stir();
        let Some(observer) = self.observer() else { return };
        let mut told = || -> Result<Option<Committed>> {
            let mut paths = self.names_of(inode, stat, finder)?;
            paths.retain(|path| self.keeps_history(path));
            if paths.is_empty() {
                return Ok(None);
            }
            let meta = self.meta_of(inode, stat, XATTR_BYTES_MAX)?;
            Ok(Some(Committed { paths, file: inode.file_id(), recipe, size, meta }))
        };
        match told() {
            Ok(Some(file)) if met => observer.met(file),
            Ok(Some(file)) => observer.committed(file),
            Ok(None) => {}
            Err(e) => tracing::warn!("{}: no version of it was kept: {e}", self.name_of(inode)),
        }
    }

    /// Returns the names of a file, sorted. The name that it was opened by may be gone while it has others; those are found where
    /// the catalog last saw them. For a file with several names `finder` reads their directories, once for all files that it is
    /// used for, so its names are checked again.
    fn names_of(&self, inode: &Inode, stat: &Stat, finder: &mut Finder<'_>) -> Result<Vec<PathBuf>> {
        let opened = self.backing.relative_path(&inode.path_fd()?)?;
        let mut names = Vec::new();
        if stat.st_nlink > 1 || opened.is_none() {
            finder.paths_of(inode.file_id(), &mut names)?;
            names.retain(|name| {
                let there = self.backing.stat(name);
                there.is_ok_and(|there| backing::identity(&there) == inode.identity)
            });
        }
        names.extend(opened);
        names.sort_unstable();
        names.dedup();
        Ok(names)
    }

    /// Reports an additional name of a file.
    pub(super) fn tell_linked(&self, inode: &Inode, dir: &Inode, name: &OsStr) {
        let Some(observer) = self.observer().filter(|_| inode.is_root_fs_file()) else { return };
        if let Some(from) = self.path_of(inode)
            && let Some(dir) = self.dir_path(dir)
            && from != dir.join(name)
        {
            observer.linked(&from, &dir.join(name));
        }
    }

    /// Reports a file that was closed without any content, if one of its names had a content before.
    pub(super) fn tell_emptied(&self, inode: &Inode, stat: &Stat, finder: &mut Finder<'_>) -> Result<()> {
        let Some(observer) = self.observer() else { return Ok(()) };
        // A file that never had a content has nothing to go back to.
        let mut had_content = false;
        for path in self.names_of(inode, stat, finder)? {
            had_content |= observer.last_at(&path)?.is_some_and(|last| last.size > 0);
        }
        if !had_content {
            return Ok(());
        }
        let mut writer = self.contents.store.writer();
        let recipe = writer.put_recipe(&Recipe::default())?;
        writer.flush()?;
        self.tell_committed(inode, (recipe, 0), stat, false, finder);
        Ok(())
    }

    /// As [`Overlay::tell_committed`], for a stub that a scan met.
    pub(super) fn tell_met(&self, inode: &Inode, stub: &Stub, finder: &mut Finder<'_>) {
        if self.observer().is_some()
            && let Ok(stat) = inode.path_fd().and_then(rustix::fs::fstat)
        {
            self.tell_committed(inode, (stub.recipe, stub.size), &stat, true, finder);
        }
    }

    /// Returns whether versions of the file at `path` are kept.
    pub fn keeps_history(&self, path: &Path) -> bool {
        let policies = self.policies();
        policies.rules() == 0 || policies.of(path).keep_history
    }

    pub(super) fn meta_of(&self, inode: &Inode, stat: &Stat, xattr_bytes_max: usize) -> Result<Meta> {
        Ok(Meta {
            mode: stat.st_mode & 0o7777,
            uid: stat.st_uid,
            gid: stat.st_gid,
            mtime: backing::mtime(stat),
            xattrs: xattrs_of(inode, xattr_bytes_max)?,
        })
    }
}

/// Returns the xattrs that users see, or `None` if they take more than `bytes_max` bytes together.
fn xattrs_of(inode: &Inode, bytes_max: usize) -> Result<Option<Vec<Xattr>>> {
    let fd = inode.path_fd()?;
    let names = match backing::list_xattrs(&fd) {
        Err(rustix::io::Errno::NOTSUP) => return Ok(Some(Vec::new())),
        names => names?,
    };
    let (mut found, mut bytes) = (Vec::new(), 0);
    let ours = crate::backing::stub::XATTR.as_bytes();
    for name in names.split(|&byte| byte == 0).filter(|name| !name.is_empty() && *name != ours) {
        // It was removed meanwhile, or this process may not read it.
        let value = match backing::get_xattr(&fd, OsStr::from_bytes(name)) {
            Ok(Some(value)) => value,
            Ok(None) | Err(rustix::io::Errno::ACCESS | rustix::io::Errno::PERM) => continue,
            Err(e) => return Err(e.into()),
        };
        bytes += name.len() + value.len();
        if bytes > bytes_max {
            return Ok(None);
        }
        found.push((name.to_vec(), value));
    }
    found.sort();
    Ok(Some(found))
}
