//! A write barrier: the state of some paths at one moment, so that a sync does not tear files that belong
//! together.
//!
//! ```text
//! hold up all changes -> look, copy recently changed files, look again -> release
//! ```
//!
//! It reads below the mount: there the kernel's directory locks, which a process holds while it creates a
//! file, block nothing. The kernel's own writes (passthrough, shared mappings) are not held up until their
//! program syncs, so only files that the second look finds unchanged count.
//!
//! Memory: a row for each path.

use super::{AdminError, Progress, Report, text};
use crate::backing::stub::Time;
use crate::backing::types::{Attr, Kind, NodeId, ROOT};
use crate::contents::OverlayError;
use crate::overlay::Overlay;
use crate::repo::Repo;
use crate::tree::OpenFlags;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Limit for each of the two waits: until changes stop, and until they continue.
const HOLD_MAX: Duration = Duration::from_secs(2);
/// Files that the kernel may write by itself must rest for this long,
const REST: Duration = Duration::from_millis(100);
/// and the barrier waits this long for that: by then a syncing program is held up.
const REST_WAIT: Duration = Duration::from_millis(400);
/// Interval between looks.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Limit of copied contents: the caller keeps each of them open.
const COPIES_MAX: usize = 256;
const WINDOW_BYTES: usize = 1 << 20;
/// Files that changed up to this long ago are copied too,
const ALSO_AGE: Duration = Duration::from_secs(10);
/// up to this many bytes.
const ALSO_BYTES: u64 = 64 << 20;

/// Names and values.
type Xattrs = Vec<(Vec<u8>, Vec<u8>)>;

/// The paths to look at.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BarrierRequest {
    /// Path below the root; a directory with everything in it.
    #[serde(with = "text")]
    pub path: PathBuf,
    /// Also paths formed by appending one of these.
    pub beside: Vec<String>,
    /// Contents of files that changed since are copied, as far as space allows: seconds and nanoseconds since
    /// 1970.
    pub since: (i64, u32),
}

/// The state at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BarrierReport {
    /// In order of paths; none if there was no such moment.
    pub rows: Option<Vec<BarrierRow>>,
}

/// One path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BarrierRow {
    /// Below the root.
    #[serde(with = "text")]
    pub path: PathBuf,
    /// `file`, `directory`, `symlink`, `fifo` or `other`.
    pub kind: String,
    /// Inode number, as programs see it.
    pub inode: u64,
    /// Length in bytes.
    pub size: u64,
    /// Permission bits.
    pub mode: u16,
    /// Ids of user and group; an earlier version does not report them.
    #[serde(default)]
    pub owner: Option<(u32, u32)>,
    /// Last change of the content: seconds and nanoseconds since 1970.
    pub mtime: (i64, u32),
    /// Last change of the inode.
    pub ctime: (i64, u32),
    /// Target of a symlink.
    #[serde(with = "text")]
    pub target: PathBuf,
    /// For files with copied content, and for directories.
    pub xattrs: Xattrs,
    /// Whether the content is in this row's [`barrier_file`].
    pub copied: bool,
}

/// Returns the name, in the state directory, of the copy for row `n`.
pub fn barrier_file(n: usize) -> PathBuf {
    Path::new("sync").join(format!("moment-{n}"))
}

/// Reads the paths of `request` while changes through the mount are held up, for two seconds at most.
pub(super) fn write_barrier(
    repo: &Repo,
    request: &BarrierRequest,
    report: Report<'_>,
) -> Result<BarrierReport, AdminError> {
    let overlay = repo.overlay();
    let asked = Instant::now();
    let mut keep_going = || asked.elapsed() < HOLD_MAX && report(Progress::files("holding up changes", 0, 1));
    let Some(_held) = overlay.tree.hold_up(&mut keep_going) else { return Ok(BarrierReport::default()) };
    let begun = Instant::now();
    let end = begun + HOLD_MAX;
    while Instant::now() < end {
        let before = Seen::look(overlay, request, end)?;
        if Instant::now() >= end {
            break;
        }
        if before.all.iter().any(|(_, attr)| is_in_motion(attr)) {
            if begun.elapsed() > REST_WAIT {
                break;
            }
            std::thread::sleep(LOOK_EVERY);
            continue;
        }
        let rows = before.rows(request.since)?;
        let mut copies = Copies { repo, made: Vec::new() };
        for (n, (_, attr)) in before.all.iter().enumerate().filter(|(n, _)| rows[*n].copied) {
            copies.make(n, attr.node, end)?;
        }
        let same = Seen::look(overlay, request, end)? == before;
        if same && Instant::now() < end {
            copies.made.clear();
            return Ok(BarrierReport { rows: Some(rows) });
        }
    }
    Ok(BarrierReport::default())
}

/// Whether a writer that changed it a moment ago may change it again unseen.
fn is_in_motion(attr: &Attr) -> bool {
    !attr.settled && attr.kind == Kind::File && attr.ctime.age() < REST
}

/// The entries found, with a look-up on each.
struct Seen<'a> {
    overlay: &'a Overlay,
    all: Vec<(PathBuf, Attr)>,
    /// The parent directories.
    above: Vec<NodeId>,
}

impl Drop for Seen<'_> {
    fn drop(&mut self) {
        let all = self.all.iter().map(|(_, attr)| attr.node).chain(self.above.drain(..));
        all.for_each(|node| self.overlay.tree.forget(node, 1));
    }
}

impl PartialEq for Seen<'_> {
    /// Access times make no difference.
    fn eq(&self, other: &Seen<'_>) -> bool {
        let told = |(path, attr): &(PathBuf, Attr)| {
            (path.clone(), attr.node, attr.kind, attr.perm, attr.size, attr.mtime, attr.ctime)
        };
        self.all.iter().map(told).eq(other.all.iter().map(told))
    }
}

impl<'a> Seen<'a> {
    /// Reads everything, or as much as possible until `end`.
    fn look(overlay: &'a Overlay, request: &BarrierRequest, end: Instant) -> Result<Seen<'a>, AdminError> {
        let mut seen = Seen { overlay, all: Vec::new(), above: Vec::new() };
        let mut dir = ROOT;
        for name in request.path.parent().unwrap_or(Path::new("")) {
            match seen.entry(dir, name)? {
                Some(attr) => seen.above.push(attr.node),
                None => return Ok(seen),
            }
            dir = seen.above[seen.above.len() - 1];
        }
        for suffix in [""].into_iter().chain(request.beside.iter().map(String::as_str)) {
            let mut path = request.path.clone().into_os_string();
            path.push(suffix);
            seen.add(dir, path.into(), end)?;
        }
        seen.all.sort_by(|(a, _), (b, _)| a.cmp(b));
        Ok(seen)
    }

    fn entry(&self, dir: NodeId, name: &OsStr) -> Result<Option<Attr>, AdminError> {
        match self.overlay.tree.lookup(dir, name) {
            Err(OverlayError::Os(Errno::NOENT | Errno::NOTDIR)) => Ok(None),
            attr => Ok(Some(attr?)),
        }
    }

    /// Adds `path` in `dir`, with everything below it.
    fn add(&mut self, dir: NodeId, path: PathBuf, end: Instant) -> Result<(), AdminError> {
        let mut left = vec![(dir, path)];
        while let Some((dir, path)) = left.pop()
            && Instant::now() < end
        {
            let name = path.file_name().unwrap_or_default();
            let Some(attr) = self.entry(dir, name)? else { continue };
            self.all.push((path.clone(), attr));
            if attr.kind == Kind::Directory {
                left.extend(self.names(attr.node)?.into_iter().map(|name| (attr.node, path.join(name))));
            }
        }
        Ok(())
    }

    fn names(&self, dir: NodeId) -> Result<Vec<OsString>, AdminError> {
        let dir = self.overlay.tree.opendir(dir)?;
        let (mut names, mut next, mut more) = (Vec::new(), 0, true);
        while std::mem::take(&mut more) {
            self.overlay.tree.readdir(&dir, next, |entry| {
                if entry.name != "." && entry.name != ".." {
                    names.push(entry.name.to_owned());
                }
                (next, more) = (entry.next, true);
                true
            })?;
        }
        Ok(names)
    }

    fn rows(&self, since: (i64, u32)) -> Result<Vec<BarrierRow>, AdminError> {
        let copied = self.copied(since);
        let row = |(n, (path, attr)): (usize, &(PathBuf, Attr))| {
            let (kind, target) = match attr.kind {
                Kind::File => ("file", Vec::new()),
                Kind::Directory => ("directory", Vec::new()),
                Kind::Symlink => ("symlink", self.overlay.tree.readlink(attr.node)?),
                Kind::Fifo => ("fifo", Vec::new()),
                Kind::Socket | Kind::CharDevice | Kind::BlockDevice => ("other", Vec::new()),
            };
            Ok(BarrierRow {
                path: path.clone(),
                kind: kind.to_owned(),
                inode: attr.node.0,
                size: attr.size,
                mode: attr.perm,
                owner: Some((attr.uid, attr.gid)),
                mtime: time(attr.mtime),
                ctime: time(attr.ctime),
                target: OsString::from_vec(target).into(),
                xattrs: match copied.contains(&n) || attr.kind == Kind::Directory {
                    true => self.xattrs(attr.node)?,
                    false => Vec::new(),
                },
                copied: copied.contains(&n),
            })
        };
        self.all.iter().enumerate().map(row).collect()
    }

    /// Chooses contents to copy: those of files that changed since, and of others that changed recently and so may
    /// change again.
    fn copied(&self, since: (i64, u32)) -> BTreeSet<usize> {
        let files = self.all.iter().enumerate().filter(|(_, (_, attr))| attr.kind == Kind::File);
        let mut newest: Vec<(usize, &Attr)> = files.map(|(n, (_, attr))| (n, attr)).collect();
        newest.sort_by_key(|(_, attr)| Reverse(attr.ctime));
        let mut room = ALSO_BYTES;
        let is_copied = |(_, attr): &(usize, &Attr)| {
            let has_to_be = time(attr.ctime) >= since;
            let may_be = attr.ctime.age() < ALSO_AGE && attr.size <= room;
            room -= if may_be && !has_to_be { attr.size } else { 0 };
            has_to_be || may_be
        };
        newest.into_iter().filter(is_copied).take(COPIES_MAX).map(|(n, _)| n).collect()
    }

    fn xattrs(&self, node: NodeId) -> Result<Xattrs, AdminError> {
        let names = match self.overlay.tree.listxattr(node) {
            Err(OverlayError::Os(Errno::NOTSUP)) => return Ok(Vec::new()),
            names => names?,
        };
        let mut xattrs = Vec::new();
        for name in names.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
            let value = self.overlay.tree.getxattr(node, OsStr::from_bytes(name))?;
            xattrs.extend(value.map(|value| (name.to_vec(), value)));
        }
        Ok(xattrs)
    }
}

fn time(time: Time) -> (i64, u32) {
    (time.sec, time.nsec)
}

/// Copies of contents, removed again unless they are reported.
struct Copies<'a> {
    repo: &'a Repo,
    made: Vec<PathBuf>,
}

impl Drop for Copies<'_> {
    fn drop(&mut self) {
        self.made.iter().for_each(|path| drop(std::fs::remove_file(path)));
    }
}

impl Copies<'_> {
    /// Copies the content of `node` for row `n`, or as much as time allows.
    fn make(&mut self, n: usize, node: NodeId, end: Instant) -> Result<(), AdminError> {
        let path = self.repo.state_file(barrier_file(n));
        let shown = self.repo.layout().state.join(barrier_file(n));
        let io = |e| AdminError::Overlay(OverlayError::io("write", shown.clone(), e));
        let _ = path.parent().map(std::fs::create_dir);
        // Left over from an interrupted sync.
        let _ = std::fs::remove_file(&path);
        let to = File::options().write(true).create_new(true).mode(0o600).open(&path).map_err(io)?;
        self.made.push(path.clone());
        let overlay = self.repo.overlay();
        let opened = overlay.tree.open(node, OpenFlags::default(), &|_| None)?;
        let copy = || {
            let mut at = 0;
            while Instant::now() < end {
                let bytes = overlay.tree.read(&opened.handle, at, WINDOW_BYTES)?;
                if bytes.is_empty() {
                    break;
                }
                to.write_all_at(&bytes, at).map_err(io)?;
                at += bytes.len() as u64;
            }
            Ok(())
        };
        let copied = copy();
        overlay.tree.release(&opened.handle);
        copied
    }
}
