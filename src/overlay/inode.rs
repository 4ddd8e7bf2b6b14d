//! Inodes in use: what each file is, who has it open, and in which of three ways.
//!
//! Invariants:
//! - One [`Inode`] per inode of the backing tree, however many names it has. It stays in the table while
//!   its users hold look-ups on it or anyone here holds an `Arc` to it, so state never splits in two.
//! - All I/O on a file goes one way ([`Mode`]) while any open is unreleased.
//! - The content changes between plain and stub only under the inode's mutex, or, while hydrating, with
//!   the phase saying so.
//!
//! Lock order: table shard, then one inode's mutex; no inode's mutex is held while another's is taken.

use super::anchor::{Anchor, Anchors};
use super::backing::{self, Backing, Identity};
use super::error::{OverlayError, Result};
use super::growing::Growing;
use super::stub::Stub;
use super::types::{Kind, NodeId};
use crate::id::FileId;
use crate::recipe::Recipe;
use std::any::Any;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// What reads and writes of an open file go through: all opens of one inode agree.
#[derive(Clone, Default)]
pub enum Mode {
    /// Nobody has it open.
    #[default]
    None,
    /// The kernel's page cache and this process.
    Cached,
    /// The kernel does I/O on the backing file itself; the token keeps its registration alive.
    Pass(PassToken),
}

/// What the caller of [`super::Overlay::open`] registered for kernel passthrough; opaque here.
pub type PassToken = Arc<dyn Any + Send + Sync>;

/// Whether a conversion is under way.
#[derive(Clone, Default)]
pub enum Phase {
    /// None is.
    #[default]
    Idle,
    /// A committer is reading the file, holding a lease through this descriptor. Whoever wants the file
    /// drops the lease and sets the phase to `Idle`: the committer then gives up.
    Converting(Arc<File>),
    /// The content is being written back; the recipe is the truth until that is done.
    Hydrating,
}

/// What holds the content of a regular file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// The file itself. A record may remember the ctime to show.
    Plain(Option<Stub>),
    /// The recipe.
    Stub(Stub),
    /// The record cannot be read or believed: reading the content is an error.
    Unknown(&'static str),
}

/// The backing file of an open inode: all its opens share one descriptor.
#[derive(Clone)]
pub struct OpenFile {
    /// The descriptor.
    pub file: Arc<File>,
    /// Whether it may be written through; reading it always may.
    pub writable: bool,
}

/// The changing part of a regular file's inode.
pub struct State {
    /// What holds the content; `None` until the record has been looked at.
    pub content: Option<Content>,
    /// What is under way.
    pub phase: Phase,
    /// How open files do I/O.
    pub mode: Mode,
    /// Unreleased opens.
    pub opens: u32,
    /// Unreleased opens for writing.
    pub writers: u32,
    /// Whether the content may have changed since it was last indexed.
    pub dirty: bool,
    /// Whether it stands in the commit queue.
    pub queued: bool,
    /// How often in a row it could not be converted.
    pub attempts: u8,
    /// Whether the kernel's cached pages are known to be the content.
    pub pages_valid: bool,
    /// The backing file, while open.
    pub io: Option<OpenFile>,
    /// The stub's recipe, while open.
    pub recipe: Option<Arc<Recipe>>,
    /// Chunks already taken from a file that is still open for writing.
    pub growing: Option<Growing>,
}

/// One inode of the backing tree.
pub struct Inode {
    /// Its number for users.
    pub node: NodeId,
    /// Its identity below.
    pub identity: Identity,
    /// What it is.
    pub kind: Kind,
    /// Whether it lies on the same filesystem as the root: others are passed through as they are.
    pub home: bool,
    /// Keeps hold of it.
    anchor: Arc<Anchor>,
    state: Mutex<State>,
    changed: Condvar,
}

impl Inode {
    /// A descriptor for it (`O_PATH`); ESTALE if it is gone.
    pub fn path_fd(&self) -> rustix::io::Result<Arc<OwnedFd>> {
        self.anchor.fd()
    }

    /// Says that `child` was just seen under a name in this directory.
    pub fn has(&self, name: &OsStr, child: &Inode) {
        child.anchor.seen_at(&self.anchor, name);
    }

    /// Says that `child` lost a name in this directory.
    pub fn lost(&self, name: &OsStr, child: &Inode) {
        child.anchor.gone_from(&self.anchor, name);
    }

    /// Lets go of a file that lost its last name while it waits to be committed; nobody has it open.
    pub fn lost_last_name(&self) {
        let state = self.lock();
        if state.queued && state.opens == 0 {
            self.anchor.drop_gone();
        }
    }

    /// Locks the changing part.
    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until somebody calls [`Inode::notify`].
    pub fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes those who wait for a phase to end.
    pub fn notify(&self) {
        self.changed.notify_all();
    }

    /// Its identity in the index.
    pub fn file_id(&self) -> FileId {
        FileId(self.identity.ino)
    }
}

impl State {
    /// Takes the file away from a conversion under way, if there is one, and goes on at once.
    pub fn interrupt_conversion(&mut self) {
        if let Phase::Converting(file) = &self.phase {
            backing::unlease(file);
            self.phase = Phase::Idle;
            self.dirty = true;
        }
    }

    /// Whether a write-back is under way.
    pub fn is_hydrating(&self) -> bool {
        matches!(self.phase, Phase::Hydrating)
    }
}

struct Entry {
    inode: Arc<Inode>,
    lookups: u64,
}

const SHARDS: usize = 16;
const SWEEP_PAUSE: usize = 32;

/// The inodes in use, by number.
pub struct Inodes {
    shards: [Mutex<HashMap<NodeId, Entry>>; SHARDS],
    anchors: Arc<Anchors>,
    /// The shard in which descriptors were closed last.
    hand: AtomicUsize,
    /// Calls for which closing descriptors is not tried again.
    pause: AtomicUsize,
}

impl Inodes {
    /// A table that holds nothing yet, for inodes on the filesystem of `root`.
    pub fn new(root: OwnedFd) -> Inodes {
        Inodes {
            shards: Default::default(),
            anchors: Arc::new(Anchors::new(root)),
            hand: AtomicUsize::new(0),
            pause: AtomicUsize::new(0),
        }
    }

    /// Closes descriptors of inodes long unused, if too many are open: those of one shard, O(its inodes), which
    /// mostly frees enough for as many calls. Where nothing can be freed, it is not tried at every call.
    fn let_go_of_some(&self) {
        if !self.anchors.too_many()
            || self.pause.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1)).is_ok()
        {
            return;
        }
        let shard = &self.shards[self.hand.fetch_add(1, Ordering::Relaxed) % SHARDS];
        let mut closed = 0;
        for entry in shard.lock().unwrap_or_else(PoisonError::into_inner).values() {
            // An open stub has nothing else that keeps it from vanishing when it is unlinked.
            if entry.inode.state.try_lock().is_ok_and(|state| state.opens == 0) {
                closed += usize::from(entry.inode.anchor.let_go());
            }
        }
        // The first round over all shards only notes which are in use.
        if closed == 0 && self.hand.load(Ordering::Relaxed) > 2 * SHARDS {
            self.pause.store(SWEEP_PAUSE, Ordering::Relaxed);
        }
    }

    fn shard(&self, node: NodeId) -> MutexGuard<'_, HashMap<NodeId, Entry>> {
        let shard = (node.0 ^ node.0 >> 17) as usize % SHARDS;
        self.shards[shard].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The inode known under `node`.
    pub fn get(&self, node: NodeId) -> Result<Arc<Inode>> {
        self.find(node).ok_or(OverlayError::Stale(node.0))
    }

    /// The inode known under `node`, if any.
    pub fn find(&self, node: NodeId) -> Option<Arc<Inode>> {
        self.let_go_of_some();
        self.shard(node).get(&node).map(|entry| entry.inode.clone())
    }

    /// The inode that `path_fd` refers to, known from now on. Counts `lookups` more look-ups on it.
    pub fn enter(
        &self,
        backing: &Backing,
        path_fd: OwnedFd,
        stat: &rustix::fs::Stat,
        lookups: u64,
    ) -> Result<Arc<Inode>> {
        let identity = backing::identity(stat);
        let mut node = backing.node(identity);
        loop {
            let mut shard = self.shard(node);
            match shard.get_mut(&node) {
                Some(entry) if entry.inode.identity == identity && entry.inode.anchor.is(&path_fd) => {
                    entry.lookups += lookups;
                    return Ok(entry.inode.clone());
                }
                // Two foreign inodes may fold to one number, and a number may go to a new file while users
                // still hold the old one: the later takes another number, above all that inodes have.
                Some(_) => node = NodeId(node.0 | 1 << 62).next(),
                None => {
                    let home = identity.dev == backing.identity().dev;
                    let inode = Arc::new(Inode {
                        node,
                        identity,
                        kind: backing::kind(stat.st_mode),
                        home,
                        anchor: Arc::new(self.anchors.hold(path_fd, home)),
                        state: Mutex::new(State {
                            content: None,
                            phase: Phase::Idle,
                            mode: Mode::None,
                            opens: 0,
                            writers: 0,
                            dirty: false,
                            queued: false,
                            attempts: 0,
                            pages_valid: false,
                            io: None,
                            recipe: None,
                            growing: None,
                        }),
                        changed: Condvar::new(),
                    });
                    shard.insert(node, Entry { inode: inode.clone(), lookups });
                    drop(shard);
                    self.let_go_of_some();
                    return Ok(inode);
                }
            }
        }
    }

    /// Takes back `lookups` look-ups; an inode without any leaves the table once nobody holds it.
    pub fn forget(&self, node: NodeId, lookups: u64) {
        let mut shard = self.shard(node);
        if let Some(entry) = shard.get_mut(&node) {
            entry.lookups = entry.lookups.saturating_sub(lookups);
            Self::drop_unused(&mut shard, node, 1);
        }
    }

    /// Lets go of an inode that was worked on: the counterpart of every use outside a request.
    pub fn release(&self, inode: Arc<Inode>) {
        let node = inode.node;
        let mut shard = self.shard(node);
        Self::drop_unused(&mut shard, node, 2);
        drop(inode);
    }

    fn drop_unused(shard: &mut HashMap<NodeId, Entry>, node: NodeId, holders: usize) {
        let unused = shard.get(&node).is_some_and(|entry| {
            // Whoever wants another `Arc` needs this shard's lock, so the count cannot grow meanwhile.
            entry.lookups == 0 && Arc::strong_count(&entry.inode) <= holders && entry.inode.lock().opens == 0
        });
        if unused {
            shard.remove(&node);
        }
    }

    /// Lets go of inodes whose last look-up was taken back while a request still held them.
    pub fn sweep(&self) {
        for shard in &self.shards {
            let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            let nodes: Vec<_> = shard.iter().filter(|(_, e)| e.lookups == 0).map(|(node, _)| *node).collect();
            nodes.into_iter().for_each(|node| Self::drop_unused(&mut shard, node, 1));
        }
    }

    /// How many descriptors inodes may hold.
    pub fn descriptors_max(&self) -> usize {
        self.anchors.open_max()
    }

    /// The inodes in use that `wanted` picks.
    pub fn collect(&self, mut wanted: impl FnMut(&Inode) -> bool) -> Vec<Arc<Inode>> {
        let mut found = Vec::new();
        for shard in &self.shards {
            let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            found.extend(shard.values().filter(|e| wanted(&e.inode)).map(|e| e.inode.clone()));
        }
        found
    }
}
