//! Notes of changes for the next snapshot and the next sync, and the pause in which they are read.

use super::Tree;
use super::attributes::may_be_mapped;
use super::changes::{Change, Closed, Moment, Still};
use super::inode::Inode;
use crate::backing::types::Kind;
use crate::backing::{self, Identity};
use crate::contents::error::Result;
use crate::id::FileId;
use std::collections::HashMap;
use std::path::PathBuf;

/// Changes with their present paths; `None` if not all are known.
pub type ChangedPaths = Option<Vec<(PathBuf, Change)>>;

impl Tree {
    /// Notes changes from now on, and forgets those before.
    pub fn begin_changes(&self) {
        self.changes.begin();
    }

    /// Notes no changes any more.
    pub fn end_changes(&self) {
        self.changes.end();
    }

    /// Holds up new changes until those under way have ended, then keeps the tree unchanged, except for the contents of open
    /// files. A change may take long, for instance if it waits for a large content to be written back. Then the others continue
    /// for as long as they were held up, and are held up twice as long the next time. So this ends however much is changed.
    /// Returns `None` if `keep_going` returned false.
    pub fn stand_still(&self, keep_going: &mut dyn FnMut() -> bool) -> Option<Still<'_>> {
        self.changes.close(Closed::Names, keep_going)
    }

    /// As [`Tree::stand_still`], but also holds up writes to open files and fsync, as far as this process sees them: writes
    /// by the kernel (passthrough, shared mappings) continue until their program syncs. Each waiting change occupies a thread,
    /// so soon the mount does not answer: the caller must read the backing directory, and be quick.
    pub fn hold_up(&self, keep_going: &mut dyn FnMut() -> bool) -> Option<Still<'_>> {
        self.changes.close(Closed::All, keep_going)
    }

    /// Returns the changes since the last call or [`Tree::begin_changes`], each with its present path, and those under
    /// way; then starts a new list. `None` if not all are known or can be found: then the caller has to examine the whole
    /// tree. Leaves out removed files: their directories changed. To be called while everything stands still.
    pub fn take_changes(&self) -> Result<Option<Vec<(PathBuf, Change)>>> {
        let Some(noted) = self.changes.take() else { return Ok(None) };
        let under_way = self
            .inodes
            .collect(|inode, state| inode.on_root_fs && (state.dirty || state.queued || state.writers > 0));
        let mut noted = noted;
        for inode in under_way {
            noted.entry(inode.file_id()).or_insert(Change::Touched);
            self.inodes.release(inode);
        }
        self.present_paths(noted)
    }

    /// Returns the moment now, and what changed after `moment`, each with its present path; `None` instead of these if not all
    /// changes are known or can be found, or if there are more than `most`. Files that a program can still write to count as
    /// changed, now and once more after their last close. Leaves out removed files: their directories changed.
    ///
    /// The moment is one without a change under way, but the paths are looked up later: a file that is renamed meanwhile is
    /// among the changes after this moment. Leaves out files that only the thread `except` changed. Returns `None` if `keep_going` returned false.
    pub fn changes_since(
        &self,
        moment: Option<Moment>,
        except: Option<u32>,
        most: usize,
        keep_going: &mut dyn FnMut() -> bool,
    ) -> Result<Option<(Moment, ChangedPaths)>> {
        let Some(still) = self.stand_still(keep_going) else { return Ok(None) };
        let (now, changed) = self.changes.since(moment, except, || self.written_to())?;
        drop(still);
        let changed = changed.filter(|changed| changed.len() <= most);
        let changed = changed.map(|changed| self.present_paths(changed)).transpose()?.flatten();
        Ok(Some((now, changed)))
    }

    /// Returns files that a program has open for writing, or may have mapped.
    fn written_to(&self) -> Vec<FileId> {
        let found = self.inodes.collect(|inode, state| {
            inode.on_root_fs && (state.writers > 0 || state.passed && state.passed_to_writer)
        });
        let mut written = Vec::with_capacity(found.len());
        for inode in found {
            written.push(inode.file_id());
            // Those that are not mapped any more count once more at the next moment, which is the last time.
            may_be_mapped(&inode, &mut inode.lock());
            self.inodes.release(inode);
        }
        written
    }

    fn present_paths(&self, noted: HashMap<FileId, Change>) -> Result<ChangedPaths> {
        let mut finder = self.catalog.finder(&self.backing);
        let (mut found, mut names) = (Vec::with_capacity(noted.len()), Vec::new());
        for (inode, change) in noted {
            // Each of several names is an entry that changed.
            names.clear();
            finder.paths_of(inode, &mut names)?;
            match self.present_name(inode) {
                Some(path) => names.extend(path),
                None if names.is_empty() => return Ok(None),
                None => {}
            }
            names.sort();
            names.dedup();
            let first = names.first().and_then(|name| self.backing.stat(name).ok());
            let is_dir = |stat: &rustix::fs::Stat| backing::kind(stat.st_mode) == Kind::Directory;
            if first.is_some_and(|stat| !is_dir(&stat) && stat.st_nlink > names.len() as u64) {
                return Ok(None);
            }
            found.extend(names.drain(..).map(|path| (path, change)));
        }
        Ok(Some(found))
    }

    /// Finds an inode in use: `Some(None)` if it is gone, `None` if it is not in use, or cannot be found.
    fn present_name(&self, file: FileId) -> Option<Option<PathBuf>> {
        let identity = Identity { dev: self.backing.identity().dev, ino: file.0 };
        let mut known = None;
        for inode in self.inodes.with_identity(&self.backing, identity) {
            let gone = inode.path_fd().and_then(rustix::fs::fstat).map_or(true, |stat| stat.st_nlink == 0);
            match self.path_of(&inode) {
                Some(path) => known = Some(Some(path)),
                None if gone => drop(known.get_or_insert(None)),
                None => {}
            }
            self.inodes.release(inode);
        }
        known
    }

    pub(crate) fn touched(&self, inode: &Inode) {
        self.ticks.stir();
        if inode.on_root_fs && !inode.is_nameless() {
            self.changes.note(inode.file_id(), Change::Touched);
        }
    }

    /// A file has got a recipe: a snapshot has to know it, but programs see no change.
    pub(crate) fn converted(&self, inode: &Inode) {
        self.ticks.stir();
        if inode.on_root_fs && !inode.is_nameless() {
            self.changes.note_converted(inode.file_id());
        }
    }

    pub(crate) fn moved(&self, inode: FileId) {
        self.ticks.stir();
        self.changes.note(inode, Change::Moved);
    }
}
