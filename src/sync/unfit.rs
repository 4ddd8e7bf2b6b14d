//! Xattrs that do not fit into a replica's filesystem. They stay in the tree: a filesystem that cannot hold
//! an attribute does not delete it.

use super::error::{self, SyncError};
use super::print::ino;
use super::seen::Seen;
use super::tree::{Tree, TreePath};
use crate::beneath::Root;
use rustix::fs::{Mode, OFlags, XattrFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::os::fd::AsFd;

/// Names and values.
pub type Xattrs = BTreeMap<Vec<u8>, Vec<u8>>;

/// Xattrs that one inode lacks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lacking {
    /// One of its paths, as of the last scan.
    pub path: TreePath,
    /// The xattrs that could not be set.
    pub xattrs: Xattrs,
}

/// By inode number.
pub type Unfit = BTreeMap<u64, Lacking>;

/// Sets xattrs. Returns those that do not fit, and the error of the system.
pub fn set(fd: impl AsFd, path: &[u8], xattrs: &Xattrs) -> Result<Option<(Xattrs, Errno)>, SyncError> {
    let mut unfit: Option<(Xattrs, Errno)> = None;
    for (name, value) in xattrs {
        match rustix::fs::fsetxattr(&fd, &name[..], value, XattrFlags::empty()) {
            Ok(()) => {}
            Err(e @ (Errno::IO | Errno::ROFS | Errno::NOTCONN)) => {
                return Err(error::on("set an xattr of", path, e));
            }
            Err(e) => {
                // An older value would look like one that a user set.
                match rustix::fs::fremovexattr(&fd, &name[..]) {
                    Ok(()) | Err(Errno::NODATA | Errno::NOTSUP) => {}
                    Err(e) => return Err(error::on("remove an xattr of", path, e)),
                }
                unfit.get_or_insert((Xattrs::new(), e)).0.insert(name.clone(), value.clone());
            }
        }
    }
    Ok(unfit)
}

/// Returns the reason for the user.
pub fn reason(xattrs: &Xattrs, e: Option<Errno>) -> String {
    let names: Vec<String> = xattrs.keys().map(|name| String::from_utf8_lossy(name).into_owned()).collect();
    let e = e.map_or_else(String::new, |e| format!(" ({e})"));
    let names = names.join(", ");
    format!(
        "is synced without {names}, which its filesystem cannot hold{e}; make the attribute smaller or remove it"
    )
}

/// Tries to set missing xattrs, and forgets those that it could set.
pub fn retry(root: &Root, unfit: &mut Unfit) {
    unfit.retain(|number, lacking| {
        let file = root.open_at(&lacking.path, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty());
        // The scan finds files that were moved.
        let Ok(file) = file else { return true };
        if !rustix::fs::fstat(&file).is_ok_and(|stat| ino(&stat) == *number) {
            return true;
        }
        match set(&file, &lacking.path, &lacking.xattrs) {
            Ok(still) => lacking.xattrs = still.map(|(xattrs, _)| xattrs).unwrap_or_default(),
            Err(e) => tracing::debug!("an xattr is left for the next sync: {e}"),
        }
        !lacking.xattrs.is_empty()
    });
}

/// Adds the missing xattrs to the `seen` entries. Forgets inodes that belong to another file by now, or are gone.
pub fn complete(seen: &mut BTreeMap<TreePath, Seen>, last: &Tree, unfit: &mut Unfit) {
    if unfit.is_empty() {
        return;
    }
    let mut paths: BTreeMap<u64, Vec<TreePath>> = BTreeMap::new();
    for (path, now) in seen.iter().filter(|(_, now)| unfit.contains_key(&now.inode.1)) {
        paths.entry(now.inode.1).or_default().push(path.clone());
    }
    unfit.retain(|ino, lacking| {
        let Some(paths) = paths.get(ino) else { return false };
        let was = last.entries.get(&lacking.path);
        let same = |path: &TreePath| {
            *path == lacking.path || was.is_some_and(|was| was.kind == seen[path].kind && !was.kind.is_dir())
        };
        if !paths.iter().any(same) {
            return false;
        }
        lacking.path.clone_from(&paths[0]);
        // An xattr that a user has set since exists.
        lacking.xattrs.retain(|name, _| !seen[&paths[0]].xattrs.contains_key(name));
        for path in paths {
            let now = seen.get_mut(path).expect("it was seen just now");
            for (name, value) in &lacking.xattrs {
                now.xattrs.insert(name.clone(), value.clone());
            }
        }
        !lacking.xattrs.is_empty()
    });
}
