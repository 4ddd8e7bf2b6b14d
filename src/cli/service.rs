//! Reports of a `Type=notify` service to systemd, over the socket in `NOTIFY_SOCKET` (sd_notify(3)). Without
//! that nothing happens. A failed report never stops the service.

use super::output::plain;
use sd_notify::{NotifyState, notify};
use std::path::Path;
use std::time::Duration;

/// A start or an end that reports progress gets this much time until its next report.
const STEP: Duration = Duration::from_secs(120);
/// Files in conversion are finished and the index is written within this time, however large it is.
const END: Duration = Duration::from_secs(600);

/// Reports that the start takes long, but continues.
pub(super) fn starting(step: &str) {
    tell(&[NotifyState::Status(step), extend(STEP)]);
}

/// Reports that the mount answers.
pub(super) fn ready(mountpoint: &Path) {
    let status = format!("mounted at {}", plain(&mountpoint.to_string_lossy()));
    tell(&[NotifyState::Ready, NotifyState::Status(&status)]);
}

/// Reports that the unmount has begun.
pub(super) fn ending() {
    tell(&[NotifyState::Stopping, NotifyState::Status("finishing files in conversion"), extend(END)]);
}

fn extend(time: Duration) -> NotifyState<'static> {
    NotifyState::ExtendTimeoutUsec(u32::try_from(time.as_micros()).unwrap_or(u32::MAX))
}

fn tell(states: &[NotifyState<'_>]) {
    if let Err(e) = notify(states) {
        tracing::debug!("no report to the service manager: {e}");
    }
}
