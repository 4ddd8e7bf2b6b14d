//! Access to an inode of the backing tree: through a descriptor while it is in use, otherwise through a key
//! that can open one again: the kernel's file handle, or the last known path.
//!
//! The kernel caches as many inodes of a mount as fit its memory, and a process may only have a limited
//! number of descriptors. So only files that programs have open keep theirs; [`CACHE_MAX`] of the others stay
//! open, the recently used ones (second chance, as in the CLOCK algorithm of Corbató, 1968). A file handle
//! names an inode and its generation: it never refers to a later file with the same number.
//!
//! Opening by handle needs privilege (CAP_DAC_READ_SEARCH). Without it an inode is opened by its name in its
//! directory, and the handle shows whether it is still the same one. On a filesystem without handles
//! descriptors stay open.
//!
//! Lock order: an anchor's descriptor, then its directory's, then a path or the cache.

use crate::backing;
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Descriptors that are kept for inodes that no program has open.
const CACHE_MAX: usize = 512;
/// Entries of the cache that one call examines: some are in use, and stay.
const LOOKED_AT: usize = 8;

const BY_PATH: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW);
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

/// An anchor without a descriptor, in as little memory as possible.
pub struct Sunk {
    kind: i32,
    handle_len: u8,
    dir: Option<Arc<Anchor>>,
    /// The handle, then the name in `dir`.
    bytes: Box<[u8]>,
}

impl Sunk {
    /// Returns true if `handle` names the same inode.
    pub fn is(&self, handle: &FileHandle) -> bool {
        self.kind == handle.kind && self.bytes[..usize::from(self.handle_len)] == *handle.handle
    }
}

impl FileHandle {
    /// Returns the handle of the inode that `fd` refers to; `None` if its filesystem has none.
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

    /// Opens the inode, on the filesystem that `root` is on.
    fn open(&self, root: BorrowedFd<'_>, flags: OFlags) -> rustix::io::Result<OwnedFd> {
        let mut raw =
            RawHandle { bytes: self.handle.len() as u32, kind: self.kind, handle: [0; HANDLE_BYTES_MAX] };
        raw.handle[..self.handle.len()].copy_from_slice(&self.handle);
        let flags = (flags | OFlags::CLOEXEC).bits() as libc::c_int;
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
    /// This anchor, for the cache.
    me: Weak<Anchor>,
    fd: Mutex<Held>,
    handle: Option<FileHandle>,
    /// Its last known place; only kept if handles cannot be opened.
    place: Mutex<Option<Place>>,
    used: AtomicBool,
    anchors: Arc<Anchors>,
}

/// A descriptor, and its keeper.
#[derive(Default)]
struct Held {
    fd: Option<Arc<OwnedFd>>,
    /// Number of pins ([`Anchor::pin`]).
    opens: usize,
    /// Whether the descriptor is in the cache.
    cached: bool,
}

/// A name in a directory.
type Place = (Arc<Anchor>, OsString);

/// State that all anchors of an overlay share.
pub struct Anchors {
    root: OwnedFd,
    /// Whether this process may open by handle.
    opens_handles: bool,
    /// Descriptors that can be opened again, oldest first.
    cache: Mutex<VecDeque<Weak<Anchor>>>,
    cache_max: usize,
    limit: usize,
}

impl Anchors {
    /// For inodes on the filesystem of `root`.
    pub fn new(root: OwnedFd) -> Anchors {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let opens_handles =
            FileHandle::of(&root).is_some_and(|handle| handle.open(root.as_fd(), BY_PATH).is_ok());
        let limit = limit.map_or(usize::MAX, |limit| limit as usize);
        let cache_max = CACHE_MAX.min(limit / 4);
        Anchors { root, opens_handles, cache: Mutex::default(), cache_max, limit }
    }

    /// Returns how many descriptors this process may have.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Holds the inode that `fd` refers to; `on_root_fs`: whether it is on the root's filesystem. Call [`Anchors::trim`] next.
    pub fn hold(self: &Arc<Self>, fd: OwnedFd, on_root_fs: bool) -> Arc<Anchor> {
        let handle = if on_root_fs { FileHandle::of(&fd) } else { None };
        let anchor = Arc::new_cyclic(|me| Anchor {
            me: me.clone(),
            fd: Mutex::new(Held { fd: Some(Arc::new(fd)), ..Held::default() }),
            handle,
            place: Mutex::default(),
            used: AtomicBool::new(true),
            anchors: self.clone(),
        });
        anchor.cache(&mut anchor.lock());
        anchor
    }

    /// Returns an anchor for the inode of `sunk`, without a descriptor.
    pub fn raise(self: &Arc<Self>, sunk: &Sunk) -> Arc<Anchor> {
        let (handle, name) = sunk.bytes.split_at(usize::from(sunk.handle_len));
        let place = sunk.dir.clone().map(|dir| (dir, OsStr::from_bytes(name).to_owned()));
        Arc::new_cyclic(|me| Anchor {
            me: me.clone(),
            fd: Mutex::default(),
            handle: Some(FileHandle { kind: sunk.kind, handle: handle.into() }),
            place: Mutex::new(place),
            used: AtomicBool::new(false),
            anchors: self.clone(),
        })
    }

    /// Closes descriptors that were not used lately while the cache has too many. O(1).
    pub fn trim(&self) {
        for _ in 0..LOOKED_AT {
            let next = {
                let mut cache = self.lock_cache();
                if cache.len() <= self.cache_max {
                    return;
                }
                cache.pop_front()
            };
            // Closing it may take the kernel some time, so not under the lock.
            if let Some(anchor) = next.as_ref().and_then(Weak::upgrade)
                && !anchor.let_go()
            {
                self.lock_cache().extend(next);
            }
        }
    }

    fn lock_cache(&self) -> MutexGuard<'_, VecDeque<Weak<Anchor>>> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Anchor {
    /// Returns a descriptor (`O_PATH`) for the inode; ESTALE if it is gone.
    pub fn fd(&self) -> rustix::io::Result<Arc<OwnedFd>> {
        self.used.store(true, Ordering::Relaxed);
        let (fd, reopened) = self.held(&mut self.lock())?;
        if reopened {
            self.anchors.trim();
        }
        Ok(fd)
    }

    /// Keeps the descriptor until [`Anchor::unpin`]: the inode stays while it is open, also without a name.
    pub fn pin(&self) -> rustix::io::Result<()> {
        let mut held = self.lock();
        let (_, reopened) = self.held(&mut held)?;
        held.opens += 1;
        drop(held);
        if reopened {
            self.anchors.trim();
        }
        Ok(())
    }

    /// Undoes one [`Anchor::pin`].
    pub fn unpin(&self) {
        let mut held = self.lock();
        held.opens = held.opens.saturating_sub(1);
    }

    /// Returns the descriptor, and whether it had to be opened again.
    fn held(&self, held: &mut Held) -> rustix::io::Result<(Arc<OwnedFd>, bool)> {
        if let Some(fd) = &held.fd {
            return Ok((fd.clone(), false));
        }
        let fd = Arc::new(self.open_again()?);
        held.fd = Some(fd.clone());
        self.cache(held);
        Ok((fd, true))
    }

    fn open_again(&self) -> rustix::io::Result<OwnedFd> {
        let handle = self.handle.as_ref().ok_or(Errno::STALE)?;
        if self.anchors.opens_handles {
            return handle.open(self.anchors.root.as_fd(), BY_PATH);
        }
        let (dir, name) = self.lock_place().clone().ok_or(Errno::STALE)?;
        let fd = backing::open_path(dir.passing_fd()?, &name).map_err(|e| match e {
            Errno::NOENT | Errno::NOTDIR => Errno::STALE,
            other => other,
        })?;
        if FileHandle::of(&fd).as_ref() != Some(handle) {
            return Err(Errno::STALE);
        }
        Ok(fd)
    }

    /// Opens a descriptor that is not kept, for a directory on the way to a file in it.
    fn passing_fd(&self) -> rustix::io::Result<Arc<OwnedFd>> {
        match &self.lock().fd {
            Some(fd) => Ok(fd.clone()),
            None => self.open_again().map(Arc::new),
        }
    }

    /// Adds a descriptor that can be opened again to the cache.
    fn cache(&self, held: &mut Held) {
        if !held.cached && held.fd.is_some() && self.opens_again() {
            held.cached = true;
            self.anchors.lock_cache().push_back(self.me.clone());
        }
    }

    fn opens_again(&self) -> bool {
        self.handle.is_some() && (self.anchors.opens_handles || self.lock_place().is_some())
    }

    fn lock(&self) -> MutexGuard<'_, Held> {
        self.fd.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens the inode, a regular file, for I/O. Never blocks on another process's lease. Opening by handle takes half the
    /// time of opening by descriptor, which goes through a path in /proc.
    pub fn open_io(&self, access: OFlags) -> rustix::io::Result<File> {
        let by_handle = match &self.handle {
            Some(handle) if self.anchors.opens_handles => {
                handle.open(self.anchors.root.as_fd(), access | backing::IO_FLAGS)
            }
            _ => Err(Errno::STALE),
        };
        match by_handle {
            // Some filesystems open a file without a name only through its descriptors.
            Err(Errno::STALE) => backing::open_io(self.fd()?, access),
            opened => opened.map(File::from),
        }
    }

    /// Returns the few bytes that can open the inode again; `None` while it has a descriptor.
    pub fn sunk(&self) -> Option<Sunk> {
        if self.lock().fd.is_some() {
            return None;
        }
        let handle = self.handle.as_ref()?;
        let place = self.lock_place();
        let (dir, name) =
            place.as_ref().map_or((None, &[][..]), |(dir, name)| (Some(dir.clone()), name.as_bytes()));
        let bytes = [&handle.handle, name].concat().into();
        Some(Sunk { kind: handle.kind, handle_len: handle.handle.len().try_into().ok()?, dir, bytes })
    }

    /// Returns whether `fd` refers to this inode, given that number and device are the same: another file may have got the
    /// number since.
    pub fn is(&self, fd: &OwnedFd) -> bool {
        let held = self.lock().fd.is_some();
        held || self.handle.is_none() || FileHandle::of(fd) == self.handle
    }

    /// Records the directory and name under which it was just seen.
    pub fn seen_at(&self, dir: &Arc<Anchor>, name: &OsStr) {
        if self.anchors.opens_handles {
            return;
        }
        let mut place = self.lock_place();
        if !place.as_ref().is_some_and(|(known, at)| Arc::ptr_eq(known, dir) && at == name) {
            *place = Some((dir.clone(), name.to_owned()));
        }
        drop(place);
        self.cache(&mut self.lock());
    }

    /// Records that a name was removed.
    pub fn gone_from(&self, dir: &Arc<Anchor>, name: &OsStr) {
        let mut place = self.lock_place();
        if place.as_ref().is_some_and(|(known, at)| Arc::ptr_eq(known, dir) && at == name) {
            *place = None;
        }
    }

    fn lock_place(&self) -> MutexGuard<'_, Option<Place>> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes the descriptor of a file that was removed, so that its space is free at once, or that no thread uses any more.
    pub fn close(&self) {
        // Without a handle another file with its number could be taken for it.
        if self.handle.is_some() {
            let closed = self.lock().fd.take();
            drop(closed);
        }
    }

    /// Takes the descriptor out of the cache unless it has to stay there, and closes it; false if it stays.
    fn let_go(&self) -> bool {
        // A thread that has the lock uses it.
        let Ok(mut held) = self.fd.try_lock() else { return false };
        if held.fd.is_some()
            && (held.opens > 0 || !self.opens_again() || self.used.swap(false, Ordering::Relaxed))
        {
            return false;
        }
        held.cached = false;
        let closed = held.fd.take();
        drop(held);
        drop(closed);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn anchors(dir: &std::path::Path, by_handle: bool) -> Option<Arc<Anchors>> {
        let anchors = Anchors::new(std::fs::File::open(dir).unwrap().into());
        // An ordinary user cannot open by handle: root's run of this test covers that.
        if by_handle && !anchors.opens_handles {
            assert!(!rustix::process::geteuid().is_root(), "root can open by handle");
            return None;
        }
        Some(Arc::new(Anchors { opens_handles: by_handle, ..anchors }))
    }

    #[test]
    fn a_dropped_descriptor_comes_back_and_never_as_another_file() {
        for by_handle in [true, false] {
            let dir = tempfile::tempdir().unwrap();
            let open =
                |name: &str| backing::open_path(rustix::fs::CWD, dir.path().join(name).as_os_str()).unwrap();
            std::fs::write(dir.path().join("file"), "x").unwrap();
            let Some(anchors) = anchors(dir.path(), by_handle) else { continue };
            let root = anchors.hold(open(""), true);
            let anchor = anchors.hold(open("file"), true);
            let seen = |name: &str| anchor.seen_at(&root, OsStr::new(name));
            let ino = rustix::fs::fstat(anchor.fd().unwrap()).unwrap().st_ino;
            seen("file");
            assert!(!anchor.let_go(), "it was used a moment ago");
            anchor.pin().unwrap();
            assert!(!anchor.let_go() && !anchor.let_go(), "it is open");
            anchor.unpin();
            assert!(anchor.let_go() && anchor.lock().fd.is_none());
            std::fs::rename(dir.path().join("file"), dir.path().join("moved")).unwrap();
            if !by_handle {
                assert_eq!(anchor.fd().unwrap_err(), Errno::STALE);
                seen("moved");
            }
            assert_eq!(rustix::fs::fstat(anchor.fd().unwrap()).unwrap().st_ino, ino);
            assert!(anchor.is(&open("moved")));
            anchor.let_go();
            anchor.let_go();
            std::fs::remove_file(dir.path().join("moved")).unwrap();
            // ext4 gives the number to the next file at once.
            std::fs::write(dir.path().join("moved"), "y").unwrap();
            assert!(!anchor.is(&open("moved")));
            assert_eq!(anchor.fd().unwrap_err(), Errno::STALE);
        }
    }

    #[test]
    fn only_the_cache_and_open_files_keep_descriptors() {
        for by_handle in [true, false] {
            let dir = tempfile::tempdir().unwrap();
            let Some(mut anchors) = anchors(dir.path(), by_handle) else { continue };
            Arc::get_mut(&mut anchors).unwrap().cache_max = 20;
            let open =
                |name: &str| backing::open_path(rustix::fs::CWD, dir.path().join(name).as_os_str()).unwrap();
            let root = anchors.hold(open(""), true);
            let held: Vec<_> = (0..500)
                .map(|n| {
                    let name = n.to_string();
                    std::fs::write(dir.path().join(&name), "x").unwrap();
                    let anchor = anchors.hold(open(&name), true);
                    anchor.seen_at(&root, OsStr::new(&name));
                    if n % 100 == 0 {
                        anchor.pin().unwrap();
                    }
                    anchors.trim();
                    anchor
                })
                .collect();
            let open = || held.iter().filter(|anchor| anchor.lock().fd.is_some()).count();
            assert!(open() < 40, "{} descriptors", open());
            for anchor in held.iter().filter(|anchor| anchor.lock().opens == 0) {
                anchor.pin().unwrap();
                anchor.unpin();
            }
            assert!(open() < 40, "{} descriptors after each was opened", open());
            for (n, anchor) in held.iter().enumerate() {
                assert_eq!(n % 100 == 0, anchor.lock().opens > 0);
                assert!(anchor.lock().opens == 0 || anchor.lock().fd.is_some(), "{n} is open");
                anchor.fd().unwrap();
            }
            assert!(open() < 40, "{} descriptors", open());
        }
    }
}
