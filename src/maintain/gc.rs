//! Garbage collection of an overlay: keeps everything that its files need, and frees the rest of the store.

use crate::backing;
use crate::backing::stub::Time;
use crate::contents::error::{OverlayError, Result};
use crate::convert::garbage::Held;
use crate::convert::room::snapshots_fill_disk;
use crate::id::{ChunkId, DocumentId, RecipeId};
use crate::maintain::Maintenance;
use crate::store::{GcDone, GcPlan, RecipePlace};
use crate::tree::inode::Content;
use crate::tree::observer::{KeptForHistory, Observer};
use std::collections::HashSet;
use std::path::Path;
use std::sync::atomic::Ordering;

/// How far a collection has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GcStep {
    /// Waits for commits that began before it.
    Waiting,
    /// Marks; this many stubs were visited.
    Marking(u64),
    /// Marks the contents that versions and snapshots need.
    MarkingHistory,
    /// Bytes of packs examined, and in all.
    Planning(u64, u64),
    /// Bytes of packs rewritten, and to be rewritten.
    Rewriting(u64, u64),
}

/// Result of a collection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GcOutcome {
    /// Stubs visited; some more than once if their directories changed.
    pub stubs: u64,
    /// Files whose record is not valid: their contents are kept as far as they can be determined.
    pub unknown: u64,
    /// Contents that only versions and snapshots need.
    pub history: KeptForHistory,
    /// The plan of the store.
    pub plan: GcPlan,
    /// The work done; `None` for a dry run.
    pub done: Option<GcDone>,
}

/// Space that a removal would give back, in bytes on disk if not said otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WouldFree {
    /// Files that would be removed.
    pub files: u64,
    /// Bytes in them.
    pub bytes: u64,
    /// Bytes that a collection would give back then: no other file, version or snapshot needs them.
    pub freed_bytes: u64,
    /// Bytes that a collection would give back once versions and snapshots do not need them either.
    pub after_history_bytes: u64,
    /// Bytes of plain files among them in the backing directory: free at once.
    pub plain_bytes: u64,
    /// Files whose content is not known.
    pub unknown: u64,
}

impl Maintenance {
    /// Gives back the space of contents that no file needs: marks from the stubs of the tree, then carries out the store's plan
    /// unless `dry_run`. Returns `None` if `progress` returned false; the work done until then is complete.
    ///
    /// Does not block the mount: a commit that finds a chunk in the store keeps it. O(files + frames) time; memory: the names
    /// of all directories, and that of [`crate::store::Collection`]. The catalog has to be complete.
    pub fn gc(&self, dry_run: bool, progress: &mut dyn FnMut(GcStep) -> bool) -> Result<Option<GcOutcome>> {
        self.gc_with(dry_run, true, progress)
    }

    /// As [`Maintenance::gc`], also while the catalog is not `complete`: then it fails if the tree changes meanwhile, or has files
    /// whose record is not valid.
    pub fn gc_with(
        &self,
        dry_run: bool,
        complete: bool,
        progress: &mut dyn FnMut(GcStep) -> bool,
    ) -> Result<Option<GcOutcome>> {
        if self.tree.read_only {
            return Err(OverlayError::ReadOnly);
        }
        let Some(collection) = self.contents.store.collect(&mut |_, _| progress(GcStep::Waiting))? else {
            return Ok(None);
        };
        // Lists made from here on belong to files that the mark may miss.
        let lists = self.tree.lists()?;
        let (short, mut live_bytes) = (self.converter.is_short(), 0);
        let mut keep = |recipe: &RecipeId, place: Option<RecipePlace>| match short {
            true => collection.keep_more(recipe).map(|bytes| live_bytes += bytes),
            false => collection.keep_at(recipe, place),
        };
        let marked = self
            .mark(&mut keep, &mut |stubs| !stubs.is_multiple_of(256) || progress(GcStep::Marking(stubs)))?;
        let Some(marked) = marked else { return Ok(None) };
        if !complete && (!marked.all || marked.unknown > 0) {
            return Err(OverlayError::Unmarked);
        }
        let history_room = if short { self.history_room(live_bytes) } else { u64::MAX };
        let history = match self.tree.observer() {
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
        // A removed file must not come back after a power cut: the store may be on another filesystem.
        let root = backing::open_dir(self.tree.backing.root())?;
        rustix::fs::syncfs(&root).map_err(|e| OverlayError::io("sync", "the backing filesystem", e))?;
        if marked.all {
            self.tree.remove_orphaned_lists(&lists, &marked.lists);
        }
        let mut stopped = false;
        let done = collection.apply(&outcome.plan, &mut |done, all| {
            stopped = !progress(GcStep::Rewriting(done, all));
            !stopped
        })?;
        outcome.done = Some(done);
        let held = self.held_now(history);
        let note = || self.garbage.set_bytes(0).and_then(|()| self.garbage.set_held(held));
        if !stopped && let Err(e) = note() {
            tracing::warn!("how much garbage there is could not be noted: {e}");
        }
        if done.reclaimed_bytes > 0 {
            self.converter.queue.retry_waiting();
        }
        self.tell_of_thinning(&history);
        Ok((!stopped).then_some(outcome))
    }

    /// Returns the space that would be given back without `path` and all below it, or without the snapshot `snapshot`, whose
    /// contents the caller gives. Changes nothing. `None` if `keep_going` returned false. Approximate: a content that is read
    /// meanwhile counts as needed.
    ///
    /// O(files + versions) time; memory: 40 bytes for each distinct chunk of the files.
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
            self.tree.walk(path, &mut |_, file| {
                let Ok(inode) = file else { return };
                match self.tree.look_at(&inode) {
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
                self.tree.inodes.release(inode);
            })?;
        }
        for recipe in snapshot.iter().flat_map(|(_, recipes)| *recipes) {
            add(recipe, &mut found);
        }
        let Some(collection) = self.contents.store.collect(&mut |_, _| keep_going(0))? else {
            return Ok(None);
        };
        let marked =
            self.mark_except(path, &mut |recipe, place| collection.keep_at(recipe, place), keep_going)?;
        if marked.is_none() {
            return Ok(None);
        }
        found.after_history_bytes = collection.bytes_not_kept(&chunks)?;
        let kept = match self.tree.observer() {
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

    /// Lets the daemon collect garbage by itself, or not. Only once the catalog knows every file.
    pub fn set_auto_gc(&self, on: bool) {
        self.auto_gc.store(on, Ordering::Relaxed);
    }

    /// Collects garbage if a quarter of the store seems to be, if there was no room for a commit, or if the history takes
    /// more than it may.
    pub(crate) fn gc_if_due(&self) {
        if !self.auto_gc.load(Ordering::Relaxed) {
            return;
        }
        let no_room = self.converter.no_room.swap(false, Ordering::Relaxed);
        let (held, garbage, stats) = (self.garbage.held(), self.garbage.bytes(), self.contents.store.stats());
        let share = (stats.unique_bytes / GARBAGE_SHARE).max(GARBAGE_BYTES_MIN);
        // Contents that only versions need become garbage as time passes.
        let age = Time::now().sec.saturating_sub(held.time);
        let aged = held.bytes >= share && age >= HELD_SECONDS;
        // Another collection would find the same as the last one, and give nothing back.
        let news = garbage > 0 || stats.stored_bytes != held.stored_bytes || age >= AGAIN_SECONDS;
        let history = held.yielding_bytes.saturating_add(garbage);
        let max = self.tree.observer().map_or(u64::MAX, Observer::bytes_max);
        let over = history > max && (held.yielding_bytes > max || garbage >= max / GARBAGE_SHARE);
        let short =
            self.converter.is_short() && history > self.contents.store.keep_free_bytes() / GARBAGE_SHARE;
        if !(aged || garbage >= share || news && (no_room || over || short)) {
            return;
        }
        match self.gc(false, &mut |_| !self.tree.ticks.stopped()) {
            Ok(Some(GcOutcome { done: Some(done), .. })) => tracing::info!(
                "garbage collected: {} bytes given back, {} bytes copied",
                done.reclaimed_bytes,
                done.copied_bytes
            ),
            Ok(_) => {}
            Err(e) => {
                tracing::error!("garbage was not collected: {e}{}", self.converter.why_full());
                // It would fail again at once: wait until as much garbage has gathered again.
                let held = Held { time: Time::now().sec, stored_bytes: stats.stored_bytes, ..held };
                let _ = self.garbage.set_bytes(0).and_then(|()| self.garbage.set_held(held));
            }
        }
    }

    /// Returns the limit of bytes for the history, without named snapshots.
    pub fn history_bytes_max(&self) -> u64 {
        self.tree.observer().map_or(u64::MAX, Observer::bytes_max)
    }

    fn held_now(&self, kept: KeptForHistory) -> Held {
        Held {
            bytes: kept.bytes,
            yielding_bytes: kept.yielding_bytes,
            time: Time::now().sec,
            stored_bytes: self.contents.store.stats().stored_bytes,
        }
    }

    /// Returns how many bytes the history may keep so that enough is free after a collection; files need `live_bytes`.
    fn history_room(&self, live_bytes: u64) -> u64 {
        let store = &self.contents.store;
        let for_store = store.space().free.saturating_add(store.stats().stored_bytes);
        for_store.saturating_sub(live_bytes).saturating_sub(2 * store.keep_free_bytes())
    }

    fn tell_of_thinning(&self, history: &KeptForHistory) {
        if history.thinned > 0 {
            tracing::info!("{} versions and snapshots were given up to make room", history.thinned);
        }
        if let Some(bytes) = self.converter.bytes_of_filling_snapshots() {
            tracing::warn!("{}", snapshots_fill_disk(&format!("{bytes} bytes")));
        }
    }
}

/// The daemon collects garbage by itself when one in this many unique bytes is garbage,
const GARBAGE_SHARE: u64 = 4;
/// and the garbage has at least this many bytes.
const GARBAGE_BYTES_MIN: u64 = 64 << 20;
/// Seconds until the next collection after one that kept much only for the history.
const HELD_SECONDS: i64 = 6 * 3600;
/// Seconds until the next collection for space if nothing is known to have changed.
const AGAIN_SECONDS: i64 = 600;
