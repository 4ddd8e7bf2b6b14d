//! Garbage collection of an overlay: keeps everything that its files need, and frees the rest of the store.

use super::Overlay;
use super::backing;
use super::error::{OverlayError, Result};
use super::inode::Content;
use super::observe::{KeptForHistory, Observer};
use super::room::snapshots_fill_disk;
use super::stub::Time;
use crate::id::{ChunkId, DocumentId, RecipeId};
use crate::store::{GcDone, GcPlan};
use std::collections::HashSet;
use std::path::Path;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

/// How far a collection has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GcStep {
    /// Commits that began before it are being waited for.
    Waiting,
    /// So many stubs have been met.
    Marking(u64),
    /// What versions and snapshots need is marked.
    MarkingHistory,
    /// Bytes of packs looked at, and in all.
    Planning(u64, u64),
    /// Bytes of packs rewritten, and to be rewritten.
    Rewriting(u64, u64),
}

/// What a collection found, and did if it was to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GcOutcome {
    /// Stubs met; some more than once if their directories changed.
    pub stubs: u64,
    /// Files whose record cannot be believed: what they need is kept as far as it can be told.
    pub unknown: u64,
    /// What is kept for versions and snapshots alone.
    pub history: KeptForHistory,
    /// What there is to do.
    pub plan: GcPlan,
    /// What was done; none if only asked for the plan.
    pub done: Option<GcDone>,
}

/// What the removal of something would give back. Bytes on disk if not said otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WouldFree {
    /// Files that it is about.
    pub files: u64,
    /// Bytes in them.
    pub bytes: u64,
    /// What a collection would give back then: nothing else, no version and no snapshot needs it.
    pub freed_bytes: u64,
    /// What a collection would give back once versions and snapshots do not need it any more either.
    pub after_history_bytes: u64,
    /// What plain files among them take in the directory: free at once.
    pub plain_bytes: u64,
    /// Files of which it is not known what they need.
    pub unknown: u64,
}

impl Overlay {
    /// Gives back what no file needs: marks from the stubs of the tree, then carries out the store's plan unless
    /// `dry_run`. `None` if `progress` said no on the way: whatever was done until then is whole.
    ///
    /// The mount is not held up: whoever finds a chunk stored meanwhile keeps it by that. O(files + frames) time;
    /// memory: the names of all directories, and what [`crate::store::Collection`] takes. The catalog has to be complete.
    pub fn gc(&self, dry_run: bool, progress: &mut dyn FnMut(GcStep) -> bool) -> Result<Option<GcOutcome>> {
        self.gc_with(dry_run, true, progress)
    }

    /// As [`Overlay::gc`], also while the catalog is not `complete`: then it fails if the tree does not rest, or has files
    /// whose record cannot be believed.
    pub fn gc_with(
        &self,
        dry_run: bool,
        complete: bool,
        progress: &mut dyn FnMut(GcStep) -> bool,
    ) -> Result<Option<GcOutcome>> {
        if self.read_only {
            return Err(OverlayError::ReadOnly);
        }
        let Some(collection) = self.contents.store.collect(&mut |_, _| progress(GcStep::Waiting))? else {
            return Ok(None);
        };
        // Those made from here on are of files that the mark may not meet.
        let lists = self.lists()?;
        let (short, mut live_bytes) = (self.is_short(), 0);
        let mut keep = |recipe: &RecipeId| match short {
            true => collection.keep_more(recipe).map(|bytes| live_bytes += bytes),
            false => collection.keep(recipe),
        };
        let marked = self
            .mark(&mut keep, &mut |stubs| !stubs.is_multiple_of(256) || progress(GcStep::Marking(stubs)))?;
        let Some(marked) = marked else { return Ok(None) };
        if !complete && (!marked.all || marked.unknown > 0) {
            return Err(OverlayError::Unmarked);
        }
        let history_room = if short { self.history_room(live_bytes) } else { u64::MAX };
        let history = match self.observer() {
            Some(observer) => {
                let keep_going = &mut || progress(GcStep::MarkingHistory);
                observer.mark(&collection, dry_run, None, history_room, keep_going)?
            }
            None => Some(KeptForHistory::default()),
        };
        let Some(history) = history else { return Ok(None) };
        let plan = collection.plan(&mut |done, all| progress(GcStep::Planning(done, all)))?;
        let Some(plan) = plan else { return Ok(None) };
        let mut outcome =
            GcOutcome { stubs: marked.stubs, unknown: marked.unknown, history, plan, done: None };
        if dry_run {
            return Ok(Some(outcome));
        }
        // A file that is gone must not be back after a power cut: the store may be on another filesystem.
        let root = backing::open_dir(self.backing.root())?;
        rustix::fs::syncfs(&root).map_err(|e| OverlayError::io("sync", "the backing filesystem", e))?;
        if marked.all {
            self.remove_orphaned_lists(&lists, &marked.lists);
        }
        let mut stopped = false;
        let done = collection.apply(&outcome.plan, &mut |done, all| {
            stopped = !progress(GcStep::Rewriting(done, all));
            !stopped
        })?;
        outcome.done = Some(done);
        let held = self.held_now(history);
        let note = || self.set_garbage(0).and_then(|()| self.set_held(held));
        if !stopped && let Err(e) = note() {
            tracing::warn!("how much garbage there is could not be noted: {e}");
        }
        if done.reclaimed_bytes > 0 {
            self.queue.retry_waiting();
        }
        self.tell_of_thinning(&history);
        Ok((!stopped).then_some(outcome))
    }

    /// What would be given back if what is at and below `path` were gone, or the snapshot `snapshot`, whose contents the caller
    /// gives. Changes nothing. `None` if `keep_going` said no. About: what somebody reads meanwhile counts as needed.
    ///
    /// O(files + versions) time; memory: 40 bytes for each distinct chunk that it is about.
    pub fn would_free(
        &self,
        path: Option<&Path>,
        snapshot: Option<(&DocumentId, &[RecipeId])>,
        keep_going: &mut dyn FnMut(u64) -> bool,
    ) -> Result<Option<WouldFree>> {
        let mut found = WouldFree::default();
        let mut chunks: HashSet<ChunkId> = HashSet::new();
        let mut add = |recipe: &RecipeId, found: &mut WouldFree| match self.contents.store.recipe(recipe) {
            Ok(recipe) => chunks.extend(recipe.chunks().iter().map(|chunk| chunk.id)),
            Err(_) => found.unknown += 1,
        };
        // Before look-ups count as uses.
        if let Some(path) = path {
            self.walk(path, &mut |_, file| {
                let Ok(inode) = file else { return };
                match self.look_at(&inode) {
                    Ok(Content::Stub(stub) | Content::Hybrid(stub)) => {
                        (found.files, found.bytes) = (found.files + 1, found.bytes + stub.size);
                        add(&stub.recipe, &mut found);
                    }
                    Ok(Content::Plain(_)) => {
                        let stat = inode.path_fd().and_then(rustix::fs::fstat);
                        let (size, blocks) =
                            stat.map_or((0, 0), |stat| (stat.st_size as u64, stat.st_blocks as u64));
                        (found.files, found.bytes) = (found.files + 1, found.bytes + size);
                        found.plain_bytes += blocks * 512;
                    }
                    Ok(Content::Unknown(_)) | Err(_) => found.unknown += 1,
                }
                self.inodes.release(inode);
            })?;
        }
        for recipe in snapshot.iter().flat_map(|(_, recipes)| *recipes) {
            add(recipe, &mut found);
        }
        let Some(collection) = self.contents.store.collect(&mut |_, _| keep_going(0))? else {
            return Ok(None);
        };
        let marked = self.mark_except(path, &mut |recipe| collection.keep(recipe), keep_going)?;
        if marked.is_none() {
            return Ok(None);
        }
        found.after_history_bytes = collection.bytes_not_kept(&chunks)?;
        let kept = match self.observer() {
            Some(observer) => {
                let except = snapshot.map(|(id, _)| id);
                observer.mark(&collection, true, except, u64::MAX, &mut || keep_going(0))?
            }
            None => Some(KeptForHistory::default()),
        };
        if kept.is_none() {
            return Ok(None);
        }
        found.freed_bytes = collection.bytes_not_kept(&chunks)?;
        Ok(Some(found))
    }

    /// Lets garbage be collected without being asked, or not. Only once the catalog knows every file.
    pub fn set_auto_gc(&self, on: bool) {
        self.auto_gc.store(on, Ordering::Relaxed);
    }

    /// Collects garbage if a quarter of the store seems to be, if there was no room for a commit, or if the history takes
    /// more than it may.
    pub(super) fn gc_if_due(&self) {
        if !self.auto_gc.load(Ordering::Relaxed) {
            return;
        }
        let no_room = self.no_room.swap(false, Ordering::Relaxed);
        let (held, garbage, stats) = (self.held_for_history(), self.garbage(), self.contents.store.stats());
        let share = (stats.unique_bytes / GARBAGE_SHARE).max(GARBAGE_BYTES_MIN);
        // What only versions need becomes garbage by the passing of time.
        let age = Time::now().sec.saturating_sub(held.time);
        let aged = held.bytes >= share && age >= HELD_SECONDS;
        // A collection that finds what the last one found gives nothing back.
        let news = garbage > 0 || stats.stored_bytes != held.stored_bytes || age >= AGAIN_SECONDS;
        let history = held.yielding_bytes.saturating_add(garbage);
        let max = self.observer().map_or(u64::MAX, Observer::bytes_max);
        let over = history > max && (held.yielding_bytes > max || garbage >= max / GARBAGE_SHARE);
        let short = self.is_short() && history > self.contents.store.keep_free_bytes() / GARBAGE_SHARE;
        if !(aged || garbage >= share || news && (no_room || over || short)) {
            return;
        }
        match self.gc(false, &mut |_| !self.ticks.stopped()) {
            Ok(Some(GcOutcome { done: Some(done), .. })) => tracing::info!(
                "garbage collected: {} bytes given back, {} bytes copied",
                done.reclaimed_bytes,
                done.copied_bytes
            ),
            Ok(_) => {}
            Err(e) => {
                tracing::error!("garbage was not collected: {e}{}", self.why_full());
                // What fails now fails again at once: not before as much has come again.
                let held = Held { time: Time::now().sec, stored_bytes: stats.stored_bytes, ..held };
                let _ = self.set_garbage(0).and_then(|()| self.set_held(held));
            }
        }
    }

    /// About how many bytes of contents have lost their last file since the last collection.
    pub fn garbage(&self) -> u64 {
        self.garbage.load(Ordering::Relaxed)
    }

    pub(super) fn set_garbage(&self, bytes: u64) -> Result<()> {
        self.garbage.store(bytes, Ordering::Relaxed);
        Ok(self.db.put(crate::db::Table::Meta, GARBAGE, &bytes.to_be_bytes())?)
    }

    /// What the last collection kept for the history alone.
    pub fn held_for_history(&self) -> Held {
        *self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Most bytes that the history may take, snapshots with a name not counted.
    pub fn history_bytes_max(&self) -> u64 {
        self.observer().map_or(u64::MAX, Observer::bytes_max)
    }

    fn held_now(&self, kept: KeptForHistory) -> Held {
        Held {
            bytes: kept.bytes,
            yielding_bytes: kept.yielding_bytes,
            time: Time::now().sec,
            stored_bytes: self.contents.store.stats().stored_bytes,
        }
    }

    fn set_held(&self, held: Held) -> Result<()> {
        *self.held.lock().unwrap_or_else(PoisonError::into_inner) = held;
        Ok(self.db.put(crate::db::Table::Meta, HELD, &held.encode())?)
    }

    /// How many bytes the history may keep so that enough is free after a collection, beside `live_bytes` that files need.
    fn history_room(&self, live_bytes: u64) -> u64 {
        let store = &self.contents.store;
        let for_store = store.space().free.saturating_add(store.stats().stored_bytes);
        for_store.saturating_sub(live_bytes).saturating_sub(2 * store.keep_free_bytes())
    }

    fn tell_of_thinning(&self, history: &KeptForHistory) {
        if history.thinned > 0 {
            tracing::info!("{} versions and snapshots were given up to make room", history.thinned);
        }
        if let Some(bytes) = self.bytes_of_filling_snapshots() {
            tracing::warn!("{}", snapshots_fill_disk(&format!("{bytes} bytes")));
        }
    }
}

/// What a collection kept for the history alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Bytes on disk.
    pub bytes: u64,
    /// Of them, bytes that can be given up for space: snapshots with a name do not need them.
    pub yielding_bytes: u64,
    /// When, in seconds since 1970.
    pub time: i64,
    /// Bytes of the packs then.
    pub stored_bytes: u64,
}

impl Held {
    fn encode(&self) -> Vec<u8> {
        let time = self.time.to_be_bytes();
        let [bytes, yielding, stored] =
            [self.bytes, self.yielding_bytes, self.stored_bytes].map(u64::to_be_bytes);
        [bytes, time, yielding, stored].concat()
    }

    /// Reads [`HELD`]; a row of an older program ends after the time.
    pub(super) fn decode(row: &[u8]) -> Option<Held> {
        let number = |at: usize| row.get(at..at + 8)?.try_into().ok().map(u64::from_be_bytes);
        let (bytes, time) = (number(0)?, number(8)? as i64);
        let (yielding_bytes, stored_bytes) = (number(16).unwrap_or_default(), number(24).unwrap_or_default());
        Some(Held { bytes, yielding_bytes, time, stored_bytes })
    }
}

/// Garbage is collected without being asked when one part in so many of the unique bytes is no longer needed,
const GARBAGE_SHARE: u64 = 4;
/// and it is so much at least.
const GARBAGE_BYTES_MIN: u64 = 64 << 20;
/// So long after a collection that kept much for the history alone the next is made.
const HELD_SECONDS: i64 = 6 * 3600;
/// So long after a collection another one for the sake of room is made though nothing is known to have changed.
const AGAIN_SECONDS: i64 = 600;
/// Row of `Table::Meta`: [`Held`], as bytes 8 | time 8 | yielding bytes 8 | stored bytes 8.
pub(super) const HELD: &[u8] = b"overlay.held";
/// Row of `Table::Meta`: [`Overlay::garbage`].
pub(super) const GARBAGE: &[u8] = b"overlay.garbage";
