use super::{AdminError, Progress, Report};
use crate::overlay::OptimizeStep;
use crate::repo::Repo;
use crate::store::RegroupOptions;
use serde::{Deserialize, Serialize};

/// What to group, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OptimizeRequest {
    /// Only predict what it would come to.
    pub dry_run: bool,
    /// Level of zstd.
    pub level: i32,
    /// Most decoded bytes in a group: a read decodes two of them at most.
    pub group_bytes: u32,
    /// Most bytes that a piece of an archive inflates to: a read of it deflates all of that again. 0: archives are
    /// left as they are.
    pub archive_bytes: u32,
}

/// What grouping came to, or would. Sizes in bytes on disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OptimizeReport {
    /// The packs before.
    pub bytes_before: u64,
    /// The packs after.
    pub bytes_after: u64,
    /// Groups made, deltas of groups counted too.
    pub groups: u64,
    /// Chunks in them.
    pub chunks: u64,
    /// Of them such as are stored as what they have not in common with another group.
    pub deltas: u64,
    /// Of them such as are stored as what the deflate streams of archives inflate to.
    pub inflated: u64,
    /// What these chunks took.
    pub chunk_bytes_before: u64,
    /// What they take.
    pub chunk_bytes_after: u64,
    /// Packs rewritten.
    pub packs: u64,
    /// Packs left as they are because of damage.
    pub packs_damaged: u64,
    /// Whether nothing was changed, and the figures are from a sample if there was much.
    pub dry_run: bool,
}

/// Groups what resembles each other, or says what that would come to.
pub(super) fn optimize(
    repo: &Repo,
    request: OptimizeRequest,
    report: Report<'_>,
) -> Result<OptimizeReport, AdminError> {
    let OptimizeRequest { dry_run, level, group_bytes, archive_bytes } = request;
    let levels = 1..=22;
    if !levels.contains(&level) {
        return Err(AdminError::refused(
            format!("level {level}: zstd has levels 1 to 22"),
            "leave it out for 15".to_owned(),
        ));
    }
    let sizes = 4096..=16 << 20;
    if !sizes.contains(&group_bytes) {
        return Err(AdminError::refused(
            format!("groups of {group_bytes} bytes: expected 4 KiB to 16 MiB"),
            "leave it out for 16KiB".to_owned(),
        ));
    }
    let sizes = 64 << 10..=8 << 20;
    if archive_bytes != 0 && !sizes.contains(&archive_bytes) {
        return Err(AdminError::refused(
            format!("archives inflated to {archive_bytes} bytes: expected 64 KiB to 8 MiB, or 0"),
            "leave it out for 0, or 4MiB of cold ones".to_owned(),
        ));
    }
    let overlay = repo.overlay();
    let bytes_before = overlay.store().stats().stored_bytes;
    let options = RegroupOptions::new(level, group_bytes, archive_bytes);
    let outcome = overlay.optimize(&options, dry_run, &mut |step| {
        report(match step {
            OptimizeStep::Planning(done, all) => Progress::bytes("planning", done, all),
            OptimizeStep::Grouping(done, all) => Progress::bytes("grouping", done, all),
        })
    })?;
    let done = outcome.ok_or(AdminError::Interrupted)?.regrouped;
    let bytes_after = match dry_run {
        true => (bytes_before + done.after_bytes).saturating_sub(done.before_bytes),
        false => overlay.store().stats().stored_bytes,
    };
    Ok(OptimizeReport {
        bytes_before,
        bytes_after,
        groups: done.groups,
        chunks: done.chunks,
        deltas: done.deltas,
        inflated: done.inflated,
        chunk_bytes_before: done.before_bytes,
        chunk_bytes_after: done.after_bytes,
        packs: done.packs_removed,
        packs_damaged: done.packs_damaged,
        dry_run,
    })
}
