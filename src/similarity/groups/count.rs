//! Shares of each content with all later ones, row by row, from the features that both have.
//!
//! A feature in common was selected on both sides, so it is a sample at the coarser of the two levels, as in a query
//! (`query`). The features in common of a row are gathered, sorted and counted: a row is some hundreds or thousands of
//! entries, and fits in the processor's cache.

use super::facts::Facts;
use super::pairs::{Pair, PairSink};
use super::ranges::{RangeFile, entry, level, place};
use crate::similarity::SimilarityError;
use crate::similarity::estimate::shares_of_bytes;
use crate::similarity::gram::LEVELS;
use std::collections::BTreeMap;
use std::ops::Range;

type Result<T> = std::result::Result<T, SimilarityError>;

/// Pairs are kept from this share on, so no threshold can be lower.
pub const SHARE_MIN: f64 = 0.1;
/// Rows between two reports of progress.
const ROWS_PER_STEP: u32 = 4096;

pub(super) struct Counter<'a> {
    pub(super) facts: &'a Facts,
    /// Only pairs with a place from here on are counted.
    pub(super) new_from: u32,
    /// Bytes of memory for lists.
    pub(super) memory: usize,
}

/// The lists of some consecutive places, in memory.
struct Lists {
    places: Range<u32>,
    entries: Vec<u32>,
    /// Start in `entries` of the tails of each row; a tail goes to the entry with [`LAST`].
    starts: Vec<u32>,
    tails: Vec<u32>,
}

/// The last entry of a list has this bit.
const LAST: u32 = 1 << 31;

impl Counter<'_> {
    /// Writes the pairs of all rows of a range.
    pub(super) fn rows(
        &self,
        range: &RangeFile,
        sink: &mut PairSink,
        progress: &mut dyn FnMut(u64) -> bool,
    ) -> Result<()> {
        let mut todo = vec![range.places.clone()];
        while let Some(places) = todo.pop() {
            match self.load(range, places.clone())? {
                Some(lists) => self.loaded(&lists, sink, progress)?,
                None if places.len() > 1 => {
                    let middle = places.start + places.len() as u32 / 2;
                    todo.push(middle..places.end);
                    todo.push(places.start..middle);
                }
                None => self.streamed(range, places.start, sink)?,
            }
        }
        Ok(())
    }

    /// Loads the lists of some places of a range; `None` if they do not fit.
    fn load(&self, range: &RangeFile, places: Range<u32>) -> Result<Option<Lists>> {
        let most = self.memory.saturating_sub(8 * places.len()) / 4;
        let mut starts = vec![0u32; places.len() + 1];
        let (mut entries, mut rows) = (Vec::new(), 0);
        range.lists(&mut |list| {
            let from = list.partition_point(|&entry| place(entry) < places.start);
            let to = list.partition_point(|&entry| place(entry) < places.end).min(list.len() - 1);
            if from >= to {
                return true;
            }
            list[from..to].iter().for_each(|&entry| starts[(place(entry) - places.start) as usize + 1] += 1);
            rows += to - from;
            entries.extend_from_slice(&list[from..]);
            *entries.last_mut().expect("a list was appended") |= LAST;
            entries.len() + rows <= most
        })?;
        if entries.len() + rows > most {
            return Ok(None);
        }
        for row in 1..starts.len() {
            starts[row] += starts[row - 1];
        }
        let (mut next, mut tails) = (starts.clone(), vec![0; rows]);
        for (at, &entry) in entries.iter().enumerate() {
            if entry & LAST == 0 && place(entry) < places.end {
                let row = &mut next[(place(entry) - places.start) as usize];
                tails[*row as usize] = at as u32;
                *row += 1;
            }
        }
        Ok(Some(Lists { places, entries, starts, tails }))
    }

    fn loaded(
        &self,
        lists: &Lists,
        sink: &mut PairSink,
        progress: &mut dyn FnMut(u64) -> bool,
    ) -> Result<()> {
        let mut common = Vec::new();
        for (row, a) in lists.places.clone().enumerate() {
            let tails = &lists.tails[lists.starts[row] as usize..lists.starts[row + 1] as usize];
            for &tail in tails {
                let tail = &lists.entries[tail as usize..];
                gather(level(tail[0]), &tail[1..], |key| common.push(key));
            }
            common.sort_unstable();
            let counted = common.chunk_by(|a, b| a == b).map(|same| (same[0], same.len() as u32));
            self.row(a, counted, sink)?;
            common.clear();
            if a.is_multiple_of(ROWS_PER_STEP) && !progress(a.into()) {
                return Err(SimilarityError::Interrupted);
            }
        }
        Ok(())
    }

    /// Counts one row whose lists do not fit: memory grows with the places that it shares features with.
    fn streamed(&self, range: &RangeFile, a: u32, sink: &mut PairSink) -> Result<()> {
        let mut counted = BTreeMap::new();
        range.lists(&mut |list| {
            if let Ok(at) = list.binary_search_by_key(&a, |&entry| place(entry)) {
                gather(level(list[at]), &list[at + 1..], |key| *counted.entry(key).or_insert(0) += 1);
            }
            true
        })?;
        self.row(a, counted.into_iter(), sink)
    }

    /// Turns the sorted features in common of a row into pairs.
    fn row(&self, a: u32, counted: impl Iterator<Item = (u32, u32)>, sink: &mut PairSink) -> Result<()> {
        let mut counted = counted.peekable();
        let mut weights = None;
        while let Some((key, count)) = counted.next() {
            let b = place(key);
            let mut at = [0u32; LEVELS];
            at[usize::from(level(key))] = count;
            while let Some((key, count)) = counted.next_if(|(key, _)| place(*key) == b) {
                at[usize::from(level(key))] += count;
            }
            if a.max(b) < self.new_from {
                continue;
            }
            let of_a = weights.get_or_insert_with(|| self.facts.weights(a));
            let (a_grams, b_grams) = (share(&at, of_a), share(&at, &self.facts.weights(b)));
            let (a_in_b, b_in_a) = shares_of_bytes(a_grams, b_grams);
            if a_in_b.max(b_in_a) >= SHARE_MIN {
                sink.put(Pair { a, b, a_in_b, b_in_a })?;
            }
        }
        Ok(())
    }
}

/// Passes on the rest of a list after its entry of level `own`, each entry at the coarser level of the two.
fn gather(own: u8, rest: &[u32], mut found: impl FnMut(u32)) {
    for &other in rest {
        let plain = other & !LAST;
        found(entry(place(plain), level(plain).max(own)));
        if other & LAST != 0 {
            return;
        }
    }
}

fn share(at: &[u32; LEVELS], weights: &[f64; LEVELS]) -> f64 {
    at.iter().zip(weights).map(|(&n, weight)| f64::from(n) / weight).sum::<f64>().min(1.0)
}
