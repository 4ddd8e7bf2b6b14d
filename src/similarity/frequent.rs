//! Features that many contents have, and the passages around them, to learn boilerplate.

use super::boilerplate::passage;
use super::gram;
use super::index::Similarity;
use super::rows::{CONTAINED, CONTENTS, ContentRow, POSTING_BYTES, containment_of, posting_number};
use super::{Boilerplate, SimilarityError};
use crate::id::RecipeId;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::ops::ControlFlow;

/// A feature that many contents have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frequent {
    feature: u64,
    /// How many contents have it; a content that has it in two of its chunks counts twice.
    pub contents: u64,
    /// Some of them.
    pub examples: Vec<RecipeId>,
}

impl Frequent {
    /// Returns whether it is a feature of the boilerplate.
    pub fn is_of(&self, boilerplate: &Boilerplate) -> bool {
        boilerplate.has(self.feature)
    }

    /// Returns the passage around it that `files_min` or more of the files have, and how many have it. Files without the
    /// feature do not count. O(their bytes).
    pub fn passage(&self, files: &[&[u8]], files_min: usize) -> Option<(Vec<u8>, usize)> {
        let at = |file: &&[u8]| gram::find(file, self.feature);
        let places: Vec<_> = files.iter().filter_map(|file| Some((*file, at(file)?))).collect();
        passage(&places, files_min)
    }
}

impl Similarity {
    /// Returns the features that `contents_min` or more contents have, the most frequent first, at most `most` of them; each
    /// with up to `examples` contents. One pass over the index: O(postings), 4 bytes of memory for each chunk.
    pub fn frequent(
        &self,
        contents_min: u64,
        most: usize,
        examples: usize,
    ) -> Result<Vec<Frequent>, SimilarityError> {
        self.flush()?;
        let state = self.read();
        let mut holders = vec![0u32; state.meta.next_chunk as usize];
        CONTAINED.scan(&*self.db, &[], |row| {
            let (chunk, content, _) = containment_of(row);
            if let Some(count) = holders.get_mut(chunk as usize).filter(|_| !state.is_dead(content)) {
                *count += 1;
            }
            true
        })?;
        let count = |chunk: &u32| u64::from(holders.get(*chunk as usize).copied().unwrap_or(0));
        // The most frequent so far, with the least frequent of them on top.
        let mut frequent = BinaryHeap::new();
        let (mut of, mut chunks) = ([0; POSTING_BYTES - 4], Vec::new());
        let mut end_of_feature = |of: &[u8], chunks: &mut Vec<u32>| {
            let contents: u64 = chunks.iter().map(count).sum();
            if contents >= contents_min {
                chunks.retain(|chunk| count(chunk) > 0);
                let step = chunks.len().div_ceil(examples).max(1);
                let some: Vec<u32> = chunks.iter().copied().step_by(step).collect();
                let feature = of.iter().fold(0, |feature, &byte| feature << 8 | u64::from(byte));
                frequent.push(Reverse((contents, feature, some)));
                if frequent.len() > most {
                    frequent.pop();
                }
            }
            chunks.clear();
        };
        self.tables.features.scan(&*self.db, &[], |row| {
            if row[..of.len()] != of {
                end_of_feature(&of, &mut chunks);
                of.copy_from_slice(&row[..POSTING_BYTES - 4]);
            }
            chunks.push(posting_number(row));
            ControlFlow::Continue(())
        })?;
        end_of_feature(&of, &mut chunks);
        let found = frequent.into_sorted_vec();
        let recipes =
            self.contents_of(found.iter().flat_map(|Reverse((_, _, chunks))| chunks.clone()), examples)?;
        let found = found.into_iter().map(|Reverse((contents, feature, chunks))| {
            // A chunk that many contents have gives as many examples as there is room for.
            let each = examples.div_ceil(chunks.len().max(1));
            let of_chunk = |chunk: &u32| recipes.get(chunk).into_iter().flatten().copied().take(each);
            let mut examples: Vec<RecipeId> = chunks.iter().flat_map(of_chunk).collect();
            examples.sort_unstable();
            examples.dedup();
            Frequent { feature, contents, examples }
        });
        Ok(found.collect())
    }

    /// Returns for each chunk some contents that have it, at most `most`.
    fn contents_of(
        &self,
        chunks: impl Iterator<Item = u32>,
        most: usize,
    ) -> Result<HashMap<u32, Vec<RecipeId>>, SimilarityError> {
        let mut chunks: Vec<u32> = chunks.collect();
        chunks.sort_unstable();
        chunks.dedup();
        let prefixes: Vec<_> = chunks.iter().map(|chunk| chunk.to_be_bytes()).collect();
        let mut pairs: Vec<(u32, u32)> = Vec::new();
        let (mut of, mut count) = (0, 0);
        CONTAINED.scan_each(&*self.db, &prefixes, |i, row| {
            count = if i == of { count + 1 } else { 1 };
            of = i;
            pairs.push((containment_of(row).1, chunks[i]));
            count < most
        })?;
        pairs.sort_unstable();
        let numbers: Vec<_> = pairs.iter().map(|(content, _)| content.to_be_bytes()).collect();
        let mut recipes: HashMap<u32, Vec<RecipeId>> = HashMap::new();
        CONTENTS.scan_each(&*self.db, &numbers, |i, row| {
            recipes.entry(pairs[i].1).or_default().push(ContentRow::of_row(row).1.recipe);
            false
        })?;
        Ok(recipes)
    }
}
