//! A filesystem that keeps names and lengths and nothing else, in memory: what each operation costs at least by way of
//! FUSE and fuser, however little is done for it. What is written is forgotten, what is read is zeros.

use fuser::{
    Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags,
    KernelConfig, LockOwner, MountOption, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite, Request, Session,
    SessionACL, WriteFlags,
};
use std::collections::{BTreeMap, HashMap};
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, UNIX_EPOCH};

const TTL: Duration = Duration::from_secs(1);

/// Serves until it is unmounted.
pub(super) fn serve(mountpoint: &Path) {
    let mut config = Config::default();
    config.mount_options = vec![MountOption::FSName("null".to_owned()), MountOption::DefaultPermissions];
    config.acl = SessionACL::All;
    // More take longer: they are woken by turns.
    config.n_threads = Some(1);
    let root = HashMap::from([(1, FileType::Directory)]);
    let tree = Mutex::new(Tree { kinds: root, sizes: HashMap::new(), names: BTreeMap::new(), next: 2 });
    Session::new(NullFs(tree), mountpoint, &config).unwrap().run().unwrap();
}

struct NullFs(Mutex<Tree>);

struct Tree {
    kinds: HashMap<u64, FileType>,
    sizes: HashMap<u64, u64>,
    names: BTreeMap<(u64, OsString), u64>,
    next: u64,
}

impl Tree {
    fn make(&mut self, parent: INodeNo, name: &OsStr, kind: FileType) -> FileAttr {
        let ino = self.next;
        self.next += 1;
        self.kinds.insert(ino, kind);
        self.names.insert((parent.0, name.to_owned()), ino);
        attr(ino, kind)
    }

    fn attr(&self, ino: u64) -> Option<FileAttr> {
        let found = attr(ino, *self.kinds.get(&ino)?);
        Some(FileAttr { size: self.sizes.get(&ino).copied().unwrap_or(0), ..found })
    }

    fn list(&self, dir: INodeNo, from: u64, mut add: impl FnMut(&OsStr, u64, FileType, u64) -> bool) {
        let first = (dir.0, OsString::new());
        let entries = self.names.range(first..).take_while(|((parent, _), _)| *parent == dir.0);
        for (next, ((_, name), ino)) in (1..).zip(entries).skip(from as usize) {
            if add(name, *ino, self.kinds[ino], next) {
                return;
            }
        }
    }
}

fn attr(ino: u64, kind: FileType) -> FileAttr {
    FileAttr {
        ino: INodeNo(ino),
        size: 0,
        blocks: 0,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind,
        perm: 0o777,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}

impl NullFs {
    fn tree(&self) -> MutexGuard<'_, Tree> {
        self.0.lock().unwrap()
    }
}

impl Filesystem for NullFs {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        for flag in [
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_DO_READDIRPLUS,
            InitFlags::FUSE_READDIRPLUS_AUTO,
            InitFlags::FUSE_POSIX_ACL,
            // Else the kernel asks for capabilities before each write.
            InitFlags::FUSE_HANDLE_KILLPRIV_V2,
        ] {
            let _ = config.add_capabilities(flag);
        }
        let _ = config.set_max_write(1 << 20);
        Ok(())
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let tree = self.tree();
        match tree.names.get(&(parent.0, name.to_owned())) {
            Some(ino) => reply.entry(&TTL, &tree.attr(*ino).unwrap(), Generation(0)),
            None => reply.entry(&TTL, &attr(0, FileType::RegularFile), Generation(0)),
        }
    }

    fn getattr(&self, _request: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        match self.tree().attr(ino.0) {
            Some(found) => reply.attr(&TTL, &found),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getxattr(&self, _: &Request, _: INodeNo, _: &OsStr, _: u32, reply: fuser::ReplyXattr) {
        reply.error(Errno::ENODATA);
    }

    fn mkdir(&self, _: &Request, parent: INodeNo, name: &OsStr, _mode: u32, _umask: u32, reply: ReplyEntry) {
        reply.entry(&TTL, &self.tree().make(parent, name, FileType::Directory), Generation(0));
    }

    fn create(
        &self,
        _request: &Request,
        parent: INodeNo,
        name: &OsStr,
        _mode: u32,
        _umask: u32,
        _flags: i32,
        reply: ReplyCreate,
    ) {
        let made = self.tree().make(parent, name, FileType::RegularFile);
        reply.created(&TTL, &made, Generation(0), FileHandle(0), FopenFlags::FOPEN_KEEP_CACHE);
    }

    fn open(&self, _request: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), FopenFlags::FOPEN_KEEP_CACHE);
    }

    fn read(
        &self,
        _request: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        static ZEROS: [u8; 1 << 20] = [0; 1 << 20];
        let len = self.tree().sizes.get(&ino.0).copied().unwrap_or(0).saturating_sub(offset).min(size.into());
        reply.data(&ZEROS[..(len as usize).min(ZEROS.len())]);
    }

    fn write(
        &self,
        _request: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let mut tree = self.tree();
        let size = tree.sizes.entry(ino.0).or_default();
        *size = (*size).max(offset + data.len() as u64);
        reply.written(data.len() as u32);
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    fn release(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        reply.ok();
    }

    fn unlink(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.tree().names.remove(&(parent.0, name.to_owned()));
        reply.ok();
    }

    fn rename(
        &self,
        _request: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        _flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let mut tree = self.tree();
        match tree.names.remove(&(parent.0, name.to_owned())) {
            Some(ino) => {
                tree.names.insert((newparent.0, newname.to_owned()), ino);
                reply.ok();
            }
            None => reply.error(Errno::ENOENT),
        }
    }

    fn readdir(&self, _: &Request, ino: INodeNo, _: FileHandle, from: u64, mut reply: ReplyDirectory) {
        self.tree().list(ino, from, |name, ino, kind, next| reply.add(INodeNo(ino), next, kind, name));
        reply.ok();
    }

    fn readdirplus(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        from: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        self.tree().list(ino, from, |name, ino, kind, next| {
            reply.add(INodeNo(ino), next, name, &TTL, &attr(ino, kind), Generation(0))
        });
        reply.ok();
    }
}
