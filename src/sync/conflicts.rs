//! Conflicts that wait to be settled: they are in the tree itself, as names, so every device sees the same.

use super::beneath::{self, Root};
use super::error::SyncError;
use super::look::Seen;
use super::memory::Memory;
use super::merge::parse_conflict_name;
use super::scan::scan;
use super::tree::{Time, Tree, TreePath, join, shown, split};
use rustix::fs::{OFlags, RenameFlags};
use std::collections::BTreeMap;
use std::path::Path;

/// A file that is there twice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pending {
    /// What both were called.
    pub path: TreePath,
    /// What this device made of it, or else what has the name.
    pub ours: TreePath,
    /// The other.
    pub theirs: TreePath,
    /// The name that a conflict made: one of the two.
    pub copy: TreePath,
    /// Times of ours and theirs; none of what is not there any more.
    pub times: (Option<Time>, Option<Time>),
}

/// Which of the two is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// What this device made.
    Ours,
    /// What the other made.
    Theirs,
    /// What has the later time; clocks may err, so only when asked.
    Newer,
}

/// The conflicts in the tree at `root`, by the memory in `state`.
pub fn list(root: &Path, state: &Path) -> Result<Vec<Pending>, SyncError> {
    let memory = Memory::open(state)?;
    let known = &memory.cache;
    let seen = scan(&Root::open(root)?, &Tree::default(), known, &mut |_, _| {})?.seen;
    Ok(pending(&seen, &memory))
}

fn pending(seen: &BTreeMap<TreePath, Seen>, memory: &Memory) -> Vec<Pending> {
    let time = |path: &TreePath| seen.get(path).map(|seen| seen.mtime);
    let row = |copy: &TreePath| {
        let (dir, name) = split(copy);
        let (name, device) = parse_conflict_name(name)?;
        let path = join(dir, &name);
        let (ours, theirs) = match device == memory.device {
            true => (copy.clone(), path.clone()),
            false => (path.clone(), copy.clone()),
        };
        let times = (time(&ours), time(&theirs));
        Some(Pending { path, ours, theirs, copy: copy.clone(), times })
    };
    seen.iter().filter(|(_, seen)| !seen.kind.is_dir()).filter_map(|(path, _)| row(path)).collect()
}

/// Settles one: what is kept has the name, the other is removed. The name's file is replaced by one rename.
pub fn settle(root: &Path, conflict: &Pending, keep: Keep) -> Result<(), SyncError> {
    let root = Root::open(root)?;
    let ours = match keep {
        Keep::Ours => true,
        Keep::Theirs => false,
        Keep::Newer => conflict.times.0 >= conflict.times.1,
    };
    let kept = if ours { &conflict.ours } else { &conflict.theirs };
    let failed = |operation| move |e| beneath::error(operation, &conflict.copy, e);
    let there = root.stat(kept).map_err(failed("look at"))?;
    if there.is_none() {
        return Err(SyncError::Changed(format!(
            "{}: is not there any more; nothing was removed",
            shown(kept)
        )));
    }
    match *kept == conflict.copy {
        true => {
            root.rename(&conflict.copy, &conflict.path, RenameFlags::empty()).map_err(failed("rename"))?
        }
        false => root.remove(&conflict.copy, false).map_err(failed("remove"))?,
    }
    let dir = split(&conflict.copy).0;
    let fd = root
        .open_at(dir, OFlags::RDONLY | OFlags::DIRECTORY, rustix::fs::Mode::empty())
        .map_err(failed("open"))?;
    rustix::fs::fsync(fd).map_err(failed("sync"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listed_and_settled() {
        let (tree, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let device = Memory::open(state.path()).unwrap().device.clone();
        let write = |name: &str, text: &str| std::fs::write(tree.path().join(name), text).unwrap();
        let list = || list(tree.path(), state.path()).unwrap();
        let text = |name: &str| std::fs::read_to_string(tree.path().join(name)).unwrap();
        write("a.txt", "theirs");
        write(&format!("a.conflict-{device}-00000000.txt"), "ours");
        write("b.txt", "ours");
        write("b.conflict-other-1-00000000.txt", "theirs");
        write("not.conflict-x", "");
        let all = list();
        assert_eq!(all.len(), 2);
        assert_eq!(all[0].ours, all[0].copy);
        assert_eq!(all[1].theirs, all[1].copy);
        all.iter().for_each(|one| settle(tree.path(), one, Keep::Ours).unwrap());
        assert_eq!((text("a.txt"), text("b.txt")), ("ours".to_owned(), "ours".to_owned()));
        assert!(list().is_empty());
        write("c.conflict-other-1-00000000", "theirs");
        let error = settle(tree.path(), &list()[0], Keep::Ours).unwrap_err();
        assert!(error.to_string().contains("nothing was removed"), "{error}");
        settle(tree.path(), &list()[0], Keep::Theirs).unwrap();
        assert_eq!(text("c"), "theirs");
    }
}
