//! Unresolved conflicts. They are names in the tree itself, so that every device sees the same ones.

use super::error::SyncError;
use super::error::{self, open_root};
use super::group::{BESIDE, Groups};
use super::memory::Memory;
use super::merge::parse_conflict_name;
use super::rules::Rules;
use super::scan::scan;
use super::seen::Seen;
use super::tree::{Kind, Time, Tree, TreePath, join, shown, split};
use crate::beneath::Root;
use rustix::fs::{FileType, Mode, OFlags, RenameFlags};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// A conflict: a file with two versions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pending {
    /// The name that both files had.
    pub path: TreePath,
    /// The version of this device; if neither version is, the one that has the name.
    pub ours: TreePath,
    /// The other version.
    pub theirs: TreePath,
    /// The name that the conflict made: one of the two.
    pub copy: TreePath,
    /// Times of `ours` and `theirs`; `None` for a file that is gone.
    pub times: (Option<Time>, Option<Time>),
}

/// The version to keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// The version of this device.
    Ours,
    /// The version of the other device.
    Theirs,
    /// The version with the later time. Only if the user asks for it, since clocks may be wrong.
    Newer,
}

/// Returns the conflicts in the tree at `root`, according to the memory in `state`. A group counts as one conflict.
pub fn list(root: &Path, state: &Path, groups: &Groups) -> Result<Vec<Pending>, SyncError> {
    let mut memory = Memory::open(state)?;
    memory.load();
    let known = &memory.cache;
    let (root, last, usual) = (open_root(root)?, Tree::default(), Rules::default());
    let seen = scan(&root, &last, known, &usual, &mut |_, _, _| None, None, &mut |_, _| {})?.seen;
    let pending = pending(&seen, &memory, groups);
    if let Some(mut saved) = memory.bases() {
        saved.forget_others(pending.iter().map(|one| &one.copy));
    }
    Ok(pending)
}

fn pending(seen: &BTreeMap<TreePath, Seen>, memory: &Memory, groups: &Groups) -> Vec<Pending> {
    let all: Vec<(&TreePath, &Kind)> = seen.iter().map(|(path, seen)| (path, &seen.kind)).collect();
    let groups = groups.find(&all, &|_| false);
    let members = |path: &TreePath| match groups.get(path) {
        Some(suffixes) => suffixes.iter().map(|suffix| [&path[..], suffix].concat()).collect(),
        None => vec![path.clone()],
    };
    let inside: BTreeSet<TreePath> =
        groups.keys().flat_map(|path| members(path).into_iter().skip(1)).collect();
    let time = |path: &TreePath| members(path).iter().filter_map(|path| Some(seen.get(path)?.mtime)).max();
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
    let one = |path: &TreePath, seen: &Seen| groups.contains_key(path) || !seen.kind.is_dir();
    let ones = seen.iter().filter(|(path, seen)| one(path, seen) && !inside.contains(*path));
    ones.filter_map(|(path, _)| row(path)).collect()
}

/// Resolves a conflict: the kept version gets the name, and the other is removed. One rename replaces the file at the
/// name. The other files of a database (its log, for example) are moved after it.
pub fn settle(root: &Path, conflict: &Pending, keep: Keep) -> Result<(), SyncError> {
    let root = open_root(root)?;
    let ours = match keep {
        Keep::Ours => true,
        Keep::Theirs => false,
        Keep::Newer => conflict.times.0 >= conflict.times.1,
    };
    let (path, copy) = (&conflict.path, &conflict.copy);
    let kept = if ours { &conflict.ours } else { &conflict.theirs };
    let failed = |operation| move |e| error::on(operation, copy, e);
    let kind = |path: &TreePath| {
        let stat = root.stat(path).map_err(failed("look at"))?;
        Ok::<_, SyncError>(stat.map(|stat| FileType::from_raw_mode(stat.st_mode)))
    };
    if kind(kept)?.is_none() {
        return Err(SyncError::Changed(format!(
            "{}: is not there any more; nothing was removed",
            shown(kept)
        )));
    }
    let is_dir = kind(copy)? == Some(FileType::Directory);
    let beside = |path: &TreePath, suffix: &[u8]| [&path[..], suffix].concat();
    let loser = if kept == copy { path } else { copy };
    if is_database(&root, loser) {
        for suffix in BESIDE {
            root.remove_all(&beside(loser, suffix)).map_err(failed("remove"))?;
        }
    }
    match kept == copy {
        true if is_dir && kind(path)?.is_some() => {
            root.rename(copy, path, RenameFlags::EXCHANGE).map_err(failed("exchange"))?;
            root.remove_all(copy).map_err(failed("remove"))?;
        }
        true => root.rename(copy, path, RenameFlags::empty()).map_err(failed("rename"))?,
        false => root.remove_all(copy).map_err(failed("remove"))?,
    }
    for suffix in BESIDE.iter().filter(|_| kept == copy && !is_dir) {
        let (from, to) = (beside(copy, suffix), beside(path, suffix));
        if kind(&from)? == Some(FileType::RegularFile) && kind(&to)?.is_none() {
            root.rename(&from, &to, RenameFlags::NOREPLACE).map_err(failed("rename"))?;
        }
    }
    let dir = split(copy).0;
    let fd = root.open_at(dir, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).map_err(failed("open"))?;
    rustix::fs::fsync(fd).map_err(failed("sync"))
}

/// Returns whether a file is a database. If it is, the files that SQLite keeps next to it are part of it.
pub(super) fn is_database(root: &Root, path: &TreePath) -> bool {
    let mut magic = [0; 16];
    let file = root.open_at(path, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty());
    file.is_ok_and(|file| File::from(file).read_exact(&mut magic).is_ok() && magic == *b"SQLite format 3\0")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listed_and_settled() {
        let (tree, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let device = Memory::open(state.path()).unwrap().device.clone();
        let write = |name: &str, text: &str| std::fs::write(tree.path().join(name), text).unwrap();
        let list = || list(tree.path(), state.path(), &Groups::default()).unwrap();
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

    /// A repository and a database are one conflict each, and settled with all that belongs to them.
    #[test]
    fn groups_are_settled_as_a_whole() {
        for keep in [Keep::Ours, Keep::Theirs, Keep::Newer] {
            let (tree, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
            let write = |name: &str, text: &str| {
                let path = tree.path().join(name);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, text).unwrap();
            };
            let copies = [".git.conflict-other-1-00000000", "d.conflict-other-1-00000000.db"];
            for (git, db, text) in [(".git", "d.db", "ours"), (copies[0], copies[1], "theirs")] {
                write(&format!("{git}/HEAD"), text);
                write(&format!("{git}/refs/{text}"), text);
                write(db, &format!("SQLite format 3\0{text}"));
                write(&format!("{db}-wal"), text);
            }
            write("d.db-shm", "ours");
            let later = std::time::SystemTime::now() + std::time::Duration::from_secs(9);
            for path in [format!("{}/HEAD", copies[0]), copies[1].to_owned()] {
                std::fs::File::options()
                    .write(true)
                    .open(tree.path().join(path))
                    .unwrap()
                    .set_modified(later)
                    .unwrap();
            }
            let all = list(tree.path(), state.path(), &Groups::default()).unwrap();
            let paths: Vec<_> = all.iter().map(|one| shown(&one.path)).collect();
            assert_eq!(paths, [".git", "d.db"]);
            all.iter().for_each(|one| settle(tree.path(), one, keep).unwrap());
            let kept = if keep == Keep::Ours { "ours" } else { "theirs" };
            let beside = [".git/HEAD", "d.db", "d.db-wal"];
            for path in beside.map(str::to_owned).into_iter().chain([format!(".git/refs/{kept}")]) {
                let text = std::fs::read_to_string(tree.path().join(&path)).unwrap();
                assert!(text.ends_with(kept), "{path}: {text}");
            }
            assert_eq!(tree.path().join("d.db-shm").exists(), keep == Keep::Ours);
            let names = std::fs::read_dir(tree.path()).unwrap().count();
            assert_eq!(
                (names, std::fs::read_dir(tree.path().join(".git/refs")).unwrap().count()),
                (if keep == Keep::Ours { 4 } else { 3 }, 1)
            );
        }
    }
}
