use super::{AdminError, Context, Progress, Report};
use crate::contents::OverlayError;
use crate::query::{GroupOptions, Groups};
use crate::similarity::SimilarityError;
use std::path::Path;

/// In the state directory: saved results of comparing all with all. May be removed at any time.
const DIR: &str = "groups";

pub(super) fn groups(
    context: Context<'_>,
    path: &Path,
    options: &GroupOptions,
    report: Report<'_>,
) -> Result<Groups, AdminError> {
    let dir = context.repo.state_file(DIR);
    let found = context
        .repo
        .overlay()
        .groups(path, options, &dir, &mut |what, done, all| report(Progress::files(what, done, all)));
    let found = found.map_err(|e| match e {
        OverlayError::Similarity(SimilarityError::Interrupted) => AdminError::Interrupted,
        e => e.into(),
    })?;
    Ok(Groups { behind: context.repo.behind(), ..found })
}
