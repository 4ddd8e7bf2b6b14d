//! An overlay for unit tests: a root with files below a directory that has room for files outside the root.

use super::inode::{Content, Inode};
use super::{Dedup, HybridOptions, Overlay, Parts};
use crate::backing::Backing;
use crate::backing::stub::GuardKey;
use crate::chunk::ChunkParams;
use crate::db::MemDb;
use crate::id::StoreId;
use crate::similarity::{Similarity, SimilarityOptions};
use crate::store::{Store, StoreOptions};
use std::path::Path;
use std::sync::Arc;
use tempfile::TempDir;

/// An overlay without background threads: a test commits files itself.
pub(super) struct World {
    pub(super) overlay: Arc<Overlay>,
    pub(super) temp: TempDir,
}

impl World {
    pub(super) fn new() -> World {
        let temp = tempfile::tempdir().unwrap();
        let root = temp.path().join("root");
        let state = root.join(".dedupfs");
        std::fs::create_dir_all(&state).unwrap();
        let db = Arc::new(MemDb::new());
        let options = StoreOptions { pack_bytes_max: 1 << 20, ..StoreOptions::default() };
        let store = Store::open(&state, StoreId([1; 16]), db.clone(), options, &mut |_, _| {}).unwrap();
        let similarity = Similarity::open(db.clone(), SimilarityOptions::default()).unwrap();
        let parts = Parts {
            backing: Backing::open(&root).unwrap(),
            store: Arc::new(store),
            similarity: Arc::new(similarity),
            db,
            key: GuardKey([3; 32]),
            params: ChunkParams::with_average(4096).unwrap(),
            dedup: Dedup::OnClose,
            read_only: false,
            threads: 2,
            hybrid: HybridOptions { dir: state.join("extents"), bytes_min: u64::MAX },
        };
        World { overlay: Arc::new(Overlay::new(parts).unwrap()), temp }
    }

    /// The inode of a file below the root.
    pub(super) fn inode(&self, path: &str) -> Arc<Inode> {
        let backing = &self.overlay.backing;
        self.overlay.inodes.enter(backing, backing.resolve(Path::new(path)).unwrap(), 1).unwrap()
    }

    /// Commits a file as the committer does.
    pub(super) fn commit(&self, inode: &Arc<Inode>) {
        self.overlay.commit_round(vec![inode.clone()], true);
    }

    /// Makes a file below the root, and a stub of it.
    pub(super) fn stub(&self, path: &str, bytes: &[u8]) -> Arc<Inode> {
        std::fs::write(self.overlay.backing.root_path().unwrap().join(path), bytes).unwrap();
        let inode = self.inode(path);
        self.commit(&inode);
        assert!(matches!(inode.lock().content, Some(Content::Stub(_))), "{path} is no stub");
        inode
    }
}
