//! Attributes that a device does not see, or sees for the first time: its tree has them as before.

use super::attributes::acl::mode_without;
use super::attributes::{ACL, OWNER, RESERVED, is_reserved};
use super::owners::{Owners, Sees, Waits};
use super::print::{Print, unchanged};
use super::seen::Seen;
use super::tree::{Entry, Ident, Tree, TreePath, split};
use super::waiting::AllWaiting;
use std::collections::{BTreeMap, HashMap};

/// Completes `tree`, as `seen` now: an attribute that this device does not see is as in `agreed`, a tree that was being taken, or
/// in the `last` tree. So is one that it sees for the first time (it `saw` others at the last sync); if the file has another
/// value, the tree's waits to be set. An attribute that no tree had yet is as the file has it.
///
/// A new file gets the owner of its directory if this device does not see owners.
pub fn keep(
    tree: &mut Tree,
    seen: &BTreeMap<TreePath, Seen>,
    (last, agreed): (&Tree, Option<&Tree>),
    owners: &Owners,
    saw: Sees,
) -> AllWaiting {
    let (sees, mut waiting) = (owners.sees, AllWaiting::new());
    let names: Vec<&[u8]> =
        RESERVED.into_iter().filter(|name| !(sees.sees(name) && saw.sees(name))).collect();
    let has_any =
        |tree: &Tree| tree.entries.values().any(|entry| entry.xattrs.keys().any(|name| is_reserved(name)));
    if names.is_empty() || !(has_any(last) || agreed.is_some_and(has_any)) {
        return waiting;
    }
    let (before, taking) = (by_ident(last), agreed.map(by_ident).unwrap_or_default());
    // Owners of the directories so far. The root is in no tree: it gets the owner that all entries in it have.
    let mut dirs: HashMap<TreePath, Option<Vec<u8>>> = HashMap::new();
    dirs.insert(TreePath::new(), common_owner(agreed.unwrap_or(last)));
    for (path, entry) in tree.entries.iter_mut() {
        let was = taking.get(&entry.ident).or_else(|| before.get(&entry.ident));
        for name in &names {
            let wanted = match was {
                Some(was) => was.xattrs.get(*name).cloned(),
                None if *name == OWNER => dirs.get(split(path).0).cloned().flatten(),
                None => None,
            };
            let now = entry.xattrs.get(*name).cloned();
            match wanted {
                _ if sees.sees(name) && (was.is_none() || wanted.is_none() || wanted == now) => {}
                Some(wanted) => {
                    // An entry that a device with a part of the tree does not have is as in the last tree.
                    if let Some(now_seen) = seen.get(path).filter(|_| sees.sees(name)) {
                        let left = waiting.entry(now_seen.inode.1).or_default();
                        left.path.clone_from(path);
                        left.attributes.insert(name.to_vec(), Waits { wanted: wanted.clone(), had: now });
                    }
                    entry.xattrs.insert(name.to_vec(), wanted);
                }
                None => drop(entry.xattrs.remove(*name)),
            }
        }
        if let Some((was, acl)) = was.and_then(|was| Some((was, was.xattrs.get(ACL)?)))
            && !sees.acl
            && entry.mode == mode_without(acl, was.mode)
        {
            entry.mode = was.mode;
        }
        if entry.kind.is_dir() {
            dirs.insert(path.clone(), entry.xattrs.get(OWNER).cloned());
        }
    }
    waiting
}

fn by_ident(tree: &Tree) -> HashMap<Ident, &Entry> {
    tree.entries.values().map(|entry| (entry.ident, entry)).collect()
}

/// Removes the owners of `seen` files that are as the last sync left them, and have no owner in the tree: those of a device that
/// does not see owners. Such a file got the owner of its directory, which is no change.
pub fn forget_given(
    seen: &mut BTreeMap<TreePath, Seen>,
    prints: &BTreeMap<TreePath, Print>,
    known: &BTreeMap<TreePath, Print>,
    last: &Tree,
) {
    for (path, now) in seen.iter_mut() {
        let is_without = last.entries.get(path).is_some_and(|was| !was.xattrs.contains_key(OWNER));
        let is_as_left =
            || known.get(path).zip(prints.get(path)).is_some_and(|(was, now)| unchanged(was, now));
        if is_without && is_as_left() {
            now.xattrs.remove(OWNER);
        }
    }
}

/// Returns the owner that all entries in the root have.
fn common_owner(tree: &Tree) -> Option<Vec<u8>> {
    let mut owners = tree
        .entries
        .iter()
        .filter(|(path, _)| !path.contains(&b'/'))
        .map(|(_, entry)| entry.xattrs.get(OWNER));
    let first = owners.next()??;
    owners.all(|owner| owner == Some(first)).then(|| first.clone())
}
