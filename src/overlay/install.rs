//! Installing a stored content in the tree: as a new file under a temporary name, to be renamed to its final
//! one.
//!
//! Order: file -> owner, mode, xattrs -> record or bytes -> mtime -> fsync. No program knows the file until
//! it is renamed, so a crash leaves at most a file whose name shows its purpose.

use super::Overlay;
use super::inode::{Content, Inode};
use super::observe::Meta;
use crate::backing;
use crate::backing::resolved::Directory;
use crate::backing::stub::{State, Stub, Time};
use crate::backing::types::{Kind, SetTime};
use crate::contents::error::{OverlayError, Result};
use crate::id::{FileId, RecipeId};
use crate::recipe::Recipe;
use rustix::fs::{AtFlags, Gid, Mode, OFlags, Uid, XattrFlags};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// Prefix of the names of files that are not yet in their final place.
pub const INSTALL_PREFIX: &str = ".dedupfs-restore-";

/// Returns a new name for a file that is not yet in its final place.
pub(crate) fn install_name() -> Result<OsString> {
    let mut random = [0; 8];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
    Ok(OsString::from(format!("{INSTALL_PREFIX}{:016x}", u64::from_le_bytes(random))))
}

impl Overlay {
    /// The regular file at `path` below the root.
    pub fn file_at(&self, path: &Path) -> Result<Option<FileId>> {
        Ok(self.file_and_birth_at(path)?.map(|(file, _)| file))
    }

    /// As [`Overlay::file_at`], and when its inode was created, if the filesystem records that.
    pub fn file_and_birth_at(&self, path: &Path) -> Result<Option<(FileId, Option<Time>)>> {
        let found = self.backing.resolve_if_any("open", path)?;
        let Some(found) = found.filter(|found| found.kind() == Kind::File) else { return Ok(None) };
        Ok(Some((FileId(found.stat().st_ino), backing::birth(&found)?)))
    }

    /// Returns whether the file at `path` is empty and has that mtime, to the second: it may have lost its record.
    pub fn may_have_lost(&self, path: &Path, mtime: Time) -> Result<bool> {
        let found = self.backing.resolve_if_any("look at", path)?;
        Ok(found.is_some_and(|found| {
            let stat = found.stat();
            found.kind() == Kind::File && stat.st_size == 0 && stat.st_mtime == mtime.sec
        }))
    }

    /// Makes a file with a content of the store in directory `dir` below the root, durably, and returns its path. It is a
    /// stub if files at `path`, its final place, become stubs.
    pub fn install(&self, dir: &Path, path: &Path, id: RecipeId, meta: &Meta) -> Result<PathBuf> {
        if self.read_only {
            return Err(OverlayError::ReadOnly);
        }
        let recipe = self.contents.store.recipe(&id)?;
        let parent = self.backing.resolve_named("open directory", dir)?;
        let dir_fd = parent.open_dir().map_err(|e| OverlayError::io("open directory", dir, e))?;
        let name = install_name()?;
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(0o600);
        let file = rustix::fs::openat(&dir_fd, &name, flags, mode)
            .map_err(|e| OverlayError::io("create a file in", dir, e))?;
        let file = File::from(file);
        let installed = self.fill(&dir_fd, &name, &file, path, id, &recipe, meta);
        if let Err(e) = installed {
            let _ = rustix::fs::unlinkat(&dir_fd, &name, AtFlags::empty());
            return Err(e);
        }
        Ok(dir.join(name))
    }

    /// Removes a file that [`Overlay::install`] made and that was not moved to its final place.
    pub fn remove_installed(&self, installed: &Path) {
        let _ = self.backing.tree().remove(installed.as_os_str().as_bytes(), false);
    }

    #[expect(clippy::too_many_arguments, reason = "all of what a file is made of")]
    fn fill(
        &self,
        dir: &Directory,
        name: &OsStr,
        file: &File,
        path: &Path,
        id: RecipeId,
        recipe: &Recipe,
        meta: &Meta,
    ) -> Result<()> {
        set_meta(file, meta)?;
        let inode = self.inodes.enter(&self.backing, dir.child(name)?, 0)?;
        let done = self.fill_inode(&inode, file, path, id, recipe, meta);
        self.inodes.release(inode);
        done
    }

    fn fill_inode(
        &self,
        inode: &Inode,
        file: &File,
        path: &Path,
        id: RecipeId,
        recipe: &Recipe,
        meta: &Meta,
    ) -> Result<()> {
        let mut state = inode.lock();
        let stub = Stub {
            state: State::Settled,
            size: recipe.size(),
            mtime: meta.mtime,
            ctime: None,
            stamp_ms: Time::now().millis(),
            blocks: recipe.size().div_ceil(512),
            recipe: id,
        };
        let capable = meta.xattrs.iter().flatten().any(|(name, _)| name.as_slice() == b"security.capability");
        let as_stub = recipe.size() > 0
            && !capable
            && self.policies().of(path).converts(recipe.size())
            && Stub::fits(recipe.size(), meta.mtime, meta.mtime)
            && (self.backing.privileged() || meta.mode & 0o6600 == 0o600);
        if as_stub && self.write_record(inode, &stub).is_ok() {
            state.content = Some(Content::Stub(stub));
        } else {
            self.write_bytes(inode, file, recipe, 0, &|_| true)?;
            state.content = Some(Content::Plain(None));
            state.dirty = true;
        }
        drop(state);
        backing::set_times(file, None, Some(SetTime::At(meta.mtime)))?;
        file.sync_all().map_err(|e| OverlayError::io("fsync", path, e))?;
        if as_stub {
            let mut stat = rustix::fs::fstat(file)?;
            stat.st_size = recipe.size() as i64;
            self.record(inode, id, &stat)?;
            // The caller waits for the index, but the files are installed in any case.
            let _hurry = self.throttle.hurry();
            let indexing = self.policies().of(path).similarity;
            let indexed = self.index_stub(inode, &stub, indexing).and_then(|_| self.keep_stored(id));
            if let Err(e) = indexed {
                tracing::warn!("{}: not known to similarity before the next scan: {e}", path.display());
            }
        }
        Ok(())
    }
}

/// Sets everything except the times.
fn set_meta(file: &File, meta: &Meta) -> Result<()> {
    let owner = rustix::fs::fchown(file, Some(Uid::from_raw(meta.uid)), Some(Gid::from_raw(meta.gid)));
    // Only root may give files away.
    if let Err(e) = owner
        && rustix::process::geteuid().is_root()
    {
        return Err(e.into());
    }
    for (name, value) in meta.xattrs.iter().flatten() {
        let set = rustix::fs::fsetxattr(file, OsStr::from_bytes(name), value, XattrFlags::empty());
        match set {
            Err(Errno::PERM | Errno::ACCESS | Errno::NOTSUP) => {
                tracing::warn!("xattr {} could not be set again", String::from_utf8_lossy(name));
            }
            set => set?,
        }
    }
    // Last, because a change of owner clears bits.
    Ok(rustix::fs::fchmod(file, Mode::from_raw_mode(meta.mode))?)
}

/// Applies owner, mode, xattrs and times to the inode behind an `O_PATH` descriptor. `path` is for messages.
pub(crate) fn set_attributes(fd: &OwnedFd, path: &Path, meta: &Meta) -> Result<()> {
    let failed = |operation| move |e: Errno| OverlayError::io(operation, path, e);
    let stat = rustix::fs::fstat(fd)?;
    let (uid, gid) = (Uid::from_raw(meta.uid), Gid::from_raw(meta.gid));
    let owner = rustix::fs::chownat(fd, "", Some(uid), Some(gid), AtFlags::EMPTY_PATH);
    if rustix::process::geteuid().is_root() {
        owner.map_err(failed("chown"))?;
    }
    if backing::kind(stat.st_mode) == Kind::Symlink {
        let times = rustix::fs::Timestamps {
            last_access: rustix::fs::Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT as _ },
            last_modification: rustix::fs::Timespec {
                tv_sec: meta.mtime.sec,
                tv_nsec: meta.mtime.nsec.into(),
            },
        };
        return rustix::fs::utimensat(fd, "", &times, AtFlags::EMPTY_PATH)
            .map_err(failed("set the times of"));
    }
    let through = backing::proc_path(fd);
    for (name, value) in meta.xattrs.iter().flatten() {
        let set = rustix::fs::setxattr(&through, OsStr::from_bytes(name), value, XattrFlags::empty());
        match set {
            Err(Errno::PERM | Errno::ACCESS | Errno::NOTSUP) => {
                tracing::warn!(
                    "{}: xattr {} could not be set again",
                    path.display(),
                    String::from_utf8_lossy(name)
                );
            }
            set => set.map_err(failed("set an xattr of"))?,
        }
    }
    rustix::fs::chmodat(rustix::fs::CWD, &through, Mode::from_raw_mode(meta.mode), AtFlags::empty())
        .map_err(failed("chmod"))?;
    backing::set_times(fd, None, Some(SetTime::At(meta.mtime))).map_err(failed("set the times of"))
}

/// Writes a content of `store` into the empty `file`, with its owner, mode, xattrs and times; durably.
pub(crate) fn write_file(
    store: &crate::store::Store,
    file: &File,
    recipe: &Recipe,
    meta: &Meta,
) -> Result<()> {
    use std::os::unix::fs::FileExt as _;
    let io = |e| OverlayError::io("write", "the file to restore to", e);
    for (i, chunk) in recipe.chunks().iter().enumerate() {
        let ahead = &recipe.chunks()[(i + 1).min(recipe.chunks().len())..(i + 65).min(recipe.chunks().len())];
        if i % 32 == 0 {
            store.prefetch(ahead);
        }
        let bytes = store.read(&chunk.id)?;
        if bytes.iter().any(|&byte| byte != 0) {
            file.write_all_at(&bytes, recipe.start_of(i)).map_err(io)?;
        }
    }
    file.set_len(recipe.size()).map_err(io)?;
    set_meta(file, meta)?;
    backing::set_times(file, None, Some(SetTime::At(meta.mtime)))?;
    file.sync_all().map_err(io)
}
