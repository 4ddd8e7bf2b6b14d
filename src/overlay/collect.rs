//! Collecting garbage of an overlay: what its files need is kept, the rest of the store given back.

use super::Overlay;
use super::backing;
use super::error::{OverlayError, Result};
use crate::store::{GcDone, GcPlan};
use std::sync::atomic::Ordering;

/// How far a collection has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GcStep {
    /// Commits that began before it are being waited for.
    Waiting,
    /// So many stubs have been met.
    Marking(u64),
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
    /// What there is to do.
    pub plan: GcPlan,
    /// What was done; none if only asked for the plan.
    pub done: Option<GcDone>,
}

impl Overlay {
    /// Gives back what no file needs: marks from the stubs of the tree, then carries out the store's plan unless
    /// `dry_run`. `None` if `progress` said no on the way: whatever was done until then is whole.
    ///
    /// The mount is not held up: whoever finds a chunk stored meanwhile keeps it by that. O(files + frames) time;
    /// memory: the names of all directories, and what [`crate::store::Collection`] takes. The catalog has to be complete.
    pub fn gc(&self, dry_run: bool, progress: &mut dyn FnMut(GcStep) -> bool) -> Result<Option<GcOutcome>> {
        if self.read_only {
            return Err(OverlayError::ReadOnly);
        }
        let Some(collection) = self.contents.store.collect(&mut |_, _| progress(GcStep::Waiting))? else {
            return Ok(None);
        };
        // Those made from here on are of files that the mark may not meet.
        let lists = self.lists()?;
        let marked = self.mark(&mut |recipe| collection.keep(recipe), &mut |stubs| {
            !stubs.is_multiple_of(256) || progress(GcStep::Marking(stubs))
        })?;
        let Some(marked) = marked else { return Ok(None) };
        let plan = collection.plan(&mut |done, all| progress(GcStep::Planning(done, all)))?;
        let Some(plan) = plan else { return Ok(None) };
        let mut outcome = GcOutcome { stubs: marked.stubs, unknown: marked.unknown, plan, done: None };
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
        if !stopped && let Err(e) = self.set_garbage(0) {
            tracing::warn!("how much garbage there is could not be noted: {e}");
        }
        Ok((!stopped).then_some(outcome))
    }

    /// Lets garbage be collected without being asked, or not. Only once the catalog knows every file.
    pub fn set_auto_gc(&self, on: bool) {
        self.auto_gc.store(on, Ordering::Relaxed);
    }

    /// Collects garbage if a quarter of the store seems to be, or if there was no room for a commit.
    pub(super) fn gc_if_due(&self) {
        if !self.auto_gc.load(Ordering::Relaxed) {
            return;
        }
        let no_room = self.no_room.swap(false, Ordering::Relaxed);
        let share = self.contents.store.stats().unique_bytes / GARBAGE_SHARE;
        if !no_room && self.garbage() < share.max(GARBAGE_BYTES_MIN) {
            return;
        }
        match self.gc(false, &mut |_| !self.stop.stopped()) {
            Ok(Some(GcOutcome { done: Some(done), .. })) => tracing::info!(
                "garbage collected: {} bytes given back, {} bytes copied",
                done.reclaimed_bytes,
                done.copied_bytes
            ),
            Ok(_) => {}
            Err(e) => {
                tracing::error!("garbage was not collected: {e}");
                // What fails now fails again at once: not before as much has come again.
                let _ = self.set_garbage(0);
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
}

/// Garbage is collected without being asked when one part in so many of the unique bytes is no longer needed,
const GARBAGE_SHARE: u64 = 4;
/// and it is so much at least.
const GARBAGE_BYTES_MIN: u64 = 64 << 20;
/// Row of `Table::Meta`: [`Overlay::garbage`].
pub(super) const GARBAGE: &[u8] = b"overlay.garbage";
