//! A disk that writes down what it is told: a FUSE filesystem with one file, to be the image of a loop device.
//!
//! The loop driver turns each flush (and each write with FUA) of the block layer into an fsync of that file, so what is
//! logged here is what a disk would have seen. It is what dm-log-writes does, without the device mapper.
//!
//! Always true: a write is in the log before it is answered, and so before any flush that was to cover it.
//!
//! Should this process be killed while it waits for the filesystem above, nobody answers the kernel any more:
//! `echo 1 > /sys/fs/fuse/connections/*/abort` of a connection that hangs lets it go. [`Recorder`] does the
//! same by itself after [`HANG`].

use super::log::{Event, Log};
use fuser::{
    BackgroundSession, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation,
    INodeNo, KernelConfig, LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyEntry,
    ReplyOpen, ReplyWrite, Request, TimeOrNow, WriteFlags,
};
use std::ffi::OsStr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime};

const NAME: &str = "disk.img";
const FILE: INodeNo = INodeNo(2);
const TTL: Duration = Duration::from_secs(3600);
/// So long a recording may take before it is given up.
const HANG: Duration = Duration::from_secs(500);

#[derive(Default)]
struct Disk {
    bytes: Vec<u8>,
    /// As it was when the recording began, if it has.
    base: Option<Vec<u8>>,
    events: Vec<Event>,
    /// Writes with these bytes in them fail.
    refused: Option<&'static [u8]>,
}

/// The disk, while it is there.
pub struct Recorder {
    disk: Arc<Mutex<Disk>>,
    session: Option<BackgroundSession>,
    at: PathBuf,
    _watchdog: Sender<()>,
}

impl Recorder {
    /// Mounts a disk of `len` zeros at the directory `at`.
    pub fn new(at: &Path, len: usize) -> Recorder {
        let disk = Arc::new(Mutex::new(Disk { bytes: vec![0; len], ..Disk::default() }));
        let mut config = Config::default();
        config.mount_options = vec![MountOption::FSName("powercut".to_owned())];
        config.n_threads = Some(2);
        let session =
            fuser::spawn_mount(DiskFs(disk.clone()), at, &config).expect("a FUSE filesystem mounts");
        Recorder { disk, session: Some(session), at: at.to_owned(), _watchdog: watch(at) }
    }

    /// The file to be a disk.
    pub fn image(&self) -> PathBuf {
        self.at.join(NAME)
    }

    /// Begins to record.
    pub fn start(&self) {
        let mut disk = lock(&self.disk);
        disk.base = Some(disk.bytes.clone());
    }

    /// Makes writes with these bytes in them fail, or none any more.
    pub fn refuse(&self, bytes: Option<&'static [u8]>) {
        lock(&self.disk).refused = bytes;
    }

    /// How many events there were so far.
    pub fn position(&self) -> usize {
        lock(&self.disk).events.len()
    }

    /// Ends; nothing may use the disk any more.
    pub fn finish(mut self) -> Log {
        self.session.take().expect("it is there until now").umount_and_join().expect("nobody uses the disk");
        let mut disk = lock(&self.disk);
        let base = disk.base.take().expect("it was started");
        Log { base, events: std::mem::take(&mut disk.events) }
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        if self.session.take().is_some() {
            let _ = rustix::mount::unmount(&self.at, rustix::mount::UnmountFlags::DETACH);
        }
    }
}

/// Aborts the connection if it is still there after [`HANG`]: then all that waits for it fails.
fn watch(at: &Path) -> Sender<()> {
    let (alive, ended) = channel::<()>();
    let minor = rustix::fs::minor(std::fs::metadata(at).expect("it was just mounted").dev());
    std::thread::spawn(move || {
        if ended.recv_timeout(HANG) == Err(RecvTimeoutError::Timeout) {
            let _ = std::fs::write(format!("/sys/fs/fuse/connections/{minor}/abort"), "1");
        }
    });
    alive
}

fn lock(disk: &Mutex<Disk>) -> MutexGuard<'_, Disk> {
    disk.lock().expect("no thread panicked with it")
}

struct DiskFs(Arc<Mutex<Disk>>);

impl DiskFs {
    fn attr(&self, ino: INodeNo) -> FileAttr {
        let size = if ino == FILE { lock(&self.0).bytes.len() as u64 } else { 0 };
        let (kind, perm) =
            if ino == FILE { (FileType::RegularFile, 0o600) } else { (FileType::Directory, 0o700) };
        let then = SystemTime::UNIX_EPOCH;
        FileAttr {
            ino,
            size,
            blocks: size / 512,
            atime: then,
            mtime: then,
            ctime: then,
            crtime: then,
            kind,
            perm,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }
}

impl Filesystem for DiskFs {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        let _ = config.set_max_write(1 << 20);
        Ok(())
    }

    fn lookup(&self, _request: &Request, _parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match name == NAME {
            true => reply.entry(&TTL, &self.attr(FILE), Generation(0)),
            false => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _request: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&TTL, &self.attr(ino));
    }

    fn setattr(
        &self,
        _request: &Request,
        ino: INodeNo,
        _mode: Option<u32>,
        _uid: Option<u32>,
        _gid: Option<u32>,
        size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<fuser::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        match size {
            None => reply.attr(&TTL, &self.attr(ino)),
            Some(_) => reply.error(Errno::EPERM),
        }
    }

    fn open(&self, _request: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), FopenFlags::FOPEN_DIRECT_IO);
    }

    fn read(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let disk = lock(&self.0);
        let start = (offset as usize).min(disk.bytes.len());
        let end = (start + size as usize).min(disk.bytes.len());
        reply.data(&disk.bytes[start..end]);
    }

    fn write(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let offset = offset as usize;
        let mut disk = lock(&self.0);
        if offset + data.len() > disk.bytes.len() {
            return reply.error(Errno::ENOSPC);
        }
        let is_refused = |refused: &[u8]| data.windows(refused.len()).any(|bytes| bytes == refused);
        if disk.refused.is_some_and(is_refused) {
            return reply.error(Errno::EIO);
        }
        disk.bytes[offset..offset + data.len()].copy_from_slice(data);
        if disk.base.is_some() {
            disk.events.push(Event::Write { offset, bytes: data.into() });
        }
        drop(disk);
        reply.written(data.len() as u32);
    }

    fn fsync(&self, _request: &Request, _ino: INodeNo, _fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        let mut disk = lock(&self.0);
        if disk.base.is_some() {
            disk.events.push(Event::Flush);
        }
        drop(disk);
        reply.ok();
    }

    /// No holes and no zeroing: then the kernel writes its zeros, and they are in the log as all else is.
    fn fallocate(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _offset: u64,
        _length: u64,
        _mode: i32,
        reply: ReplyEmpty,
    ) {
        reply.error(Errno::EOPNOTSUPP);
    }
}
