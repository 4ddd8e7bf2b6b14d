//! Mounting by mount(2), as root may.
//!
//! The type is `fuse.dedupfs`. With `fuse` alone, mount(8) would have `mount.fuse` run the mount's source, a directory, as a
//! program when it remounts. (fuser mounts with `fuse`; the helper fusermount3, for ordinary users, with `fuse.dedupfs`.)

use super::session::DEVICE;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::MountFlags;
use std::ffi::CString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

const TYPE: &str = "fuse.dedupfs";

/// Mounts at `mountpoint`, for all users and with the kernel checking modes. `name` is shown as the source. Returns the
/// device by which requests come.
pub(super) fn mount(name: &str, mountpoint: &Path, read_only: bool) -> Result<OwnedFd, Errno> {
    let device = rustix::fs::open(DEVICE, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    let mode = rustix::fs::stat(mountpoint)?.st_mode;
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    let options = format!(
        "fd={},rootmode={mode:o},user_id={},group_id={},default_permissions,allow_other",
        device.as_raw_fd(),
        uid.as_raw(),
        gid.as_raw()
    );
    let options = CString::new(options).map_err(|_| Errno::INVAL)?;
    let flags = if read_only { MountFlags::RDONLY } else { MountFlags::empty() };
    rustix::mount::mount(name, mountpoint, TYPE, flags, options.as_c_str())?;
    Ok(device)
}
