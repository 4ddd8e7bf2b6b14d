//! Walks of the backing tree.

use super::Tree;
use super::inode::Inode;
use crate::backing;
use crate::backing::resolved::{Directory, Resolved};
use crate::backing::types::{Kind, ROOT};
use crate::contents::error::Result;
use rustix::fs::RawDir;
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::sync::Arc;

impl Tree {
    /// Calls `visit` with every regular file of this overlay at or below `path` (below the root). The visitor must pass each
    /// inode to `inodes.release`. Does not enter other mounts. Fails with ECANCELED if the overlay is stopped meanwhile.
    pub(crate) fn walk(
        &self,
        path: &Path,
        visit: &mut dyn FnMut(&Path, rustix::io::Result<Arc<Inode>>),
    ) -> Result<()> {
        let root = self.inode(ROOT)?;
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return self.walk_dir(self.backing.directory()?, &root, path, visit);
        };
        let mut dir = root;
        for above in parent.ancestors().collect::<Vec<_>>().into_iter().rev() {
            let Some(name) = above.file_name() else { continue };
            let found = self.inodes.enter(&self.backing, self.backing.resolve_named("open", above)?, 0)?;
            dir.has(name, &found);
            self.inodes.release(std::mem::replace(&mut dir, found));
        }
        let walked = self.walk_entry(self.backing.resolve_named("open", path)?, (&dir, name), path, visit);
        self.inodes.release(dir);
        walked
    }

    /// Visits `found`, which has `name` in `parent`. A process that may not open by handle reopens the file by these two.
    fn walk_entry(
        &self,
        found: Resolved,
        (parent, name): (&Inode, &OsStr),
        path: &Path,
        visit: &mut dyn FnMut(&Path, rustix::io::Result<Arc<Inode>>),
    ) -> Result<()> {
        match found.kind() {
            Kind::Directory => match found.open_dir() {
                Ok(dir) => {
                    let inode = self.inodes.enter(&self.backing, found, 0)?;
                    parent.has(name, &inode);
                    let walked = self.walk_dir(dir, &inode, path, visit);
                    self.inodes.release(inode);
                    walked?;
                }
                Err(e) => visit(path, Err(e)),
            },
            Kind::File => {
                let inode = self.inodes.enter(&self.backing, found, 0)?;
                parent.has(name, &inode);
                visit(path, Ok(inode));
            }
            _ => {}
        }
        Ok(())
    }

    fn walk_dir(
        &self,
        dir: Directory,
        inode: &Inode,
        path: &Path,
        visit: &mut dyn FnMut(&Path, rustix::io::Result<Arc<Inode>>),
    ) -> Result<()> {
        let names = match names_in(&dir) {
            Ok(names) => names,
            Err(e) => {
                visit(path, Err(e));
                return Ok(());
            }
        };
        for name in names {
            if self.ticks.stopped() {
                return Err(Errno::CANCELED.into());
            }
            if path.as_os_str().is_empty() && backing::is_hidden(&name) {
                continue;
            }
            match dir.child(&name) {
                Ok(found) => self.walk_entry(found, (inode, &name), &path.join(&name), visit)?,
                // Removed since the directory was read, or another filesystem is mounted there.
                Err(Errno::NOENT | Errno::XDEV) => {}
                Err(e) => visit(&path.join(&name), Err(e)),
            }
        }
        Ok(())
    }
}

/// Returns the names in a directory, sorted.
pub(crate) fn names_in(dir: impl AsFd) -> rustix::io::Result<Vec<OsString>> {
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
