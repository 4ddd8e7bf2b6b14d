//! A file that was proven to lie in the tree. Only the proof makes one.

use std::os::fd::BorrowedFd;
use std::path::PathBuf;

/// An open file that was proven to lie in the tree.
pub(crate) struct Inside<'a> {
    pub(super) fd: BorrowedFd<'a>,
    /// A path below the root at which it was found; `None` if it only was not found elsewhere.
    pub(super) path: Option<PathBuf>,
}

impl Inside<'_> {
    /// The descriptor that was proven.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd
    }

    /// Empties the file. Its record must already say that a recipe is the content.
    pub(crate) fn empty(&self) -> rustix::io::Result<()> {
        rustix::fs::ftruncate(self.fd, 0)
    }

    /// Returns the path below the root at which the file was found.
    pub(crate) fn into_path(self) -> Option<PathBuf> {
        self.path
    }
}
