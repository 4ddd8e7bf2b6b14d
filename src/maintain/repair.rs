//! Search for intact bytes in files, to repair the store. `tree/former_record.rs` restores damaged records.
//!
//! Invariants: bytes are used only if their BLAKE3 is the wanted id. Searched files are only read.
//!
//! Memory: one window of a file, and its chunk list (40 bytes each) while a recipe is wanted.

use crate::backing::io::read_full;
use crate::backing::stub::{State, Stub};
use crate::backing::{self, STATE_DIR};
use crate::chunk::ChunkParams;
use crate::contents::error::Result;
use crate::id::{ChunkId, RecipeId};
use crate::maintain::Maintenance;
use crate::recipe::{ChunkRef, Recipe};
use crate::store::{Object, StoreError, Wanted};
use crate::tree::inode::{Content, Inode};
use rustix::fs::OFlags;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

const WINDOW_BYTES: usize = 4 << 20;

/// Gets a wanted chunk's bytes or an encoded recipe, and the file that has it.
type Take<'a> = &'a mut dyn FnMut(Object, &[u8], &Path) -> std::result::Result<(), StoreError>;
/// Gets the bytes searched; false ends the search.
type Step<'a> = &'a mut dyn FnMut(u64) -> bool;

impl Maintenance {
    /// Searches the plain files of this overlay for wanted objects, cut with `params`; with `stubs` also the contents of
    /// stubs. Passes each object found to `take` and removes it from `wanted`. Skips files that cannot be read.
    pub fn search_files(
        &self,
        params: &ChunkParams,
        stubs: bool,
        wanted: &mut Wanted,
        step: Step<'_>,
        take: Take<'_>,
    ) -> Result<()> {
        let (mut bytes, mut goes_on, mut failed) = (0, true, None);
        self.tree.walk(Path::new(""), &mut |path, file| {
            let Ok(inode) = file else { return };
            if goes_on && failed.is_none() && !wanted.is_empty() {
                let content = self.tree.look_at(&inode);
                let done = match content {
                    Ok(Content::Plain(_)) => self.search_plain(&inode, params, wanted, path, &mut *take),
                    Ok(Content::Stub(stub)) if stubs => {
                        self.search_stub(&stub, params, wanted, path, &mut *take)
                    }
                    Ok(Content::Hybrid(stub)) => {
                        self.search_hybrid(&inode, &stub, params, wanted, path, &mut *take)
                    }
                    Ok(_) => Ok(0),
                    Err(e) => {
                        tracing::warn!("{}: not searched: {e}", path.display());
                        Ok(0)
                    }
                };
                match done {
                    Ok(searched) => bytes += searched,
                    Err(e) => failed = Some(e),
                }
                goes_on = step(bytes);
            }
            self.tree.inodes.release(inode);
        })?;
        failed.map_or(Ok(()), |e| Err(e.into()))
    }

    fn search_plain(
        &self,
        inode: &Inode,
        params: &ChunkParams,
        wanted: &mut Wanted,
        path: &Path,
        take: Take<'_>,
    ) -> std::result::Result<u64, StoreError> {
        // Never waits for a lease: a file that is being committed will be in the store in a moment.
        match inode.path_fd().and_then(|fd| backing::open_io(&fd, OFlags::RDONLY)) {
            Ok(file) => search_file(&file, params, wanted, path, take),
            Err(e) => {
                tracing::warn!("{}: not searched: {e}", path.display());
                Ok(0)
            }
        }
    }

    /// Searches the whole content of a hybrid file: its local bytes are nowhere else.
    fn search_hybrid(
        &self,
        inode: &Inode,
        stub: &Stub,
        params: &ChunkParams,
        wanted: &mut Wanted,
        path: &Path,
        take: Take<'_>,
    ) -> std::result::Result<u64, StoreError> {
        let State::Hybrid { list } = stub.state else { return Ok(0) };
        let loaded = self.tree.load_hybrid(inode, stub, list).and_then(|loaded| match loaded {
            Ok(hybrid) => self.tree.merged(inode, stub, &hybrid),
            Err(reason) => Err(self.tree.bad_stub(inode, reason)),
        });
        match loaded {
            Ok(content) => {
                let read = |buffer: &mut [u8], at: u64| content.read(at, buffer).map_err(io::Error::other);
                search(&read, params, wanted, path, take)
            }
            Err(e) => {
                tracing::warn!("{}: not searched: {e}", path.display());
                Ok(0)
            }
        }
    }

    fn search_stub(
        &self,
        stub: &Stub,
        params: &ChunkParams,
        wanted: &mut Wanted,
        path: &Path,
        take: Take<'_>,
    ) -> std::result::Result<u64, StoreError> {
        let store = &self.contents.store;
        let Ok(recipe) = store.recipe(&stub.recipe) else { return Ok(0) };
        let read = |buffer: &mut [u8], at: u64| store.read_at(&recipe, at, buffer).map_err(io::Error::other);
        search(&read, params, wanted, path, take)
    }
}

/// As [`Maintenance::search_files`], in a directory outside any overlay, or in one file. Does not follow symlinks, and skips the
/// state directory of an overlay.
pub fn search_tree(
    top: &Path,
    params: &ChunkParams,
    wanted: &mut Wanted,
    step: Step<'_>,
    take: Take<'_>,
) -> Result<()> {
    let mut bytes = 0;
    let mut left = vec![top.to_owned()];
    while let Some(path) = left.pop() {
        if wanted.is_empty() || !step(bytes) {
            break;
        }
        let passed_over = |e: io::Error| tracing::warn!("{}: not searched: {e}", path.display());
        let kind = match path.symlink_metadata() {
            Ok(meta) => meta.file_type(),
            Err(e) => {
                passed_over(e);
                continue;
            }
        };
        if kind.is_dir() {
            match path.read_dir() {
                Ok(entries) => left.extend(
                    entries
                        .flatten()
                        .filter(|entry| entry.file_name() != STATE_DIR)
                        .map(|entry| entry.path()),
                ),
                Err(e) => passed_over(e),
            }
        } else if kind.is_file() {
            let flags = libc::O_NONBLOCK | libc::O_NOFOLLOW | libc::O_NOCTTY;
            match OpenOptions::new().read(true).custom_flags(flags).open(&path) {
                Ok(file) => bytes += search_file(&file, params, wanted, &path, &mut *take)?,
                Err(e) => passed_over(e),
            }
        }
    }
    Ok(())
}

fn search_file(
    file: &File,
    params: &ChunkParams,
    wanted: &mut Wanted,
    path: &Path,
    take: Take<'_>,
) -> std::result::Result<u64, StoreError> {
    let read = |buffer: &mut [u8], at: u64| read_full(file, buffer, at).map_err(io::Error::other);
    search(&read, params, wanted, path, take)
}

/// Cuts the bytes that `read` gives and takes wanted chunks. Returns the bytes read. A read that fails ends the file.
fn search(
    read: &dyn Fn(&mut [u8], u64) -> io::Result<usize>,
    params: &ChunkParams,
    wanted: &mut Wanted,
    path: &Path,
    take: Take<'_>,
) -> std::result::Result<u64, StoreError> {
    let mut chunks = wanted.has_recipes().then(Vec::new);
    let mut window = vec![0; WINDOW_BYTES.max(4 * params.max as usize)];
    let (mut filled, mut offset) = (0, 0);
    loop {
        let len = match read(&mut window[filled..], offset) {
            Ok(len) => len,
            Err(e) => {
                tracing::warn!("{}: searched up to byte {offset}: {e}", path.display());
                return Ok(offset);
            }
        };
        let last = len < window.len() - filled;
        filled += len;
        offset += len as u64;
        let mut start = 0;
        for len in params.cut(&window[..filled], last) {
            let bytes = &window[start..start + len as usize];
            start += len as usize;
            let id = ChunkId::of(bytes);
            let object = Object::Chunk(id);
            if wanted.contains(&object) {
                take(object, bytes, path)?;
                wanted.remove(&object);
            }
            if let Some(chunks) = &mut chunks {
                chunks.push(ChunkRef { id, len });
            }
        }
        window.copy_within(start..filled, 0);
        filled -= start;
        if last {
            break;
        }
    }
    if let Some(chunks) = chunks.filter(|chunks| !chunks.is_empty()) {
        let encoded = Recipe::new(chunks).encode();
        let object = Object::Recipe(RecipeId::of(&encoded));
        if wanted.contains(&object) {
            take(object, &encoded, path)?;
            wanted.remove(&object);
        }
    }
    Ok(offset)
}
