//! An overlay without FUSE, in which stubs from 64 KiB on become hybrid.

use dedupfs::chunk::ChunkParams;
use dedupfs::db::MemDb;
use dedupfs::id::{ChunkId, StoreId};
use dedupfs::overlay::stub::{GuardKey, State, Stub, XATTR};
use dedupfs::overlay::{
    Background, Backing, Caller, Dedup, Handle, HybridOptions, NodeId, OpenFlags, Overlay, OverlayError,
    Parts, ROOT,
};
use dedupfs::recipe::{ChunkRef, Recipe};
use dedupfs::similarity::{Similarity, SimilarityOptions};
use dedupfs::store::{Store, StoreOptions};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tempfile::TempDir;

pub const KEY: GuardKey = GuardKey([3; 32]);
pub const BYTES_MIN: u64 = 64 << 10;
pub const TO_WRITE: OpenFlags = OpenFlags::WRITE;
pub const TO_READ: OpenFlags = OpenFlags::READ;

pub fn params() -> ChunkParams {
    ChunkParams::with_average(4096).unwrap()
}

pub struct World {
    pub overlay: Arc<Overlay>,
    background: Option<Background>,
    pub dir: PathBuf,
    _temp: Option<TempDir>,
}

/// How a world differs from the usual.
#[derive(Clone, Copy)]
pub struct How {
    pub dedup: Dedup,
    pub read_only: bool,
}

pub const USUAL: How = How { dedup: Dedup::OnClose, read_only: false };

fn open(dir: &Path, how: How) -> (Arc<Overlay>, Background) {
    let db = Arc::new(MemDb::new());
    let state = dir.join(".dedupfs");
    let read_only = how.read_only;
    let options = StoreOptions { pack_bytes_max: 1 << 20, read_only, ..StoreOptions::default() };
    let store = Store::open(&state, StoreId([1; 16]), db.clone(), options, &mut |_, _| {}).unwrap();
    let similarity = Similarity::open(db.clone(), SimilarityOptions::default()).unwrap();
    let parts = Parts {
        backing: Backing::open(dir).unwrap(),
        store: Arc::new(store),
        similarity: Arc::new(similarity),
        db,
        key: KEY,
        params: params(),
        dedup: how.dedup,
        read_only,
        threads: 2,
        hybrid: HybridOptions { dir: state.join("extents"), bytes_min: BYTES_MIN },
    };
    let overlay = Arc::new(Overlay::new(parts).unwrap());
    let background = overlay.start();
    (overlay, background)
}

impl World {
    pub fn new() -> World {
        let temp = tempfile::tempdir().unwrap();
        std::fs::create_dir(temp.path().join(".dedupfs")).unwrap();
        let world = World::at(temp.path());
        World { _temp: Some(temp), ..world }
    }

    /// In a directory that has its `.dedupfs` already.
    pub fn at(dir: &Path) -> World {
        let (overlay, background) = open(dir, USUAL);
        World { overlay, background: Some(background), dir: dir.to_owned(), _temp: None }
    }

    pub fn close(&mut self) {
        self.background = None;
    }

    /// Closes without telling the index anything, and opens with an empty one.
    pub fn reopen(&mut self) {
        self.reopen_as(USUAL);
    }

    pub fn reopen_as(&mut self, how: How) {
        self.close();
        let (overlay, background) = open(&self.dir, how);
        (self.overlay, self.background) = (overlay, Some(background));
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    pub fn settle(&self) {
        assert!(self.overlay.maintenance.settle(&mut |_| true).unwrap());
    }

    /// Makes a stub.
    pub fn stub(&self, name: &str, bytes: &[u8]) {
        let caller = Caller { uid: 0, gid: 0, umask: 0o022 };
        let flags = OpenFlags { truncate: true, ..TO_WRITE };
        let made = self.overlay.tree.create(ROOT, OsStr::new(name), 0o644, caller, flags, &|_| None).unwrap();
        self.overlay.tree.write(&made.1.handle, 0, bytes).unwrap();
        self.overlay.tree.release(&made.1.handle);
        self.overlay.tree.forget(made.0.node, 1);
        self.settle();
        assert_eq!(self.record(name).unwrap().state, State::Settled);
    }

    pub fn node(&self, name: &str) -> NodeId {
        let node = self.overlay.tree.lookup(ROOT, OsStr::new(name)).unwrap().node;
        // The inode stays for as long as somebody holds it or it is looked up again.
        self.overlay.tree.forget(node, 1);
        let again = self.overlay.tree.lookup(ROOT, OsStr::new(name)).unwrap().node;
        assert_eq!(again, node);
        node
    }

    pub fn open(&self, name: &str, flags: OpenFlags) -> Result<Arc<Handle>, OverlayError> {
        let node = self.overlay.tree.lookup(ROOT, OsStr::new(name))?.node;
        let opened = self.overlay.tree.open(node, flags, &|_| None);
        self.overlay.tree.forget(node, 1);
        Ok(opened?.handle)
    }

    pub fn read(&self, name: &str) -> Result<Vec<u8>, OverlayError> {
        let handle = self.open(name, TO_READ)?;
        let size = self.overlay.tree.getattr(handle.node())?.size;
        let bytes = self.overlay.tree.read(&handle, 0, size as usize + 10);
        self.overlay.tree.release(&handle);
        bytes
    }

    pub fn write(&self, name: &str, offset: u64, bytes: &[u8]) {
        let handle = self.open(name, TO_WRITE).unwrap();
        self.overlay.tree.write(&handle, offset, bytes).unwrap();
        self.overlay.tree.release(&handle);
    }

    /// The record as it is on disk.
    pub fn record(&self, name: &str) -> Option<Stub> {
        let mut value = [0; 64];
        rustix::fs::getxattr(self.path(name), XATTR, &mut value[..]).ok()?;
        Some(Stub::decode(&value, &KEY).unwrap())
    }

    pub fn is_hybrid(&self, name: &str) -> bool {
        self.record(name).is_some_and(|record| matches!(record.state, State::Hybrid { .. }))
    }

    /// The extent lists that there are.
    pub fn lists(&self) -> Vec<PathBuf> {
        match self.dir.join(".dedupfs/extents").read_dir() {
            Ok(entries) => entries.map(|entry| entry.unwrap().path()).collect(),
            Err(_) => Vec::new(),
        }
    }

    /// That a file is a stub of just the recipe that cutting all of its content finds, and that nothing is left over.
    pub fn check_stub(&self, name: &str, bytes: &[u8]) {
        let record = self.record(name).unwrap();
        assert_eq!(record.state, State::Settled, "{name}");
        assert_eq!(record.size, bytes.len() as u64);
        let mut start = 0;
        let chunks = params().cut(bytes, true).into_iter().map(|len| {
            let chunk = &bytes[start..start + len as usize];
            start += len as usize;
            ChunkRef { id: ChunkId::of(chunk), len }
        });
        assert_eq!(
            record.recipe,
            Recipe::new(chunks.collect()).id(),
            "{name}: another recipe than from scratch"
        );
        assert_eq!(std::fs::metadata(self.path(name)).unwrap().len(), 0, "{name}");
    }
}

pub fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut out = vec![0; len];
    blake3::Hasher::new().update(&seed.to_le_bytes()).finalize_xof().fill(&mut out);
    out
}
