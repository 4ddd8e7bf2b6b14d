//! How an inode of the backing tree is held on to: by a descriptor while it is in use, and otherwise by the
//! kernel's file handle, from which the descriptor can be had again.
//!
//! The kernel remembers as many inodes of a mount as fit its memory, and processes may only have so many
//! descriptors. So descriptors are dropped, the longest unused first, when there are more than half of
//! what this process may have. A file handle names an inode and its generation: it can never come to mean
//! another file, also not one that got the same number later.
//!
//! Opening by handle needs privilege (CAP_DAC_READ_SEARCH), and a filesystem that has handles. Without
//! either, descriptors are kept.

use rustix::io::Errno;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// MAX_HANDLE_SZ of the kernel's interface.
const HANDLE_BYTES_MAX: usize = 128;

/// The kernel's `struct file_handle`, with room for the longest.
#[repr(C)]
struct RawHandle {
    bytes: u32,
    kind: i32,
    handle: [u8; HANDLE_BYTES_MAX],
}

/// The kernel's name for an inode on its filesystem, for as long as the inode exists.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FileHandle {
    kind: i32,
    handle: Box<[u8]>,
}

impl FileHandle {
    /// The handle of what `fd` refers to; `None` if its filesystem has none.
    pub fn of(fd: impl AsFd) -> Option<FileHandle> {
        let mut raw = RawHandle { bytes: HANDLE_BYTES_MAX as u32, kind: 0, handle: [0; HANDLE_BYTES_MAX] };
        let mut mount_id: libc::c_int = 0;
        // SAFETY: the path is an empty C string, `raw` is laid out as the kernel wants it and says how much
        // room it has, and both outlive the call.
        let done = unsafe {
            libc::syscall(
                libc::SYS_name_to_handle_at,
                fd.as_fd().as_raw_fd(),
                c"".as_ptr(),
                &raw mut raw,
                &raw mut mount_id,
                libc::AT_EMPTY_PATH,
            )
        };
        (done == 0).then(|| FileHandle { kind: raw.kind, handle: raw.handle[..raw.bytes as usize].into() })
    }

    /// Opens an `O_PATH` descriptor for the inode, on the filesystem that `root` is on.
    fn open(&self, root: BorrowedFd<'_>) -> rustix::io::Result<OwnedFd> {
        let mut raw =
            RawHandle { bytes: self.handle.len() as u32, kind: self.kind, handle: [0; HANDLE_BYTES_MAX] };
        raw.handle[..self.handle.len()].copy_from_slice(&self.handle);
        let flags = libc::O_PATH | libc::O_CLOEXEC | libc::O_NOFOLLOW;
        // SAFETY: as above; the kernel only reads `raw`.
        let fd =
            unsafe { libc::syscall(libc::SYS_open_by_handle_at, root.as_raw_fd(), &raw const raw, flags) };
        if fd < 0 {
            return Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::STALE));
        }
        // SAFETY: the kernel has just given us this descriptor.
        Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
    }
}

/// One inode, held.
pub struct Anchor {
    fd: Mutex<Option<Arc<OwnedFd>>>,
    handle: Option<FileHandle>,
    used: AtomicBool,
    anchors: Arc<Anchors>,
}

/// What all anchors of an overlay share.
pub struct Anchors {
    root: OwnedFd,
    /// Whether descriptors can be had again from handles.
    reopens: bool,
    open: AtomicUsize,
    open_max: usize,
}

impl Anchors {
    /// For inodes on the filesystem of `root`.
    pub fn new(root: OwnedFd) -> Anchors {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let reopens = FileHandle::of(&root).is_some_and(|handle| handle.open(root.as_fd()).is_ok());
        let open_max = limit.map_or(usize::MAX, |limit| (limit / 2) as usize);
        Anchors { root, reopens, open: AtomicUsize::new(0), open_max }
    }

    /// Whether more descriptors are open than there should be.
    pub fn too_many(&self) -> bool {
        self.reopens && self.open.load(Ordering::Relaxed) > self.open_max
    }

    /// By how many descriptors too many are open, if they cannot be closed and had again.
    pub fn surplus(&self) -> usize {
        let open = self.open.load(Ordering::Relaxed);
        if self.reopens || open <= self.open_max { 0 } else { open - self.open_max / 4 * 3 }
    }

    /// Holds the inode that `fd` refers to; `home` says that it is on the root's filesystem.
    pub fn hold(self: &Arc<Self>, fd: OwnedFd, home: bool) -> Anchor {
        let handle = if self.reopens && home { FileHandle::of(&fd) } else { None };
        self.open.fetch_add(1, Ordering::Relaxed);
        Anchor {
            fd: Mutex::new(Some(Arc::new(fd))),
            handle,
            used: AtomicBool::new(true),
            anchors: self.clone(),
        }
    }
}

impl Anchor {
    /// A descriptor (`O_PATH`) for the inode; ESTALE if it is gone.
    pub fn fd(&self) -> rustix::io::Result<Arc<OwnedFd>> {
        self.used.store(true, Ordering::Relaxed);
        let mut held = self.fd.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(fd) = &*held {
            return Ok(fd.clone());
        }
        let handle = self.handle.as_ref().ok_or(Errno::STALE)?;
        let fd = Arc::new(handle.open(self.anchors.root.as_fd())?);
        self.anchors.open.fetch_add(1, Ordering::Relaxed);
        *held = Some(fd.clone());
        Ok(fd)
    }

    /// Whether `fd` refers to this inode, given that number and device are the same: the number may have
    /// been given to another file since.
    pub fn is(&self, fd: &OwnedFd) -> bool {
        let held = self.fd.lock().unwrap_or_else(PoisonError::into_inner).is_some();
        held || self.handle.is_none() || FileHandle::of(fd) == self.handle
    }

    /// Closes the descriptor if it can be had again and was not used since the last call.
    pub fn let_go(&self) {
        if self.handle.is_none() || self.used.swap(false, Ordering::Relaxed) {
            return;
        }
        let mut held = self.fd.lock().unwrap_or_else(PoisonError::into_inner);
        if held.take().is_some() {
            self.anchors.open.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Anchor {
    fn drop(&mut self) {
        let held = self.fd.get_mut().unwrap_or_else(PoisonError::into_inner);
        if held.take().is_some() {
            self.anchors.open.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::overlay::backing;
    use std::ffi::OsStr;

    #[test]
    fn a_dropped_descriptor_comes_back_and_never_as_another_file() {
        let dir = tempfile::tempdir().unwrap();
        let open =
            |name: &str| backing::open_path(rustix::fs::CWD, OsStr::new(&dir.path().join(name))).unwrap();
        std::fs::write(dir.path().join("file"), "x").unwrap();
        let anchors = Arc::new(Anchors::new(open("")));
        if !anchors.reopens {
            eprintln!("SKIPPED: file handles cannot be opened here");
            return;
        }
        let anchor = anchors.hold(open("file"), true);
        let ino = rustix::fs::fstat(anchor.fd().unwrap()).unwrap().st_ino;
        anchor.let_go();
        assert_eq!(anchors.open.load(Ordering::Relaxed), 1, "it was used a moment ago");
        anchor.let_go();
        assert_eq!(anchors.open.load(Ordering::Relaxed), 0);
        std::fs::rename(dir.path().join("file"), dir.path().join("moved")).unwrap();
        assert_eq!(rustix::fs::fstat(anchor.fd().unwrap()).unwrap().st_ino, ino);
        assert!(anchor.is(&open("moved")));
        anchor.let_go();
        anchor.let_go();
        std::fs::remove_file(dir.path().join("moved")).unwrap();
        // ext4 gives the number to the next file at once.
        std::fs::write(dir.path().join("other"), "y").unwrap();
        assert!(!anchor.is(&open("other")));
        assert_eq!(anchor.fd().unwrap_err(), Errno::STALE);
    }
}
