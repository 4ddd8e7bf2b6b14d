//! The entries that a scan found.

use super::attributes::Values;
use super::tree::{Kind, Time};

/// Device and inode number.
pub type Inode = (u64, u64);

/// An entry of the directory now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Its inode.
    pub inode: Inode,
    /// Type and content.
    pub kind: Kind,
    /// Permission bits.
    pub mode: u16,
    /// Time of the content; (0, 0) for directories.
    pub mtime: Time,
    /// Xattrs that are synced.
    pub xattrs: Values,
}
