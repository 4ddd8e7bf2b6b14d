//! Finds the parts of a target that can be copied from the views of its bases.
//!
//! Small views are searched completely by their seeds. Large ones are searched by anchors first; seeds near
//! the gap then cover the bytes between two matches.

use super::DeltaError;
use super::anchor::Anchors;
use super::op::{CopyOp, Place};
use super::prefix::{Around, around};
use super::seed::{Hay, Part, SEED_BYTES, Seeds, Table, common, common_before};
use super::view::View;

/// Views up to this length are searched completely ...
const SMALL_BYTES: u64 = 8 << 20;
/// ... if all such views of a target have no more bytes than this.
const SMALL_BYTES_ALL: u64 = 32 << 20;
/// The range of a large view around a gap.
const NEAR: Around = Around { margin: 16 << 10, reach: 256 << 10 };
/// Bytes compared in one step: at first, and at most.
const COMPARE_BYTES: (usize, usize) = (4 << 10, 256 << 10);
/// Minimum length of a match by an anchor, except at an end.
const ANCHOR_MATCH_BYTES_MIN: usize = 48;

/// Finds copies in the pieces of one target, in order.
pub(super) struct Matcher<'v, 'b> {
    views: &'v [View<'b>],
    sizes: Vec<u64>,
    small: Hay,
    table: Option<Table>,
    anchors: Option<Anchors>,
    place: Place,
}

impl<'v, 'b> Matcher<'v, 'b> {
    pub fn new(views: &'v [View<'b>]) -> Result<Self, DeltaError> {
        let (mut small, mut large) = (Hay::default(), Vec::new());
        for (number, view) in views.iter().enumerate() {
            if view.size > SMALL_BYTES || small.bytes.len() as u64 + view.size > SMALL_BYTES_ALL {
                large.push((number, view));
            } else if view.size > 0 {
                add_part(&mut small, number, view, 0, view.size)?;
            }
        }
        let table = (!small.parts.is_empty()).then(|| Table::of(&small));
        let anchors = if large.is_empty() { None } else { Some(Anchors::of(&large)?) };
        let sizes = views.iter().map(|view| view.size).collect();
        Ok(Matcher { views, sizes, small, table, anchors, place: Place::default() })
    }

    /// Returns the copies in the next piece; `last` if the target ends with it.
    pub fn piece(&mut self, piece: &[u8], last: bool) -> Result<Vec<CopyOp>, DeltaError> {
        let mut copies = Vec::new();
        if let Some(anchors) = &self.anchors {
            self.by_anchors(anchors, piece, &mut copies)?;
        }
        if let Some(table) = self.table.take() {
            let seeds = Seeds::new(&self.small, table);
            copies = self.in_gaps(piece, copies, |gap, place, _, found| {
                seeds.fill(piece, gap, place, found);
                Ok(())
            })?;
            self.table = Some(seeds.into_table());
        }
        if self.anchors.is_some() {
            copies = self.in_gaps(piece, copies, |gap, place, next, found| {
                if gap.len() < SEED_BYTES {
                    return Ok(());
                }
                let mut hay = Hay::default();
                for (view, range) in around(place, next, gap.len(), last, &self.sizes, NEAR) {
                    if self.sizes[view] > SMALL_BYTES {
                        add_part(&mut hay, view, &self.views[view], range.start, range.end)?;
                    }
                }
                let table = Table::of(&hay);
                Seeds::new(&hay, table).fill(piece, gap, place, found);
                Ok(())
            })?;
        }
        self.place = place_after(&copies, piece.len(), self.place);
        Ok(copies)
    }

    /// Calls `fill` for each gap, and inserts the copies that it finds into `copies`.
    fn in_gaps(
        &self,
        piece: &[u8],
        copies: Vec<CopyOp>,
        mut fill: impl FnMut(
            std::ops::Range<usize>,
            Place,
            Option<Place>,
            &mut Vec<CopyOp>,
        ) -> Result<(), DeltaError>,
    ) -> Result<Vec<CopyOp>, DeltaError> {
        let (mut all, mut at, mut place) = (Vec::with_capacity(copies.len()), 0, self.place);
        for copy in copies {
            if copy.at > at {
                let next = Place { view: copy.view, offset: copy.offset };
                fill(at..copy.at, place, Some(next), &mut all)?;
            }
            (at, place) = (copy.end(), copy.after());
            all.push(copy);
        }
        if at < piece.len() {
            fill(at..piece.len(), place, None, &mut all)?;
        }
        Ok(all)
    }

    fn by_anchors(
        &self,
        anchors: &Anchors,
        piece: &[u8],
        copies: &mut Vec<CopyOp>,
    ) -> Result<(), DeltaError> {
        let (mut start, mut done, mut place) = (0, 0, self.place);
        for len in anchors.params.cut(piece, true) {
            let (from, to) = (start, start + len as usize);
            start = to;
            if from < done {
                continue;
            }
            let Some((mut view, mut offset)) = anchors.find(&piece[from..to]) else { continue };
            // Prefers the place that continues the last copy if both are equal.
            let expected = place.offset + (from - done) as u64;
            if (view, offset) != (place.view, expected)
                && self.anchors_view(place.view)
                && self.common_ahead(place.view, expected, &piece[from..to])? == to - from
            {
                (view, offset) = (place.view, expected);
            }
            let ahead = self.common_ahead(view, offset, &piece[from..])?;
            let back = self.common_back(view, offset, &piece[done..from])?;
            if ahead + back < ANCHOR_MATCH_BYTES_MIN {
                continue;
            }
            let copy = CopyOp { at: from - back, len: back + ahead, view, offset: offset - back as u64 };
            (done, place) = (copy.end(), copy.after());
            copies.push(copy);
        }
        Ok(())
    }

    fn anchors_view(&self, view: usize) -> bool {
        view < self.views.len()
    }

    fn common_ahead(&self, view: usize, offset: u64, bytes: &[u8]) -> Result<usize, DeltaError> {
        let (mut same, mut step, mut buffer) = (0, COMPARE_BYTES.0, Vec::new());
        while same < bytes.len() {
            let left = self.sizes[view].saturating_sub(offset + same as u64);
            let want = step.min(bytes.len() - same).min(usize::try_from(left).unwrap_or(usize::MAX));
            if want == 0 {
                break;
            }
            buffer.resize(want, 0);
            self.views[view].read_exact(offset + same as u64, &mut buffer)?;
            let found = common(&bytes[same..], &buffer);
            same += found;
            if found < want {
                break;
            }
            step = (step * 2).min(COMPARE_BYTES.1);
        }
        Ok(same)
    }

    fn common_back(&self, view: usize, offset: u64, bytes: &[u8]) -> Result<usize, DeltaError> {
        let (mut same, mut step, mut buffer) = (0, COMPARE_BYTES.0, Vec::new());
        while same < bytes.len() {
            let left = offset - same as u64;
            let want = step.min(bytes.len() - same).min(usize::try_from(left).unwrap_or(usize::MAX));
            if want == 0 {
                break;
            }
            buffer.resize(want, 0);
            self.views[view].read_exact(left - want as u64, &mut buffer)?;
            let found = common_before(&bytes[..bytes.len() - same], &buffer);
            same += found;
            if found < want {
                break;
            }
            step = (step * 2).min(COMPARE_BYTES.1);
        }
        Ok(same)
    }
}

/// Returns the place expected for the next piece after one of `len` bytes with these copies.
pub(super) fn place_after(copies: &[CopyOp], len: usize, before: Place) -> Place {
    let (at, place) = copies.last().map_or((0, before), |copy| (copy.end(), copy.after()));
    Place { offset: place.offset.saturating_add((len - at) as u64), ..place }
}

fn add_part(hay: &mut Hay, number: usize, view: &View<'_>, from: u64, to: u64) -> Result<(), DeltaError> {
    let start = hay.bytes.len();
    hay.bytes.resize(start + (to - from) as usize, 0);
    view.read_exact(from, &mut hay.bytes[start..])?;
    hay.parts.push(Part { view: number, offset: from, range: start..hay.bytes.len() });
    Ok(())
}
