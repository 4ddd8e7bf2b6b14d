//! Owners and ACLs of a directory that could not be set.

use super::super::attributes::{OWNER, acl};
use super::super::error::{self, SyncError};
use super::super::print::{Print, ino, print};
use super::super::tree::{Entry, TreePath};
use super::super::waiting::{AllWaiting, Left, reasons};
use super::Local;
use rustix::fs::{FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, OwnedFd};

impl Local<'_> {
    /// Remembers attributes of inodes that could not be set; forgets inodes that have all of theirs.
    pub(super) fn note_waiting(&mut self, new: BTreeMap<u64, Left>) -> Result<(), SyncError> {
        let known = |ino: &u64| self.memory.waiting.contains_key(ino);
        if !new.iter().any(|(ino, left)| !left.attributes.is_empty() || known(ino)) {
            return Ok(());
        }
        let paths: BTreeMap<u64, &TreePath> =
            self.memory.cache.iter().map(|(path, print)| (print.ino, path)).collect();
        let mut waiting = self.memory.waiting.clone();
        for (ino, mut left) in new {
            if left.attributes.is_empty() {
                waiting.remove(&ino);
                continue;
            }
            if let Some(path) = paths.get(&ino) {
                left.path = (*path).clone();
            }
            waiting.insert(ino, left);
        }
        self.memory.set_waiting(waiting)
    }

    /// Returns whether an attribute that waits can be set by now.
    pub(super) fn can_set_what_waits(&self) -> bool {
        self.memory.waiting.values().any(|left| self.is_reachable(left))
    }

    fn is_reachable(&self, left: &Left) -> bool {
        let owners = &self.rules.owners;
        left.attributes.iter().any(|(name, waits)| owners.sees.sees(name) && owners.is_reachable(name, waits))
    }

    /// Returns the reasons for the user why attributes wait.
    pub(super) fn reasons_to_wait(&self) -> Vec<(TreePath, String)> {
        if self.memory.waiting.is_empty() {
            return Vec::new();
        }
        // Files that this sync has removed do not count. Without changes the cache was not read.
        let there: BTreeSet<u64> = self.memory.cache.values().map(|print| print.ino).collect();
        reasons(&self.memory.waiting, &self.rules.owners, |ino| there.is_empty() || there.contains(&ino))
    }

    /// Sets attributes that waited for an account, or for this device to see them.
    pub(super) fn set_what_waited(&mut self) -> Result<(), SyncError> {
        if self.unread || !self.can_set_what_waits() {
            return Ok(());
        }
        let (mut set, mut files) = (AllWaiting::new(), Vec::new());
        for (number, left) in self.memory.waiting.iter().filter(|(_, left)| self.is_reachable(left)) {
            let Some(entry) = self.tree.entries.get(&left.path) else { continue };
            match self.set_one(*number, left, entry) {
                Ok(None) => {}
                Ok(Some((attributes, file))) => {
                    set.insert(*number, Left { path: left.path.clone(), attributes });
                    files.extend(file);
                }
                Err(e @ (Errno::IO | Errno::ROFS | Errno::NOTCONN)) => {
                    return Err(error::on("set the owner of", &left.path, e));
                }
                Err(e) => tracing::debug!("an attribute waits for the next sync: {e}"),
            }
        }
        // An owner that a power cut loses would count as a change by a user, so it is made durable first.
        if let Some(past) = &mut self.past {
            past.sync_all()?;
        }
        for file in files.iter().filter(|_| self.past.is_none()) {
            rustix::fs::fsync(file).map_err(|e| error::on("sync", b"a file with a new owner", e))?;
        }
        tracing::debug!("{} files got the owner or ACL that waited", set.len());
        let mut cache = self.memory.cache.clone();
        for (path, known) in cache.iter_mut().filter(|(_, known)| set.contains_key(&known.ino)) {
            let stat = self.root.stat(path).map_err(|e| error::on("look at", path, e))?;
            let Some(now) = stat.map(|stat| print(&stat, known.content)) else { continue };
            if (now.ino, now.size, now.mtime) == (known.ino, known.size, known.mtime) {
                *known = Print { recipe: known.recipe, ..now };
            }
        }
        self.memory.set_cache(cache);
        self.memory.save_changed_cache()?;
        self.note_waiting(set)
    }

    /// Sets what waits for one inode, unless a user has set it since. Returns what still waits, and the file.
    fn set_one(&self, number: u64, left: &Left, entry: &Entry) -> Result<Option<Set>, Errno> {
        let (dir, name) = self.root.parent(&left.path)?;
        let Some(stat) = self.root.stat(&left.path)?.filter(|stat| ino(stat) == number) else {
            return Ok(None);
        };
        let kind = FileType::from_raw_mode(stat.st_mode);
        if !matches!(kind, FileType::RegularFile | FileType::Directory) {
            let had = left.attributes.get(OWNER).and_then(|waits| waits.had.clone());
            return match self.rules.owners.owner(stat.st_uid, stat.st_gid) == had {
                true => Ok(Some((self.rules.owners.set_owner_at(&dir, name, &stat, entry)?, None))),
                false => Ok(None),
            };
        }
        let fd = self.root.open_at(&left.path, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty())?;
        let stat = rustix::fs::fstat(&fd)?;
        let now = self.values(&fd, &stat)?;
        if ino(&stat) != number
            || !left.attributes.iter().all(|(name, waits)| now.get(name) == waits.had.as_ref())
        {
            return Ok(None);
        }
        let mut names = vec![0; 64 << 10];
        let len = rustix::fs::flistxattr(&fd, &mut names[..]).unwrap_or(0);
        let names: Vec<&[u8]> = names[..len].split(|byte| *byte == 0).collect();
        let waiting = self.rules.owners.set(&fd, &stat, entry, &names)?;
        rustix::fs::fchmod(&fd, Mode::from_raw_mode(self.rules.owners.mode(entry).into()))?;
        Ok(Some((waiting, Some(fd))))
    }

    /// Returns owner and ACLs of an open file.
    fn values(&self, fd: &impl AsFd, stat: &Stat) -> Result<BTreeMap<Vec<u8>, Vec<u8>>, Errno> {
        let mut values = BTreeMap::new();
        values.extend(self.rules.owners.owner(stat.st_uid, stat.st_gid).map(|owner| (OWNER.to_vec(), owner)));
        let mut value = vec![0; 64 << 10];
        for xattr in [acl::ACCESS_XATTR, acl::DEFAULT_XATTR] {
            match rustix::fs::fgetxattr(fd, xattr, &mut value[..]) {
                Ok(len) => {
                    let acl = self.rules.owners.acl(xattr.as_bytes(), &value[..len]);
                    values.extend(acl.map(|(name, text)| (name.to_vec(), text)));
                }
                Err(Errno::NODATA | Errno::NOTSUP) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(values)
    }
}

/// Attributes that still wait, and the file, to make it durable.
type Set = (super::super::owners::Waiting, Option<OwnedFd>);
