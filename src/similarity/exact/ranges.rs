//! Sets of bytes of a source, as ranges.

use std::ops::Range;

/// Byte ranges of a source, in order and not touching each other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ranges(Vec<Range<u64>>);

impl Ranges {
    /// Adds a range that starts no earlier than those added before.
    pub fn push(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        match self.0.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => self.0.push(range),
        }
    }

    /// Returns the number of bytes.
    pub fn bytes(&self) -> u64 {
        self.0.iter().map(|range| range.end - range.start).sum()
    }

    /// Returns the ranges in order.
    pub fn iter(&self) -> impl Iterator<Item = &Range<u64>> {
        self.0.iter()
    }

    /// Returns the bytes in either.
    pub fn union(&self, other: &Ranges) -> Ranges {
        let mut all: Vec<_> = self.0.iter().chain(&other.0).cloned().collect();
        all.sort_unstable_by_key(|range| range.start);
        let mut union = Ranges::default();
        all.into_iter().for_each(|range| union.push(range));
        union
    }

    /// Returns the bytes that `other` lacks, without ranges of fewer than `bytes_min` bytes.
    pub fn without(&self, other: &Ranges, bytes_min: u64) -> Ranges {
        let mut left = Ranges::default();
        let mut cuts = other.0.iter().peekable();
        for range in &self.0 {
            let mut at = range.start;
            while cuts.next_if(|cut| cut.end <= at).is_some() {}
            while at < range.end {
                let cut = cuts.peek().filter(|cut| cut.start < range.end);
                let end = cut.map_or(range.end, |cut| cut.start.max(at));
                if end - at >= bytes_min {
                    left.push(at..end);
                }
                at = match cut {
                    Some(cut) if cut.end >= range.end => break,
                    Some(cut) => cut.end,
                    None => break,
                };
                cuts.next();
            }
        }
        left
    }

    /// Returns which of the first `len` bytes are missing.
    pub fn complement(&self, len: u64) -> Ranges {
        let mut all = Ranges::default();
        all.push(0..len);
        all.without(self, 1)
    }
}

impl FromIterator<Range<u64>> for Ranges {
    /// Collects ranges in any order.
    fn from_iter<I: IntoIterator<Item = Range<u64>>>(ranges: I) -> Ranges {
        Ranges::default().union(&Ranges(ranges.into_iter().collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ranges() -> impl Strategy<Value = Ranges> {
        prop::collection::vec((0u64..200, 0u64..30), 0..12)
            .prop_map(|parts| parts.into_iter().map(|(at, len)| at..at + len).collect())
    }

    fn bytes(ranges: &Ranges) -> Vec<bool> {
        (0..300).map(|at| ranges.iter().any(|range| range.contains(&at))).collect()
    }

    proptest! {
        #[test]
        fn sets_are_sets(a in ranges(), b in ranges(), least in 1u64..9) {
            let (in_a, in_b) = (bytes(&a), bytes(&b));
            prop_assert!(a.0.windows(2).all(|pair| pair[0].end < pair[1].start));
            prop_assert_eq!(a.bytes() as usize, in_a.iter().filter(|&&is| is).count());
            let either: Vec<_> = in_a.iter().zip(&in_b).map(|(a, b)| *a || *b).collect();
            prop_assert_eq!(bytes(&a.union(&b)), either);
            let mut only: Vec<_> = in_a.iter().zip(&in_b).map(|(a, b)| *a && !*b).collect();
            prop_assert_eq!(bytes(&a.without(&b, 1)), only.clone());
            for run in only.chunk_by_mut(|a, b| a == b) {
                let stays = run[0] && run.len() as u64 >= least;
                run.fill(stays);
            }
            prop_assert_eq!(bytes(&a.without(&b, least)), only);
            prop_assert_eq!(bytes(&a.complement(300)), in_a.iter().map(|a| !a).collect::<Vec<_>>());
        }
    }
}
