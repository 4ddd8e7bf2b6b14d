//! A disk in memory that can lose power.
//!
//! It keeps two images: the live one that programs see, and the durable one that survives a power cut. A
//! power cut draws one of all results that ext4 (and stricter filesystems) allow:
//!
//! - each page (4 KiB) written since the file's last sync is there or not, in any order, and one of them may
//!   be torn between sectors (512 bytes); a missing page has zeros or the older bytes;
//! - the length is any value between the durable and the live one that covers the pages that are there;
//! - changes of names since the directory's last sync are there up to some point in time: a journal keeps
//!   their order;
//! - synced content is there.
//!
//! Faults: a power cut at the n-th step ([`SimDisk::cut_at`]): that step and all later ones fail, and the
//! disk can only be [`SimDisk::crash`]ed. Writes fail when the disk is full ([`SimDisk::set_room`]), syncs
//! fail on request ([`SimDisk::fail_syncs`]); after a failed sync the unsynced pages count as clean, as in
//! Linux.

use super::{Access, Disk, DiskFile};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const PAGE: usize = 4096;
const SECTOR: usize = 512;

/// A small random number generator: the same seed gives the same numbers.
#[derive(Clone, Debug)]
pub struct Draw(u64);

impl Draw {
    /// Draws from `seed`.
    pub fn new(seed: u64) -> Draw {
        Draw(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// Returns a number below `end`, which must not be 0.
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) % end
    }

    /// Returns true once in `n` calls.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

#[derive(Default)]
struct Node {
    live: Vec<u8>,
    durable: Vec<u8>,
    /// Numbers of the pages that differ between the two.
    dirty: std::collections::BTreeSet<usize>,
}

/// A change of names.
#[derive(Clone)]
struct Change {
    path: PathBuf,
    node: Option<Arc<Mutex<Node>>>,
}

#[derive(Default)]
struct Names {
    live: BTreeMap<PathBuf, Arc<Mutex<Node>>>,
    durable: BTreeMap<PathBuf, Arc<Mutex<Node>>>,
    changes: Vec<Change>,
}

#[derive(Default)]
struct Shared {
    names: Mutex<Names>,
    steps: AtomicU64,
    /// The step of the power cut; 0 for never.
    cut: AtomicU64,
    /// Bytes that may still be written, if limited.
    room: Mutex<Option<u64>>,
    fail_syncs: AtomicBool,
    /// Error numbers of opens and of reads; 0 if they succeed.
    open_error: AtomicI32,
    read_error: AtomicI32,
    syncs: AtomicU64,
    on_sync: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

/// The simulated disk; clones share it.
#[derive(Clone, Default)]
pub struct SimDisk {
    shared: Arc<Shared>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn power_is_off() -> io::Error {
    io::Error::other("the power is off")
}

impl Shared {
    /// Counts a step; fails after the power cut.
    fn step(&self) -> io::Result<()> {
        let step = self.steps.fetch_add(1, Ordering::SeqCst) + 1;
        let cut = self.cut.load(Ordering::SeqCst);
        if cut > 0 && step >= cut { Err(power_is_off()) } else { Ok(()) }
    }

    fn alive(&self) -> io::Result<()> {
        let cut = self.cut.load(Ordering::SeqCst);
        if cut > 0 && self.steps.load(Ordering::SeqCst) >= cut { Err(power_is_off()) } else { Ok(()) }
    }
}

/// Fails with this error number unless it is 0.
fn fail_with(errno: &AtomicI32) -> io::Result<()> {
    match errno.load(Ordering::SeqCst) {
        0 => Ok(()),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

impl SimDisk {
    /// An empty disk.
    pub fn new() -> SimDisk {
        SimDisk::default()
    }

    /// Returns the number of changing I/O steps so far.
    pub fn steps(&self) -> u64 {
        self.shared.steps.load(Ordering::SeqCst)
    }

    /// Makes opens fail with this error number; 0: they succeed again.
    pub fn fail_opens(&self, errno: i32) {
        self.shared.open_error.store(errno, Ordering::SeqCst);
    }

    /// Makes reads fail with this error number; 0: they succeed again.
    pub fn fail_reads(&self, errno: i32) {
        self.shared.read_error.store(errno, Ordering::SeqCst);
    }

    /// Returns the number of syncs so far.
    pub fn syncs(&self) -> u64 {
        self.shared.syncs.load(Ordering::SeqCst)
    }

    /// Cuts the power at the n-th step from the beginning.
    pub fn cut_at(&self, step: u64) {
        self.shared.cut.store(step, Ordering::SeqCst);
    }

    /// Allows this many more bytes before the disk is full; `None` for any number.
    pub fn set_room(&self, bytes: Option<u64>) {
        *lock(&self.shared.room) = bytes;
    }

    /// Makes syncs fail.
    pub fn fail_syncs(&self, fail: bool) {
        self.shared.fail_syncs.store(fail, Ordering::SeqCst);
    }

    /// Runs `work` in the middle of the next sync of a file.
    pub fn on_sync(&self, work: impl FnOnce() + Send + 'static) {
        *lock(&self.shared.on_sync) = Some(Box::new(work));
    }

    /// Returns the disk after a power cut now.
    pub fn crash(&self, draw: &mut Draw) -> SimDisk {
        let names = lock(&self.shared.names);
        let mut kept = names.durable.clone();
        let upto = draw.below(names.changes.len() as u64 + 1) as usize;
        for Change { path, node } in &names.changes[..upto] {
            match node {
                Some(node) => kept.insert(path.clone(), node.clone()),
                None => kept.remove(path),
            };
        }
        let image = kept.into_iter().map(|(path, node)| (path, left_of(&lock(&node), draw)));
        SimDisk::of(image)
    }

    /// Returns a copy of the live image, all of it durable.
    pub fn copy(&self) -> SimDisk {
        let names = lock(&self.shared.names);
        SimDisk::of(names.live.iter().map(|(path, node)| (path.clone(), lock(node).live.clone())))
    }

    fn of(image: impl Iterator<Item = (PathBuf, Vec<u8>)>) -> SimDisk {
        let disk = SimDisk::new();
        {
            let mut names = lock(&disk.shared.names);
            for (path, bytes) in image {
                let node = Node { live: bytes.clone(), durable: bytes, dirty: Default::default() };
                names.live.insert(path, Arc::new(Mutex::new(node)));
            }
            names.durable = names.live.clone();
        }
        disk
    }

    fn change(&self, change: Change) {
        let mut names = lock(&self.shared.names);
        match &change.node {
            Some(node) => names.live.insert(change.path.clone(), node.clone()),
            None => names.live.remove(&change.path),
        };
        names.changes.push(change);
    }

    fn node(&self, path: &Path) -> io::Result<Arc<Mutex<Node>>> {
        let names = lock(&self.shared.names);
        names.live.get(path).cloned().ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

/// Returns the content of a file after a power cut.
fn left_of(node: &Node, draw: &mut Draw) -> Vec<u8> {
    let mut left = node.durable.clone();
    let mut end = left.len();
    for &page in &node.dirty {
        let range = page * PAGE..((page + 1) * PAGE).min(node.live.len());
        if range.is_empty() || draw.one_in(3) {
            continue;
        }
        if left.len() < range.end {
            left.resize(range.end, 0);
        }
        let torn = draw.one_in(4);
        for sector in range.step_by(SECTOR) {
            let sector = sector..(sector + SECTOR).min(node.live.len());
            if !torn || draw.one_in(2) {
                left[sector.clone()].copy_from_slice(&node.live[sector.clone()]);
                end = end.max(sector.end);
            }
        }
    }
    if node.live.len() < node.durable.len() {
        // A truncation that may not have reached the disk.
        if draw.one_in(2) {
            left.truncate(node.live.len());
        }
    } else {
        let most = node.live.len().max(end);
        let len = end as u64 + draw.below((most - end) as u64 + 1);
        left.resize(len as usize, 0);
    }
    left
}

impl Disk for SimDisk {
    fn create_dir_all(&self, _: &Path) -> io::Result<()> {
        self.shared.alive()
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<OsString>> {
        self.shared.alive()?;
        let names = lock(&self.shared.names);
        let inside = names.live.keys().filter(|path| path.parent() == Some(dir));
        Ok(inside.filter_map(|path| path.file_name().map(ToOwned::to_owned)).collect())
    }

    fn open(&self, path: &Path, access: Access) -> io::Result<Arc<dyn DiskFile>> {
        self.shared.alive()?;
        fail_with(&self.shared.open_error)?;
        let node = match (self.node(path), access) {
            (Ok(_), Access::New) => return Err(io::ErrorKind::AlreadyExists.into()),
            (Ok(node), _) => node,
            (Err(_), Access::New) => {
                self.shared.step()?;
                let node = Arc::new(Mutex::new(Node::default()));
                self.change(Change { path: path.to_owned(), node: Some(node.clone()) });
                node
            }
            (Err(e), _) => return Err(e),
        };
        Ok(Arc::new(SimFile { shared: self.shared.clone(), node }))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.shared.step()?;
        let node = self.node(path)?;
        let len = lock(&node).live.len();
        if let Some(room) = lock(&self.shared.room).as_mut() {
            *room += len as u64;
        }
        self.change(Change { path: path.to_owned(), node: None });
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.shared.step()?;
        let node = self.node(from)?;
        self.change(Change { path: to.to_owned(), node: Some(node) });
        self.change(Change { path: from.to_owned(), node: None });
        Ok(())
    }

    fn sync_dir(&self, _: &Path) -> io::Result<()> {
        self.shared.step()?;
        let mut names = lock(&self.shared.names);
        names.durable = names.live.clone();
        names.changes.clear();
        Ok(())
    }
}

struct SimFile {
    shared: Arc<Shared>,
    node: Arc<Mutex<Node>>,
}

impl DiskFile for SimFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.shared.alive()?;
        fail_with(&self.shared.read_error)?;
        let node = lock(&self.node);
        let rest = node.live.get(offset as usize..).unwrap_or_default();
        let len = rest.len().min(buffer.len());
        buffer[..len].copy_from_slice(&rest[..len]);
        Ok(len)
    }

    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let cut = self.shared.step();
        let room = {
            let mut room = lock(&self.shared.room);
            let fits = room.map_or(bytes.len(), |room| bytes.len().min(room as usize));
            if let Some(room) = room.as_mut() {
                *room -= fits as u64;
            }
            fits
        };
        let mut node = lock(&self.node);
        let (start, end) = (offset as usize, offset as usize + room);
        if node.live.len() < end {
            node.live.resize(end, 0);
        }
        node.live[start..end].copy_from_slice(&bytes[..room]);
        if end > start {
            node.dirty.extend(start / PAGE..=(end - 1) / PAGE);
        }
        cut?;
        if room < bytes.len() { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.shared.step()?;
        let mut node = lock(&self.node);
        let before = node.live.len();
        node.live.resize(len as usize, 0);
        if let Some(room) = lock(&self.shared.room).as_mut() {
            *room += before.saturating_sub(len as usize) as u64;
        }
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        self.shared.alive()?;
        Ok(lock(&self.node).live.len() as u64)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.shared.step()?;
        self.shared.syncs.fetch_add(1, Ordering::SeqCst);
        let work = lock(&self.shared.on_sync).take();
        if let Some(work) = work {
            work();
        }
        let mut node = lock(&self.node);
        if self.shared.fail_syncs.load(Ordering::SeqCst) {
            // The pages are lost and look clean: only durable bytes will be found.
            node.dirty.clear();
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        // Only dirty pages: a page lost by a failed sync is not written by the next one.
        let Node { live, durable, dirty } = &mut *node;
        durable.resize(live.len(), 0);
        for page in std::mem::take(dirty) {
            let range = page * PAGE..((page + 1) * PAGE).min(live.len());
            if !range.is_empty() {
                durable[range.clone()].copy_from_slice(&live[range]);
            }
        }
        Ok(())
    }
}
