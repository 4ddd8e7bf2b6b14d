//! THE write path: closed files become chunks, recipes and stubs.
//!
//! A round takes several files through these steps together, so that they share one fsync: chunk -> store.put
//! and sketch -> recipe -> store.sync -> stub -> catalog.
//!
//! A file is emptied only after its recipe is durable; [`Converter::make_stub`] has each step. A write lease
//! guarantees that no process has the file open or mapped while it is read, until it is empty. A program that
//! opens the file meanwhile breaks the lease and continues at once; the round then finds a changed phase and
//! leaves that file as it is.
//!
//! The database is not flushed here: the store finds its frames by reading on from the end of the index, and
//! a scan rebuilds everything else in the index.

use crate::backing;
use crate::backing::stub::{State, Stub, Time};
use crate::catalog::Finder;
use crate::contents::Indexing;
use crate::contents::error::{OverlayError, Result};
use crate::contents::ingest::Round;
use crate::contents::throttle::Priority;
use crate::convert::Converter;
use crate::convert::queue::Batch;
use crate::convert::room::NoRoom;
use crate::convert::round_size::{Outcome, RoundSize};
use crate::convert::taken::{Taken, TakenBytes, is_ours, saves_space};
use crate::id::RecipeId;
use crate::recipe::{ChunkRef, Recipe};
use crate::store::StoreError;
use crate::tree::growing::Growing;
use crate::tree::inode::{Content, Inode, Phase, State as InodeState};
use crate::tree::needed::{Needed, needed};
use crate::tree::observe::Found;
use crate::tree::proof::{Doubt, Inside};
use crate::tree::sparse::{self, FileBytes};
use rustix::fs::{OFlags, Stat};
use rustix::io::Errno;
use std::fs::File;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Instant;

const ROUND_FILES: usize = 512;
/// A file that a program keeps mapped or running is indexed as it is after this many attempts.
const ATTEMPTS_BEFORE_INDEXING: u8 = 6;

/// A file that was read, with its chunks in the round.
struct Read {
    taken: Taken,
    slots: Range<usize>,
}

impl Converter {
    /// Commits files from the queue until it is stopped.
    pub(crate) fn commit_queue(&self) {
        // Each file of a round holds a descriptor of its own, and there are two rounds at a time.
        let round_files = ROUND_FILES.min(self.tree.inodes.descriptors_max() / 4).max(1);
        let (mut priority, mut round_size) = (Priority::default(), RoundSize::new());
        while let Some(Batch { mut files, hurry }) = self.queue.take(round_files) {
            priority.set_low(self.throttle.is_background());
            let mut bytes = 0;
            let size = |inode: &Inode| {
                inode.path_fd().and_then(rustix::fs::fstat).map_or(0, |stat| stat.st_size as u64)
            };
            let round_bytes = self.throttle.round_bytes(round_size.bytes()).min(self.round_room());
            let fits = files.iter().take_while(|entry| {
                bytes += size(&entry.inode);
                bytes <= round_bytes
            });
            let count = fits.count().max(1);
            self.queue.put_back(files.drain(count..));
            let (files, generations): (Vec<_>, Vec<_>) =
                files.into_iter().map(|entry| (entry.inode, entry.generation)).unzip();
            // Weak references: a thread that releases an inode must see whether others hold it.
            let taken: Vec<_> = files.iter().map(Arc::downgrade).collect();
            // A panic in one round must stop neither the next round nor the callers that wait for this one.
            let round = std::panic::AssertUnwindSafe(|| self.commit_round(files, hurry));
            let start = Instant::now();
            match std::panic::catch_unwind(round) {
                Ok(outcome) => {
                    let took = start.elapsed();
                    tracing::debug!("a round of {count} files, {bytes} bytes, {took:?}: {outcome:?}");
                    round_size.ended(bytes, outcome, took);
                }
                Err(_) => {
                    tracing::error!(
                        "{count} files stay plain and will be tried again: their commit panicked"
                    );
                    taken.iter().filter_map(Weak::upgrade).for_each(|inode| self.after_panic(inode));
                }
            }
            self.queue.done(&generations);
        }
    }

    /// Puts a file of a round that panicked back to the end of the queue, at whatever step the round was.
    fn after_panic(&self, inode: Arc<Inode>) {
        let mut state = inode.lock();
        state.interrupt_conversion();
        state.dirty = true;
        // Counts as tried often, so that no caller waits for it: it may panic again.
        state.attempts = u8::MAX;
        self.try_again(&inode, &mut state);
        drop(state);
        self.tree.inodes.release(inode);
    }

    pub(crate) fn commit_round(&self, files: Vec<Arc<Inode>>, hurry: bool) -> Outcome {
        let (hybrid, files): (Vec<_>, Vec<_>) = files.into_iter().partition(|inode| self.is_hybrid(inode));
        let mut finder = self.catalog.finder(&self.tree.backing);
        hybrid.into_iter().for_each(|inode| self.commit_hybrid(inode, hurry, &mut finder));
        let taken = files.into_iter().filter_map(|inode| self.take_file(inode, hurry, &mut finder));
        let (convert, index): (Vec<_>, Vec<_>) = taken.partition(|taken| taken.convert);
        let leased = convert.len();
        // Only what stubs will need is stored.
        let lost = self.commit_taken(convert, true);
        self.commit_taken(index, false);
        Outcome { leased, lost }
    }

    /// Returns how many of the files other processes took away meanwhile.
    fn commit_taken(&self, taken: Vec<Taken>, keep: bool) -> usize {
        if taken.is_empty() {
            return 0;
        }
        // Only this pin keeps the chunks until the stubs are made.
        let _pin = self.contents.store.pin();
        let mut round = self.contents.ingest.round(keep);
        round.set_background(self.throttle.is_background());
        let mut read = Vec::with_capacity(taken.len());
        for mut taken in taken {
            // A round in the background takes long: a daemon that stops only waits for the file being read.
            if self.tree.ticks.stopped() {
                self.give_up(taken);
                continue;
            }
            if keep && !self.still_stored(&taken.prefix) {
                taken.prefix = Growing::default();
            }
            let is_whole = taken.indexing == Indexing::Full;
            let size = taken.before.st_size as u64;
            let view = is_whole.then(|| self.indexes.view_wanted(&taken.inode, &taken.file, size));
            taken.view = view.flatten();
            round.set_indexing(taken.indexing);
            match self.read_file(&mut round, &mut taken) {
                Ok(slots) => read.push(Read { taken, slots }),
                Err(e) => {
                    tracing::error!("{}: read: {e}; it stays plain", self.tree.name_of(&taken.inode));
                    self.give_up(taken);
                }
            }
        }
        let stored = round.finish().and_then(|chunks| self.store_recipes(&read, &chunks));
        let recipes = match stored {
            Ok(recipes) => recipes,
            Err(e) => {
                let full = matches!(e, OverlayError::Store(StoreError::Full { .. }));
                let why = if full { self.why_full() } else { String::new() };
                tracing::error!("{} files stay plain and will be tried again: {e}{why}", read.len());
                for Read { taken, .. } in read {
                    if full { self.give_up_for_now(taken) } else { self.give_up(taken) }
                }
                return 0;
            }
        };
        let mut finder = self.catalog.finder(&self.tree.backing);
        let finished = read
            .into_iter()
            .zip(recipes)
            .map(|(read, (id, recipe))| self.finish_file(read.taken, id, &recipe, &mut finder));
        finished.filter(|finished| !finished).count()
    }

    /// Whether the chunks that were taken from a file while it grew have not been collected since.
    fn still_stored(&self, prefix: &Growing) -> bool {
        prefix.chunks.iter().all(|chunk| self.contents.store.is_sound(&chunk.id).unwrap_or(false))
    }

    /// Recipes of the files read, stored and durable with all their chunks.
    fn store_recipes(&self, read: &[Read], chunks: &[ChunkRef]) -> Result<Vec<(RecipeId, Recipe)>> {
        let mut writer = self.contents.store.writer();
        let mut recipes = Vec::with_capacity(read.len());
        for Read { taken, slots } in read {
            let all = taken.prefix.chunks.iter().chain(&chunks[slots.clone()]).copied().collect();
            let recipe = Recipe::new(all);
            let id = if taken.convert { writer.put_recipe(&recipe)? } else { recipe.id() };
            recipes.push((id, recipe));
        }
        writer.flush()?;
        self.contents.store.sync()?;
        Ok(recipes)
    }

    /// Takes a queued file into a round, if it is due now.
    fn take_file(&self, inode: Arc<Inode>, hurry: bool, finder: &mut Finder<'_>) -> Option<Taken> {
        match self.try_take(&inode, hurry, finder) {
            Ok(Some(taken)) => return Some(taken),
            Ok(None) | Err(OverlayError::Os(Errno::STALE)) => {}
            Err(e) => {
                let mut state = inode.lock();
                if state.attempts == 0 {
                    tracing::warn!(
                        "{}: not committed, and will be tried again: {e}",
                        self.tree.name_of(&inode)
                    );
                }
                state.dirty = true;
                self.try_again(&inode, &mut state);
            }
        }
        self.tree.inodes.release(inode);
        None
    }

    fn try_take(&self, inode: &Arc<Inode>, hurry: bool, finder: &mut Finder<'_>) -> Result<Option<Taken>> {
        inode.lock().queued = false;
        let mut state = self.tree.lock_loaded(inode)?;
        if state.opens > 0 || !matches!(state.phase, Phase::Idle) {
            return Ok(None);
        }
        let Some(Content::Plain(_)) = state.content else {
            state.dirty = false;
            return Ok(None);
        };
        let stat = rustix::fs::fstat(&inode.path_fd()?)?;
        if stat.st_nlink == 0 || stat.st_size == 0 {
            state.hot = None;
        }
        if stat.st_nlink == 0 {
            return Ok(None);
        }
        if stat.st_size == 0 {
            state.dirty = false;
            self.catalog.remove_file(inode.file_id())?;
            if let Err(e) = self.tree.tell_emptied(inode, &stat, finder) {
                tracing::warn!(
                    "{}: that it was emptied was not kept as a version: {e}",
                    self.tree.name_of(inode)
                );
            }
            return Ok(None);
        }
        if sparse::is_mostly_holes(&stat, self.contents.ingest.zeros()) {
            (state.dirty, state.hot) = (false, None);
            self.catalog.remove_file(inode.file_id())?;
            return Ok(None);
        }
        // Before `hurry`: the content of a hot file is in the store, so no caller waits for it.
        if self.stays_hot(inode, &mut state) {
            return Ok(None);
        }
        let policy = self.tree.policy_of(inode, stat.st_nlink, finder)?;
        if !hurry && self.rests(inode, &mut state, policy) {
            return Ok(None);
        }
        if state.stepping {
            // The step ends at once, now that no program writes.
            state.attempts = 0;
            self.try_again(inode, &mut state);
            return Ok(None);
        }
        let bytes = stat.st_size as u64;
        if policy.is_some_and(|policy| policy.withholds(bytes)) {
            self.withheld.fetch_add(1, Ordering::Relaxed);
        }
        // A change after this time would show in the ctime.
        let mut no_xattrs = backing::ctime(&stat).millis() + backing::CTIME_TICK_MS < Time::now().millis();
        let wanted = policy.is_some_and(|policy| policy.converts(bytes))
            && self.can_be_emptied(&stat)
            && saves_space(inode, &stat, &mut no_xattrs);
        let mut path = None;
        // Proved here too: bytes from outside must not be read into the store.
        let wanted = wanted
            && match self.tree.prove_inside_at(inode, &*inode.path_fd()?, &stat, None, finder) {
                Ok(inside) => {
                    path = inside.into_path();
                    true
                }
                Err(Doubt::Mount) => false,
                Err(doubt) => {
                    self.leave_plain(inode, &mut state, doubt);
                    return Ok(None);
                }
            };
        let plain_until = wanted.then(|| self.plain_until(inode, state.closed, bytes)).flatten();
        if let Some(until) = plain_until.filter(|_| !hurry || state.committed) {
            self.stay_plain(inode, &mut state, until);
            return Ok(None);
        }
        let wanted = wanted && plain_until.is_none();
        if !wanted {
            state.hot = None;
        }
        let known = state.needed.take().filter(|known| known.is_of(&stat));
        let claim = wanted.then(|| self.claim(needed(known.as_deref(), &stat)));
        let waits = match &claim {
            Some(Err(NoRoom::Full)) if known.is_some() => {
                state.needed = known;
                self.commit_beginning(inode, state, finder)?;
                return Ok(None);
            }
            Some(Err(NoRoom::Full)) => true,
            Some(Err(NoRoom::Claimed)) => {
                state.needed = known;
                self.try_again(inode, &mut state);
                return Ok(None);
            }
            Some(Ok(_)) | None => false,
        };
        let (file, convert, retry) = open_leased(inode, wanted && !waits)?;
        if retry && state.attempts != ATTEMPTS_BEFORE_INDEXING {
            self.try_again(inode, &mut state);
            return Ok(None);
        }
        let file = Arc::new(file);
        let before = rustix::fs::fstat(&*file)?;
        if convert {
            state.phase = Phase::Converting(file.clone());
            state.passed = false;
        }
        // Still to become a stub if it is only indexed now, for instance because another process has it open.
        state.dirty = retry || waits || plain_until.is_some();
        let mut prefix = state.growing.take().unwrap_or_default();
        drop(state);
        if !prefix.still_true(&file) {
            prefix = Growing::default();
        }
        let _claim = claim.and_then(|claim| claim.ok());
        Ok(Some(Taken {
            inode: inode.clone(),
            file,
            before,
            path,
            no_xattrs: wanted && no_xattrs && backing::ctime(&stat) == backing::ctime(&before),
            convert,
            retry,
            _claim,
            waits,
            plain_until,
            prefix,
            indexing: policy.unwrap_or(self.tree.policies().fallback()).similarity,
            view: None,
        }))
    }

    /// Emptying a file takes an ordinary user's setuid and setgid bits away.
    fn can_be_emptied(&self, stat: &Stat) -> bool {
        self.tree.backing.privileged() || stat.st_mode & (libc::S_ISUID | libc::S_ISGID) == 0
    }

    /// Leaves a file as it is, to be tried again later.
    fn give_up(&self, taken: Taken) {
        self.leave(taken, Converter::try_again);
    }

    /// Leaves a file as it is, to be tried again when there is space.
    fn give_up_for_now(&self, taken: Taken) {
        self.leave(taken, Converter::wait_for_space);
    }

    fn leave(&self, taken: Taken, then: fn(&Converter, &Arc<Inode>, &mut InodeState)) {
        let mut state = taken.inode.lock();
        if is_ours(&state, &taken) {
            state.interrupt_conversion();
        }
        state.dirty = true;
        then(self, &taken.inode, &mut state);
        drop(state);
        drop(taken.file);
        self.tree.inodes.release(taken.inode);
    }

    /// Returns false if another process took the file meanwhile.
    fn finish_file(&self, taken: Taken, id: RecipeId, recipe: &Recipe, finder: &mut Finder<'_>) -> bool {
        let finished = self.try_finish(&taken, id, recipe, finder).unwrap_or_else(|e| {
            tracing::error!("{}: {e}", self.tree.name_of(&taken.inode));
            let mut state = taken.inode.lock();
            if taken.convert && matches!(state.content, Some(Content::Plain(_))) {
                state.dirty = true;
                self.try_again(&taken.inode, &mut state);
            }
            true
        });
        // The descriptor goes first: it would keep the next lease from being granted.
        drop(taken.file);
        self.tree.inodes.release(taken.inode);
        finished
    }

    fn try_finish(
        &self,
        taken: &Taken,
        id: RecipeId,
        recipe: &Recipe,
        finder: &mut Finder<'_>,
    ) -> Result<bool> {
        let Taken { inode, file, before, .. } = taken;
        let only_indexed = taken.waits || taken.plain_until.is_some();
        let lacks = only_indexed.then(|| self.bytes_not_stored(recipe)).transpose()?;
        let known;
        // Path at which it became a stub.
        let mut path = None;
        {
            let mut state = inode.lock();
            if taken.convert && !is_ours(&state, taken) {
                self.tree.enqueue_if_due(inode, &mut state);
                return Ok(false);
            }
            let now = rustix::fs::fstat(&**file)?;
            let same = now.st_size == before.st_size
                && backing::mtime(&now) == backing::mtime(before)
                && backing::ctime(&now) == backing::ctime(before)
                && recipe.size() == now.st_size as u64;
            if !same || state.opens > 0 || (taken.convert && !backing::holds_lease(file)) {
                if is_ours(&state, taken) {
                    state.interrupt_conversion();
                }
                state.dirty = true;
                self.tree.enqueue_if_due(inode, &mut state);
                return Ok(false);
            }
            known = state.hot_record().is_some_and(|record| {
                record.recipe == id && record.is_of(backing::mtime(&now), now.st_size as u64)
            });
            if taken.convert {
                let inside =
                    match self.tree.prove_inside_at(inode, &**file, &now, taken.path.as_deref(), finder) {
                        Ok(inside) => inside,
                        Err(doubt) => {
                            self.leave_plain(inode, &mut state, doubt);
                            return Ok(true);
                        }
                    };
                let made = self.make_stub(&mut state, &inside, &now, id);
                backing::unlease(file);
                state.phase = Phase::Idle;
                self.converted.fetch_add(u64::from(made?), Ordering::Relaxed);
                path = inside.into_path();
                state.attempts = 0;
                state.hot = None;
            } else if let (Some(until), Some(bytes)) = (taken.plain_until, lacks) {
                state.attempts = 0;
                self.stay_plain_if_all_new(inode, &mut state, until, (bytes, recipe.size()));
            } else if let Some(bytes) = lacks {
                state.needed = Some(Box::new(Needed::new(&now, bytes)));
                state.attempts = 0;
                // Chunks that the store has need no space.
                let fits = self.claim(bytes).is_ok() || self.fits_in_pieces(now.st_size as u64);
                let again = if fits { Converter::try_again } else { Converter::wait_for_space };
                again(self, inode, &mut state);
            } else if taken.retry {
                self.try_again(inode, &mut state);
            }
            state.committed = true;
        }
        let path = match path {
            Some(path) => self.tree.backing.path_still(path, inode.identity, &**file)?,
            None => self.tree.backing.relative_path(&**file)?,
        };
        let found = Found { path, no_xattrs: taken.no_xattrs };
        // A file that was plain only because it was hot has no new version.
        if taken.convert && !known {
            self.tree.tell_found(inode, (id, recipe.size()), before, Some(&found), false, finder);
            self.note_stored(inode, id, recipe);
        }
        self.tree.record_converted(inode, id, before, found.path)?;
        let stored = taken.convert.then_some(recipe);
        self.indexes.index_content(id, recipe, taken.indexing, || {
            Ok(self.indexes.content_of(stored, file, before))
        })?;
        if let Some(view) = taken.view {
            self.indexes.index_view(inode, view, id, &*self.indexes.content_of(stored, file, before));
        }
        self.indexes.keep_committed(inode, id, stored, file, before);
        Ok(true)
    }

    fn read_file(&self, round: &mut Round, taken: &mut Taken) -> std::io::Result<Range<usize>> {
        let bytes = FileBytes::new(&taken.file, &taken.before, taken.prefix.bytes);
        round.add_from(true, &mut TakenBytes { converter: self, taken, bytes })
    }

    /// Turns a plain file into a stub of a durable recipe; says whether its record could be written at all. The
    /// caller holds the inode's mutex and the lease; `inside` is the leased descriptor.
    fn make_stub(
        &self,
        state: &mut InodeState,
        inside: &Inside<'_>,
        stat: &Stat,
        recipe: RecipeId,
    ) -> Result<bool> {
        let (mtime, ctime) = (backing::mtime(stat), backing::ctime(stat));
        let shown = match state.content {
            Some(Content::Plain(Some(record))) => record.shown_ctime(mtime, ctime),
            _ => ctime,
        };
        let known = state.hot_record().filter(|record| record.is_of(mtime, stat.st_size as u64));
        let stub = Stub {
            state: State::Unsettled,
            size: stat.st_size as u64,
            mtime,
            ctime: Some(shown),
            stamp_ms: Time::now().millis(),
            blocks: known.map_or(stat.st_blocks as u64, |record| record.blocks),
            recipe,
        };
        match self.tree.write_record_through(inside.fd(), &stub) {
            Ok(()) => {}
            // No room or no support for the xattr: the file stays as it is.
            Err(
                Errno::NOSPC | Errno::DQUOT | Errno::NOTSUP | Errno::TOOBIG | Errno::ACCESS | Errno::PERM,
            ) => {
                return Ok(false);
            }
            Err(e) => return Err(e.into()),
        }
        // From here the recipe is the content. If a step fails, recovery continues when the file is next met.
        state.content = None;
        self.tree.steps.step();
        inside.empty()?;
        self.tree.steps.step();
        backing::set_mtime(inside.fd(), mtime)?;
        self.tree.steps.step();
        let settled = stub.stamped(State::Settled);
        self.tree.write_record_through(inside.fd(), &settled)?;
        state.content = Some(Content::Stub(settled));
        self.tree.steps.step();
        Ok(true)
    }
}

/// Opens a file for committing: leased and to be converted, or only to be indexed, and then whether it is
/// worth trying again.
pub(crate) fn open_leased(inode: &Inode, convert: bool) -> Result<(File, bool, bool)> {
    let read_only = || backing::open_quietly(&inode.path_fd()?, OFlags::RDONLY).map_err(OverlayError::from);
    if !convert {
        return Ok((read_only()?, false, false));
    }
    let file = match backing::open_quietly(&inode.path_fd()?, OFlags::RDWR) {
        Ok(file) => file,
        Err(Errno::TXTBSY) => return Ok((read_only()?, false, true)),
        Err(Errno::ACCESS | Errno::PERM | Errno::ROFS) => return Ok((read_only()?, false, false)),
        Err(e) => return Err(e.into()),
    };
    match backing::lease(&file) {
        Ok(()) => Ok((file, true, false)),
        // Open or mapped elsewhere.
        Err(Errno::AGAIN) => Ok((file, false, true)),
        // Not ours to lease, or a filesystem without leases.
        Err(_) => Ok((file, false, false)),
    }
}
