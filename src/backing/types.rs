//! The overlay's vocabulary: attributes and callers, without any FUSE type.

use crate::backing::stub::Time;

/// Number by which the overlay's users name an inode: 1 is the root, others come from look-ups.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct NodeId(pub u64);

/// The upper bits in the number of an inode that another inode kept from having its own. Not one bit alone: overlayfs marks its
/// layers by those, and a tree on overlayfs can be synced too.
const RENUMBERED: u64 = 1 << 62 | 0x2b5 << RENUMBERED_SHIFT;
const RENUMBERED_SHIFT: u32 = 52;
/// Own numbers below `1 << OWN_BITS` can be read off such a number. Above them it counts the inodes with this own number.
const OWN_BITS: u32 = 48;
/// The count has the bits between the two.
const RENUMBERED_MAX: u64 = 1 << (RENUMBERED_SHIFT - OWN_BITS);
/// Set in numbers from which no own number can be read.
const FOREIGN: u64 = 1 << 63;

impl NodeId {
    /// Returns the `n`-th other number for an inode with this own number. Its lower 32 bits are the same.
    pub(crate) fn renumbered(self, n: u64) -> NodeId {
        match self.0 < 1 << OWN_BITS && n < RENUMBERED_MAX {
            true => NodeId(RENUMBERED | n << OWN_BITS | self.0),
            false => NodeId((FOREIGN | RENUMBERED | self.0).wrapping_add(n << 32)),
        }
    }

    /// Returns the number that the inode has once the kernel has forgotten it and looks it up again: that of the
    /// backing file.
    pub fn own(self) -> NodeId {
        match self.0 >> RENUMBERED_SHIFT == RENUMBERED >> RENUMBERED_SHIFT {
            true => NodeId(self.0 & ((1 << OWN_BITS) - 1)),
            false => self,
        }
    }
}

/// The root directory.
pub const ROOT: NodeId = NodeId(1);

/// Type of an inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "each name is the thing")]
pub enum Kind {
    File,
    Directory,
    Symlink,
    Fifo,
    Socket,
    CharDevice,
    BlockDevice,
}

/// Attributes of an inode, as a program asking through the mount sees them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attr {
    /// Its number.
    pub node: NodeId,
    /// Its type.
    pub kind: Kind,
    /// Permission bits, with setuid, setgid and sticky (12 bits).
    pub perm: u16,
    /// Length in bytes of the content, also for a stub.
    pub size: u64,
    /// 512-byte blocks; for a stub those that the plain file took.
    pub blocks: u64,
    /// Number of names.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number, for devices.
    pub rdev: u64,
    /// Preferred block size for I/O in bytes.
    pub blksize: u32,
    /// Last access.
    pub atime: Time,
    /// Last change of content.
    pub mtime: Time,
    /// Last change of the inode; conversions do not show in it.
    pub ctime: Time,
    /// Whether these can only change by calls to the overlay: a file that the kernel writes to by itself,
    /// or that may still be mapped, changes without any.
    pub settled: bool,
    /// Whether the file was changed and has not been committed since: a filesystem that writes it out may still change
    /// how many blocks it takes.
    pub changed: bool,
}

/// On whose behalf something is created: a daemon running as root makes files in this user's name.
#[derive(Clone, Copy, Debug)]
pub struct Caller {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// The caller's umask.
    pub umask: u32,
}

/// A time to set.
#[derive(Clone, Copy, Debug)]
pub enum SetTime {
    /// The current time.
    Now,
    /// A given time.
    At(Time),
}

/// Attributes to change; `None` leaves one as it is.
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs, reason = "each is the attribute of that name")]
pub struct SetAttr {
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub size: Option<u64>,
    pub atime: Option<SetTime>,
    pub mtime: Option<SetTime>,
}
