//! A tree as another directory, with everything that `cp -a` keeps.
//!
//! Order for a file: created without rights for others -> bytes -> owner -> xattrs and ACLs -> mode -> times,
//! so that a file with the times of its source is complete. Directories get theirs after their content.

use super::{Content, Item, Result, Sink, Step};
use crate::backing::types::Kind;
use crate::backing::{open_path, proc_path};
use crate::contents::OverlayError;
use crate::tree::walk::names_in;
use rustix::fs::{AtFlags, CWD, FileType, Gid, Mode, OFlags, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Name of the mark in an incomplete target.
const UNFINISHED: &str = ".dedupfs-export-unfinished";

/// Copies into a directory.
pub struct DirectorySink {
    root: OwnedFd,
    shown: PathBuf,
    privileged: bool,
    /// Existing files with the length and mtime of their source are skipped.
    resume: bool,
    /// Entries whose owner could not be kept.
    pub owners_lost: u64,
    /// Times of the top directory, which are set last.
    times: Option<Timestamps>,
}

impl DirectorySink {
    /// Begins a copy into `root`, an empty directory; with `resume`, one with an interrupted copy, whose
    /// finished files are kept. Any other is [`OverlayError::Unreadable`].
    pub fn begin(root: &Path, resume: bool) -> Result<DirectorySink> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(CWD, root, flags, Mode::empty())
            .map_err(|e| OverlayError::io("open directory", root, e))?;
        let names = names_in(&fd).map_err(|e| OverlayError::io("read", root, e))?;
        let begun = names.iter().any(|name| name == UNFINISHED);
        let taken_over = resume && begun;
        if !names.is_empty() && !taken_over {
            let reason = match resume {
                true => format!("expected a copy that was interrupted, found no {UNFINISHED} in it"),
                false => "expected an empty directory, found something in it".to_owned(),
            };
            return Err(OverlayError::Unreadable { path: root.to_owned(), reason });
        }
        let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        rustix::fs::openat(&fd, UNFINISHED, flags, Mode::RUSR | Mode::WUSR)
            .map_err(|e| OverlayError::io("create", root.join(UNFINISHED), e))?;
        // New entries would inherit the ACL.
        let _ = rustix::fs::removexattr(root, "system.posix_acl_default");
        let privileged = rustix::process::geteuid().is_root();
        Ok(DirectorySink {
            root: fd,
            shown: root.to_owned(),
            privileged,
            resume,
            owners_lost: 0,
            times: None,
        })
    }

    /// Makes everything durable, and removes the mark of incompleteness if the copy is `complete`.
    pub fn finish(self, complete: bool) -> Result<()> {
        let sync = || rustix::fs::syncfs(&self.root).map_err(|e| OverlayError::io("sync", &self.shown, e));
        sync()?;
        if complete {
            rustix::fs::unlinkat(&self.root, UNFINISHED, AtFlags::empty())
                .map_err(|e| OverlayError::io("remove", self.shown.join(UNFINISHED), e))?;
            if let Some(times) = &self.times {
                rustix::fs::futimens(&self.root, times)
                    .map_err(|e| OverlayError::io("set times of", &self.shown, e))?;
            }
            sync()?;
        }
        Ok(())
    }

    fn error(&self, operation: &'static str, item: &Item<'_>, e: impl Into<std::io::Error>) -> OverlayError {
        OverlayError::io(operation, self.shown.join(item.path), e)
    }

    fn path<'a>(item: &'a Item<'_>) -> &'a Path {
        if item.path.as_os_str().is_empty() { Path::new(".") } else { item.path }
    }

    /// Removes an earlier copy's entry of that name.
    fn make_way(&self, item: &Item<'_>) -> Result<()> {
        if !self.resume {
            return Ok(());
        }
        match rustix::fs::unlinkat(&self.root, item.path, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(e) => Err(self.error("replace", item, e)),
        }
    }

    fn is_done(&self, item: &Item<'_>, size: u64) -> bool {
        let there = rustix::fs::statat(&self.root, item.path, AtFlags::SYMLINK_NOFOLLOW);
        self.resume
            && there.is_ok_and(|there| {
                FileType::from_raw_mode(there.st_mode) == FileType::RegularFile
                    && there.st_size as u64 == size
                    && (there.st_mtime, there.st_mtime_nsec) == (item.stat.st_mtime, item.stat.st_mtime_nsec)
                    && there.st_mode == item.stat.st_mode
            })
    }

    /// Applies all attributes of the source to a new entry.
    fn furnish(&mut self, item: &Item<'_>, fd: impl AsFd) -> Result<()> {
        let (path, stat) = (proc_path(&fd), item.stat);
        let owner = (Some(Uid::from_raw(stat.st_uid)), Some(Gid::from_raw(stat.st_gid)));
        let mut mode = stat.st_mode & 0o7777;
        match rustix::fs::chownat(&fd, "", owner.0, owner.1, AtFlags::EMPTY_PATH) {
            Ok(()) => {}
            Err(Errno::PERM) if !self.privileged => {
                // Another user's rights must not go to this user's copy.
                self.owners_lost += 1;
                mode &= 0o1777;
            }
            Err(e) => return Err(self.error("chown", item, e)),
        }
        for (name, value) in item.xattrs {
            let set = rustix::fs::setxattr(&path, name.as_os_str(), value, XattrFlags::empty());
            if let Err(e) = set {
                let what = format!("its xattr {} could not be kept: {e}", name.display());
                return Err(OverlayError::Unreadable { path: self.shown.join(item.path), reason: what });
            }
        }
        if item.kind != Kind::Symlink {
            rustix::fs::chmod(&path, Mode::from_raw_mode(mode)).map_err(|e| self.error("chmod", item, e))?;
        }
        let time = |sec, nsec: u64| Timespec { tv_sec: sec, tv_nsec: nsec as _ };
        let times = Timestamps {
            last_access: time(stat.st_atime, stat.st_atime_nsec),
            last_modification: time(stat.st_mtime, stat.st_mtime_nsec),
        };
        rustix::fs::utimensat(CWD, &path, &times, AtFlags::empty())
            .map_err(|e| self.error("set times of", item, e))?;
        if item.path.as_os_str().is_empty() {
            self.times = Some(times);
        }
        Ok(())
    }

    fn write(&self, item: &Item<'_>, file: &File, content: &Content<'_>, step: Step<'_>) -> Result<()> {
        content.read(&mut |at, bytes| {
            file.write_all_at(bytes, at).map_err(|e| self.error("write", item, e))?;
            if step(bytes.len() as u64) { Ok(()) } else { Err(Errno::CANCELED.into()) }
        })?;
        file.set_len(content.size()).map_err(|e| self.error("write", item, e))
    }
}

impl Sink for DirectorySink {
    fn enter(&mut self, item: &Item<'_>) -> Result<()> {
        match rustix::fs::mkdirat(&self.root, Self::path(item), Mode::RWXU) {
            Ok(()) => Ok(()),
            Err(Errno::EXIST) if item.path.as_os_str().is_empty() => Ok(()),
            Err(Errno::EXIST) if self.resume => {
                // Perhaps done already, and not writable.
                let there = open_path(&self.root, item.path.as_os_str())?;
                let flags = OFlags::DIRECTORY | OFlags::PATH | OFlags::CLOEXEC;
                rustix::fs::openat(CWD, proc_path(&there), flags, Mode::empty())
                    .map_err(|e| self.error("use", item, e))?;
                rustix::fs::chmod(proc_path(&there), Mode::RWXU).map_err(|e| self.error("chmod", item, e))
            }
            Err(e) => Err(self.error("make directory", item, e)),
        }
    }

    fn leave(&mut self, item: &Item<'_>) -> Result<()> {
        let fd = open_path(&self.root, Self::path(item).as_os_str())
            .map_err(|e| self.error("open directory", item, e))?;
        self.furnish(item, fd)
    }

    fn file(&mut self, item: &Item<'_>, content: &Content<'_>, step: Step<'_>) -> Result<()> {
        if self.is_done(item, content.size()) {
            step(content.size());
            return Ok(());
        }
        self.make_way(item)?;
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.root, item.path, flags, Mode::RUSR | Mode::WUSR)
            .map_err(|e| self.error("create", item, e))?;
        let file = File::from(file);
        let made = self.write(item, &file, content, step);
        if made.is_err() {
            // Incomplete files are removed.
            let _ = rustix::fs::unlinkat(&self.root, item.path, AtFlags::empty());
        }
        made?;
        self.furnish(item, &file)
    }

    fn link(&mut self, item: &Item<'_>, first: &Path) -> Result<()> {
        self.make_way(item)?;
        rustix::fs::linkat(&self.root, first, &self.root, item.path, AtFlags::empty())
            .map_err(|e| self.error("link", item, e))
    }

    fn special(&mut self, item: &Item<'_>) -> Result<()> {
        self.make_way(item)?;
        let made = match (item.kind, item.target) {
            (Kind::Symlink, Some(target)) => rustix::fs::symlinkat(target, &self.root, item.path),
            _ => {
                let kind = FileType::from_raw_mode(item.stat.st_mode);
                rustix::fs::mknodat(&self.root, item.path, kind, Mode::RUSR | Mode::WUSR, item.stat.st_rdev)
            }
        };
        made.map_err(|e| self.error("create", item, e))?;
        let fd = open_path(&self.root, item.path.as_os_str()).map_err(|e| self.error("open", item, e))?;
        self.furnish(item, fd)
    }
}
