use super::{AdminError, Progress, Report};
use crate::maintain::OptimizeStep;
use crate::repo::Repo;
use crate::store::RegroupOptions;
use serde::{Deserialize, Serialize};

/// Options of grouping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OptimizeRequest {
    /// Only predict the result.
    pub dry_run: bool,
    /// Level of zstd.
    pub level: i32,
    /// Limit of decoded bytes in a group: a read decodes at most two.
    pub group_bytes: u32,
    /// Limit of inflated bytes in an archive piece: a read deflates all of it again. 0 skips archives.
    pub archive_bytes: u32,
}

/// Result of grouping, or its prediction. Sizes in bytes on disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OptimizeReport {
    /// The packs before.
    pub bytes_before: u64,
    /// The packs after.
    pub bytes_after: u64,
    /// Groups made, including deltas.
    pub groups: u64,
    /// Chunks in them.
    pub chunks: u64,
    /// Chunks among them that are stored as deltas against another group.
    pub deltas: u64,
    /// Chunks among them that are stored as inflated bytes of archives.
    pub inflated: u64,
    /// Size of these chunks before.
    pub chunk_bytes_before: u64,
    /// Size of these chunks after.
    pub chunk_bytes_after: u64,
    /// Packs rewritten.
    pub packs: u64,
    /// Packs that stay because of damage.
    pub packs_damaged: u64,
    /// Whether nothing was changed; for large stores the figures then come from a sample.
    pub dry_run: bool,
}

/// Groups similar chunks, or predicts the result.
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
    let outcome = overlay.maintenance.optimize(&options, dry_run, &mut |step| {
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
