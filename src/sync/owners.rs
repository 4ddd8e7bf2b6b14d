//! Owners and ACLs of files on this machine, as a tree has them.
//!
//! - A device *sees* owners, or ACLs, if it runs as root, and a setting does not switch them off.
//! - A device that does not see an attribute neither reads nor sets it. Its entries keep the attribute of the last tree, so
//!   this is neither a change nor a deletion. A new entry gets the owner of its directory, as far as the tree has that.
//! - An attribute that this device sees and cannot set waits: [`super::waiting`].

use super::accounts::{Accounts, NameMap, Unknown};
use super::attributes::acl::{self, ACCESS_XATTR, DEFAULT_XATTR};
use super::attributes::{ACL, DEFAULT_ACL, OWNER, RESERVED, Values, owner_text, parse_owner, same_xattrs};
use super::tree::Entry;
use rustix::fs::{AtFlags, FileType, Gid, Stat, Uid, XattrFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::os::fd::AsFd;

/// The attributes that a device sees.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sees {
    /// Owners.
    pub owner: bool,
    /// ACLs.
    pub acl: bool,
}

impl Sees {
    /// Returns whether this device sees an attribute; true for xattrs of `user.`.
    pub fn sees(self, name: &[u8]) -> bool {
        match name {
            OWNER => self.owner,
            ACL | DEFAULT_ACL => self.acl,
            _ => true,
        }
    }
}

/// An attribute that could not be set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waits {
    /// The value of the tree.
    pub wanted: Vec<u8>,
    /// The value of the file.
    pub had: Option<Vec<u8>>,
}

/// Attributes that wait, by name.
pub type Waiting = BTreeMap<Vec<u8>, Waits>;

/// See the module.
pub struct Owners {
    /// The attributes that this device sees.
    pub sees: Sees,
    map: NameMap,
    accounts: Accounts,
}

impl Default for Owners {
    fn default() -> Owners {
        Owners::new(Sees::default(), &NameMap::new())
    }
}

impl Owners {
    /// Returns the owners of this machine; `map` has names of the other side, and their names here.
    pub fn new(sees: Sees, map: &NameMap) -> Owners {
        let none = sees == Sees::default();
        let accounts = if none { Accounts::none() } else { Accounts::of_system(map) };
        Owners { sees, map: map.clone(), accounts }
    }

    /// Returns the map of names.
    pub fn map(&self) -> &NameMap {
        &self.map
    }

    /// Returns the attribute for the ids of a file, if this device sees owners.
    pub fn owner(&self, uid: u32, gid: u32) -> Option<Vec<u8>> {
        let text = || owner_text(&self.accounts.name(uid, true), &self.accounts.name(gid, false));
        self.sees.owner.then(text)
    }

    /// Returns the attribute for an xattr of the system; `None` if it has none, or this device does not see it.
    pub fn acl(&self, xattr: &[u8], value: &[u8]) -> Option<(&'static [u8], Vec<u8>)> {
        let default = xattr == DEFAULT_XATTR.as_bytes();
        if !self.sees.acl || !(default || xattr == ACCESS_XATTR.as_bytes()) {
            return None;
        }
        let acl = acl::decode(value)?;
        let acl = if default { acl } else { acl::without_mode(acl)? };
        let text = acl::text(&acl::translate(&acl, |id, user| Some(self.accounts.name(*id, user))));
        // A longer one than a tree may have.
        acl::parse(&text, default)?;
        Some((if default { DEFAULT_ACL } else { ACL }, text))
    }

    /// Returns the permission bits that a file of `entry` gets here.
    pub fn mode(&self, entry: &Entry) -> u16 {
        match entry.xattrs.get(ACL) {
            Some(acl) if !self.sees.acl => acl::mode_without(acl, entry.mode),
            _ => entry.mode,
        }
    }

    /// Returns whether two entries are the same for this device, apart from their contents.
    pub fn are_same(&self, a: &Entry, b: &Entry) -> bool {
        (self.mode(a), a.mtime) == (self.mode(b), b.mtime) && self.are_same_values(&a.xattrs, &b.xattrs)
    }

    /// The same for xattrs.
    pub fn are_same_values(&self, a: &Values, b: &Values) -> bool {
        let is_same = |name: &&[u8]| !self.sees.sees(name) || a.get(*name) == b.get(*name);
        a == b || (same_xattrs(a, b) && RESERVED.iter().all(is_same))
    }

    /// Returns the ids of an owner, as far as this machine knows the names.
    fn ids(&self, owner: &[u8]) -> (Option<u32>, Option<u32>) {
        let (user, group) = parse_owner(owner).unwrap_or((b"#", b"#"));
        (self.accounts.id(user, true).ok(), self.accounts.id(group, false).ok())
    }

    /// Returns the ids of the owner of an entry that has no other attribute that is set here. `None` if it has others, or if
    /// this machine does not know the names. The ids are `None` if this device does not set owners.
    pub fn only_owner(&self, xattrs: &Values) -> Option<Option<(u32, u32)>> {
        let other = |name: &Vec<u8>| name[..] != *OWNER && self.sees.sees(name);
        match xattrs.get(OWNER).filter(|_| self.sees.owner) {
            _ if xattrs.keys().any(other) => None,
            None => Some(None),
            Some(owner) => {
                let (uid, gid) = self.ids(owner);
                Some(Some((uid?, gid?)))
            }
        }
    }

    /// Returns the names in an attribute that mean no account here.
    pub fn unknown(&self, name: &[u8], value: &[u8]) -> Vec<Unknown> {
        let mut unknown = Vec::new();
        let mut look = |account: &[u8], user| unknown.extend(self.accounts.id(account, user).err());
        match name {
            OWNER => {
                let (user, group) = parse_owner(value).unwrap_or_default();
                look(user, true);
                look(group, false);
            }
            _ => {
                let acl = acl::parse(value, name == DEFAULT_ACL).unwrap_or_default();
                acl::translate(&acl, |account, user| {
                    look(account, user);
                    Some(0)
                });
            }
        }
        unknown
    }

    /// Returns whether setting the attribute `name` that waits would change the file.
    pub fn is_reachable(&self, name: &[u8], waits: &Waits) -> bool {
        let Waits { wanted, had } = waits;
        match (name, had.as_deref().and_then(parse_owner), parse_owner(wanted)) {
            (OWNER, Some((user_now, group_now)), Some((user, group))) => {
                let (uid, gid) = self.ids(wanted);
                (uid.is_some() && user != user_now) || (gid.is_some() && group != group_now)
            }
            (OWNER, ..) => false,
            _ => {
                let acl = acl::parse(wanted, name == DEFAULT_ACL).unwrap_or_default();
                let known = acl::translate(&acl, |account, user| {
                    self.accounts.id(account, user).ok().map(|_| account.clone())
                });
                had.as_ref() != Some(&acl::text(&known))
            }
        }
    }

    /// Sets the owner of an entry at `name` in `dir`, which may be a symlink. Returns the attributes that wait.
    pub fn set_owner_at(
        &self,
        dir: impl AsFd,
        name: &[u8],
        stat: &Stat,
        entry: &Entry,
    ) -> Result<Waiting, Errno> {
        self.set_owner(stat, entry, |uid, gid| {
            rustix::fs::chownat(&dir, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW)
        })
    }

    /// Sets owner and ACLs of an open file or directory, as far as this device sees them. The caller sets the mode afterwards:
    /// a new owner or ACL may change it. `names` are its xattrs.
    pub fn set(&self, fd: impl AsFd, stat: &Stat, entry: &Entry, names: &[&[u8]]) -> Result<Waiting, Errno> {
        let mut waiting = self.set_owner(stat, entry, |uid, gid| rustix::fs::fchown(&fd, uid, gid))?;
        let dir = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        let both = [(ACL, ACCESS_XATTR), (DEFAULT_ACL, DEFAULT_XATTR)];
        for (name, xattr) in both.into_iter().filter(|(name, _)| self.sees.acl && (dir || *name == ACL)) {
            let wanted = entry.xattrs.get(name);
            let Some(acl) = wanted.and_then(|value| acl::parse(value, name == DEFAULT_ACL)) else {
                if names.contains(&xattr.as_bytes()) {
                    rustix::fs::fremovexattr(&fd, xattr)?;
                }
                continue;
            };
            let known = acl::translate(&acl, |account, user| self.accounts.id(account, user).ok());
            let whole = if name == ACL { acl::with_mode(&known, entry.mode) } else { known.clone() };
            // Without its ACL, the mode would give the group the rights of others. So this is no attribute that can wait.
            rustix::fs::fsetxattr(&fd, xattr, &acl::encode(&whole), XattrFlags::empty())?;
            if known.len() < acl.len() {
                let had = acl::text(&acl::translate(&known, |id, user| Some(self.accounts.name(*id, user))));
                waiting.insert(name.to_vec(), Waits { wanted: acl::text(&acl), had: Some(had) });
            }
        }
        Ok(waiting)
    }

    fn set_owner(
        &self,
        stat: &Stat,
        entry: &Entry,
        chown: impl FnOnce(Option<Uid>, Option<Gid>) -> Result<(), Errno>,
    ) -> Result<Waiting, Errno> {
        let Some(wanted) = entry.xattrs.get(OWNER).filter(|_| self.sees.owner) else {
            return Ok(Waiting::new());
        };
        let (uid, gid) = self.ids(wanted);
        let new = (uid.unwrap_or(stat.st_uid), gid.unwrap_or(stat.st_gid));
        let mut now = (stat.st_uid, stat.st_gid);
        if new != now {
            match chown(uid.map(Uid::from_raw), gid.map(Gid::from_raw)) {
                Ok(()) => now = new,
                Err(e @ (Errno::IO | Errno::ROFS | Errno::NOTCONN)) => return Err(e),
                Err(e) => tracing::debug!("an owner could not be set: {e}"),
            }
        }
        let set = uid == Some(now.0) && gid == Some(now.1);
        let waits = || Waits { wanted: wanted.clone(), had: self.owner(now.0, now.1) };
        Ok(if set { Waiting::new() } else { Waiting::from([(OWNER.to_vec(), waits())]) })
    }
}
