//! The common parts of two files, side by side with their lines: winnowing as MOSS shows it.

use super::files::open_regular;
use crate::contents::error::{OverlayError, Result};
use crate::similarity::methods::Method;
use crate::similarity::methods::winnow::front::{self, Document};
use crate::similarity::methods::winnow::{Base, Side, Spans, Winnow, regions};
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
    let (mut known, mut ignored) = (Base::default(), [Spans::default(), Spans::default()]);
    for path in base {
        let base = read(path.as_ref(), view, winnow)?;
        known.add(&base.sketch);
        for (document, ignored) in [&a, &b].into_iter().zip(&mut ignored) {
            let none = Spans::default();
            let [document, base] = [document, &base].map(|document| Side {
                sketch: &document.sketch,
                text: &document.text,
                ignored: &none,
            });
            regions(document, base, winnow.k()).iter().for_each(|region| ignored.add(&region.a));
        }
    }
    let sketches = [&a, &b].map(|document| known.taken_from(&document.sketch));
    let likeness = winnow.compare(&sketches[0], &sketches[1]);
    let side = |at: usize, text| Side { sketch: &sketches[at], text, ignored: &ignored[at] };
    let found = regions(side(0, &a.text), side(1, &b.text), winnow.k());
    let passages = found.iter().filter_map(|region| {
        let (in_a, in_b) = (a.lines.of(&region.a)?, b.lines.of(&region.b)?);
        Some(Passage { a: in_a, b: in_b, prints: region.prints, bytes: region.a.end - region.a.start })
    });
    let mut passages: Vec<Passage> = passages.collect();
    passages.sort_by_key(|passage| (u64::MAX - passage.bytes, passage.a, passage.b));
    let shares = likeness.containment.zip(likeness.contained_in);
    Ok(SideBySide { views: [a.view, b.view], shares, passages })
}

fn read(path: &Path, view: Option<View>, winnow: &Winnow) -> Result<Document> {
    let failed = |e| OverlayError::io("read", path, e);
    front::read(open_regular(path)?, view, path.file_name(), winnow).map_err(failed)
}
