//! A query: from the features of a file to a ranked shortlist of contents, with estimates.
//!
//! Invariants:
//! - An answer depends only on additions and removals, not on which of them were merged into the database.
//! - An answer has no content that was removed.
//!
//! A feature of the query found in a chunk is a sample of the grams in common, drawn at the coarser level of the two. It
//! counts `1/n`, where `n` is the number of features that the file has at that level. The sum over the features in common
//! estimates the share of the query's distinct grams that the content has (containment; Broder 1997, "On the resemblance
//! and containment of documents", section 2). With the content's own `n` it estimates the share of the content's grams
//! that the query has. The shortlist follows from these; the answer has shares of bytes (`estimate`).
//!
//! The index has no postings for a bare chunk, but knows its id. If the query has that chunk, each of the query's features
//! in it counts as found, as with postings. So common bytes found by identity are estimated like all others.

use super::SimilarityError;
use super::boilerplate::Boilerplate;
use super::estimate::Places;
use super::filtered::Filtered;
use super::hashed::Hashed;
use super::index::Similarity;
use super::rank::{Candidate, Query};
use super::rows::{CONTAINED, ChunkKey, ChunkRow, containment_of, hash_prefix, posting_number};
use super::sketch::{Asked, QuerySketch};
use super::state::State;
use super::tally::Seen;
use crate::db::Db;
use std::collections::HashMap;

/// A feature is suppressed without counting contents if it is in more chunks than this many times the cap.
const CHUNKS_PER_CONTENT: usize = 4;

/// Features whose postings are held at a time: a few tens of MiB at most.
const FEATURES_AT_ONCE: usize = 256;
/// Once this many rows have been read for a query, its other features are not followed: about a second.
const ROWS_MAX: usize = 1 << 25;

/// If the cap suppresses more than half of a query's features, this many of them are followed nevertheless, with a
/// cap higher by the factor below: some tens of milliseconds at most.
const RETRIED_FEATURES: usize = 16;
const RETRY_CAP_FACTOR: usize = 8;

/// Result of a query.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answer {
    /// By containment, then resemblance, then id; the best first.
    pub candidates: Vec<Candidate>,
    /// Features of the query that too many contents have. They are in no estimate.
    pub suppressed_features: usize,
    /// Features of the query that are boilerplate. Estimates of the query's share leave them out.
    pub boilerplate_features: usize,
}

impl Similarity {
    /// Returns the contents that may share `min` (0 to 1) or more with the queried file, either way round.
    ///
    /// The shortlist has the contents estimated at half of `min` or more, and with few features also those whose estimate may
    /// be lower by chance. At most `limit`, the best. If more than 4,096 and `limit` contents have a feature in common,
    /// only those with most of the query's features are examined. The queried file itself is among the answers if it is
    /// in the index. Time: about 2 to 15 us a feature, so 1 to 2 ms for a file of 16 KiB, and some seconds at most for a
    /// large one: at most 2^18 of its features are looked up.
    pub fn query(&self, sketch: &QuerySketch, min: f64, limit: usize) -> Result<Answer, SimilarityError> {
        self.query_excluding(sketch, &Boilerplate::default(), min, limit)
    }

    /// As [`Similarity::query`], for the part of the file outside `boilerplate`.
    pub fn query_excluding(
        &self,
        sketch: &QuerySketch,
        boilerplate: &Boilerplate,
        min: f64,
        limit: usize,
    ) -> Result<Answer, SimilarityError> {
        let mut features = sketch.features();
        let all = features.len();
        features.retain(|asked| !boilerplate.has(asked.feature.bits()));
        let boilerplate_features = all - features.len();
        let state = self.read();
        let bare = bare_chunks(&*self.db, &self.tables, &state, &features)?;
        let cap = self.options.frequency_cap;
        let mut seen = Seen::of(sketch);
        let mut suppressed = Vec::new();
        let mut followed = 0;
        // Features are in the order of their hashes, so the first ones are a sample of all.
        for part in features.chunks(FEATURES_AT_ONCE) {
            suppressed.append(&mut self.follow(&state, &bare, part, cap, &mut seen)?);
            followed += part.len();
            if seen.rows > ROWS_MAX {
                break;
            }
        }
        let unfollowed = features.len() as f64 / followed.max(1) as f64;
        features.truncate(followed);
        if suppressed.len() * 2 > features.len() {
            let step = suppressed.len().div_ceil(RETRIED_FEATURES);
            let retried: Vec<_> = suppressed.iter().copied().step_by(step).collect();
            let cap = cap.saturating_mul(RETRY_CAP_FACTOR);
            let still = self.follow(&state, &bare, &retried, cap, &mut seen)?;
            suppressed.retain(|feature| !retried.contains(feature) || still.contains(feature));
        }
        let last = features.last().map_or(0, |asked| asked.feature.bits());
        let known = sketch.places().iter().filter(|place| place.is_asked && place.feature.bits() <= last);
        let places = Places::of(&known.copied().collect::<Vec<_>>(), &seen.counting, sketch.counted());
        let thinning = sketch.thinning() * unfollowed;
        // Filters do not know which parts of a query count, so they serve only whole queries.
        let is_whole = boilerplate_features == 0 && thinning == 1.0;
        let filtered = is_whole.then(|| Filtered::of(sketch.places(), &seen.counting, sketch.counted()));
        let bytes = sketch.counted() as f64 * (1.0 - boilerplate_features as f64 / all.max(1) as f64);
        let candidates =
            Query { bytes, thinning, seen, places, filtered }.rank(&*self.db, &state, min, limit)?;
        Ok(Answer { candidates, suppressed_features: suppressed.len(), boilerplate_features })
    }

    /// Counts the contents that have the features; returns the features that more contents have than `cap`.
    fn follow(
        &self,
        state: &State,
        bare: &BareChunks,
        features: &[Asked],
        cap: usize,
        seen: &mut Seen,
    ) -> Result<Vec<Asked>, SimilarityError> {
        let postings = postings(&*self.db, &self.tables, state, bare, features, cap)?;
        let chunks = containing(&*self.db, state, &postings, cap)?;
        seen.rows += postings.rows + chunks.values().map(|(_, contents)| contents.len()).sum::<usize>();
        let mut suppressed = Vec::new();
        let mut contents: Vec<(u32, u8, u32)> = Vec::new();
        for (i, &asked) in features.iter().enumerate() {
            contents.clear();
            let found = &postings.chunks[postings.starts[i]..postings.starts[i + 1]];
            for (&chunk, (level, of_chunk)) in
                found.iter().filter_map(|chunk| Some((chunk, chunks.get(chunk)?)))
            {
                contents.extend(of_chunk.iter().map(|&content| (content, *level, chunk)));
            }
            contents.sort_unstable();
            let by_content = || contents.chunk_by(|a, b| a.0 == b.0);
            if postings.suppressed[i] || by_content().count() > cap {
                suppressed.push(asked);
                continue;
            }
            let placed = seen.count(asked);
            for of_content in by_content() {
                let (content, level, _) = of_content[0];
                let tally = seen.tallies.entry(content).or_default();
                tally.count(asked.level.max(level), placed);
                of_content.iter().for_each(|&(.., chunk)| tally.note(chunk));
            }
        }
        Ok(suppressed)
    }
}

/// The chunks that have each feature: sorted, each once, and bounded.
struct Found {
    /// The chunks of feature `i` are `chunks[starts[i]..starts[i + 1]]`.
    starts: Vec<usize>,
    chunks: Vec<u32>,
    suppressed: Vec<bool>,
    /// Rows that were read, those of suppressed features included.
    rows: usize,
}

/// Bare chunks of the query (only their id is in the index): their numbers and levels.
type BareChunks = HashMap<ChunkKey, (u32, u8)>;

/// Makes one look-up for each chunk of the query that has a feature.
fn bare_chunks(
    db: &dyn Db,
    tables: &Hashed,
    state: &State,
    features: &[Asked],
) -> Result<BareChunks, SimilarityError> {
    let mut keys: Vec<ChunkKey> = features.iter().map(|asked| asked.chunk).collect();
    keys.sort_unstable();
    keys.dedup();
    let mut bare = BareChunks::new();
    let mut add = |key: ChunkKey, row: ChunkRow| {
        if row.is_bare {
            bare.insert(key, (row.number, row.counts.level));
        }
    };
    for key in &keys {
        let row = state.buffers().find_map(|buffer| buffer.sketched.get(key));
        row.into_iter().for_each(|row| add(*key, *row));
    }
    tables.sketched.scan_each(db, &keys, 1, |i, row| add(keys[i], ChunkRow::of_row(row)))?;
    Ok(bare)
}

fn postings(
    db: &dyn Db,
    tables: &Hashed,
    state: &State,
    bare: &BareChunks,
    features: &[Asked],
    cap: usize,
) -> Result<Found, SimilarityError> {
    let most = cap.saturating_mul(CHUNKS_PER_CONTENT);
    let prefixes: Vec<_> = features.iter().map(|asked| hash_prefix(asked.feature.bits())).collect();
    let mut stored: Vec<(usize, u32)> = Vec::new();
    tables.features.scan_each(db, &prefixes, most + 1, |i, row| stored.push((i, posting_number(row))))?;
    let mut found = Found {
        starts: vec![0],
        chunks: Vec::with_capacity(stored.len()),
        suppressed: Vec::with_capacity(features.len()),
        rows: stored.len(),
    };
    let mut stored = stored.into_iter().peekable();
    let mut chunks = Vec::new();
    for (i, asked) in features.iter().enumerate() {
        chunks.clear();
        while let Some((_, chunk)) = stored.next_if(|(of, _)| *of == i) {
            chunks.push(chunk);
        }
        for buffer in state.buffers() {
            buffer.chunks_with(asked.feature.bits(), |chunk| chunks.push(chunk));
        }
        let same = bare.get(&asked.chunk).filter(|(_, level)| asked.feature.level() >= *level);
        chunks.extend(same.map(|(number, _)| *number));
        chunks.sort_unstable();
        chunks.dedup();
        let suppressed = chunks.len() > most;
        if !suppressed {
            found.chunks.extend_from_slice(&chunks);
        }
        found.suppressed.push(suppressed);
        found.starts.push(found.chunks.len());
    }
    Ok(found)
}

type Containing = HashMap<u32, (u8, Vec<u32>)>;

/// Returns the contents of each chunk found, at most one more than `cap`, which shows that there are more.
fn containing(db: &dyn Db, state: &State, found: &Found, cap: usize) -> Result<Containing, SimilarityError> {
    let mut numbers = found.chunks.clone();
    numbers.sort_unstable();
    numbers.dedup();
    let mut chunks = Containing::with_capacity(numbers.len());
    for buffer in state.buffers() {
        for number in &numbers {
            if let Some((sampled, contents)) = buffer.contained.get(number) {
                let (_, all) = chunks.entry(*number).or_insert((sampled.level, Vec::new()));
                all.extend_from_slice(contents);
            }
        }
    }
    let prefixes: Vec<_> = numbers.iter().map(|number| number.to_be_bytes()).collect();
    CONTAINED.scan_each(db, &prefixes, |i, row| {
        let (_, content, sampled) = containment_of(row);
        let (_, all) = chunks.entry(numbers[i]).or_insert((sampled.level, Vec::new()));
        all.push(content);
        all.len() <= 2 * cap
    })?;
    for (_, contents) in chunks.values_mut() {
        contents.sort_unstable();
        contents.dedup();
        contents.retain(|&content| !state.is_dead(content));
    }
    Ok(chunks)
}
