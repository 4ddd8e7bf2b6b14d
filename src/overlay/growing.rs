//! Files that stay open while they grow: chunked in steps, so that only the tail is left at close.

use super::Overlay;
use super::inode::{Content, Inode, Phase};
use crate::backing;
use crate::contents::error::Result;
use crate::recipe::{ChunkRef, Recipe};
use rustix::fs::OFlags;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Instant;

/// A step is taken when a file has grown by this much since the last.
pub const STEP_BYTES: u64 = 8 << 20;

/// The chunks taken from a file so far. They are only a claim: the file may have been overwritten since, so a
/// commit hashes the bytes again before it uses them ([`Growing::still_true`]).
#[derive(Clone, Default)]
pub struct Growing {
    /// Chunks from the file's start on.
    pub chunks: Vec<ChunkRef>,
    /// Bytes that they cover.
    pub bytes: u64,
}

impl Growing {
    /// Whether the file still begins with these chunks. Reads and hashes them: about the speed of memory,
    /// several times faster than compressing them again.
    pub fn still_true(&self, file: &File) -> bool {
        let mut buffer = Vec::new();
        let mut offset = 0;
        self.chunks.iter().all(|chunk| {
            buffer.resize(chunk.len as usize, 0);
            let read = file.read_exact_at(&mut buffer, offset);
            offset += u64::from(chunk.len);
            read.is_ok() && crate::id::ChunkId::of(&buffer) == chunk.id
        })
    }
}

/// While this is held, a step is taken.
struct Step<'a>(&'a Inode);

impl Drop for Step<'_> {
    fn drop(&mut self) {
        self.0.lock().stepping = false;
    }
}

impl Overlay {
    /// Takes a step on every file that is open for writing and has grown enough. Returns how many.
    pub(super) fn step_growing_files(&self) -> usize {
        let open = self.inodes.collect(|inode, state| inode.on_root_fs && state.writers > 0);
        let mut steps = 0;
        for inode in open {
            match self.step(&inode) {
                Ok(taken) => steps += usize::from(taken),
                Err(e) => tracing::warn!("{}: not chunked while it grows: {e}", self.name_of(&inode)),
            }
            self.inodes.release(inode);
        }
        steps
    }

    fn step(&self, inode: &Arc<Inode>) -> Result<bool> {
        let (before, _step) = {
            let mut state = inode.lock();
            let plain = matches!(state.content, Some(Content::Plain(_)));
            if !plain || state.writers == 0 || !matches!(state.phase, Phase::Idle) {
                return Ok(false);
            }
            state.stepping = true;
            (state.growing.clone().unwrap_or_default(), Step(inode))
        };
        let stat = rustix::fs::fstat(&inode.path_fd()?)?;
        let (size, allocated) = (stat.st_size as u64, stat.st_blocks as u64 * 512);
        // Holes of a file that is being written may still be filled.
        if size < before.bytes + STEP_BYTES || allocated < size / 2 {
            return Ok(false);
        }
        let policy = self.policy_of(inode, stat.st_nlink, &mut self.catalog.finder(&self.backing))?;
        let file = backing::open_io(&inode.path_fd()?, OFlags::RDONLY)?;
        let keep = policy.is_some_and(|policy| policy.converts(size))
            && self.has_room_to_grow(size)
            && self.plain_until(inode, Instant::now(), size).is_none();
        let mut round = self.contents.ingest.round(keep);
        round.set_background(self.throttle.is_background());
        let indexing = policy.unwrap_or(self.policies().fallback()).similarity;
        round.set_indexing(indexing);
        let mut offset = before.bytes;
        let added = round.add(false, |buffer| {
            // The file waits to be committed; the commit does not store these chunks again.
            if inode.lock().writers == 0 {
                return Ok(0);
            }
            // Not to its end, which may move on as fast as this reads.
            let left = usize::try_from(size - offset).unwrap_or(usize::MAX);
            let portion = self.throttle.portion(buffer.len()).min(left);
            let len = file.read_at(&mut buffer[..portion], offset)?;
            offset += len as u64;
            self.throttle.spend(len as u64);
            Ok(len)
        });
        added.map_err(|e| crate::contents::OverlayError::io("read", self.name_of(inode), e))?;
        if inode.lock().writers == 0 {
            return Ok(false);
        }
        let taken = round.finish()?;
        let mut grown = before;
        grown.bytes += taken.iter().map(|chunk| u64::from(chunk.len)).sum::<u64>();
        grown.chunks.extend(taken);
        let recipe = Recipe::new(grown.chunks.clone());
        let mut state = inode.lock();
        if state.writers == 0 || !matches!(state.phase, Phase::Idle) {
            return Ok(false);
        }
        state.growing = Some(grown);
        drop(state);
        let id = recipe.id();
        self.record(inode, id, &stat)?;
        let file = Arc::new(file);
        self.index_content(id, &recipe, indexing, || Ok(self.content_of(None, &file, &stat)))?;
        Ok(true)
    }
}
