//! The inodes in use, by number.
//!
//! An unused inode dozes ([`Dormant`]) once [`AWAKE_MAX`] others were used since: the kernel remembers as many inodes as
//! fit its memory, and the daemon needs 160 bytes for each of those instead of 700. Its next use wakes it.

use super::super::anchor::{Anchors, FileHandle};
use super::dormant::Dormant;
use super::{Inode, State};
use crate::backing::resolved::Resolved;
use crate::backing::types::NodeId;
use crate::backing::{self, Backing, Identity};
use crate::contents::error::{OverlayError, Result};
use std::collections::{HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Unused inodes that stay awake.
const AWAKE_MAX: usize = 1 << 15;
/// Inodes that one call examines: some are in use, and stay awake.
const LOOKED_AT: usize = 8;

enum Slot {
    Awake(Arc<Inode>),
    Dormant(Box<Dormant>),
}

struct Entry {
    slot: Slot,
    lookups: u64,
}

impl Entry {
    /// Returns true if it has this identity; `dev` is the device of all dormant inodes.
    fn has(&self, identity: Identity, dev: u64) -> bool {
        match &self.slot {
            Slot::Awake(inode) => inode.identity == identity,
            Slot::Dormant(dormant) => identity.dev == dev && identity.ino == dormant.ino,
        }
    }

    /// Returns true if `fd` refers to it, given that the identity is the same.
    fn is(&self, fd: &OwnedFd) -> bool {
        match &self.slot {
            Slot::Awake(inode) => inode.anchor.is(fd),
            Slot::Dormant(dormant) => FileHandle::of(fd).is_some_and(|handle| dormant.anchor.is(&handle)),
        }
    }
}

#[derive(Default)]
struct Shard {
    entries: HashMap<NodeId, Entry>,
    /// Inodes that are known under another number than their own, by their own: when they were entered, users still held an
    /// inode, removed below, that had the number before. They keep that number, so that no inode is known twice.
    renumbered: HashMap<NodeId, Vec<NodeId>>,
    /// Inodes that are awake, in the order in which they may doze; also some that have left the table.
    awake: VecDeque<NodeId>,
}

impl Shard {
    /// Returns the inodes known under `own` or instead of it.
    fn known(&self, own: NodeId) -> impl Iterator<Item = (NodeId, &Entry)> {
        let others = self.renumbered.get(&own).into_iter().flatten();
        let nodes = std::iter::once(own).chain(others.copied());
        nodes.filter_map(|node| Some((node, self.entries.get(&node)?)))
    }

    /// Returns a number for an inode that is not known yet.
    fn number(&mut self, own: NodeId) -> NodeId {
        let mut node = own;
        let mut others = 0;
        while self.entries.contains_key(&node) {
            // In the same shard as its own number: lower bits select the shard.
            node = own.renumbered(others);
            others += 1;
        }
        if node != own {
            self.renumbered.entry(own).or_default().push(node);
        }
        node
    }

    fn remove(&mut self, node: NodeId) {
        if self.entries.remove(&node).is_some() && !self.renumbered.is_empty() {
            self.renumbered.retain(|_, others| {
                others.retain(|other| *other != node);
                !others.is_empty()
            });
        }
    }

    /// Makes inodes doze that were not used lately while too many are awake. O(1).
    fn doze(&mut self, awake_max: usize) {
        for _ in 0..LOOKED_AT {
            if self.awake.len() <= awake_max {
                return;
            }
            let Some(node) = self.awake.pop_front() else { return };
            let Some(Entry { slot, .. }) = self.entries.get_mut(&node) else { continue };
            let Slot::Awake(inode) = &*slot else { continue };
            // Another `Arc` takes this shard's lock.
            let unused = !inode.used.swap(false, Ordering::Relaxed) && Arc::strong_count(inode) == 1;
            match unused.then(|| Dormant::of(inode)).flatten() {
                Some(dormant) => *slot = Slot::Dormant(Box::new(dormant)),
                None => self.awake.push_back(node),
            }
        }
    }
}

const SHARDS: usize = 16;

/// The inodes in use, by number.
pub struct Inodes {
    shards: [Mutex<Shard>; SHARDS],
    anchors: Arc<Anchors>,
    /// The root's filesystem: all dormant inodes are on it.
    dev: u64,
    /// Limit of awake inodes in a shard.
    awake_max: usize,
}

impl Inodes {
    /// Makes an empty table, for inodes on the filesystem of `root`.
    pub fn new(root: OwnedFd) -> Inodes {
        let dev = rustix::fs::fstat(&root).map_or(0, |stat| backing::identity(&stat).dev);
        let anchors = Arc::new(Anchors::new(root));
        Inodes { shards: Default::default(), anchors, dev, awake_max: AWAKE_MAX / SHARDS }
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
        self.wake(&mut self.shard(node), node)
    }

    /// The inode known under `node`, awake.
    fn wake(&self, shard: &mut Shard, node: NodeId) -> Option<Arc<Inode>> {
        let Entry { slot, .. } = shard.entries.get_mut(&node)?;
        let dormant = match slot {
            Slot::Awake(inode) => {
                inode.used.store(true, Ordering::Relaxed);
                return Some(inode.clone());
            }
            Slot::Dormant(dormant) => dormant,
        };
        let inode = Arc::new(dormant.wake(node, self.dev, &self.anchors));
        *slot = Slot::Awake(inode.clone());
        shard.awake.push_back(node);
        shard.doze(self.awake_max);
        Some(inode)
    }

    /// Returns the inodes in use with this identity: several if the number of a removed one was given to another file.
    pub fn with_identity(&self, backing: &Backing, identity: Identity) -> Vec<Arc<Inode>> {
        let own = backing.node(identity);
        let mut shard = self.shard(own);
        let known = shard.known(own).filter(|(_, entry)| entry.has(identity, self.dev));
        let nodes: Vec<_> = known.map(|(node, _)| node).collect();
        nodes.into_iter().filter_map(|node| self.wake(&mut shard, node)).collect()
    }

    /// Returns the inode in use of an existing file: not a removed one that had its number before.
    pub fn find_existing(&self, backing: &Backing, identity: Identity) -> Option<Arc<Inode>> {
        self.with_identity(backing, identity).into_iter().find(|inode| inode.path_fd().is_ok())
    }

    /// Returns the inode of `found`, which is known from now on. Counts `lookups` more look-ups on it.
    pub fn enter(&self, backing: &Backing, found: Resolved, lookups: u64) -> Result<Arc<Inode>> {
        let (path_fd, stat) = found.into_parts();
        let identity = backing::identity(&stat);
        let own = backing.node(identity);
        let mut shard = self.shard(own);
        let known = shard.known(own).find(|(_, entry)| entry.has(identity, self.dev) && entry.is(&path_fd));
        if let Some(node) = known.map(|(node, _)| node)
            && let Some(inode) = self.wake(&mut shard, node)
        {
            shard.entries.entry(node).and_modify(|entry| entry.lookups += lookups);
            return Ok(inode);
        }
        // Two foreign inodes may fold to one number, and a number may go to a new file while users still hold the
        // old one: the later takes another number, above all that inodes have.
        let node = shard.number(own);
        let on_root_fs = identity.dev == backing.identity().dev;
        // The last close is not known; no program has changed the file since its ctime.
        let closed = Instant::now().checked_sub(backing::ctime(&stat).age()).unwrap_or_else(Instant::now);
        let inode = Arc::new(Inode {
            node,
            identity,
            kind: backing::kind(stat.st_mode),
            on_root_fs,
            anchor: self.anchors.hold(path_fd, on_root_fs),
            nameless: AtomicBool::new(false),
            used: AtomicBool::new(false),
            state: Mutex::new(State::new(closed)),
            changed: Condvar::new(),
        });
        shard.entries.insert(node, Entry { slot: Slot::Awake(inode.clone()), lookups });
        shard.awake.push_back(node);
        shard.doze(self.awake_max);
        drop(shard);
        self.anchors.trim();
        Ok(inode)
    }

    /// Takes back `lookups` look-ups; an inode without any leaves the table once it is not held.
    pub fn forget(&self, node: NodeId, lookups: u64) {
        let mut shard = self.shard(node);
        if let Some(entry) = shard.entries.get_mut(&node) {
            entry.lookups = entry.lookups.saturating_sub(lookups);
            Self::drop_unused(&mut shard, node, 1);
        }
        self.let_go_of_nameless(shard, node);
    }

    /// Records that an inode lost its last name. A user who looked it up just before may still open it; after that
    /// its space is free at once, also if it waits to be committed.
    pub fn lost_last_name(&self, inode: &Inode) {
        inode.nameless.store(true, Ordering::Relaxed);
        self.let_go_of_nameless(self.shard(inode.node), inode.node);
    }

    fn let_go_of_nameless(&self, shard: MutexGuard<'_, Shard>, node: NodeId) {
        let known = shard.entries.get(&node).filter(|entry| entry.lookups == 0);
        let nameless = known.and_then(|entry| match &entry.slot {
            Slot::Awake(inode) => inode.is_nameless().then(|| inode.clone()),
            Slot::Dormant(_) => None,
        });
        drop(shard);
        if let Some(inode) = nameless {
            inode.let_go_if_nameless();
            self.release(inode);
        }
    }

    /// Releases an inode after work on it: the counterpart of every use outside a request.
    pub fn release(&self, inode: Arc<Inode>) {
        let node = inode.node;
        let mut shard = self.shard(node);
        Self::drop_unused(&mut shard, node, 2);
        drop(inode);
    }

    fn drop_unused(shard: &mut Shard, node: NodeId, holders: usize) {
        let unused = shard.entries.get(&node).is_some_and(|Entry { slot, lookups }| {
            *lookups == 0
                && match slot {
                    // Another `Arc` takes this shard's lock, so the count cannot grow meanwhile.
                    Slot::Awake(inode) => Arc::strong_count(inode) <= holders && inode.lock().opens == 0,
                    Slot::Dormant(_) => true,
                }
        });
        if unused {
            shard.remove(node);
        }
    }

    /// Releases inodes whose last look-up was taken back while a request still held them.
    pub fn sweep(&self) {
        for shard in &self.shards {
            let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            let unheld = shard.entries.iter().filter(|(_, entry)| entry.lookups == 0);
            let nodes: Vec<_> = unheld.map(|(node, _)| *node).collect();
            nodes.into_iter().for_each(|node| Self::drop_unused(&mut shard, node, 1));
            if shard.entries.capacity() > 4 * shard.entries.len() + 1024 {
                shard.entries.shrink_to_fit();
            }
        }
    }

    /// Returns how many descriptors the work on files may take together: the rest is for files that programs have open.
    pub fn descriptors_max(&self) -> usize {
        self.anchors.limit() / 2
    }

    /// The inodes in use that `wanted` picks by their state. Dormant inodes are not asked: no program has them open, and
    /// no work is left for them.
    pub fn collect(&self, mut wanted: impl FnMut(&Inode, &State) -> bool) -> Vec<Arc<Inode>> {
        let (mut found, mut locked) = (Vec::new(), Vec::new());
        for shard in &self.shards {
            let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            for Entry { slot, .. } in shard.entries.values() {
                let Slot::Awake(inode) = slot else { continue };
                match inode.try_lock() {
                    Some(state) if wanted(inode, &state) => found.push(inode.clone()),
                    Some(_) => {}
                    None => locked.push(inode.clone()),
                }
            }
        }
        // Only the caller waits for these locks, and at most for an fsync.
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
    use std::time::Duration;

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

    /// Returns how many of the table's inodes are awake, and how many doze.
    fn counts(inodes: &Inodes) -> (usize, usize) {
        let mut counts = (0, 0);
        for shard in &inodes.shards {
            for entry in shard.lock().unwrap().entries.values() {
                match entry.slot {
                    Slot::Awake(_) => counts.0 += 1,
                    Slot::Dormant(_) => counts.1 += 1,
                }
            }
        }
        counts
    }

    /// The kernel remembers every file that was ever listed.
    #[test]
    fn inodes_that_nobody_uses_doze_and_wake_as_they_were() {
        let dir = tempfile::tempdir().unwrap();
        let backing = Backing::open(dir.path()).unwrap();
        let mut inodes = Inodes::new(backing.root().try_clone_to_owned().unwrap());
        inodes.awake_max = 4;
        let root = inodes.enter(&backing, backing.resolve(Path::new("")).unwrap(), 1).unwrap();
        let enter = |n: usize, lookups| {
            let name = n.to_string();
            let inode = inodes.enter(&backing, backing.resolve(Path::new(&name)).unwrap(), lookups).unwrap();
            root.has(std::ffi::OsStr::new(&name), &inode);
            inode
        };
        let mut nodes = Vec::new();
        for n in 0..2_000 {
            std::fs::write(dir.path().join(n.to_string()), n.to_string()).unwrap();
            let inode = enter(n, 1);
            let mut state = inode.lock();
            match n {
                0 => state.opens = 1,
                1 => state.dirty = true,
                2 => state.content = Some(super::super::Content::Unknown("damaged")),
                3 => (state.committed, state.closed) = (true, root.lock().closed),
                _ => {}
            }
            nodes.push(inode.node);
        }
        // A descriptor that was used lately stays for a while.
        let (awake, dormant) = counts(&inodes);
        assert!(awake < 800 && dormant > 1_200, "{awake} awake, {dormant} dormant");
        let state_of = |n: usize| inodes.get(nodes[n]).unwrap();
        assert_eq!(state_of(0).lock().opens, 1, "it is open");
        assert!(state_of(1).lock().dirty, "it waits to be committed");
        assert!(matches!(state_of(2).lock().content, Some(super::super::Content::Unknown(_))));
        let third = state_of(3);
        assert!(third.lock().committed && third.lock().closed == root.lock().closed);
        for n in 3..2_000 {
            // One inode, whether it is asked for by number or found again.
            let inode = state_of(n);
            assert!(Arc::ptr_eq(&inode, &enter(n, 1)));
            let file = rustix::fs::fstat(inode.path_fd().unwrap()).unwrap();
            assert_eq!((file.st_ino, file.st_size), (inode.identity.ino, n.to_string().len() as i64));
        }
        // Look-ups count while it dozes.
        for (n, node) in nodes.iter().enumerate().skip(3) {
            let gone = || inodes.find(*node).is_none();
            inodes.forget(*node, 1);
            assert!(!gone(), "{n} was looked up twice");
            inodes.forget(*node, 1);
            assert_eq!(gone(), n != 3, "{n}");
        }
        drop(third);
        inodes.sweep();
        assert!(inodes.find(nodes[3]).is_none());
    }

    /// A dormant inode is not taken for a later file with its number.
    #[test]
    fn a_number_that_is_given_again_wakes_no_dormant_inode() {
        let dir = tempfile::tempdir().unwrap();
        let backing = Backing::open(dir.path()).unwrap();
        let mut inodes = Inodes::new(backing.root().try_clone_to_owned().unwrap());
        inodes.awake_max = 0;
        let root = inodes.enter(&backing, backing.resolve(Path::new("")).unwrap(), 1).unwrap();
        let enter = |name: &str| {
            let inode = inodes.enter(&backing, backing.resolve(Path::new(name)).unwrap(), 1).unwrap();
            root.has(std::ffi::OsStr::new(name), &inode);
            inode
        };
        let path = dir.path().join("file");
        let mut met = 0;
        for _ in 0..100 {
            std::fs::write(&path, "old").unwrap();
            let old = enter("file");
            let (node, identity) = (old.node, old.identity);
            old.anchor.close();
            drop(old);
            std::fs::write(dir.path().join("other"), "other").unwrap();
            // As when another inode is entered.
            inodes.shard(node).doze(0);
            inodes.shard(node).doze(0);
            assert!(matches!(inodes.shard(node).entries[&node].slot, Slot::Dormant(_)));
            std::fs::remove_file(&path).unwrap();
            std::fs::write(&path, "new").unwrap();
            let new = enter("file");
            if new.identity == identity {
                met += 1;
                assert_ne!(new.node, node);
                assert!(inodes.get(node).unwrap().path_fd().is_err(), "it is gone");
                assert!(Arc::ptr_eq(&inodes.find_existing(&backing, identity).unwrap(), &new));
            }
            inodes.forget(node, 1);
            inodes.forget(new.node, 1);
            inodes.release(new);
            std::fs::remove_file(&path).unwrap();
        }
        assert!(met > 0, "this filesystem gives no number twice");
    }
}
