//! Changes in the mount since a moment, so that a sync need not walk the tree.
//!
//! The daemon sees changes through its mount only. If the bare directory can be reached, or after a restart of the daemon, it
//! does not answer the question, and the sync walks.

use super::{AdminError, Context, Progress, Report, text};
use crate::tree::Change;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// With more changes a walk is as good.
const CHANGES_MAX: usize = 100_000;

/// The answer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangesReport {
    /// The moment of this answer; none if changes may happen that the daemon does not see.
    pub moment: Option<String>,
    /// The changes; none if they are not completely known.
    pub changed: Option<Vec<ChangedRow>>,
}

/// A path that changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangedRow {
    /// Below the root.
    #[serde(with = "text")]
    pub path: PathBuf,
    /// Whether it is new or has a new name: everything below it may have changed.
    pub moved: bool,
}

pub(super) fn changes(
    context: Context<'_>,
    since: Option<&str>,
    except: Option<u32>,
    report: Report<'_>,
) -> Result<ChangesReport, AdminError> {
    if context.mountpoint.is_none_or(|mounted| mounted != context.repo.layout().root) {
        return Ok(ChangesReport::default());
    }
    let since = since.and_then(|since| since.parse().ok());
    let mut keep_going = || report(Progress::files("waiting for changes under way", 0, 0));
    let tree = &context.repo.overlay().tree;
    let Some((now, changed)) = tree.changes_since(since, except, CHANGES_MAX, &mut keep_going)? else {
        return Ok(ChangesReport::default());
    };
    let row = |(path, change)| ChangedRow { path, moved: change == Change::Moved };
    let changed = changed.map(|changed| changed.into_iter().map(row).collect());
    Ok(ChangesReport { moment: Some(now.to_string()), changed })
}
