//! Open directories: the listings of the backing directory, without hidden entries.
//!
//! The kernel asks for as many entries as fit its buffer; the backing filesystem returns as many as fit the
//! daemon's. The rest is kept for the next call, because going back in a directory is slow (ext4 sorts the
//! names of a whole block again).

use super::Overlay;
use crate::backing;
use crate::backing::types::{Kind, NodeId, ROOT};
use crate::contents::error::Result;
use rustix::fs::{RawDir, SeekFrom};
use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Bytes of entries that the backing filesystem is asked for at a time.
const BUFFER_BYTES: usize = 32 << 10;

/// An open directory.
pub struct DirHandle {
    node: NodeId,
    dev: u64,
    stream: Mutex<Stream>,
}

struct Stream {
    fd: OwnedFd,
    /// The cookie of the first entry in `left`, or else of where the descriptor stands.
    at: u64,
    /// Entries that were read and did not fit.
    left: VecDeque<Left>,
}

struct Left {
    name: OsString,
    node: NodeId,
    kind: Option<Kind>,
    next: u64,
}

/// One entry of a directory.
#[derive(Debug)]
pub struct DirEntry<'a> {
    /// Its name.
    pub name: &'a OsStr,
    /// The number that looking it up would give.
    pub node: NodeId,
    /// Its type; `None` if the backing filesystem does not return it in listings.
    pub kind: Option<Kind>,
    /// Cookie of the next entry.
    pub next: u64,
}

impl DirHandle {
    fn lock(&self) -> MutexGuard<'_, Stream> {
        self.stream.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Overlay {
    /// Opens a directory.
    pub fn opendir(&self, node: NodeId) -> Result<DirHandle> {
        let inode = self.inode(node)?;
        let fd = backing::open_dir(&inode.path_fd()?)?;
        let stream = Stream { fd, at: 0, left: VecDeque::new() };
        Ok(DirHandle { node, dev: inode.identity.dev, stream: Mutex::new(stream) })
    }

    /// Calls `visit` with the entries of a directory after cookie `from`, until it returns false: that entry comes
    /// again in the next call.
    pub fn readdir(
        &self,
        dir: &DirHandle,
        from: u64,
        mut visit: impl FnMut(&DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let mut stream = dir.lock();
        let Stream { fd, at, left } = &mut *stream;
        // A listing from the start reads the directory again: entries in memory may have been removed since.
        if *at != from || from == 0 {
            left.clear();
            rustix::fs::seek(&*fd, SeekFrom::Start(from))?;
            *at = from;
        }
        while let Some(entry) = left.front() {
            let Left { name, node, kind, next } = entry;
            if !visit(&DirEntry { name, node: *node, kind: *kind, next: *next }) {
                return Ok(());
            }
            *at = *next;
            left.pop_front();
        }
        let mut buffer = Vec::with_capacity(BUFFER_BYTES);
        let mut entries = RawDir::new(&*fd, buffer.spare_capacity_mut());
        while let Some(entry) = entries.next() {
            // The descriptor's position is not known after an error, so that the next call seeks.
            let entry = entry.inspect_err(|_| *at = u64::MAX)?;
            let (name, next) = (OsStr::from_bytes(entry.file_name().to_bytes()), entry.next_entry_cookie());
            if dir.node == ROOT && backing::is_hidden(name) {
                if left.is_empty() {
                    *at = next;
                }
                continue;
            }
            let node = match name.as_bytes() {
                b"." => dir.node,
                b".." if dir.node == ROOT => ROOT,
                _ => self.backing.node(backing::Identity { dev: dir.dev, ino: entry.ino() }),
            };
            let kind = match entry.file_type() {
                rustix::fs::FileType::Unknown => None,
                known => Some(backing::kind(known.as_raw_mode())),
            };
            if left.is_empty() && visit(&DirEntry { name, node, kind, next }) {
                *at = next;
                continue;
            }
            left.push_back(Left { name: name.to_owned(), node, kind, next });
            if entries.is_buffer_empty() {
                break;
            }
        }
        Ok(())
    }

    /// Makes a directory's entries durable.
    pub fn fsyncdir(&self, dir: &DirHandle) -> Result<()> {
        Ok(rustix::fs::fsync(&dir.lock().fd)?)
    }
}
