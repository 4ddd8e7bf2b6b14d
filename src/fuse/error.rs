//! Errors of mounting and unmounting.

use std::io;
use std::path::{Path, PathBuf};

/// Why a filesystem could not be mounted or unmounted.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The kernel's FUSE device is missing.
    #[error(
        "/dev/fuse is missing: the kernel's fuse module is not loaded (`modprobe fuse`), or this is a container without it"
    )]
    NoDevice,
    /// udev lets every user open it; on this machine something else set its mode.
    #[error(
        "/dev/fuse may not be opened by this user: expected mode 0666, as udev sets it (`chmod 0666 /dev/fuse`)"
    )]
    DeviceClosed,
    /// An ordinary user needs the setuid helper.
    #[error("fusermount3 was not found: install the package `fuse3`")]
    NoHelper,
    /// Files are open in it.
    #[error("{0} is in use: some program has files open or its working directory there")]
    Busy(PathBuf),
    /// `allow_other` needs the administrator's consent.
    #[error("allow_other is not allowed to ordinary users here: put `user_allow_other` into /etc/fuse.conf")]
    AllowOther,
    /// Anything else.
    #[error("mount {path}: {source}")]
    Io {
        /// The mount point.
        path: PathBuf,
        /// The message of the system or the helper.
        source: io::Error,
    },
}

impl MountError {
    /// Classifies an error of the mount on `path`.
    pub(super) fn of(path: &Path, source: io::Error) -> MountError {
        if source.to_string().contains("user_allow_other") {
            return MountError::AllowOther;
        }
        MountError::Io { path: path.to_owned(), source }
    }
}
