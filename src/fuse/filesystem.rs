//! The kernel's requests, one method each.

use super::convert::{self, GENERATION, TTL_CHANGED, attr, kind, node};
use super::errno::errno;
use super::keeper::Keeper;
use super::labels::Labels;
use super::listings::Listings;
use super::privilege;
use super::request::{cached_flags, caller, empty, open_flags, passed_flags, shown_to, sized};
use super::setid::{self, Change};
use super::snapshots::Snapshots;
use super::spliced::Spliced;
use super::table::Table;
use super::thread_parking::{ActiveThread, ThreadParking};
use crate::backing::types::{Attr, Kind, ROOT, SetAttr};
use crate::contents::OverlayError;
use crate::history::Browse;
use crate::overlay::Overlay;
use crate::tree::requester;
use crate::tree::{DirHandle, Handle, Io, Opened, PassToken};
use fuser::{
    BackingId, BsdFileFlags, Errno, FileHandle, Filesystem, INodeNo, InitFlags, KernelConfig, LockOwner,
    OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus,
    ReplyEmpty, ReplyEntry, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow,
    WriteFlags,
};
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// Every inode of the mount answers this xattr with the address of the daemon. It is not listed.
pub(super) const CONTROL_XATTR: &str = "user.dedupfs.control";
const ACL_XATTR: &str = "system.posix_acl_access";
const WRITE_BYTES_MAX: u32 = 1 << 20;
/// Longer reads that need decoding take long.
const QUICK_BYTES: usize = 32 << 10;

/// An overlay as a fuser filesystem.
pub(super) struct OverlayFs {
    overlay: Arc<Overlay>,
    snapshots: Snapshots,
    files: Table<Handle>,
    dirs: Table<DirHandle>,
    /// How long the kernel may trust names and attributes.
    ttl: Duration,
    /// Listings that the kernel may cache: it drops one when it changes the directory itself, or sees its
    /// mtime change.
    keeper: Keeper,
    passthrough: bool,
    /// Whether the kernel leaves dropping setuid and setgid bits to the daemon. Otherwise it asks for a
    /// file's capabilities before each write.
    drops_bits: bool,
    /// Whether the bits stay when the daemon changes a file: an ordinary user's changes drop them below.
    bits_stay: bool,
    control_info: Vec<u8>,
    labels: Labels,
    listings: Listings,
    parking: ThreadParking,
    spliced: Spliced,
}

impl OverlayFs {
    pub(super) fn new(
        overlay: Arc<Overlay>,
        snapshots: Browse,
        ttl: Duration,
        keep_listings: bool,
        passthrough: bool,
        control_info: Vec<u8>,
        threads: usize,
    ) -> OverlayFs {
        let (files, dirs, parking) = (Table::new(), Table::new(), ThreadParking::new(threads));
        OverlayFs {
            overlay,
            snapshots: Snapshots::new(snapshots),
            files,
            dirs,
            ttl,
            keeper: Keeper::new(keep_listings),
            passthrough,
            drops_bits: false,
            bits_stay: !privilege::drops_setid(),
            control_info,
            labels: Labels::of_kernel(),
            listings: Listings::default(),
            parking,
            spliced: Spliced::default(),
        }
    }

    /// Whether a file may lose mode bits without the kernel noticing.
    fn may_lose_bits(&self, attr: &Attr) -> bool {
        let setid = (libc::S_ISUID | libc::S_ISGID) as u16;
        self.drops_bits && attr.kind == Kind::File && attr.perm & setid != 0
    }

    fn attr_ttl(&self, attr: &Attr) -> Duration {
        match (attr.settled, attr.changed) {
            _ if self.may_lose_bits(attr) => Duration::ZERO,
            (true, false) => self.ttl,
            (true, true) => self.ttl.min(TTL_CHANGED),
            (false, _) => Duration::ZERO,
        }
    }

    /// Takes a turn for reading this many bytes.
    fn turn_to_read(&self, bytes: usize) -> ActiveThread<'_> {
        if bytes > QUICK_BYTES { self.parking.take_long() } else { self.parking.take() }
    }

    fn entry(&self, reply: ReplyEntry, result: Result<Attr, OverlayError>) {
        match result {
            Ok(found) => reply.entry_with_ttls(&self.attr_ttl(&found), &self.ttl, &attr(&found), GENERATION),
            Err(e) => reply.error(errno(&e)),
        }
    }

    fn attr(&self, reply: ReplyAttr, result: Result<Attr, OverlayError>) {
        match result {
            Ok(found) => reply.attr(&self.attr_ttl(&found), &attr(&found)),
            Err(e) => reply.error(errno(&e)),
        }
    }

    /// Returns the errno of a read-only filesystem if one of these nodes is in a snapshot.
    fn refuses(nodes: &[INodeNo]) -> Option<Errno> {
        nodes.iter().any(|ino| Browse::owns(node(*ino))).then_some(Errno::EROFS)
    }

    /// Registers a file with the kernel if passthrough is on. After any failure the daemon does the I/O.
    fn register(
        &self,
        register: impl FnOnce(&File) -> io::Result<BackingId>,
        file: &File,
    ) -> Option<PassToken> {
        if !self.passthrough {
            return None;
        }
        match register(file) {
            Ok(id) => Some(Arc::new(id)),
            Err(e) => {
                tracing::debug!("no passthrough for a file: {e}");
                None
            }
        }
    }
}

impl Filesystem for OverlayFs {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        for wanted in [
            InitFlags::FUSE_ATOMIC_O_TRUNC,
            InitFlags::FUSE_CACHE_SYMLINKS,
            InitFlags::FUSE_DONT_MASK,
            InitFlags::FUSE_DO_READDIRPLUS,
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_POSIX_ACL,
            InitFlags::FUSE_READDIRPLUS_AUTO,
        ] {
            // A kernel without one of these works too, only slower.
            let _ = config.add_capabilities(wanted);
        }
        self.drops_bits = config.add_capabilities(InitFlags::FUSE_HANDLE_KILLPRIV_V2).is_ok();
        if self.passthrough {
            let depth = config.set_max_stack_depth(1);
            self.passthrough = depth.is_ok() && config.add_capabilities(InitFlags::FUSE_PASSTHROUGH).is_ok();
        }
        self.overlay.tree.set_passes(self.passthrough);
        let _ = config.set_max_write(WRITE_BYTES_MAX);
        let _ = config.set_max_background(64);
        Ok(())
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let _turn = self.parking.take();
        let found = match Browse::owns(node(parent)) {
            true => self.snapshots.browse.lookup(node(parent), name),
            false => match self.overlay.tree.lookup(node(parent), name) {
                Err(OverlayError::Os(rustix::io::Errno::NOENT)) if node(parent) == ROOT => {
                    self.snapshots.browse.lookup(ROOT, name)
                }
                found => found,
            },
        };
        // Directories are looked up on the way down, whatever the program wants of files.
        if found.as_ref().is_ok_and(|found| found.kind != Kind::Directory) {
            self.listings.looked_up(node(parent));
        }
        match found {
            // Snapshots come and go without notice to the kernel.
            Ok(found) if Browse::owns(found.node) => {
                reply.entry_with_ttls(&TTL_CHANGED, &TTL_CHANGED, &attr(&found), GENERATION);
            }
            Err(e) if Browse::owns(node(parent)) => reply.error(errno(&e)),
            // Number 0 lets the kernel cache the absence of a name. Otherwise it would ask again for each new
            // file, and for each directory that a compiler searches.
            Err(OverlayError::Os(rustix::io::Errno::NOENT)) => {
                reply.entry_with_ttls(&self.ttl, &self.ttl, &convert::NOTHING, GENERATION);
            }
            result => self.entry(reply, result),
        }
    }

    /// Called many times for one request if the kernel forgets many inodes.
    fn forget(&self, _request: &Request, ino: INodeNo, lookups: u64) {
        let _turn = self.parking.take_part();
        match Browse::owns(node(ino)) {
            true => self.snapshots.browse.forget(node(ino), lookups),
            false => self.overlay.tree.forget(node(ino), lookups),
        }
    }

    fn getattr(&self, _request: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        let _turn = self.parking.take();
        let found = match Browse::owns(node(ino)) {
            true => self.snapshots.browse.getattr(node(ino)),
            false => self.overlay.tree.getattr(node(ino)),
        };
        self.attr(reply, found);
    }

    fn setattr(
        &self,
        request: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        if let Some(refused) = Self::refuses(&[ino]) {
            return reply.error(refused);
        }
        let _turn = if size.is_some() { self.parking.take_long() } else { self.parking.take() };
        let _by = requester::serve(request.pid());
        let (atime, mtime) = (atime.map(convert::set_time), mtime.map(convert::set_time));
        let set = SetAttr { mode, uid, gid, size, atime, mtime };
        let change = match set {
            _ if !self.drops_bits => None,
            SetAttr { mode: None, uid: None, gid: None, size: None, atime: None, mtime: None } => {
                Some(Change::Nothing)
            }
            _ if !self.bits_stay => None,
            SetAttr { size: Some(_), .. } => Some(Change::Content),
            SetAttr { uid, gid, .. } => uid.or(gid).map(|_| Change::Owner),
        };
        let drop = |change| setid::drop_bits(&self.overlay, request, ino, change);
        let dropped = change.map_or(Ok(()), drop);
        self.attr(reply, dropped.and_then(|()| self.overlay.tree.setattr(node(ino), set)));
    }

    fn readlink(&self, _request: &Request, ino: INodeNo, reply: ReplyData) {
        let _turn = self.parking.take();
        let target = match Browse::owns(node(ino)) {
            true => self.snapshots.browse.readlink(node(ino)),
            false => self.overlay.tree.readlink(node(ino)),
        };
        match target {
            Ok(target) => reply.data(&target),
            Err(e) => reply.error(errno(&e)),
        }
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        if let Some(refused) = Self::refuses(&[parent]) {
            return reply.error(refused);
        }
        let _turn = self.parking.take();
        let rdev = convert::decode_dev(rdev);
        self.entry(reply, self.overlay.tree.mknod(node(parent), name, mode, rdev, caller(request, umask)));
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        if let Some(refused) = Self::refuses(&[parent]) {
            return reply.error(refused);
        }
        let _turn = self.parking.take();
        let _by = requester::serve(request.pid());
        self.entry(reply, self.overlay.tree.mkdir(node(parent), name, mode, caller(request, umask)));
    }

    fn unlink(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        if let Some(refused) = Self::refuses(&[parent]) {
            return reply.error(refused);
        }
        let _turn = self.parking.take();
        let _by = requester::serve(request.pid());
        empty(reply, self.overlay.tree.unlink(node(parent), name));
    }

    fn rmdir(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        if let Some(refused) = Self::refuses(&[parent]) {
            return reply.error(refused);
        }
        let _turn = self.parking.take();
        let _by = requester::serve(request.pid());
        empty(reply, self.overlay.tree.rmdir(node(parent), name));
    }

    fn symlink(&self, request: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        if let Some(refused) = Self::refuses(&[parent]) {
            return reply.error(refused);
        }
        let _turn = self.parking.take();
        let _by = requester::serve(request.pid());
        self.entry(reply, self.overlay.tree.symlink(node(parent), name, target, caller(request, 0)));
    }

    fn rename(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        if let Some(refused) = Self::refuses(&[parent, newparent]) {
            return reply.error(refused);
        }
        let _turn = self.parking.take();
        let _by = requester::serve(request.pid());
        let (from, to) = ((node(parent), name), (node(newparent), newname));
        empty(reply, self.overlay.tree.rename(from, to, flags.bits(), caller(request, 0)));
    }

    fn link(&self, request: &Request, ino: INodeNo, newparent: INodeNo, newname: &OsStr, reply: ReplyEntry) {
        if let Some(refused) = Self::refuses(&[ino, newparent]) {
            return reply.error(refused);
        }
        let _turn = self.parking.take();
        let _by = requester::serve(request.pid());
        self.entry(reply, self.overlay.tree.link(node(ino), node(newparent), newname));
    }

    fn open(&self, request: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let _turn = self.parking.take();
        if Browse::owns(node(ino)) {
            return self.snapshots.open(node(ino), flags, reply);
        }
        let register = |file: &File| self.register(|file| reply.open_backing(file), file);
        match self.overlay.tree.open(node(ino), open_flags(flags.0), &register) {
            Ok(Opened { handle, io }) => {
                if flags.0 & libc::O_TRUNC != 0
                    && self.bits_stay
                    && let Err(e) = setid::drop_bits(&self.overlay, request, ino, Change::Content)
                {
                    tracing::error!("an emptied file keeps its setuid bit: {e}");
                }
                let fh = self.files.add(handle);
                match &io {
                    Io::Cached { keep_pages } => reply.opened(fh, cached_flags(*keep_pages)),
                    Io::Pass(token) => match token.downcast_ref::<BackingId>() {
                        Some(id) => reply.opened_passthrough(fh, passed_flags(flags.0), id),
                        None => reply.error(Errno::EIO),
                    },
                }
            }
            Err(e) => reply.error(errno(&e)),
        }
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        if let Some(refused) = Self::refuses(&[parent]) {
            return reply.error(refused);
        }
        let _turn = self.parking.take();
        let register = |file: &File| self.register(|file| reply.open_backing(file), file);
        let (caller, passed) = (caller(request, umask), passed_flags(flags));
        match self.overlay.tree.create(node(parent), name, mode, caller, open_flags(flags), &register) {
            Ok((made, Opened { handle, io })) => {
                let fh = self.files.add(handle);
                // The creator writes next, past the daemon. The kernel notices that, except through mappings.
                let ttl = if self.may_lose_bits(&made) { Duration::ZERO } else { self.ttl.min(TTL_CHANGED) };
                let made = attr(&made);
                match &io {
                    Io::Cached { keep_pages } => {
                        reply.created(&ttl, &made, GENERATION, fh, cached_flags(*keep_pages));
                    }
                    Io::Pass(token) => match token.downcast_ref::<BackingId>() {
                        Some(id) => reply.created_passthrough(&ttl, &made, GENERATION, fh, passed, id),
                        None => reply.error(Errno::EIO),
                    },
                }
            }
            Err(e) => reply.error(errno(&e)),
        }
    }

    fn read(
        &self,
        _request: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let _turn = self.turn_to_read(size as usize);
        if Browse::owns(node(ino)) {
            return self.snapshots.read(fh, offset, size, reply);
        }
        let read = self.files.get(fh).and_then(|handle| {
            // Only reads past the page cache have a lock owner.
            let spliced = lock_owner.is_none() && handle.is_passed();
            Ok((self.overlay.tree.read(&handle, offset, size as usize)?, spliced))
        });
        match read {
            Ok((data, spliced)) => {
                reply.data(&data);
                if spliced {
                    self.spliced.read(&self.overlay, node(ino), offset..offset + u64::from(size));
                }
            }
            Err(e) => reply.error(errno(&e)),
        }
    }

    fn write(
        &self,
        request: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let syncs = flags.0 & libc::O_DSYNC != 0;
        let _turn = if syncs { self.parking.take_long() } else { self.parking.take() };
        let dropped = match self.bits_stay && write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID) {
            true => setid::drop_bits(&self.overlay, request, ino, Change::Marked),
            false => Ok(()),
        };
        let handle = dropped.and_then(|()| self.files.get(fh));
        let written = handle.and_then(|handle| {
            let written = self.overlay.tree.write(&handle, offset, data)?;
            // For a file without passthrough the kernel itself requests the sync.
            if syncs && handle.is_passed() {
                self.overlay.tree.fsync(&handle, flags.0 & libc::O_SYNC != libc::O_SYNC)?;
            }
            Ok(written)
        });
        match written {
            Ok(len) => reply.written(len as u32),
            Err(e) => reply.error(errno(&e)),
        }
    }

    fn flush(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        // Nothing is buffered here that a close would have to flush; the kernel need not ask again.
        reply.error(Errno::ENOSYS);
    }

    fn release(
        &self,
        _request: &Request,
        ino: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        let _turn = self.parking.take();
        if Browse::owns(node(ino)) {
            self.snapshots.release(fh);
            return reply.ok();
        }
        if let Some(handle) = self.files.remove(fh) {
            self.overlay.tree.release(&handle);
        }
        reply.ok();
    }

    fn fsync(&self, _request: &Request, ino: INodeNo, fh: FileHandle, datasync: bool, reply: ReplyEmpty) {
        if Browse::owns(node(ino)) {
            return reply.ok();
        }
        let _turn = self.parking.take_long();
        empty(reply, self.files.get(fh).and_then(|handle| self.overlay.tree.fsync(&handle, datasync)));
    }

    fn opendir(&self, _request: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let _turn = self.parking.take();
        if Browse::owns(node(ino)) {
            return self.snapshots.opendir(node(ino), reply);
        }
        match self.overlay.tree.opendir(node(ino)) {
            Ok(dir) => {
                let handle = self.dirs.add(Arc::new(dir));
                reply.opened(handle, self.keeper.opened(node(ino), handle));
            }
            Err(e) => reply.error(errno(&e)),
        }
    }

    fn readdir(
        &self,
        _request: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let _turn = self.parking.take();
        if Browse::owns(node(ino)) {
            return self.snapshots.readdir(fh, offset, reply);
        }
        let listed = self.dirs.get(fh).and_then(|dir| {
            self.overlay.tree.readdir(&dir, offset, |entry| {
                let known = entry.kind.map_or(fuser::FileType::RegularFile, kind);
                !reply.add(INodeNo(entry.node.0), entry.next, known, entry.name)
            })
        });
        match listed {
            Ok(()) => reply.ok(),
            Err(e) => reply.error(errno(&e)),
        }
    }

    fn readdirplus(
        &self,
        _request: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let _turn = self.parking.take();
        if Browse::owns(node(ino)) {
            return self.snapshots.readdirplus(ino, fh, offset, reply);
        }
        let most = if offset == 0 { self.listings.begin(node(ino)) } else { usize::MAX };
        let mut entries = 0;
        let listed = self.dirs.get(fh).and_then(|dir| {
            self.overlay.tree.readdir(&dir, offset, |entry| {
                entries += 1;
                if entries > most {
                    return false;
                }
                let dots = matches!(entry.name.as_bytes(), b"." | b"..");
                let found = if dots {
                    // The kernel uses only the number of these.
                    self.overlay.tree.getattr(node(ino)).map(|dir| Attr { node: entry.node, ..dir })
                } else {
                    self.overlay.tree.lookup_listed(node(ino), entry.name)
                };
                // An entry that disappeared since it was listed is omitted.
                let Ok(found) = found else { return true };
                let ttl = self.attr_ttl(&found);
                let number = INodeNo(found.node.0);
                let full = reply.add(number, entry.next, entry.name, &ttl, &attr(&found), GENERATION);
                if full && !dots {
                    self.overlay.tree.forget(found.node, 1);
                }
                !full
            })
        });
        match listed {
            Ok(()) => reply.ok(),
            Err(e) => reply.error(errno(&e)),
        }
    }

    fn releasedir(
        &self,
        _request: &Request,
        ino: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        reply: ReplyEmpty,
    ) {
        let _turn = self.parking.take();
        if Browse::owns(node(ino)) {
            self.snapshots.releasedir(fh);
            return reply.ok();
        }
        self.dirs.remove(fh);
        self.keeper.closed(node(ino), fh);
        reply.ok();
    }

    fn fsyncdir(&self, _request: &Request, ino: INodeNo, fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        if Browse::owns(node(ino)) {
            return reply.ok();
        }
        let _turn = self.parking.take_long();
        empty(reply, self.dirs.get(fh).and_then(|dir| self.overlay.tree.fsyncdir(&dir)));
    }

    fn statfs(&self, _request: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        let _turn = self.parking.take();
        match self.overlay.tree.statfs() {
            Ok(s) => reply.statfs(
                s.f_blocks,
                s.f_bfree,
                s.f_bavail,
                s.f_files,
                s.f_ffree,
                s.f_bsize as u32,
                s.f_namemax as u32,
                s.f_frsize as u32,
            ),
            Err(e) => reply.error(errno(&e)),
        }
    }

    fn setxattr(
        &self,
        request: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        if let Some(refused) = Self::refuses(&[ino]) {
            return reply.error(refused);
        }
        let _turn = self.parking.take();
        let _by = requester::serve(request.pid());
        let mut set = self.overlay.tree.setxattr(node(ino), name, value, flags as u32);
        if name == ACL_XATTR {
            set = set.and_then(|()| setid::drop_setgid_of_strangers(&self.overlay, request, ino));
        }
        empty(reply, set);
    }

    fn getxattr(&self, _request: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let _turn = self.parking.take();
        let value = if name == CONTROL_XATTR {
            Ok(Some(self.control_info.clone()))
        } else if Browse::owns(node(ino)) {
            self.snapshots.browse.getxattr(node(ino), name)
        } else {
            self.overlay.tree.getxattr(node(ino), name)
        };
        match value {
            Ok(Some(value)) => sized(reply, size, &value),
            Ok(None) if self.labels.lacks(name) => reply.error(Errno::EOPNOTSUPP),
            Ok(None) => reply.error(Errno::ENODATA),
            Err(e) => reply.error(errno(&e)),
        }
    }

    fn listxattr(&self, request: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        let _turn = self.parking.take();
        let names = match Browse::owns(node(ino)) {
            true => self.snapshots.browse.listxattr(node(ino)),
            false => self.overlay.tree.listxattr(node(ino)),
        };
        match names {
            Ok(names) => sized(reply, size, &shown_to(request, names)),
            Err(e) => reply.error(errno(&e)),
        }
    }

    fn removexattr(&self, request: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        if let Some(refused) = Self::refuses(&[ino]) {
            return reply.error(refused);
        }
        let _turn = self.parking.take();
        let _by = requester::serve(request.pid());
        let allowed = match self.drops_bits {
            true => setid::check_removal(&self.overlay, request, ino, name),
            false => Ok(()),
        };
        empty(reply, allowed.and_then(|()| self.overlay.tree.removexattr(node(ino), name)));
    }

    fn access(&self, _request: &Request, _ino: INodeNo, _mask: fuser::AccessFlags, reply: ReplyEmpty) {
        // The kernel checks permissions itself (`default_permissions`).
        reply.error(Errno::ENOSYS);
    }

    fn fallocate(
        &self,
        _request: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        if let Some(refused) = Self::refuses(&[ino]) {
            return reply.error(refused);
        }
        let _turn = self.parking.take_long();
        let handle = self.files.get(fh);
        empty(reply, handle.and_then(|handle| self.overlay.tree.fallocate(&handle, mode, offset, length)));
    }

    fn lseek(
        &self,
        _request: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let _turn = self.parking.take();
        if Browse::owns(node(ino)) {
            return self.snapshots.lseek(node(ino), offset, whence, reply);
        }
        let hole = match whence {
            libc::SEEK_DATA => false,
            libc::SEEK_HOLE => true,
            _ => return reply.error(Errno::EINVAL),
        };
        let Ok(from) = u64::try_from(offset) else {
            return reply.error(Errno::ENXIO);
        };
        match self.files.get(fh).and_then(|handle| self.overlay.tree.seek(&handle, from, hole)) {
            Ok(found) => reply.offset(found as i64),
            Err(e) => reply.error(errno(&e)),
        }
    }
}
