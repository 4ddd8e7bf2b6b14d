//! Open files, as their users hold them.

use super::inode::{Inode, Mode, PassToken};
use super::write_errors::{Seen, WriteErrors};
use crate::backing::types::NodeId;
use std::fs::File;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};

/// How a file is opened.
#[derive(Clone, Copy, Debug, Default)]
pub struct OpenFlags {
    /// To be written to, or truncated.
    pub write: bool,
    /// Emptied first.
    pub truncate: bool,
    /// Only to be created.
    pub exclusive: bool,
    /// To be executed as a program.
    pub execute: bool,
    /// Fails with ETXTBSY while it runs as a program.
    pub unless_running: bool,
    /// Reading must leave no trace.
    pub no_atime: bool,
}

impl OpenFlags {
    /// To be read.
    pub const READ: OpenFlags = OpenFlags {
        write: false,
        truncate: false,
        exclusive: false,
        execute: false,
        unless_running: false,
        no_atime: false,
    };
    /// To be read and written to.
    pub const WRITE: OpenFlags = OpenFlags { write: true, ..OpenFlags::READ };
}

/// An open file.
pub struct Handle {
    pub(crate) inode: Arc<Inode>,
    pub(crate) write: bool,
    pub(crate) execute: bool,
    /// Whether the file's atime shows that this open has read it.
    pub(crate) accessed: AtomicBool,
    pub(crate) write_errors: Arc<WriteErrors>,
    pub(crate) seen_errors: Seen,
    pub(crate) next_offset: AtomicU64,
    pub(crate) ahead: AtomicUsize,
}

/// How the I/O of an open file is served.
pub enum Io {
    /// Through this process and the kernel's page cache.
    Cached {
        /// Whether the kernel's pages are still valid.
        keep_pages: bool,
    },
    /// By the kernel itself, with the caller's registration.
    Pass(PassToken),
}

/// The result of opening a file.
pub struct Opened {
    /// To be given to [`Tree::read`](super::Tree::read) and the like, and at last to [`Tree::release`](super::Tree::release).
    pub handle: Arc<Handle>,
    /// How its I/O is served.
    pub io: Io,
}

impl Handle {
    pub(crate) fn inode(&self) -> &Arc<Inode> {
        &self.inode
    }

    /// The open file's inode number.
    pub fn node(&self) -> NodeId {
        self.inode.node
    }

    /// Returns whether the kernel does the file's I/O by itself.
    pub fn is_passed(&self) -> bool {
        matches!(self.inode.lock().mode, Mode::Pass(_))
    }
}

/// Makes the kernel drop pages of a file; returns whether it did.
pub type DropPages = dyn Fn(NodeId, Range<u64>) -> bool + Send + Sync;

/// All pages of a file: only while no program has it open.
pub(crate) const ALL: Range<u64> = 0..u64::MAX;

/// Registers a backing file (open for reading and writing) for passthrough; `None` if that cannot be.
pub type Register<'a> = dyn Fn(&File) -> Option<PassToken> + 'a;
