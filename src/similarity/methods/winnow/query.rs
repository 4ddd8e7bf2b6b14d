//! Queries of winnowing: without the fingerprints of a base, and with fewer look-ups on the same index (section 3.2).

use super::{Base, Winnow, WinnowSketch};
use crate::similarity::SimilarityError;
use crate::similarity::methods::{Entry, Found, Index, Likeness, Method, Sums, Whole};
use std::collections::HashMap;

/// How to query with one document. A part of its sketch may do: then only the figures that this part can give are there.
#[derive(Clone, Debug)]
pub struct Query {
    winnow: Winnow,
    base: Base,
    window: Option<u32>,
    smallest: Option<usize>,
}

impl Query {
    /// A query without the fingerprints in `base`. It uses the fingerprints that a window of `window` hashes keeps, and the
    /// `smallest` of those.
    ///
    /// Fails if `window` is smaller than that of `winnow`, or `smallest` is 0.
    pub fn new(
        winnow: Winnow,
        base: Base,
        window: Option<u32>,
        smallest: Option<usize>,
    ) -> Result<Query, String> {
        if let Some(window) = window.filter(|window| *window < winnow.w()) {
            return Err(format!(
                "a window of {window} hashes: expected {} or more, as is indexed",
                winnow.w()
            ));
        }
        if smallest == Some(0) {
            return Err("the 0 smallest hashes: expected 1 or more".into());
        }
        Ok(Query { winnow, base, window, smallest })
    }

    /// Returns the parameters of sketches.
    pub fn winnow(&self) -> Winnow {
        self.winnow
    }

    /// Returns the parameters of sketches and of the query, for people to read.
    pub fn parameters(&self) -> String {
        let mut text = self.winnow.described();
        if !self.base.is_empty() {
            text += ", without a base";
        }
        if let Some(window) = self.window {
            text += &format!(", asked with w={window}");
        }
        if let Some(n) = self.smallest {
            text += &format!(", asked with the {n} smallest");
        }
        text
    }

    /// Returns the contents of a winnowing index whose likeness to a document scores at least `score_min`, best first. With
    /// `smallest` it reads all keys up to the largest of those.
    pub fn ask(
        &self,
        index: &Index,
        sketch: &WinnowSketch,
        score_min: f64,
    ) -> Result<Vec<Found>, SimilarityError> {
        let own = self.base.taken_from(sketch);
        let wide = self.window.map_or_else(|| own.clone(), |window| own.with_window(window));
        let asked = self.smallest.map_or_else(|| wide.clone(), |n| wide.smallest(n));
        let entries = asked.entries();
        let asked = Whole { head: self.winnow.head(&asked), keys: entries.len() as u64 };
        let mut counted = index.counts(&mut entries.into_iter(), usize::MAX)?;
        counted.sort_unstable_by_key(|(number, _)| *number);
        // Every occurrence of the base's fingerprints.
        let of_base = self.base.hashes().iter().map(|&key| Entry { key, value: u64::MAX });
        let of_base: HashMap<u32, Sums> =
            index.counts(&mut of_base.collect::<Vec<_>>().into_iter(), usize::MAX)?.into_iter().collect();
        let numbers: Vec<u32> = counted.iter().map(|(number, _)| *number).collect();
        let resemblances = match (self.window, self.smallest) {
            (None, Some(n)) => self.resemblances(index, &own.smallest(n).hashes(), n, &numbers)?,
            _ => HashMap::new(),
        };
        let is_part = self.window.is_some() || self.smallest.is_some();
        let mut found = Vec::new();
        index.each_head(&numbers, &mut |at, row| {
            let (number, sums) = counted[at];
            let base = of_base.get(&number).copied().unwrap_or_default();
            let head = self.winnow.without(self.winnow.decode(&row.head)?, &base);
            let other = Whole { head, keys: row.keys.saturating_sub(base.shared) };
            let whole = self.winnow.likeness(&asked, &other, &sums);
            let resemblance = resemblances.get(&number).copied();
            let part = Likeness { containment: whole.containment, resemblance, ..Likeness::default() };
            let likeness = if is_part { part } else { whole };
            if likeness.score() > 0.0 && likeness.score() >= score_min {
                found.push(Found { id: row.id, likeness, sums });
            }
            Ok(true)
        })?;
        found.sort_by(|a, b| b.likeness.score().total_cmp(&a.likeness.score()).then(a.id.cmp(&b.id)));
        Ok(found)
    }

    /// Returns Broder's estimate for some contents: the share of the `n` smallest hashes in either that are in both. `own` are
    /// those of the document.
    fn resemblances(
        &self,
        index: &Index,
        own: &[u64],
        n: usize,
        contents: &[u32],
    ) -> Result<HashMap<u32, f64>, SimilarityError> {
        // If the document has n hashes, none of the n smallest of both is larger than its largest.
        let last = own.last().copied().filter(|_| own.len() >= n).unwrap_or(u64::MAX);
        // For each: how many of its hashes the document lacks, and how many of the smallest both have.
        let mut counts: HashMap<u32, (usize, usize)> =
            contents.iter().map(|&number| (number, (0, 0))).collect();
        index.keys(0, &mut |key, list| {
            if key > last {
                return false;
            }
            if self.base.hashes().contains(&key) {
                return true;
            }
            let place = own.binary_search(&key);
            for (number, _) in list {
                if let Some((others, both)) = counts.get_mut(number) {
                    match place {
                        Ok(at) => *both += usize::from(at + *others < n),
                        Err(_) => *others += 1,
                    }
                }
            }
            true
        })?;
        let share = |(number, (others, both)): (u32, (usize, usize))| {
            let all = n.min(own.len() + others);
            (number, if all == 0 { 0.0 } else { both as f64 / all as f64 })
        };
        Ok(counts.into_iter().map(share).collect())
    }
}
