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

use super::anchor::{Anchor, Anchors};
use super::backing::{self, Backing, Identity};
use super::error::{OverlayError, Result};
use super::growing::Growing;
use super::heat::Share;
use super::hybrid::Hybrid;
use super::resolved::Resolved;
use super::room::Needed;
use super::stub::{Stub, Time};
use super::types::{Kind, NodeId};
use super::write_errors::WriteErrors;
use crate::id::FileId;
use crate::recipe::Recipe;
use rustix::fs::OFlags;
use std::any::Any;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

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
    /// Since when it is open for writing, if what it was when it was closed before was not in the store then.
    pub overwritten_since: Option<Instant>,
    /// Unreleased opens to run it as a program.
    pub running: u32,
    /// Whether the content may have changed since it was last indexed.
    pub dirty: bool,
    /// Whether it stands in the commit queue.
    pub queued: bool,
    /// When it came into the commit queue last ([`super::queue`]).
    pub generation: u64,
    /// How often in a row it could not be converted.
    pub attempts: u8,
    /// Whether the kernel was given the file for passthrough since it was last seen that nobody has it mapped: a mapping
    /// outlives its open, and is written to without a word.
    pub passed: bool,
    /// Since when nobody has had it open, as far as is known.
    pub closed: Instant,
    /// Whether its content was committed after its last change: changing it makes that work of no use.
    pub committed: bool,
    /// Whether the kernel may have cached pages that are not the content: it, or somebody else, wrote past them.
    pub pages_stale: bool,
    /// Of a plain file that was last open through the kernel's page cache: its mtime and length then.
    pub pages_of: Option<(Time, u64)>,
    /// The backing file, while open.
    pub io: Option<OpenFile>,
    /// Write-back errors that not every handle has been given yet, while open.
    pub write_errors: Arc<WriteErrors>,
    /// The stub's or hybrid file's recipe, while open.
    pub recipe: Option<Arc<Recipe>>,
    /// Of a hybrid file, where its bytes are.
    pub hybrid: Option<Arc<Hybrid>>,
    /// Chunks already taken from a file that is still open for writing.
    pub growing: Option<Growing>,
    /// Of a file that waits for space: what it would add to the store.
    pub needed: Option<Box<Needed>>,
    /// Whether chunks are just being taken from it: our own descriptor keeps a lease from being granted.
    pub stepping: bool,
    /// Of a file that is plain because it is read again and again: its share of the room for those. Its record names its
    /// content still.
    pub hot: Option<Share>,
    /// Of a write-back that nobody waits for: set by whoever wants the file, and then it is given up.
    pub cancel: Option<Arc<AtomicBool>>,
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
    pub on_root_fs: bool,
    /// Keeps hold of it.
    anchor: Arc<Anchor>,
    /// Whether its last name was removed.
    nameless: AtomicBool,
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

    /// Says that `child` was just seen under a name in this directory.
    pub fn has(&self, name: &OsStr, child: &Inode) {
        child.anchor.seen_at(&self.anchor, name);
    }

    /// Says that `child` lost a name in this directory.
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

    /// Closes its descriptor: nobody asks for it any more.
    pub fn close(&self) {
        self.anchor.close();
    }

    /// Lets go of a file without a name while it waits to be committed; nobody knows it any more.
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

    /// Waits until somebody calls [`Inode::notify`].
    pub fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until its content is written back, if that is under way; what nobody has waited for so far is given up.
    pub fn wait_written_back<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        while state.is_hydrating() {
            if let Some(given_up) = &state.cancel {
                given_up.store(true, Ordering::Release);
            }
            state = self.wait(state);
        }
        state
    }

    /// Waits a moment for a program that has ended to be told of, else says that one runs.
    pub fn wait_until_not_running<'a>(
        &'a self,
        state: MutexGuard<'a, State>,
    ) -> rustix::io::Result<MutexGuard<'a, State>> {
        let wait = self.changed.wait_timeout_while(state, RUNNING_WAIT, |state| state.running > 0);
        let (state, _) = wait.unwrap_or_else(PoisonError::into_inner);
        if state.running > 0 { Err(rustix::io::Errno::TXTBSY) } else { Ok(state) }
    }

    /// Wakes those who wait for a phase to end, or a program.
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

    /// The record of a file that is plain because it is read: it names the content as long as the times are its own.
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

struct Entry {
    inode: Arc<Inode>,
    lookups: u64,
    /// The number that the inode would have if no other had it.
    own: NodeId,
}

#[derive(Default)]
struct Shard {
    entries: HashMap<NodeId, Entry>,
    /// Inodes that are not known under their own number, by that: users still held another one, gone below, that
    /// had it before. They stay known as they are when that one is forgotten, else there would be two of them.
    renumbered: HashMap<NodeId, Vec<NodeId>>,
}

impl Shard {
    /// What is known under `own` or instead of it.
    fn known(&self, own: NodeId) -> impl Iterator<Item = &Entry> {
        let others = self.renumbered.get(&own).into_iter().flatten();
        std::iter::once(own).chain(others.copied()).filter_map(|node| self.entries.get(&node))
    }

    /// A number for an inode that is not known yet.
    fn number(&mut self, own: NodeId) -> NodeId {
        let mut node = own;
        let mut others = 0;
        while self.entries.contains_key(&node) {
            // In the shard of its own: a shard is chosen by lower bits.
            node = own.renumbered(others);
            others += 1;
        }
        if node != own {
            self.renumbered.entry(own).or_default().push(node);
        }
        node
    }

    fn remove(&mut self, node: NodeId) {
        let Some(Entry { own, .. }) = self.entries.remove(&node) else { return };
        if let Some(others) = self.renumbered.get_mut(&own) {
            others.retain(|other| *other != node);
            if others.is_empty() {
                self.renumbered.remove(&own);
            }
        }
    }
}

/// The kernel tells of a program's end a little after those who waited for it know.
const RUNNING_WAIT: Duration = Duration::from_millis(100);
const SHARDS: usize = 16;

/// The inodes in use, by number.
pub struct Inodes {
    shards: [Mutex<Shard>; SHARDS],
    anchors: Arc<Anchors>,
}

impl Inodes {
    /// A table that holds nothing yet, for inodes on the filesystem of `root`.
    pub fn new(root: OwnedFd) -> Inodes {
        Inodes { shards: Default::default(), anchors: Arc::new(Anchors::new(root)) }
    }

    fn shard(&self, node: NodeId) -> MutexGuard<'_, Shard> {
        let shard = (node.0 ^ node.0 >> 17) as usize % SHARDS;
        self.shards[shard].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The inode known under `node`.
    pub fn get(&self, node: NodeId) -> Result<Arc<Inode>> {
        self.find(node).ok_or(OverlayError::Stale(node.0))
    }

    /// The inode known under `node`, if any.
    pub fn find(&self, node: NodeId) -> Option<Arc<Inode>> {
        self.shard(node).entries.get(&node).map(|entry| entry.inode.clone())
    }

    /// The inode, if in use, that a file which exists is: not one that is gone and had its number before.
    pub fn find_existing(&self, backing: &Backing, identity: Identity) -> Option<Arc<Inode>> {
        let own = backing.node(identity);
        let known: Vec<_> = self.shard(own).known(own).map(|entry| entry.inode.clone()).collect();
        known.into_iter().find(|inode| inode.identity == identity && inode.path_fd().is_ok())
    }

    /// The inode that was found, known from now on. Counts `lookups` more look-ups on it.
    pub fn enter(&self, backing: &Backing, found: Resolved, lookups: u64) -> Result<Arc<Inode>> {
        let (path_fd, stat) = found.into_parts();
        let identity = backing::identity(&stat);
        let own = backing.node(identity);
        let mut shard = self.shard(own);
        let known = shard
            .known(own)
            .find(|entry| entry.inode.identity == identity && entry.inode.anchor.is(&path_fd));
        if let Some(node) = known.map(|entry| entry.inode.node)
            && let Some(entry) = shard.entries.get_mut(&node)
        {
            entry.lookups += lookups;
            return Ok(entry.inode.clone());
        }
        // Two foreign inodes may fold to one number, and a number may go to a new file while users still hold the
        // old one: the later takes another number, above all that inodes have.
        let node = shard.number(own);
        let on_root_fs = identity.dev == backing.identity().dev;
        let inode = Arc::new(Inode {
            node,
            identity,
            kind: backing::kind(stat.st_mode),
            on_root_fs,
            anchor: self.anchors.hold(path_fd, on_root_fs),
            nameless: AtomicBool::new(false),
            state: Mutex::new(State {
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
                // Whoever had it open is not known. Nobody has changed it since.
                closed: Instant::now().checked_sub(backing::ctime(&stat).age()).unwrap_or_else(Instant::now),
                committed: false,
                // It has none yet.
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
            }),
            changed: Condvar::new(),
        });
        shard.entries.insert(node, Entry { inode: inode.clone(), lookups, own });
        drop(shard);
        self.anchors.trim();
        Ok(inode)
    }

    /// Takes back `lookups` look-ups; an inode without any leaves the table once nobody holds it.
    pub fn forget(&self, node: NodeId, lookups: u64) {
        let mut shard = self.shard(node);
        if let Some(entry) = shard.entries.get_mut(&node) {
            entry.lookups = entry.lookups.saturating_sub(lookups);
            Self::drop_unused(&mut shard, node, 1);
        }
        self.let_go_of_nameless(shard, node);
    }

    /// Says that an inode lost its last name. A user may have looked it up just before and open it yet; after that
    /// its room is free at once, also if it waits to be committed.
    pub fn lost_last_name(&self, inode: &Inode) {
        inode.nameless.store(true, Ordering::Relaxed);
        self.let_go_of_nameless(self.shard(inode.node), inode.node);
    }

    fn let_go_of_nameless(&self, shard: MutexGuard<'_, Shard>, node: NodeId) {
        let known = shard.entries.get(&node).filter(|entry| entry.lookups == 0);
        let nameless = known.map(|entry| entry.inode.clone()).filter(|inode| inode.is_nameless());
        drop(shard);
        if let Some(inode) = nameless {
            inode.let_go_if_nameless();
            self.release(inode);
        }
    }

    /// Lets go of an inode that was worked on: the counterpart of every use outside a request.
    pub fn release(&self, inode: Arc<Inode>) {
        let node = inode.node;
        let mut shard = self.shard(node);
        Self::drop_unused(&mut shard, node, 2);
        drop(inode);
    }

    fn drop_unused(shard: &mut Shard, node: NodeId, holders: usize) {
        let unused = shard.entries.get(&node).is_some_and(|entry| {
            // Whoever wants another `Arc` needs this shard's lock, so the count cannot grow meanwhile.
            entry.lookups == 0 && Arc::strong_count(&entry.inode) <= holders && entry.inode.lock().opens == 0
        });
        if unused {
            shard.remove(node);
        }
    }

    /// Lets go of inodes whose last look-up was taken back while a request still held them.
    pub fn sweep(&self) {
        for shard in &self.shards {
            let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            let unheld = shard.entries.iter().filter(|(_, entry)| entry.lookups == 0);
            let nodes: Vec<_> = unheld.map(|(node, _)| *node).collect();
            nodes.into_iter().for_each(|node| Self::drop_unused(&mut shard, node, 1));
        }
    }

    /// How many descriptors the files that are worked on may take together: the rest is for those that programs have open.
    pub fn descriptors_max(&self) -> usize {
        self.anchors.limit() / 2
    }

    /// The inodes in use that `wanted` picks by their state.
    pub fn collect(&self, mut wanted: impl FnMut(&Inode, &State) -> bool) -> Vec<Arc<Inode>> {
        let (mut found, mut locked) = (Vec::new(), Vec::new());
        for shard in &self.shards {
            let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            for Entry { inode, .. } in shard.entries.values() {
                match inode.try_lock() {
                    Some(state) if wanted(inode, &state) => found.push(inode.clone()),
                    Some(_) => {}
                    None => locked.push(inode.clone()),
                }
            }
        }
        // Only the caller waits for these, and for no longer than an fsync takes.
        for inode in locked {
            let is_wanted = wanted(&inode, &inode.lock());
            if is_wanted {
                found.push(inode);
            } else {
                self.release(inode);
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;
    use std::path::Path;

    /// Who had a file open before it is met is not known, only when it was changed last.
    #[test]
    fn a_file_rests_from_its_last_change_on() {
        let dir = tempfile::tempdir().unwrap();
        let backing = Backing::open(dir.path()).unwrap();
        let inodes = Inodes::new(backing.root().try_clone_to_owned().unwrap());
        std::fs::write(dir.path().join("file"), "old").unwrap();
        std::thread::sleep(Duration::from_millis(300));
        let inode = inodes.enter(&backing, backing.resolve(Path::new("file")).unwrap(), 1).unwrap();
        assert!(inode.lock().closed.elapsed() >= Duration::from_millis(250));
    }

    /// One program's slow fsync keeps nobody from other files.
    #[test]
    fn a_locked_inode_does_not_keep_others_of_its_shard_waiting() {
        let dir = tempfile::tempdir().unwrap();
        let backing = Backing::open(dir.path()).unwrap();
        let inodes = &Inodes::new(backing.root().try_clone_to_owned().unwrap());
        // Two of these are in one shard.
        let all: Vec<_> = (0..=SHARDS)
            .map(|i| {
                let name = i.to_string();
                std::fs::write(dir.path().join(&name), "x").unwrap();
                inodes.enter(&backing, backing.resolve(Path::new(&name)).unwrap(), 1).unwrap()
            })
            .collect();
        let shard_of = |inode: &Inode| {
            inodes.shards.iter().position(|shard| shard.lock().unwrap().entries.contains_key(&inode.node))
        };
        let shards: Vec<_> = all.iter().map(|inode| shard_of(inode).unwrap()).collect();
        let pair = (0..all.len())
            .flat_map(|a| (0..a).map(move |b| (a, b)))
            .find(|(a, b)| shards[*a] == shards[*b])
            .unwrap();
        let (slow, other, shard) = (&all[pair.0], &all[pair.1], &inodes.shards[shards[pair.0]]);
        for unlinked in [false, true] {
            if unlinked {
                inodes.forget(slow.node, 1);
            }
            std::thread::scope(|scope| {
                // As while it is synced.
                let state = slow.lock();
                let holders = Arc::strong_count(slow);
                scope.spawn(move || match unlinked {
                    false => drop(inodes.collect(|_, _| false)),
                    true => inodes.lost_last_name(slow),
                });
                // Until the thread waits for the inode: with a reference of its own, or with the shard locked.
                while Arc::strong_count(slow) == holders && shard.try_lock().is_ok() {
                    std::thread::yield_now();
                }
                let (tell, told) = std::sync::mpsc::channel();
                scope.spawn(move || tell.send(inodes.find(other.node).is_some()));
                let found = told.recv_timeout(Duration::from_secs(10));
                drop(state);
                assert_eq!(found, Ok(true), "a lookup waits for another file's lock");
            });
        }
    }

    /// A file that got the number of one that is gone, and that users still hold, stays one inode when they forget
    /// that one.
    #[test]
    fn a_number_used_before_makes_no_second_inode() {
        let dir = tempfile::tempdir().unwrap();
        let backing = Backing::open(dir.path()).unwrap();
        let inodes = Inodes::new(backing.root().try_clone_to_owned().unwrap());
        let path = dir.path().join("file");
        let enter = || inodes.enter(&backing, backing.resolve(Path::new("file")).unwrap(), 1).unwrap();
        let mut met = 0;
        for round in 0..100 {
            std::fs::write(&path, "old").unwrap();
            let number = path.metadata().unwrap().ino();
            let old = enter();
            std::fs::remove_file(&path).unwrap();
            old.anchor.close();
            std::fs::write(&path, "new").unwrap();
            if path.metadata().unwrap().ino() == number {
                met += 1;
                let new = enter();
                assert_ne!(new.node, old.node, "{round}");
                assert_eq!((new.node.own(), old.node.own()), (old.node, old.node), "{round}");
                let found = inodes.find_existing(&backing, old.identity).unwrap();
                assert_eq!(found.node, new.node, "what exists is not what is gone");
                inodes.forget(old.node, 1);
                inodes.release(old);
                let again = enter();
                assert!(Arc::ptr_eq(&new, &again), "one file, two inodes");
                inodes.forget(new.node, 2);
                drop((found, again));
                inodes.release(new);
            } else {
                inodes.forget(old.node, 1);
                inodes.release(old);
            }
            std::fs::remove_file(&path).unwrap();
        }
        assert!(met > 0, "this filesystem gives no number twice");
        assert!(inodes.shards.iter().all(|shard| shard.lock().unwrap().renumbered.is_empty()));
    }
}
