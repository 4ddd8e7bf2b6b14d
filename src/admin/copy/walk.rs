//! The walk that gives all of a tree to a sink.

use super::content::Content;
use super::sink::{Failed, Item, Sink, Step, Walked};
use super::source::{Result, Tree};
use crate::backing::types::Kind;
use crate::backing::{is_hidden, kind, open_path, proc_path};
use crate::contents::OverlayError;
use crate::tree::walk::names_in;
use crate::tree::xattrs_of;
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use std::collections::HashMap;
use std::ffi::OsString;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

impl Tree<'_> {
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
