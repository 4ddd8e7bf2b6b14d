//! Mounting through mount(2), for root.
//!
//! The type is `fuse.dedupfs`. With plain `fuse`, mount(8) would let `mount.fuse` run the mount's source, a
//! directory, as a program on a remount. (fuser mounts with `fuse`; the helper fusermount3, for ordinary
//! users, with `fuse.dedupfs`.)

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::MountFlags;
use std::ffi::CString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

pub(super) const DEVICE: &str = "/dev/fuse";
const TYPE: &str = "fuse.dedupfs";

/// Mounts at `mountpoint`, for all users; the kernel checks modes. `name` is shown as the source. Returns the
/// device that delivers requests.
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
