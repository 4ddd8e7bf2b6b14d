//! Names and attributes: the backing directory's own, except for hidden entries and the appearance of stubs.

use crate::backing;
use crate::backing::stub::XATTR;
use crate::backing::types::{Attr, Caller, Kind, NodeId, ROOT, SetAttr};
use crate::contents::error::{OverlayError, Result};
use crate::id::FileId;
use crate::tree::Tree;
use crate::tree::event::Event;

use crate::tree::inode::{Content, Inode, State as InodeState};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, RenameFlags, Stat, StatVfs};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

const CAPABILITY: &str = "security.capability";

impl Tree {
    /// Finds `name` in directory `parent`; counts one look-up on the inode found.
    pub fn lookup(&self, parent: NodeId, name: &OsStr) -> Result<Attr> {
        if parent == ROOT && backing::is_hidden(name) {
            return Err(Errno::NOENT.into());
        }
        let dir = self.inode(parent)?;
        let found = dir.child(name)?;
        let stat = *found.stat();
        let inode = self.inodes.enter(&self.backing, found, 1)?;
        dir.has(name, &inode);
        if inode.is_root_fs_file() {
            return self.attr_of_file(&inode).inspect_err(|_| self.forget(inode.node, 1));
        }
        Ok(backing::attr(inode.node, &stat))
    }

    /// As [`Tree::lookup`], for listings: a file of unknown content is listed too, and only a request for its
    /// attributes fails.
    pub fn lookup_listed(&self, parent: NodeId, name: &OsStr) -> Result<Attr> {
        match self.lookup(parent, name) {
            Err(OverlayError::BadStub { .. }) => {
                let found = self.inode(parent)?.child(name)?;
                let stat = *found.stat();
                let inode = self.inodes.enter(&self.backing, found, 1)?;
                Ok(Attr { settled: false, ..backing::attr(inode.node, &stat) })
            }
            other => other,
        }
    }

    /// Changes attributes of an inode, and returns them all.
    pub fn setattr(&self, node: NodeId, set: SetAttr) -> Result<Attr> {
        self.check_not_read_only()?;
        let _changing = self.changes.changing();
        let inode = self.inode(node)?;
        self.touched(&inode);
        let changed = if inode.is_root_fs_file() {
            let mut state = inode.wait_written_back(self.lock_loaded(&inode)?);
            self.before_change(&inode, &mut state)?;
            if let Some(size) = set.size {
                self.cool(&inode, &mut state);
                state = self.resize(&inode, state, size)?;
            }
            if set.mode.is_some_and(|mode| mode & 0o6600 != 0o600) && !self.backing.privileged() {
                // Without the latter bits an ordinary user's daemon could not read the stub's record; writing back would
                // clear the former.
                state = self.make_plain(&inode, state)?;
                self.remove_record(&inode, &mut state)?;
            }
            let changed = self.set_on_backing(&inode, set);
            match set.size {
                Some(_) => self.enqueue_changed(&inode, &mut state),
                None => self.enqueue_if_due(&inode, &mut state),
            }
            changed
        } else {
            if let Some(size) = set.size {
                let file = inode.open_io(OFlags::WRONLY)?;
                rustix::fs::ftruncate(&file, size)?;
            }
            self.set_on_backing(&inode, set)
        };
        changed?;
        self.attr_of(&inode)
    }

    fn set_on_backing(&self, inode: &Inode, set: SetAttr) -> Result<()> {
        let path = backing::proc_path(&inode.path_fd()?);
        if set.uid.is_some() || set.gid.is_some() {
            let uid = set.uid.map(rustix::fs::Uid::from_raw);
            let gid = set.gid.map(rustix::fs::Gid::from_raw);
            rustix::fs::chownat(&inode.path_fd()?, "", uid, gid, AtFlags::EMPTY_PATH)?;
        }
        if let Some(mode) = set.mode {
            rustix::fs::chmodat(CWD, &path, Mode::from_raw_mode(mode & 0o7777), AtFlags::empty())?;
        }
        if set.atime.is_some() || set.mtime.is_some() {
            backing::set_times(&inode.path_fd()?, set.atime, set.mtime)?;
        }
        Ok(())
    }

    /// Target of a symlink.
    pub fn readlink(&self, node: NodeId) -> Result<Vec<u8>> {
        let inode = self.inode(node)?;
        Ok(rustix::fs::readlinkat(&inode.path_fd()?, "", Vec::new())?.into_bytes())
    }

    /// Creates a node: a fifo, socket, device or empty regular file.
    pub fn mknod(&self, parent: NodeId, name: &OsStr, mode: u32, rdev: u64, caller: Caller) -> Result<Attr> {
        let attr = self.make(parent, name, mode, caller, |dir, mode_bits| {
            rustix::fs::mknodat(dir, name, rustix::fs::FileType::from_raw_mode(mode), mode_bits, rdev)
        })?;
        self.heat.forget(FileId(attr.node.0));
        self.tell(Event::Created(FileId(attr.node.0)));
        Ok(attr)
    }

    /// Creates a directory.
    pub fn mkdir(&self, parent: NodeId, name: &OsStr, mode: u32, caller: Caller) -> Result<Attr> {
        self.make(parent, name, mode, caller, |dir, mode| rustix::fs::mkdirat(dir, name, mode))
    }

    /// Creates a symlink.
    pub fn symlink(&self, parent: NodeId, name: &OsStr, target: &Path, caller: Caller) -> Result<Attr> {
        self.make(parent, name, 0o777, caller, |dir, _| rustix::fs::symlinkat(target, dir, name))
    }

    fn make(
        &self,
        parent: NodeId,
        name: &OsStr,
        mode: u32,
        caller: Caller,
        make: impl FnOnce(&OwnedFd, Mode) -> rustix::io::Result<()>,
    ) -> Result<Attr> {
        self.check_writable(parent, name)?;
        let _changing = self.changes.changing();
        let parent_inode = self.inode(parent)?;
        let dir = parent_inode.path_fd()?;
        self.backing.create(&dir, mode, caller, |mode| make(&dir, mode))?;
        self.touched(&parent_inode);
        if let Ok(stat) = backing::stat_at(&dir, name) {
            self.moved(FileId(stat.st_ino));
        }
        self.lookup(parent, name)
    }

    /// Gives an inode another name.
    pub fn link(&self, node: NodeId, parent: NodeId, name: &OsStr) -> Result<Attr> {
        self.check_writable(parent, name)?;
        let (inode, dir) = (self.inode(node)?, self.inode(parent)?);
        let _changing = self.changes.changing();
        self.touched(&dir);
        self.moved(inode.file_id());
        self.touch(&inode, || {
            let source = backing::proc_path(&inode.path_fd()?);
            rustix::fs::linkat(CWD, source, &dir.path_fd()?, name, AtFlags::SYMLINK_FOLLOW)
        })?;
        if inode.on_root_fs {
            self.indexed(self.add_name(inode.file_id(), &dir));
        }
        self.tell_linked(&inode, &dir, name);
        self.lookup(parent, name)
    }

    /// Logs a failure of the index. The change itself is done, and the index can be rebuilt.
    fn indexed(&self, result: Result<()>) {
        if let Err(e) = result {
            tracing::error!("a change of names did not reach the index; `dedupctl scan` mends that: {e}");
        }
    }

    /// Removes a name of a file.
    pub fn unlink(&self, parent: NodeId, name: &OsStr) -> Result<()> {
        self.check_writable(parent, name)?;
        let dir = self.inode(parent)?;
        let _changing = self.changes.changing();
        let stat = backing::stat_at(&dir.path_fd()?, name)?;
        let unlink = || rustix::fs::unlinkat(&dir.path_fd()?, name, AtFlags::empty());
        match self.inodes.find_existing(&self.backing, backing::identity(&stat)) {
            Some(inode) => {
                self.touch(&inode, unlink)?;
                dir.lost(name, &inode);
                if stat.st_nlink == 1 {
                    self.lost_last_name(&inode);
                }
            }
            None => unlink()?,
        }
        self.indexed(self.forget_name(&stat, &dir));
        self.tell_removed(&dir, name, &stat);
        Ok(())
    }

    fn tell_removed(&self, dir: &Inode, name: &OsStr, stat: &Stat) {
        let directory = backing::kind(stat.st_mode) == Kind::Directory;
        if directory {
            self.dir_paths.forget();
        }
        self.touched(dir);
        match directory || stat.st_nlink <= 1 {
            true => self.changes.forget(FileId(stat.st_ino)),
            false => self.moved(FileId(stat.st_ino)),
        }
        if let Some(observer) = self.observer()
            && let Some(path) = self.dir_path(dir)
        {
            observer.removed(&path.join(name), directory);
        }
    }

    /// Releases all that is kept for a file whose last name was removed.
    fn lost_last_name(&self, inode: &Arc<Inode>) {
        let mut state = inode.lock();
        self.forget_hybrid(inode, &mut state);
        self.cool(inode, &mut state);
        drop(state);
        self.inodes.lost_last_name(inode);
    }

    /// Removes an empty directory.
    pub fn rmdir(&self, parent: NodeId, name: &OsStr) -> Result<()> {
        self.check_writable(parent, name)?;
        let dir = self.inode(parent)?;
        let _changing = self.changes.changing();
        let stat = backing::stat_at(&dir.path_fd()?, name)?;
        rustix::fs::unlinkat(&dir.path_fd()?, name, AtFlags::REMOVEDIR)?;
        self.indexed(self.forget_name(&stat, &dir));
        self.tell_removed(&dir, name, &stat);
        Ok(())
    }

    /// Renames; `flags` as for renameat2(2). The caller creates the whiteout that it leaves behind.
    pub fn rename(
        &self,
        from: (NodeId, &OsStr),
        to: (NodeId, &OsStr),
        flags: u32,
        caller: Caller,
    ) -> Result<()> {
        self.check_writable(from.0, from.1)?;
        self.check_writable(to.0, to.1)?;
        let flags = RenameFlags::from_bits(flags).ok_or(Errno::INVAL)?;
        let (source_dir, target_dir) = (self.inode(from.0)?, self.inode(to.0)?);
        let _changing = self.changes.changing();
        let source = backing::stat_at(&source_dir.path_fd()?, from.1)?;
        let target = backing::stat_at(&target_dir.path_fd()?, to.1).ok();
        let known = |stat: &Stat| self.inodes.find_existing(&self.backing, backing::identity(stat));
        let target_inode = target.as_ref().and_then(known);
        let (old, new) = (self.policy_at(&source_dir, from.1), self.policy_at(&target_dir, to.1));
        if let Some(inode) = &target_inode {
            self.touch(inode, || Ok(()))?;
        }
        let (source_fd, target_fd) = (source_dir.path_fd()?, target_dir.path_fd()?);
        let rename = || rustix::fs::renameat_with(&source_fd, from.1, &target_fd, to.1, flags);
        let rename = || match flags.contains(RenameFlags::WHITEOUT) {
            true => self.backing.as_caller(caller, rename),
            false => rename(),
        };
        let source_inode = known(&source);
        match &source_inode {
            Some(inode) => self.touch(inode, rename)?,
            None => rename()?,
        }
        let exchanged = flags.contains(RenameFlags::EXCHANGE);
        let moves_dir = |stat: &Stat| backing::kind(stat.st_mode) == Kind::Directory;
        let directory = moves_dir(&source) || (exchanged && target.as_ref().is_some_and(moves_dir));
        let same = target.as_ref().is_some_and(|t| backing::identity(t) == backing::identity(&source));
        if let Some(observer) = self.observer().filter(|_| !same)
            && let (Some(old), Some(new)) = (self.dir_path(&source_dir), self.dir_path(&target_dir))
        {
            observer.renamed(&old.join(from.1), &new.join(to.1), directory, exchanged);
        }
        if directory {
            self.dir_paths.forget();
        }
        self.touched(&source_dir);
        self.touched(&target_dir);
        self.moved(FileId(source.st_ino));
        if let Some(target) = target.as_ref().filter(|_| !same) {
            match exchanged || target.st_nlink > 1 && !moves_dir(target) {
                true => self.moved(FileId(target.st_ino)),
                false => self.changes.forget(FileId(target.st_ino)),
            }
        }
        if let Some(inode) = &target_inode {
            target_dir.lost(to.1, inode);
            if exchanged {
                source_dir.has(from.1, inode);
            }
        }
        if let Some(inode) = &source_inode {
            target_dir.has(to.1, inode);
        }
        if old != new {
            self.policy_changed(source_inode.as_ref());
            self.policy_changed(target_inode.as_ref().filter(|_| exchanged));
        }
        self.look_below_later(&source, (&source_dir, from.1), (&target_dir, to.1));
        self.arrived(&source, &source_dir, source_inode.as_ref(), (&target_dir, to.1));
        if let Some(target) = target.as_ref().filter(|_| exchanged) {
            self.look_below_later(target, (&target_dir, to.1), (&source_dir, from.1));
        }
        match target {
            // Renaming one name of a file over another of its names does nothing.
            Some(target) if backing::identity(&target) == backing::identity(&source) => return Ok(()),
            Some(target) if exchanged => self.indexed(self.move_name(&target, &target_dir, &source_dir)),
            Some(target) => {
                if let Some(inode) = target_inode.filter(|_| target.st_nlink == 1) {
                    self.lost_last_name(&inode);
                }
                self.indexed(self.forget_name(&target, &target_dir));
            }
            None => {}
        }
        self.indexed(self.move_name(&source, &source_dir, &target_dir));
        Ok(())
    }

    /// Applies a change to an inode that moves its ctime.
    fn touch(&self, inode: &Arc<Inode>, change: impl FnOnce() -> rustix::io::Result<()>) -> Result<()> {
        if !inode.is_root_fs_file() {
            return Ok(change()?);
        }
        // A write-back meanwhile would give it a record that hides the new ctime.
        let mut state = inode.wait_written_back(self.lock_loaded(inode)?);
        self.before_change(inode, &mut state)?;
        let changed = change();
        self.enqueue_if_due(inode, &mut state);
        Ok(changed?)
    }

    /// Records in the catalog that an inode left one directory for another.
    fn move_name(&self, stat: &Stat, from: &Inode, to: &Inode) -> Result<()> {
        let on_root_fs = stat.st_dev == self.backing.identity().dev;
        if from.identity == to.identity || !on_root_fs {
            return Ok(());
        }
        // The directory may still have another name of the file.
        if stat.st_nlink <= 1 || backing::kind(stat.st_mode) == Kind::Directory {
            self.catalog.remove_parent(FileId(stat.st_ino), from.file_id())?;
        }
        self.add_name(FileId(stat.st_ino), to)
    }

    /// Records in the catalog that an inode got a name in a directory, which may be new to the catalog.
    fn add_name(&self, inode: FileId, dir: &Inode) -> Result<()> {
        if let Some(path) = self.path_of(dir) {
            self.catalog.place_dir(&self.backing, &path)?;
        }
        self.catalog.add_parent(inode, dir.file_id())
    }

    /// Records in the catalog that a name was removed.
    fn forget_name(&self, stat: &Stat, dir: &Inode) -> Result<()> {
        if stat.st_dev != self.backing.identity().dev {
            return Ok(());
        }
        let file = FileId(stat.st_ino);
        match backing::kind(stat.st_mode) {
            Kind::File if stat.st_nlink <= 1 => {
                self.catalog.remove_parent(file, dir.file_id())?;
                self.catalog.remove_file(file)
            }
            Kind::Directory => self.catalog.remove_parent(file, dir.file_id()),
            // The directory may have another name of the file: the row stays, and each answer is checked anyway.
            _ => Ok(()),
        }
    }

    /// Space and inodes of the backing filesystem.
    pub fn statfs(&self) -> Result<StatVfs> {
        Ok(rustix::fs::fstatvfs(self.backing.root())?)
    }

    /// An xattr's value; `None` if there is none.
    pub fn getxattr(&self, node: NodeId, name: &OsStr) -> Result<Option<Vec<u8>>> {
        if name == XATTR {
            return Ok(None);
        }
        Ok(backing::get_xattr(self.inode(node)?.path_fd()?, name)?)
    }

    /// Names of all xattrs, each ended by a zero byte.
    pub fn listxattr(&self, node: NodeId) -> Result<Vec<u8>> {
        let all = backing::list_xattrs(self.inode(node)?.path_fd()?)?;
        let shown =
            all.split_inclusive(|&byte| byte == 0).filter(|name| name[..name.len() - 1] != *XATTR.as_bytes());
        Ok(shown.flatten().copied().collect())
    }

    /// Sets an xattr; `flags` as for setxattr(2).
    pub fn setxattr(&self, node: NodeId, name: &OsStr, value: &[u8], flags: u32) -> Result<()> {
        self.check_xattr(name)?;
        let inode = self.inode(node)?;
        let _changing = self.changes.changing();
        self.touched(&inode);
        let flags = rustix::fs::XattrFlags::from_bits(flags).ok_or(Errno::INVAL)?;
        let set = || rustix::fs::setxattr(backing::proc_path(&inode.path_fd()?), name, value, flags);
        if name == CAPABILITY && inode.is_root_fs_file() {
            // A later write-back would remove the xattr.
            drop(self.make_plain(&inode, self.lock_loaded(&inode)?)?);
        }
        match self.touch(&inode, set) {
            // Our own record may take the room.
            Err(OverlayError::Os(Errno::NOSPC)) if self.drop_record(&inode)? => self.touch(&inode, set),
            other => other,
        }
    }

    /// Makes a file plain without any record; returns whether there was one.
    fn drop_record(&self, inode: &Arc<Inode>) -> Result<bool> {
        if !inode.is_root_fs_file() {
            return Ok(false);
        }
        let mut state = self.make_plain(inode, self.lock_loaded(inode)?)?;
        let had_one = self.remove_record(inode, &mut state)?;
        self.enqueue_if_due(inode, &mut state);
        Ok(had_one)
    }

    /// Removes the record of a plain file, which only remembers the ctime to show; returns whether there was one.
    fn remove_record(&self, inode: &Inode, state: &mut InodeState) -> Result<bool> {
        if !matches!(state.content, Some(Content::Plain(Some(_)))) {
            return Ok(false);
        }
        match rustix::fs::removexattr(backing::proc_path(&inode.path_fd()?), XATTR) {
            Ok(()) => state.content = Some(Content::Plain(None)),
            // An ordinary user's file that may not be written keeps its record.
            Err(Errno::ACCESS | Errno::PERM) => return Ok(false),
            Err(e) => return Err(e.into()),
        }
        Ok(true)
    }

    /// Removes an xattr.
    pub fn removexattr(&self, node: NodeId, name: &OsStr) -> Result<()> {
        self.check_xattr(name)?;
        let inode = self.inode(node)?;
        let _changing = self.changes.changing();
        self.touched(&inode);
        self.touch(&inode, || rustix::fs::removexattr(backing::proc_path(&inode.path_fd()?), name))
    }

    fn check_xattr(&self, name: &OsStr) -> Result<()> {
        self.check_not_read_only()?;
        if name == XATTR {
            return Err(OverlayError::Reserved(XATTR.to_owned()));
        }
        Ok(())
    }
}
