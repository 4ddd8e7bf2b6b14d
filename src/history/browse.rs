//! Snapshots as read-only directories: `.snapshots/ID/` below the root of a mount.
//!
//! Invariants: an entry keeps its inode number while the kernel holds look-ups on it. The numbers are above
//! all numbers of overlay files. A real directory named `.snapshots` in the tree hides this one.
//!
//! Memory: about 200 bytes for each entry that the kernel knows.

use super::error::{HistoryError, Result};
use super::node::{self, Entry, Node};
use super::snapshots::short_id;
use super::{History, log};
use crate::backing::stub::Time;
use crate::backing::types::{Attr, Kind, NodeId, ROOT};
use crate::contents::OverlayError;
use crate::id::DocumentId;
use crate::recipe::Recipe;
use crate::tree::Meta;
use rustix::io::Errno;
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The unlisted directory in the root.
pub const SNAPSHOTS_DIR: &str = ".snapshots";

/// Inode number of that directory; everything inside has higher numbers.
const TOP: u64 = 0xffff_ff00_0000_0000;
/// Chunks decoded ahead of a reader.
const AHEAD_CHUNKS: usize = 64;

struct Known {
    parent: u64,
    entry: Arc<Entry>,
    lookups: u64,
}

#[derive(Default)]
struct State {
    next: u64,
    known: HashMap<u64, Known>,
    numbers: HashMap<(u64, OsString), u64>,
}

/// Snapshots as a tree of directories. All methods may be called from many threads.
pub struct Browse {
    history: Arc<History>,
    state: Mutex<State>,
}

/// An open file of a snapshot.
pub struct SnapshotFile {
    recipe: Option<Arc<Recipe>>,
    next_offset: AtomicU64,
}

impl From<HistoryError> for OverlayError {
    fn from(error: HistoryError) -> OverlayError {
        match error {
            HistoryError::Overlay(e) => e,
            // It was removed, and its content collected.
            HistoryError::Store(e) if log::is_missing(&e) => Errno::STALE.into(),
            HistoryError::Store(e) => e.into(),
            HistoryError::Db(e) => e.into(),
            other => OverlayError::Unreadable { path: "the history".into(), reason: other.to_string() },
        }
    }
}

impl Browse {
    /// Creates the view of a history's snapshots.
    pub fn new(history: Arc<History>) -> Browse {
        Browse { history, state: Mutex::default() }
    }

    /// Whether a number belongs to a snapshot entry, or to the directory of all snapshots.
    pub fn owns(node: NodeId) -> bool {
        node.0 >= TOP
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Finds a name; counts one look-up on the entry. In the root it finds only the directory of snapshots.
    pub fn lookup(&self, parent: NodeId, name: &OsStr) -> std::result::Result<Attr, OverlayError> {
        let entry = match parent {
            ROOT if name == SNAPSHOTS_DIR => return Ok(self.top()),
            ROOT => return Err(Errno::NOENT.into()),
            parent => self.child(parent, name)?.ok_or(Errno::NOENT)?,
        };
        let mut state = self.lock();
        let place = (parent.0, name.to_owned());
        let number = match state.numbers.get(&place) {
            Some(&number) => number,
            None => {
                state.next += 1;
                let number = TOP + state.next;
                state.numbers.insert(place, number);
                let known = Known { parent: parent.0, entry: Arc::new(entry), lookups: 0 };
                state.known.insert(number, known);
                number
            }
        };
        let known = state.known.get_mut(&number).ok_or(Errno::STALE)?;
        known.lookups += 1;
        Ok(attr(number, &known.entry))
    }

    fn child(&self, parent: NodeId, name: &OsStr) -> Result<Option<Entry>> {
        if parent.0 == TOP {
            let Some(text) = name.to_str() else { return Ok(None) };
            let found = self.history.snapshots().into_iter();
            let found = found.into_iter().find(|(id, snapshot)| {
                short_id(id) == text || id.to_string() == text || snapshot.is_named(text)
            });
            return Ok(found.map(|(_, snapshot)| Entry { name: name.to_owned(), ..snapshot.root.clone() }));
        }
        let Ok(directory) = self.directory(parent) else { return Ok(None) };
        node::find(self.history.overlay.store(), &directory, name)
    }

    fn entry(&self, node: NodeId) -> std::result::Result<Arc<Entry>, OverlayError> {
        let state = self.lock();
        Ok(state.known.get(&node.0).ok_or(Errno::STALE)?.entry.clone())
    }

    fn directory(&self, node: NodeId) -> std::result::Result<DocumentId, OverlayError> {
        match self.entry(node)?.node {
            Node::Directory(id) => Ok(id),
            _ => Err(Errno::NOTDIR.into()),
        }
    }

    fn top(&self) -> Attr {
        let time = self.history.snapshots().last().map_or(Time::default(), |(_, last)| last.time);
        let meta = Meta { mode: 0o555, mtime: time, ..Meta::default() };
        attr(TOP, &Entry { name: OsString::new(), meta, node: Node::Directory(DocumentId([0; 32])) })
    }

    /// Returns look-ups.
    pub fn forget(&self, node: NodeId, lookups: u64) {
        let mut state = self.lock();
        let Some(known) = state.known.get_mut(&node.0) else { return };
        known.lookups = known.lookups.saturating_sub(lookups);
        if known.lookups == 0
            && let Some(known) = state.known.remove(&node.0)
        {
            // The name of the look-up, which the entry of a snapshot's root has too.
            state.numbers.remove(&(known.parent, known.entry.name.clone()));
        }
    }

    /// Returns the attributes of a snapshot entry.
    pub fn getattr(&self, node: NodeId) -> std::result::Result<Attr, OverlayError> {
        if node.0 == TOP {
            return Ok(self.top());
        }
        Ok(attr(node.0, &*self.entry(node)?))
    }

    /// Returns the target of a symlink.
    pub fn readlink(&self, node: NodeId) -> std::result::Result<Vec<u8>, OverlayError> {
        match &self.entry(node)?.node {
            Node::Symlink(target) => Ok(target.clone()),
            _ => Err(Errno::INVAL.into()),
        }
    }

    /// Returns the sorted names in a directory, with their kinds.
    pub fn list(&self, node: NodeId) -> std::result::Result<Vec<(OsString, Kind)>, OverlayError> {
        if node.0 == TOP {
            let snapshots = self.history.snapshots();
            return Ok(snapshots.iter().map(|(id, _)| (short_id(id).into(), Kind::Directory)).collect());
        }
        let entries = node::read(self.history.overlay.store(), &self.directory(node)?)?;
        Ok(entries.into_iter().map(|entry| (entry.name, kind(&entry.node))).collect())
    }

    /// Opens a file for reading.
    pub fn open(&self, node: NodeId) -> std::result::Result<SnapshotFile, OverlayError> {
        let recipe = match &self.entry(node)?.node {
            Node::File { recipe: Some(recipe), .. } => Some(self.history.overlay.store().recipe(recipe)?),
            Node::File { recipe: None, .. } => None,
            _ => return Err(Errno::INVAL.into()),
        };
        Ok(SnapshotFile { recipe, next_offset: AtomicU64::new(0) })
    }

    /// Reads up to `size` bytes at `offset`; fewer only at the end.
    pub fn read(
        &self,
        file: &SnapshotFile,
        offset: u64,
        size: usize,
    ) -> std::result::Result<Vec<u8>, OverlayError> {
        let Some(recipe) = &file.recipe else { return Ok(Vec::new()) };
        let store = self.history.overlay.store();
        let sequential = file.next_offset.swap(offset + size as u64, Ordering::Relaxed) == offset;
        if sequential && let Some(next) = recipe.chunk_at(offset + size as u64) {
            let until = (next + AHEAD_CHUNKS).min(recipe.chunks().len());
            store.prefetch(&recipe.chunks()[next..until]);
        }
        let mut buffer = vec![0; size];
        let len = store.read_at(recipe, offset, &mut buffer)?;
        buffer.truncate(len);
        Ok(buffer)
    }

    /// Returns an xattr's value.
    pub fn getxattr(&self, node: NodeId, name: &OsStr) -> std::result::Result<Option<Vec<u8>>, OverlayError> {
        use std::os::unix::ffi::OsStrExt;
        if node.0 == TOP {
            return Ok(None);
        }
        let entry = self.entry(node)?;
        let found = entry.meta.xattrs.iter().flatten().find(|(known, _)| known.as_slice() == name.as_bytes());
        Ok(found.map(|(_, value)| value.clone()))
    }

    /// Returns the names of all xattrs, each ended by a zero byte.
    pub fn listxattr(&self, node: NodeId) -> std::result::Result<Vec<u8>, OverlayError> {
        if node.0 == TOP {
            return Ok(Vec::new());
        }
        let entry = self.entry(node)?;
        let names = entry.meta.xattrs.iter().flatten().map(|(name, _)| name);
        Ok(names.flat_map(|name| name.iter().copied().chain([0])).collect())
    }
}

fn kind(node: &Node) -> Kind {
    match node {
        Node::File { .. } => Kind::File,
        Node::Directory(_) => Kind::Directory,
        Node::Symlink(_) => Kind::Symlink,
        Node::Fifo => Kind::Fifo,
        Node::Socket => Kind::Socket,
        Node::CharDevice(_) => Kind::CharDevice,
        Node::BlockDevice(_) => Kind::BlockDevice,
    }
}

fn attr(number: u64, entry: &Entry) -> Attr {
    let kind = kind(&entry.node);
    let size = match &entry.node {
        Node::File { size, .. } => *size,
        Node::Symlink(target) => target.len() as u64,
        _ => 0,
    };
    let rdev = match entry.node {
        Node::CharDevice(number) | Node::BlockDevice(number) => number,
        _ => 0,
    };
    let Meta { mode, uid, gid, mtime, .. } = entry.meta;
    Attr {
        node: NodeId(number),
        kind,
        perm: mode as u16,
        size,
        blocks: size.div_ceil(512),
        nlink: if kind == Kind::Directory { 2 } else { 1 },
        uid,
        gid,
        rdev,
        blksize: 4096,
        atime: mtime,
        mtime,
        ctime: mtime,
        settled: true,
        changed: false,
    }
}
