//! Attributes of inodes, as programs see them.

use super::Tree;
use super::inode::{Content, Inode, Phase, State as InodeState};
use crate::backing;
use crate::backing::types::{Attr, NodeId};
use crate::contents::error::Result;
use rustix::fs::{OFlags, Stat};

impl Tree {
    /// Attributes of an inode.
    pub fn getattr(&self, node: NodeId) -> Result<Attr> {
        self.attr_of(&*self.inode(node)?)
    }

    pub(crate) fn attr_of(&self, inode: &Inode) -> Result<Attr> {
        if inode.is_root_fs_file() {
            return self.attr_of_file(inode);
        }
        Ok(backing::attr(inode.node, &rustix::fs::fstat(&inode.path_fd()?)?))
    }

    pub(super) fn attr_of_file(&self, inode: &Inode) -> Result<Attr> {
        Ok(self.attr_and_stat_of_file(inode)?.0)
    }

    /// Returns the attributes of a file as programs see them, and those that it has in the backing directory.
    pub(crate) fn attr_and_stat_of_file(&self, inode: &Inode) -> Result<(Attr, Stat)> {
        let fd = inode.path_fd()?;
        let mut state = self.lock_loaded(inode)?;
        // Under the lock, because a conversion changes the record and the file.
        let mut stat = rustix::fs::fstat(&fd)?;
        if matches!(state.content, Some(Content::Stub(_)))
            && stat.st_size != 0
            && !state.is_hydrating()
            && state.opens == 0
        {
            // This process does not write to a stub's file: another one did, in the backing directory.
            state.content = None;
            drop(state);
            state = self.lock_loaded(inode)?;
            (state.dirty, state.pages_stale) = (true, true);
            stat = rustix::fs::fstat(&fd)?;
        }
        let mut attr = backing::attr(inode.node, &stat);
        attr.changed = state.dirty || state.queued && state.hot.is_none();
        attr.settled = state.writers == 0 && !(attr.changed && may_be_mapped(inode, &mut state));
        match state.content {
            Some(Content::Stub(stub)) => {
                attr.size = stub.size;
                attr.blocks = stub.blocks;
                if state.is_hydrating() {
                    attr.mtime = stub.mtime;
                    attr.ctime = stub.ctime.unwrap_or(attr.ctime);
                } else {
                    attr.ctime = stub.shown_ctime(attr.mtime, attr.ctime);
                }
            }
            Some(Content::Hybrid(stub)) => {
                if let Some(hybrid) = &state.hybrid {
                    attr.size = hybrid.size();
                    attr.blocks = hybrid.blocks(stub.blocks);
                }
                if state.is_hydrating() {
                    attr.mtime = stub.mtime;
                }
            }
            Some(Content::Plain(Some(record))) => {
                attr.ctime = record.shown_ctime(attr.mtime, attr.ctime);
                if state.hot_record().is_some_and(|record| record.is_of(attr.mtime, attr.size)) {
                    attr.blocks = record.blocks;
                }
            }
            Some(Content::Unknown(reason)) => return Err(self.bad_stub(inode, reason)),
            Some(Content::Plain(None)) | None => {}
        }
        Ok((attr, stat))
    }
}

/// Whether a program may have a file mapped, and so write to it, without having it open.
pub(crate) fn may_be_mapped(inode: &Inode, state: &mut InodeState) -> bool {
    let idle = state.opens == 0 && matches!(state.phase, Phase::Idle);
    if state.passed && idle && matches!(state.content, Some(Content::Plain(_))) {
        state.passed = !is_unused(inode).unwrap_or(false);
    }
    state.passed
}

/// Returns whether no process has a file open or mapped: only then the kernel grants a lease.
fn is_unused(inode: &Inode) -> rustix::io::Result<bool> {
    let file = inode.open_io(OFlags::RDWR)?;
    let granted = backing::lease(&file).is_ok();
    backing::unlease(&file);
    Ok(granted)
}
