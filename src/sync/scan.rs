//! Looking at a directory: every path with its metadata, and the hash of every file that is not known already.
//!
//! Left out are `.dedupfs`, what `.dedupfsignore` in the root says (as a `.gitignore`), sockets and devices, and what another
//! filesystem is mounted on. What is left out and was synced before stands in the tree as it was: ignoring a file is not
//! deleting it. The same is true of a file that is written to all the time while it is read.

use super::beneath::{self, Root, read_link};
use super::error::SyncError;
use super::group::{BESIDE, Groups};
use super::look::Seen;
use super::memory::Print;
use super::tree::{ContentId, Kind, Time, Tree, TreePath, is_reserved, is_xattr, join, shown};
use ignore::gitignore::{Gitignore, GitignoreBuilder};
use rustix::fs::{FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Patterns of what is not synced.
pub const IGNORE: &str = ".dedupfsignore";
/// A file changed within this time before it was looked at may change again without showing it.
const FRESH: Duration = Duration::from_millis(100);
const READ_BYTES: usize = 1 << 20;
/// So often a group is looked at that changes meanwhile.
const GROUP_ATTEMPTS: u32 = 20;
/// So often a file is read that changes meanwhile.
const ATTEMPTS: u32 = 3;

/// What a directory holds.
#[derive(Default)]
pub struct Scan {
    /// By path.
    pub seen: BTreeMap<TreePath, Seen>,
    /// The same paths as they can be recognised.
    pub prints: BTreeMap<TreePath, Print>,
    /// Paths that were left out though they are there: as the last tree has them.
    pub left_out: Vec<TreePath>,
    /// What could not be looked at, for the user.
    pub notes: Vec<String>,
    /// Bytes that were read.
    pub bytes_read: u64,
}

/// How far it is: entries, bytes read.
pub type Report<'a> = dyn FnMut(u64, u64) + 'a;

/// What `.dedupfsignore` says.
pub fn patterns(root: &Root) -> Result<Gitignore, SyncError> {
    let mut builder = GitignoreBuilder::new("");
    match root.open_at(IGNORE.as_bytes(), OFlags::RDONLY, Mode::empty()) {
        Ok(fd) => {
            let mut text = Vec::new();
            let read = File::from(fd).take(1 << 20).read_to_end(&mut text);
            read.map_err(|e| SyncError::io("read", IGNORE, e))?;
            for (n, line) in String::from_utf8_lossy(&text).lines().enumerate() {
                builder.add_line(None, line).map_err(|e| SyncError::State {
                    object: format!("{IGNORE}, line {}", n + 1),
                    reason: e.to_string(),
                })?;
            }
        }
        Err(Errno::NOENT) => {}
        Err(e) => return Err(beneath::error("open", IGNORE.as_bytes(), e)),
    }
    builder.build().map_err(|e| SyncError::State { object: IGNORE.to_owned(), reason: e.to_string() })
}

/// Whether `path` is left out.
pub fn is_ignored(patterns: &Gitignore, path: &[u8], dir: bool) -> bool {
    use std::os::unix::ffi::OsStrExt;
    let path = Path::new(std::ffi::OsStr::from_bytes(path));
    !patterns.is_empty() && patterns.matched_path_or_any_parents(path, dir).is_ignore()
}

/// Times of a file.
#[allow(clippy::unnecessary_cast, reason = "the types differ between machines")]
fn times(stat: &Stat) -> (Time, Time) {
    ((stat.st_mtime as i64, stat.st_mtime_nsec as u32), (stat.st_ctime as i64, stat.st_ctime_nsec as u32))
}

/// How what `stat` is of can be recognised.
pub fn print(stat: &Stat, content: Option<ContentId>) -> Print {
    let (mtime, ctime) = times(stat);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let changed = Duration::new(u64::try_from(ctime.0).unwrap_or(0), ctime.1);
    // A clock that was set back says nothing.
    let fresh = now < changed + FRESH;
    Print { ino: stat.st_ino, size: stat.st_size as u64, mtime, ctime, fresh, content, recipe: None }
}

/// Whether `now` is what `before` was, by all that can be seen without reading it.
pub fn unchanged(before: &Print, now: &Print) -> bool {
    (before.ino, before.size, before.mtime, before.ctime) == (now.ino, now.size, now.mtime, now.ctime)
}

/// Looks at the tree below `root`; at each of `groups` as of one moment. `last` is the tree before, `known` what was hashed then.
pub fn scan(
    root: &Root,
    last: &Tree,
    known: &BTreeMap<TreePath, Print>,
    groups: &Groups,
    report: &mut Report<'_>,
) -> Result<Scan, SyncError> {
    let patterns = patterns(root)?;
    let device = rustix::fs::fstat(root.fd()).map_err(|e| beneath::error("look at", b".", e))?.st_dev;
    let look = Look { root, known, patterns: &patterns, device };
    let mut scan = Scan::default();
    scan.walk(&look, TreePath::new(), report)?;
    scan.settle_groups(&look, groups, last, report)?;
    scan.keep_what_is_left_out(last, known);
    Ok(scan)
}

/// What a walk is of.
struct Look<'a> {
    root: &'a Root,
    known: &'a BTreeMap<TreePath, Print>,
    patterns: &'a Gitignore,
    device: u64,
}

impl Scan {
    /// All that is below `dir`.
    fn walk(&mut self, look: &Look<'_>, dir: TreePath, report: &mut Report<'_>) -> Result<(), SyncError> {
        let mut dirs = vec![dir];
        while let Some(dir) = dirs.pop() {
            let names = match look.root.list(&dir) {
                Ok(names) => names,
                Err(e) if dir.is_empty() => return Err(beneath::error("read", b".", e)),
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => continue,
                // Not read is not empty.
                Err(e) => return Err(beneath::error("read the directory", &dir, e)),
            };
            for name in names {
                let path = join(&dir, &name);
                if dir.is_empty() && is_reserved(&name) {
                    continue;
                }
                if self.look_at(look, &path)? {
                    dirs.push(path);
                }
                report(self.seen.len() as u64, self.bytes_read);
            }
        }
        Ok(())
    }

    /// What is at `path`. Whether it is a directory to go down into.
    fn look_at(&mut self, look: &Look<'_>, path: &TreePath) -> Result<bool, SyncError> {
        let stat = match look.root.stat(path) {
            Ok(Some(stat)) => stat,
            Ok(None) => return Ok(false),
            Err(Errno::XDEV) => {
                self.left_out.push(path.clone());
                return Ok(false);
            }
            Err(e) => return Err(beneath::error("look at", path, e)),
        };
        let is_dir = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        if stat.st_dev != look.device || is_ignored(look.patterns, path, is_dir) {
            self.left_out.push(path.clone());
            return Ok(false);
        }
        self.entry(look.root, path.clone(), &stat, look.known)?;
        Ok(is_dir)
    }

    /// Sees to it that each group is as it was at one moment: between two looks at which nothing in it had changed. What changes
    /// all the time waits for the next sync.
    fn settle_groups(
        &mut self,
        look: &Look<'_>,
        groups: &Groups,
        last: &Tree,
        report: &mut Report<'_>,
    ) -> Result<(), SyncError> {
        for attempt in 0..=GROUP_ATTEMPTS {
            let all: Vec<(&TreePath, &Kind)> =
                self.seen.iter().map(|(path, seen)| (path, &seen.kind)).collect();
            let found = groups.find(&all, &|_| false);
            let mut torn = Vec::new();
            for (path, members) in found {
                let members: Vec<TreePath> =
                    members.iter().map(|suffix| [&path[..], suffix].concat()).collect();
                if !self.is_known(look, last, &path, &members) && !self.is_settled(look, &members)? {
                    torn.push((path, members));
                }
            }
            if torn.is_empty() {
                return Ok(());
            }
            // What was changed just now may be changed again without showing it.
            std::thread::sleep(FRESH);
            for (path, members) in torn {
                let dir = self.seen[&path].kind.is_dir();
                self.forget(&path, &members);
                if attempt == GROUP_ATTEMPTS {
                    self.notes.push(format!(
                        "{}: is being changed, or locked, so all of it waits for the next sync",
                        shown(&path)
                    ));
                    let beside = BESIDE.iter().map(|suffix| [&path[..], suffix].concat());
                    self.left_out.extend(beside.filter(|_| !dir));
                    self.left_out.push(path);
                    continue;
                }
                if self.look_at(look, &path)? {
                    self.walk(look, path, report)?;
                } else {
                    for suffix in BESIDE.iter().filter(|_| !dir) {
                        self.look_at(look, &[&path[..], suffix].concat())?;
                    }
                }
            }
        }
        Ok(())
    }

    fn forget(&mut self, path: &TreePath, members: &[TreePath]) {
        for member in members {
            self.seen.remove(member);
            self.prints.remove(member);
        }
        let below = join(path, b"");
        self.left_out.retain(|other| !other.starts_with(&below) && !members.contains(other));
    }

    /// Whether a group is as it was the last time: then that was at one moment.
    fn is_known(&self, look: &Look<'_>, last: &Tree, path: &TreePath, members: &[TreePath]) -> bool {
        let same = |member: &TreePath| {
            let (Some(before), Some(now)) = (look.known.get(member), self.prints.get(member)) else {
                return false;
            };
            let dir = self.seen.get(member).is_some_and(|seen| seen.kind.is_dir());
            last.entries.contains_key(member) && (dir || (unchanged(before, now) && !now.fresh))
        };
        let below = join(path, b"");
        let before =
            last.entries.range(below.clone()..).take_while(|(other, _)| other.starts_with(&below)).count();
        let beside = BESIDE.iter().any(|suffix| last.entries.contains_key(&[&path[..], suffix].concat()));
        let dir = self.seen.get(path).is_some_and(|seen| seen.kind.is_dir());
        members.iter().all(same) && (if dir { before + 1 == members.len() } else { beside })
    }

    /// Whether nothing has changed since it was looked at, and what is there now is all.
    fn is_settled(&self, look: &Look<'_>, members: &[TreePath]) -> Result<bool, SyncError> {
        let git = members.first().is_some_and(|first| self.seen.contains_key(&join(first, b"HEAD")));
        for path in members {
            let stat = look.root.stat(path).map_err(|e| beneath::error("look at", path, e))?;
            let (Some(stat), Some(known)) = (stat, self.prints.get(path)) else { return Ok(false) };
            // A lock of git: it is at work.
            if known.fresh || !unchanged(known, &print(&stat, None)) || (git && path.ends_with(b".lock")) {
                return Ok(false);
            }
            if self.seen.get(path).is_some_and(|seen| seen.kind.is_dir()) {
                let names =
                    look.root.list(path).map_err(|e| beneath::error("read the directory", path, e))?;
                let seen = |name: &Vec<u8>| {
                    let path = join(path, name);
                    self.seen.contains_key(&path) || self.left_out.contains(&path)
                };
                if !names.iter().all(seen) {
                    return Ok(false);
                }
            }
        }
        // Those of a database that came meanwhile.
        let Some(first) =
            members.first().filter(|first| self.seen.get(*first).is_some_and(|seen| !seen.kind.is_dir()))
        else {
            return Ok(true);
        };
        for suffix in BESIDE {
            let path = [&first[..], suffix].concat();
            let there = look.root.stat(&path).map_err(|e| beneath::error("look at", &path, e))?.is_some();
            if there && !members.contains(&path) && !self.left_out.contains(&path) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

impl Scan {
    fn entry(
        &mut self,
        root: &Root,
        path: TreePath,
        stat: &Stat,
        known: &BTreeMap<TreePath, Print>,
    ) -> Result<(), SyncError> {
        let mut print = print(stat, None);
        let kind = match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => Kind::Dir,
            FileType::Symlink => match read_link(root, &path) {
                Ok(target) => Kind::Symlink(target),
                Err(_) => return Ok(()),
            },
            FileType::Fifo => Kind::Fifo,
            FileType::RegularFile => {
                let before = known.get(&path).filter(|before| unchanged(before, &print) && !before.fresh);
                let content = match before.and_then(|before| before.content) {
                    Some(content) => content,
                    None => match self.hash(root, &path)? {
                        Some((content, read)) => {
                            print = read;
                            content
                        }
                        None => {
                            self.left_out.push(path);
                            return Ok(());
                        }
                    },
                };
                print.content = Some(content);
                Kind::File { content, size: print.size }
            }
            _ => {
                self.notes.push(format!("{}: sockets and devices are not synced", shown(&path)));
                self.left_out.push(path);
                return Ok(());
            }
        };
        let mtime = if kind.is_dir() { (0, 0) } else { print.mtime };
        let xattrs = match kind {
            Kind::File { .. } | Kind::Dir => xattrs(root, &path)?,
            _ => BTreeMap::new(),
        };
        let mode = match kind {
            Kind::Symlink(_) => 0o777,
            _ => (stat.st_mode & 0o1777) as u16,
        };
        self.seen.insert(path.clone(), Seen { inode: (0, print.ino), kind, mode, mtime, xattrs });
        self.prints.insert(path, print);
        Ok(())
    }

    /// The hash of a file, and how it looked when it was read. None if it changes all the time.
    fn hash(&mut self, root: &Root, path: &TreePath) -> Result<Option<(ContentId, Print)>, SyncError> {
        for _ in 0..ATTEMPTS {
            let fd = match root.open_at(path, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty()) {
                Ok(fd) => fd,
                Err(Errno::NOENT) => return Ok(None),
                Err(e) => return Err(beneath::error("open", path, e)),
            };
            let stat = |fd: &File| rustix::fs::fstat(fd).map_err(|e| beneath::error("look at", path, e));
            let mut file = File::from(fd);
            let before = print(&stat(&file)?, None);
            let mut hasher = blake3::Hasher::new();
            let mut buffer = vec![0; READ_BYTES];
            let mut size = 0;
            loop {
                let len = file.read(&mut buffer).map_err(|e| SyncError::io("read", shown(path), e))?;
                if len == 0 {
                    break;
                }
                size += len as u64;
                hasher.update(&buffer[..len]);
            }
            self.bytes_read += size;
            let after = stat(&file)?;
            if unchanged(&before, &print(&after, None)) && size == before.size {
                let content = ContentId(*hasher.finalize().as_bytes());
                // As fresh as it was before it was read.
                return Ok(Some((content, Print { content: Some(content), ..before })));
            }
        }
        self.notes.push(format!("{}: is being written, so it waits for the next sync", shown(path)));
        Ok(None)
    }

    /// What was left out stands as it was, with the directories that lead to it.
    fn keep_what_is_left_out(&mut self, last: &Tree, known: &BTreeMap<TreePath, Print>) {
        for path in std::mem::take(&mut self.left_out) {
            let below = join(&path, b"");
            let kept = last
                .entries
                .range(path.clone()..)
                .filter(|(other, _)| **other == path || other.starts_with(&below));
            for (other, entry) in kept.take_while(|(other, _)| other.starts_with(&path)) {
                let Some(print) = known.get(other).cloned() else { continue };
                let super::tree::Entry { kind, mode, mtime, xattrs, .. } = entry.clone();
                self.seen.insert(other.clone(), Seen { inode: (0, print.ino), kind, mode, mtime, xattrs });
                self.prints.insert(other.clone(), print);
            }
            self.left_out.push(path);
        }
    }
}

/// The xattrs that are synced.
fn xattrs(root: &Root, path: &TreePath) -> Result<BTreeMap<Vec<u8>, Vec<u8>>, SyncError> {
    let fd = match root.open_at(path, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty()) {
        Ok(fd) => fd,
        Err(Errno::NOENT | Errno::LOOP) => return Ok(BTreeMap::new()),
        Err(e) => return Err(beneath::error("open", path, e)),
    };
    let mut xattrs = BTreeMap::new();
    let mut names = vec![0; 64 << 10];
    let len = match rustix::fs::flistxattr(&fd, &mut names[..]) {
        Ok(len) => len,
        Err(Errno::NOTSUP) => return Ok(xattrs),
        Err(e) => return Err(beneath::error("list the xattrs of", path, e)),
    };
    let mut value = vec![0; 64 << 10];
    for name in names[..len].split(|byte| *byte == 0).filter(|name| is_xattr(name)) {
        match rustix::fs::fgetxattr(&fd, name, &mut value[..]) {
            Ok(len) => drop(xattrs.insert(name.to_vec(), value[..len].to_vec())),
            Err(Errno::NODATA) => {}
            Err(e) => return Err(beneath::error("read an xattr of", path, e)),
        }
    }
    Ok(xattrs)
}
