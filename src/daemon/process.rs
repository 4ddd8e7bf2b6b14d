use super::error::DaemonError;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::mount::{MountFlags, mount_remount};
use rustix::process::{Pid, PidfdFlags, Resource, Rlimit, getrlimit, pidfd_open, setrlimit};
use std::os::fd::OwnedFd;
use std::path::Path;

/// Operations that the kernel refuses in a mount: options of mount(8). Ordinary users always get the first
/// two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "each is the option of that name")]
pub struct Refuse {
    pub nosuid: bool,
    pub nodev: bool,
    pub noexec: bool,
}

impl Refuse {
    /// Sets the options on a mount. Only root can; for ordinary users the helper has set them.
    pub(super) fn apply(self, mountpoint: &Path, read_only: bool) -> rustix::io::Result<()> {
        if self == Refuse::default() || !rustix::process::geteuid().is_root() {
            return Ok(());
        }
        let flags = [
            (self.nosuid, MountFlags::NOSUID),
            (self.nodev, MountFlags::NODEV),
            (self.noexec, MountFlags::NOEXEC),
            (read_only, MountFlags::RDONLY),
        ];
        let flags = flags.iter().filter(|(set, _)| *set).fold(MountFlags::BIND, |all, (_, flag)| all | *flag);
        mount_remount(mountpoint, flags, "")
    }
}

/// Minimum of descriptors: for files in conversion, and for inodes in use.
const DESCRIPTORS_MIN: u64 = 1024;

/// Raises the descriptor limit to the maximum: each inode in use takes one.
pub fn raise_limits() {
    let limit = getrlimit(Resource::Nofile);
    let most = std::fs::read_to_string("/proc/sys/fs/nr_open").ok().and_then(|text| text.trim().parse().ok());
    if let Some(most) = most
        && rustix::process::geteuid().is_root()
        && setrlimit(Resource::Nofile, Rlimit { current: Some(most), maximum: Some(most) }).is_ok()
    {
        return;
    }
    if let Err(e) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum }) {
        tracing::warn!("the limit of open files stays as it is: {e}");
    }
}

/// Fails if this process may not open enough descriptors for a daemon.
pub(super) fn expect_descriptors() -> Result<(), DaemonError> {
    match getrlimit(Resource::Nofile).current {
        Some(limit) if limit < DESCRIPTORS_MIN => {
            Err(DaemonError::Descriptors { limit, least: DESCRIPTORS_MIN })
        }
        _ => Ok(()),
    }
}

/// Limits the allocator to two arenas. glibc gives each thread its own, up to eight a core, and each keeps
/// freed memory; a daemon with many threads would hold several times what it uses.
pub(super) fn limit_arenas() {
    #[cfg(target_env = "gnu")]
    // SAFETY: mallopt sets a number of the allocator and may be called at any time.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 2);
    }
}

/// Clears the umask: each request brings its caller's.
pub(super) fn clear_umask() {
    rustix::process::umask(rustix::fs::Mode::empty());
}

/// Returns a descriptor that reports the end of a process.
pub(super) fn watched(pid: u32) -> Result<OwnedFd, DaemonError> {
    let gone = |e: Errno| DaemonError::Text(format!("process {pid}, which this is mounted for: {e}"));
    let id = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(Errno::INVAL).map_err(gone)?;
    pidfd_open(id, PidfdFlags::empty()).map_err(gone)
}

/// Returns when the process behind `watched` ends.
pub(super) fn wait_for_end(watched: &OwnedFd) {
    let mut fds = [PollFd::new(watched, PollFlags::IN)];
    while matches!(poll(&mut fds, None), Err(Errno::INTR)) {}
}
