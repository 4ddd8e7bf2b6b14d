use super::{AdminError, Progress, Report};
use crate::repo::Repo;
use std::time::{Duration, Instant};

/// Nobody has to wait longer: for that to begin, and for it to end.
const HOLD_MAX: Duration = Duration::from_secs(2);
/// So often it is looked whether whoever asked still wants it.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// Holds up changes of contents ([`crate::overlay::Overlay::hold_up`]) for as long as `report` says, which is first told of it when they are.
pub(super) fn hold(repo: &Repo, report: Report<'_>) -> Result<(), AdminError> {
    let asked = Instant::now();
    let held = repo.overlay().hold_up(&mut || asked.elapsed() < HOLD_MAX);
    let held = held.ok_or(AdminError::Interrupted)?;
    let begun = Instant::now();
    while held.holds()
        && begun.elapsed() < HOLD_MAX
        && report(Progress::files("holding up what is written", 1, 1))
    {
        std::thread::sleep(LOOK_EVERY);
    }
    Ok(())
}
