//! Xattrs that do not fit into a replica's filesystem. They stay in the tree: a filesystem that cannot hold
//! an attribute does not delete it.

use super::error::{self, SyncError};
use super::identify::Seen;
use super::scan;
use super::tree::{Tree, TreePath};
use crate::beneath::Root;
use rustix::fs::{Mode, OFlags, XattrFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::os::fd::AsFd;

/// Names and values.
pub type Xattrs = BTreeMap<Vec<u8>, Vec<u8>>;

/// What one inode lacks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lacking {
    /// A path of it, when it was last looked at.
    pub path: TreePath,
    /// What could not be set.
    pub xattrs: Xattrs,
}

/// By inode number.
pub type Unfit = BTreeMap<u64, Lacking>;

/// Sets xattrs. Returns those for which there is no room, and what the system answered.
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

/// For the user.
pub fn reason(xattrs: &Xattrs, e: Option<Errno>) -> String {
    let names: Vec<String> = xattrs.keys().map(|name| String::from_utf8_lossy(name).into_owned()).collect();
    let e = e.map_or_else(String::new, |e| format!(" ({e})"));
    let names = names.join(", ");
    format!(
        "is synced without {names}, which its filesystem cannot hold{e}; make the attribute smaller or remove it"
    )
}

/// Tries once more to set what is missing, and forgets what could be set.
pub fn retry(root: &Root, unfit: &mut Unfit) {
    unfit.retain(|ino, lacking| {
        let file = root.open_at(&lacking.path, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty());
        // What is elsewhere now is found when the tree is looked at.
        let Ok(file) = file else { return true };
        if !rustix::fs::fstat(&file).is_ok_and(|stat| scan::ino(&stat) == *ino) {
            return true;
        }
        match set(&file, &lacking.path, &lacking.xattrs) {
            Ok(still) => lacking.xattrs = still.map(|(xattrs, _)| xattrs).unwrap_or_default(),
            Err(e) => tracing::debug!("an xattr is left for the next sync: {e}"),
        }
        !lacking.xattrs.is_empty()
    });
}

/// Adds to what was `seen` what it lacks. An inode that is another file by now, or gone, lacks nothing.
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
        // What a user has set since is there.
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
