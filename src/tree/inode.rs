//! Inodes in use: the state of each file, its openers, and the way of its I/O.
//!
//! Invariants:
//! - One [`Inode`] for each inode of the backing tree, however many names it has. It stays in the table while
//!   its users hold look-ups on it or the daemon holds an `Arc` to it, so that its state is never split.
//! - All I/O on a file goes one way ([`Mode`]) while any open is unreleased.
//! - The content changes between plain, stub and hybrid only under the inode's mutex, or, while hydrating,
//!   with the phase saying so.
//!
//! Lock order: table shard, then one inode's mutex; never two inodes' mutexes. An inode's mutex may be held
//! across an fsync. So a thread that holds a shard, which covers a sixteenth of all files, never waits for
//! one: under the shard it is only taken if no other thread can have it, or tried.

mod dormant;
mod names;
mod table;

use crate::backing::stub::{Stub, Time};
use crate::backing::types::{Kind, NodeId};
use crate::backing::{self, Identity};
use crate::id::FileId;
use crate::recipe::Recipe;
use crate::tree::anchor::Anchor;
use crate::tree::growing::Growing;
use crate::tree::heat::Share;
use crate::tree::hybrid::Hybrid;
pub use crate::tree::inode::table::Inodes;
use crate::tree::needed::Needed;
use crate::tree::write_errors::WriteErrors;
use rustix::fs::OFlags;
use std::any::Any;
use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

/// The kernel reports the end of a program a little after its waiting parent knows.
const RUNNING_WAIT: Duration = Duration::from_millis(100);

/// How reads and writes of an open file are served: all opens of one inode share it.
#[derive(Clone, Default)]
pub enum Mode {
    /// No process has it open.
    #[default]
    None,
    /// The kernel's page cache and this process.
    Cached,
    /// The kernel does I/O on the backing file itself; the token keeps its registration alive.
    Pass(PassToken),
}

/// Registration of a file for kernel passthrough by the caller of [`crate::tree::Tree::open`]; opaque here.
pub type PassToken = Arc<dyn Any + Send + Sync>;

/// Whether a conversion is under way.
#[derive(Clone, Default)]
pub enum Phase {
    /// None is.
    #[default]
    Idle,
    /// A committer is reading the file and holds a lease through this descriptor. A thread that needs the file
    /// drops the lease and sets the phase to `Idle`; the committer then gives up.
    Converting(Arc<File>),
    /// The content is being written back; the recipe is the truth until that is done.
    Hydrating,
}

/// Place of a regular file's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// The file itself. A record may remember the ctime to show.
    Plain(Option<Stub>),
    /// The recipe.
    Stub(Stub),
    /// The recipe and the file, as its extent list says.
    Hybrid(Stub),
    /// The record cannot be read or believed: reading the content is an error.
    Unknown(&'static str),
}

/// The backing file of an open inode: all its opens share one descriptor.
#[derive(Clone)]
pub struct OpenFile {
    /// The descriptor.
    pub file: Arc<File>,
    /// Whether it may be written through.
    pub writable: bool,
    /// The descriptor to read through: the same, unless the file could not be opened for both.
    pub reader: Option<Arc<File>>,
}

/// The changing part of a regular file's inode.
pub struct State {
    /// The content's place; `None` until the record was read.
    pub content: Option<Content>,
    /// The conversion under way.
    pub phase: Phase,
    /// How open files do I/O.
    pub mode: Mode,
    /// Unreleased opens.
    pub opens: u32,
    /// Unreleased opens for writing.
    pub writers: u32,
    /// Since when it is open for writing, if its content at the last close was not in the store then.
    pub overwritten_since: Option<Instant>,
    /// Unreleased opens to run it as a program.
    pub running: u32,
    /// Whether the content may have changed since it was last indexed.
    pub dirty: bool,
    /// Whether it stands in the commit queue.
    pub queued: bool,
    /// Its generation in the commit queue ([`crate::convert::queue`]).
    pub generation: u64,
    /// How often in a row it could not be converted.
    pub attempts: u8,
    /// Whether the kernel was given the file for passthrough since it was last seen to be unmapped. A mapping
    /// outlives its open, and programs write through it unseen.
    pub passed: bool,
    /// Whether one of these opens was for writing.
    pub passed_to_writer: bool,
    /// When the last open was released, as far as is known.
    pub closed: Instant,
    /// Whether its content was committed after its last change: a change makes that work useless.
    pub committed: bool,
    /// Whether the kernel may have cached pages that differ from the content, because a write bypassed them.
    pub pages_stale: bool,
    /// For a plain file that was last open through the kernel's page cache: its mtime and length then.
    pub pages_of: Option<(Time, u64)>,
    /// The backing file, while open.
    pub io: Option<OpenFile>,
    /// Write-back errors that some handle has not reported yet, while open.
    pub write_errors: Arc<WriteErrors>,
    /// The stub's or hybrid file's recipe, while open.
    pub recipe: Option<Arc<Recipe>>,
    /// Extents of a hybrid file.
    pub hybrid: Option<Arc<Hybrid>>,
    /// Chunks already taken from a file that is still open for writing.
    pub growing: Option<Growing>,
    /// For a file that waits for space: the bytes that it would add to the store.
    pub needed: Option<Box<Needed>>,
    /// Whether its chunks are being taken just now: our own descriptor then prevents a lease.
    pub stepping: bool,
    /// For a hot file (kept plain because it is read often): its share of the room for hot files. Its record still
    /// names its content.
    pub hot: Option<Share>,
    /// For a write-back that no thread waits for: a thread that needs the file sets this, and the write-back is given up.
    pub cancel: Option<Arc<AtomicBool>>,
}

/// One inode of the backing tree.
pub struct Inode {
    /// Its number for users.
    pub node: NodeId,
    /// Its identity in the backing directory.
    pub identity: Identity,
    /// Its type.
    pub kind: Kind,
    /// Whether it lies on the same filesystem as the root: others are passed through as they are.
    pub on_root_fs: bool,
    /// Keeps the inode reachable.
    anchor: Arc<Anchor>,
    /// Whether its last name was removed.
    nameless: AtomicBool,
    /// Whether it was used since the table last searched for inodes that can doze.
    used: AtomicBool,
    state: Mutex<State>,
    changed: Condvar,
}

impl Inode {
    /// A descriptor for it (`O_PATH`); ESTALE if it is gone.
    pub fn path_fd(&self) -> rustix::io::Result<Arc<OwnedFd>> {
        self.anchor.fd()
    }

    /// Opens it, a regular file, for I/O.
    pub fn open_io(&self, access: OFlags) -> rustix::io::Result<File> {
        self.anchor.open_io(access)
    }

    /// Records that `child` was just seen under a name in this directory.
    pub fn has(&self, name: &OsStr, child: &Inode) {
        child.anchor.seen_at(&self.anchor, name);
    }

    /// Records that `child` lost a name in this directory.
    pub fn lost(&self, name: &OsStr, child: &Inode) {
        child.anchor.gone_from(&self.anchor, name);
    }

    /// Keeps it while it is open, also without a name; [`Inode::unpin`] is the counterpart.
    pub fn pin(&self) -> rustix::io::Result<()> {
        self.anchor.pin()
    }

    /// Undoes one [`Inode::pin`].
    pub fn unpin(&self) {
        self.anchor.unpin();
    }

    /// Closes its descriptor, once no thread uses the inode any more.
    pub fn close(&self) {
        self.anchor.close();
    }

    /// Closes the descriptor of a nameless, closed file while it waits to be committed.
    fn let_go_if_nameless(&self) {
        let state = self.lock();
        if self.nameless.load(Ordering::Relaxed) && state.queued && state.opens == 0 {
            self.anchor.close();
        }
    }

    /// Whether its last name was removed through the overlay.
    pub fn is_nameless(&self) -> bool {
        self.nameless.load(Ordering::Relaxed)
    }

    /// Whether it is a file that can be converted at all.
    pub fn is_root_fs_file(&self) -> bool {
        self.kind == Kind::File && self.on_root_fs
    }

    /// Locks the changing part.
    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the changing part, unless another thread has it locked.
    fn try_lock(&self) -> Option<MutexGuard<'_, State>> {
        match self.state.try_lock() {
            Ok(state) => Some(state),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Waits until another thread calls [`Inode::notify`].
    pub fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until its content is written back, if that is under way. Gives up a write-back that had no waiter so far.
    pub fn wait_written_back<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        while state.is_hydrating() {
            if let Some(given_up) = &state.cancel {
                given_up.store(true, Ordering::Release);
            }
            state = self.wait(state);
        }
        state
    }

    /// Waits a moment for the kernel to report that a program has ended; fails if one still runs.
    pub fn wait_until_not_running<'a>(
        &'a self,
        state: MutexGuard<'a, State>,
    ) -> rustix::io::Result<MutexGuard<'a, State>> {
        let wait = self.changed.wait_timeout_while(state, RUNNING_WAIT, |state| state.running > 0);
        let (state, _) = wait.unwrap_or_else(PoisonError::into_inner);
        if state.running > 0 { Err(rustix::io::Errno::TXTBSY) } else { Ok(state) }
    }

    /// Wakes threads that wait for the end of a phase, or of a program.
    pub fn notify(&self) {
        self.changed.notify_all();
    }

    /// Its identity in the index.
    pub fn file_id(&self) -> FileId {
        FileId(self.identity.ino)
    }
}

impl State {
    /// State of a file that was closed at `closed` and whose record has not been read.
    fn new(closed: Instant) -> State {
        State {
            content: None,
            phase: Phase::Idle,
            mode: Mode::None,
            opens: 0,
            writers: 0,
            overwritten_since: None,
            running: 0,
            dirty: false,
            queued: false,
            generation: 0,
            attempts: 0,
            passed: false,
            passed_to_writer: false,
            closed,
            committed: false,
            // It has no pages yet.
            pages_stale: false,
            pages_of: None,
            io: None,
            recipe: None,
            hybrid: None,
            growing: None,
            needed: None,
            stepping: false,
            hot: None,
            write_errors: Arc::default(),
            cancel: None,
        }
    }

    /// Takes the file away from a conversion under way, if there is one, and continues at once.
    pub fn interrupt_conversion(&mut self) {
        if let Phase::Converting(file) = &self.phase {
            backing::unlease(file);
            self.phase = Phase::Idle;
            self.dirty = true;
        }
    }

    /// Returns the record of a hot file: it names the content as long as the times are its own.
    pub fn hot_record(&self) -> Option<Stub> {
        match self.content {
            Some(Content::Plain(Some(record))) if self.hot.is_some() => Some(record),
            _ => None,
        }
    }

    /// Whether a write-back is under way.
    pub fn is_hydrating(&self) -> bool {
        matches!(self.phase, Phase::Hydrating)
    }
}
