//! Labels of SELinux on a kernel that has none.

use std::ffi::OsStr;

/// Whether `ls -l` is to be told that labels are not supported here, so that it does not ask for each file's.
///
/// With SELinux the kernel answers by itself and asks no filesystem. Without it a file has a label only if it was written
/// elsewhere; for all others ENODATA would be the answer of ext4, and `ls` would ask again for the next file. After EOPNOTSUPP it
/// asks no more on the same device.
#[derive(Clone, Copy, Debug)]
pub(super) struct Labels {
    unsupported: bool,
}

impl Labels {
    /// Looks at what this kernel has.
    pub(super) fn of_kernel() -> Labels {
        let filesystems = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
        Labels { unsupported: !filesystems.is_empty() && !filesystems.contains("selinuxfs") }
    }

    /// Whether a file that does not have the xattr `name` lacks it because it is a label.
    pub(super) fn lacks(self, name: &OsStr) -> bool {
        self.unsupported && name == "security.selinux"
    }
}
