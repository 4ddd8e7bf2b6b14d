//! Directories without write permission for their owner, opened while steps change names in them. Root does
//! not need this.

use super::skip::{Skip, refused};
use crate::beneath::Root;
use crate::sync::error::SyncError;
use crate::sync::group::ITSELF;
use crate::sync::halfway::OWNER;
use crate::sync::plan::Op;
use crate::sync::print::ino;
use crate::sync::tree::{TreePath, split};
use rustix::fs::{FileType, Mode, OFlags};
use std::collections::BTreeSet;
use std::os::fd::OwnedFd;

/// Maximum number of directories that are open at a time.
const OPEN_MAX: usize = 128;

/// Directories with a temporary mode. Dropping this restores their modes.
#[derive(Default)]
pub(super) struct Opened {
    /// Each with its inode number, and its former mode.
    dirs: Vec<(OwnedFd, u64, Mode)>,
    /// Directories that can be changed.
    ready: BTreeSet<TreePath>,
}

impl Opened {
    /// Makes the directories that `op` changes writable for their owner if this user owns them.
    pub(super) fn open_directories(&mut self, op: &Op, root: &Root) -> Result<(), SyncError> {
        let user = rustix::process::geteuid();
        if user.is_root() {
            return Ok(());
        }
        for dir in changed_by(op) {
            if self.ready.contains(&dir) {
                continue;
            }
            if self.dirs.len() >= OPEN_MAX {
                self.close();
            }
            match self.open_directory(root, &dir, user.as_raw()) {
                // The step itself reports the problem.
                Ok(()) | Err(Skip::Because(_) | Skip::Changed) => drop(self.ready.insert(dir)),
                Err(Skip::Fatal(e)) => return Err(e),
            }
        }
        if matches!(op, Op::Move { .. }) {
            self.ready.clear();
        }
        Ok(())
    }

    fn open_directory(&mut self, root: &Root, dir: &TreePath, user: u32) -> Result<(), Skip> {
        let Some(stat) = root.stat(dir).map_err(refused(dir, "look at"))? else { return Ok(()) };
        let mode = Mode::from_raw_mode(stat.st_mode & 0o7777);
        let owner = Mode::from_raw_mode(OWNER.into());
        let is_dir = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        if !is_dir || stat.st_uid != user || mode.contains(owner) {
            return Ok(());
        }
        let fd = root.open_at(dir, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty());
        let fd = fd.map_err(refused(dir, "open"))?;
        rustix::fs::fchmod(&fd, mode | owner).map_err(refused(dir, "make writable"))?;
        self.dirs.push((fd, ino(&stat), mode));
        Ok(())
    }

    /// Restores the modes of all directories.
    pub(super) fn close(&mut self) {
        for (dir, _, mode) in self.dirs.drain(..).rev() {
            // A directory that was removed meanwhile needs no mode.
            if let Err(e) = rustix::fs::fchmod(&dir, mode) {
                tracing::warn!("a directory keeps the mode that it was given for the sync: {e}");
            }
        }
        self.ready.clear();
    }

    /// Forgets a directory whose mode was set by a step.
    pub(super) fn forget(&mut self, ino: u64) {
        self.dirs.retain(|(_, other, _)| *other != ino);
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        self.close();
    }
}

/// Returns the directories in which a step changes names, and those that it moves.
fn changed_by(op: &Op) -> Vec<TreePath> {
    let parent = |path: &TreePath| split(path).0.to_vec();
    match op {
        Op::Meta { .. } => Vec::new(),
        Op::MakeDir { path, .. } | Op::Create { path, .. } | Op::Replace { path, .. } => vec![parent(path)],
        // A moved directory gets another `..`.
        Op::Move { from, to } => vec![parent(from), parent(to), from.clone()],
        Op::Remove { path, .. } => vec![parent(path)],
        Op::Group { path, was, .. } => {
            let dirs = was.iter().filter(|(suffix, row)| row.kind.is_dir() || suffix[..] == *ITSELF);
            let dirs = dirs.map(|(suffix, _)| [&path[..], suffix].concat());
            dirs.chain([parent(path)]).collect()
        }
    }
}
