//! Bytes of one source that occur in another.

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
    pub(super) fn join(&mut self, next: &Region) -> bool {
        let joins = next.a == self.end() && next.b == self.b + self.len;
        self.len += if joins { next.len } else { 0 };
        joins
    }
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
