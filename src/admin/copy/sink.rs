//! The target of a copy.

use super::content::Content;
use super::source::Result;
use crate::backing::types::Kind;
use crate::contents::OverlayError;
use rustix::fs::Stat;
use std::ffi::OsString;
use std::path::Path;

/// Gets each entry that could not be copied, and the reason.
pub type Failed<'a> = &'a mut dyn FnMut(&Path, OverlayError);
/// Gets the number of further content bytes; false ends the work.
pub type Step<'a> = &'a mut dyn FnMut(u64) -> bool;

/// An entry of the tree.
pub struct Item<'a> {
    /// Path below the top of the tree; empty for the top itself.
    pub path: &'a Path,
    /// Its kind.
    pub kind: Kind,
    /// Its attributes below; the length of a file is that of its [`Content`].
    pub stat: &'a Stat,
    /// Its xattrs, including ACLs.
    pub xattrs: &'a [(OsString, Vec<u8>)],
    /// Target of a symlink.
    pub target: Option<&'a Path>,
}

/// The target of a copy.
pub trait Sink {
    /// Begins a directory; its entries follow.
    fn enter(&mut self, item: &Item<'_>) -> Result<()>;
    /// Ends a directory.
    fn leave(&mut self, item: &Item<'_>) -> Result<()>;
    /// Adds a regular file.
    fn file(&mut self, item: &Item<'_>, content: &Content<'_>, step: Step<'_>) -> Result<()>;
    /// Adds another name of the file `first`.
    fn link(&mut self, item: &Item<'_>, first: &Path) -> Result<()>;
    /// Adds a symlink, fifo, socket or device.
    fn special(&mut self, item: &Item<'_>) -> Result<()>;
}

/// Amount given to a sink.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Walked {
    /// Regular files, counted once.
    pub files: u64,
    /// Bytes of their contents.
    pub bytes: u64,
    /// Their approximate bytes on a disk.
    pub room_bytes: u64,
}
