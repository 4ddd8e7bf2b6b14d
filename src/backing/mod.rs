//! The backing directory: every system call that the overlay makes on it.
//!
//! All access is relative to descriptors: the root's, opened before anything is mounted over it, and an
//! `O_PATH` descriptor for each inode in use. Such a descriptor keeps the inode's number from being
//! given to another file. Nothing here looks at stubs.

pub(crate) mod io;
pub(crate) mod plain;
pub(crate) mod resolved;
pub mod stub;
pub(crate) mod types;

use crate::backing::stub::Time;
use crate::backing::types::{Attr, Caller, Kind, NodeId, ROOT, SetTime};
use crate::beneath::Root;
use crate::contents::error::{OverlayError, Result};
use rustix::fs::{self, AtFlags, CWD, Mode, OFlags, Stat, StatxFlags, Timespec, Timestamps};
use rustix::io::Errno;
use rustix::process::umask as umask_of_thread;
use rustix::thread::{UnshareFlags, unshare_unsafe};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::{PoisonError, RwLock};

/// Name of the directory in the backing root that holds the store; never shown.
pub const STATE_DIR: &str = ".dedupfs";
/// Name of the directory in the root in which a sync assembles arriving files. A file that is renamed from there into the
/// tree may have been written below the mount.
pub const STAGING_DIR: &str = ".dedupfs-sync";
/// Name of the note in the backing root for people who find the bare directory; never shown.
pub const NOTE: &str = "DEDUPFS-README.txt";

/// Changes within this time after a ctime may have the same one: kernel clocks tick up to 10 ms apart.
pub(crate) const CTIME_TICK_MS: i64 = 50;

/// The longest value, and the longest list of names, that Linux allows.
const XATTR_BYTES_MAX: usize = 64 << 10;

/// Returns whether a path, relative to the root, lies in the staging directory. The daemon converts no file there: a sync changes
/// them below the mount.
pub(crate) fn is_staged(path: &Path) -> bool {
    path.starts_with(STAGING_DIR)
}

/// A directory tree that an overlay lies over.
pub struct Backing {
    root: Root,
    dev: u64,
    ino: u64,
    /// Whether this process may act in other users' names.
    privileged: bool,
    /// Path of the root when it was last read.
    last_root: RwLock<PathBuf>,
}

/// Inode number and device: together they identify a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Identity {
    /// Device of the filesystem it is on.
    pub dev: u64,
    /// Number on that device.
    pub ino: u64,
}

impl Backing {
    /// Opens the directory at `path`.
    pub fn open(path: &Path) -> Result<Backing> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = fs::openat(CWD, path, flags, Mode::empty())
            .map_err(|e| OverlayError::io("open directory", path, e))?;
        let stat = fs::fstat(&root)?;
        let privileged = rustix::process::geteuid().is_root();
        let last_root = RwLock::new(path_of(&root)?);
        Ok(Backing { root: root.into(), dev: stat.st_dev, ino: stat.st_ino, privileged, last_root })
    }

    /// The root's descriptor.
    pub fn root(&self) -> BorrowedFd<'_> {
        self.root.fd()
    }

    /// The tree, by paths.
    pub fn tree(&self) -> &Root {
        &self.root
    }

    /// The root's identity.
    pub fn identity(&self) -> Identity {
        Identity { dev: self.dev, ino: self.ino }
    }

    /// Whether this process is root.
    pub fn privileged(&self) -> bool {
        self.privileged
    }

    /// Returns the present path of the root.
    pub fn root_path(&self) -> Result<PathBuf> {
        Ok(path_of(self.root())?)
    }

    /// Path below the root of the file that `fd` refers to; `None` if it has no name there any more.
    pub fn relative_path(&self, fd: impl AsFd) -> Result<Option<PathBuf>> {
        let (path, here) = (path_of(&fd)?, fs::fstat(&fd)?);
        // The kernel marks unlinked files by a suffix that a name may have too: ask whether it is the same.
        let is_same = |relative: &Path| {
            let there = stat_at(self.root(), relative.as_os_str());
            there.is_ok_and(|there| identity(&there) == identity(&here))
        };
        if let Some(found) = self.below_last_root(&path).filter(|path| is_same(path)) {
            return Ok(Some(found.to_owned()));
        }
        let root = self.root_path()?;
        let found = path.strip_prefix(&root).ok().filter(|path| is_same(path));
        if found.is_some() {
            *self.last_root.write().unwrap_or_else(PoisonError::into_inner) = root;
        }
        Ok(found.map(Path::to_owned))
    }

    /// Path below the root of the file that `fd` refers to, which was at `path` a moment ago.
    pub fn path_still(&self, path: PathBuf, identity: Identity, fd: impl AsFd) -> Result<Option<PathBuf>> {
        match stat_at(self.root(), path.as_os_str()) {
            Ok(there) if self::identity(&there) == identity => Ok(Some(path)),
            _ => self.relative_path(fd),
        }
    }

    /// Returns the part of `path` below the last known path of the root. The root may have been renamed since, so the caller
    /// must compare the file that it finds beneath the root's descriptor.
    pub fn below_last_root<'p>(&self, path: &'p Path) -> Option<&'p Path> {
        path.strip_prefix(&*self.last_root.read().unwrap_or_else(PoisonError::into_inner)).ok()
    }

    /// Number under which the inode is known to users. Inodes on the root's device keep their own.
    pub fn node(&self, id: Identity) -> NodeId {
        if id == self.identity() {
            ROOT
        } else if id.dev == self.dev && id.ino > 1 && id.ino < 1 << 62 {
            NodeId(id.ino)
        } else {
            NodeId(1 << 63 | id.ino ^ id.dev.rotate_left(40))
        }
    }

    /// Runs `make`, which creates something in `dir` with the mode that it is given, in the caller's name and under the
    /// caller's umask.
    pub fn create<T>(&self, dir: impl AsFd, mode: u32, caller: Caller, make: impl FnOnce(Mode) -> T) -> T {
        let umask = Umask::set(caller.umask);
        let keeps = umask.is_some() || has_default_acl(dir);
        let masked = if keeps { mode } else { mode & !caller.umask };
        self.as_caller(caller, || make(Mode::from_raw_mode(masked & 0o7777)))
    }

    /// Runs `make`, which creates something, in the caller's name if this process may.
    pub fn as_caller<T>(&self, caller: Caller, make: impl FnOnce() -> T) -> T {
        if !self.privileged || (caller.uid == 0 && caller.gid == 0) {
            return make();
        }
        let _guard = FsIds::become_caller(caller);
        make()
    }
}

/// Returns whether new files in a directory inherit an ACL, so that the umask does not count. True if the directory
/// cannot be asked.
fn has_default_acl(dir: impl AsFd) -> bool {
    let acl = fs::getxattr(proc_path(dir), "system.posix_acl_default", &mut [0u8; 0]);
    !matches!(acl, Err(Errno::NODATA | Errno::NOTSUP))
}

/// The umask of this thread, until dropped: the filesystem knows best when it counts.
struct Umask {
    before: Mode,
}

impl Umask {
    /// Sets the umask; `None` if a thread may not have one of its own (some containers).
    fn set(umask: u32) -> Option<Umask> {
        thread_local! {
            // SAFETY: the thread gets a working directory and a umask of its own. The first is the one that it had, and
            // nothing here changes it; the second is only different while a `Umask` lives.
            static OWN: bool = unsafe { unshare_unsafe(UnshareFlags::FS) }.is_ok();
        }
        OWN.with(|own| *own).then(|| Umask { before: umask_of_thread(Mode::from_raw_mode(umask & 0o777)) })
    }
}

impl Drop for Umask {
    fn drop(&mut self) {
        umask_of_thread(self.before);
    }
}

/// Switches this thread's filesystem user and group until dropped.
struct FsIds {
    uid: libc::c_int,
    gid: libc::c_int,
}

impl FsIds {
    fn become_caller(caller: Caller) -> FsIds {
        // SAFETY: both calls take plain numbers and change only the credentials of this thread.
        unsafe {
            let gid = libc::setfsgid(caller.gid);
            let uid = libc::setfsuid(caller.uid);
            FsIds { uid, gid }
        }
    }
}

impl Drop for FsIds {
    fn drop(&mut self) {
        // SAFETY: as above; the numbers are the ones that were in force before.
        unsafe {
            libc::setfsuid(self.uid as libc::uid_t);
            libc::setfsgid(self.gid as libc::gid_t);
        }
    }
}

/// Returns a path for an `O_PATH` descriptor, for calls that need a path.
pub fn proc_path(fd: impl AsFd) -> String {
    format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd())
}

/// Returns the kernel's current path of the file that `fd` refers to.
pub fn path_of(fd: impl AsFd) -> rustix::io::Result<PathBuf> {
    let target = fs::readlinkat(CWD, proc_path(fd), Vec::new())?;
    Ok(PathBuf::from(OsString::from_vec(target.into_bytes())))
}

/// Opens an `O_PATH` descriptor for `name` in `dir`, without following a symlink.
pub fn open_path(dir: impl AsFd, name: &OsStr) -> rustix::io::Result<OwnedFd> {
    fs::openat(dir, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}

/// Opens an `O_PATH` descriptor for the file that `fd` refers to.
pub fn reopen_path(fd: impl AsFd) -> rustix::io::Result<OwnedFd> {
    fs::openat(CWD, proc_path(fd), OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
}

/// Attributes of `name` (which may have several components, or be empty for `dir` itself).
pub fn stat_at(dir: impl AsFd, name: &OsStr) -> rustix::io::Result<Stat> {
    fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW | AtFlags::EMPTY_PATH)
}

/// Flags of every open of a regular file.
pub const IO_FLAGS: OFlags = OFlags::NONBLOCK.union(OFlags::CLOEXEC).union(OFlags::NOCTTY);

/// Opens the regular file behind an `O_PATH` descriptor for I/O. Never blocks on another process's lease.
pub fn open_io(path_fd: impl AsFd, access: OFlags) -> rustix::io::Result<File> {
    fs::openat(CWD, proc_path(path_fd), access | IO_FLAGS, Mode::empty()).map(File::from)
}

/// Returns the offset of the next data at or after `offset`, if there is some.
pub fn next_data(file: &File, offset: u64) -> rustix::io::Result<Option<u64>> {
    match fs::seek(file, fs::SeekFrom::Data(offset)) {
        Ok(at) => Ok(Some(at)),
        Err(Errno::NXIO) => Ok(None),
        Err(e) => Err(e),
    }
}

/// Opens the directory behind an `O_PATH` descriptor for listing. Not through ".", which needs search permission.
pub fn open_dir(path_fd: impl AsFd) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    fs::openat(CWD, proc_path(path_fd), flags, Mode::empty())
}

/// As [`open_dir`], without changing the directory's atime if this process may ask for that.
pub fn open_dir_quietly(path_fd: impl AsFd) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    match fs::openat(CWD, proc_path(&path_fd), flags | OFlags::NOATIME, Mode::empty()) {
        Err(Errno::PERM) => open_dir(path_fd),
        other => other,
    }
}

/// As [`open_io`], without changing the file's atime if this process may ask for that.
pub fn open_quietly(path_fd: impl AsFd, access: OFlags) -> rustix::io::Result<File> {
    match open_io(&path_fd, access | OFlags::NOATIME) {
        Err(Errno::PERM) => open_io(&path_fd, access),
        other => other,
    }
}

/// Lets the backing filesystem count a read: it moves atime by the rules of its own mount. Setting atime would move
/// ctime too.
pub fn access(path_fd: impl AsFd) {
    if let Ok(file) = open_io(path_fd, OFlags::RDONLY) {
        let _ = rustix::io::read(&file, &mut [0u8; 1]);
    }
}

/// Takes a write lease: the kernel grants it only while no other process has the file open or mapped.
pub fn lease(file: &File) -> rustix::io::Result<()> {
    static IGNORE_SIGIO: std::sync::Once = std::sync::Once::new();
    IGNORE_SIGIO.call_once(|| {
        // SAFETY: SIG_IGN is a valid disposition. The kernel reports a broken lease by SIGIO, whose default action
        // ends the process. The thread that wants the file drops the lease itself, so the signal is not needed.
        unsafe {
            libc::signal(libc::SIGIO, libc::SIG_IGN);
        }
    });
    set_lease(file, libc::F_WRLCK)
}

/// Drops the lease, if it is still held.
pub fn unlease(file: &File) {
    let _ = set_lease(file, libc::F_UNLCK);
}

/// Returns whether the write lease is held and no process waits for its release.
pub fn holds_lease(file: &File) -> bool {
    // SAFETY: F_GETLEASE takes no argument and reads nothing of ours.
    unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETLEASE) == libc::F_WRLCK }
}

fn set_lease(file: &File, kind: libc::c_int) -> rustix::io::Result<()> {
    // SAFETY: F_SETLEASE takes an integer; the descriptor is open for as long as `file` lives.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, kind) } == 0 {
        Ok(())
    } else {
        Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))
    }
}

/// Modification time of a stat result.
pub fn mtime(stat: &Stat) -> Time {
    Time { sec: stat.st_mtime, nsec: stat.st_mtime_nsec as u32 }
}

/// Inode change time of a stat result.
pub fn ctime(stat: &Stat) -> Time {
    Time { sec: stat.st_ctime, nsec: stat.st_ctime_nsec as u32 }
}

/// Returns when the inode was created, if its filesystem records that.
pub fn birth(fd: impl AsFd) -> rustix::io::Result<Option<Time>> {
    let stat = match fs::statx(fd, "", AtFlags::EMPTY_PATH, StatxFlags::BTIME) {
        Err(Errno::NOSYS) => return Ok(None),
        stat => stat?,
    };
    let known = stat.stx_mask & StatxFlags::BTIME.bits() != 0;
    Ok(known.then_some(Time { sec: stat.stx_btime.tv_sec, nsec: stat.stx_btime.tv_nsec }))
}

/// Identity of a stat result.
pub fn identity(stat: &Stat) -> Identity {
    Identity { dev: stat.st_dev, ino: stat.st_ino }
}

/// Sets access and modification time; `None` leaves one as it is.
pub fn set_times(
    path_fd: impl AsFd,
    atime: Option<SetTime>,
    mtime: Option<SetTime>,
) -> rustix::io::Result<()> {
    let spec = |time: Option<SetTime>| match time {
        None => Timespec { tv_sec: 0, tv_nsec: fs::UTIME_OMIT as _ },
        Some(SetTime::Now) => Timespec { tv_sec: 0, tv_nsec: fs::UTIME_NOW as _ },
        Some(SetTime::At(time)) => Timespec { tv_sec: time.sec, tv_nsec: time.nsec.into() },
    };
    let times = Timestamps { last_access: spec(atime), last_modification: spec(mtime) };
    fs::utimensat(CWD, proc_path(path_fd), &times, AtFlags::empty())
}

/// Sets the modification time of an open file.
pub fn set_mtime(file: impl AsFd, mtime: Time) -> rustix::io::Result<()> {
    let omit = Timespec { tv_sec: 0, tv_nsec: fs::UTIME_OMIT as _ };
    let last_modification = Timespec { tv_sec: mtime.sec, tv_nsec: mtime.nsec.into() };
    fs::futimens(file, &Timestamps { last_access: omit, last_modification })
}

/// Kind of an inode by its mode.
pub fn kind(mode: u32) -> Kind {
    match fs::FileType::from_raw_mode(mode) {
        fs::FileType::Directory => Kind::Directory,
        fs::FileType::Symlink => Kind::Symlink,
        fs::FileType::Fifo => Kind::Fifo,
        fs::FileType::Socket => Kind::Socket,
        fs::FileType::CharacterDevice => Kind::CharDevice,
        fs::FileType::BlockDevice => Kind::BlockDevice,
        _ => Kind::File,
    }
}

/// Attributes as the backing filesystem has them.
pub fn attr(node: NodeId, stat: &Stat) -> Attr {
    Attr {
        node,
        kind: kind(stat.st_mode),
        perm: (stat.st_mode & 0o7777) as u16,
        size: stat.st_size as u64,
        blocks: stat.st_blocks as u64,
        nlink: stat.st_nlink as u32,
        uid: stat.st_uid,
        gid: stat.st_gid,
        rdev: stat.st_rdev,
        blksize: stat.st_blksize as u32,
        atime: Time { sec: stat.st_atime, nsec: stat.st_atime_nsec as u32 },
        mtime: mtime(stat),
        ctime: ctime(stat),
        settled: true,
        changed: false,
    }
}

/// The xattr `name`, or `None` if there is none. Any other failure is an error.
pub fn get_xattr(path_fd: impl AsFd, name: &OsStr) -> rustix::io::Result<Option<Vec<u8>>> {
    let path = proc_path(path_fd);
    match grow_to_fit(|buffer| fs::getxattr(&path, name, buffer)) {
        Ok(value) => Ok(Some(value)),
        Err(Errno::NODATA) => Ok(None),
        Err(e) => Err(e),
    }
}

/// Names of all xattrs, each ended by a zero byte.
pub fn list_xattrs(path_fd: impl AsFd) -> rustix::io::Result<Vec<u8>> {
    let path = proc_path(path_fd);
    grow_to_fit(|buffer| fs::listxattr(&path, buffer))
}

/// Calls `read` with a buffer, then with a larger one if the value does not fit, up to the kernel's limit.
fn grow_to_fit(mut read: impl FnMut(&mut [u8]) -> rustix::io::Result<usize>) -> rustix::io::Result<Vec<u8>> {
    let mut value = vec![0; 256];
    let len = match read(&mut value) {
        Err(Errno::RANGE) => {
            value = vec![0; XATTR_BYTES_MAX];
            read(&mut value)?
        }
        other => other?,
    };
    value.truncate(len);
    Ok(value)
}

/// Whether a name in the root is hidden from users of the overlay.
pub fn is_hidden(name: &OsStr) -> bool {
    name.as_bytes() == STATE_DIR.as_bytes() || name.as_bytes() == NOTE.as_bytes()
}
