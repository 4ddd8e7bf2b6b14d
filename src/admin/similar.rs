use super::text::shown;
use super::{AdminError, Context};
use crate::contents::SimilarOptions;
use crate::view::View;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Files that resemble one file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SimilarReport {
    /// The file in question.
    pub query: String,
    /// Best first.
    pub matches: Vec<SimilarMatch>,
    /// Number of identical files. They come first, and leave half of the limit to others.
    pub identical: u64,
    /// Bytes of the file in question that are padding or belong to templates: they count neither as common
    /// nor in its size.
    pub suppressed_bytes: u64,
    /// Features ignored because too many files have them.
    pub suppressed_features: u64,
    /// Files that `similarity = "off"` leaves out of the index: they are found only if they are the same to the byte.
    #[serde(default)]
    pub not_indexed: u64,
    /// Whether files may be missing because the index does not know them yet.
    pub behind: bool,
}

/// A file that resembles the one in question. Shares are 0 to 1.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SimilarMatch {
    /// Path below the overlay's root.
    pub path: String,
    /// Absolute path.
    pub absolute: String,
    /// Its length in bytes.
    pub size: u64,
    /// Share of the file in question that is in this one.
    pub containment: f64,
    /// Share of this file that is in the one in question.
    pub contained_in: f64,
    /// Common bytes divided by the bytes in either.
    pub resemblance: f64,
    /// Bytes of the file in question that are in this one.
    pub bytes_common: u64,
    /// Common bytes that do not count, because they are padding or belong to templates.
    pub suppressed_bytes: u64,
    /// Whether both are identical to the byte.
    pub identical: bool,
    /// Whether the figures come from the bytes, or are estimates.
    pub verified: bool,
    /// View of the file in question; the figures refer to it.
    pub query_view: View,
    /// View of this file.
    pub view: View,
}

pub(super) fn similar(
    context: Context<'_>,
    path: &Path,
    outside: bool,
    options: &SimilarOptions,
) -> Result<SimilarReport, AdminError> {
    let overlay = context.repo.overlay();
    let found = match outside {
        true => overlay.queries.similar_outside(path, options)?,
        false => overlay.queries.similar_inside(path, options)?,
    };
    let top = context.mountpoint.unwrap_or(&context.repo.layout().root);
    let matches = found.matches.into_iter().map(|found| SimilarMatch {
        path: shown(&found.path),
        absolute: shown(&top.join(&found.path)),
        size: found.size,
        containment: found.shares.containment,
        contained_in: found.shares.contained_in,
        resemblance: found.shares.resemblance,
        bytes_common: found.shares.bytes_common,
        suppressed_bytes: found.shares.bytes_suppressed,
        identical: found.shares.identical,
        verified: found.shares.verified,
        query_view: found.query_view,
        view: found.view,
    });
    Ok(SimilarReport {
        query: shown(path),
        matches: matches.collect(),
        identical: found.identical as u64,
        suppressed_bytes: found.suppressed_bytes,
        suppressed_features: found.suppressed_features as u64,
        not_indexed: overlay.indexes.not_indexed()?,
        behind: context.repo.behind(),
    })
}
