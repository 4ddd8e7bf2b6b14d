//! SELinux labels on a kernel without SELinux.

use std::ffi::OsStr;

/// Whether `ls -l` should get "not supported", so that it does not ask for each file's label.
///
/// With SELinux the kernel answers by itself. Without it, a file has a label only if another system wrote it.
/// ext4 would answer ENODATA for all others, and `ls` would ask again for each file. After EOPNOTSUPP it does
/// not ask again on the same device.
#[derive(Clone, Copy, Debug)]
pub(super) struct Labels {
    unsupported: bool,
}

impl Labels {
    /// Detects the kernel's support.
    pub(super) fn of_kernel() -> Labels {
        let filesystems = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
        Labels { unsupported: !filesystems.is_empty() && !filesystems.contains("selinuxfs") }
    }

    /// Whether `name` is a label, for a file without that xattr.
    pub(super) fn lacks(self, name: &OsStr) -> bool {
        self.unsupported && name == "security.selinux"
    }
}
