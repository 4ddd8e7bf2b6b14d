//! Inodes found by a path or a name beneath the root of the overlay.
//!
//! Invariants:
//! - Only `openat2` beneath the root makes a [`Resolved`]: `..`, absolute paths, symlinks and magic links lead nowhere.
//! - A path that a client, a peer or a record named, and every step of a walk, also stays in the root's own mount. Only a
//!   program that looks a name up through the mount may go on into another mount below the root, as without dedupfs.
//! - The inode table takes only a [`Resolved`], and files are converted, truncated and replaced by way of that table alone.
//!   So a path from outside the process can change no file outside the overlay.
//! - The state directory and the note are not part of the tree.

use crate::backing::types::Kind;
use crate::backing::{self, Backing};
use crate::beneath::{self, is_name};
use crate::contents::error::{OverlayError, Result};
use rustix::fs::{Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};

/// An inode beneath the root: an `O_PATH` descriptor and its attributes when it was found.
pub struct Resolved {
    fd: OwnedFd,
    stat: Stat,
}

/// A directory beneath the root, open to be listed.
pub struct Directory(OwnedFd);

impl Backing {
    /// Opens the entry at `path` below the root; a symlink as itself. EXDEV if the path leads out of the root or into another
    /// mount, ELOOP if it leads through a symlink.
    pub fn resolve(&self, path: &Path) -> rustix::io::Result<Resolved> {
        if let Some(Component::Normal(first)) = path.components().next()
            && backing::is_hidden(first)
        {
            return Err(Errno::NOENT);
        }
        Resolved::new(self.tree().open_at(path.as_os_str().as_bytes(), OFlags::PATH, Mode::empty())?)
    }

    /// As [`Backing::resolve`], with an error that names the path.
    pub fn resolve_named(&self, operation: &'static str, path: &Path) -> Result<Resolved> {
        self.resolve(path).map_err(|e| match e {
            Errno::XDEV => OverlayError::Outside { path: path.to_owned() },
            e => OverlayError::io(operation, path, e),
        })
    }

    /// As [`Backing::resolve_named`]; `None` if nothing of this tree is there: no entry, no directory that leads there, or
    /// what another mount shows.
    pub fn resolve_if_any(&self, operation: &'static str, path: &Path) -> Result<Option<Resolved>> {
        // One call, because a program may rename the entry between two.
        match self.resolve(path) {
            Ok(found) => Ok(Some(found)),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::NAMETOOLONG | Errno::LOOP | Errno::XDEV) => Ok(None),
            Err(e) => Err(OverlayError::io(operation, path, e)),
        }
    }

    /// Returns the attributes of the entry at `path` below the root.
    pub fn stat(&self, path: &Path) -> rustix::io::Result<Stat> {
        Ok(self.resolve(path)?.stat)
    }

    /// The root itself, open to be listed.
    pub fn directory(&self) -> rustix::io::Result<Directory> {
        backing::open_dir_quietly(self.root()).map(Directory)
    }
}

impl Resolved {
    fn new(fd: OwnedFd) -> rustix::io::Result<Resolved> {
        let stat = rustix::fs::fstat(&fd)?;
        Ok(Resolved { fd, stat })
    }

    /// Makes one that breaks the invariant, to test the checks after it.
    #[cfg(test)]
    pub(crate) fn unconfined(fd: OwnedFd) -> Resolved {
        Resolved::new(fd).unwrap()
    }

    /// Returns the entry `name` of the directory `dir` as a program sees it: the root of a mount if one is there.
    pub(crate) fn as_seen(dir: &OwnedFd, name: &OsStr) -> rustix::io::Result<Resolved> {
        if !is_name(name.as_bytes()) {
            return Err(Errno::XDEV);
        }
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let within = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_SYMLINKS;
        Resolved::new(rustix::fs::openat2(dir, name, flags, Mode::empty(), within)?)
    }

    /// The file that was just made as `name` in the directory `dir` and is open as `file`, whatever has happened to its name
    /// since.
    pub(crate) fn created(dir: &OwnedFd, name: &OsStr, file: &File) -> rustix::io::Result<Resolved> {
        let made = rustix::fs::fstat(file)?;
        match Resolved::as_seen(dir, name) {
            // No other file has its number as long as it is open here.
            Ok(found) if backing::identity(&found.stat) == backing::identity(&made) => Ok(found),
            // Renamed or removed since.
            _ => Resolved::new(backing::reopen_path(file)?),
        }
    }

    /// Its attributes when it was found.
    pub fn stat(&self) -> &Stat {
        &self.stat
    }

    /// Returns its type.
    pub fn kind(&self) -> Kind {
        backing::kind(self.stat.st_mode)
    }

    /// Opens a directory to be listed.
    pub fn open_dir(&self) -> rustix::io::Result<Directory> {
        backing::open_dir_quietly(&self.fd).map(Directory)
    }

    /// The descriptor and the attributes.
    pub fn into_parts(self) -> (OwnedFd, Stat) {
        (self.fd, self.stat)
    }
}

impl AsFd for Resolved {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Directory {
    /// The entry `name`; EXDEV if another filesystem or directory is mounted there.
    pub fn child(&self, name: &OsStr) -> rustix::io::Result<Resolved> {
        Resolved::new(beneath::open_child(&self.0, name.as_bytes(), OFlags::PATH)?)
    }

    /// The directory `name` in it, open to be listed; EXDEV as above.
    pub fn inner(&self, name: &OsStr) -> rustix::io::Result<Directory> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        match beneath::open_child(&self.0, name.as_bytes(), flags | OFlags::NOATIME) {
            Err(Errno::PERM) => beneath::open_child(&self.0, name.as_bytes(), flags),
            opened => opened,
        }
        .map(Directory)
    }
}

impl AsFd for Directory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use crate::backing::resolved::*;
    use std::os::unix::fs::symlink;

    fn backing() -> (tempfile::TempDir, Backing) {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("tree/sub")).unwrap();
        std::fs::write(dir.path().join("tree/sub/file"), "in").unwrap();
        std::fs::write(dir.path().join("outside"), "out").unwrap();
        let backing = Backing::open(&dir.path().join("tree")).unwrap();
        (dir, backing)
    }

    #[test]
    fn no_path_leads_out_of_the_root() {
        let (dir, backing) = backing();
        let tree = dir.path().join("tree");
        symlink(dir.path(), tree.join("up")).unwrap();
        symlink("sub", tree.join("within")).unwrap();
        symlink("/proc/self/root", tree.join("magic")).unwrap();
        assert_eq!(backing.resolve(Path::new("sub/file")).unwrap().stat().st_size, 2);
        assert_eq!(backing.resolve(Path::new("")).unwrap().kind(), Kind::Directory);
        assert_eq!(backing.resolve(Path::new("up")).unwrap().kind(), Kind::Symlink);
        let absolute = dir.path().join("outside");
        for (path, expected) in [
            (absolute.to_str().unwrap(), Errno::XDEV),
            ("/proc/self/root", Errno::XDEV),
            ("..", Errno::XDEV),
            ("sub/../../outside", Errno::XDEV),
            ("up/outside", Errno::LOOP),
            ("within/file", Errno::LOOP),
            ("magic/etc", Errno::LOOP),
            (".dedupfs", Errno::NOENT),
            ("./.dedupfs/packs", Errno::NOENT),
        ] {
            assert_eq!(backing.resolve(Path::new(path)).err(), Some(expected), "{path}");
        }
    }

    #[test]
    fn a_path_longer_than_the_kernel_takes_at_once_is_followed() {
        let (dir, backing) = backing();
        let mut at = beneath::Root::open(&dir.path().join("tree")).unwrap();
        let mut path = Vec::new();
        for _ in 0..30 {
            let name = vec![b'n'; 200];
            rustix::fs::mkdirat(at.fd(), &name[..], Mode::RWXU).unwrap();
            path = beneath::join(&path, &name);
            at = beneath::Root::from(at.open_at(&name, OFlags::PATH, Mode::empty()).unwrap());
        }
        let path = Path::new(OsStr::from_bytes(&path));
        assert_eq!(backing.resolve(path).unwrap().kind(), Kind::Directory);
    }

    #[test]
    fn a_name_is_one_component() {
        let (_dir, backing) = backing();
        let root = backing.directory().unwrap();
        assert!(root.child(OsStr::new("sub")).is_ok());
        for name in ["..", ".", "", "sub/file", "/"] {
            assert_eq!(root.child(OsStr::new(name)).err(), Some(Errno::XDEV), "{name}");
        }
    }
}
