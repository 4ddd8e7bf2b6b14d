//! Files that were taken into a round, and their bytes.

use super::Converter;
use super::room::Claim;
use crate::backing;
use crate::backing::stub::Stub;
use crate::contents::Indexing;
use crate::contents::ingest::Input;
use crate::tree::growing::Growing;
use crate::tree::inode::{Inode, Phase, State as InodeState};
use crate::tree::sparse::FileBytes;
use crate::view::View;
use rustix::fs::Stat;
use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

/// Blocks that a stub costs if other xattrs leave no room for its record in the inode.
const XATTR_BLOCKS: u64 = 8;

/// A file taken into a round.
pub(super) struct Taken {
    pub(super) inode: Arc<Inode>,
    pub(super) file: Arc<File>,
    /// As it was when the lease was taken.
    pub(super) before: Stat,
    /// Path at which it was found in the tree.
    pub(super) path: Option<PathBuf>,
    /// Whether it had no xattrs that users see. A later one moves its ctime.
    pub(super) no_xattrs: bool,
    pub(super) convert: bool,
    pub(super) retry: bool,
    /// The space that its content may take in the store.
    pub(super) _claim: Option<Claim>,
    /// Whether it stays plain for lack of space, and is only indexed meanwhile.
    pub(super) waits: bool,
    /// Until when it stays plain because it is often rewritten as a whole; it is only indexed meanwhile.
    pub(super) plain_until: Option<Instant>,
    pub(super) prefix: Growing,
    /// How much of it the similarity index gets.
    pub(super) indexing: Indexing,
    /// The view to be indexed in addition to the bytes.
    pub(super) view: Option<View>,
}

/// The bytes of a file that was taken into a round, at the rate that is set.
pub(super) struct TakenBytes<'a> {
    pub(super) converter: &'a Converter,
    pub(super) taken: &'a Taken,
    pub(super) bytes: FileBytes<'a>,
}

impl Input for TakenBytes<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let (throttle, ticks) = (&self.converter.throttle, &self.converter.tree.ticks);
        // The lease was taken a moment ago, and the end of a file costs no call.
        let begun = self.bytes.start() > self.taken.prefix.bytes && !self.bytes.at_end();
        // A program wants the file, or the daemon stops: the rest would be read for nothing.
        if ticks.stopped() || (begun && self.taken.convert && !backing::holds_lease(&self.taken.file)) {
            return Ok(0);
        }
        let portion = throttle.portion(buffer.len());
        let len = self.bytes.read(&mut buffer[..portion])?;
        throttle.spend(len as u64);
        Ok(len)
    }

    fn hole(&mut self) -> std::io::Result<u64> {
        self.bytes.hole()
    }

    fn skip(&mut self, len: u64) {
        self.bytes.skip(len);
    }

    fn start(&self) -> u64 {
        self.bytes.start()
    }
}

/// Returns whether the file is still being converted by this round.
pub(super) fn is_ours(state: &InodeState, taken: &Taken) -> bool {
    matches!(&state.phase, Phase::Converting(file) if Arc::ptr_eq(file, &taken.file))
}

/// Returns whether a stub would take less space than the file, and can stand for it. Clears `no_xattrs` if the file has some.
pub(super) fn saves_space(inode: &Inode, stat: &Stat, no_xattrs: &mut bool) -> bool {
    if !Stub::fits(stat.st_size as u64, backing::mtime(stat), backing::ctime(stat)) {
        return false;
    }
    let Ok(names) = inode.path_fd().and_then(backing::list_xattrs) else {
        return false;
    };
    let mut others = names
        .split(|&byte| byte == 0)
        .filter(|n| !n.is_empty() && *n != crate::backing::stub::XATTR.as_bytes());
    let cost = match others.next() {
        // Emptying a file takes its capabilities away.
        Some(first) if first == b"security.capability" || others.any(|n| n == b"security.capability") => {
            return false;
        }
        Some(_) => {
            *no_xattrs = false;
            XATTR_BLOCKS
        }
        None => 0,
    };
    stat.st_blocks as u64 > cost
}
