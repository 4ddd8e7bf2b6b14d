//! The prefix of a segment's literals: the bytes of the bases around the gaps, which both sides derive.

use super::op::{CopyOp, Place};
use super::view::{View, ViewName};
use super::{Bases, DeltaError, PREFIX_BYTES_MAX};
use std::ops::Range;

/// The range of a view that counts as near a gap.
#[derive(Clone, Copy)]
pub(super) struct Around {
    /// Bytes beyond the gap.
    pub margin: u64,
    /// Maximum by which a gap in the base may be longer than the gap in the target.
    pub reach: u64,
}

/// The range for the prefix. Measured in `docs/decisions/0033-delta.md`.
const NEAR: Around = Around { margin: 512, reach: 64 << 10 };

/// Returns the ranges of views around a gap of `len` bytes, from `place` to `next`, or to the end of the piece.
pub(super) fn around(
    place: Place,
    next: Option<Place>,
    len: usize,
    last: bool,
    sizes: &[u64],
    near: Around,
) -> impl Iterator<Item = (usize, Range<u64>)> {
    let clip = |view: usize, from: u64, to: u64| {
        let size = sizes.get(view).copied().unwrap_or(0);
        (from.min(size) < to.min(size)).then(|| (view, from.min(size)..to.min(size)))
    };
    let far = (len as u64).min(near.reach) + near.margin;
    let behind =
        || clip(place.view, place.offset.saturating_sub(near.margin), place.offset.saturating_add(far));
    let end = || Place { view: place.view, offset: sizes.get(place.view).copied().unwrap_or(0) };
    let found = match next.or_else(|| last.then(end)) {
        None => [behind(), None],
        Some(next)
            if next.view == place.view
                && place.offset <= next.offset
                && next.offset - place.offset <= len as u64 + near.reach =>
        {
            let from = place.offset.saturating_sub(near.margin);
            [clip(next.view, from, next.offset.saturating_add(near.margin)), None]
        }
        Some(next) => {
            let from = next.offset.saturating_sub(far);
            [behind(), clip(next.view, from, next.offset.saturating_add(near.margin))]
        }
    };
    found.into_iter().flatten()
}

/// Collects the ranges of one segment, piece by piece.
#[derive(Default)]
pub(super) struct Ranges {
    views: Vec<(ViewName, Vec<Range<u64>>)>,
    bytes: u64,
}

impl Ranges {
    /// Returns the bytes of the ranges; overlaps count once for each range.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Adds the ranges around the gaps of a piece of `len` bytes; `place` is its expected place.
    pub fn add(
        &mut self,
        names: &[ViewName],
        sizes: &[u64],
        len: usize,
        last: bool,
        place: Place,
        copies: &[CopyOp],
    ) {
        let (mut at, mut place) = (0, place);
        for copy in copies {
            if copy.at > at {
                let next = Place { view: copy.view, offset: copy.offset };
                self.gap(names, around(place, Some(next), copy.at - at, last, sizes, NEAR));
            }
            (at, place) = (copy.end(), copy.after());
        }
        if at < len {
            self.gap(names, around(place, None, len - at, last, sizes, NEAR));
        }
    }

    fn gap(&mut self, names: &[ViewName], found: impl Iterator<Item = (usize, Range<u64>)>) {
        for (view, range) in found {
            let name = names[view];
            self.bytes += range.end - range.start;
            // Most gaps are in the view of the last one.
            let known = self.views.iter_mut().rev().take(8).find(|(known, _)| *known == name);
            match known {
                Some((_, ranges)) => ranges.push(range),
                None => self.views.push((name, vec![range])),
            }
        }
    }

    /// Reads the ranges up to a fixed length: views in the order of first use, ranges in ascending order, each byte
    /// once.
    pub fn read(self, bases: &dyn Bases) -> Result<Vec<u8>, DeltaError> {
        let mut prefix = Vec::new();
        for (name, mut ranges) in self.views {
            ranges.sort_unstable_by_key(|range| (range.start, range.end));
            let view = View::open(bases, name)?;
            let mut done = 0;
            for range in ranges {
                let from = range.start.max(done);
                let to = range.end.min(from.saturating_add((PREFIX_BYTES_MAX - prefix.len()) as u64));
                if from >= to {
                    continue;
                }
                let start = prefix.len();
                prefix.resize(start + (to - from) as usize, 0);
                view.read_exact(from, &mut prefix[start..])?;
                done = to;
            }
            if prefix.len() >= PREFIX_BYTES_MAX {
                break;
            }
        }
        Ok(prefix)
    }
}
