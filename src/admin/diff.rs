use super::excerpt::{Excerpt, excerpts};
use super::text::{self, shown};
use super::{AdminError, Progress, Report, catch_up};
use crate::backing::plain::Plain;
use crate::contents::OverlayError;
use crate::repo::Repo;
use crate::similarity::exact::{Source, compare_regions};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Bytes of memory for a comparison.
const COMPARE_MEMORY: usize = 256 << 20;

/// A content to compare.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Side {
    /// The file: below the root, or with `outside` an absolute path.
    #[serde(with = "text")]
    pub path: PathBuf,
    /// Whether the file is not one of the overlay.
    pub outside: bool,
    /// Its version; the present content by default.
    pub n: Option<u64>,
}

/// The common parts of two contents.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DiffReport {
    /// The first.
    pub a: String,
    /// The second.
    pub b: String,
    /// Length of the first in bytes.
    pub a_size: u64,
    /// Length of the second in bytes.
    pub b_size: u64,
    /// Whether they are identical to the byte.
    pub identical: bool,
    /// Bytes of the first that are in the second, in runs of 32 or more.
    pub bytes_common: u64,
    /// Bytes of the second that are in the first.
    pub b_bytes_common: u64,
    /// The common runs, in order of their offset in the first.
    pub regions: Vec<DiffRegion>,
    /// Omitted regions, the shortest ones.
    pub omitted: u64,
    /// Excerpts of both, if requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub excerpts: Option<[Vec<Excerpt>; 2]>,
}

/// A run of common bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiffRegion {
    /// Its start in the first.
    pub a_offset: u64,
    /// Its start in the second.
    pub b_offset: u64,
    /// Its length.
    pub length: u64,
}

pub(super) fn diff(
    repo: &Repo,
    a: &Side,
    b: &Side,
    limit: usize,
    excerpt_bytes: u64,
    report: Report<'_>,
) -> Result<DiffReport, AdminError> {
    catch_up(repo, report)?;
    let (source_a, source_b) = (open(repo, a)?, open(repo, b)?);
    report(Progress::bytes("comparing", 0, source_a.len() + source_b.len()));
    let found = compare_regions(&*source_a, &*source_b, COMPARE_MEMORY, limit)
        .map_err(|e| OverlayError::io("compare", &a.path, e))?;
    let regions = found.regions.iter().map(|region| DiffRegion {
        a_offset: region.a,
        b_offset: region.b,
        length: region.len,
    });
    let excerpts = match excerpt_bytes {
        0 => None,
        bytes_max => {
            let mut longest: Vec<_> = found.regions.iter().collect();
            longest.sort_by_key(|region| std::cmp::Reverse(region.len));
            let of_a = excerpts(&*source_a, longest.iter().map(|region| (region.a, region.len)), bytes_max);
            let of_b = excerpts(&*source_b, longest.iter().map(|region| (region.b, region.len)), bytes_max);
            Some([
                of_a.map_err(|e| OverlayError::io("read", &a.path, e))?,
                of_b.map_err(|e| OverlayError::io("read", &b.path, e))?,
            ])
        }
    };
    Ok(DiffReport {
        a: name(a),
        b: name(b),
        a_size: source_a.len(),
        b_size: source_b.len(),
        identical: found.common.identical,
        bytes_common: found.common.a_bytes,
        b_bytes_common: found.common.b_bytes,
        regions: regions.collect(),
        omitted: found.omitted,
        excerpts,
    })
}

fn name(side: &Side) -> String {
    match side.n {
        Some(n) => format!("{}@{n}", shown(&side.path)),
        None => shown(&side.path),
    }
}

fn open(repo: &Repo, side: &Side) -> Result<Box<dyn Source>, AdminError> {
    if side.outside {
        return Ok(Box::new(Plain::open(&side.path)?));
    }
    match side.n {
        None => Ok(repo.overlay().tree.source(&side.path)?.0),
        Some(n) => {
            let version = repo.history().version(&side.path, n)?.version;
            Ok(repo.overlay().maintenance.stored_source(&version.recipe)?)
        }
    }
}
