//! Looking at a directory: every path with its metadata, and the hash of every file that is not known already.
//!
//! Left out are `.dedupfs`, what `.dedupfsignore` in the root says (as a `.gitignore`), sockets and devices, and what another
//! filesystem is mounted on. What is left out and was synced before stands in the tree as it was: ignoring a file is not
//! deleting it. The same is true of a file that is written to all the time while it is read.

use super::beneath::{self, Root, read_link};
use super::error::SyncError;
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

/// Looks at the tree below `root`. `last` is the tree before, `known` what was hashed then.
pub fn scan(
    root: &Root,
    last: &Tree,
    known: &BTreeMap<TreePath, Print>,
    report: &mut Report<'_>,
) -> Result<Scan, SyncError> {
    let patterns = patterns(root)?;
    let device = rustix::fs::fstat(root.fd()).map_err(|e| beneath::error("look at", b".", e))?.st_dev;
    let mut scan = Scan::default();
    let mut dirs = vec![TreePath::new()];
    while let Some(dir) = dirs.pop() {
        let names = match root.list(&dir) {
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
            let stat = match root.stat(&path) {
                Ok(Some(stat)) => stat,
                Ok(None) => continue,
                Err(Errno::XDEV) => {
                    scan.left_out.push(path);
                    continue;
                }
                Err(e) => return Err(beneath::error("look at", &path, e)),
            };
            let kind = FileType::from_raw_mode(stat.st_mode);
            let is_dir = kind == FileType::Directory;
            if stat.st_dev != device || is_ignored(&patterns, &path, is_dir) {
                scan.left_out.push(path);
                continue;
            }
            scan.entry(root, path.clone(), &stat, known)?;
            if is_dir {
                dirs.push(path);
            }
            report(scan.seen.len() as u64, scan.bytes_read);
        }
    }
    scan.keep_what_is_left_out(last, known);
    Ok(scan)
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
