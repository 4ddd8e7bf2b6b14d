//! Sums over the keys that two files have in common, for all pairs, counted key by key.
//!
//! The lists of files that have a key, in any order of keys, are read as often as it takes for the counters of some files to
//! fit in memory: those of the files of a block, with all later files. The size of a block is found on the way: once there
//! are too many counters, the later half of the block is left to the next one. So pairs below a threshold exist only in
//! counters, and the answer does not depend on memory.
//!
//! Time: for each key a step for each two files that have it; and a pass over all lists for each block.

use super::Sums;
use crate::similarity::SimilarityError;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

type Result<T> = std::result::Result<T, SimilarityError>;

/// Bytes of a pair while it is counted: two numbers and its sums, in a table that is half full, and the space for sorting.
const PAIR_BYTES: usize = 96;

/// Spreads numbers that were given out in order over the buckets of a table.
#[derive(Default)]
pub(super) struct Spread(u64);

impl Hasher for Spread {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(u64::from(byte)));
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(u64::from(number));
    }

    fn write_u64(&mut self, number: u64) {
        let mixed = (self.0 ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ mixed >> 32;
    }
}

pub(super) type Counters<K> = HashMap<K, Sums, BuildHasherDefault<Spread>>;

/// Takes a list of (file, value) under one key, ascending by file and each file once.
pub(super) type Visit<'a> = dyn FnMut(&[(u32, u64)]) + 'a;

/// Passes on each such list.
pub(super) type Lists<'a> = &'a mut dyn FnMut(&mut Visit<'_>) -> Result<()>;
/// Gets a file and the files after it that it shares a key with, ascending; false ends the visit.
pub(super) type Pairs<'a> = &'a mut dyn FnMut(u32, &[(u32, Sums)]) -> Result<bool>;

/// Counts all pairs, in about `memory` bytes; returns how many passes that took.
pub(super) fn each_pair(
    memory: usize,
    meet: &dyn Fn(&mut Sums, u64, u64),
    lists: Lists<'_>,
    visit: Pairs<'_>,
) -> Result<u64> {
    let most = (memory / PAIR_BYTES).max(1);
    let end_of_all = 1 << 32;
    let (mut first, mut width, mut passes) = (0u64, end_of_all, 0);
    let mut counters: Counters<u64> = Counters::default();
    while first < end_of_all {
        let mut end = (first + width).min(end_of_all);
        lists(&mut |list| {
            let start = list.partition_point(|(file, _)| u64::from(*file) < first);
            for (at, &(a, of_a)) in list.iter().enumerate().skip(start) {
                if u64::from(a) >= end {
                    break;
                }
                for &(b, of_b) in &list[at + 1..] {
                    meet(counters.entry(u64::from(a) << 32 | u64::from(b)).or_default(), of_a, of_b);
                }
                if counters.len() > most && end - first > 1 {
                    end = halve(&mut counters, first, end);
                }
            }
        })?;
        passes += 1;
        width = if counters.len() > most / 2 { end - first } else { (end - first).saturating_mul(2) };
        if !give(&mut counters, visit)? {
            break;
        }
        first = end;
    }
    Ok(passes)
}

/// Drops the counters of the later files, half of all, and returns the new end of the block.
fn halve(counters: &mut Counters<u64>, first: u64, end: u64) -> u64 {
    let mut pairs: Vec<u64> = counters.keys().copied().collect();
    let middle = pairs.len() / 2;
    let (_, &mut pair, _) = pairs.select_nth_unstable(middle);
    let end = (pair >> 32).clamp(first + 1, end - 1);
    counters.retain(|pair, _| pair >> 32 < end);
    end
}

/// Passes on all counted pairs and clears the counters.
fn give(counters: &mut Counters<u64>, visit: Pairs<'_>) -> Result<bool> {
    let mut counted: Vec<(u64, Sums)> = counters.drain().collect();
    counted.sort_unstable_by_key(|(pair, _)| *pair);
    let mut others = Vec::new();
    for of_one in counted.chunk_by(|x, y| x.0 >> 32 == y.0 >> 32) {
        others.clear();
        others.extend(of_one.iter().map(|&(pair, sums)| (pair as u32, sums)));
        if !visit((of_one[0].0 >> 32) as u32, &others)? {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        /// Whatever the memory, each pair is counted once, in order.
        #[test]
        fn memory_does_not_matter(
            keys in prop::collection::vec(prop::collection::btree_map(0u32..30, 1u64..5, 0..12), 0..40), memory in 0usize..20_000,
        ) {
            let mut expected: BTreeMap<(u32, u32), Sums> = BTreeMap::new();
            for list in &keys {
                for (&a, of_a) in list {
                    for (&b, of_b) in list.range(a + 1..) {
                        let sums = expected.entry((a, b)).or_default();
                        (sums.shared, sums.a, sums.b) = (sums.shared + 1, sums.a + of_a, sums.b + of_b);
                    }
                }
            }
            let meet = |sums: &mut Sums, a: u64, b: u64| {
                (sums.shared, sums.a, sums.b) = (sums.shared + 1, sums.a + a, sums.b + b);
            };
            let mut lists = |visit: &mut Visit<'_>| {
                keys.iter().for_each(|list| visit(&list.iter().map(|(a, b)| (*a, *b)).collect::<Vec<_>>()));
                Ok(())
            };
            let mut found = Vec::new();
            let passes = each_pair(memory, &meet, &mut lists, &mut |a, others| {
                found.extend(others.iter().map(|(b, sums)| ((a, *b), *sums)));
                Ok(true)
            }).unwrap();
            prop_assert!(expected.len() <= (memory / PAIR_BYTES).max(1) || passes > 1);
            prop_assert_eq!(found, expected.into_iter().collect::<Vec<_>>());
        }
    }
}
