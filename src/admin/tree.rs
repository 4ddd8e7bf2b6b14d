//! The target tree of a restore, with paths confined to it.

use super::{AdminError, Context};
use crate::beneath::Root;
use crate::contents::OverlayError;
use rustix::fs::{FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use std::ffi::OsString;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// A directory and everything below it. Paths are relative to it; symlinks are never followed, other mounts never entered.
pub(super) struct Tree {
    root: Root,
    /// Its path in messages.
    shown: PathBuf,
}

impl Tree {
    /// Returns the overlay's tree: through its mount if there is one, so that the kernel learns of changes.
    pub(super) fn of(context: Context<'_>) -> Result<Tree, AdminError> {
        match context.mountpoint {
            Some(mountpoint) => Tree::open(mountpoint),
            None => {
                let backing = context.repo.overlay().backing();
                let root = backing.tree().try_clone().map_err(|e| OverlayError::io("open", ".", e))?;
                Ok(Tree { root, shown: backing.root_path()? })
            }
        }
    }

    /// Returns the directory that contains `to`, and the name there.
    pub(super) fn around(to: &Path) -> Result<(Tree, PathBuf), AdminError> {
        let name = to.file_name().ok_or_else(|| {
            AdminError::refused(
                format!("{}: expected the path of a new file or directory", to.display()),
                "give a path that ends in a name".to_owned(),
            )
        })?;
        let dir = to.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        Ok((Tree::open(dir)?, PathBuf::from(name)))
    }

    fn open(path: &Path) -> Result<Tree, AdminError> {
        let root = Root::open(path).map_err(|e| OverlayError::io("open directory", path, e))?;
        Ok(Tree { root, shown: path.to_owned() })
    }

    /// Returns `at` for messages.
    pub(super) fn shown(&self, at: &Path) -> PathBuf {
        self.shown.join(at)
    }

    /// Creates the error for a failed `operation` on `at`.
    pub(super) fn error(&self, operation: &'static str, at: &Path, e: Errno) -> OverlayError {
        match e {
            Errno::XDEV => OverlayError::Outside { path: self.shown(at) },
            e => OverlayError::io(operation, self.shown(at), e),
        }
    }

    /// Returns the attributes of `at` (of a symlink itself), if it exists.
    pub(super) fn stat(&self, at: &Path) -> Result<Option<Stat>, OverlayError> {
        self.root.stat(bytes(at)).map_err(|e| self.error("look at", at, e))
    }

    /// Returns the kind of `at`, if it exists.
    pub(super) fn kind(&self, at: &Path) -> Result<Option<FileType>, OverlayError> {
        Ok(self.stat(at)?.map(|stat| FileType::from_raw_mode(stat.st_mode)))
    }

    /// Opens `at` (a symlink itself) to change its attributes.
    pub(super) fn open_path(&self, at: &Path) -> Result<OwnedFd, OverlayError> {
        self.root.open_at(bytes(at), OFlags::PATH, Mode::empty()).map_err(|e| self.error("open", at, e))
    }

    /// Creates a file that must not exist.
    pub(super) fn create(&self, at: &Path) -> Result<File, Errno> {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR;
        Ok(File::from(self.root.open_at(bytes(at), flags, Mode::from_raw_mode(0o600))?))
    }

    /// Creates the directory `at`.
    pub(super) fn make_dir(&self, at: &Path) -> Result<(), OverlayError> {
        let made = self.root.make_dir(bytes(at), Mode::from_raw_mode(0o777));
        made.map_err(|e| self.error("create", at, e))
    }

    /// Creates the directory `at` and its missing parents.
    pub(super) fn make_dirs(&self, at: &Path) -> Result<(), OverlayError> {
        self.root.make_dirs(bytes(at)).map_err(|e| self.error("create", at, e))
    }

    /// Adds the name `at` to `first`.
    pub(super) fn link(&self, first: &Path, at: &Path) -> Result<(), OverlayError> {
        self.root.link(bytes(first), bytes(at)).map_err(|e| self.error("link", at, e))
    }

    /// Creates a symlink.
    pub(super) fn symlink(&self, target: &[u8], at: &Path) -> Result<(), OverlayError> {
        let made =
            self.root.parent(bytes(at)).and_then(|(dir, name)| rustix::fs::symlinkat(target, dir, name));
        made.map_err(|e| self.error("create", at, e))
    }

    /// Creates a fifo, socket or device.
    pub(super) fn make_node(&self, at: &Path, kind: FileType, number: u64) -> Result<(), OverlayError> {
        let mode = Mode::from_raw_mode(0o600);
        let made = self
            .root
            .parent(bytes(at))
            .and_then(|(dir, name)| rustix::fs::mknodat(dir, name, kind, mode, number));
        made.map_err(|e| self.error("create", at, e))
    }

    /// Returns the target of the symlink at `at`.
    pub(super) fn read_link(&self, at: &Path) -> Result<Vec<u8>, OverlayError> {
        crate::beneath::read_link(&self.root, bytes(at)).map_err(|e| self.error("read", at, e))
    }

    /// Returns the names in the directory `at`.
    pub(super) fn names(&self, at: &Path) -> Result<Vec<OsString>, OverlayError> {
        let names = self.root.list(bytes(at)).map_err(|e| self.error("read", at, e))?;
        Ok(names.into_iter().map(OsString::from_vec).collect())
    }

    /// Renames `from` over `to`, durably.
    pub(super) fn replace(&self, from: &Path, to: &Path) -> Result<(), Errno> {
        self.root.rename(bytes(from), bytes(to), rustix::fs::RenameFlags::empty())?;
        self.sync_dir_of(to)
    }

    /// Makes the name `at` durable.
    pub(super) fn sync_dir_of(&self, at: &Path) -> Result<(), Errno> {
        self.root.sync_dir(bytes(at.parent().unwrap_or(Path::new(""))))
    }

    /// Removes `at`; `dir` says that it is an empty directory.
    pub(super) fn remove(&self, at: &Path, dir: bool) -> Result<(), OverlayError> {
        self.root.remove(bytes(at), dir).map_err(|e| self.error("remove", at, e))
    }
}

fn bytes(path: &Path) -> &[u8] {
    path.as_os_str().as_bytes()
}
