//! All against all: which contents resemble each other, and which of them represent the others.
//!
//! ```text
//! contents    -> places: contents counted without gaps, and their feature counts in some ten bytes each
//! features    -> for each feature in 2 contents or more the places that have it; a bare chunk counts as the features that it
//!                would have (`features`)
//! ranges      -> those lists on disk, cut by place so that one part fits in memory (`ranges`)
//! count       -> row by row, which later places share how many features (`count`)
//! pairs       -> a file of estimates, sorted, from which any threshold is answered (`pairs`)
//! stars       -> representatives, and for each other content the one that it resembles most (`stars`)
//! ```
//!
//! The features in the index are sorted, so only rows are sorted here. Forman, Eshghi and Chiocchetti 2005 ("Finding similar
//! files in large document repositories", section 2.5) partition by connected components;
//! `docs/decisions/0015-all-against-all.md` says why this module does not.
//!
//! Invariants:
//! - The pairs depend only on the contents and the options, not on memory or on merges of the index.
//! - Memory beyond the setting is some tens of bytes a content. Temporary files have no name and vanish with the process.
//! - A file of pairs counts only for the contents that it was made of.

mod count;
mod facts;
mod features;
mod index;
mod input;
mod pairs;
mod progress;
pub(super) mod ranges;
mod ranked;
mod stars;
#[cfg(test)]
mod tests;

pub use count::SHARE_MIN;
pub use input::{Fact, Input};
pub use pairs::{Content, Pair, Pairs, resemblance};
pub use progress::{Phase, Progress};
pub use stars::{Choice, Member, Star, Stars};

use super::SimilarityError;
use count::Counter;
use facts::Facts;
use features::Features;
use pairs::{Old, PairsWriter};
use progress::STEP;
use ranges::{PLACES_MAX, Ranges};
use ranked::Ranked;
use std::path::Path;

type Result<T> = std::result::Result<T, SimilarityError>;

/// The smallest memory setting.
pub const MEMORY_BYTES_MIN: usize = 64 << 10;

/// Options of a comparison.
#[derive(Clone, Copy, Debug)]
pub struct PairOptions {
    /// Bytes of memory for lists of features; some tens of bytes a content come on top.
    pub memory_bytes: usize,
    /// A feature that more contents than this have is not followed: a header, a licence, a template. A content with nearly
    /// no other features is compared with the first such content.
    pub frequency_cap: u32,
    /// Compare everything again, also pairs that an earlier file answers.
    pub anew: bool,
}

/// Compares all contents of `input`, or only those added since the file of pairs in `dir` was made, or none if that file
/// has exactly these contents. Keeps the answer in `dir`.
///
/// Time: one pass over the index (two if suppressed features leave nearly nothing of some contents), and for each content
/// its features times the contents that share each.
pub fn pairs(input: &dyn Input, options: &PairOptions, dir: &Path, progress: Progress<'_>) -> Result<Pairs> {
    let memory = options.memory_bytes.max(MEMORY_BYTES_MIN);
    let mut writer = PairsWriter::create(dir, options.frequency_cap)?;
    let (contents, mut facts) = read_contents(input, &mut writer, progress)?;
    let old = if options.anew { None } else { Pairs::open(dir, options.frequency_cap) };
    let key = writer.key();
    let old = match old {
        Some(old) if old.key() == key => return Ok(old),
        Some(old) => Old::usable(old, writer.contents()?)?,
        None => None,
    };
    let new_from = old.as_ref().map_or(0, Old::new_from);
    let mut ranges = Ranges::create(dir, &facts, memory / 2)?;
    let features = Features::new(input, &contents, memory / 2);
    let (mut suppressed, cap) = (0, options.frequency_cap as usize);
    features.each(progress, &mut |places| {
        if places.len() > cap {
            suppressed += 1;
            places.iter().for_each(|&entry| facts.suppress(ranges::place(entry), ranges::level(entry)));
            return Ok(());
        }
        let is_new = places.last().is_some_and(|&last| ranges::place(last) >= new_from);
        if is_new { ranges.add(places) } else { Ok(()) }
    })?;
    if (0..facts.len() as u32).any(|place| facts.is_left_out(place)) {
        features.each(progress, &mut |places| match places.len() > cap {
            true => with_the_first(places, &facts, new_from, &mut ranges),
            false => Ok(()),
        })?;
    }
    let (mut writer, total) = (writer.pairs(old, suppressed)?, facts.len() as u64);
    let counter = Counter { facts: &facts, new_from, memory: memory / 2 };
    for range in ranges.finish()? {
        counter.rows(&range, &mut writer, &mut |done| progress(Phase::Comparing, done, total))?;
    }
    writer.finish()
}

/// Handles a feature that too many contents have: contents with nearly no other features are compared with the first of
/// them. That makes no more pairs than contents, and a group needs no more.
fn with_the_first(places: &[u32], facts: &Facts, new_from: u32, ranges: &mut Ranges) -> Result<()> {
    let mut left_out = places.iter().filter(|&&entry| facts.is_left_out(ranges::place(entry)));
    let Some(&first) = left_out.next() else { return Ok(()) };
    left_out
        .filter(|&&entry| ranges::place(entry) >= new_from)
        .try_for_each(|&entry| ranges.add(&[first, entry]))
}

/// Assigns places to contents.
fn read_contents(
    input: &dyn Input,
    writer: &mut PairsWriter,
    progress: Progress<'_>,
) -> Result<(Ranked, Facts)> {
    let (mut contents, mut facts) = (Ranked::default(), Facts::default());
    let (mut last, mut failed) = (None, None);
    input.contents(&mut |fact| {
        // A row may show twice if the table changes meanwhile.
        if last.is_some_and(|last| fact.number <= last) {
            return true;
        }
        last = Some(fact.number);
        if facts.len() == PLACES_MAX || !facts.has_room() {
            failed = Some(SimilarityError::TooMany);
            return false;
        }
        contents.insert(fact.number);
        facts.push(&fact);
        failed = writer.content(&Content { number: fact.number, recipe: fact.recipe, size: fact.size }).err();
        if (facts.len() as u64).is_multiple_of(STEP) && !progress(Phase::Reading, facts.len() as u64, 0) {
            failed = Some(SimilarityError::Interrupted);
        }
        failed.is_none()
    })?;
    contents.finish();
    failed.map_or(Ok((contents, facts)), Err)
}
