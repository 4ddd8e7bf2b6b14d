//! The common parts of two files, side by side with their lines: winnowing as MOSS shows it.

use super::files::open_regular;
use crate::contents::error::{OverlayError, Result};
use crate::similarity::methods::winnow::front::{self, Document};
use crate::similarity::methods::winnow::{Base, Winnow, regions};
use crate::view::View;
use std::path::Path;

/// A part that two files have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Passage {
    /// First and last line in the first file.
    pub a: (u64, u64),
    /// First and last line in the second.
    pub b: (u64, u64),
    /// Fingerprints in common.
    pub prints: usize,
    /// Bytes in the output of the first one's front end.
    pub bytes: u64,
}

/// Two files side by side.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct SideBySide {
    /// The front ends that they were read through.
    pub views: [View; 2],
    /// Share of the first one's fingerprints that the second has, and the other way round; `None` if a file has none.
    pub shares: Option<(f64, f64)>,
    /// The longest first.
    pub passages: Vec<Passage>,
}

/// Compares two files, through `view` or the front end that each asks for, without passages of the `base` files.
pub fn side_by_side(
    a: &Path,
    b: &Path,
    view: Option<View>,
    winnow: &Winnow,
    base: &[impl AsRef<Path>],
) -> Result<SideBySide> {
    let (a, b) = (read(a, view, winnow)?, read(b, view, winnow)?);
    let mut known = Base::default();
    for path in base {
        known.add(&read(path.as_ref(), view, winnow)?.sketch);
    }
    let sketches = [&a, &b].map(|document| known.taken_from(&document.sketch));
    let hashes = sketches.each_ref().map(|sketch| sketch.hashes());
    let common = hashes[0].iter().filter(|hash| hashes[1].binary_search(hash).is_ok()).count() as f64;
    let shares = hashes.iter().all(|hashes| !hashes.is_empty());
    let shares = shares.then(|| (common / hashes[0].len() as f64, common / hashes[1].len() as f64));
    let found = regions(&sketches[0], &sketches[1], winnow.k(), winnow.w());
    let passages = found.iter().filter_map(|region| {
        let (in_a, in_b) = (a.lines.of(&region.a)?, b.lines.of(&region.b)?);
        Some(Passage { a: in_a, b: in_b, prints: region.prints, bytes: region.a.end - region.a.start })
    });
    let mut passages: Vec<Passage> = passages.collect();
    passages.sort_by_key(|passage| (u64::MAX - passage.bytes, passage.a, passage.b));
    Ok(SideBySide { views: [a.view, b.view], shares, passages })
}

fn read(path: &Path, view: Option<View>, winnow: &Winnow) -> Result<Document> {
    let failed = |e| OverlayError::io("read", path, e);
    front::read(open_regular(path)?, view, path.file_name(), winnow).map_err(failed)
}
