//! Hydration: writes a stub's content back into its file, before a program writes to it.
//!
//! Order: record HYDRATING -> bytes -> fdatasync -> times -> record PLAIN -> fsync -> answer. The recipe is
//! authoritative throughout, so a crash in between costs nothing. The change to plain is durable before any
//! program may write, because the daemon does not see a program's own syncs.
//!
//! After a failure: record HYDRATING -> `ftruncate(0)` -> times -> record SETTLED. The record comes first
//! because it may say PLAIN by then. `docs/durability.md` lists every truncation in this program, and why it
//! loses nothing.

use super::Overlay;
use super::hydrating::Hydrating;
use super::inode::{Content, Inode, State as InodeState};
use crate::backing;
use crate::backing::stub::{State, Stub, XATTR};
use crate::backing::types::SetTime;
use crate::contents::error::{OverlayError, Result};
use crate::id::ChunkId;
use crate::recipe::{ChunkRef, Recipe};
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, MutexGuard};

const BLOCK: usize = 4096;

impl Overlay {
    /// Makes sure that the file holds its own content; waits if another thread writes it back already.
    pub(super) fn make_plain<'a>(
        &self,
        inode: &'a Inode,
        state: MutexGuard<'a, InodeState>,
    ) -> Result<MutexGuard<'a, InodeState>> {
        self.make_plain_by(inode, inode.wait_written_back(state), &|_| true)
    }

    /// As [`Overlay::make_plain`]; `step` gets the bytes written for a stub, and ends the work by returning false (ECANCELED).
    pub(super) fn make_plain_by<'a>(
        &self,
        inode: &'a Inode,
        mut state: MutexGuard<'a, InodeState>,
        step: &dyn Fn(u64) -> bool,
    ) -> Result<MutexGuard<'a, InodeState>> {
        loop {
            state.interrupt_conversion();
            state = inode.wait_written_back(state);
            let (stub, hybrid) = match (state.content, state.hybrid.clone()) {
                (Some(Content::Stub(stub)), _) => {
                    let stub = as_shown(inode, stub)?;
                    // Shown meanwhile, and restored after a failure.
                    state.content = Some(Content::Stub(stub));
                    (stub, None)
                }
                (Some(Content::Hybrid(stub)), Some(hybrid)) => {
                    let mtime = backing::mtime(&rustix::fs::fstat(&inode.path_fd()?)?);
                    let stub = Stub { mtime, ..stub };
                    // As above.
                    state.content = Some(Content::Hybrid(stub));
                    (stub, Some(hybrid))
                }
                (Some(Content::Unknown(reason)), _) => return Err(self.bad_stub(inode, reason)),
                _ => return Ok(state),
            };
            let hydrating = Hydrating::begin(self, inode, &mut state, stub);
            drop(state);
            let result = match hybrid {
                None => self.write_back(inode, stub, step),
                Some(hybrid) => self.fill_hybrid(inode, stub, &hybrid),
            };
            state = inode.lock();
            hydrating.end(&mut state);
            if result.is_err()
                && matches!(state.content, Some(Content::Stub(_)))
                && let Ok((content, _)) = self.load(inode)
            {
                // Its record was rewritten.
                state.content = Some(content);
            }
            if let Ok(plain) = &result {
                state.content = Some(Content::Plain(Some(*plain)));
                (state.recipe, state.hybrid) = (None, None);
                state.growing = None;
                state.committed = true;
                // Even if the caller fails to open it.
                state.dirty = true;
            }
            result?;
        }
    }

    /// Makes a stub or hybrid file an empty plain one, without writing anything back.
    pub(super) fn discard_content(&self, inode: &Inode, state: &mut InodeState) -> Result<()> {
        let file = backing::open_io(&inode.path_fd()?, OFlags::RDWR)?;
        let inside = self.not_outside(inode, &file)?;
        if let Some(hybrid) = &state.hybrid {
            // Without its record, the local bytes would look like the whole content.
            self.empty_hybrid(inode, hybrid, &file)?;
        }
        // First, because an empty file without a record and with the old mtime looks like one that lost its record.
        backing::set_times(&file, None, Some(SetTime::Now))?;
        rustix::fs::fremovexattr(&file, XATTR)?;
        self.steps.step();
        // Durable before any write, because recovery would take the bytes of a write for our own leftovers.
        if let Err(e) = self.steps.io(|| file.sync_all()) {
            // The change failed: the file stays a stub or hybrid.
            if let Some(Content::Stub(stub) | Content::Hybrid(stub)) = state.content {
                self.write_record(inode, &stub)?;
            }
            return Err(OverlayError::io("fsync", self.name_of(inode), e));
        }
        self.steps.step();
        inside.empty()?;
        if let Some(hybrid) = state.hybrid.take() {
            self.remove_list(inode, hybrid.header().number);
        }
        state.content = Some(Content::Plain(None));
        state.recipe = None;
        state.committed = true;
        Ok(())
    }

    /// The recipe of a stub.
    pub(super) fn recipe_of(&self, inode: &Inode, stub: &Stub) -> Result<Arc<Recipe>> {
        let recipe = self.contents.store.recipe(&stub.recipe).inspect_err(|e| {
            tracing::error!("{}: {e}", self.name_of(inode));
        })?;
        if recipe.size() != stub.size {
            return Err(self.bad_stub(inode, "its size is not that of its recipe"));
        }
        Ok(recipe)
    }

    pub(super) fn bad_stub(&self, inode: &Inode, reason: &str) -> OverlayError {
        OverlayError::BadStub { path: self.name_of(inode).into(), reason: reason.to_owned() }
    }

    fn write_back(&self, inode: &Inode, stub: Stub, step: &dyn Fn(u64) -> bool) -> Result<Stub> {
        let file = self.fill_stub(inode, &stub, step)?;
        let fsync = |e| OverlayError::io("fsync", self.name_of(inode), e);
        let written = self.steps.io(|| file.sync_data()).map_err(fsync).and_then(|()| {
            let plain = self.write_plain_record(inode, stub)?;
            self.steps.io(|| file.sync_all()).map_err(fsync)?;
            Ok(plain)
        });
        if let Err(e) = &written {
            tracing::error!("{}: could not be written back: {e}", self.name_of(inode));
            self.take_back(inode, &file, stub);
        }
        written
    }

    /// Does the first half of writing a stub back: record HYDRATING -> bytes, each chunk checked by its hash. Nothing is durable
    /// yet. `step` gets bytes written, and ends the work by returning false (ECANCELED). After an error the file is a stub again.
    pub(super) fn fill_stub(&self, inode: &Inode, stub: &Stub, step: &dyn Fn(u64) -> bool) -> Result<File> {
        if self.read_only {
            return Err(OverlayError::ReadOnly);
        }
        let recipe = self.recipe_of(inode, stub)?;
        let file = backing::open_io(&inode.path_fd()?, OFlags::RDWR)?;
        let inside = self.not_outside(inode, &file)?;
        let left = rustix::fs::fstat(&file)?.st_size != 0;
        self.write_record(inode, &stub.stamped(State::Hydrating))?;
        self.steps.step();
        // Holes of this attempt must not show bytes that an earlier attempt left.
        let emptied = if left { inside.empty() } else { Ok(()) };
        match emptied
            .map_err(OverlayError::from)
            .and_then(|()| self.write_bytes(inode, &file, &recipe, stub.blocks, step))
        {
            Ok(()) => {
                self.steps.step();
                Ok(file)
            }
            Err(e) => {
                if !matches!(e, OverlayError::Os(Errno::CANCELED)) {
                    tracing::error!("{}: could not be written back: {e}", self.name_of(inode));
                }
                self.take_back(inode, &file, *stub);
                Err(e)
            }
        }
    }

    /// Does the second half, once the bytes are durable: times -> record PLAIN, which counts once it is durable too.
    pub(super) fn write_plain_record(&self, inode: &Inode, stub: Stub) -> Result<Stub> {
        backing::set_times(&inode.path_fd()?, None, Some(SetTime::At(stub.mtime)))?;
        self.steps.step();
        let plain = stub.stamped(State::Plain);
        self.write_record(inode, &plain)?;
        self.steps.step();
        Ok(plain)
    }

    pub(super) fn write_bytes(
        &self,
        inode: &Inode,
        file: &File,
        recipe: &Recipe,
        blocks: u64,
        step: &dyn Fn(u64) -> bool,
    ) -> Result<()> {
        let io = |e| OverlayError::io("write", self.name_of(inode), e);
        let mode = rustix::fs::fstat(file)?.st_mode;
        let sparse = blocks * 512 < recipe.size();
        self.contents.store.prefetch(&recipe.chunks()[..recipe.chunks().len().min(64)]);
        for (i, chunk) in recipe.chunks().iter().enumerate() {
            if let Some(ahead) = recipe.chunks().get(i + 64) {
                self.contents.store.prefetch(std::slice::from_ref(ahead));
            }
            let bytes = self.contents.store.read(&chunk.id)?;
            self.check_chunk(inode, chunk, &bytes)?;
            let start = recipe.start_of(i);
            let write = || match sparse {
                true => write_sparse(file, &bytes, start),
                false => file.write_all_at(&bytes, start),
            };
            self.steps.io(write).map_err(io)?;
            if !step(bytes.len() as u64) {
                return Err(Errno::CANCELED.into());
            }
        }
        file.set_len(recipe.size()).map_err(io)?;
        if rustix::fs::fstat(file)?.st_mode != mode {
            // The kernel clears setuid and setgid when an ordinary user writes to a file.
            rustix::fs::fchmod(file, rustix::fs::Mode::from_raw_mode(mode & 0o7777))?;
        }
        Ok(())
    }

    /// Hashes a chunk once more, because the store's checksums no longer protect it outside the store.
    pub(super) fn check_chunk(&self, inode: &Inode, chunk: &ChunkRef, bytes: &[u8]) -> Result<()> {
        if bytes.len() == chunk.len as usize && ChunkId::of(bytes) == chunk.id {
            return Ok(());
        }
        let reason = format!("chunk {}: the bytes in the store have another hash", chunk.id);
        Err(OverlayError::Unreadable { path: self.name_of(inode).into(), reason })
    }

    /// Makes a file a stub again after a failure (a full disk, a damaged chunk, an fsync); nothing is lost.
    pub(super) fn take_back(&self, inode: &Inode, file: &File, stub: Stub) {
        if let Err(e) = self.try_take_back(inode, file, stub) {
            // The record says HYDRATING, which the next mount takes back in the same way, or PLAIN for a whole file.
            tracing::error!(
                "{}: an unfinished write-back stays until the next mount: {e}",
                self.name_of(inode)
            );
        }
    }

    fn try_take_back(&self, inode: &Inode, file: &File, stub: Stub) -> Result<()> {
        let inside = self.not_outside(inode, file)?;
        // If the record says PLAIN by now, a crash after the next step would leave an empty plain file. No filesystem writes
        // the truncation to disk before an earlier record; an fsync would be no help, because one may have failed just now.
        self.write_record(inode, &stub.stamped(State::Hydrating))?;
        self.steps.step();
        inside.empty()?;
        self.steps.step();
        backing::set_times(&inode.path_fd()?, None, Some(SetTime::At(stub.mtime)))?;
        self.steps.step();
        self.write_record(inode, &stub.stamped(State::Settled))?;
        self.steps.step();
        Ok(())
    }
}

/// Returns a stub with the times that are shown for it. Times set since its record was made are only in the inode, and
/// writing the stub back changes them. No other thread may change the file meanwhile.
pub(super) fn as_shown(inode: &Inode, stub: Stub) -> Result<Stub> {
    let stat = rustix::fs::fstat(&inode.path_fd()?)?;
    let (mtime, ctime) = (backing::mtime(&stat), backing::ctime(&stat));
    Ok(Stub { mtime, ctime: Some(stub.shown_ctime(mtime, ctime)), ..stub })
}

/// Writes all bytes except blocks of zeros, which stay holes in a file that was empty. Skips the zeros of a block whose
/// other bytes come with the next chunks.
pub(super) fn write_sparse(file: &File, bytes: &[u8], start: u64) -> std::io::Result<()> {
    let first = (start.next_multiple_of(BLOCK as u64) - start).min(bytes.len() as u64) as usize;
    let (head, rest) = bytes.split_at(first);
    if head.iter().any(|&byte| byte != 0) {
        file.write_all_at(head, start)?;
    }
    let mut offset = start + first as u64;
    for block in rest.chunks(BLOCK) {
        if block.iter().any(|&byte| byte != 0) {
            file.write_all_at(block, offset)?;
        }
        offset += block.len() as u64;
    }
    Ok(())
}
