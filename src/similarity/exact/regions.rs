//! The positions of one source's parts in another.

use super::cover::cover;
use super::{Common, Source, ends, segment_bytes};
use std::io;
use std::ops::Range;

/// Bytes of `a` that are in `b` too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// Their start in `a`.
    pub a: u64,
    /// Their start in `b`.
    pub b: u64,
    /// Their number.
    pub len: u64,
}

impl Region {
    fn end(&self) -> u64 {
        self.a + self.len
    }

    /// Returns the part of it in a range of `a`.
    fn clipped(self, to: &Range<u64>) -> Option<Region> {
        let (start, end) = (self.a.max(to.start), self.end().min(to.end));
        (start < end).then(|| Region { a: start, b: self.b + (start - self.a), len: end - start })
    }

    /// Takes over `next` if it continues where this one ends, on both sides.
    fn join(&mut self, next: &Region) -> bool {
        let joins = next.a == self.end() && next.b == self.b + self.len;
        self.len += if joins { next.len } else { 0 };
        joins
    }
}

/// Common bytes of two sources, with their places.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Regions {
    /// The counts, as [`super::compare`] gives them.
    pub common: Common,
    /// The places in `b` of the covered bytes of `a`, by place in `a`, without overlaps there. A byte that `b` has at
    /// several places is shown at one of them.
    pub regions: Vec<Region>,
    /// Regions that were left out, the shortest, because there are more than wanted.
    pub omitted: u64,
}

/// As [`super::compare`], and returns the places, in at most `regions_max` regions.
///
/// Memory beyond `memory_bytes`: 24 bytes a region before the shortest are left out.
pub fn compare_regions(
    a: &dyn Source,
    b: &dyn Source,
    memory_bytes: usize,
    regions_max: usize,
) -> io::Result<Regions> {
    let mut found = Regions::default();
    let known = match ends(a, b)? {
        Ok(known) => known,
        Err(common) => {
            found.common = common;
            if common.identical && !a.is_empty() {
                found.regions.push(Region { a: 0, b: 0, len: a.len() });
            }
            return Ok(found);
        }
    };
    let segment = segment_bytes(memory_bytes);
    let regions = &mut found.regions;
    let mut tell = |region: Region| {
        if !regions.last_mut().is_some_and(|last| last.join(&region)) {
            regions.push(region);
        }
    };
    let a_bytes = &mut found.common.a_bytes;
    cover(a, b, known, segment, Some(&mut tell), &mut |run| *a_bytes += run.end - run.start)?;
    let b_bytes = &mut found.common.b_bytes;
    cover(b, a, known, segment, None, &mut |run| *b_bytes += run.end - run.start)?;
    if found.regions.len() > regions_max {
        found.omitted = (found.regions.len() - regions_max) as u64;
        found.regions.sort_by_key(|region| std::cmp::Reverse(region.len));
        found.regions.truncate(regions_max);
        found.regions.sort_by_key(|region| region.a);
    }
    Ok(found)
}

/// Makes regions that do not overlap from matches that do: each place belongs to the match that reaches farthest. Leaves out
/// bytes outside of `within`.
pub(super) fn tile(mut matches: Vec<Region>, within: Range<u64>) -> Vec<Region> {
    matches.sort_unstable_by_key(|region| (region.a, std::cmp::Reverse(region.len)));
    let mut tiles: Vec<Region> = Vec::new();
    let mut next = matches.into_iter().peekable();
    let (mut at, mut best): (u64, Option<Region>) = (within.start, None);
    while at < within.end {
        while let Some(region) = next.next_if(|region| region.a <= at) {
            if best.is_none_or(|best| region.end() > best.end()) {
                best = Some(region);
            }
        }
        match best.filter(|best| best.end() > at) {
            Some(region) => {
                if let Some(tile) = region.clipped(&(at..within.end))
                    && !tiles.last_mut().is_some_and(|last| last.join(&tile))
                {
                    tiles.push(tile);
                }
                at = region.end();
            }
            None => match next.peek() {
                Some(region) => at = region.a,
                None => break,
            },
        }
    }
    tiles
}
