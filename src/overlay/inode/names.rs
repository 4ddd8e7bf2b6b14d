//! Look-ups of names in a directory that is in use.

use super::Inode;
use crate::backing::resolved::Resolved;
use std::ffi::OsStr;
use std::fs::File;

impl Inode {
    /// Returns the entry `name` of this directory as a program sees it: the root of a mount if one is there.
    pub fn child(&self, name: &OsStr) -> rustix::io::Result<Resolved> {
        Resolved::as_seen(&*self.path_fd()?, name)
    }

    /// The file that was just made as `name` in this directory and is open as `file`, whatever has happened to its name since.
    pub fn created(&self, name: &OsStr, file: &File) -> rustix::io::Result<Resolved> {
        Resolved::created(&*self.path_fd()?, name, file)
    }
}
