//! Reports to the observer of the tree.

use crate::backing;
use crate::backing::stub::Stub;
use crate::catalog::Finder;
use crate::contents::error::Result;
use crate::id::RecipeId;
use crate::recipe::Recipe;
use crate::tree::Tree;
use crate::tree::inode::Inode;
use crate::tree::observer::{Committed, Meta, Observer, PATHS_MAX, Xattr};
use rustix::fs::Stat;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Xattrs of a file are recorded with its version if they take no more than this together.
const XATTR_BYTES_MAX: usize = 4096;

/// Facts about a reported file that its committer knows.
#[derive(Default)]
pub(crate) struct Found {
    /// Path of the name that it was opened by, if it still has that.
    pub(crate) path: Option<PathBuf>,
    /// Whether it certainly has no xattrs that users see.
    pub(crate) no_xattrs: bool,
}

impl Tree {
    /// Reports events to `observer` from now on.
    pub fn observed_by(&self, observer: Arc<dyn Observer>) {
        // An overlay has one history: a second observer is ignored.
        let _ = self.observer.set(observer);
    }

    pub(crate) fn observer(&self) -> Option<&dyn Observer> {
        self.observer.get().map(|observer| &**observer).filter(|_| !self.read_only)
    }

    /// Returns the path of a directory, from memory if it is known there.
    pub(crate) fn dir_path(&self, dir: &Inode) -> Option<Arc<Path>> {
        if !dir.on_root_fs {
            return None;
        }
        if let Some(path) = self.dir_paths.lock().get(&dir.file_id()) {
            return Some(path.clone());
        }
        let path: Arc<Path> = self.path_of(dir)?.into();
        let mut known = self.dir_paths.lock();
        if known.len() >= PATHS_MAX {
            known.clear();
        }
        known.insert(dir.file_id(), path.clone());
        Some(path)
    }

    /// Reports a file that was committed or met, with the attributes in `stat`.
    pub(crate) fn tell_committed(
        &self,
        inode: &Inode,
        content: (RecipeId, u64),
        stat: &Stat,
        met: bool,
        finder: &mut Finder<'_>,
    ) {
        self.tell_found(inode, content, stat, None, met, finder);
    }

    /// As [`Tree::tell_committed`]; does not ask the system again for the facts in `found`.
    pub(crate) fn tell_found(
        &self,
        inode: &Inode,
        (recipe, size): (RecipeId, u64),
        stat: &Stat,
        found: Option<&Found>,
        met: bool,
        finder: &mut Finder<'_>,
    ) {
        self.ticks.stir();
        let Some(observer) = self.observer() else { return };
        let mut told = || -> Result<Option<Committed>> {
            let opened = match found {
                Some(found) => found.path.clone(),
                None => self.backing.relative_path(&inode.path_fd()?)?,
            };
            let mut paths = self.names_of(inode, stat, opened, finder)?;
            paths.retain(|path| self.keeps_history(path));
            if paths.is_empty() {
                return Ok(None);
            }
            let meta = match found.is_some_and(|found| found.no_xattrs) {
                true => meta_with(stat, Some(Vec::new())),
                false => self.meta_of(inode, stat, XATTR_BYTES_MAX)?,
            };
            Ok(Some(Committed { paths, file: inode.file_id(), recipe, size, meta }))
        };
        match told() {
            Ok(Some(file)) if met => observer.met(file),
            Ok(Some(file)) => observer.committed(file),
            Ok(None) => {}
            Err(e) => tracing::warn!("{}: no version of it was kept: {e}", self.name_of(inode)),
        }
    }

    /// Returns the names of a file, sorted. The name that it was opened by may be gone while it has others; those are found where
    /// the catalog last saw them. For a file with several names `finder` reads their directories, once for all files that it is
    /// used for, so its names are checked again.
    fn names_of(
        &self,
        inode: &Inode,
        stat: &Stat,
        opened: Option<PathBuf>,
        finder: &mut Finder<'_>,
    ) -> Result<Vec<PathBuf>> {
        let mut names = Vec::new();
        if stat.st_nlink > 1 || opened.is_none() {
            finder.paths_of(inode.file_id(), &mut names)?;
            names.retain(|name| {
                let there = self.backing.stat(name);
                there.is_ok_and(|there| backing::identity(&there) == inode.identity)
            });
        }
        names.extend(opened);
        names.sort_unstable();
        names.dedup();
        Ok(names)
    }

    /// Reports an additional name of a file.
    pub(crate) fn tell_linked(&self, inode: &Inode, dir: &Inode, name: &OsStr) {
        let Some(observer) = self.observer().filter(|_| inode.is_root_fs_file()) else { return };
        if let Some(from) = self.path_of(inode)
            && let Some(dir) = self.dir_path(dir)
            && from != dir.join(name)
        {
            observer.linked(&from, &dir.join(name));
        }
    }

    /// Reports a file that was closed without any content, if one of its names had a content before.
    pub(crate) fn tell_emptied(&self, inode: &Inode, stat: &Stat, finder: &mut Finder<'_>) -> Result<()> {
        let Some(observer) = self.observer() else { return Ok(()) };
        // A file that never had a content has nothing to go back to.
        let mut had_content = false;
        let opened = self.backing.relative_path(&inode.path_fd()?)?;
        for path in self.names_of(inode, stat, opened, finder)? {
            had_content |= observer.last_at(&path)?.is_some_and(|last| last.size > 0);
        }
        if !had_content {
            return Ok(());
        }
        let mut writer = self.contents.store.writer();
        let recipe = writer.put_recipe(&Recipe::default())?;
        writer.flush()?;
        self.tell_committed(inode, (recipe, 0), stat, false, finder);
        Ok(())
    }

    /// As [`Tree::tell_committed`], for a stub that a scan met.
    pub(crate) fn tell_met(&self, inode: &Inode, stub: &Stub, stat: &Stat, finder: &mut Finder<'_>) {
        self.tell_committed(inode, (stub.recipe, stub.size), stat, true, finder);
    }

    /// Returns whether versions of the file at `path` are kept.
    pub fn keeps_history(&self, path: &Path) -> bool {
        let policies = self.policies();
        policies.rules() == 0 || policies.of(path).keep_history
    }

    pub(crate) fn meta_of(&self, inode: &Inode, stat: &Stat, xattr_bytes_max: usize) -> Result<Meta> {
        Ok(meta_with(stat, xattrs_of(inode, xattr_bytes_max)?))
    }
}

fn meta_with(stat: &Stat, xattrs: Option<Vec<Xattr>>) -> Meta {
    Meta {
        mode: stat.st_mode & 0o7777,
        uid: stat.st_uid,
        gid: stat.st_gid,
        mtime: backing::mtime(stat),
        xattrs,
    }
}

/// Returns the xattrs that users see, or `None` if they take more than `bytes_max` bytes together.
fn xattrs_of(inode: &Inode, bytes_max: usize) -> Result<Option<Vec<Xattr>>> {
    let fd = inode.path_fd()?;
    let names = match backing::list_xattrs(&fd) {
        Err(rustix::io::Errno::NOTSUP) => return Ok(Some(Vec::new())),
        names => names?,
    };
    let (mut found, mut bytes) = (Vec::new(), 0);
    let ours = crate::backing::stub::XATTR.as_bytes();
    for name in names.split(|&byte| byte == 0).filter(|name| !name.is_empty() && *name != ours) {
        // It was removed meanwhile, or this process may not read it.
        let value = match backing::get_xattr(&fd, OsStr::from_bytes(name)) {
            Ok(Some(value)) => value,
            Ok(None) | Err(rustix::io::Errno::ACCESS | rustix::io::Errno::PERM) => continue,
            Err(e) => return Err(e.into()),
        };
        bytes += name.len() + value.len();
        if bytes > bytes_max {
            return Ok(None);
        }
        found.push((name.to_vec(), value));
    }
    found.sort();
    Ok(Some(found))
}
