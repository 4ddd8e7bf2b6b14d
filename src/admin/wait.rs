//! A wait for a change in the mount.

use super::{AdminError, Context, Progress, Report};
use serde::{Deserialize, Serialize};

/// The answer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitReport {
    /// The state now.
    pub seen: String,
}

/// Waits until the state differs from `seen` and rests ([`crate::tree::Tree::wait_for_change`]).
pub(super) fn wait(
    context: Context<'_>,
    seen: Option<&str>,
    report: Report<'_>,
) -> Result<WaitReport, AdminError> {
    if context.mountpoint.is_none() {
        return Err(AdminError::NotMounted(context.repo.layout().root.clone()));
    }
    let tree = &context.repo.overlay().tree;
    let mut keep_going = || report(Progress::files("waiting for a change", 0, 0));
    // A state that cannot be read is another one.
    let known = seen.and_then(|seen| seen.parse().ok());
    match tree.wait_for_change(known, &mut keep_going)? {
        Some(seen) => Ok(WaitReport { seen: seen.to_string() }),
        None => Err(AdminError::Interrupted),
    }
}
