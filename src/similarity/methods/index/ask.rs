//! Queries of an index: contents similar to one, and contents similar to each other.

use super::{Index, Result};
use crate::id::RecipeId;
use crate::similarity::methods::counting::{self, Counters};
use crate::similarity::methods::postings::{POSTINGS, key_prefix, of_posting};
use crate::similarity::methods::{AnySketch, Comparer, Entry, Likeness, Sums};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::Arc;

/// Entries looked up at once.
const ENTRIES_MAX: usize = 1 << 16;

/// A content that was found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Found {
    /// Which content.
    pub id: RecipeId,
    /// How the query, as a, compares with it, as b.
    pub likeness: Likeness,
    /// The sums behind it.
    pub sums: Sums,
}

/// Two contents that are alike.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FoundPair {
    /// The one that was added first.
    pub a: RecipeId,
    /// The other.
    pub b: RecipeId,
    /// How they compare.
    pub likeness: Likeness,
    /// The sums behind it.
    pub sums: Sums,
}

/// Options of a comparison of all with all.
#[derive(Clone, Debug)]
pub struct PairsAsked {
    /// Smallest score.
    pub score_min: f64,
    /// Keys that count nothing, as if no content had them.
    pub without: Arc<BTreeSet<u64>>,
    /// A key that more contents than this, and than [`super::IndexOptions::frequency_cap`], have counts nothing either.
    pub contents_max: usize,
    /// Whether to visit each content that has keys with itself too.
    pub itself: bool,
    /// Memory for counting.
    pub memory_bytes: usize,
}

impl Default for PairsAsked {
    fn default() -> Self {
        PairsAsked {
            score_min: 0.0,
            without: Arc::default(),
            contents_max: usize::MAX,
            itself: false,
            memory_bytes: 64 << 20,
        }
    }
}

/// Amount of work of a comparison of all with all, and what it left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PairCounts {
    /// Passes over the keys.
    pub passes: u64,
    /// Pairs that have something in common, but score less than wanted.
    pub below_min: u64,
}

impl Index {
    /// Returns contents whose likeness to the sketch scores at least `score_min`, the best first, at most `limit`.
    pub fn query(&self, sketch: &AnySketch, score_min: f64, limit: usize) -> Result<Vec<Found>> {
        self.flush()?;
        let counted = match self.method.by_range() {
            true => {
                self.near(sketch.head(), 0)?.into_iter().map(|number| (number, Sums::default())).collect()
            }
            false => self.counted(sketch)?,
        };
        let mut counted: Vec<(u32, Sums)> = counted;
        counted.sort_unstable_by_key(|(number, _)| *number);
        let mut found = Vec::new();
        let comparer = self.method.comparer(sketch.head(), sketch.keys())?;
        self.each_compared(&*comparer, &counted, &mut |id, likeness, sums| {
            if likeness.score() > 0.0 && likeness.score() >= score_min {
                found.push(Found { id, likeness, sums });
            }
            Ok(true)
        })?;
        found.sort_by(|a, b| b.likeness.score().total_cmp(&a.likeness.score()).then(a.id.cmp(&b.id)));
        // A crash may leave rows of a content that was removed and added again.
        found.dedup_by_key(|found| found.id);
        found.truncate(limit);
        Ok(found)
    }

    /// Calls `visit` with each two contents that `takes` accepts and whose likeness scores enough, by the one that was added
    /// first, until it returns false. Pairs below the score are counted but never kept. In addition to the memory for counting it
    /// takes some 100 bytes for each content.
    pub fn pairs(
        &self,
        asked: &PairsAsked,
        takes: &mut dyn FnMut(&RecipeId) -> bool,
        visit: &mut dyn FnMut(FoundPair) -> Result<bool>,
    ) -> Result<PairCounts> {
        self.flush()?;
        let mut contents = BTreeMap::new();
        self.each_row(0, &mut |number, row| {
            if takes(&row.id) {
                contents.insert(number, row);
            }
            true
        })?;
        let except = asked.without.iter().map(|&key| Entry { key, value: u64::MAX });
        let mut except = except.collect::<Vec<_>>().into_iter();
        for (number, sums) in self.counts(&mut except, usize::MAX)? {
            if let Some(row) = contents.get_mut(&number) {
                row.keys = row.keys.saturating_sub(sums.shared);
                row.head = self.method.head_without(&row.head, &sums)?;
            }
        }
        let mut given = BTreeSet::new();
        for row in contents.values().filter(|row| asked.itself && row.keys > 0) {
            // A crash may leave rows of a content that was removed and added again.
            if !given.insert(row.id) {
                continue;
            }
            let whole = Some(1.0);
            let likeness =
                Likeness { containment: whole, contained_in: whole, resemblance: whole, distance: None };
            let sums = Sums { shared: row.keys, ..Sums::default() };
            if !visit(FoundPair { a: row.id, b: row.id, likeness, sums })? {
                return Ok(PairCounts::default());
            }
        }
        let mut below_min = 0;
        let mut compare = |a: u32, others: &[(u32, Sums)]| -> Result<bool> {
            let Some(of_a) = contents.get(&a) else { return Ok(true) };
            let comparer = self.method.comparer(&of_a.head, of_a.keys)?;
            for &(b, sums) in others {
                let Some(of_b) = contents.get(&b) else { continue };
                let likeness = comparer.with(&of_b.head, of_b.keys, &sums)?;
                if likeness.score() <= 0.0 || of_a.id == of_b.id {
                    continue;
                }
                if likeness.score() < asked.score_min {
                    below_min += 1;
                } else if !visit(FoundPair { a: of_a.id, b: of_b.id, likeness, sums })? {
                    return Ok(false);
                }
            }
            Ok(true)
        };
        if self.method.by_range() {
            for (&number, row) in &contents {
                let others = self.near(&row.head, number + 1)?;
                let others: Vec<_> = others.into_iter().map(|other| (other, Sums::default())).collect();
                if !compare(number, &others)? {
                    break;
                }
            }
            return Ok(PairCounts { passes: 1, below_min });
        }
        let meet = |sums: &mut Sums, a: u64, b: u64| self.method.met(sums, a, b);
        let most = self.options.frequency_cap.min(asked.contents_max);
        let mut lists = |visit: &mut counting::Visit<'_>| {
            self.each_key(&mut |key, list| {
                if list.len() <= most && !asked.without.contains(&key) {
                    visit(list);
                }
                true
            })
        };
        let passes = counting::each_pair(asked.memory_bytes, &meet, &mut lists, &mut compare)?;
        Ok(PairCounts { passes, below_min })
    }

    /// Returns the sums for each content that has some of the entries (by key, each key once), without keys that more than
    /// `contents_max` have. Removed contents may be among them.
    pub fn counts(
        &self,
        entries: &mut dyn Iterator<Item = Entry>,
        contents_max: usize,
    ) -> Result<Vec<(u32, Sums)>> {
        self.flush()?;
        let mut counters = Counters::default();
        loop {
            let some: Vec<Entry> = entries.take(ENTRIES_MAX).collect();
            if some.is_empty() {
                return Ok(counters.into_iter().collect());
            }
            self.count(&some, contents_max, &mut counters)?;
        }
    }

    /// [`Index::counts`] of a sketch, which may be longer than memory.
    fn counted(&self, sketch: &AnySketch) -> Result<Vec<(u32, Sums)>> {
        let (mut counters, mut some) = (Counters::default(), Vec::new());
        let most = self.options.frequency_cap;
        sketch.each(&mut |entry| {
            some.push(entry);
            if some.len() < ENTRIES_MAX {
                return Ok(());
            }
            self.count(&some, most, &mut counters)?;
            some.clear();
            Ok(())
        })?;
        self.count(&some, most, &mut counters)?;
        Ok(counters.into_iter().collect())
    }

    fn count(&self, entries: &[Entry], contents_max: usize, counters: &mut Counters<u32>) -> Result<()> {
        let mut add = |entry: Entry, list: &mut Vec<(u32, u64)>| {
            if list.len() <= contents_max {
                let counted = list.iter();
                counted.for_each(|&(content, value)| {
                    self.method.met(counters.entry(content).or_default(), entry.value, value);
                });
            }
            list.clear();
        };
        let prefixes: Vec<_> = entries.iter().map(|entry| key_prefix(self.prefix, entry.key)).collect();
        let (mut at, mut list) = (0, Vec::new());
        POSTINGS.scan_each(&*self.db, &prefixes, |prefix, row| {
            if prefix != at {
                add(entries[at], &mut list);
                at = prefix;
            }
            let (entry, content) = of_posting(row);
            list.push((content, entry.value));
            true
        })?;
        if !list.is_empty() {
            add(entries[at], &mut list);
        }
        Ok(())
    }

    /// Returns the numbers from `from` on of contents with keys near to a head's, ascending.
    fn near(&self, head: &[u8], from: u32) -> Result<Vec<u32>> {
        let mut near = BTreeSet::new();
        for range in self.method.near_to(head)? {
            self.numbers_within(&range, &mut |numbers| {
                near.extend(numbers.iter().copied().filter(|&number| number >= from));
            })?;
        }
        Ok(near.into_iter().collect())
    }

    /// Calls `visit` with the numbers under each key of a range, except for keys beyond the cap.
    fn numbers_within(&self, range: &RangeInclusive<u64>, visit: &mut dyn FnMut(&[u32])) -> Result<()> {
        let (mut last, mut numbers) = (None, Vec::new());
        let most = self.options.frequency_cap;
        let mut give = |numbers: &mut Vec<u32>| {
            if numbers.len() <= most {
                visit(numbers);
            }
            numbers.clear();
        };
        let from = key_prefix(self.prefix, *range.start());
        POSTINGS.scan_from(&*self.db, &[self.prefix], &from, |row| {
            let (Entry { key, .. }, content) = of_posting(row);
            if key > *range.end() {
                return false;
            }
            if last.is_some_and(|last| last != key) {
                give(&mut numbers);
            }
            last = Some(key);
            numbers.push(content);
            true
        })?;
        give(&mut numbers);
        Ok(())
    }

    /// Compares one file with contents, which ascend; skips removed ones.
    fn each_compared(
        &self,
        comparer: &dyn Comparer,
        counted: &[(u32, Sums)],
        visit: &mut dyn FnMut(RecipeId, Likeness, Sums) -> Result<bool>,
    ) -> Result<()> {
        let numbers: Vec<u32> = counted.iter().map(|(number, _)| *number).collect();
        self.each_head(&numbers, &mut |at, row| {
            let sums = counted[at].1;
            visit(row.id, comparer.with(&row.head, row.keys, &sums)?, sums)
        })
    }
}
