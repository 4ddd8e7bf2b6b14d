//! Examination of files below the mount, where a call needs no answer of the daemon.
//!
//! A plain file is read there. The record of a stub names its recipe; the daemon knows the content of one with a single chunk. Every
//! other file is read through the mount. The attributes are those that the mount shows in any case.

use super::super::attributes::acl;
use super::super::print::ino;
use super::super::tree::{ContentId, TreePath, is_xattr, join};
use crate::backing::stub;
use crate::beneath::{Parents, Root, open_child};
use crate::id::RecipeId;
use rustix::fs::{FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd};

/// Returns the contents of recipes, as far as the daemon knows them without reading.
pub type Contents<'a> = dyn FnMut(&[RecipeId]) -> Vec<Option<ContentId>> + 'a;

/// Examination of files without the mount.
pub trait Examine {
    /// Asks for the contents of the stubs with these names in `dir`.
    fn ask(&self, dir: &TreePath, names: &mut dyn Iterator<Item = &Vec<u8>>);
    /// Asks for the contents of the stubs at `paths`.
    fn ask_for(&self, paths: &mut dyn Iterator<Item = &TreePath>);
    /// Examines the regular file at `path`, which the mount shows as `shown`. Returns `None` if the mount has to be asked.
    fn examine(&self, path: &TreePath, shown: &Stat) -> Option<Found>;
}

/// See the module.
pub struct Below<'a> {
    root: &'a Root,
    contents: RefCell<&'a mut Contents<'a>>,
    told: RefCell<HashMap<RecipeId, ContentId>>,
    parents: RefCell<Parents>,
    buffer: RefCell<Vec<u8>>,
}

/// The result for a file.
pub struct Found {
    /// The hash of the content.
    pub content: ContentId,
    /// The xattrs that are synced, and those of ACLs.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Bytes that were read for it.
    pub read: u64,
}

/// Maximum number of recipes in one question, and the minimum that is worth one.
const ASKED_MAX: usize = 1000;
const ASKED_MIN: usize = 2;
/// Number of contents that are known before they are forgotten.
const TOLD_MAX: usize = 64 << 10;
const BUFFER_BYTES: usize = 256 << 10;

/// The state of a file by its record.
#[derive(PartialEq)]
enum Record {
    Plain(Vec<u8>),
    Stub(RecipeId),
    Other,
}

fn record_of(got: Result<usize, Errno>, bytes: &[u8]) -> Record {
    match got {
        Err(Errno::NODATA) => Record::Plain(Vec::new()),
        Ok(len) if stub::says_plain(&bytes[..len]) => Record::Plain(bytes[..len].to_vec()),
        Ok(len) => stub::says_settled(&bytes[..len]).map_or(Record::Other, Record::Stub),
        Err(_) => Record::Other,
    }
}

fn record(file: impl AsFd) -> Record {
    let mut bytes = [0; stub::RECORD_LEN];
    let got = rustix::fs::fgetxattr(file, stub::XATTR, &mut bytes[..]);
    record_of(got, &bytes)
}

impl<'a> Below<'a> {
    /// Examines files below `root`, the directory that the mount shows.
    pub fn new(root: &'a Root, contents: &'a mut Contents<'a>) -> Below<'a> {
        Below {
            root,
            contents: RefCell::new(contents),
            told: RefCell::default(),
            parents: RefCell::default(),
            buffer: RefCell::default(),
        }
    }

    /// Asks for the contents of recipes.
    fn learn(&self, recipes: &[RecipeId]) {
        let mut told = self.told.borrow_mut();
        // Most of them are used already.
        if told.len() >= TOLD_MAX {
            told.clear();
        }
        if recipes.len() < ASKED_MIN {
            return;
        }
        for some in recipes.chunks(ASKED_MAX) {
            let contents = self.contents.borrow_mut()(some);
            told.extend(some.iter().zip(contents).filter_map(|(recipe, content)| Some((*recipe, content?))));
        }
    }

    fn read(&self, file: &File, before: &Stat, shown: &Stat) -> Option<(ContentId, u64)> {
        let (mut hasher, mut size) = (blake3::Hasher::new(), 0);
        let mut buffer = self.buffer.borrow_mut();
        buffer.resize(BUFFER_BYTES, 0);
        loop {
            let len = (&mut &*file).read(&mut buffer).ok()?;
            if len == 0 {
                break;
            }
            hasher.update(&buffer[..len]);
            size += len as u64;
        }
        let after = rustix::fs::fstat(file).ok()?;
        let state = |stat: &Stat| {
            (stat.st_size, stat.st_mtime, stat.st_mtime_nsec, stat.st_ctime, stat.st_ctime_nsec)
        };
        let same = state(&after) == state(before) && after.st_size == shown.st_size;
        (same && size == shown.st_size as u64).then(|| (ContentId(*hasher.finalize().as_bytes()), size))
    }
}

impl Examine for Below<'_> {
    fn ask(&self, dir: &TreePath, names: &mut dyn Iterator<Item = &Vec<u8>>) {
        let Ok(at) = self.root.open_at(dir, OFlags::PATH | OFlags::DIRECTORY, Mode::empty()) else { return };
        let begin = format!("/proc/self/fd/{}/", at.as_raw_fd()).into_bytes();
        let mut unknown = Vec::new();
        for name in names {
            let mut bytes = [0; stub::RECORD_LEN];
            let got = rustix::fs::lgetxattr([&begin[..], name].concat(), stub::XATTR, &mut bytes[..]);
            if let Record::Stub(recipe) = record_of(got, &bytes) {
                unknown.push(recipe);
            }
        }
        self.learn(&unknown);
    }

    fn ask_for(&self, paths: &mut dyn Iterator<Item = &TreePath>) {
        let mut parents = self.parents.borrow_mut();
        let mut recipe = |path: &TreePath| {
            let (dir, name) = parents.of(self.root, path).ok()?;
            let at = [format!("/proc/self/fd/{}/", dir.as_raw_fd()).as_bytes(), name].concat();
            let mut bytes = [0; stub::RECORD_LEN];
            match record_of(rustix::fs::lgetxattr(at, stub::XATTR, &mut bytes[..]), &bytes) {
                Record::Stub(recipe) => Some(recipe),
                Record::Plain(_) | Record::Other => None,
            }
        };
        let unknown: Vec<RecipeId> = paths.filter_map(&mut recipe).collect();
        self.learn(&unknown);
    }

    fn examine(&self, path: &TreePath, shown: &Stat) -> Option<Found> {
        let mut parents = self.parents.borrow_mut();
        let (dir, name) = parents.of(self.root, path).ok()?;
        let file = File::from(open_child(dir, name, OFlags::RDONLY | OFlags::NONBLOCK).ok()?);
        let stat = rustix::fs::fstat(&file).ok()?;
        let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        if !is_file || ino(&stat) != ino(shown) {
            return None;
        }
        let record = record(&file);
        let (content, read) = match &record {
            Record::Stub(recipe) => (*self.told.borrow().get(recipe)?, 0),
            Record::Plain(_) => self.read(&file, &stat, shown)?,
            Record::Other => return None,
        };
        let xattrs = xattrs(&file)?;
        // It may have been converted, or a stub may have been written to.
        (self::record(&file) == record).then_some(Found { content, xattrs, read })
    }
}

fn xattrs(file: &File) -> Option<BTreeMap<Vec<u8>, Vec<u8>>> {
    let mut names = [0; 4 << 10];
    let len = match rustix::fs::flistxattr(file, &mut names[..]) {
        Ok(len) => len,
        Err(Errno::NOTSUP) => 0,
        Err(_) => return None,
    };
    let mut xattrs = BTreeMap::new();
    for name in names[..len].split(|byte| *byte == 0).filter(|name| is_xattr(name) || acl::is_xattr(name)) {
        let mut value = vec![0; 64 << 10];
        let len = rustix::fs::fgetxattr(file, name, &mut value[..]).ok()?;
        value.truncate(len);
        xattrs.insert(name.to_vec(), value);
    }
    Some(xattrs)
}

/// Returns those of `names` in `dir` whose files are not `known`.
pub(super) fn unknown<'n, T>(
    dir: &'n TreePath,
    names: &'n [Vec<u8>],
    known: &'n BTreeMap<TreePath, T>,
) -> impl Iterator<Item = &'n Vec<u8>> {
    names.iter().filter(move |name| !known.contains_key(&join(dir, name)))
}
