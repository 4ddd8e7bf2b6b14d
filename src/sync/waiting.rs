//! Owners and ACLs that this device sees and could not set, by inode. The tree keeps them: a machine without a user does not
//! take the user's files away.
//!
//! A file counts as changed here once it has another value than it had when its attribute began to wait.

use super::accounts::Unknown;
use super::attributes::OWNER;
use super::owners::{Owners, Waiting};
use super::seen::Seen;
use super::tree::{Tree, TreePath, shown};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// The attributes that wait for one inode.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Left {
    /// One of its paths, as of the last scan.
    pub path: TreePath,
    /// By name.
    pub attributes: Waiting,
}

/// By inode number.
pub type AllWaiting = BTreeMap<u64, Left>;

/// Gives the `seen` entries the attributes that wait. Forgets inodes that are gone or belong to another file by now, and
/// attributes that a user has set since.
pub fn complete(seen: &mut BTreeMap<TreePath, Seen>, last: &Tree, all: &mut AllWaiting) {
    if all.is_empty() {
        return;
    }
    let mut paths: BTreeMap<u64, Vec<TreePath>> = BTreeMap::new();
    for (path, now) in seen.iter().filter(|(_, now)| all.contains_key(&now.inode.1)) {
        paths.entry(now.inode.1).or_default().push(path.clone());
    }
    all.retain(|ino, left| {
        let Some(paths) = paths.get(ino) else { return false };
        let was = last.entries.get(&left.path);
        let same = |path: &TreePath| {
            *path == left.path || was.is_some_and(|was| was.kind == seen[path].kind && !was.kind.is_dir())
        };
        if !paths.iter().any(same) {
            return false;
        }
        left.path.clone_from(&paths[0]);
        let values = &seen[&paths[0]].xattrs;
        // An entry that was not examined has the value of the last tree.
        left.attributes.retain(|name, waits| {
            let now = values.get(name);
            now == waits.had.as_ref() || now == Some(&waits.wanted)
        });
        for path in paths {
            let now = seen.get_mut(path).expect("it was seen just now");
            for (name, waits) in &left.attributes {
                now.xattrs.insert(name.clone(), waits.wanted.clone());
            }
        }
        !left.attributes.is_empty()
    });
}

/// Returns one file for each name without an account here, with the reason for the user, and one for all files whose
/// attributes could not be set for another reason. Only inodes for which `is_there` returns true count.
pub fn reasons(all: &AllWaiting, owners: &Owners, is_there: impl Fn(u64) -> bool) -> Vec<(TreePath, String)> {
    let mut found: BTreeMap<Option<Unknown>, BTreeSet<&TreePath>> = BTreeMap::new();
    for (_, Left { path, attributes }) in all.iter().filter(|(ino, _)| is_there(**ino)) {
        for (name, waits) in attributes.iter().filter(|(name, _)| owners.sees.sees(name)) {
            let unknown = owners.unknown(name, &waits.wanted);
            let none = unknown.is_empty() && name[..] == *OWNER;
            for reason in unknown.into_iter().map(Some).chain(none.then_some(None)) {
                found.entry(reason).or_default().insert(path);
            }
        }
    }
    let reason = |(unknown, paths): (Option<Unknown>, BTreeSet<&TreePath>)| {
        let first = (*paths.first()?).clone();
        let others = match paths.len() - 1 {
            0 => String::new(),
            1 => " (and for one other file)".to_owned(),
            others => format!(" (and for {others} other files)"),
        };
        Some((first, format!("is synced without its owner or a part of its ACL{others}: {}", why(unknown))))
    };
    found.into_iter().filter_map(reason).collect()
}

fn why(unknown: Option<Unknown>) -> String {
    match unknown {
        None => "this machine refuses to set the owner; see whether its filesystem can hold it".to_owned(),
        Some(Unknown::Missing(name)) => {
            let name = shown(&name);
            format!(
                "this machine has no account {name}; create it, or set `owners = {{ \"{name}\" = \"NAME HERE\" }}` under [sync] in \
                 config.toml"
            )
        }
        Some(Unknown::Named(name, here)) => {
            let (name, here) = (shown(&name), shown(&here));
            format!(
                "its id {name} has no name there, and is {here} here; if that is the same account, set `owners = {{ \"{name}\" = \
                 \"{here}\" }}` under [sync] in config.toml"
            )
        }
        Some(Unknown::Used(name)) => {
            let name = shown(&name);
            format!(
                "`owners` under [sync] in config.toml maps another name to {name}; add `\"{name}\" = \"NAME HERE\"` to it"
            )
        }
    }
}
