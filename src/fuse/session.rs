//! Mounting, serving and unmounting.

use super::error::MountError;
use super::filesystem::OverlayFs;
use super::kernel_mount::DEVICE;
use super::{Holder, helper, holders, kernel_mount, privilege};
use crate::history::{Browse, History};
use crate::overlay::Overlay;
use fuser::{Config, INodeNo, MountOption, Session, SessionACL};
use rustix::fs::{AtFlags, CWD, StatxFlags, makedev};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// In place, only the daemon reaches the tree, so the kernel may cache for a long time.
const TTL_IN_PLACE: Duration = Duration::from_secs(3600);
/// With another mount point, any user can reach the bare directory.
const TTL_ELSEWHERE: Duration = Duration::from_secs(1);

/// How to mount.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// The mount point.
    pub mountpoint: PathBuf,
    /// Refuses all changes.
    pub read_only: bool,
    /// Admits other users (modes and owners are always checked).
    pub allow_other: bool,
    /// Lets the kernel do the I/O of plain files, if this process may request it.
    pub passthrough: bool,
    /// Whether the mount point is the backing directory itself.
    pub in_place: bool,
    /// The answer to the xattr `user.dedupfs.control` on every inode.
    pub control_info: Vec<u8>,
    /// Limit of concurrently served requests.
    pub threads: usize,
}

/// A mounted filesystem. It stays mounted when this is dropped.
pub struct Mounted {
    mountpoint: PathBuf,
    gone: Gone,
    /// Its device: after an unmount the mount point belongs to another filesystem.
    device: Option<u64>,
}

/// Whether the filesystem was unmounted, and the threads that wait for it.
type Gone = Arc<(Mutex<bool>, Condvar)>;

/// Checks that this process can mount at all, before anything else is done.
pub fn check_available(privileged: bool) -> Result<(), MountError> {
    match File::options().read(true).write(true).open(DEVICE) {
        Ok(_) => {}
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => return Err(MountError::DeviceClosed),
        Err(_) => return Err(MountError::NoDevice),
    }
    if privileged { Ok(()) } else { helper::find().map(drop) }
}

/// Mounts an overlay; returns when the kernel has its answer and requests are being served.
pub fn mount(
    overlay: Arc<Overlay>,
    history: Arc<History>,
    options: MountOptions,
) -> Result<Mounted, MountError> {
    let privileged = overlay.backing().privileged();
    check_available(privileged)?;
    let name = overlay.backing().root_path().unwrap_or_else(|_| PathBuf::from("dedupfs"));
    let name = name.to_string_lossy().replace(',', "_");
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::FSName(name.clone()),
        MountOption::Subtype("dedupfs".to_owned()),
        MountOption::DefaultPermissions,
        if options.read_only { MountOption::RO } else { MountOption::RW },
    ];
    if privileged {
        config.mount_options.extend([MountOption::Suid, MountOption::Dev]);
    }
    // Root's mount is for all users.
    config.acl = if options.allow_other || privileged { SessionACL::All } else { SessionACL::Owner };
    config.n_threads = Some(options.threads.max(1));
    config.clone_fd = options.threads > 1;
    let ttl = if options.in_place { TTL_IN_PLACE } else { TTL_ELSEWHERE };
    let passthrough = options.passthrough && privileged;
    let (threads, alone) = (options.threads.max(1), options.in_place);
    let filesystem = OverlayFs::new(
        overlay.clone(),
        Browse::new(history),
        ttl,
        alone,
        passthrough,
        options.control_info,
        threads,
    );
    let path = options.mountpoint;
    let failed = |e| MountError::of(&path, e);
    let session = match privileged.then(|| kernel_mount::mount(&name, &path, options.read_only)) {
        // In a container without the right, the helper may have it.
        None | Some(Err(Errno::PERM)) => Session::new(filesystem, &path, &config).map_err(failed)?,
        Some(Err(e)) => return Err(failed(e.into())),
        Some(Ok(device)) => {
            let acl = config.acl;
            Session::from_fd(filesystem, device, acl, config).map_err(|e| {
                let _ = unmount_path(&path, true);
                failed(e)
            })?
        }
    };
    let notifier = session.notifier();
    overlay.tree.drop_pages_by(Box::new(move |node, range| {
        // No length means up to the end.
        let len = (range.end - range.start).try_into().unwrap_or(0);
        notifier.inval_inode(INodeNo(node.0), range.start as i64, len).is_ok()
    }));
    let device = device_at(&path);
    let gone: Gone = Arc::default();
    let (tell, served) = (gone.clone(), path.clone());
    let serve = move || {
        if privileged && let Err(e) = privilege::prepare_thread() {
            tracing::warn!("supplementary groups and quotas of users will not be honoured: {e}");
        }
        if let Err(e) = session.run() {
            tracing::error!("the FUSE session ended: {e}");
            // Another filesystem may be mounted there by now.
            if device.is_some() && device_at(&served) == device {
                let _ = unmount_path(&served, true);
            }
        }
        *tell.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        tell.1.notify_all();
    };
    if let Err(e) = std::thread::Builder::new().name("fuse".to_owned()).spawn(serve) {
        let _ = unmount_path(&path, true);
        return Err(failed(e));
    }
    Ok(Mounted { mountpoint: path, gone, device })
}

impl Mounted {
    /// Returns the mount point.
    pub fn mountpoint(&self) -> &Path {
        &self.mountpoint
    }

    /// Waits until it was unmounted, by anyone.
    pub fn wait_gone(&self) {
        let mut gone = self.gone.0.lock().unwrap_or_else(PoisonError::into_inner);
        while !*gone {
            gone = self.gone.1.wait(gone).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Whether it was unmounted within `time`.
    pub fn gone_within(&self, time: Duration) -> bool {
        gone_within(&self.gone, time)
    }

    /// Unmounts. Fails with [`MountError::Busy`] while files are open in it. With `lazy` it disappears from
    /// the tree now and ends when the last file is closed.
    pub fn unmount(&self, lazy: bool) -> Result<(), MountError> {
        if self.gone_within(Duration::ZERO) {
            return Ok(());
        }
        match unmount_path(&self.mountpoint, lazy) {
            // It was unmounted here, and other mount namespaces hold it.
            Err(MountError::Io { source, .. })
                if source.raw_os_error() == Some(libc::EINVAL) && self.device.is_some() =>
            {
                Ok(())
            }
            other => other,
        }
    }

    /// Returns its holders in other mount namespaces after it was unmounted here.
    pub fn holders(&self) -> Vec<Holder> {
        self.device.map(holders::of).unwrap_or_default()
    }

    /// Counts as unmounted from here on, even if it is held: when this process ends, holders get ENOTCONN.
    pub fn give_up(&self) {
        *self.gone.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.gone.1.notify_all();
    }
}

/// Returns the device of the filesystem that is mounted at `path`. Asks no FUSE daemon, so it also works on a dead mount.
fn device_at(path: &Path) -> Option<u64> {
    let flags = AtFlags::STATX_DONT_SYNC | AtFlags::SYMLINK_NOFOLLOW;
    let stat = rustix::fs::statx(CWD, path, flags, StatxFlags::empty()).ok()?;
    Some(makedev(stat.stx_dev_major, stat.stx_dev_minor))
}

fn gone_within(gone: &Gone, time: Duration) -> bool {
    let wait =
        gone.1.wait_timeout_while(gone.0.lock().unwrap_or_else(PoisonError::into_inner), time, |gone| !*gone);
    *wait.unwrap_or_else(PoisonError::into_inner).0
}

/// Clears a mount whose daemon is gone: any access to it fails with ENOTCONN.
pub fn clear_dead_mount(path: &Path) -> Result<bool, MountError> {
    // Not stat: the kernel would answer it from its cache of the dead mount's root.
    match rustix::fs::statfs(path) {
        // The kernel returns the second one for a moment after the daemon's end.
        Err(Errno::NOTCONN | Errno::CONNABORTED) => unmount_path(path, true).map(|()| true),
        _ => Ok(false),
    }
}

fn unmount_path(path: &Path, lazy: bool) -> Result<(), MountError> {
    let flags = if lazy { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    match unmount(path, flags | UnmountFlags::NOFOLLOW) {
        Ok(()) => Ok(()),
        Err(Errno::BUSY) => Err(MountError::Busy(path.to_owned())),
        Err(Errno::PERM) => helper::unmount(path, lazy),
        Err(e) => Err(MountError::of(path, e.into())),
    }
}
