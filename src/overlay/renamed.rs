//! Effects of a rename on policies. A renamed file itself is visited at once; files below a renamed directory
//! are visited in the background, some time after the rename was answered.
//!
//! Bounded: only a limited number of directories is remembered; beyond that, all files are visited. Files are
//! queued as in a scan, a few thousand at a time. After a kill, catch-up visits the rest.

use super::Overlay;
use super::inode::{Content, Inode};
use super::policy::Policy;
use super::scan::{NAMED_DIRS_MAX, RESTING_FACTOR};
use crate::backing;
use crate::backing::types::{Kind, NodeId};
use crate::contents::OverlayError;
use crate::contents::throttle::Priority;
use rustix::fs::Stat;
use std::collections::{BTreeMap, HashSet};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

const DIRS_MAX: usize = 1024;
/// Files in the queue that one pass over it examines.
const QUEUED_MAX: usize = 4096;

/// Directories that were renamed since the last pass.
#[derive(Default)]
pub(super) struct Renamed(Mutex<Dirs>);

#[derive(Default)]
struct Dirs {
    few: BTreeMap<NodeId, Arc<Inode>>,
    all: bool,
}

impl Renamed {
    /// Remembers a directory, to examine its files later.
    pub(super) fn add(&self, dir: Arc<Inode>) {
        let mut dirs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !dirs.all {
            dirs.few.insert(dir.node, dir);
            dirs.all = dirs.few.len() > DIRS_MAX;
        }
    }

    fn take(&self) -> Dirs {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Overlay {
    /// Returns the policy of a file with that name; `None` if names do not matter.
    pub(super) fn policy_at(&self, dir: &Inode, name: &OsStr) -> Option<Policy> {
        let by_name = self.policies().rules() > 0;
        by_name.then(|| self.policies().of(&self.path_of(dir).unwrap_or_default().join(name)))
    }

    /// Queues the files below a renamed directory for a check, if their policy may have changed.
    pub(super) fn look_below_later(&self, stat: &Stat, from: (&Inode, &OsStr), to: (&Inode, &OsStr)) {
        let is_dir = backing::kind(stat.st_mode) == Kind::Directory;
        if !is_dir || self.policies().rules() == 0 || stat.st_dev != self.backing.identity().dev {
            return;
        }
        let path = |(dir, name): (&Inode, &OsStr)| Some(self.path_of(dir)?.join(name));
        let (Some(old), Some(new)) = (path(from), path(to)) else { return };
        if self.policies().differ_below(&old, &new) {
            let found = to.0.child(to.1).map_err(OverlayError::from);
            let known = found.and_then(|found| self.inodes.enter(&self.backing, found, 0));
            match known {
                Ok(dir) => self.renamed.add(dir),
                Err(e) => tracing::warn!("{}: files below it keep their policy: {e}", new.display()),
            }
        }
    }

    /// Has a commit examine a file whose name has got another policy.
    pub(super) fn policy_changed(&self, inode: Option<&Arc<Inode>>) {
        let Some(inode) = inode.filter(|inode| inode.on_root_fs && inode.kind == Kind::File) else { return };
        let Ok(mut state) = self.lock_loaded(inode) else { return };
        if state.queued {
            self.queue.look_again(&HashSet::from([inode.node]));
        } else if matches!(state.content, Some(Content::Plain(_))) {
            state.dirty = true;
            self.enqueue_if_due(inode, &mut state);
        }
    }

    /// Examines the files below renamed directories.
    pub(super) fn look_below_renamed(&self) {
        let Dirs { few, all } = self.renamed.take();
        let mut paths = Vec::new();
        for dir in few.into_values() {
            // A removed directory has no path.
            paths.extend(self.path_of(&dir));
            self.inodes.release(dir);
        }
        if all {
            paths = vec![PathBuf::new()];
        }
        for path in paths {
            if let Err(e) = self.look_below(&path) {
                tracing::warn!("{}: files below keep the policy of their old name: {e}", path.display());
            }
        }
    }

    fn look_below(&self, path: &Path) -> crate::contents::Result<()> {
        let (mut priority, mut queued) = (Priority::default(), HashSet::new());
        let mut names = self.catalog.finder(&self.backing);
        self.walk(path, &mut |path, found| {
            priority.set_low(self.throttle.is_background());
            let Ok(inode) = found else { return };
            if inode.lock().queued {
                queued.insert(inode.node);
            } else {
                names.shed(NAMED_DIRS_MAX);
                let mut finder = self.catalog.finder(&self.backing);
                if let Err(e) = self.scan_file(&inode, &mut finder, &mut names) {
                    tracing::warn!("{}: keeps the policy of its old name: {e}", path.display());
                }
            }
            self.inodes.release(inode);
            if queued.len() == QUEUED_MAX {
                self.queue.look_again(&std::mem::take(&mut queued));
            }
            self.wait_for_room(RESTING_FACTOR);
        })?;
        self.queue.look_again(&queued);
        Ok(())
    }
}
