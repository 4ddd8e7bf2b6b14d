//! A replica's memory of its syncs, in `.dedupfs/sync/`:
//!
//! | name | content |
//! | --- | --- |
//! | `state` | device, number of its last snapshot, head, snapshots, heads of others, the snapshot that is being taken |
//! | `trees/ID` | the tree of a snapshot, compressed; verified against the snapshot on each read |
//! | `cache-ID` | the head's tree by path: inode, size, times, hash and recipe, so that unchanged files are not read again and renames are seen; recipes of replaced contents |
//! | `since` | the moment after which the daemon of the mount lists changes (`since.rs`); not synced, since no daemon outlives a power cut |
//! | `part` | for a replica that has only a part of its tree: files that differ from the tree, the states of files that were left out since, and contents that may be nowhere else |
//! | `unfit` | xattrs that the filesystem has no room for, by inode |
//! | `waiting` | owners and ACLs that this machine could not set, by inode |
//! | `sees` | whether the head's tree has the owners and ACLs of this directory |
//! | `bases/` | versions before unresolved conflicts (`bases.rs`) |
//! | `spool` | temporary: deltas in transfer, former contents |
//! | `lock` | held by a sync |
//!
//! A file is written as `NAME.new`, then: fsync, rename, fsync of the directory. All of them can be lost: the next
//! sync then compares everything, deletes nothing, and keeps both versions of files that differ.

pub use super::print::Print;

use super::bases::Bases;
use super::device::Device;
use super::error::SyncError;
use super::owners::Sees;
use super::seen::Inode;
use super::since::Since;
use super::tree::{ContentId, RootHash, Tree, TreePath};
use super::unfit::Unfit;
use super::version::{Dag, Snapshot, SnapshotId};
use super::waiting::AllWaiting;
use rustix::fs::FlockOperation;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

const VERSION: u32 = 1;
/// The version of a state whose replica may have only a part of its tree. A program that does not know it would take the rest
/// for deleted.
const VERSION_OF_PART: u32 = 2;
/// Maximum number of stored trees. Beyond it the oldest are removed, and a device that returns after that has no base.
const TREES_MAX: usize = 64;
/// Maximum number of trees in memory. They share their entries if one was made from the other.
const TREES_IN_MEMORY: usize = 2;
/// Maximum number of former contents whose recipes are kept.
const PAST_MAX: usize = 64 << 10;

#[derive(Serialize, Deserialize)]
struct Form {
    version: u32,
    device: Device,
    seq: u64,
    head: Option<SnapshotId>,
    snapshots: Vec<Snapshot>,
    heads: Vec<(Device, SnapshotId)>,
    taking: Option<Snapshot>,
}

/// Name of the file with a [`Part`].
const PART: &str = "part";

/// Data that only saves work: maps, read as rows in their order.
#[derive(Default, Deserialize)]
struct Cache {
    prints: Vec<(TreePath, Print)>,
    past: Vec<(ContentId, [u8; 16])>,
}

/// The same, as it is written.
#[derive(Serialize)]
struct CacheOut<'a> {
    prints: &'a BTreeMap<TreePath, Print>,
    past: BTreeMap<ContentId, [u8; 16]>,
}

/// The difference between the tree of a replica and its disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// Paths of the cache whose files are not as in the head's tree.
    pub stale: BTreeSet<TreePath>,
    /// Files that were left out since they were synced.
    pub aside: BTreeMap<TreePath, Print>,
    /// Contents that the steps of the present sync may not remove, since they may be nowhere else.
    pub kept: BTreeSet<ContentId>,
}

/// See the module.
pub struct Memory {
    dir: PathBuf,
    /// The replica's name.
    pub device: Device,
    /// Number of its last snapshot.
    pub seq: u64,
    /// The snapshot of its tree at the last scan or sync.
    pub head: Option<SnapshotId>,
    /// The remembered snapshots.
    pub dag: Dag,
    /// Last known snapshots of other devices.
    pub heads: BTreeMap<Device, SnapshotId>,
    /// The snapshot that the tree is on the way to.
    pub taking: Option<Snapshot>,
    /// By path; after [`Memory::load`].
    pub cache: BTreeMap<TreePath, Print>,
    /// Recipes of former contents; the store may have removed them. After [`Memory::load`].
    pub past: BTreeMap<ContentId, [u8; 16]>,
    /// Xattrs that the filesystem has no room for.
    pub unfit: Unfit,
    /// Owners and ACLs that this machine could not set.
    pub waiting: AllWaiting,
    /// The attributes that this device saw when it examined the directory for the head.
    pub saw: Sees,
    /// The moment of the head, if there is one.
    pub since: Option<Since>,
    /// Whether the replica may have only a part of its tree.
    pub partial: bool,
    /// After [`Memory::load`].
    pub part: Part,
    loaded: bool,
    /// Whether the cache is another one than on disk.
    cache_changed: Cell<bool>,
    /// The state as it is on disk.
    written: RefCell<Vec<u8>>,
    /// The trees that were read or written last.
    last_trees: RefCell<VecDeque<(SnapshotId, Tree)>>,
    /// In a memory that must not write: the files it would have written, by name.
    unwritten: Option<RefCell<BTreeMap<String, Vec<u8>>>>,
    _lock: Option<Lock>,
}

/// The lock of a sync, until this is dropped.
struct Lock(File);

impl Drop for Lock {
    fn drop(&mut self) {
        // A process that another thread starts has a copy of the descriptor for a moment.
        let _ = rustix::fs::flock(&self.0, FlockOperation::Unlock);
    }
}

impl Memory {
    /// Opens the memory in `dir`, or begins a new one.
    pub fn open(dir: &Path) -> Result<Memory, SyncError> {
        let io = |operation, path: &Path, e: std::io::Error| {
            SyncError::io(operation, path.display().to_string(), e)
        };
        std::fs::create_dir_all(dir.join("trees")).map_err(|e| io("make", dir, e))?;
        let lock = dir.join("lock");
        let lock_file =
            File::options().create(true).append(true).open(&lock).map_err(|e| io("open", &lock, e))?;
        let memory = Memory::read(dir, None, Some(lock_it(lock_file, dir)?))?;
        // Stores the replica's name from the beginning.
        memory.save()?;
        Ok(memory)
    }

    /// Opens the memory in `dir` if there is one; never writes to it.
    pub fn look(dir: &Path) -> Result<Memory, SyncError> {
        let lock = dir.join("lock");
        let lock = match File::open(&lock) {
            Ok(lock) => Some(lock),
            Err(e) if e.kind() == ErrorKind::NotFound => None,
            Err(e) => return Err(SyncError::io("open", lock.display().to_string(), e)),
        };
        let lock = lock.map(|lock| lock_it(lock, dir)).transpose()?;
        Memory::read(dir, Some(RefCell::default()), lock)
    }

    fn read(
        dir: &Path,
        unwritten: Option<RefCell<BTreeMap<String, Vec<u8>>>>,
        lock: Option<Lock>,
    ) -> Result<Memory, SyncError> {
        let path = dir.join("state");
        let wrong = |reason: String| SyncError::State { object: path.display().to_string(), reason };
        let mut written = Vec::new();
        let form = match std::fs::read(&path) {
            Ok(bytes) => {
                written.clone_from(&bytes);
                let (sum, body) = bytes.split_at_checked(32).ok_or_else(|| wrong("cut short".to_owned()))?;
                if blake3::hash(body).as_bytes() != sum {
                    return Err(wrong("its checksum is wrong".to_owned()));
                }
                let form: Form = postcard::from_bytes(body).map_err(|e| wrong(e.to_string()))?;
                match form.version {
                    VERSION | VERSION_OF_PART => form,
                    other => {
                        return Err(wrong(format!(
                            "version {other}, this program knows {VERSION} and {VERSION_OF_PART}"
                        )));
                    }
                }
            }
            Err(e) if e.kind() == ErrorKind::NotFound => {
                let mut random = [0; 4];
                rustix::rand::getrandom(&mut random[..], rustix::rand::GetRandomFlags::empty())
                    .map_err(|e| SyncError::io("draw", "a random number", e))?;
                let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
                let device = Device::new(&host, u32::from_le_bytes(random));
                let (snapshots, heads) = (Vec::new(), Vec::new());
                Form { version: VERSION, device, seq: 0, head: None, snapshots, heads, taking: None }
            }
            Err(e) => return Err(SyncError::io("read", path.display().to_string(), e)),
        };
        let unfit = read_small(dir, "unfit");
        let (waiting, saw) = (read_small(dir, "waiting"), read_small(dir, "sees"));
        let since = std::fs::read(dir.join("since"))
            .ok()
            .and_then(|bytes| read_sum(&bytes, |body| postcard::from_bytes::<Option<Since>>(body).ok()?));
        Ok(Memory {
            dir: dir.to_owned(),
            unfit: unfit.unwrap_or_default(),
            waiting: waiting.unwrap_or_default(),
            saw: saw.unwrap_or_default(),
            device: form.device,
            seq: form.seq,
            head: form.head,
            dag: Dag::of(form.snapshots)?,
            heads: form.heads.into_iter().collect(),
            taking: form.taking,
            cache: BTreeMap::new(),
            past: BTreeMap::new(),
            partial: form.version == VERSION_OF_PART,
            part: Part::default(),
            since: since.filter(|since| Some(since.head) == form.head),
            loaded: false,
            cache_changed: Cell::new(false),
            written: RefCell::new(written),
            last_trees: RefCell::default(),
            unwritten,
            _lock: lock,
        })
    }

    /// Reads what depends on the size of the tree.
    pub fn load(&mut self) {
        if std::mem::replace(&mut self.loaded, true) {
            return;
        }
        // A store of an earlier version has a cache without the id.
        let cache = [Memory::cache_name(self.head), Memory::cache_name(None)]
            .into_iter()
            .find_map(|name| read_cache(&std::fs::read(self.dir.join(name)).ok()?))
            .unwrap_or_default();
        self.cache = cache.prints.into_iter().collect();
        self.past = cache.past.into_iter().collect();
        let part = std::fs::read(self.dir.join(PART)).ok();
        let part = part.and_then(|bytes| read_sum(&bytes, |body| postcard::from_bytes(body).ok()));
        self.part = part.unwrap_or_default();
    }

    /// Writes the state; before that the cache if the head has none yet.
    pub fn save(&self) -> Result<(), SyncError> {
        if self.loaded && self.head.is_some() && !self.dir.join(Memory::cache_name(self.head)).exists() {
            self.save_cache()?;
        }
        let form = Form {
            version: if self.partial { VERSION_OF_PART } else { VERSION },
            device: self.device.clone(),
            seq: self.seq,
            head: self.head,
            snapshots: self.dag.iter().map(|(_, snapshot)| snapshot.clone()).collect(),
            heads: self.heads.clone().into_iter().collect(),
            taking: self.taking.clone(),
        };
        let body = postcard::to_allocvec(&form).expect("a state can be encoded");
        let bytes = [&blake3::hash(&body).as_bytes()[..], &body].concat();
        if *self.written.borrow() != bytes {
            self.put("state", &bytes)?;
            self.written.replace(bytes);
        }
        if self.loaded { self.forget_caches() } else { Ok(()) }
    }

    /// Sets and writes the moment of the head; none: the next sync walks the tree.
    pub fn save_since(&mut self, since: Option<Since>) -> Result<(), SyncError> {
        if self.unwritten.is_none() && since != self.since {
            let body = postcard::to_allocvec(&since).expect("a moment can be encoded");
            let (path, new) = (self.dir.join("since"), self.dir.join("since.new"));
            let bytes = [&blake3::hash(&body).as_bytes()[..], &body].concat();
            let written = std::fs::write(&new, bytes).and_then(|()| std::fs::rename(&new, &path));
            written.map_err(|e| SyncError::io("write", path.display().to_string(), e))?;
        }
        self.since = since;
        Ok(())
    }

    /// Returns the name of the cache of a head. A kill between the writes of the cache and of the state leaves the old
    /// head with its own cache. With the inodes of the new tree it would miss renames.
    fn cache_name(head: Option<SnapshotId>) -> String {
        head.map_or_else(|| "cache".to_owned(), |head| format!("cache-{head}"))
    }

    /// Removes the caches of earlier heads.
    fn forget_caches(&self) -> Result<(), SyncError> {
        if self.unwritten.is_some() || self.head.is_none() {
            return Ok(());
        }
        let io = |e| SyncError::io("clean up", self.dir.display().to_string(), e);
        let current = Memory::cache_name(self.head);
        for entry in std::fs::read_dir(&self.dir).map_err(io)? {
            let entry = entry.map_err(io)?;
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if name != current && (name == "cache" || name.starts_with("cache-")) {
                std::fs::remove_file(entry.path()).map_err(io)?;
            }
        }
        Ok(())
    }

    /// Replaces the cache.
    pub fn set_cache(&mut self, cache: BTreeMap<TreePath, Print>) {
        if cache != self.cache {
            self.cache = cache;
            self.cache_changed.set(true);
        }
    }

    /// Writes the cache after [`Memory::set_cache`] changed it.
    pub fn save_changed_cache(&self) -> Result<(), SyncError> {
        if self.cache_changed.get() { self.save_cache() } else { Ok(()) }
    }

    /// Writes the cache of the head, which only saves work.
    pub fn save_cache(&self) -> Result<(), SyncError> {
        let past = self.past.iter().rev().take(PAST_MAX).map(|(content, recipe)| (*content, *recipe));
        let cache = CacheOut { prints: &self.cache, past: past.collect() };
        let body = postcard::to_allocvec(&cache).expect("a cache can be encoded");
        let body = zstd::bulk::compress(&body, 1).map_err(SyncError::codec)?;
        self.put(&Memory::cache_name(self.head), &[&blake3::hash(&body).as_bytes()[..], &body].concat())?;
        self.cache_changed.set(false);
        Ok(())
    }

    /// Writes the difference between the tree and the disk. Call it before [`Memory::save`].
    pub fn save_part(&self) -> Result<(), SyncError> {
        if self.part == Part::default() && !self.dir.join(PART).exists() {
            return Ok(());
        }
        let body = postcard::to_allocvec(&self.part).expect("paths can be encoded");
        self.put(PART, &[&blake3::hash(&body).as_bytes()[..], &body].concat())
    }

    /// Writes the xattrs that do not fit, if there are or were any.
    pub fn save_unfit(&self) -> Result<(), SyncError> {
        match self.unfit.is_empty() && !self.dir.join("unfit").exists() {
            true => Ok(()),
            false => self.put_small("unfit", &self.unfit),
        }
    }

    /// Sets and writes the owners and ACLs that could not be set.
    pub fn set_waiting(&mut self, waiting: AllWaiting) -> Result<(), SyncError> {
        if waiting != self.waiting {
            self.put_small("waiting", &waiting)?;
            self.waiting = waiting;
        }
        Ok(())
    }

    /// Sets and writes the attributes that this device sees.
    pub fn set_saw(&mut self, saw: Sees) -> Result<(), SyncError> {
        if saw != self.saw {
            self.put_small("sees", &saw)?;
            self.saw = saw;
        }
        Ok(())
    }

    fn put_small(&self, name: &str, value: &impl Serialize) -> Result<(), SyncError> {
        let body = postcard::to_allocvec(value).expect("values can be encoded");
        self.put(name, &[&blake3::hash(&body).as_bytes()[..], &body].concat())
    }

    /// Returns the versions before conflicts, unless this memory must not write.
    pub(super) fn bases(&self) -> Option<Bases> {
        self.unwritten.is_none().then(|| Bases::of(&self.dir))
    }

    /// Returns an empty file, which is gone when it is closed.
    pub fn spool(&self) -> Result<File, SyncError> {
        if self.unwritten.is_some() {
            return super::content::nameless();
        }
        let path = self.dir.join("spool");
        let io = |e| SyncError::io("create", path.display().to_string(), e);
        let _ = std::fs::remove_file(&path);
        let file = File::options().read(true).write(true).create_new(true).open(&path).map_err(io)?;
        std::fs::remove_file(&path).map_err(io)?;
        Ok(file)
    }

    fn put(&self, name: &str, bytes: &[u8]) -> Result<(), SyncError> {
        if let Some(unwritten) = &self.unwritten {
            unwritten.borrow_mut().insert(name.to_owned(), bytes.to_vec());
            return Ok(());
        }
        let (path, new) = (self.dir.join(name), self.dir.join(format!("{name}.new")));
        let write = || {
            let mut file = File::create(&new)?;
            file.write_all(bytes)?;
            file.sync_data()?;
            std::fs::rename(&new, &path)?;
            File::open(path.parent().unwrap_or(&self.dir))?.sync_all()
        };
        write().map_err(|e| SyncError::io("write", path.display().to_string(), e))
    }

    fn tree_name(id: SnapshotId) -> String {
        format!("trees/{id}")
    }

    /// Stores the tree of a snapshot.
    pub fn put_tree(&self, id: SnapshotId, tree: &Tree) -> Result<(), SyncError> {
        if self.has_tree(id) && self.tree(id).is_ok_and(|known| known.as_ref() == Some(tree)) {
            return Ok(());
        }
        let bytes = zstd::bulk::compress(&tree.encode(), 3).map_err(SyncError::codec)?;
        self.put(&Memory::tree_name(id), &bytes)?;
        self.remember(id, tree);
        Ok(())
    }

    fn remember(&self, id: SnapshotId, tree: &Tree) {
        let mut last = self.last_trees.borrow_mut();
        last.retain(|(known, _)| *known != id);
        last.push_front((id, tree.clone()));
        last.truncate(TREES_IN_MEMORY);
    }

    /// Returns whether the tree of a snapshot is stored, without reading it.
    pub fn has_tree(&self, id: SnapshotId) -> bool {
        let name = Memory::tree_name(id);
        let unwritten = self.unwritten.as_ref().is_some_and(|all| all.borrow().contains_key(&name));
        unwritten || self.dir.join(name).exists()
    }

    /// Returns the tree of a snapshot; `None` if it is missing or damaged.
    pub fn tree(&self, id: SnapshotId) -> Result<Option<Tree>, SyncError> {
        if let Some((_, tree)) = self.last_trees.borrow().iter().find(|(last, _)| *last == id) {
            return Ok(Some(tree.clone()));
        }
        let path = self.dir.join(Memory::tree_name(id));
        let unwritten =
            self.unwritten.as_ref().and_then(|all| all.borrow().get(&Memory::tree_name(id)).cloned());
        let bytes = match unwritten.map_or_else(|| std::fs::read(&path), Ok) {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(SyncError::io("read", path.display().to_string(), e)),
        };
        let root = self.dag.get(id).map(|snapshot| snapshot.root);
        let bytes = zstd::stream::decode_all(&bytes[..]).ok();
        // The right root proves the rest: only an encoded tree has one.
        let bytes = bytes.filter(|bytes| root == Some(RootHash::of(bytes)));
        match bytes.and_then(|bytes| Tree::decode_proven(&bytes).ok()) {
            Some(tree) => {
                self.remember(id, &tree);
                Ok(Some(tree))
            }
            None => {
                Err(SyncError::State { object: path.display().to_string(), reason: "damaged".to_owned() })
            }
        }
    }

    /// Returns the snapshots whose trees are stored.
    pub fn trees(&self) -> Vec<SnapshotId> {
        self.dag.iter().map(|(id, _)| id).filter(|id| self.has_tree(*id)).collect()
    }

    /// Forgets snapshots and trees that no known device needs any more.
    pub fn forget(&mut self) -> Result<(), SyncError> {
        let ends: BTreeSet<SnapshotId> = self.heads.values().copied().chain(self.head).collect();
        self.dag.forget_before(&ends);
        let mut kept = self.trees();
        kept.retain(|id| !ends.contains(id));
        kept.sort_by_key(|id| {
            self.dag.get(*id).and_then(|snapshot| snapshot.seen.as_ref().map(|seen| seen.1))
        });
        let over = kept.len().saturating_sub(TREES_MAX);
        let over: BTreeSet<SnapshotId> = kept.into_iter().take(over).collect();
        let io = |e| SyncError::io("clean up", self.dir.display().to_string(), e);
        for entry in std::fs::read_dir(self.dir.join("trees")).map_err(io)? {
            let entry = entry.map_err(io)?;
            let known = |(id, _): (SnapshotId, &Snapshot)| {
                entry.file_name().as_encoded_bytes() == id.to_string().as_bytes() && !over.contains(&id)
            };
            if !self.dag.iter().any(known) {
                std::fs::remove_file(entry.path()).map_err(io)?;
            }
        }
        Ok(())
    }

    /// Returns the inodes by path.
    pub fn inodes(&self) -> BTreeMap<TreePath, Inode> {
        self.cache.iter().map(|(path, print)| (path.clone(), (0, print.ino))).collect()
    }
}

fn lock_it(lock: File, dir: &Path) -> Result<Lock, SyncError> {
    rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive)
        .map_err(|_| SyncError::Busy(dir.display().to_string()))?;
    Ok(Lock(lock))
}

/// Verifies the hash in front of a body, and calls `read` on the body.
fn read_sum<T>(bytes: &[u8], read: impl FnOnce(&[u8]) -> Option<T>) -> Option<T> {
    let (sum, body) = bytes.split_at_checked(32)?;
    if blake3::hash(body).as_bytes() == sum { read(body) } else { None }
}

fn read_small<T: DeserializeOwned>(dir: &Path, name: &str) -> Option<T> {
    read_sum(&std::fs::read(dir.join(name)).ok()?, |body| postcard::from_bytes(body).ok())
}

fn read_cache(bytes: &[u8]) -> Option<Cache> {
    read_sum(bytes, |body| postcard::from_bytes(&zstd::stream::decode_all(body).ok()?).ok())
}

#[cfg(test)]
mod tests {
    use super::super::merge::tests::{file, tree};
    use super::*;

    #[test]
    fn a_head_keeps_its_own_inodes_until_the_next_one_is_written() {
        let dir = tempfile::tempdir().unwrap();
        let mut memory = Memory::open(dir.path()).unwrap();
        memory.load();
        let print = |ino| Print {
            ino,
            size: 0,
            mtime: (0, 0),
            ctime: (0, 0),
            fresh: false,
            content: None,
            recipe: None,
        };
        let head = |memory: &mut Memory, name: &str, seq| {
            let tree = tree(&[(name, file(1, "a", "x"))]);
            let snapshot = Snapshot::of(tree.root(), memory.head, memory.device.clone(), seq);
            memory.head = Some(memory.dag.add(snapshot).unwrap());
            memory.cache = BTreeMap::from([(name.as_bytes().to_vec(), print(7))]);
        };
        head(&mut memory, "old", 1);
        memory.save().unwrap();
        head(&mut memory, "renamed", 2);
        memory.save_cache().unwrap();
        drop(memory);
        // As after a kill.
        let mut memory = Memory::open(dir.path()).unwrap();
        memory.load();
        assert_eq!(memory.inodes().into_keys().collect::<Vec<_>>(), [b"old"]);
        head(&mut memory, "renamed", 2);
        memory.save().unwrap();
        drop(memory);
        let mut memory = Memory::open(dir.path()).unwrap();
        memory.load();
        assert_eq!(memory.inodes().into_keys().collect::<Vec<_>>(), [b"renamed"]);
        let names = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name());
        assert_eq!(names.filter(|name| name.to_string_lossy().starts_with("cache")).count(), 1);
    }

    #[test]
    fn what_is_remembered_comes_back_and_damage_is_said() {
        let dir = tempfile::tempdir().unwrap();
        let mut memory = Memory::open(dir.path()).unwrap();
        assert!(matches!(Memory::open(dir.path()), Err(SyncError::Busy(_))));
        let tree = tree(&[("a", file(1, "a", "x"))]);
        let id = memory.dag.add(Snapshot::of(tree.root(), None, memory.device.clone(), 1)).unwrap();
        memory.head = Some(id);
        memory.put_tree(id, &tree).unwrap();
        memory.save().unwrap();
        let device = memory.device.clone();
        drop(memory);
        let memory = Memory::open(dir.path()).unwrap();
        assert_eq!((memory.head, &memory.device, memory.trees()), (Some(id), &device, vec![id]));
        assert_eq!(memory.tree(id).unwrap(), Some(tree));
        let path = dir.path().join(Memory::tree_name(id));
        let mut bytes = std::fs::read(&path).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        std::fs::write(&path, bytes).unwrap();
        drop(memory);
        let memory = Memory::open(dir.path()).unwrap();
        assert!(matches!(memory.tree(id), Err(SyncError::State { .. })));
        drop(memory);
        let path = dir.path().join("state");
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[40] ^= 1;
        std::fs::write(&path, bytes).unwrap();
        let error = Memory::open(dir.path()).err().unwrap();
        assert!(error.to_string().contains("checksum") && error.hint().unwrap().contains("deletes nothing"));
    }
}
