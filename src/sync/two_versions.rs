//! The two files of a conflict, to be merged into one.
//!
//! Invariants: the merged content is complete and durable before it gets the name, by one rename. A file that was changed
//! since it was opened stops the merge, and both files stay.

use super::attributes::acl::ACCESS_XATTR;
use super::conflicts::{Keep, Pending, is_database, settle};
use super::error::{self, SyncError, open_root};
use super::owners::Owners;
use super::scan::xattrs;
use super::tree::{TreePath, shown};
use super::unfit;
use crate::beneath::Root;
use rustix::fs::{FileType, Mode, OFlags, RenameFlags, Stat, XattrFlags};
use rustix::io::Errno;
use std::fs::File;
use std::path::{Path, PathBuf};

/// Both files of a conflict, open for reading.
pub struct TwoVersions<'a> {
    at: PathBuf,
    root: Root,
    conflict: &'a Pending,
    ours: (File, Stat),
    theirs: (File, Stat),
}

impl<'a> TwoVersions<'a> {
    /// Opens both files below `root`. Fails unless both are regular files and no databases.
    pub fn open(root: &Path, conflict: &'a Pending) -> Result<TwoVersions<'a>, SyncError> {
        let (at, root) = (root.to_owned(), open_root(root)?);
        let ours = open(&root, &conflict.ours)?;
        let theirs = open(&root, &conflict.theirs)?;
        Ok(TwoVersions { at, root, conflict, ours, theirs })
    }

    /// Returns the version of this device.
    pub fn ours(&self) -> &File {
        &self.ours.0
    }

    /// Returns the other version.
    pub fn theirs(&self) -> &File {
        &self.theirs.0
    }

    /// Replaces the file that has the name by a merged content, with the attributes of that file, and removes the other.
    pub fn replace(&self, merged: &mut File) -> Result<(), SyncError> {
        let Pending { path, ours, .. } = self.conflict;
        let keep = if ours == path { Keep::Ours } else { Keep::Theirs };
        let stat = if ours == path { &self.ours.1 } else { &self.theirs.1 };
        let new = [&path[..], b".merged"].concat();
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        let fd = self.root.open_at(&new, flags, Mode::from_raw_mode(0o600));
        let mut to = File::from(fd.map_err(|e| error::on("create", &new, e))?);
        let placed = std::io::copy(merged, &mut to)
            .map_err(|e| SyncError::io("write", shown(&new), e))
            .and_then(|_| {
                // Only root may give it to another user.
                let _ = rustix::fs::fchown(
                    &to,
                    Some(rustix::fs::Uid::from_raw(stat.st_uid)),
                    Some(rustix::fs::Gid::from_raw(stat.st_gid)),
                );
                unfit::set(&to, &new, &xattrs(&self.root, path, &Owners::default())?)?;
                self.copy_acl(&to).map_err(|e| error::on("set the ACL of", &new, e))?;
                let mode = Mode::from_raw_mode(stat.st_mode & 0o7777);
                rustix::fs::fchmod(&to, mode).map_err(|e| error::on("set the mode of", &new, e))?;
                rustix::fs::fsync(&to).map_err(|e| error::on("sync", &new, e))?;
                self.unchanged(&self.conflict.ours, &self.ours.1)?;
                self.unchanged(&self.conflict.theirs, &self.theirs.1)?;
                self.root.rename(&new, path, RenameFlags::empty()).map_err(|e| error::on("rename", &new, e))
            });
        if placed.is_err() {
            let _ = self.root.remove(&new, false);
        }
        placed?;
        settle(&self.at, self.conflict, keep)
    }

    /// Copies the ACL of the file that has the name.
    fn copy_acl(&self, to: &File) -> Result<(), Errno> {
        let from = if self.conflict.ours == self.conflict.path { &self.ours.0 } else { &self.theirs.0 };
        let mut value = vec![0; 64 << 10];
        match rustix::fs::fgetxattr(from, ACCESS_XATTR, &mut value[..]) {
            Ok(len) => rustix::fs::fsetxattr(to, ACCESS_XATTR, &value[..len], XattrFlags::empty()),
            Err(Errno::NODATA | Errno::NOTSUP) => Ok(()),
            Err(e) => Err(e),
        }
    }

    fn unchanged(&self, path: &TreePath, was: &Stat) -> Result<(), SyncError> {
        let now = self.root.stat(path).map_err(|e| error::on("look at", path, e))?;
        let same = |now: &Stat| {
            (now.st_ino, now.st_size, now.st_mtime, now.st_mtime_nsec)
                == (was.st_ino, was.st_size, was.st_mtime, was.st_mtime_nsec)
        };
        match now.as_ref().is_some_and(same) {
            true => Ok(()),
            false => Err(SyncError::Changed(format!("{}: was changed meanwhile", shown(path)))),
        }
    }
}

fn open(root: &Root, path: &TreePath) -> Result<(File, Stat), SyncError> {
    let unfit = |reason: &str| SyncError::Changed(format!("{}: {reason}", shown(path)));
    let stat = root.stat(path).map_err(|e| error::on("look at", path, e))?;
    let Some(stat) = stat else { return Err(unfit("is not there any more")) };
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(unfit("is not a file; keep one version with --ours, --theirs or --newer"));
    }
    if is_database(root, path) {
        return Err(unfit("is a database; keep one version with --ours, --theirs or --newer"));
    }
    let fd = root.open_at(path, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty());
    Ok((File::from(fd.map_err(|e| error::on("open", path, e))?), stat))
}
