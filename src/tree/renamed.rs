//! Effects of a rename on policies.

use super::Tree;
use super::event::Event;
use super::inode::{Content, Inode};
use super::policy::Policy;
use crate::backing::types::Kind;
use crate::backing::{self, STAGING_DIR};
use crate::contents::error::OverlayError;
use rustix::fs::Stat;
use std::ffi::OsStr;
use std::sync::Arc;

impl Tree {
    /// Returns the policy of a file with that name; `None` if names do not matter.
    pub(crate) fn policy_at(&self, dir: &Inode, name: &OsStr) -> Option<Policy> {
        let by_name = self.policies().rules() > 0;
        by_name.then(|| self.policies().of(&self.path_of(dir).unwrap_or_default().join(name)))
    }

    /// Queues the files below a renamed directory for a check, if their policy may have changed.
    pub(crate) fn look_below_later(&self, stat: &Stat, from: (&Inode, &OsStr), to: (&Inode, &OsStr)) {
        let is_dir = backing::kind(stat.st_mode) == Kind::Directory;
        if !is_dir || self.policies().rules() == 0 || stat.st_dev != self.backing.identity().dev {
            return;
        }
        let path = |(dir, name): (&Inode, &OsStr)| Some(self.path_of(dir)?.join(name));
        let (Some(old), Some(new)) = (path(from), path(to)) else { return };
        if self.policies().differ_below(&old, &new) {
            self.tell_dir_moved(to);
        }
    }

    /// Reports what a sync has put into the tree from its staging directory `from`: it may have been written below the mount, so that
    /// nothing else reports it.
    pub(crate) fn arrived(
        &self,
        stat: &Stat,
        from: &Inode,
        inode: Option<&Arc<Inode>>,
        to: (&Inode, &OsStr),
    ) {
        if self.read_only || self.dir_path(from).is_none_or(|dir| dir.as_os_str() != STAGING_DIR) {
            return;
        }
        if backing::kind(stat.st_mode) == Kind::Directory {
            self.tell_dir_moved(to);
        } else if let Some(inode) = inode.filter(|inode| inode.on_root_fs && inode.kind == Kind::File)
            && let Ok(mut state) = self.lock_loaded(inode)
            && matches!(state.content, Some(Content::Plain(_)))
            && !state.dirty
        {
            self.enqueue_changed(inode, &mut state);
        }
    }

    /// Has the files below a directory examined in the background.
    fn tell_dir_moved(&self, (dir, name): (&Inode, &OsStr)) {
        let found = dir.child(name).map_err(OverlayError::from);
        match found.and_then(|found| self.inodes.enter(&self.backing, found, 0)) {
            Ok(dir) => self.tell(Event::DirMoved(dir)),
            Err(e) => tracing::warn!("{}: files below it are not examined: {e}", name.display()),
        }
    }

    /// Has a commit examine a file whose name has got another policy.
    pub(crate) fn policy_changed(&self, inode: Option<&Arc<Inode>>) {
        let Some(inode) = inode.filter(|inode| inode.on_root_fs && inode.kind == Kind::File) else { return };
        let Ok(mut state) = self.lock_loaded(inode) else { return };
        if state.queued {
            drop(state);
            self.tell(Event::PolicyChanged(inode));
        } else if matches!(state.content, Some(Content::Plain(_))) {
            state.dirty = true;
            self.enqueue_if_due(inode, &mut state);
        }
    }
}
