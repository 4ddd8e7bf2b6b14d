use super::{AdminError, Progress, Report, catch_up};
use crate::repo::Repo;
use serde::{Deserialize, Serialize};

/// Result of `settle`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SettleReport {
    /// Files closed since, and not committed yet.
    pub pending: u64,
    /// Files that stay plain because they are repeatedly rewritten as a whole.
    #[serde(default)]
    pub kept_plain: u64,
}

/// Waits until every file that was closed before is chunked, indexed and durable ([`crate::maintain::Maintenance::settle`]).
pub(super) fn settle(repo: &Repo, report: Report<'_>) -> Result<SettleReport, AdminError> {
    let _hurry = repo.overlay().converter.hurry();
    catch_up(repo, report)?;
    let mut most = 0;
    let settled = repo.overlay().maintenance.settle(&mut |pending| {
        most = most.max(pending as u64);
        report(Progress::files("settling", most - pending as u64, most))
    })?;
    if !settled {
        return Err(AdminError::Interrupted);
    }
    Ok(now(repo))
}

/// Waits likewise, but gives up if more than `most` files wait.
pub(super) fn settle_few(repo: &Repo, most: u64, report: Report<'_>) -> Result<SettleReport, AdminError> {
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    repo.overlay().maintenance.settle_few(most, &mut || report(Progress::files("settling", 0, 0)))?;
    Ok(now(repo))
}

fn now(repo: &Repo) -> SettleReport {
    let converter = &repo.overlay().converter;
    SettleReport { pending: converter.pending() as u64, kept_plain: converter.kept_plain() as u64 }
}
