//! Truncating files, and making them longer.

use super::Tree;
use super::inode::{Content, Inode, OpenFile, State as InodeState};
use crate::contents::error::Result;
use rustix::fs::OFlags;
use std::fs::File;
use std::sync::{Arc, MutexGuard};

impl Tree {
    pub(super) fn resize<'a>(
        &self,
        inode: &'a Inode,
        state: MutexGuard<'a, InodeState>,
        size: u64,
    ) -> Result<MutexGuard<'a, InodeState>> {
        if size == 0 {
            return self.empty(inode, state);
        }
        let state = self.make_writable(inode, state)?;
        let (mut state, hybrid) = self.hybrid_to_change(inode, state)?;
        match hybrid {
            Some(hybrid) => hybrid.resize(size)?,
            None => rustix::fs::ftruncate(&*self.file_to_resize(inode, &state)?, size)?,
        }
        state.dirty = true;
        Ok(state)
    }

    /// Returns the file's own descriptor if it is open for writing: its mode may have been changed since.
    pub(crate) fn file_to_resize(&self, inode: &Inode, state: &InodeState) -> Result<Arc<File>> {
        match &state.io {
            Some(OpenFile { file, writable: true, .. }) => Ok(file.clone()),
            _ => Ok(Arc::new(inode.open_io(OFlags::WRONLY)?)),
        }
    }

    /// Makes a file empty: a stub without writing its content back first.
    pub(crate) fn empty<'a>(
        &self,
        inode: &'a Inode,
        state: MutexGuard<'a, InodeState>,
    ) -> Result<MutexGuard<'a, InodeState>> {
        let mut state = inode.wait_written_back(state);
        self.before_change(inode, &mut state)?;
        match state.content {
            Some(Content::Stub(_) | Content::Hybrid(_)) => self.discard_content(inode, &mut state)?,
            _ => {
                rustix::fs::ftruncate(&*self.file_to_resize(inode, &state)?, 0)?;
            }
        }
        state.growing = None;
        state.dirty = true;
        Ok(state)
    }
}
