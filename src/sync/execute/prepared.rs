//! Staged contents that have their final metadata already. So one sync of the filesystem makes many of them durable, and a
//! step needs one rename.

use super::skip::Skip;
use super::{Executor, uses};
use crate::sync::error::SyncError;
use crate::sync::plan::Op;
use crate::sync::staging::{Prepared, whole};
use crate::sync::tree::{Entry, Kind};
use rustix::fs::FileType;

impl Executor<'_> {
    /// Gives staged contents their metadata, before anything in the tree is changed. Syncs each of them if `sync` is set;
    /// otherwise the caller syncs them together.
    pub fn prepare_all(&mut self, ops: &[Op], sync: bool) -> Result<(), SyncError> {
        let uses = uses(ops);
        for op in ops {
            let (Op::Create { path, entry, link: None } | Op::Replace { path, entry, link: None, .. }) = op
            else {
                continue;
            };
            // A content for several files is copied.
            let Some(content) = entry.kind.content().filter(|content| uses[content] == 1) else { continue };
            let is_prepared = |prepared: &Prepared| prepared.synced || !sync;
            if self.absent.contains_key(&content)
                || self.staging.prepared.get(&content).is_some_and(is_prepared)
            {
                continue;
            }
            let staged = whole(content);
            let direct = self.direct.clone();
            let place = direct.as_deref().unwrap_or(self.root);
            match self.put_metadata_at(place, &staged, entry, FileType::RegularFile, sync) {
                Ok(ino) => {
                    let mut waiting = self.waiting.get(&ino).cloned().unwrap_or_default();
                    waiting.path.clone_from(path);
                    self.waiting.insert(ino, waiting.clone());
                    let unfit = self.unfit.get(&ino).cloned().flatten();
                    let Entry { mode, mtime, xattrs, .. } = entry.clone();
                    let prepared = Prepared { synced: sync, ino, mode, mtime, xattrs, unfit, waiting };
                    self.staging.prepared.insert(content, prepared);
                }
                // The step reports it.
                Err(Skip::Changed | Skip::Because(_)) => {
                    tracing::debug!("{}: is prepared by its step", crate::sync::tree::shown(path));
                }
                Err(Skip::Fatal(e)) => return Err(e),
            }
        }
        Ok(())
    }

    /// Returns whether the staged content for `entry`, which no other step needs, has its metadata already.
    pub(super) fn is_prepared(&self, entry: &Entry) -> bool {
        let prepared = entry.kind.content().and_then(|content| {
            self.staging.prepared.get(&content).filter(|_| self.uses.get(&content) == Some(&1))
        });
        prepared.is_some_and(|prepared| {
            (prepared.mode, prepared.mtime, &prepared.xattrs) == (entry.mode, entry.mtime, &entry.xattrs)
        })
    }

    /// Notes that the staged content for `entry` has been moved. Returns whether it has its metadata.
    pub(super) fn take_prepared(&mut self, entry: &Entry) -> bool {
        let Kind::File { content, .. } = &entry.kind else { return false };
        let Some(prepared) = self.staging.prepared.remove(content) else { return false };
        let same = (prepared.mode, prepared.mtime) == (entry.mode, entry.mtime);
        if same && prepared.xattrs == entry.xattrs {
            self.unfit.insert(prepared.ino, prepared.unfit);
            self.waiting.insert(prepared.ino, prepared.waiting);
            return true;
        }
        false
    }
}
