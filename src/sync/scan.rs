//! Scan of a directory: every path with its metadata, and the hash of every file that is not known yet.
//!
//! It excludes paths that the selection of the device leaves out, `.dedupfs`, matches of `.dedupfsignore` in the root (as a `.gitignore`), sockets and devices, indexes
//! of SQLite's logs, and mounts of other filesystems. An excluded path that was synced before stays in the tree
//! unchanged: ignoring a file is not deleting it. The same holds for unreadable files and directories, and for a file
//! that changes during every attempt to read it; the user gets a message about these.

use super::attributes::interned::Interned;
use super::attributes::{OWNER, acl};
use super::error::{self, SyncError};
use super::old_contents::Row;
use super::owners::Owners;
use super::print::{Print, ino, print, unchanged};
use super::rules::Rules;
use super::seen::Seen;
use super::tree::{ContentId, Kind, Time, Tree, TreePath, is_reserved, is_xattr, join, shown, split};
use super::unfit::Xattrs;
use super::wal_index::is_wal_index;
use crate::beneath::{Root, Stats, read_link};
use ignore::gitignore::{Gitignore, GitignoreBuilder};
use rustix::fs::{FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;
use std::io::Read;
use std::path::Path;

mod below;
mod changed;
mod chosen;
mod groups;

pub use super::names::IGNORE;
pub use below::{Below, Examine};
pub use changed::scan_changed;
pub use chosen::Chosen;

const READ_BYTES: usize = 1 << 20;
/// Maximum bytes of `.dedupfsignore` that are read.
const PATTERN_BYTES_MAX: u64 = 1 << 20;
/// Distinguishes devices of inodes with an excluded name from others.
const LEFT_OUT: u64 = 1 << 62;
/// Number of attempts to read a file that changes meanwhile.
const ATTEMPTS: u32 = 3;

/// The result of a scan.
#[derive(Default)]
pub struct Scan {
    /// Entries by path.
    pub seen: BTreeMap<TreePath, Seen>,
    /// The state of each entry, to recognize it later.
    pub prints: BTreeMap<TreePath, Print>,
    /// Existing paths that were left out: they stay as in the last tree.
    pub left_out: Vec<TreePath>,
    /// Those of them that changed on each attempt to read them.
    busy: BTreeSet<TreePath>,
    /// One of the names of each regular file with several names.
    linked: HashMap<u64, TreePath>,
    /// Indexes of SQLite's logs, which exist but are in no tree.
    wal_indexes: BTreeSet<TreePath>,
    /// Messages for the user about entries that are not synced.
    pub notes: Vec<String>,
    /// Paths that could not be read, and the reasons.
    pub troubles: Vec<(TreePath, String)>,
    /// Contents of files in groups that changed all the time, as of the moment that the group was captured.
    pub kept: BTreeMap<ContentId, File>,
    /// Sockets and devices.
    pub unsupported: Vec<TreePath>,
    /// Whether entries were not examined, so that their changes would be missed.
    incomplete: bool,
    /// Entries that were examined, if the others were taken as known.
    pub examined: Option<BTreeSet<TreePath>>,
    /// Directories with entries that are not in `seen`.
    has_more: BTreeSet<TreePath>,
    /// Known state of entries that are examined again.
    again: BTreeMap<TreePath, (Seen, Print)>,
    /// Number of bytes read.
    pub bytes_read: u64,
    /// The text of `.dedupfsignore`.
    pub patterns: String,
    interned: Interned,
}

/// Reports the progress: entries, bytes read.
pub type Report<'a> = dyn FnMut(u64, u64) + 'a;

/// Returns the entries at a path, and at that path with suffixes, as of one moment; see
/// [`crate::sync::old_contents::OldContents::at_barrier`].
pub type AtBarrier<'a> = dyn FnMut(&TreePath, &[&[u8]], Time) -> Option<Vec<Row>> + 'a;

/// Returns the text of `.dedupfsignore`; empty if there is none.
pub fn pattern_text(root: &Root) -> Result<String, SyncError> {
    match root.open_at(IGNORE.as_bytes(), OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty()) {
        Ok(fd) => pattern_text_of(File::from(fd)),
        Err(Errno::NOENT) => Ok(String::new()),
        Err(e) => Err(error::on("open", IGNORE.as_bytes(), e)),
    }
}

/// The same for an open file.
pub fn pattern_text_of(file: File) -> Result<String, SyncError> {
    let mut text = Vec::new();
    let read = file.take(PATTERN_BYTES_MAX).read_to_end(&mut text);
    read.map_err(|e| SyncError::io("read", IGNORE, e))?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// Returns the patterns in `.dedupfsignore`.
pub fn patterns(root: &Root) -> Result<Gitignore, SyncError> {
    parse_patterns(&pattern_text(root)?)
}

pub(super) fn parse_patterns(text: &str) -> Result<Gitignore, SyncError> {
    let mut builder = GitignoreBuilder::new("");
    for (n, line) in text.lines().enumerate() {
        builder.add_line(None, line).map_err(|e| SyncError::State {
            object: format!("{IGNORE}, line {}", n + 1),
            reason: e.to_string(),
        })?;
    }
    builder.build().map_err(|e| SyncError::State { object: IGNORE.to_owned(), reason: e.to_string() })
}

/// Returns whether `path` is excluded.
pub fn is_ignored(patterns: &Gitignore, path: &[u8], dir: bool) -> bool {
    use std::os::unix::ffi::OsStrExt;
    let path = Path::new(std::ffi::OsStr::from_bytes(path));
    !patterns.is_empty() && patterns.matched_path_or_any_parents(path, dir).is_ignore()
}

/// Returns whether a change at `path` cannot concern the sync: it is reserved, or in an excluded directory.
pub(super) fn is_apart(patterns: &Gitignore, chosen: &Chosen<'_>, path: &[u8]) -> bool {
    let (dir, first) = (split(path).0, path.split(|byte| *byte == b'/').next().unwrap_or_default());
    is_reserved(first) || chosen.is_out(dir) || (!dir.is_empty() && is_ignored(patterns, dir, true))
}

/// Scans the tree below `root` by `rules`. Captures each group as of one moment, by `at_barrier` if needed. `last` is the
/// tree before, and `known` has the hashes of then. Files are examined below the mount as far as `below` can.
pub fn scan(
    root: &Root,
    last: &Tree,
    known: &BTreeMap<TreePath, Print>,
    rules: &Rules,
    at_barrier: &mut AtBarrier<'_>,
    below: Option<&dyn Examine>,
    report: &mut Report<'_>,
) -> Result<Scan, SyncError> {
    let text = pattern_text(root)?;
    let patterns = parse_patterns(&text)?;
    let device = rustix::fs::fstat(root.fd()).map_err(|e| error::on("look at", b".", e))?.st_dev;
    let chosen = Chosen::new(root, rules);
    let owners = &*rules.owners;
    let look = Look { root, known, patterns: &patterns, chosen: &chosen, device, below, owners };
    let mut scan = Scan { patterns: text, ..Scan::default() };
    scan.walk(&look, TreePath::new(), report)?;
    scan.settle_groups(&look, &rules.groups, last, at_barrier, report)?;
    scan.end(last, known);
    Ok(scan)
}

/// Returns the message about a socket or a device.
pub fn unsupported(path: &[u8]) -> String {
    format!("{}: sockets and devices are not synced", shown(path))
}

/// The parameters of a walk.
struct Look<'a> {
    root: &'a Root,
    known: &'a BTreeMap<TreePath, Print>,
    patterns: &'a Gitignore,
    chosen: &'a Chosen<'a>,
    device: u64,
    below: Option<&'a dyn Examine>,
    owners: &'a Owners,
}

impl Scan {
    /// Returns whether everything that is synced was examined.
    pub fn is_complete(&self) -> bool {
        !self.incomplete && self.troubles.is_empty() && self.kept.is_empty()
    }

    fn end(&mut self, last: &Tree, known: &BTreeMap<TreePath, Print>) {
        for path in std::mem::take(&mut self.busy) {
            let why = "is being written to; run the sync again when it is at rest";
            self.troubles.push((path, why.to_owned()));
        }
        self.keep_what_is_left_out(last, known);
    }

    /// Scans all entries below `dir`.
    fn walk(&mut self, look: &Look<'_>, dir: TreePath, report: &mut Report<'_>) -> Result<(), SyncError> {
        let (mut dirs, mut stats) = (vec![dir], Stats::default());
        while let Some(dir) = dirs.pop() {
            let names = match self.names_again(&dir).map_or_else(|| look.root.list(&dir), Ok) {
                Ok(names) => names,
                Err(e) if dir.is_empty() => return Err(error::on("read", b".", e)),
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => continue,
                // An unreadable directory is not an empty one.
                Err(e) => {
                    self.cannot_read(dir, error::on("read the directory", b"", e))?;
                    continue;
                }
            };
            if let Some(below) = look.below {
                below.ask(&dir, &mut below::unknown(&dir, &names, look.known));
            }
            for name in names {
                let path = join(&dir, &name);
                if dir.is_empty() && is_reserved(&name) {
                    continue;
                }
                if self.look_at(look, &path, &mut stats)? {
                    dirs.push(path);
                }
                report(self.seen.len() as u64, self.bytes_read);
            }
        }
        Ok(())
    }

    /// Returns the names in a directory that is examined again, if it has not changed since it was listed and all
    /// names are known.
    fn names_again(&self, dir: &TreePath) -> Option<Vec<Vec<u8>>> {
        let (_, before) = self.again.get(dir)?;
        // The entry was examined right before, so its print is current.
        let now = self.prints.get(dir)?;
        let below = join(dir, b"");
        let known = self.again.range(below.clone()..).take_while(|(path, _)| path.starts_with(&below));
        let names = known.map(|(path, _)| &path[below.len()..]).filter(|name| !name.contains(&b'/'));
        let all = !self.has_more.contains(dir) && unchanged(before, now) && !before.fresh;
        all.then(|| names.map(<[u8]>::to_vec).collect())
    }

    /// Examines the entry at `path`. Returns whether it is a directory to descend into.
    fn look_at(&mut self, look: &Look<'_>, path: &TreePath, stats: &mut Stats) -> Result<bool, SyncError> {
        let stat = match stats.stat(look.root, path) {
            Ok(Some(stat)) => stat,
            Ok(None) => return Ok(false),
            Err(Errno::XDEV) => {
                self.incomplete = true;
                self.leave_out(path.clone());
                return Ok(false);
            }
            Err(e) => {
                self.cannot_read(path.clone(), error::on("look at", b"", e))?;
                return Ok(false);
            }
        };
        let is_dir = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        if !look.chosen.includes(path, is_dir) {
            self.has_more.insert(split(path).0.to_vec());
            return Ok(false);
        }
        self.incomplete |= stat.st_dev != look.device;
        if stat.st_dev != look.device || is_ignored(look.patterns, path, is_dir) {
            self.leave_out(path.clone());
            return Ok(false);
        }
        if is_wal_index(look.root, path, &stat) {
            self.wal_indexes.insert(path.clone());
            self.has_more.insert(split(path).0.to_vec());
            return Ok(false);
        }
        if let Some(examined) = &mut self.examined {
            examined.insert(path.clone());
        }
        match self.again.get(path) {
            Some((seen, before)) if unchanged(before, &print(&stat, None)) && !before.fresh => {
                self.seen.insert(path.clone(), seen.clone());
                self.prints.insert(path.clone(), before.clone());
            }
            _ => {
                if let Err(e) = self.entry(look, path.clone(), &stat) {
                    self.cannot_read(path.clone(), e)?;
                }
            }
        }
        Ok(is_dir && self.seen.contains_key(path))
    }

    /// Keeps an unreadable entry as in the last tree, with all below it, and warns the user.
    fn cannot_read(&mut self, path: TreePath, e: SyncError) -> Result<(), SyncError> {
        let why = e.of_one_file().ok_or(e)?;
        self.seen.remove(&path);
        self.prints.remove(&path);
        self.leave_out(path.clone());
        self.troubles.push((path, why));
        Ok(())
    }
}

impl Look<'_> {
    /// Examines a regular file below the mount, if that gives what `stat` belongs to.
    fn examine_below(&self, path: &TreePath, stat: &Stat) -> Option<below::Found> {
        let found = self.below?.examine(path, stat)?;
        let now = self.root.stat(path).ok()??;
        unchanged(&print(stat, None), &print(&now, None)).then_some(found)
    }
}

impl Scan {
    fn entry(&mut self, look: &Look<'_>, path: TreePath, stat: &Stat) -> Result<(), SyncError> {
        let (root, known) = (look.root, look.known);
        let mut xattrs_below = None;
        let mut print = print(stat, None);
        let other = self.other_name(&path, stat);
        if let Some((seen, before)) = other.clone().filter(|(_, before)| unchanged(before, &print)) {
            self.seen.insert(path.clone(), seen);
            self.prints.insert(path, before);
            return Ok(());
        }
        let kind = match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => Kind::Dir,
            FileType::Symlink => match read_link(root, &path) {
                Ok(target) => Kind::Symlink(target),
                Err(_) => {
                    self.has_more.insert(split(&path).0.to_vec());
                    return Ok(());
                }
            },
            FileType::Fifo => Kind::Fifo,
            FileType::RegularFile => {
                let before = known.get(&path).filter(|before| unchanged(before, &print) && !before.fresh);
                let found = match before.and_then(|before| before.content) {
                    Some(content) => Some(content),
                    None => look.examine_below(&path, stat).map(|found| {
                        self.bytes_read += found.read;
                        xattrs_below = Some(found.xattrs);
                        found.content
                    }),
                };
                let content = match found {
                    Some(content) => content,
                    None => match self.hash(root, &path)? {
                        Some((content, read)) => {
                            print = read;
                            content
                        }
                        // All names of a file have one content: takes the one found through its other name.
                        None if other.is_some() => {
                            let (seen, before) = other.expect("just asked");
                            self.seen.insert(path.clone(), seen);
                            self.prints.insert(path, before);
                            return Ok(());
                        }
                        // A temporary file that is gone by now.
                        None if root.stat(&path).is_ok_and(|stat| stat.is_none()) => {
                            self.has_more.insert(split(&path).0.to_vec());
                            return Ok(());
                        }
                        None => {
                            self.busy.insert(path.clone());
                            self.leave_out(path);
                            return Ok(());
                        }
                    },
                };
                print.content = Some(content);
                Kind::File { content, size: print.size }
            }
            _ => {
                self.notes.push(unsupported(&path));
                self.unsupported.push(path.clone());
                self.leave_out(path);
                return Ok(());
            }
        };
        let mtime = if kind.is_dir() { (0, 0) } else { print.mtime };
        let mut values = match kind {
            _ if xattrs_below.is_some() => with_acls(xattrs_below.unwrap_or_default(), look.owners),
            Kind::File { .. } | Kind::Dir => xattrs(root, &path, look.owners)?,
            _ => BTreeMap::new(),
        };
        values.extend(look.owners.owner(stat.st_uid, stat.st_gid).map(|owner| (OWNER.to_vec(), owner)));
        let xattrs = self.interned.share(values.into_iter().collect());
        let mode = match kind {
            Kind::Symlink(_) => 0o777,
            _ => (stat.st_mode & 0o1777) as u16,
        };
        self.seen.insert(path.clone(), Seen { inode: (0, print.ino), kind, mode, mtime, xattrs });
        self.prints.insert(path, print);
        Ok(())
    }

    /// Returns the result for a regular file found through another of its names. If there is none, remembers this
    /// name.
    fn other_name(&mut self, path: &TreePath, stat: &Stat) -> Option<(Seen, Print)> {
        if stat.st_nlink < 2 || FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return None;
        }
        let other = self.linked.entry(ino(stat)).or_insert_with(|| path.clone());
        let found = self.seen.get(other).zip(self.prints.get(other)).filter(|_| other != path);
        found.map(|(seen, print)| (seen.clone(), print.clone()))
    }

    fn leave_out(&mut self, path: TreePath) {
        self.has_more.insert(split(&path).0.to_vec());
        self.left_out.push(path);
    }

    /// Returns the hash of a file, and its state when it was read; `None` if it changes all the time.
    fn hash(&mut self, root: &Root, path: &TreePath) -> Result<Option<(ContentId, Print)>, SyncError> {
        for _ in 0..ATTEMPTS {
            let fd = match root.open_at(path, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty()) {
                Ok(fd) => fd,
                Err(Errno::NOENT) => return Ok(None),
                Err(e) => return Err(error::on("open", path, e)),
            };
            let stat = |fd: &File| rustix::fs::fstat(fd).map_err(|e| error::on("look at", path, e));
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
                // As fresh as before the read.
                return Ok(Some((content, Print { content: Some(content), ..before })));
            }
        }
        Ok(None)
    }

    /// Keeps left-out entries as in the last tree, with the directories above them. If other names of such a file have
    /// changed, this name becomes a separate file.
    fn keep_what_is_left_out(&mut self, last: &Tree, known: &BTreeMap<TreePath, Print>) {
        let others: HashMap<u64, Seen> = self
            .seen
            .values()
            .filter(|seen| !seen.kind.is_dir())
            .map(|seen| (seen.inode.1, seen.clone()))
            .collect();
        for path in std::mem::take(&mut self.left_out) {
            let below = join(&path, b"");
            let kept = last
                .entries
                .range(path.clone()..)
                .filter(|(other, _)| **other == path || other.starts_with(&below));
            for (other, entry) in kept.take_while(|(other, _)| other.starts_with(&path)) {
                let Some(print) = known.get(other).cloned() else { continue };
                let super::tree::Entry { kind, mode, mtime, xattrs, .. } = entry.clone();
                let mut seen = Seen { inode: (0, print.ino), kind, mode, mtime, xattrs };
                if others.get(&print.ino).is_some_and(|other| *other != seen) {
                    seen.inode.0 = LEFT_OUT;
                }
                self.incomplete = true;
                self.seen.insert(other.clone(), seen);
                self.prints.insert(other.clone(), print);
            }
            self.left_out.push(path);
        }
    }
}

/// Translates ACLs among xattrs.
fn with_acls(xattrs: Xattrs, owners: &Owners) -> Xattrs {
    let (acls, mut xattrs): (Xattrs, Xattrs) = xattrs.into_iter().partition(|(name, _)| acl::is_xattr(name));
    let acls = acls.iter().filter_map(|(name, value)| owners.acl(name, value));
    xattrs.extend(acls.map(|(name, text)| (name.to_vec(), text)));
    xattrs
}

/// Returns the xattrs that are synced, and the ACLs.
pub(super) fn xattrs(root: &Root, path: &TreePath, owners: &Owners) -> Result<Xattrs, SyncError> {
    let fd = match root.open_at(path, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty()) {
        Ok(fd) => fd,
        Err(Errno::NOENT | Errno::LOOP) => return Ok(BTreeMap::new()),
        Err(e) => return Err(error::on("open", path, e)),
    };
    let mut xattrs = BTreeMap::new();
    let mut names = vec![0; 64 << 10];
    let len = match rustix::fs::flistxattr(&fd, &mut names[..]) {
        Ok(len) => len,
        Err(Errno::NOTSUP) => return Ok(xattrs),
        Err(e) => return Err(error::on("list the xattrs of", path, e)),
    };
    let mut value = vec![0; 64 << 10];
    let is_read = |name: &&[u8]| is_xattr(name) || (owners.sees.acl && acl::is_xattr(name));
    for name in names[..len].split(|byte| *byte == 0).filter(is_read) {
        match rustix::fs::fgetxattr(&fd, name, &mut value[..]) {
            Ok(len) => drop(xattrs.insert(name.to_vec(), value[..len].to_vec())),
            Err(Errno::NODATA) => {}
            Err(e) => return Err(error::on("read an xattr of", path, e)),
        }
    }
    Ok(with_acls(xattrs, owners))
}
