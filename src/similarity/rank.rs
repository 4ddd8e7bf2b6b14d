//! The shortlist of a query, with estimates, from the features in common.

use super::SimilarityError;
use super::estimate::{Places, shares_of_bytes};
use super::filter::{self, Filter};
use super::filtered::{Filtered, filters_of};
use super::rows::{CONTENTS, ContentRow, Counts};
use super::state::State;
use super::tally::{CHUNKS_NOTED, Seen, Tally};
use crate::db::Db;
use crate::id::RecipeId;
use std::collections::HashMap;

/// Contents whose rows and filters are held at a time: some MiB.
const CONTENTS_AT_ONCE: usize = 1 << 12;
/// At most this many contents are examined unless more candidates are wanted: each takes some microseconds, as their rows lie
/// all over the table.
const CONTENTS_MAX: usize = 1 << 12;

/// A content that probably has something in common with the queried file. The shares are estimates, from 0 to
/// 1, of bytes; [`super::exact::compare_excluding`] gives the facts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// The content.
    pub recipe: RecipeId,
    /// Its length in bytes.
    pub size: u64,
    /// Share of the queried file that is in this content.
    pub containment: f64,
    /// Share of this content that is in the queried file.
    pub contained_in: f64,
    /// Bytes in both by bytes in either.
    pub resemblance: f64,
    /// Bytes of the queried file that are in this content: containment times its length without padding.
    pub bytes_common: u64,
}

/// Facts of the queried file.
pub(super) struct Query {
    /// Its bytes that count, without boilerplate.
    pub(super) bytes: f64,
    /// How many features there are for each that was looked up.
    pub(super) thinning: f64,
    pub(super) seen: Seen,
    pub(super) places: Places,
    /// `None` if a part of it does not count.
    pub(super) filtered: Option<Filtered>,
}

/// A content that may share enough.
struct Plausible {
    row: ContentRow,
    tally: Tally,
    /// Share of the query's grams, and of the content's.
    grams: (f64, f64),
}

impl Query {
    /// Returns the contents that may share `min` or more, at most `limit`, the best first.
    pub(super) fn rank(
        mut self,
        db: &dyn Db,
        state: &State,
        min: f64,
        limit: usize,
    ) -> Result<Vec<Candidate>, SimilarityError> {
        let tallies = std::mem::take(&mut self.seen.tallies);
        let mut tallies = self.likeliest(tallies, limit.max(CONTENTS_MAX));
        tallies.sort_unstable_by_key(|(content, _)| *content);
        let mut tallies = tallies.into_iter().peekable();
        let mut candidates = Vec::new();
        while tallies.peek().is_some() {
            let plausible =
                self.plausible(db, state, tallies.by_ref().take(CONTENTS_AT_ONCE).collect(), min)?;
            let noted = plausible.iter().filter(|content| content.has_filters());
            let noted = noted.flat_map(|content| content.tally.chunks.iter().copied()).collect();
            let filters = match &self.filtered {
                Some(_) => filters_of(db, state, noted)?,
                None => HashMap::new(),
            };
            candidates.extend(plausible.iter().map(|content| self.estimate(content, &filters)));
        }
        candidates.sort_by(|a, b| {
            b.containment
                .total_cmp(&a.containment)
                .then(b.resemblance.total_cmp(&a.resemblance))
                .then(a.recipe.cmp(&b.recipe))
        });
        candidates.truncate(limit);
        Ok(candidates)
    }

    /// Returns at most `most` of the contents: those with most of the query. Reads no other rows of them.
    fn likeliest(&self, tallies: HashMap<u32, Tally>, most: usize) -> Vec<(u32, Tally)> {
        if tallies.len() <= most {
            return tallies.into_iter().collect();
        }
        let share = |tally: &Tally| tally.share(|level| self.seen.weights.at(level));
        let mut by_share: Vec<_> =
            tallies.into_iter().map(|(content, tally)| (share(&tally), content, tally)).collect();
        by_share.select_nth_unstable_by(most, |a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        by_share.into_iter().take(most).map(|(_, content, tally)| (content, tally)).collect()
    }

    /// Returns those of the contents, sorted by number, that exist and may share `min`.
    fn plausible(
        &self,
        db: &dyn Db,
        state: &State,
        tallies: Vec<(u32, Tally)>,
        min: f64,
    ) -> Result<Vec<Plausible>, SimilarityError> {
        let mut rows: Vec<Option<ContentRow>> = vec![None; tallies.len()];
        let numbers: Vec<_> = tallies.iter().map(|(content, _)| content.to_be_bytes()).collect();
        CONTENTS.scan_each(db, &numbers, |i, row| {
            rows[i] = Some(ContentRow::of_row(row).1);
            false
        })?;
        let all = tallies.into_iter().zip(rows).filter_map(|((content, tally), row)| {
            let buffered = || state.buffers().find_map(|buffer| buffer.contents.get(&content).copied());
            let row = row.or_else(buffered).filter(|_| !state.is_dead(content))?;
            let weights = &self.seen.weights;
            // Samples of different levels do not add up to exactly 1, even if all is found.
            let of_query = match tally.features() {
                all if all == weights.features => 1.0,
                _ => tally.share(|level| weights.at(level)),
            };
            // The features followed are a part of those of the whole query.
            let of_content = tally.share(|level| count_at(&row.counts, level) / self.thinning);
            let is_plausible = plausible(&tally, of_query, min) || plausible(&tally, of_content, min);
            is_plausible.then_some(Plausible { row, tally, grams: (of_query, of_content) })
        });
        Ok(all.collect())
    }

    fn estimate(&self, content: &Plausible, filters: &HashMap<u32, Filter>) -> Candidate {
        let Plausible { row, tally, grams } = content;
        let middle = shares_of_bytes(grams.0, grams.1);
        let filters: Vec<_> = tally.chunks.iter().filter_map(|chunk| filters.get(chunk)).collect();
        let by_filters = || {
            let is_known = content.has_filters() && filters.len() == tally.chunks.len();
            let filtered = self.filtered.as_ref().filter(|_| is_known)?;
            filtered.share(&tally.placed, row.counts.level, &filters)
        };
        let by_places = || self.places.share(&tally.placed, row.counts.level);
        let containment = match tally.features() {
            all if all == self.seen.weights.features => 1.0,
            _ => by_filters().or_else(by_places).unwrap_or(middle.0),
        };
        // Bytes that the query has several times need not occur as often in the other.
        let least = (grams.1 * containment / grams.0).min(middle.1);
        // It has as many bytes in common as the query, unless its size counts padding.
        let common = containment * self.bytes;
        let contained_in = least.max((least + (common / row.size.max(1) as f64).min(1.0)) / 2.0);
        Candidate {
            recipe: row.recipe,
            size: row.size,
            containment,
            contained_in,
            resemblance: resemblance(containment, contained_in),
            bytes_common: common as u64,
        }
    }
}

impl Plausible {
    /// Returns whether all of its chunks that have a feature are noted, so that filters cover the whole content. It has filters
    /// only if it is small.
    fn has_filters(&self) -> bool {
        self.tally.chunks.len() <= CHUNKS_NOTED && self.row.size <= filter::BYTES_MAX
    }
}

/// The same for a content, whose features below its coarsest level are not counted.
fn count_at(counts: &Counts, level: u8) -> f64 {
    let finer = counts.level.saturating_sub(level);
    f64::from(counts.at[usize::from(level.max(counts.level))]) * f64::from(1u32 << finer)
}

/// Returns whether `share`, estimated from a tally, could come from a true share of `min`.
fn plausible(tally: &Tally, share: f64, min: f64) -> bool {
    let half = min / 2.0;
    if share >= half {
        return true;
    }
    // With a true share of `half`, `expected` features would have been found, plus or minus their square root.
    let found = f64::from(tally.features());
    let expected = found * half / share.max(f64::MIN_POSITIVE);
    found >= 1.0 && found >= expected - 2.0 * expected.sqrt()
}

/// Returns |A∩B| / |A∪B| from |A∩B|/|A| and |A∩B|/|B|.
fn resemblance(a: f64, b: f64) -> f64 {
    if a <= 0.0 || b <= 0.0 {
        return 0.0;
    }
    (1.0 / (1.0 / a + 1.0 / b - 1.0)).clamp(0.0, 1.0)
}
