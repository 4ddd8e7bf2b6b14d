//! Removal of records from plain files, so that nothing of dedupfs is left on them.
//!
//! Invariants: a record is removed only if it says *plain*, or if its file was found to be plain. A file that
//! keeps its record, or that could not be examined, is reported.

use super::Overlay;
use super::inode::{Content, Inode};
use crate::backing;
use crate::backing::stub::XATTR;
use crate::contents::error::{OverlayError, Result};
use rustix::fs::Mode;
use rustix::io::Errno;
use std::path::{Path, PathBuf};

impl Overlay {
    /// Removes the records of all files of the tree, durably. Passes files that are not plain, or that keep their record, to
    /// `failed`. `step` gets files met, and ends the work by returning false (ECANCELED).
    ///
    /// O(files) time.
    pub fn remove_records(
        &self,
        step: &mut dyn FnMut(u64) -> bool,
        failed: &mut dyn FnMut(PathBuf, OverlayError),
    ) -> Result<()> {
        if self.read_only {
            return Err(OverlayError::ReadOnly);
        }
        let root = backing::open_dir(self.backing.root())?;
        let (mut files, mut goes_on) = (0, true);
        self.walk(Path::new(""), &mut |path, found| {
            let inode = match found {
                Ok(inode) => inode,
                Err(e) => return failed(path.to_owned(), e.into()),
            };
            if goes_on {
                if let Err(e) = self.take_record_off(&inode, path) {
                    failed(path.to_owned(), e);
                }
                files += 1;
                goes_on = step(files);
            }
            self.inodes.release(inode);
        })?;
        if !goes_on {
            return Err(Errno::CANCELED.into());
        }
        rustix::fs::syncfs(&root).map_err(|e| OverlayError::io("sync", "the backing filesystem", e))
    }

    fn take_record_off(&self, inode: &Inode, path: &Path) -> Result<()> {
        let mut state = self.lock_loaded(inode)?;
        match state.content {
            Some(Content::Plain(_)) => {}
            Some(Content::Unknown(reason)) => return Err(self.bad_stub(inode, reason)),
            _ => {
                let reason = "its content is in the store".to_owned();
                return Err(OverlayError::Unreadable { path: path.to_owned(), reason });
            }
        }
        let fd = inode.path_fd()?;
        let names = match backing::list_xattrs(&fd) {
            Err(Errno::NOTSUP) => return Ok(()),
            names => names?,
        };
        if !names.split(|&byte| byte == 0).any(|name| name == XATTR.as_bytes()) {
            return Ok(());
        }
        let remove = || rustix::fs::removexattr(backing::proc_path(&fd), XATTR);
        match remove() {
            Err(Errno::ACCESS) => {
                // The owner of a file may make it writable for a moment.
                let mode = rustix::fs::fstat(&fd)?.st_mode & 0o7777;
                let set = |mode| rustix::fs::chmod(backing::proc_path(&fd), Mode::from_raw_mode(mode));
                set(mode | 0o600)?;
                let removed = remove();
                set(mode)?;
                removed?;
            }
            other => other?,
        }
        state.content = Some(Content::Plain(None));
        self.steps.step();
        Ok(())
    }
}
