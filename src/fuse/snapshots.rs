//! Requests for files and directories of snapshots, which have their own inode numbers and do not change.

use super::convert::{GENERATION, TTL_CHANGED, attr, kind, node};
use super::errno::errno;
use super::request::{cached_flags, open_flags};
use super::table::Table;
use crate::backing::types::{Kind, NodeId};
use crate::history::{Browse, SnapshotFile};
use fuser::{
    Errno, FileHandle, FopenFlags, INodeNo, OpenFlags, ReplyData, ReplyDirectory, ReplyDirectoryPlus,
    ReplyLseek, ReplyOpen,
};
use std::ffi::OsString;
use std::sync::Arc;

/// Inode number in a listing for an entry that was not looked up.
const NUMBER_UNKNOWN: INodeNo = INodeNo(0xffff_ffff);

/// The snapshots of an overlay, with the files and directories of them that programs have open.
pub(super) struct Snapshots {
    pub(super) browse: Browse,
    files: Table<SnapshotFile>,
    dirs: Table<Vec<(OsString, Kind)>>,
}

impl Snapshots {
    pub(super) fn new(browse: Browse) -> Snapshots {
        Snapshots { browse, files: Table::new(), dirs: Table::new() }
    }

    pub(super) fn open(&self, file: NodeId, flags: OpenFlags, reply: ReplyOpen) {
        if open_flags(flags.0).write {
            return reply.error(Errno::EROFS);
        }
        match self.browse.open(file) {
            Ok(file) => reply.opened(self.files.add(Arc::new(file)), cached_flags(true)),
            Err(e) => reply.error(errno(&e)),
        }
    }

    pub(super) fn read(&self, fh: FileHandle, offset: u64, size: u32, reply: ReplyData) {
        match self.files.get(fh).and_then(|file| self.browse.read(&file, offset, size as usize)) {
            Ok(data) => reply.data(&data),
            Err(e) => reply.error(errno(&e)),
        }
    }

    /// Answers SEEK_DATA and SEEK_HOLE: a file is one data range.
    pub(super) fn lseek(&self, file: NodeId, offset: i64, whence: i32, reply: ReplyLseek) {
        let size = self.browse.getattr(file).map_or(0, |attr| attr.size);
        match u64::try_from(offset) {
            Ok(from) if from < size => {
                let found = if whence == libc::SEEK_HOLE { size } else { from };
                reply.offset(found as i64)
            }
            _ => reply.error(Errno::ENXIO),
        }
    }

    pub(super) fn release(&self, fh: FileHandle) {
        self.files.remove(fh);
    }

    pub(super) fn opendir(&self, dir: NodeId, reply: ReplyOpen) {
        match self.browse.list(dir) {
            Ok(names) => reply.opened(self.dirs.add(Arc::new(names)), FopenFlags::empty()),
            Err(e) => reply.error(errno(&e)),
        }
    }

    pub(super) fn readdir(&self, fh: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let names = match self.dirs.get(fh) {
            Ok(names) => names,
            Err(e) => return reply.error(errno(&e)),
        };
        for (i, (name, of)) in names.iter().enumerate().skip(offset as usize) {
            if reply.add(NUMBER_UNKNOWN, i as u64 + 1, kind(*of), name) {
                break;
            }
        }
        reply.ok();
    }

    pub(super) fn readdirplus(
        &self,
        dir: INodeNo,
        fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let names = match self.dirs.get(fh) {
            Ok(names) => names,
            Err(e) => return reply.error(errno(&e)),
        };
        for (i, (name, _)) in names.iter().enumerate().skip(offset as usize) {
            let Ok(found) = self.browse.lookup(node(dir), name) else { continue };
            let number = INodeNo(found.node.0);
            if reply.add(number, i as u64 + 1, name, &TTL_CHANGED, &attr(&found), GENERATION) {
                self.browse.forget(found.node, 1);
                break;
            }
        }
        reply.ok();
    }

    pub(super) fn releasedir(&self, fh: FileHandle) {
        self.dirs.remove(fh);
    }
}
