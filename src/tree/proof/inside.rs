//! A file that was proven to lie in the tree. Only the proof makes one.

use std::os::fd::BorrowedFd;

/// An open file that was proven to lie in the tree.
pub(crate) struct Inside<'a>(pub(super) BorrowedFd<'a>);

impl Inside<'_> {
    /// The descriptor that was proven.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.0
    }

    /// Empties the file. Its record must already say that a recipe is the content.
    pub(crate) fn empty(&self) -> rustix::io::Result<()> {
        rustix::fs::ftruncate(self.0, 0)
    }
}
