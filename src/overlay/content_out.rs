//! The stored content of a file, for callers that take it elsewhere: hashed once more, because it leaves the
//! checksums behind.

use super::Overlay;
use super::hybrid::Merged;
use super::inode::{Content, Inode};
use crate::backing;
use crate::contents::error::{OverlayError, Result};
use crate::recipe::Recipe;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

const WINDOW_BYTES: usize = 1 << 20;
/// Number of chunks that are decoded ahead.
const AHEAD: usize = 64;

/// The content of a stub or hybrid file.
pub struct StoredContent<'a> {
    overlay: &'a Overlay,
    /// Until it is dropped.
    inode: Option<Arc<Inode>>,
    from: From,
    size: u64,
    blocks: u64,
}

enum From {
    Recipe(Arc<Recipe>),
    Merged(Box<Merged>),
}

impl Overlay {
    /// Opens the stored content of the regular file at `path` below the root; `None` if the file has its own bytes, or another
    /// filesystem is mounted there. Changes nothing.
    pub fn stored_content(&self, path: &Path) -> Result<Option<StoredContent<'_>>> {
        let found = match self.backing.resolve_named("open", path) {
            Err(OverlayError::Outside { .. }) => return Ok(None),
            found => found?,
        };
        let inode = self.inodes.enter(&self.backing, found, 0)?;
        match self.content_of_inode(&inode, path) {
            Ok(Some((from, size, blocks))) => {
                Ok(Some(StoredContent { overlay: self, inode: Some(inode), from, size, blocks }))
            }
            other => {
                self.inodes.release(inode);
                other.map(|_| None)
            }
        }
    }

    fn content_of_inode(&self, inode: &Inode, path: &Path) -> Result<Option<(From, u64, u64)>> {
        let (content, hybrid) = {
            let state = self.lock_loaded(inode)?;
            (state.content, state.hybrid.clone())
        };
        match (content, hybrid) {
            (Some(Content::Stub(stub)), _) => {
                let recipe = self.recipe_of(inode, &stub)?;
                Ok(Some((From::Recipe(recipe), stub.size, stub.blocks)))
            }
            (Some(Content::Hybrid(stub)), Some(hybrid)) => {
                let size = hybrid.size();
                let blocks = hybrid.blocks(stub.blocks);
                let merged = Box::new(self.merged(inode, &stub, &hybrid)?);
                Ok(Some((From::Merged(merged), size, blocks)))
            }
            (Some(Content::Unknown(reason)), _) => Err(self.bad_stub(inode, reason)),
            (Some(Content::Plain(None)), _) => match self.lost_record(inode, path)? {
                None => Ok(None),
                Some(reason) => Err(OverlayError::Unreadable { path: path.to_owned(), reason }),
            },
            _ => Ok(None),
        }
    }
}

impl StoredContent<'_> {
    /// Length in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Whether it took fewer blocks than it is long when it was plain: then zeros in it were holes.
    pub fn is_sparse(&self) -> bool {
        self.blocks * 512 < self.size
    }

    /// Bytes that it took when it was plain, about.
    pub fn room_bytes(&self) -> u64 {
        self.blocks * 512
    }

    /// Gives all bytes to `take`, in order, each piece with where it begins.
    pub fn read(&self, take: &mut dyn FnMut(u64, &[u8]) -> Result<()>) -> Result<()> {
        match &self.from {
            From::Recipe(recipe) => {
                let store = &self.overlay.contents.store;
                let chunks = recipe.chunks();
                store.prefetch(&chunks[..chunks.len().min(AHEAD)]);
                for (i, chunk) in chunks.iter().enumerate() {
                    if let Some(ahead) = chunks.get(i + AHEAD) {
                        store.prefetch(std::slice::from_ref(ahead));
                    }
                    let bytes = store.read(&chunk.id)?;
                    if let Some(inode) = &self.inode {
                        self.overlay.check_chunk(inode, chunk, &bytes)?;
                    }
                    take(recipe.start_of(i), &bytes)?;
                }
            }
            From::Merged(merged) => {
                let mut buffer = vec![0; WINDOW_BYTES];
                let mut at = 0;
                while at < self.size {
                    let part = &mut buffer[..(self.size - at).min(WINDOW_BYTES as u64) as usize];
                    if merged.read(at, part)? != part.len() {
                        return Err(rustix::io::Errno::IO.into());
                    }
                    take(at, part)?;
                    at += part.len() as u64;
                }
            }
        }
        Ok(())
    }
}

impl Drop for StoredContent<'_> {
    fn drop(&mut self) {
        self.inode.take().into_iter().for_each(|inode| self.overlay.inodes.release(inode));
    }
}

/// The names and values of all xattrs of a file but ours.
pub fn xattrs_of(fd: &OwnedFd) -> Result<Vec<(std::ffi::OsString, Vec<u8>)>> {
    use std::os::unix::ffi::OsStrExt;
    let names = match backing::list_xattrs(fd) {
        Err(rustix::io::Errno::NOTSUP) => return Ok(Vec::new()),
        names => names?,
    };
    let mut found = Vec::new();
    for name in names.split(|&byte| byte == 0).filter(|name| !name.is_empty()) {
        if name == crate::backing::stub::XATTR.as_bytes() {
            continue;
        }
        let name = std::ffi::OsStr::from_bytes(name);
        // It may have gone meanwhile.
        if let Some(value) = backing::get_xattr(fd, name)? {
            found.push((name.to_owned(), value));
        }
    }
    Ok(found)
}
