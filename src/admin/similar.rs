use super::{AdminError, Context};
use crate::contents::SimilarOptions;
use crate::query::Matches;
use std::path::Path;

pub(super) fn similar(
    context: Context<'_>,
    path: &Path,
    outside: bool,
    options: &SimilarOptions,
) -> Result<Matches, AdminError> {
    let overlay = context.repo.overlay();
    let mut found = match outside {
        true => overlay.queries.similar_outside(path, options)?,
        false => overlay.queries.similar_inside(path, options)?,
    };
    found.below(context.mountpoint.unwrap_or(&context.repo.layout().root));
    found.behind = context.repo.behind();
    Ok(found)
}
