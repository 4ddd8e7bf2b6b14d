//! Conversion of a large file piece by piece, if its content does not fit on the disk together with the file.
//!
//! Each piece makes the file hybrid, or extends its base: the base is the beginning of the content up to a
//! cut, and the rest is local. The bytes of the base are punched out of the file, which makes space for the
//! next piece. When the rest fits, the file is committed like any hybrid file.
//!
//! Order: the piece's chunks and the recipe of everything up to its end durable in the store, and the file's
//! own bytes too -> a new list that says *unsettled* -> record HYBRID, durable -> bytes punched out, mtime
//! restored -> the list without *unsettled* -> the previous piece's list removed. Until the record is
//! durable, the file or the previous list is authoritative, and nothing was removed from it.

use super::commit::cut_until;
use super::extents::Extents;
use super::file::{Hybrid, Merged};
use super::header;
use crate::backing;
use crate::backing::stub::{State, Stub, Time};
use crate::catalog::Finder;
use crate::contents::Indexing;
use crate::contents::error::{OverlayError, Result};
use crate::id::RecipeId;
use crate::overlay::Overlay;
use crate::overlay::commit::open_leased;
use crate::overlay::inode::{Content, Inode, Phase, State as InodeState};
use crate::overlay::room::Claim;
use crate::recipe::Recipe;
use crate::store::StoreError;
use rustix::fs::{OFlags, Stat};
use std::fs::File;
use std::sync::{Arc, MutexGuard};

/// A file is converted in at most this many pieces: each one writes a recipe of everything before it.
const PIECES_MAX: u64 = 16;

/// A file that is being converted by a piece.
struct Piece {
    file: Arc<File>,
    before: Stat,
    /// Its extents.
    extents: Extents,
    base: Arc<Recipe>,
    /// 512-byte blocks to show for it.
    blocks: u64,
    /// Length of the piece.
    bytes: u64,
    /// The space that this may take in the store.
    _claim: Claim,
}

impl Overlay {
    /// Converts the next piece of a closed file that does not fit into the store as a whole. If that is not possible, the file
    /// waits for space. Either way it is queued again.
    pub(in crate::overlay) fn commit_beginning(
        &self,
        inode: &Arc<Inode>,
        mut state: MutexGuard<'_, InodeState>,
        finder: &mut Finder<'_>,
    ) -> Result<()> {
        state.dirty = true;
        let Some(piece) = self.take_piece(inode, &mut state)? else {
            self.wait_for_space(inode, &mut state);
            return Ok(());
        };
        drop(state);
        let file = piece.file.clone();
        let done = self.commit_piece(inode, piece, finder);
        if let Err(e) = &done {
            let mut state = inode.lock();
            if matches!(&state.phase, Phase::Converting(ours) if Arc::ptr_eq(ours, &file)) {
                state.interrupt_conversion();
            }
            if matches!(e, OverlayError::Store(StoreError::Full { .. })) {
                self.wait_for_space(inode, &mut state);
                return Ok(());
            }
        }
        done
    }

    /// Whether there is room for pieces of a file of `size` bytes.
    pub(in crate::overlay) fn fits_in_pieces(&self, size: u64) -> bool {
        let smallest = (size / PIECES_MAX).max(u64::from(self.contents.ingest.params().max));
        size >= self.hybrid.bytes_min && self.piece_room() >= smallest
    }

    fn take_piece(&self, inode: &Arc<Inode>, state: &mut InodeState) -> Result<Option<Piece>> {
        let stat = rustix::fs::fstat(&inode.path_fd()?)?;
        let size = stat.st_size as u64;
        let (extents, base, blocks) = match (state.content, &state.hybrid) {
            (Some(Content::Plain(_)), _) => {
                (Extents::beginning(0, size), Arc::new(Recipe::new(Vec::new())), stat.st_blocks as u64)
            }
            (Some(Content::Hybrid(stub)), Some(hybrid)) => {
                (hybrid.extents(), self.recipe_of(inode, &stub)?, hybrid.blocks(stub.blocks))
            }
            _ => return Ok(None),
        };
        let unsettled = state.hybrid.as_ref().is_some_and(|hybrid| hybrid.is_unsettled());
        if !self.fits_in_pieces(size) || !extents.is_beginning() || unsettled {
            return Ok(None);
        }
        let bytes = self.piece_room();
        let Ok(_claim) = self.claim(bytes) else { return Ok(None) };
        let (file, convert, _) = open_leased(inode, true)?;
        if !convert {
            // Open or mapped elsewhere, or not ours to lease.
            return Ok(None);
        }
        let file = Arc::new(file);
        let before = rustix::fs::fstat(&*file)?;
        state.phase = Phase::Converting(file.clone());
        Ok(Some(Piece { file, before, extents, base, blocks, bytes, _claim }))
    }

    fn commit_piece(&self, inode: &Arc<Inode>, piece: Piece, finder: &mut Finder<'_>) -> Result<()> {
        // Only this pin keeps the chunks until the record is written.
        let _pin = self.contents.store.pin();
        let indexing = self.indexing_of(inode, piece.before.st_nlink, finder)?;
        let (id, base_size) = self.store_piece(&piece, indexing)?;
        // Bytes that the list calls durable have to be durable.
        rustix::fs::fdatasync(&*piece.file)?;
        let mut state = inode.lock();
        if self.still_ours(inode, &mut state, &piece.file, &piece.before)?.is_none() {
            return Ok(());
        }
        let inside = match self.prove_inside(inode, &*piece.file, finder) {
            Ok(inside) => inside,
            Err(doubt) => {
                self.leave_plain(inode, &mut state, doubt);
                return Ok(());
            }
        };
        let mtime = backing::mtime(&piece.before);
        let header = header(inode, base_size, id)?;
        let dir = &self.hybrid.dir;
        let begun = Hybrid::begin(dir, header, &self.key, piece.extents.size(), self.steps.clone());
        let hybrid = begun.map_err(|e| OverlayError::io("make an extent list in", dir, e));
        let hybrid = hybrid.inspect_err(|_| self.remove_list(inode, header.number))?;
        self.steps.step();
        let local = (piece.extents.size() - base_size).div_ceil(512);
        let record = Stub {
            state: State::Hybrid { list: header.number },
            size: base_size,
            mtime,
            ctime: None,
            stamp_ms: Time::now().millis(),
            blocks: piece.blocks.saturating_sub(local),
            recipe: id,
        };
        let former = state.hybrid.take();
        // If a step fails from here on, recovery continues when the file is next met.
        (state.content, state.recipe, state.hot) = (None, None, None);
        let settled = match self.write_record(inode, &record) {
            Ok(()) => hybrid.settle(&inside, &piece.file, mtime),
            Err(e) => {
                self.remove_list(inode, header.number);
                Err(e.into())
            }
        };
        backing::unlease(&piece.file);
        state.phase = Phase::Idle;
        settled?;
        if let Some(former) = former {
            self.remove_list(inode, former.header().number);
        }
        (state.content, state.hybrid) = (Some(Content::Hybrid(record)), Some(Arc::new(hybrid)));
        (state.needed, state.attempts) = (None, 0);
        drop(piece);
        self.try_again(inode, &mut state);
        Ok(())
    }

    /// Stores the base with the next piece, durably; returns recipe and length.
    fn store_piece(&self, piece: &Piece, indexing: Indexing) -> Result<(RecipeId, u64)> {
        let Piece { base, extents, .. } = piece;
        let (start, until) = (base.size(), base.size() + piece.bytes);
        let content = Merged::new(&self.contents.store, base.clone(), piece.file.clone(), extents.clone());
        let ingest = &self.contents.ingest;
        let (mut round, mut slots) = (ingest.round(true), Vec::new());
        round.set_indexing(indexing);
        let stop = |at: u64| (at >= until).then_some(0);
        cut_until(start, extents.size(), ingest.params(), &content, stop, &mut |bytes| {
            slots.push(round.add_chunk(bytes));
        })?;
        let new = round.finish()?;
        let chunks = base.chunks().iter().copied().chain(slots.into_iter().map(|slot| new[slot]));
        let recipe = Recipe::new(chunks.collect());
        Ok((self.store_recipe(&recipe)?, recipe.size()))
    }

    /// Finishes a piece that a crash or an error interrupted after its record was written.
    pub(in crate::overlay) fn settle_again(&self, inode: &Inode, stub: &Stub, hybrid: &Hybrid) {
        let settle = || {
            let file = backing::open_io(&inode.path_fd()?, OFlags::RDWR)?;
            let inside = self.not_outside(inode, &file)?;
            hybrid.settle(&inside, &file, stub.mtime)
        };
        if hybrid.is_unsettled()
            && let Err(e) = settle()
        {
            tracing::error!(
                "{}: the part that was stored still takes space in the file too: {e}",
                self.name_of(inode)
            );
        }
    }
}
