//! Blocks of filters with the numbers of their chunks.
//!
//! Chunks that are alike have numbers near each other (`order`). So a filter is written as its difference from one shortly
//! before it, if that takes fewer bits: the grams that are missing, and the additional ones. All are Rice-coded gaps.
//!
//! Invariants: decoding returns the encoded filters, or `None` for damaged bytes. It never panics and never allocates much,
//! because the number of grams in a block is limited.

use super::bits::{BitReader, BitWriter, rice_bits};
use super::filter::{Filter, GRAM_BITS};
use super::gram::LEVELS;
use super::rows::Gaps;
use crate::recipe::{put_varint, take_varint};
use std::ops::Range;

/// A block ends once it has this many grams.
pub(super) const BLOCK_GRAMS: usize = 1 << 11;
const GRAMS_ALL: usize = 1 << GRAM_BITS;
/// A block has at most this many grams.
const GRAMS_MAX: usize = BLOCK_GRAMS + GRAMS_ALL;
/// A filter may refer to one of this many filters before it in its block.
const BEFORE: usize = 8;
/// Bits for the filter that it refers to, or none.
const LIKE_BITS: u32 = BEFORE.ilog2() + 1;
const LEVEL_BITS: u32 = LEVELS.ilog2();
/// Bits for the length of a number of grams.
const COUNT_BITS: u32 = GRAM_BITS.ilog2() + 1;

/// Encodes filters with the numbers of their chunks, which ascend: the gap to the chunk before, the level, the filter that
/// it refers to, grams.
pub(super) fn encode(filters: &[(u32, &Filter)]) -> Vec<u8> {
    let mut chunk_gaps = Gaps::default();
    filters.windows(2).for_each(|pair| chunk_gaps.add((pair[1].0 - pair[0].0 - 1).into()));
    let chunk_rice = chunk_gaps.rice();
    let mut out = Vec::with_capacity(BLOCK_GRAMS);
    put_varint(&mut out, filters.len() as u64);
    put_varint(&mut out, filters.first().map_or(0, |(chunk, _)| (*chunk).into()));
    out.push(chunk_rice as u8);
    let (mut bits, mut has) = (BitWriter::new(out), vec![false; GRAMS_ALL]);
    for (at, (chunk, filter)) in filters.iter().enumerate() {
        if at > 0 {
            bits.put_rice((chunk - filters[at - 1].0 - 1).into(), chunk_rice);
        }
        bits.put(filter.level.into(), LEVEL_BITS);
        let whole = [(filter.grams().to_vec(), GRAMS_ALL)];
        let likeliest = likeliest(filter, &filters[at.saturating_sub(BEFORE)..at], &mut has);
        let by_another = likeliest.map(|back| (back, difference(filters[at - back].1, filter)));
        match by_another.filter(|(_, difference)| cost(difference) < cost(&whole)) {
            Some((back, difference)) => {
                bits.put(back as u64, LIKE_BITS);
                difference.iter().for_each(|(set, of)| put_set(set, *of, &mut bits));
            }
            None => {
                bits.put(0, LIKE_BITS);
                put_set(&whole[0].0, GRAMS_ALL, &mut bits);
            }
        }
    }
    bits.finish()
}

/// Returns how far back the filter is that has most in common with this one, if any has. `has` is clear before and after.
fn likeliest(filter: &Filter, before: &[(u32, &Filter)], has: &mut [bool]) -> Option<usize> {
    filter.grams().iter().for_each(|gram| has[usize::from(*gram)] = true);
    let common = |other: &Filter| other.grams().iter().map(|gram| usize::from(has[usize::from(*gram)])).sum();
    let commons = before.iter().rev().zip(1..).map(|((_, other), back)| (common(other), back));
    // The nearest of several equals.
    let best = commons.max_by_key(|&(common, back): &(usize, usize)| (common, BEFORE - back));
    filter.grams().iter().for_each(|gram| has[usize::from(*gram)] = false);
    best.filter(|(common, _)| *common > 0).map(|(_, back)| back)
}

/// Returns the grams of `before` that are not in `filter`, by their places, and the grams only in `filter`; each with the end
/// of the range they are from.
fn difference(before: &Filter, filter: &Filter) -> [(Vec<u16>, usize); 2] {
    let (mut gone, mut new) = (Vec::new(), Vec::new());
    let mut grams = filter.grams().iter().copied().peekable();
    for (&gram, at) in before.grams().iter().zip(0u16..) {
        while let Some(less) = grams.next_if(|other| *other < gram) {
            new.push(less);
        }
        if grams.next_if_eq(&gram).is_none() {
            gone.push(at);
        }
    }
    new.extend(grams);
    [(gone, before.grams().len()), (new, GRAMS_ALL)]
}

fn cost(sets: &[(Vec<u16>, usize)]) -> u64 {
    let gaps = |set: &[u16], of| {
        let rice = rice_of(set.len(), of);
        gaps(set).map(|gap| rice_bits(gap, rice)).sum::<u64>()
    };
    sets.iter()
        .map(|(set, of)| u64::from(COUNT_BITS + set.len().checked_ilog2().unwrap_or(0)) + gaps(set, *of))
        .sum()
}

/// Returns the Rice parameter for the gaps of `count` numbers below `of`: it splits at their mean.
fn rice_of(count: usize, of: usize) -> u32 {
    of.checked_div(count).and_then(usize::checked_ilog2).unwrap_or(0)
}

/// Returns the gaps: the first from 0, each other from one above the number before.
fn gaps(set: &[u16]) -> impl Iterator<Item = u64> {
    let next = std::iter::once(0).chain(set.iter().map(|number| u64::from(*number) + 1));
    set.iter().zip(next).map(|(number, next)| u64::from(*number) - next)
}

fn put_set(set: &[u16], of: usize, bits: &mut BitWriter) {
    bits.put_number(set.len() as u64, COUNT_BITS);
    let rice = rice_of(set.len(), of);
    gaps(set).for_each(|gap| bits.put_rice(gap, rice));
}

/// Adds a set of at most `count_max` numbers below `of` to `out`.
fn take_set(bits: &mut BitReader<'_>, of: usize, count_max: usize, out: &mut Vec<u16>) -> Option<()> {
    let count = bits.take_number(COUNT_BITS).filter(|&count| count <= count_max as u64)? as usize;
    let (rice, mut next) = (rice_of(count, of), 0);
    for _ in 0..count {
        let number = bits.take_rice(rice)?.checked_add(next).filter(|&number| number < of as u64)?;
        out.push(number as u16);
        next = number + 1;
    }
    Some(())
}

/// Returns the encoded filters; `None` if the block is damaged.
pub(super) fn decode(block: &[u8]) -> Option<Vec<(u32, Filter)>> {
    let mut filters = FilterReader::new(block)?;
    while filters.left > 0 {
        filters.take()?;
    }
    Some(filters.taken.iter().map(|taken| (taken.chunk, filters.filter(taken))).collect())
}

/// Reads the filters of a block, as far as they are asked for.
pub(super) struct FilterReader<'a> {
    bits: BitReader<'a>,
    chunk_rice: u32,
    /// The first chunk, then the last one taken.
    chunk: u32,
    /// Number of filters left.
    left: u64,
    taken: Vec<Taken>,
    /// Grams of all filters taken, one after the other.
    grams: Vec<u16>,
    /// Places that the filter lacks of the one it refers to, and its additional grams.
    gone: Vec<u16>,
    new: Vec<u16>,
}

struct Taken {
    chunk: u32,
    level: u8,
    grams: Range<usize>,
}

impl FilterReader<'_> {
    pub(super) fn new(mut block: &[u8]) -> Option<FilterReader<'_>> {
        // Each filter has at least the bits of its level.
        let left = take_varint(&mut block).filter(|&left| left <= 8 * block.len() as u64)?;
        let chunk = u32::try_from(take_varint(&mut block)?).ok()?;
        let (&rice, block) = block.split_first().filter(|(rice, _)| **rice <= 32)?;
        let (bits, grams) = (BitReader::new(block), Vec::with_capacity(GRAMS_MAX));
        let (taken, gone, new) = Default::default();
        Some(FilterReader { bits, chunk_rice: rice.into(), chunk, left, taken, grams, gone, new })
    }

    /// Returns the filter of `chunk`; chunks are asked for in order. `None` if the block is damaged, `Some(None)` if the chunk has
    /// no filter here. [`FilterReader::is_before`] returns whether it may be in a later block.
    pub(super) fn find(&mut self, chunk: u32) -> Option<Option<Filter>> {
        while self.left > 0 && self.is_before(chunk) {
            self.take()?;
        }
        let found = self.taken.last().filter(|taken| taken.chunk == chunk);
        Some(found.map(|taken| self.filter(taken)))
    }

    /// Returns whether all filters taken are of chunks before this one.
    pub(super) fn is_before(&self, chunk: u32) -> bool {
        self.taken.last().is_none_or(|taken| taken.chunk < chunk)
    }

    fn filter(&self, taken: &Taken) -> Filter {
        Filter::of_grams(taken.level, self.grams[taken.grams.clone()].to_vec())
    }

    fn take(&mut self) -> Option<()> {
        let bits = &mut self.bits;
        if !self.taken.is_empty() {
            let gap = u32::try_from(bits.take_rice(self.chunk_rice)?).ok()?;
            self.chunk = self.chunk.checked_add(gap)?.checked_add(1)?;
        }
        let level = bits.take(LEVEL_BITS)? as u8;
        let (start, most) = (self.grams.len(), GRAMS_MAX - self.grams.len());
        match bits.take(LIKE_BITS)? as usize {
            0 => take_set(bits, GRAMS_ALL, most, &mut self.grams)?,
            back => {
                let before = self.taken.get(self.taken.len().checked_sub(back)?)?.grams.clone();
                self.gone.clear();
                take_set(bits, before.len(), before.len(), &mut self.gone)?;
                self.new.clear();
                take_set(bits, GRAMS_ALL, most, &mut self.new)?;
                self.change(before)?;
            }
        }
        let grams = start..self.grams.len();
        self.taken.push(Taken { chunk: self.chunk, level, grams });
        self.left -= 1;
        Some(())
    }

    /// Adds the grams at `before`, without those at the places in `gone`, and with those in `new`, which `before` must not have.
    fn change(&mut self, before: Range<usize>) -> Option<()> {
        (before.len() + self.new.len() + self.grams.len() <= GRAMS_MAX + self.gone.len()).then_some(())?;
        let mut gone = self.gone.iter().map(|&place| usize::from(place)).peekable();
        let mut new = self.new.iter().copied().peekable();
        for (place, at) in before.enumerate() {
            let gram = self.grams[at];
            while let Some(less) = new.next_if(|other| *other < gram) {
                self.grams.push(less);
            }
            if gone.next_if_eq(&place).is_some() {
                continue;
            }
            if new.peek() == Some(&gram) {
                return None;
            }
            self.grams.push(gram);
        }
        self.grams.extend(new);
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::similarity::Sketch;
    use crate::similarity::methods::laws::noise;
    use proptest::prelude::*;

    fn filter_of(bytes: &[u8]) -> Filter {
        Sketch::of_chunk(bytes).into_parts().1
    }

    fn bits_a_gram(filters: &[Filter]) -> f64 {
        let numbered: Vec<_> = (100..).zip(filters).collect();
        let block = encode(&numbered);
        let back = decode(&block).unwrap();
        assert!(back.iter().map(|(chunk, filter)| (*chunk, filter)).eq(numbered.iter().copied()));
        let grams: usize = filters.iter().map(|filter| filter.grams().len()).sum();
        assert!(grams > filters.len() * 100);
        block.len() as f64 * 8.0 / grams as f64
    }

    #[test]
    fn takes_few_bits() {
        let filters: Vec<_> = (0..50).map(|seed| filter_of(&noise(2000, seed))).collect();
        let bits = bits_a_gram(&filters);
        assert!(bits < 8.0, "{bits}");
    }

    /// Two kinds of which every other is, each with a tenth that only it has.
    #[test]
    fn takes_fewer_of_what_is_alike() {
        let version = |i: u64| filter_of(&[noise(1800, i % 2), noise(200, 100 + i)].concat());
        let bits = bits_a_gram(&(0..50).map(version).collect::<Vec<_>>());
        assert!(bits < 2.5, "{bits}");
    }

    proptest! {
        #[test]
        fn round_trips(sets in prop::collection::vec((prop::collection::btree_set(0u16..60, 0..30), any::<bool>(), 0u8..8), 0..30)) {
            let filters: Vec<_> = sets.into_iter().map(|(set, is_wide, level)| {
                Filter::of_grams(level, set.into_iter().map(|gram| gram * if is_wide { 136 } else { 1 }).collect())
            }).collect();
            let numbered: Vec<_> = (7..).step_by(3).zip(&filters).collect();
            let back = decode(&encode(&numbered)).unwrap();
            prop_assert!(back.iter().map(|(chunk, filter)| (*chunk, filter)).eq(numbered));
        }

        #[test]
        fn damage_does_not_panic(block in prop::collection::vec(any::<u8>(), 0..300)) {
            if let Some(filters) = decode(&block) {
                let again = encode(&filters.iter().map(|(chunk, filter)| (*chunk, filter)).collect::<Vec<_>>());
                prop_assert_eq!(decode(&again), Some(filters));
            }
        }
    }
}
