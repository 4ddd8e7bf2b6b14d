//! A tree as plain files elsewhere: another directory, or a tar archive. The source is only read.
//!
//! The tree is that of a mount, where all files look plain, or a bare directory, whose stubs the overlay
//! reads. Each entry goes to a [`Sink`] with everything that a filesystem keeps of it: mode, owner, times,
//! xattrs, ACLs (which are xattrs to the kernel), links, holes. Other filesystems mounted in it are not
//! entered.
//!
//! Invariants: a file whose content cannot be read completely is reported, and is not in the copy.
//!
//! Memory: names of the directories on the current path, the path of each file with several names, one piece
//! of content.

mod archive;
mod content;
mod directory;
mod same;

pub use archive::TarSink;
pub use content::Content;
pub use directory::DirectorySink;
pub use same::SameSink;

use crate::backing::is_hidden;
use crate::backing::types::Kind;
use crate::contents::OverlayError;
use crate::overlay::{Overlay, xattrs_of};
use rustix::fs::{CWD, Mode, OFlags, RawDir, Stat};
use rustix::io::Errno;
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// Result of copying one entry.
pub type Result<T> = std::result::Result<T, OverlayError>;

/// Gets each entry that could not be copied, and the reason.
pub type Failed<'a> = &'a mut dyn FnMut(&Path, OverlayError);
/// Gets the number of further content bytes; false ends the work.
pub type Step<'a> = &'a mut dyn FnMut(u64) -> bool;

/// An entry of the tree.
pub struct Item<'a> {
    /// Path below the top of the tree; empty for the top itself.
    pub path: &'a Path,
    /// Its kind.
    pub kind: Kind,
    /// Its attributes below; the length of a file is that of its [`Content`].
    pub stat: &'a Stat,
    /// Its xattrs, including ACLs.
    pub xattrs: &'a [(OsString, Vec<u8>)],
    /// Target of a symlink.
    pub target: Option<&'a Path>,
}

/// The target of a copy.
pub trait Sink {
    /// Begins a directory; its entries follow.
    fn enter(&mut self, item: &Item<'_>) -> Result<()>;
    /// Ends a directory.
    fn leave(&mut self, item: &Item<'_>) -> Result<()>;
    /// Adds a regular file.
    fn file(&mut self, item: &Item<'_>, content: &Content<'_>, step: Step<'_>) -> Result<()>;
    /// Adds another name of the file `first`.
    fn link(&mut self, item: &Item<'_>, first: &Path) -> Result<()>;
    /// Adds a symlink, fifo, socket or device.
    fn special(&mut self, item: &Item<'_>) -> Result<()>;
}

/// Amount given to a sink.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Walked {
    /// Regular files, counted once.
    pub files: u64,
    /// Bytes of their contents.
    pub bytes: u64,
    /// Their approximate bytes on a disk.
    pub room_bytes: u64,
}

/// The tree to copy.
pub struct Tree<'a> {
    /// The top: a directory or a file.
    top: OwnedFd,
    /// Its own name, for a file.
    name: OsString,
    /// Reads stubs; none for a mount.
    overlay: Option<&'a Overlay>,
    /// Position of the starting directory below the overlay's root.
    below_root: PathBuf,
    dev: u64,
}

impl<'a> Tree<'a> {
    /// Returns the tree that a mount shows at `path`, which must not be a symlink.
    pub fn mounted(path: &Path) -> Result<Tree<'a>> {
        let top = open_path(CWD, path.as_os_str()).map_err(|e| OverlayError::io("open", path, e))?;
        Tree::new(top, path, None, PathBuf::new())
    }

    /// Returns the tree at `path` below the root of an unmounted overlay.
    pub fn bare(overlay: &'a Overlay, path: &Path) -> Result<Tree<'a>> {
        let found = overlay.backing().resolve_named("open", path)?;
        let below_root = match found.kind() {
            Kind::Directory => path,
            _ => path.parent().unwrap_or(Path::new("")),
        };
        Tree::new(found.into_parts().0, path, Some(overlay), below_root.to_owned())
    }

    fn new(top: OwnedFd, path: &Path, overlay: Option<&'a Overlay>, below_root: PathBuf) -> Result<Tree<'a>> {
        let dev = rustix::fs::fstat(&top)?.st_dev;
        let name = path.file_name().unwrap_or_default().to_owned();
        Ok(Tree { top, name, overlay, below_root, dev })
    }

    /// Counts files and bytes. Reads no content.
    pub fn measure(&self) -> Result<Walked> {
        struct Measure;
        impl Sink for Measure {
            fn enter(&mut self, _: &Item<'_>) -> Result<()> {
                Ok(())
            }
            fn leave(&mut self, _: &Item<'_>) -> Result<()> {
                Ok(())
            }
            fn file(&mut self, _: &Item<'_>, _: &Content<'_>, _: Step<'_>) -> Result<()> {
                Ok(())
            }
            fn link(&mut self, _: &Item<'_>, _: &Path) -> Result<()> {
                Ok(())
            }
            fn special(&mut self, _: &Item<'_>) -> Result<()> {
                Ok(())
            }
        }
        self.give(&mut Measure, &mut |_| true, &mut |_, _| {})
    }

    /// Passes everything to `sink`, a directory before its entries. Reports failures to `failed` and
    /// continues. ECANCELED if `step` returned false.
    pub fn give(&self, sink: &mut dyn Sink, step: Step<'_>, failed: Failed<'_>) -> Result<Walked> {
        let mut giver = Giver {
            tree: self,
            sink,
            step,
            failed,
            linked: HashMap::new(),
            walked: Walked::default(),
            stopped: false,
        };
        let top =
            self.top.as_fd().try_clone_to_owned().map_err(|e| OverlayError::io("open", &self.name, e))?;
        let is_dir = kind(rustix::fs::fstat(&top)?.st_mode) == Kind::Directory;
        let path = if is_dir { PathBuf::new() } else { PathBuf::from(&self.name) };
        giver.entry(top, &path);
        if giver.stopped {
            return Err(Errno::CANCELED.into());
        }
        Ok(giver.walked)
    }
}

struct Giver<'a> {
    tree: &'a Tree<'a>,
    sink: &'a mut dyn Sink,
    step: Step<'a>,
    failed: Failed<'a>,
    /// First names of files with several names.
    linked: HashMap<u64, PathBuf>,
    walked: Walked,
    stopped: bool,
}

impl Giver<'_> {
    fn entry(&mut self, fd: OwnedFd, path: &Path) {
        if self.stopped {
            return;
        }
        if let Err(e) = self.try_entry(fd, path) {
            match e {
                OverlayError::Os(Errno::CANCELED) => self.stopped = true,
                e => (self.failed)(path, e),
            }
        }
    }

    fn try_entry(&mut self, fd: OwnedFd, path: &Path) -> Result<()> {
        let stat = rustix::fs::fstat(&fd)?;
        let kind = kind(stat.st_mode);
        let xattrs = xattrs_of(&fd)?;
        let target = match kind {
            Kind::Symlink => Some(PathBuf::from(OsString::from_vec(
                rustix::fs::readlinkat(&fd, "", Vec::new())?.into_bytes(),
            ))),
            _ => None,
        };
        let item = Item { path, kind, stat: &stat, xattrs: &xattrs, target: target.as_deref() };
        if kind == Kind::Directory {
            self.sink.enter(&item)?;
            if stat.st_dev == self.tree.dev {
                self.below(&fd, path)?;
            }
            return if self.stopped { Ok(()) } else { self.sink.leave(&item) };
        }
        if stat.st_nlink > 1
            && let Some(first) = self.linked.get(&stat.st_ino)
        {
            return self.sink.link(&item, first);
        }
        if kind == Kind::File {
            let content = Content::of(self.tree, fd, &stat, path)?;
            let (size, room) = (content.size(), content.room_bytes());
            let step = &mut *self.step;
            self.sink.file(&item, &content, step)?;
            self.walked.files += 1;
            self.walked.bytes += size;
            self.walked.room_bytes += room;
        } else {
            self.sink.special(&item)?;
        }
        if stat.st_nlink > 1 {
            // Only a file in the copy can be linked to.
            self.linked.insert(stat.st_ino, path.to_owned());
        }
        Ok(())
    }

    fn below(&mut self, fd: &OwnedFd, path: &Path) -> Result<()> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let open = |flags| rustix::fs::openat(CWD, proc_path(fd), flags, Mode::empty());
        let dir = match open(flags | OFlags::NOATIME) {
            Err(Errno::PERM) => open(flags),
            other => other,
        };
        let dir = dir.map_err(|e| OverlayError::io("read", path, e))?;
        let root = path.as_os_str().is_empty() && self.tree.below_root.as_os_str().is_empty();
        for name in names_in(&dir).map_err(|e| OverlayError::io("read", path, e))? {
            if self.stopped || (root && is_hidden(&name) && self.tree.overlay.is_some()) {
                continue;
            }
            let path = path.join(&name);
            match open_path(&dir, &name) {
                Ok(fd) => self.entry(fd, &path),
                // It was removed meanwhile.
                Err(Errno::NOENT) => {}
                Err(e) => (self.failed)(&path, e.into()),
            }
        }
        Ok(())
    }
}

fn kind(mode: u32) -> Kind {
    match rustix::fs::FileType::from_raw_mode(mode) {
        rustix::fs::FileType::Directory => Kind::Directory,
        rustix::fs::FileType::Symlink => Kind::Symlink,
        rustix::fs::FileType::Fifo => Kind::Fifo,
        rustix::fs::FileType::Socket => Kind::Socket,
        rustix::fs::FileType::CharacterDevice => Kind::CharDevice,
        rustix::fs::FileType::BlockDevice => Kind::BlockDevice,
        _ => Kind::File,
    }
}

fn open_path(dir: impl AsFd, name: &OsStr) -> rustix::io::Result<OwnedFd> {
    rustix::fs::openat(dir, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}

fn proc_path(fd: impl AsFd) -> String {
    format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd())
}

fn names_in(dir: impl AsFd) -> rustix::io::Result<Vec<OsString>> {
    let mut names = Vec::new();
    let mut buffer = Vec::with_capacity(32 << 10);
    let mut entries = RawDir::new(dir, buffer.spare_capacity_mut());
    while let Some(entry) = entries.next() {
        let name = entry?.file_name().to_bytes().to_vec();
        if name != b"." && name != b".." {
            names.push(OsString::from_vec(name));
        }
    }
    names.sort();
    Ok(names)
}
