use super::{AdminError, Progress, Report, catch_up};
use crate::maintain::GcStep;
use crate::repo::Repo;
use serde::{Deserialize, Serialize};

/// Result of a garbage collection, or its prediction. Sizes in bytes on disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GcReport {
    /// Bytes by which the packs shrank, or would shrink.
    pub reclaimed_bytes: u64,
    /// Bytes of packs that stay.
    pub kept_bytes: u64,
    /// Unneeded bytes among them: copying their neighbours does not pay, or their pack is damaged.
    pub left_bytes: u64,
    /// Bytes among them that only versions and snapshots need.
    pub kept_for_history_bytes: u64,
    /// Bytes among those that named snapshots need: only `snapshot remove` frees them.
    #[serde(default)]
    pub kept_for_named_snapshots_bytes: u64,
    /// Versions and snapshots dropped for space although the rules keep them, or that would be.
    #[serde(default)]
    pub thinned: u64,
    /// Kept versions.
    pub versions: u64,
    /// Versions that the rules dropped, or would drop.
    pub versions_dropped: u64,
    /// Kept snapshots.
    pub snapshots: u64,
    /// Unreadable versions and snapshot directories: everything stored at their discovery stays.
    pub unreadable: u64,
    /// Bytes copied from one pack to another, or to copy.
    pub copied_bytes: u64,
    /// Packs removed, or to remove.
    pub packs: u64,
    /// Packs that stay because of damage.
    pub packs_damaged: u64,
    /// Packs that stay because the disk is full.
    pub packs_no_room: u64,
    /// Removed chunks and recipes.
    pub forgotten: u64,
    /// Visited stubs; some more than once if their directories changed meanwhile.
    pub stubs: u64,
    /// Empty files with an invalid record.
    pub unknown: u64,
    /// Whether nothing was changed.
    pub dry_run: bool,
}

/// Runs a garbage collection, or predicts its result.
pub(super) fn gc(repo: &Repo, dry_run: bool, report: Report<'_>) -> Result<GcReport, AdminError> {
    if repo.read_only() {
        return Err(AdminError::refused(
            format!("{}: the overlay is read-only, so nothing is collected", repo.layout().root.display()),
            "if it was mounted on a full disk, unmount it, run `dedupctl gc`, which needs no free space, and mount it again".to_owned(),
        ));
    }
    let complete = match catch_up(repo, report) {
        Ok(()) => true,
        // A collection makes the space for it.
        Err(e) if e.is_full() => false,
        Err(e) => return Err(e),
    };
    let outcome = repo.overlay().maintenance.gc_with(dry_run, complete, &mut |step| {
        report(match step {
            GcStep::Waiting => Progress::files("waiting for commits", 0, 0),
            GcStep::Marking(stubs) => Progress::files("marking", stubs, 0),
            GcStep::MarkingHistory => Progress::files("marking versions", 0, 0),
            GcStep::Planning(done, all) => Progress::bytes("planning", done, all),
            GcStep::Rewriting(done, all) => Progress::bytes("rewriting packs", done, all),
        })
    })?;
    let outcome = outcome.ok_or(AdminError::Interrupted)?;
    let stored_bytes = repo.overlay().store().stats().stored_bytes;
    let (stubs, unknown, plan) = (outcome.stubs, outcome.unknown, outcome.plan);
    let common = GcReport {
        left_bytes: plan.left_bytes,
        kept_for_history_bytes: outcome.history.bytes,
        kept_for_named_snapshots_bytes: outcome.history.bytes - outcome.history.yielding_bytes,
        thinned: outcome.history.thinned,
        versions: outcome.history.versions,
        versions_dropped: outcome.history.dropped,
        snapshots: outcome.history.snapshots,
        unreadable: outcome.history.unreadable,
        stubs,
        unknown,
        dry_run,
        ..GcReport::default()
    };
    Ok(match outcome.done {
        Some(done) => GcReport {
            reclaimed_bytes: done.reclaimed_bytes,
            kept_bytes: stored_bytes,
            copied_bytes: done.copied_bytes,
            packs: done.packs_removed,
            packs_damaged: done.packs_damaged,
            packs_no_room: done.packs_no_room,
            forgotten: done.forgotten,
            ..common
        },
        None => GcReport {
            reclaimed_bytes: plan.reclaim_bytes,
            kept_bytes: stored_bytes.saturating_sub(plan.reclaim_bytes),
            copied_bytes: plan.copy_bytes,
            packs: plan.packs(),
            ..common
        },
    })
}
