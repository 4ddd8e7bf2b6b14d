//! Scheduled snapshots.

use super::snapshot::is_alone;
use super::{AdminError, Context, Progress, Report};
use crate::backing::stub::Time;

/// Takes a scheduled snapshot, unless nothing changed since the last one, and removes those that the schedule does not
/// keep. Returns when it was taken, in seconds since 1970; `None` if nothing changed.
pub fn take_scheduled(context: Context<'_>, report: Report<'_>) -> Result<Option<i64>, AdminError> {
    let (history, replica) = (context.repo.history(), context.repo.id());
    let taken = history.scheduled_snapshot(replica, is_alone(context), Time::now, &mut |done| {
        report(Progress::files("looking at files", done, 0))
    });
    // Also if there was no space for another: a removal is how there will be.
    let removed = history.drop_scheduled();
    let taken = taken?;
    removed?;
    Ok(taken.map(|taken| taken.snapshot.time.sec))
}
