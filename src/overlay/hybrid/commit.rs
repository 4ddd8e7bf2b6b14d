//! Commit of a hybrid file: chunks only the changes, and takes over the rest of the base recipe unread.
//!
//! A cut depends only on the bytes since the last cut. So chunking starts at the cut before a change, and
//! stops where a cut behind the change coincides with one of the base: from there both continue alike.
//!
//! Order: chunks and recipe durable in the store -> record HYDRATING with the new recipe (from here on the
//! content, whatever the file holds) -> `ftruncate(0)` -> times -> record *settled* -> fsync -> list removed.

use super::extents::Extents;
use super::file::{Hybrid, Merged};
use crate::backing;
use crate::backing::stub::{State, Stub, Time};
use crate::backing::types::SetTime;
use crate::catalog::Finder;
use crate::chunk::ChunkParams;
use crate::contents::Indexing;
use crate::contents::error::{OverlayError, Result};
use crate::contents::ingest::Round;
use crate::id::RecipeId;
use crate::overlay::Overlay;
use crate::overlay::commit::open_leased;
use crate::overlay::inode::{Content, Inode, Phase, State as InodeState};
use crate::overlay::proof::Inside;
use crate::overlay::room::{Claim, NoRoom, needed};
use crate::recipe::{ChunkRef, Recipe};
use rustix::fs::Stat;
use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A hybrid file taken out of the queue.
struct Taken {
    file: Arc<File>,
    before: Stat,
    stub: Stub,
    hybrid: Arc<Hybrid>,
    /// How much of it the similarity index gets.
    indexing: Indexing,
    /// The space that its changes may take in the store.
    _claim: Claim,
}

/// Source of a chunk of the new recipe.
enum Source {
    /// This chunk of the base.
    Base(ChunkRef),
    /// The chunk in this place of the round.
    New(usize),
}

impl Overlay {
    /// Whether a file of the queue is hybrid, and so is not committed as others are.
    pub(in crate::overlay) fn is_hybrid(&self, inode: &Inode) -> bool {
        matches!(self.lock_loaded(inode).map(|state| state.content), Ok(Some(Content::Hybrid(_))))
    }

    /// Makes a hybrid file of the queue a stub, if it is closed and has rested.
    pub(in crate::overlay) fn commit_hybrid(&self, inode: Arc<Inode>, hurry: bool, finder: &mut Finder<'_>) {
        inode.lock().queued = false;
        if let Err(e) = self.try_commit_hybrid(&inode, hurry, finder) {
            let full = matches!(e, OverlayError::Store(crate::store::StoreError::Full { .. }));
            self.no_room.fetch_or(full, Ordering::Relaxed);
            let mut state = inode.lock();
            if state.attempts == 0 {
                let why = if full { self.why_full() } else { String::new() };
                tracing::warn!("{}: stays hybrid and will be tried again: {e}{why}", self.name_of(&inode));
            }
            state.interrupt_conversion();
            state.dirty = true;
            self.try_again(&inode, &mut state);
        }
        self.inodes.release(inode);
    }

    fn try_commit_hybrid(&self, inode: &Arc<Inode>, hurry: bool, finder: &mut Finder<'_>) -> Result<()> {
        let Some(taken) = self.take_hybrid(inode, hurry, finder)? else { return Ok(()) };
        // Only this pin keeps the chunks until the stub is made.
        let _pin = self.contents.store.pin();
        let (id, recipe) = self.rechunk(inode, &taken)?;
        self.finish_hybrid(inode, taken, (id, &recipe), finder)
    }

    fn take_hybrid(&self, inode: &Arc<Inode>, hurry: bool, finder: &mut Finder<'_>) -> Result<Option<Taken>> {
        let mut state = self.lock_loaded(inode)?;
        if state.opens > 0 || !matches!(state.phase, Phase::Idle) {
            return Ok(None);
        }
        let (Some(Content::Hybrid(stub)), Some(hybrid)) = (state.content, state.hybrid.clone()) else {
            return Ok(None);
        };
        hybrid.rest();
        let stat = rustix::fs::fstat(&inode.path_fd()?)?;
        if stat.st_nlink == 0 {
            self.forget_hybrid(inode, &mut state);
            return Ok(None);
        }
        let policy = self.policy_of(inode, stat.st_nlink, finder)?;
        if !hurry && self.rests(inode, &mut state, policy) {
            return Ok(None);
        }
        if let Some(until) = self.plain_until(inode, state.closed, hybrid.size()) {
            self.stay_plain(inode, &mut state, until);
            return Ok(None);
        }
        if policy.is_some_and(|policy| policy.withholds(hybrid.size())) {
            // The file is whole as it is. The next mount makes it a stub.
            self.withheld.fetch_add(1, Ordering::Relaxed);
            state.dirty = false;
            return Ok(None);
        }
        let converts = policy.is_some_and(|policy| policy.converts(hybrid.size()));
        let fits = Stub::fits(hybrid.size(), backing::mtime(&stat), backing::ctime(&stat));
        if !converts || !fits || hybrid.size() == 0 || loses_capability(inode) {
            drop(self.make_plain(inode, state)?);
            self.enqueue_if_due(inode, &mut inode.lock());
            return Ok(None);
        }
        let _claim = match self.claim(needed(None, &stat)) {
            Ok(claim) => claim,
            Err(NoRoom::Full) => {
                self.commit_beginning(inode, state, finder)?;
                return Ok(None);
            }
            Err(NoRoom::Claimed) => {
                state.dirty = true;
                self.try_again(inode, &mut state);
                return Ok(None);
            }
        };
        let (file, convert, _) = open_leased(inode, true)?;
        if !convert {
            // Open or mapped elsewhere, or not ours to lease: it stays as it is, and whole.
            state.dirty = true;
            self.try_again(inode, &mut state);
            return Ok(None);
        }
        let file = Arc::new(file);
        let before = rustix::fs::fstat(&*file)?;
        state.phase = Phase::Converting(file.clone());
        state.dirty = false;
        let indexing = policy.unwrap_or(self.policies().fallback()).similarity;
        Ok(Some(Taken { file, before, stub, hybrid, indexing, _claim }))
    }

    /// The new recipe, stored and durable with all its chunks.
    fn rechunk(&self, inode: &Inode, taken: &Taken) -> Result<(RecipeId, Recipe)> {
        let base = self.recipe_of(inode, &taken.stub)?;
        let extents = taken.hybrid.extents();
        let store = &self.contents.store;
        let content = Merged::new(store, base.clone(), taken.file.clone(), extents.clone());
        let mut round = self.contents.ingest.round(true);
        round.set_indexing(taken.indexing);
        let sources = sources(&base, &extents, self.contents.ingest.params(), &content, &mut round)?;
        let new = round.finish()?;
        let chunks = sources.into_iter().map(|source| match source {
            Source::Base(chunk) => chunk,
            Source::New(slot) => new[slot],
        });
        let recipe = Recipe::new(chunks.collect());
        if recipe.size() != extents.size() {
            return Err(self.bad_stub(inode, "its chunks do not make its length"));
        }
        Ok((self.store_recipe(&recipe)?, recipe))
    }

    /// Stores a recipe; it is durable with all its chunks.
    pub(super) fn store_recipe(&self, recipe: &Recipe) -> Result<RecipeId> {
        let mut writer = self.contents.store.writer();
        let id = writer.put_recipe(recipe)?;
        writer.flush()?;
        self.steps.step();
        self.contents.store.sync()?;
        self.steps.step();
        Ok(id)
    }

    fn finish_hybrid(
        &self,
        inode: &Arc<Inode>,
        taken: Taken,
        (id, recipe): (RecipeId, &Recipe),
        finder: &mut Finder<'_>,
    ) -> Result<()> {
        let Taken { file, before, stub, hybrid, indexing, .. } = taken;
        {
            let mut state = inode.lock();
            let Some(now) = self.still_ours(inode, &mut state, &file, &before)? else { return Ok(()) };
            let inside = match self.prove_inside(inode, &*file, finder) {
                Ok(inside) => inside,
                Err(doubt) => {
                    self.leave_plain(inode, &mut state, doubt);
                    return Ok(());
                }
            };
            let made = self.settle_hybrid(inode, &mut state, &file, &inside, &now, &stub, &hybrid, id);
            backing::unlease(&file);
            state.phase = Phase::Idle;
            made?;
            state.attempts = 0;
            self.converted.fetch_add(1, Ordering::Relaxed);
        }
        self.tell_committed(inode, (id, recipe.size()), &before, false, finder);
        self.note_stored(inode, id, recipe);
        let mut stat = before;
        stat.st_size = recipe.size() as i64;
        self.record(inode, id, &stat)?;
        let open = || Ok(self.content_of(Some(recipe), &file, &before));
        self.index_content(id, recipe, indexing, open)?;
        if indexing == Indexing::Full
            && let Err(e) = self.catch_up_view(inode, id, true, open)
        {
            tracing::warn!("{}: not looked at: {e}", self.name_of(inode));
        }
        self.keep_committed(inode, id, Some(recipe), &file, &before);
        Ok(())
    }

    /// Returns the attributes of a file that was taken, if no other thread has taken or changed it since; else queues it again.
    pub(super) fn still_ours(
        &self,
        inode: &Arc<Inode>,
        state: &mut InodeState,
        file: &Arc<File>,
        before: &Stat,
    ) -> Result<Option<Stat>> {
        if !matches!(&state.phase, Phase::Converting(ours) if Arc::ptr_eq(ours, file)) {
            self.enqueue_if_due(inode, state);
            return Ok(None);
        }
        let now = rustix::fs::fstat(&**file)?;
        let same = now.st_size == before.st_size
            && backing::mtime(&now) == backing::mtime(before)
            && backing::ctime(&now) == backing::ctime(before);
        if !same || state.opens > 0 || !backing::holds_lease(file) {
            state.interrupt_conversion();
            self.enqueue_if_due(inode, state);
            return Ok(None);
        }
        Ok(Some(now))
    }

    #[expect(clippy::too_many_arguments, reason = "all of what the last step of a commit needs")]
    fn settle_hybrid(
        &self,
        inode: &Inode,
        state: &mut InodeState,
        file: &File,
        inside: &Inside<'_>,
        stat: &Stat,
        base: &Stub,
        hybrid: &Hybrid,
        recipe: RecipeId,
    ) -> Result<()> {
        let (mtime, ctime) = (backing::mtime(stat), backing::ctime(stat));
        let stub = Stub {
            state: State::Hydrating,
            size: hybrid.size(),
            mtime,
            ctime: Some(ctime),
            stamp_ms: Time::now().millis(),
            blocks: hybrid.blocks(base.blocks),
            recipe,
        };
        self.write_record(inode, &stub)?;
        // From here the new recipe is the content. If a step fails, recovery continues when the file is next met.
        (state.content, state.hybrid, state.recipe) = (None, None, None);
        self.steps.step();
        inside.empty()?;
        self.steps.step();
        backing::set_times(file, None, Some(SetTime::At(mtime)))?;
        self.steps.step();
        let settled = stub.stamped(State::Settled);
        self.write_record(inode, &settled)?;
        state.content = Some(Content::Stub(settled));
        self.steps.step();
        // The list may be on another filesystem, and its removal must not be durable before this is.
        file.sync_all().map_err(|e| OverlayError::io("fsync", self.name_of(inode), e))?;
        self.remove_list(inode, hybrid.header().number);
        Ok(())
    }
}

/// Returns whether the file has a capability: emptying the file would remove it.
fn loses_capability(inode: &Inode) -> bool {
    let names = inode.path_fd().and_then(backing::list_xattrs);
    names.map_or(true, |names| names.split(|&byte| byte == 0).any(|name| name == b"security.capability"))
}

/// Returns the chunks of the content, in order: those of the base wherever cutting the whole content would find the same ones.
fn sources(
    base: &Recipe,
    extents: &Extents,
    params: ChunkParams,
    content: &Merged,
    round: &mut Round<'_>,
) -> Result<Vec<Source>> {
    let (size, base_end) = (extents.size(), extents.base_end());
    let mut changed = extents.changed();
    if base_end < base.size() && size == base_end {
        // A file that was cut off: its last chunk ends elsewhere.
        changed.push(size..size);
    }
    let mut sources = Vec::new();
    // The first chunk of the base that is not decided yet, and its start.
    let mut next = 0;
    let mut changes = changed.into_iter().peekable();
    while let Some(change) = changes.next() {
        // A chunk that the end of the base cut off would continue; so would one whose end was cut off since.
        let touched = base.chunk_at(change.start.min(base_end.saturating_sub(1))).unwrap_or(0);
        if touched < next {
            continue;
        }
        sources.extend(base.chunks()[next..touched].iter().map(|chunk| Source::Base(*chunk)));
        let mut until = change.end;
        let stop = |at: u64| {
            // Changes that begin before this cut are already in the bytes cut.
            while let Some(next) = changes.next_if(|next| next.start < at) {
                until = until.max(next.end);
            }
            let index = (at >= until && at < base_end).then(|| base.chunk_at(at)).flatten();
            index.filter(|&index| base.start_of(index) == at)
        };
        let start = base.start_of(touched);
        let resumed = cut_until(start, size, params, content, stop, &mut |bytes| {
            sources.push(Source::New(round.add_chunk(bytes)));
        })?;
        match resumed {
            Some(index) => next = index,
            None => return Ok(sources),
        }
    }
    sources.extend(base.chunks()[next..].iter().map(|chunk| Source::Base(*chunk)));
    Ok(sources)
}

/// Cuts the content from `start` on and passes each chunk to `take`, until `stop` returns the chunk of the base that begins
/// at a cut. Returns `None` at the end of the content.
pub(super) fn cut_until(
    start: u64,
    size: u64,
    params: ChunkParams,
    content: &Merged,
    mut stop: impl FnMut(u64) -> Option<usize>,
    take: &mut dyn FnMut(&[u8]),
) -> Result<Option<usize>> {
    // At first as little as possible: mostly only a chunk or two changed.
    let mut window = vec![0; 2 * params.max as usize];
    let (mut filled, mut cut) = (0, start);
    loop {
        let at = cut + filled as u64;
        let len = content.read(at, &mut window[filled..])?;
        filled += len;
        let last = at + len as u64 >= size;
        if len == 0 && !last {
            return Err(rustix::io::Errno::IO.into());
        }
        let mut done = 0;
        for len in params.cut(&window[..filled], last) {
            take(&window[done..done + len as usize]);
            done += len as usize;
            cut += u64::from(len);
            if let Some(index) = stop(cut) {
                return Ok(Some(index));
            }
        }
        if last {
            return Ok(None);
        }
        window.copy_within(done..filled, 0);
        filled -= done;
        let most = (8 * params.max as usize).max(1 << 20);
        window.resize((2 * window.len()).min(most), 0);
    }
}
