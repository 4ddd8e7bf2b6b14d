//! Attributes that a tree carries among the xattrs under reserved names outside `user.`: owner and ACLs.
//!
//! | name | entries | value |
//! | --- | --- | --- |
//! | `owner` | all | `alice:users`; `#1000` stands for an id without a name |
//! | `acl` | files, directories | the entries of the access ACL that the mode does not have: `user:bob:r-x,group::r--` |
//! | `default-acl` | directories | the default ACL: `user::rwx,group::r-x,other::---` |
//!
//! - Each value has one text, so that trees of two devices agree.
//! - The mode of a file with an ACL has its mask in the group bits. So a change of the mode is no change of the ACL, and both
//!   are merged separately.
//! - A value names accounts; each device translates the names ([`super::owners`]). So a peer determines no ids.
//! - Pure.

mod account;
pub mod acl;
pub mod interned;

use super::shared_map::SharedMap;
pub use account::{id_of, is_account};
use acl::Key;
use std::collections::BTreeSet;

/// The owner and the group.
pub const OWNER: &[u8] = b"owner";
/// The access ACL, without the entries that the mode has.
pub const ACL: &[u8] = b"acl";
/// The default ACL of a directory.
pub const DEFAULT_ACL: &[u8] = b"default-acl";
/// All reserved names.
pub const RESERVED: [&[u8]; 3] = [ACL, DEFAULT_ACL, OWNER];

/// The user whose files count as not owned by anyone else if two sides never agreed on an owner.
const ROOT: &[u8] = b"root";

/// Names and values. Most entries of a tree have the same ones: see [`interned`].
pub type Values = SharedMap<Vec<u8>, Vec<u8>>;

/// The type of an entry, as far as attributes depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// A directory.
    Dir,
    /// A regular file.
    File,
    /// A symlink or a named pipe.
    Other,
}

/// Returns whether a name is one of the reserved ones.
pub fn is_reserved(name: &[u8]) -> bool {
    RESERVED.contains(&name)
}

/// Returns whether `name` is reserved, and `value` is a valid value of it for this type of entry.
pub fn is_valid(name: &[u8], value: &[u8], place: Place) -> bool {
    match name {
        OWNER => parse_owner(value).is_some(),
        ACL => place != Place::Other && acl::parse(value, false).is_some(),
        DEFAULT_ACL => place == Place::Dir && acl::parse(value, true).is_some(),
        _ => false,
    }
}

/// Returns whether two maps have the same `user.` xattrs.
pub fn same_xattrs(a: &Values, b: &Values) -> bool {
    fn xattrs(all: &Values) -> impl Iterator<Item = (&Vec<u8>, &Vec<u8>)> {
        all.iter().filter(|(name, _)| !is_reserved(name))
    }
    a == b || xattrs(a).eq(xattrs(b))
}

/// Returns the user and the group of a value of `owner`.
pub fn parse_owner(value: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = value.iter().position(|byte| *byte == b':')?;
    let (user, group) = (&value[..at], &value[at + 1..]);
    (is_account(user) && is_account(group)).then_some((user, group))
}

/// Returns the value of `owner`.
pub fn owner_text(user: &[u8], group: &[u8]) -> Vec<u8> {
    [user, b":", group].concat()
}

/// Merges a reserved attribute that both sides changed differently since `base`. Symmetric.
pub fn merge(
    name: &[u8],
    base: Option<&Vec<u8>>,
    left: Option<&Vec<u8>>,
    right: Option<&Vec<u8>>,
) -> Option<Vec<u8>> {
    let (Some(l), Some(r)) = (left, right) else { return left.or(right).cloned() };
    let acls = |default| {
        let parsed = |value: &Vec<u8>| acl::parse(value, default);
        let base = base.and_then(parsed).unwrap_or_default();
        Some(acl::text(&merge_acls(&base, &parsed(l)?, &parsed(r)?)))
    };
    let merged = match name {
        ACL => acls(false).filter(|value| acl::parse(value, false).is_some()),
        DEFAULT_ACL => acls(true).filter(|value| acl::parse(value, true).is_some()),
        _ => None,
    };
    // The greater one, which is arbitrary but the same on all devices. A change to root takes rights away, so it wins. Without
    // a common earlier owner, root is more likely the one who copied the files than their owner.
    let rank = |value: &Vec<u8>| {
        let is_root = parse_owner(value).is_some_and(|(user, _)| user == ROOT);
        is_root == base.is_some()
    };
    Some(merged.unwrap_or_else(|| if (rank(l), l) > (rank(r), r) { l.clone() } else { r.clone() }))
}

/// Merges two ACLs entry by entry. If both sides changed an entry, only the rights stay that both give.
fn merge_acls(base: &acl::Named, left: &acl::Named, right: &acl::Named) -> acl::Named {
    let keys: BTreeSet<&Key<Vec<u8>>> = left.keys().chain(right.keys()).collect();
    let value = |key: &Key<Vec<u8>>| {
        let (base, left, right) = (base.get(key), left.get(key), right.get(key));
        match (left, right) {
            _ if left == right || base == right => left.copied(),
            _ if base == left => right.copied(),
            (Some(l), Some(r)) => Some(l & r),
            _ => left.or(right).copied(),
        }
    };
    keys.into_iter().filter_map(|key| Some((key.clone(), value(key)?))).collect()
}

#[cfg(test)]
mod tests;
