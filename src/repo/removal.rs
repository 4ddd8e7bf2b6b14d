//! Removal of a store that its directory no longer needs.
//!
//! Order: no file has a record any more, durably ([`crate::maintain::Maintenance::remove_records`]) ->
//! `removing.toml` in `DIR/.dedupfs`, durably: from here on no program opens the store -> it is closed -> its
//! files -> the note -> the rest of `DIR/.dedupfs`, `removing.toml` last -> `DIR/.dedupfs` itself -> the
//! times of `DIR`. After a kill at any point, the next removal continues.
//!
//! Invariants: only files that `init` and the programs created are removed: `DIR/.dedupfs`, the note, and a
//! store elsewhere if it points back to `DIR`. Symlinks are not followed, other filesystems not entered.

use super::error::RepoError;
use super::layout::{self, BACKING, BackPointer, LOCK, REMOVING};
use super::lock::Lock;
use super::{Repo, init};
use crate::backing::{NOTE, STATE_DIR};
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, UTIME_OMIT};
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

#[derive(Serialize, Deserialize)]
struct Removing {
    /// A store elsewhere to remove too.
    store: Option<PathBuf>,
    /// Times of the directory before, in seconds and nanoseconds.
    mtime: (i64, i64),
}

impl Repo {
    /// Durably marks this store as being removed. No file may depend on it. After it is closed,
    /// [`finish_removal`] removes it. Returns a store elsewhere that belongs to another directory, and so
    /// stays.
    pub fn begin_removal(&self) -> Result<Option<PathBuf>, RepoError> {
        let root = &self.layout.root;
        let inside = root.join(STATE_DIR);
        let (mut store, mut stays) = (None, None);
        if self.layout.state != inside {
            let owner: Option<BackPointer> = layout::read_toml(&self.layout.file(BACKING))?;
            match owner.is_some_and(|owner| owner.root == *root) {
                true => store = Some(self.layout.state.clone()),
                false => stays = Some(self.layout.state.clone()),
            }
        }
        let stat = root.metadata().map_err(|e| RepoError::io("look at", root, e))?;
        let removing = Removing { store, mtime: (stat.mtime(), stat.mtime_nsec()) };
        let path = inside.join(REMOVING);
        let text = toml::to_string(&removing)
            .map_err(|e| RepoError::form(&path, format!("its path cannot be written down: {e}")))?;
        init::write_durable(&path, text.as_bytes(), 0o600)?;
        Ok(stays)
    }
}

/// Finishes a begun removal of the store of `dir`. Returns whether there was anything to do.
pub fn finish_removal(dir: &Path) -> Result<bool, RepoError> {
    let root = dir.canonicalize().map_err(|e| RepoError::io("find", dir, e))?;
    let inside = root.join(STATE_DIR);
    let mark = inside.join(REMOVING);
    let Some(removing) = layout::read_toml::<Removing>(&mark)? else {
        // Killed just before the last step.
        return Ok(!layout::exists(&root.join(NOTE))? && fs::remove_dir(&inside).is_ok());
    };
    if let Some(store) = &removing.store
        && layout::exists(store)?
    {
        remove_elsewhere(store, &root)?;
    }
    // A symlink may have moved it to another disk.
    let real = inside.canonicalize().map_err(|e| RepoError::io("find", &inside, e))?;
    // A process that waited for the lock sees the mark.
    let lock = Lock::take(&real, &inside)?;
    empty(&real, device(&real)?, &[REMOVING, LOCK])?;
    remove_file(&root.join(NOTE))?;
    remove_file(&real.join(LOCK))?;
    remove_file(&mark)?;
    drop(lock);
    remove_dir(&real)?;
    if real != inside {
        remove_file(&inside)?;
    }
    let last_access = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT as _ };
    let last_modification = Timespec { tv_sec: removing.mtime.0, tv_nsec: removing.mtime.1 };
    rustix::fs::utimensat(CWD, &root, &Timestamps { last_access, last_modification }, AtFlags::empty())
        .map_err(|e| RepoError::io("set times of", &root, e))?;
    Ok(true)
}

/// Removes a store elsewhere. It must itself point back to `root` until the end: the mark alone is not
/// enough.
fn remove_elsewhere(store: &Path, root: &Path) -> Result<(), RepoError> {
    let owner: Option<BackPointer> = layout::read_toml(&store.join(BACKING))?;
    match owner {
        Some(owner) if owner.root == root => {
            let lock = Lock::take(store, store)?;
            empty(store, device(store)?, &[BACKING, LOCK])?;
            remove_file(&store.join(LOCK))?;
            remove_file(&store.join(BACKING))?;
            drop(lock);
        }
        Some(owner) => {
            let found = format!("the store of {}", owner.root.display());
            return Err(RepoError::form(
                &store.join(BACKING),
                format!("expected the store of {}, found {found}", root.display()),
            ));
        }
        // All but the last step was done, or it is not a store.
        None => {}
    }
    remove_dir(store)
}

fn device(path: &Path) -> Result<u64, RepoError> {
    path.symlink_metadata().map(|meta| meta.dev()).map_err(|e| RepoError::io("look at", path, e))
}

/// Removes an empty directory. A mount point, or one in a directory that may not be changed, stays.
fn remove_dir(path: &Path) -> Result<(), RepoError> {
    match fs::remove_dir(path) {
        Err(e) if matches!(e.kind(), ErrorKind::ResourceBusy | ErrorKind::PermissionDenied) => Ok(()),
        other => other.map_err(|e| RepoError::io("remove directory", path, e)),
    }
}

/// Removes everything in a directory except `keep`.
fn empty(dir: &Path, dev: u64, keep: &[&str]) -> Result<(), RepoError> {
    let entries = dir.read_dir().map_err(|e| RepoError::io("read directory", dir, e))?;
    for entry in entries {
        let entry = entry.map_err(|e| RepoError::io("read directory", dir, e))?;
        if keep.iter().any(|name| entry.file_name() == *name) {
            continue;
        }
        let path = entry.path();
        let meta = entry.metadata().map_err(|e| RepoError::io("look at", &path, e))?;
        if !meta.is_dir() {
            remove_file(&path)?;
            continue;
        }
        if meta.dev() != dev {
            let other = io::Error::new(ErrorKind::CrossesDevices, "another filesystem is mounted there");
            return Err(RepoError::io("remove directory", &path, other));
        }
        empty(&path, dev, &[])?;
        fs::remove_dir(&path).map_err(|e| RepoError::io("remove directory", &path, e))?;
    }
    Ok(())
}

fn remove_file(path: &Path) -> Result<(), RepoError> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != ErrorKind::NotFound => Err(RepoError::io("remove", path, e)),
        _ => Ok(()),
    }
}
