//! The same system calls on the mount and on a plain directory of the same filesystem have the same results: values,
//! errors by number, attributes field by field. Files become stubs and mounts are renewed in between.
//!
//! Left out of the comparison: inode and device numbers, blocks, times that neither side was told, what the kernel's
//! FUSE refuses (docs/semantics.md), and holes of stubs, which are data from end to end.
//! What it has found: whiteouts of root instead of the caller, times before 1970 read wrongly, EIO for the attributes of
//! an ordinary user's empty file without permissions after a new mount.
#![allow(clippy::unwrap_used, reason = "a test stops at the first error")]

use crate::common::{As, Mount, as_both};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestError, TestRunner};
use rustix::fs::{self as sys, AtFlags, FallocateFlags, Gid, Mode, OFlags, RenameFlags, SeekFrom, Uid};
use rustix::fs::{Timespec, Timestamps, XattrFlags};
use rustix::io::{Errno, Result as Sys};
use std::cell::RefCell;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;

const NAMES: [&str; 9] = ["a", "b", "c", "d", "d/a", "d/b", "e", "l", "missing/x"];
const XATTRS: [&str; 4] = ["user.one", "user.two", "trusted.three", "security.four"];
const SLOTS: usize = 5;
/// Alignment that direct I/O is content with everywhere.
const BLOCK: u64 = 4096;
/// User, group, supplementary groups.
const WHO: [(u32, u32, &[u32]); 3] = [(0, 0, &[]), (1000, 1000, &[2000]), (1001, 2000, &[])];

#[derive(Clone, Debug)]
enum Op {
    Open { slot: usize, name: usize, flags: u32, mode: u32 },
    Close { slot: usize },
    Dup { slot: usize, to: usize },
    Read { slot: usize, len: u64 },
    Pread { slot: usize, at: u64, len: u64 },
    Write { slot: usize, len: u64, byte: u8 },
    Pwrite { slot: usize, at: u64, len: u64, byte: u8 },
    Seek { slot: usize, whence: u8, at: i64 },
    Ftruncate { slot: usize, size: u64 },
    Truncate { name: usize, size: u64 },
    Fallocate { slot: usize, mode: u32, at: u64, len: u64 },
    Rename { from: usize, to: usize, flags: u32 },
    Link { from: usize, to: usize },
    Symlink { target: usize, name: usize },
    Unlink { name: usize },
    Rmdir { name: usize },
    Mkdir { name: usize, mode: u32 },
    Mknod { name: usize, kind: usize, mode: u32 },
    Chmod { name: usize, mode: u32 },
    Fchmod { slot: usize, mode: u32 },
    Chown { name: usize, uid: Option<usize>, gid: Option<usize> },
    Utimens { name: usize, atime: i64, mtime: i64 },
    SetXattr { name: usize, xattr: usize, len: usize, flags: u32 },
    GetXattr { name: usize, xattr: usize, room: usize },
    ListXattr { name: usize },
    RemoveXattr { name: usize, xattr: usize },
    Stat { name: usize, follow: bool },
    Fstat { slot: usize },
    Access { name: usize, bits: u32 },
    Readlink { name: usize },
    List { name: usize },
    Fsync { slot: usize, data: bool },
    Content { name: usize },
    Settle,
    Remount,
}

#[derive(Clone, Debug, PartialEq)]
enum Value {
    Done,
    Number(u64),
    Offset(u64),
    Bytes(Vec<u8>),
    Names(Vec<String>),
    Stat(Stat),
}

#[derive(Clone, Debug, PartialEq)]
struct Stat {
    mode: u32,
    nlink: u64,
    owner: (u32, u32),
    /// Not of directories.
    size: u64,
    rdev: u64,
    /// Where somebody has set it.
    mtime: Option<(i64, u64)>,
}

/// One of the two trees, with what is open in it.
struct Side {
    root: OwnedFd,
    slots: Vec<Option<OwnedFd>>,
}

impl Side {
    /// Whether the file has only zeros between two offsets, or cannot be read.
    fn is_zero(&self, slot: usize, from: u64, to: u64) -> bool {
        let Ok(fd) = self.slot(slot) else { return false };
        let Ok(file) = std::fs::File::open(format!("/proc/self/fd/{}", fd.as_raw_fd())) else { return true };
        let (mut at, mut buffer) = (from, vec![0; 1 << 16]);
        while at < to {
            let len = buffer.len().min(usize::try_from(to - at).unwrap_or(usize::MAX));
            match file.read_at(&mut buffer[..len], at) {
                Ok(0) => break,
                Ok(len) if buffer[..len].iter().all(|&byte| byte == 0) => at += len as u64,
                _ => return false,
            }
        }
        true
    }

    fn slot(&self, slot: usize) -> Sys<&OwnedFd> {
        self.slots[slot].as_ref().ok_or(Errno::BADF)
    }

    fn path(&self, name: usize) -> String {
        format!("/proc/self/fd/{}/{}", self.root.as_raw_fd(), NAMES[name])
    }

    fn run(&mut self, op: &Op) -> Sys<Value> {
        let root = &self.root;
        match *op {
            Op::Open { slot, name, flags, mode } => {
                // Never to wait for the other end of a fifo.
                let flags = OFlags::from_bits_retain(flags) | OFlags::NONBLOCK | OFlags::CLOEXEC;
                let fd = sys::openat(root, NAMES[name], flags, Mode::from_raw_mode(mode))?;
                self.slots[slot] = Some(fd);
                return Ok(Value::Done);
            }
            Op::Close { slot } => self.slots[slot] = None,
            Op::Dup { slot, to } => {
                let copy = rustix::io::fcntl_dupfd_cloexec(self.slot(slot)?, 0)?;
                self.slots[to] = Some(copy);
            }
            Op::Read { slot, len } => {
                let fd = self.slot(slot)?;
                return match is_direct(fd) {
                    true => read_aligned(fd, 0, len),
                    false => {
                        let mut bytes = vec![0; len as usize];
                        let len = rustix::io::read(fd, &mut bytes[..])?;
                        bytes.truncate(len);
                        Ok(Value::Bytes(bytes))
                    }
                };
            }
            Op::Pread { slot, at, len } => return read_aligned(self.slot(slot)?, at, len),
            Op::Write { slot, len, byte } => {
                let fd = self.slot(slot)?;
                return match is_direct(fd) {
                    true => write_aligned(fd, 0, len, byte),
                    false => Ok(Value::Number(rustix::io::write(fd, &vec![byte; len as usize])? as u64)),
                };
            }
            Op::Pwrite { slot, at, len, byte } => return write_aligned(self.slot(slot)?, at, len, byte),
            Op::Seek { slot, whence, at } => {
                let to = match whence {
                    0 => SeekFrom::Start(at.unsigned_abs()),
                    1 => SeekFrom::Current(at),
                    2 => SeekFrom::End(at),
                    3 => SeekFrom::Data(at.unsigned_abs()),
                    _ => SeekFrom::Hole(at.unsigned_abs()),
                };
                let fd = self.slot(slot)?;
                if whence > 1 && is_dir(sys::fstat(fd)?.st_mode) {
                    // What a directory's positions mean is its filesystem's own business.
                    return Ok(Value::Done);
                }
                let found = sys::seek(fd, to)?;
                if whence < 3 {
                    return Ok(Value::Number(found));
                }
                // Where the reader stands then depends on the holes; both are to go on from the same place.
                sys::seek(fd, SeekFrom::Start(0))?;
                return Ok(Value::Offset(found));
            }
            Op::Ftruncate { slot, size } => sys::ftruncate(self.slot(slot)?, size)?,
            Op::Truncate { name, size } => {
                let path = std::ffi::CString::new(self.path(name)).unwrap();
                // SAFETY: the path is ended by a zero byte and lives until the call returns.
                if unsafe { libc::truncate(path.as_ptr(), size as i64) } != 0 {
                    return Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap());
                }
            }
            Op::Fallocate { slot, mode, at, len } => {
                sys::fallocate(self.slot(slot)?, FallocateFlags::from_bits_retain(mode), at, len)?;
            }
            Op::Rename { from, to, flags } => {
                let flags = RenameFlags::from_bits_retain(flags);
                sys::renameat_with(root, NAMES[from], root, NAMES[to], flags)?;
            }
            Op::Link { from, to } => sys::linkat(root, NAMES[from], root, NAMES[to], AtFlags::empty())?,
            Op::Symlink { target, name } => sys::symlinkat(NAMES[target], root, NAMES[name])?,
            Op::Unlink { name } => sys::unlinkat(root, NAMES[name], AtFlags::empty())?,
            Op::Rmdir { name } => sys::unlinkat(root, NAMES[name], AtFlags::REMOVEDIR)?,
            Op::Mkdir { name, mode } => sys::mkdirat(root, NAMES[name], Mode::from_raw_mode(mode))?,
            Op::Mknod { name, kind, mode } => {
                let (kind, dev) = [
                    (sys::FileType::RegularFile, 0),
                    (sys::FileType::Fifo, 0),
                    (sys::FileType::Socket, 0),
                    (sys::FileType::CharacterDevice, sys::makedev(1, 3)),
                ][kind];
                sys::mknodat(root, NAMES[name], kind, Mode::from_raw_mode(mode), dev)?;
            }
            Op::Chmod { name, mode } => {
                sys::chmodat(root, NAMES[name], Mode::from_raw_mode(mode), AtFlags::empty())?
            }
            Op::Fchmod { slot, mode } => sys::fchmod(self.slot(slot)?, Mode::from_raw_mode(mode))?,
            Op::Chown { name, uid, gid } => {
                let uid = uid.map(|who| Uid::from_raw(WHO[who].0));
                let gid = gid.map(|who| Gid::from_raw(WHO[who].1));
                sys::chownat(root, NAMES[name], uid, gid, AtFlags::SYMLINK_NOFOLLOW)?;
            }
            Op::Utimens { name, atime, mtime } => {
                let times = Timestamps { last_access: spec(atime), last_modification: spec(mtime) };
                sys::utimensat(root, NAMES[name], &times, AtFlags::SYMLINK_NOFOLLOW)?;
                let stat = sys::statat(root, NAMES[name], AtFlags::SYMLINK_NOFOLLOW)?;
                // Nobody has read it since.
                let atime = (-1_000_000_000..NOW).contains(&atime).then_some(stat.st_atime);
                return Ok(Value::Names(vec![format!("{atime:?} {:?}", self::stat(&stat).mtime)]));
            }
            Op::SetXattr { name, xattr, len, flags } => {
                let flags = XattrFlags::from_bits_retain(flags);
                sys::lsetxattr(self.path(name), XATTRS[xattr], &vec![b'x'; len], flags)?;
            }
            Op::GetXattr { name, xattr, room } => {
                let mut value = vec![0; room];
                let len = sys::lgetxattr(self.path(name), XATTRS[xattr], &mut value[..])?;
                return Ok(Value::Number(len as u64));
            }
            Op::ListXattr { name } => {
                let mut list = vec![0; 4096];
                let len = sys::llistxattr(self.path(name), &mut list[..])?;
                let names = list[..len].split(|&byte| byte == 0).filter(|name| !name.is_empty());
                let mut names: Vec<_> =
                    names.map(|name| String::from_utf8_lossy(name).into_owned()).collect();
                names.sort();
                return Ok(Value::Names(names));
            }
            Op::RemoveXattr { name, xattr } => sys::lremovexattr(self.path(name), XATTRS[xattr])?,
            Op::Stat { name, follow } => {
                let flags = if follow { AtFlags::empty() } else { AtFlags::SYMLINK_NOFOLLOW };
                return Ok(Value::Stat(stat(&sys::statat(root, NAMES[name], flags)?)));
            }
            Op::Fstat { slot } => return Ok(Value::Stat(stat(&sys::fstat(self.slot(slot)?)?))),
            Op::Access { name, bits } => {
                let wanted = sys::Access::from_bits_retain(bits);
                sys::accessat(root, NAMES[name], wanted, AtFlags::EACCESS)?;
            }
            Op::Readlink { name } => {
                return Ok(Value::Bytes(sys::readlinkat(root, NAMES[name], Vec::new())?.into_bytes()));
            }
            Op::List { name } => {
                // One that may be read and not searched: docs/semantics.md.
                if sys::accessat(root, NAMES[name], sys::Access::EXEC_OK, AtFlags::EACCESS)
                    == Err(Errno::ACCESS)
                {
                    return Ok(Value::Done);
                }
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
                let dir = sys::Dir::new(sys::openat(root, NAMES[name], flags, Mode::empty())?)?;
                let mut names = Vec::new();
                for entry in dir {
                    let entry = entry?;
                    names.push(format!("{:?} {:?}", entry.file_name(), entry.file_type()));
                }
                names.sort();
                return Ok(Value::Names(names));
            }
            Op::Fsync { slot, data: true } => sys::fdatasync(self.slot(slot)?)?,
            Op::Fsync { slot, data: false } => sys::fsync(self.slot(slot)?)?,
            Op::Content { name } => {
                // Through symlinks, but not into devices and fifos.
                if sys::FileType::from_raw_mode(sys::statat(root, NAMES[name], AtFlags::empty())?.st_mode)
                    != sys::FileType::RegularFile
                {
                    return Ok(Value::Done);
                }
                let fd = sys::openat(root, NAMES[name], OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
                return read_aligned(&fd, 0, 1 << 20);
            }
            Op::Settle | Op::Remount => {}
        }
        Ok(Value::Done)
    }
}

/// Later than any time that is set, earlier than now.
const NOW: i64 = 1_600_000_000;
const OMIT: i64 = i64::MAX;

fn spec(time: i64) -> Timespec {
    match time {
        OMIT => Timespec { tv_sec: 0, tv_nsec: sys::UTIME_OMIT as _ },
        NOW => Timespec { tv_sec: 0, tv_nsec: sys::UTIME_NOW as _ },
        time => Timespec { tv_sec: time, tv_nsec: 123_456_789 },
    }
}

fn stat(stat: &sys::Stat) -> Stat {
    // What is written into a fifo moves its time below, and not in a mount: the kernel tells nobody.
    let is_timed = sys::FileType::from_raw_mode(stat.st_mode) != sys::FileType::Fifo;
    Stat {
        mode: stat.st_mode,
        nlink: stat.st_nlink,
        owner: (stat.st_uid, stat.st_gid),
        size: if is_dir(stat.st_mode) { 0 } else { stat.st_size as u64 },
        rdev: stat.st_rdev,
        mtime: (is_timed && stat.st_mtime < NOW).then_some((stat.st_mtime, stat.st_mtime_nsec)),
    }
}

fn is_dir(mode: u32) -> bool {
    sys::FileType::from_raw_mode(mode) == sys::FileType::Directory
}

fn is_direct(fd: &OwnedFd) -> bool {
    sys::fcntl_getfl(fd).is_ok_and(|flags| flags.contains(OFlags::DIRECT))
}

/// A buffer fit for direct I/O, and the offset and length where that is asked for.
fn aligned(fd: &OwnedFd, at: u64, len: u64) -> (Vec<u8>, usize, u64, usize) {
    let (at, len) = match is_direct(fd) {
        true => (at / BLOCK * BLOCK, len.next_multiple_of(BLOCK)),
        false => (at, len),
    };
    let buffer = vec![0u8; (len + BLOCK) as usize];
    let start = buffer.as_ptr().align_offset(BLOCK as usize);
    (buffer, start, at, len as usize)
}

fn read_aligned(fd: &OwnedFd, at: u64, len: u64) -> Sys<Value> {
    let (mut buffer, start, at, len) = aligned(fd, at, len);
    let len = rustix::io::pread(fd, &mut buffer[start..start + len], at)?;
    Ok(Value::Bytes(buffer[start..start + len].to_vec()))
}

fn write_aligned(fd: &OwnedFd, at: u64, len: u64, byte: u8) -> Sys<Value> {
    let (mut buffer, start, at, len) = aligned(fd, at, len);
    buffer[start..start + len].fill(byte);
    Ok(Value::Number(rustix::io::pwrite(fd, &buffer[start..start + len], at)? as u64))
}

fn op() -> impl Strategy<Value = Op> {
    let slot = || 0..SLOTS;
    let name = || prop_oneof![8 => 0..NAMES.len() - 1, 1 => Just(NAMES.len() - 1)];
    let mode = || {
        let common = prop::sample::select(vec![0o644, 0o755, 0o600, 0o777]);
        let rare = prop::sample::select(vec![0o000, 0o444, 0o200, 0o4755, 0o2775, 0o2674, 0o6777, 0o1777]);
        prop_oneof![3 => common, 2 => rare]
    };
    let at = || prop_oneof![3 => 0..20_000u64, 1 => 0..200_000u64];
    let len = || prop_oneof![3 => 1..5_000u64, 1 => 1..60_000u64, 1 => Just(0)];
    let flags = || {
        let access = prop::sample::select(vec![0, libc::O_WRONLY, libc::O_RDWR]);
        let more = prop::sample::subsequence(
            vec![libc::O_CREAT, libc::O_APPEND, libc::O_TRUNC, libc::O_CREAT, libc::O_SYNC],
            0..3,
        );
        let rare = vec![
            libc::O_EXCL,
            libc::O_EXCL | libc::O_CREAT,
            libc::O_NOFOLLOW,
            libc::O_DIRECTORY,
            libc::O_PATH,
            libc::O_DIRECT,
            libc::O_NOATIME,
        ];
        let rare = prop_oneof![3 => Just(0), 2 => prop::sample::select(rare)];
        (access, more, rare).prop_map(|(access, more, rare)| {
            // The kernel's FUSE knows no unnamed files, and creating directories by open has no result anywhere.
            let flags = more.into_iter().fold(access | rare, |flags, more| flags | more);
            // Direct writes at an end that is not aligned fail on ext4 and not through FUSE: docs/semantics.md.
            let direct = flags & libc::O_DIRECT != 0;
            (if direct { flags & !libc::O_APPEND } else { flags }) as u32
        })
    };
    let time = || prop::sample::select(vec![OMIT, NOW, 1, -5, -1_000_000, 5_000, 1_500_000_000]);
    let offset = -3_000..30_000i64;
    let fallocate = prop::sample::select(vec![0, 1, 3, 3, 0x10, 0x11, 2, 0x13]);
    let who = || prop::option::of(0..WHO.len());
    let rename_flags = prop::sample::select(vec![0, 0, 1, 2, 2, 3, 4, 5, 6, 8]);
    prop_oneof![
        10 => (slot(), name(), flags(), mode()).prop_map(|(slot, name, flags, mode)| Op::Open { slot, name, flags, mode }),
        4 => slot().prop_map(|slot| Op::Close { slot }),
        1 => (slot(), slot()).prop_map(|(slot, to)| Op::Dup { slot, to }),
        2 => (slot(), len()).prop_map(|(slot, len)| Op::Read { slot, len }),
        2 => (slot(), at(), len()).prop_map(|(slot, at, len)| Op::Pread { slot, at, len }),
        6 => (slot(), len(), any::<u8>()).prop_map(|(slot, len, byte)| Op::Write { slot, len, byte }),
        4 => (slot(), at(), len(), any::<u8>()).prop_map(|(slot, at, len, byte)| Op::Pwrite { slot, at, len, byte }),
        2 => (slot(), 0..5u8, offset).prop_map(|(slot, whence, at)| Op::Seek { slot, whence, at }),
        2 => (slot(), at()).prop_map(|(slot, size)| Op::Ftruncate { slot, size }),
        2 => (name(), prop_oneof![Just(0), at()]).prop_map(|(name, size)| Op::Truncate { name, size }),
        2 => (slot(), fallocate, at(), len()).prop_map(|(slot, mode, at, len)| Op::Fallocate { slot, mode, at, len }),
        4 => (name(), name(), rename_flags).prop_map(|(from, to, flags)| Op::Rename { from, to, flags }),
        2 => (name(), name()).prop_map(|(from, to)| Op::Link { from, to }),
        1 => (name(), name()).prop_map(|(target, name)| Op::Symlink { target, name }),
        3 => name().prop_map(|name| Op::Unlink { name }),
        1 => name().prop_map(|name| Op::Rmdir { name }),
        3 => (name(), mode()).prop_map(|(name, mode)| Op::Mkdir { name, mode }),
        2 => (name(), 0..4usize, mode()).prop_map(|(name, kind, mode)| Op::Mknod { name, kind, mode }),
        3 => (name(), mode()).prop_map(|(name, mode)| Op::Chmod { name, mode }),
        1 => (slot(), mode()).prop_map(|(slot, mode)| Op::Fchmod { slot, mode }),
        2 => (name(), who(), who()).prop_map(|(name, uid, gid)| Op::Chown { name, uid, gid }),
        2 => (name(), time(), time()).prop_map(|(name, atime, mtime)| Op::Utimens { name, atime, mtime }),
        2 => (name(), 0..4usize, prop_oneof![4 => 0..100usize, 1 => 0..3_800usize], 0..4u32)
            .prop_map(|(name, xattr, len, flags)| Op::SetXattr { name, xattr, len, flags }),
        1 => (name(), 0..4usize, prop::sample::select(vec![0, 5, 4096]))
            .prop_map(|(name, xattr, room)| Op::GetXattr { name, xattr, room }),
        1 => name().prop_map(|name| Op::ListXattr { name }),
        1 => (name(), 0..4usize).prop_map(|(name, xattr)| Op::RemoveXattr { name, xattr }),
        3 => (name(), any::<bool>()).prop_map(|(name, follow)| Op::Stat { name, follow }),
        2 => slot().prop_map(|slot| Op::Fstat { slot }),
        1 => (name(), 0..8u32).prop_map(|(name, bits)| Op::Access { name, bits }),
        1 => name().prop_map(|name| Op::Readlink { name }),
        1 => name().prop_map(|name| Op::List { name }),
        1 => (slot(), any::<bool>()).prop_map(|(slot, data)| Op::Fsync { slot, data }),
        4 => name().prop_map(|name| Op::Content { name }),
        3 => Just(Op::Settle),
        1 => Just(Op::Remount),
    ]
}

/// Lets this thread be somebody else while `work` runs.
fn acting_as<T>(who: usize, work: impl FnOnce() -> T) -> T {
    use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
    let (uid, gid, groups) = WHO[who];
    if !crate::common::is_root() || who == 0 {
        return work();
    }
    let become_ = |uid: u32, gid: u32, groups: &[u32]| {
        let (keep_uid, keep_gid) = (Uid::from_raw(0), Gid::from_raw(0));
        let groups: Vec<_> = groups.iter().map(|&group| Gid::from_raw(group)).collect();
        let switch = |uid| set_thread_res_uid(keep_uid, uid, keep_uid);
        switch(keep_uid).unwrap();
        set_thread_groups(&groups).unwrap();
        set_thread_res_gid(keep_gid, Gid::from_raw(gid), keep_gid).unwrap();
        switch(Uid::from_raw(uid)).unwrap();
    };
    become_(uid, gid, groups);
    let result = work();
    become_(0, 0, &[]);
    result
}

/// What is compared: two trees over one filesystem.
struct Pair {
    mount: Mount,
    cases: u32,
}

impl Pair {
    fn side(&self, base: &std::path::Path, case: u32) -> Side {
        let path = base.join(format!("case-{case}"));
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = sys::openat(sys::CWD, &path, flags, Mode::empty()).unwrap();
        Side { root, slots: (0..SLOTS).map(|_| None).collect() }
    }

    fn run(&mut self, ops: &[(usize, Op)]) -> Result<(), TestCaseError> {
        self.cases += 1;
        let case = self.cases;
        let plain = self.mount.root.path().join("plain");
        for base in [&plain, &self.mount.mnt()] {
            let path = base.join(format!("case-{case}"));
            std::fs::create_dir(&path).unwrap();
            std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
        }
        let (mut expected, mut found) = (self.side(&plain, case), self.side(&self.mount.mnt(), case));
        for (step, (who, op)) in ops.iter().enumerate() {
            match op {
                Op::Settle => self.mount.settle(),
                Op::Remount => {
                    drop((expected, found));
                    self.mount.remount();
                    (expected, found) = (self.side(&plain, case), self.side(&self.mount.mnt(), case));
                }
                _ => {}
            }
            let native = acting_as(*who, || expected.run(op));
            let ours = acting_as(*who, || found.run(op));
            let same = match (&native, &ours) {
                // Less is a hole here than there; and more only where ext4 reports an unwritten extent as data, since a page
                // of it is in the cache.
                (Ok(Value::Offset(native)), Ok(Value::Offset(ours))) => match op {
                    Op::Seek { whence: 3, slot, .. } => {
                        ours <= native || expected.is_zero(*slot, *native, *ours)
                    }
                    Op::Seek { slot, .. } => ours >= native || expected.is_zero(*slot, *ours, *native),
                    _ => false,
                },
                (Ok(Value::Offset(native)), Err(Errno::NXIO)) => match op {
                    Op::Seek { whence: 3, slot, .. } => expected.is_zero(*slot, *native, u64::MAX),
                    _ => false,
                },
                (Err(Errno::NXIO), Ok(Value::Offset(_))) => true,
                // A whiteout is a device, and a user's mount has none that can be opened: docs/semantics.md.
                (Err(Errno::NXIO), Err(Errno::ACCESS)) => {
                    self.mount.user == As::User && matches!(op, Op::Open { .. })
                }
                _ => native == ours,
            };
            prop_assert!(
                same,
                "step {step}, {op:?} as {:?}\n on the plain directory: {}\n on the mount: {}",
                WHO[*who],
                short(&native),
                short(&ours)
            );
        }
        Ok(())
    }
}

fn short(result: &Sys<Value>) -> String {
    match result {
        Ok(Value::Bytes(bytes)) => format!("{} bytes, BLAKE3 {}", bytes.len(), blake3::hash(bytes)),
        other => format!("{other:?}"),
    }
}

fn compare(user: As, flags: &[&str], cases: u32) {
    let mount = Mount::with_flags(user, flags);
    std::fs::create_dir(mount.root.path().join("plain")).unwrap();
    let pair = RefCell::new(Pair { mount, cases: 0 });
    let config = Config { cases, failure_persistence: None, max_shrink_iters: 600, ..Config::default() };
    let ops = prop::collection::vec((0..WHO.len(), op()), 20..120);
    let run = TestRunner::new(config).run(&ops, |ops| pair.borrow_mut().run(&ops));
    match run {
        Ok(()) => {}
        Err(TestError::Fail(reason, ops)) => {
            let ops: Vec<_> = ops.iter().map(|op| format!("{op:?}")).collect();
            panic!("{user:?} {flags:?}: {reason}\n{}", ops.join("\n"));
        }
        Err(e) => panic!("{e}"),
    }
}

#[test]
fn sequences_of_calls_give_the_same_results() {
    as_both(|user| compare(user, &[], 40));
}

#[test]
fn sequences_of_calls_give_the_same_results_without_passthrough() {
    if crate::common::root_and_fuse_available() {
        compare(As::Root, &["--no-passthrough"], 40);
    }
}

/// So many for each kind of mount: `DEDUPFS_SYSCALL_CASES`, 2,000 if not set.
fn many() -> u32 {
    std::env::var("DEDUPFS_SYSCALL_CASES").map_or(2_000, |count| count.parse().unwrap())
}

#[test]
#[ignore = "takes about 20 minutes"]
fn many_sequences_of_calls_give_the_same_results() {
    as_both(|user| compare(user, &[], many()));
}

#[test]
#[ignore = "takes about 10 minutes"]
fn many_sequences_of_calls_give_the_same_results_without_passthrough() {
    if crate::common::root_and_fuse_available() {
        compare(As::Root, &["--no-passthrough"], many());
    }
}
