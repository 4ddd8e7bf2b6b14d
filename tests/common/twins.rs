//! A tree with everything that a filesystem can hold, and whether two trees are the same in all that programs can see.

use super::{is_root, noise, prose};
use rustix::fs::{AtFlags, CWD, Dev, FileType, Mode, SeekFrom, Timespec, Timestamps, XattrFlags};
use std::collections::BTreeMap;
use std::ffi::{CString, OsStr};
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

/// All of an entry but where its inode is, and ctime.
#[derive(Clone, PartialEq, Eq)]
pub struct Entry {
    pub mode: u32,
    pub owner: (u32, u32),
    pub mtime: (i64, i64),
    pub size: u64,
    pub rdev: u64,
    pub nlink: u64,
    /// The first name of the same file, if it has several.
    pub same_as: Option<PathBuf>,
    pub target: Option<PathBuf>,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    pub hash: Option<blake3::Hash>,
    /// Where data begins and ends.
    pub data: Vec<(u64, u64)>,
}

impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let xattrs: Vec<_> =
            self.xattrs.iter().map(|(k, v)| format!("{}={}", k.escape_ascii(), v.escape_ascii())).collect();
        write!(
            f,
            "mode {:o} owner {:?} mtime {:?} size {} rdev {} links {} of {:?} to {:?} xattrs {xattrs:?} hash {:?} data {:?}",
            self.mode,
            self.owner,
            self.mtime,
            self.size,
            self.rdev,
            self.nlink,
            self.same_as,
            self.target,
            self.hash.map(|hash| hash.to_hex()[..8].to_owned()),
            self.data
        )
    }
}

/// Everything at and below a directory, without what dedupfs has in its root.
pub fn look(root: &Path) -> BTreeMap<PathBuf, Entry> {
    let (mut found, mut linked) = (BTreeMap::new(), BTreeMap::new());
    look_below(root, Path::new(""), &mut linked, &mut found);
    found
}

fn look_below(
    root: &Path,
    path: &Path,
    linked: &mut BTreeMap<(u64, u64), PathBuf>,
    found: &mut BTreeMap<PathBuf, Entry>,
) {
    let full = if path.as_os_str().is_empty() { root.to_owned() } else { root.join(path) };
    let meta = fs::symlink_metadata(&full).unwrap_or_else(|e| panic!("{}: {e}", full.display()));
    let mut entry = Entry {
        mode: meta.mode(),
        owner: (meta.uid(), meta.gid()),
        mtime: (meta.mtime(), meta.mtime_nsec()),
        size: if meta.is_dir() { 0 } else { meta.len() },
        rdev: meta.rdev(),
        nlink: if meta.is_dir() { 0 } else { meta.nlink() },
        same_as: None,
        target: fs::read_link(&full).ok(),
        xattrs: xattrs(&full),
        hash: None,
        data: Vec::new(),
    };
    if !meta.is_dir() && meta.nlink() > 1 {
        entry.same_as =
            Some(linked.entry((meta.dev(), meta.ino())).or_insert_with(|| path.to_owned()).clone());
    }
    if meta.is_file() {
        let file = File::open(&full).unwrap_or_else(|e| panic!("{}: {e}", full.display()));
        let mut hasher = blake3::Hasher::new();
        std::io::copy(&mut &file, &mut hasher).unwrap_or_else(|e| panic!("{}: {e}", full.display()));
        entry.hash = Some(hasher.finalize());
        let mut at = 0;
        while let Ok(from) = rustix::fs::seek(&file, SeekFrom::Data(at)) {
            at = rustix::fs::seek(&file, SeekFrom::Hole(from)).unwrap();
            entry.data.push((from, at));
        }
    }
    found.insert(path.to_owned(), entry);
    if meta.is_dir() {
        let children = fs::read_dir(&full).unwrap_or_else(|e| panic!("{}: {e}", full.display()));
        let mut names: Vec<_> = children.map(|child| child.unwrap().file_name()).collect();
        // The first name of several is the same in every twin.
        names.sort();
        for name in names {
            let ours = path.as_os_str().is_empty() && (name == ".dedupfs" || name == "DEDUPFS-README.txt");
            if !ours {
                look_below(root, &path.join(name), linked, found);
            }
        }
    }
}

fn xattrs(path: &Path) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut names = vec![0; 64 << 10];
    let len = rustix::fs::llistxattr(path, &mut names[..]).unwrap();
    let names = names[..len].split(|&byte| byte == 0).filter(|name| !name.is_empty());
    let kept = names.filter(|name| *name != b"user.dedupfs");
    kept.map(|name| (name.to_vec(), super::xattr(path, std::str::from_utf8(name).unwrap()).unwrap()))
        .collect()
}

/// Fails with the first difference; what only `a` or only `b` has is named. `holes`: whether they must be the same.
pub fn assert_same(a: &BTreeMap<PathBuf, Entry>, b: &BTreeMap<PathBuf, Entry>, holes: bool) {
    for path in a.keys().chain(b.keys()) {
        let (mut left, mut right) = (a.get(path).cloned(), b.get(path).cloned());
        if !holes {
            left.iter_mut().chain(&mut right).for_each(|entry| entry.data.clear());
        }
        assert!(left == right, "{}:\nexpected {left:?}\nfound    {right:?}", path.display());
    }
}

/// Bytes of a POSIX ACL that gives user 4711 the right to read.
pub fn acl() -> Vec<u8> {
    let mut acl = 2u32.to_le_bytes().to_vec();
    let none = u32::MAX;
    for (tag, perm, id) in [(1u16, 6u16, none), (2, 4, 4711), (4, 4, none), (0x10, 4, none), (0x20, 0, none)]
    {
        acl.extend([&tag.to_le_bytes()[..], &perm.to_le_bytes(), &id.to_le_bytes()].concat());
    }
    acl
}

pub fn set_mtime(path: &Path, sec: i64, nsec: i64) {
    let times = Timestamps {
        last_access: Timespec { tv_sec: 1_500_000_000, tv_nsec: 7 },
        last_modification: Timespec { tv_sec: sec, tv_nsec: nsec },
    };
    rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
}

fn set_xattr(path: &Path, name: &str, value: &[u8]) {
    rustix::fs::lsetxattr(path, name, value, XattrFlags::empty()).unwrap();
}

/// Makes a tree in `dir`, an empty directory, with all kinds of things in it.
pub fn make(dir: &Path) {
    let at = |name: &str| dir.join(name);
    for name in ["plain", "plain/deep", "plain/deep/er", "odd", "rights", "links", "many"] {
        fs::create_dir(at(name)).unwrap();
    }
    fs::write(at("plain/text"), prose(2, 300_000)).unwrap();
    fs::write(at("plain/copy"), prose(2, 300_000)).unwrap();
    fs::write(at("plain/deep/er/noise"), noise(3, 2_500_001)).unwrap();
    fs::write(at("plain/empty"), b"").unwrap();
    fs::write(at("plain/one"), b"x").unwrap();
    fs::write(at("plain/block"), prose(4, 4096)).unwrap();
    for i in 0..40u64 {
        fs::write(at(&format!("many/{i}")), prose(100 + i, 5_000 + 911 * i as usize)).unwrap();
    }
    let sparse = File::create(at("plain/sparse")).unwrap();
    sparse.set_len(8 << 20).unwrap();
    sparse.write_all_at(&noise(5, 4096 * 3), 0).unwrap();
    sparse.write_all_at(&noise(6, 4096 * 5), 5 << 20).unwrap();
    drop(sparse);
    for name in [&b"\xff\xfe not text"[..], b"new\nline", b" space ", b"[glob]*?{a}", b"\\back", &[b'n'; 255]]
    {
        fs::write(at("odd").join(OsStr::from_bytes(name)), prose(name.len() as u64, 20_000)).unwrap();
    }
    for (name, mode) in [("0444", 0o444), ("0600", 0o600), ("4755", 0o4755), ("0400", 0o400)] {
        let path = at("rights").join(name);
        fs::write(&path, prose(mode.into(), 30_000)).unwrap();
        fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
    }
    fs::write(at("rights/xattrs"), prose(7, 40_000)).unwrap();
    set_xattr(&at("rights/xattrs"), "user.comment", b"\0binary\xff");
    set_xattr(&at("rights/xattrs"), "user.empty", b"");
    set_xattr(&at("rights"), "user.dir", b"of a directory");
    fs::write(at("rights/acl"), prose(8, 40_000)).unwrap();
    set_xattr(&at("rights/acl"), "system.posix_acl_access", &acl());
    fs::create_dir(at("rights/default")).unwrap();
    set_xattr(&at("rights/default"), "system.posix_acl_default", &acl());
    fs::write(at("links/first"), prose(9, 60_000)).unwrap();
    fs::hard_link(at("links/first"), at("links/second")).unwrap();
    fs::hard_link(at("links/first"), at("plain/third")).unwrap();
    symlink("first", at("links/soft")).unwrap();
    symlink("/nowhere/\u{e9}", at("links/dangling")).unwrap();
    fs::hard_link(at("links/dangling"), at("links/dangling too")).unwrap();
    rustix::fs::mknodat(CWD, at("links/fifo"), FileType::Fifo, Mode::from_raw_mode(0o640), 0).unwrap();
    if is_root() {
        let null: Dev = rustix::fs::makedev(1, 3);
        rustix::fs::mknodat(
            CWD,
            at("links/null"),
            FileType::CharacterDevice,
            Mode::from_raw_mode(0o600),
            null,
        )
        .unwrap();
        for (path, uid, gid) in [("rights/0600", 4711, 4712), ("links/soft", 4711, 4711), ("odd", 4713, 0)] {
            let path = CString::new(at(path).as_os_str().as_bytes()).unwrap();
            // SAFETY: the path is a C string that outlives the call.
            assert_eq!(unsafe { libc::lchown(path.as_ptr(), uid, gid) }, 0);
        }
        set_xattr(&at("rights/0600"), "trusted.root", b"only");
    }
    set_mtime(&at("plain/one"), -1_000, 999_999_999);
    set_mtime(&at("plain/copy"), 1_234_567_890, 123_456_789);
    set_mtime(&at("links/soft"), 1_000_000_000, 1);
    set_mtime(&at("links/fifo"), 1_000_000_001, 2);
    for name in ["plain/deep/er", "plain/deep", "plain", "rights/default", "rights", "odd", "links", "many"] {
        set_mtime(&at(name), 1_100_000_000, 5_000 + name.len() as i64);
    }
}
