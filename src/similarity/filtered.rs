//! Estimates by filters, for small contents: their looked-up sample is too small.
//!
//! As in [`super::estimate`], by runs of common grams in the queried file; but each gram that the filters of
//! the content's chunks cover is known to be in it or not, looked up or not.

use super::SimilarityError;
use super::estimate::covered;
use super::filter::{Filter, GRAM_BITS, short};
use super::filters;
use super::gram::LEVELS;
use super::sketch::Place;
use super::state::State;
use crate::db::Db;
use std::collections::HashMap;

/// This many places are enough for a level: more would take longer and improve little.
const PLACES_ENOUGH: usize = 1 << 10;

/// Places of the grams in the queried file.
pub(super) struct Filtered {
    places: Vec<Known>,
    /// For each level the places that it selects, in order.
    rows: [Vec<u16>; LEVELS],
    /// Possible places of each gram of a filter: those of gram `g` are `by_short[starts[g]..starts[g + 1]]`.
    by_short: Vec<u16>,
    starts: Vec<u16>,
    /// The same for counted features, by their indexes.
    by_index: Vec<Vec<u16>>,
    bytes: f64,
}

struct Known {
    at: f64,
    level: u8,
    is_counted: bool,
}

impl Filtered {
    /// Takes at most 65,535 `places`, in order, in a file of `bytes` without padding; `counting` has the features that were
    /// followed and counted, each with an index.
    pub(super) fn of(places: &[Place], counting: &HashMap<u64, u16>, bytes: u64) -> Filtered {
        let mut rows: [Vec<u16>; LEVELS] = Default::default();
        let mut by_index = vec![Vec::new(); counting.len()];
        let mut shorts = Vec::with_capacity(places.len());
        let known = places.iter().zip(0u16..).map(|(place, at)| {
            let (level, index) = (place.feature.level(), counting.get(&place.feature.bits()));
            rows[..=usize::from(level)].iter_mut().for_each(|row| row.push(at));
            shorts.push((short(place.feature.bits()), at));
            index.into_iter().for_each(|&index| by_index[usize::from(index)].push(at));
            Known { at: place.at as f64, level, is_counted: index.is_some() }
        });
        let places: Vec<_> = known.collect();
        shorts.sort_unstable();
        let starts =
            (0..=1 << GRAM_BITS).map(|gram| shorts.partition_point(|(short, _)| *short < gram) as u16);
        let starts = starts.collect();
        let by_short = shorts.into_iter().map(|(_, at)| at).collect();
        Filtered { places, rows, by_short, starts, by_index, bytes: bytes as f64 }
    }

    /// Returns the share of bytes in common with a content. `level` selects its features that are looked up; it has the features
    /// `found`, and chunks with these filters. `None` if that says nothing. O(places), at most some thousands.
    pub(super) fn share(&self, found: &[u16], level: u8, filters: &[&Filter]) -> Option<f64> {
        let finest = filters.iter().map(|filter| filter.level).max()?;
        let mut is_found = vec![false; self.places.len()];
        for place in found.iter().flat_map(|&index| &self.by_index[usize::from(index)]) {
            is_found[usize::from(*place)] = true;
        }
        for gram in filters.iter().flat_map(|filter| filter.grams()).map(|&gram| usize::from(gram)) {
            let places = &self.by_short[usize::from(self.starts[gram])..usize::from(self.starts[gram + 1])];
            for place in places.iter().map(|&place| usize::from(place)) {
                is_found[place] |= self.places[place].level < level;
            }
        }
        let enough = |row: &&Vec<u16>| row.len() <= PLACES_ENOUGH;
        let row = self.rows[usize::from(finest)..usize::from(level)].iter().find(enough)?;
        let place = |&at: &u16| {
            let known = &self.places[usize::from(at)];
            (known.level < level || known.is_counted).then_some((at, known.at))
        };
        let row: Vec<_> = row.iter().filter_map(place).collect();
        let count = row.iter().filter(|(at, _)| is_found[usize::from(*at)]).count();
        let grams = count as f64 / row.len().max(1) as f64;
        (count > 0).then(|| covered(&row, &is_found, self.bytes, grams))
    }
}

/// Returns the filters of the chunks that have one, by number.
pub(super) fn filters_of(
    db: &dyn Db,
    state: &State,
    mut chunks: Vec<u32>,
) -> Result<HashMap<u32, Filter>, SimilarityError> {
    chunks.sort_unstable();
    chunks.dedup();
    let mut filters: HashMap<u32, Filter> = HashMap::with_capacity(chunks.len());
    for buffer in state.buffers() {
        let buffered = chunks.iter().filter_map(|chunk| Some((*chunk, buffer.filters.get(chunk)?.clone())));
        filters.extend(buffered);
    }
    // The filters of a buffer that is being merged may be in the database too.
    chunks.retain(|chunk| !filters.contains_key(chunk));
    filters::read(db, &chunks, &mut filters)?;
    Ok(filters)
}
