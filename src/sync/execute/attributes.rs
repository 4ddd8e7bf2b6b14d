//! Owners and ACLs of entries that steps put in place.

use super::Executor;
use super::skip::{Skip, Step, refused};
use crate::beneath::Root;
use crate::sync::attributes::OWNER;
use crate::sync::owners::Waiting;
use crate::sync::print::ino;
use crate::sync::tree::{Entry, TreePath};
use crate::sync::waiting::Left;
use rustix::fs::{AtFlags, Gid, Stat, Uid};
use rustix::io::Errno;
use std::os::fd::AsFd;

impl Executor<'_> {
    /// Sets owner and ACLs of an open file or directory with the xattrs `names`.
    pub(super) fn put_owner(
        &mut self,
        fd: &impl AsFd,
        stat: &Stat,
        path: &TreePath,
        entry: &Entry,
        names: &[&[u8]],
    ) -> Step {
        let set = self.owners.set(fd, stat, entry, names).map_err(|e| match e {
            // An ACL that has no room concerns only this file.
            Errno::NOSPC | Errno::DQUOT => {
                Skip::Because(format!("set the ACL of: {e}; make the ACL shorter, or remove it"))
            }
            e => refused(path, "set the owner or ACL of")(e),
        });
        self.note_waiting(stat, path, set?);
        Ok(())
    }

    /// Sets the owner of a symlink or named pipe.
    pub(super) fn put_owner_at(
        &mut self,
        dir: impl AsFd,
        name: &[u8],
        path: &TreePath,
        entry: &Entry,
    ) -> Step {
        if !self.owners.sees.owner {
            return Ok(());
        }
        let stat = rustix::fs::statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW);
        let stat = stat.map_err(refused(path, "look at"))?;
        let set = self.owners.set_owner_at(dir, name, &stat, entry);
        self.note_waiting(&stat, path, set.map_err(refused(path, "set the owner of"))?);
        Ok(())
    }

    fn note_waiting(&mut self, stat: &Stat, path: &TreePath, attributes: Waiting) {
        self.waiting.insert(ino(stat), Left { path: path.clone(), attributes });
    }

    /// Gives the new entry at `at` the owner of `like`, if the tree does not have its owner: it comes from a device that does not
    /// see owners.
    pub(super) fn give_owner(&self, at: &TreePath, entry: &Entry, like: &[u8]) -> Step {
        match self.lacks_owner(entry) {
            true => self.give_owner_at(self.root, at, self.root.stat(like).map_err(refused(at, "look at"))?),
            false => Ok(()),
        }
    }

    /// Returns whether an entry gets its owner from its directory.
    pub(super) fn lacks_owner(&self, entry: &Entry) -> bool {
        self.owners.sees.owner && !entry.xattrs.contains_key(OWNER)
    }

    /// Gives the entry at `at` below `place` the owner of `like`.
    pub(super) fn give_owner_at(&self, place: &Root, at: &TreePath, like: Option<Stat>) -> Step {
        let (Some(like), Some(now)) = (like, place.stat(at).map_err(refused(at, "look at"))?) else {
            return Ok(());
        };
        if (like.st_uid, like.st_gid) == (now.st_uid, now.st_gid) {
            return Ok(());
        }
        let (dir, name) = place.parent(at).map_err(refused(at, "open"))?;
        let (uid, gid) = (Uid::from_raw(like.st_uid), Gid::from_raw(like.st_gid));
        match rustix::fs::chownat(dir, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW) {
            Err(e @ (Errno::IO | Errno::ROFS | Errno::NOTCONN)) => Err(refused(at, "set the owner of")(e)),
            Err(e) => {
                tracing::debug!("an owner could not be set: {e}");
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }
}
