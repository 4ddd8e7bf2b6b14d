//! Settings of [`Contents`] in a directory of their own, and how they are opened.
//!
//! Invariants:
//! - One process at a time has the directory open.
//! - An index that cannot be read is moved to `index.damaged` and rebuilt from the packs: chunks and recipes at once, similarity by
//!   [`Contents::reindex`].

use crate::chunk::ChunkParams;
use crate::contents::collection::Contents;
use crate::contents::error::{OverlayError, Result};
use crate::db::{Db, DbError, IndexDb};
use crate::id::StoreId;
use crate::similarity::{Similarity, SimilarityError, SimilarityOptions};
use crate::store::{Store, StoreError, StoreOptions};
use rustix::fs::FlockOperation;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::Arc;

const ID: &str = "id";
const INDEX: &str = "index";
const DAMAGED: &str = "index.damaged";

/// Settings of [`Contents`]. Only the chunk lengths must stay the same for new contents to share chunks with old ones.
#[derive(Clone, Debug)]
pub struct ContentsBuilder {
    params: ChunkParams,
    store: StoreOptions,
    similarity: SimilarityOptions,
    index_cache_bytes: u64,
    threads: usize,
}

impl Default for ContentsBuilder {
    /// Chunks of 16 KiB on average, about 160 MiB of memory, a worker for each processor.
    fn default() -> ContentsBuilder {
        ContentsBuilder {
            params: ChunkParams::default(),
            store: StoreOptions::default(),
            similarity: SimilarityOptions::default(),
            index_cache_bytes: 32 << 20,
            threads: std::thread::available_parallelism().map_or(2, usize::from),
        }
    }
}

impl ContentsBuilder {
    /// Sets the lengths of chunks.
    pub fn chunks(mut self, params: ChunkParams) -> ContentsBuilder {
        self.params = params;
        self
    }

    /// Sets the number of threads that hash, compress and sketch.
    pub fn threads(mut self, threads: usize) -> ContentsBuilder {
        self.threads = threads.max(1);
        self
    }

    /// Sets the memory, in bytes, that caches and buffers share: half of it for decoded chunks, an eighth for pages of
    /// the index, a quarter for additions to the similarity index.
    pub fn memory(mut self, bytes: u64) -> ContentsBuilder {
        self.store.cache_bytes = bytes / 2;
        self.index_cache_bytes = bytes / 8;
        self.similarity.buffer_bytes = usize::try_from(bytes / 4).unwrap_or(usize::MAX);
        self
    }

    /// Sets the level of zstd for new chunks, 1 to 22.
    pub fn zstd_level(mut self, level: i32) -> ContentsBuilder {
        self.store.zstd_level = level;
        self
    }

    /// Refuses contents that would leave less than this many bytes free on the filesystem.
    pub fn keep_free(mut self, bytes: u64) -> ContentsBuilder {
        self.store.keep_free_bytes = bytes;
        self
    }

    /// Opens the contents in directory `dir`, and creates it if it is missing.
    ///
    /// # Errors
    ///
    /// Fails if another process has it open, if its file `id` has another length than 16 bytes, or if the system refuses.
    pub fn open(self, dir: &Path) -> Result<Contents> {
        let io = |operation| move |e: io::Error| OverlayError::io(operation, dir, e);
        std::fs::create_dir_all(dir).map_err(io("create"))?;
        let (lock, id) = identify(dir)?;
        let contents = match self.open_with(dir, id) {
            Err(e) if means_a_damaged_index(&e) => {
                let (index, aside) = (dir.join(INDEX), dir.join(DAMAGED));
                tracing::warn!("{}: {e}; it is moved to {DAMAGED} and rebuilt", index.display());
                match std::fs::remove_dir_all(&aside) {
                    Err(e) if e.kind() != io::ErrorKind::NotFound => {
                        return Err(io("remove the old index of")(e));
                    }
                    _ => std::fs::rename(&index, &aside).map_err(io("move aside the index of"))?,
                }
                self.open_with(dir, id)
            }
            contents => contents,
        };
        Ok(contents?.locked(lock))
    }

    fn open_with(&self, dir: &Path, id: StoreId) -> Result<Contents> {
        let db: Arc<dyn Db> = Arc::new(IndexDb::open(&dir.join(INDEX), self.index_cache_bytes)?);
        let store = Store::open(dir, id, db.clone(), self.store.clone(), &mut |_, _| {})?;
        let similarity = Similarity::open(db.clone(), self.similarity)?;
        Ok(Contents::new(Arc::new(store), Arc::new(similarity), db, self.params, self.threads))
    }
}

/// Locks the file `id` in `dir` and reads it; fills it if it is new.
fn identify(dir: &Path) -> Result<(File, StoreId)> {
    let io = |operation| move |e: io::Error| OverlayError::io(operation, dir, e);
    let mut file = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(dir.join(ID))
        .map_err(io("open the id of"))?;
    rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(|e| io("lock")(e.into()))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).map_err(io("read the id of"))?;
    if bytes.is_empty() {
        let mut id = [0; 16];
        let filled = rustix::rand::getrandom(&mut id, rustix::rand::GetRandomFlags::empty());
        filled.map_err(|e| io("name")(e.into()))?;
        file.write_all(&id).and_then(|()| file.sync_all()).map_err(io("write the id of"))?;
        return Ok((file, StoreId(id)));
    }
    let wrong = || io("read the id of")(io::Error::other("expected 16 bytes in the file `id`"));
    Ok((file, StoreId(bytes.try_into().map_err(|_| wrong())?)))
}

/// Whether the error says that the index cannot be read, and not that the system refused.
fn means_a_damaged_index(error: &OverlayError) -> bool {
    let of_db = |error: &DbError| matches!(error, DbError::Broken { .. } | DbError::Row { .. });
    match error {
        OverlayError::Db(error)
        | OverlayError::Store(StoreError::Db(error))
        | OverlayError::Similarity(SimilarityError::Db(error)) => of_db(error),
        OverlayError::Similarity(SimilarityError::Format) => true,
        _ => false,
    }
}

impl Contents {
    /// Returns settings with which contents are opened.
    pub fn builder() -> ContentsBuilder {
        ContentsBuilder::default()
    }

    /// Opens the contents in directory `dir`, and creates it if it is missing. As [`Contents::builder`] with these chunk lengths.
    pub fn open(dir: &Path, params: ChunkParams) -> Result<Contents> {
        Contents::builder().chunks(params).open(dir)
    }
}

#[cfg(test)]
mod tests {
    use crate::contents::SimilarOptions;
    use crate::contents::builder::*;

    fn builder() -> ContentsBuilder {
        let params = ChunkParams::with_average(4096).unwrap();
        ContentsBuilder::default().chunks(params).threads(1).memory(32 << 20)
    }

    fn text(edit: &str) -> Vec<u8> {
        (0..8000)
            .map(|i| format!("line {i}{}\n", if i == 4000 { edit } else { "" }))
            .collect::<String>()
            .into()
    }

    #[test]
    fn one_process_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let contents = builder().open(dir.path()).unwrap();
        assert!(builder().open(dir.path()).is_err());
        drop(contents);
        builder().open(dir.path()).unwrap();
    }

    /// A damaged index costs no content, and similarity only until the contents are indexed again. Seen to fail if the error is
    /// returned.
    #[test]
    fn a_damaged_index_is_rebuilt() {
        let dir = tempfile::tempdir().unwrap();
        let contents = builder().open(dir.path()).unwrap();
        let ids = ["", " edited"].map(|edit| contents.put(&text(edit)[..]).unwrap());
        contents.sync().unwrap();
        drop(contents);
        let index = dir.path().join(INDEX);
        for damage in 0..2 {
            match damage {
                0 => std::fs::write(index.join("damaged"), "").unwrap(),
                _ => std::fs::remove_dir_all(index.join("runs")).unwrap(),
            }
            let contents = builder().open(dir.path()).unwrap();
            let mut bytes = vec![0; text("").len()];
            assert_eq!(contents.read_at(&ids[0], 0, &mut bytes).unwrap(), bytes.len());
            assert!(bytes == text(""));
            ids.iter().for_each(|id| contents.reindex(id).unwrap());
            let similar = contents.similar(&ids[0], &SimilarOptions::default()).unwrap();
            assert_eq!(similar.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [ids[1]], "{damage}");
            contents.sync().unwrap();
            assert!(dir.path().join(DAMAGED).is_dir());
        }
    }
}
