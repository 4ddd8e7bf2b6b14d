//! `mount -o remount`: mount(8) calls `dedupfs` to change the kernel's options of a mount.

use super::error::CliError;
use super::{CliResult, Outcome, mount_options};
use crate::admin::{Request, Response};
use crate::control::{CONTROL_XATTR, Client, ControlError, DaemonInfo, daemon_at};
use rustix::io::Errno;
use rustix::mount::{MountFlags, mount_remount};
use std::path::Path;

/// Returns whether one of the lists of `-o` requests it.
pub(super) fn is_asked(lists: &[String]) -> bool {
    lists.iter().any(|list| mount_options::split(list).iter().any(|option| option == "remount"))
}

/// Changes the mount at `mountpoint`. Ignores options of the daemon, since mount(8) repeats those of fstab here.
pub(super) fn run(mountpoint: &Path, lists: &[String]) -> CliResult {
    let info = daemon_at(mountpoint)?;
    if info.is_none() && !is_closed(mountpoint) {
        let message =
            format!("{}: no overlay is mounted here, so there is nothing to remount", mountpoint.display());
        return Err(CliError::new(message).hint("give its mount point"));
    }
    let flags = flags(lists);
    if let Some(info) = info
        && !flags.contains(MountFlags::RDONLY)
        && is_read_only(&info)?
    {
        let message = format!("{}: the daemon was started read-only", mountpoint.display());
        return Err(CliError::new(message).hint("unmount it, and mount it again without `ro`"));
    }
    match mount_remount(mountpoint, flags, "") {
        Ok(()) => Ok(Outcome::Clean),
        Err(Errno::BUSY) => {
            let message = format!("{}: files are open for writing", mountpoint.display());
            Err(CliError::new(message).hint("`fuser -vm DIR` shows which programs have them open"))
        }
        Err(e) => Err(CliError::io("remount", mountpoint, &e.into())),
    }
}

/// Returns the operations that the kernel should refuse. A later option wins over an earlier one.
fn flags(lists: &[String]) -> MountFlags {
    let mut flags = MountFlags::empty();
    for option in lists.iter().flat_map(|list| mount_options::split(list)) {
        match option.as_str() {
            "ro" => flags.insert(MountFlags::RDONLY),
            "rw" => flags.remove(MountFlags::RDONLY),
            "nosuid" => flags.insert(MountFlags::NOSUID),
            "suid" => flags.remove(MountFlags::NOSUID),
            "nodev" => flags.insert(MountFlags::NODEV),
            "dev" => flags.remove(MountFlags::NODEV),
            "noexec" => flags.insert(MountFlags::NOEXEC),
            "exec" => flags.remove(MountFlags::NOEXEC),
            _ => {}
        }
    }
    flags
}

/// Returns whether it is the mount of another user that admits no other user, not even root.
fn is_closed(mountpoint: &Path) -> bool {
    matches!(rustix::fs::getxattr(mountpoint, CONTROL_XATTR, &mut [0; 1][..]), Err(Errno::ACCESS))
}

fn is_read_only(info: &DaemonInfo) -> Result<bool, CliError> {
    let mut client = Client::connect(info)?.ok_or(ControlError::Ended)?;
    match client.ask(&Request::Status, &mut |_| {})? {
        Response::Status(report) => Ok(report.read_only),
        other => Err(super::session::unexpected(&other)),
    }
}
