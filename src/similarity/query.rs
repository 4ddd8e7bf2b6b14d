//! A query: from the features of a file to a ranked shortlist of contents, with estimates.
//!
//! What must always be true: an answer depends on what was added and removed, not on what of it has been
//! merged into the database; and it has no content that was removed.
//!
//! A feature of the query that is found in a chunk is a sample of the grams in common, drawn at the coarser level of
//! the two; it counts `1/n`, where `n` is how many features the file has at that level. Summed over the features in
//! common this estimates the share of the query's distinct grams that the content has (containment; Broder 1997, "On
//! the resemblance and containment of documents", section 2), and with the content's own `n` the share of the content's
//! that the query has. What is shortlisted follows from that; what is told are shares of bytes (`estimate`).

use super::SimilarityError;
use super::boilerplate::Boilerplate;
use super::estimate::{Places, shares_of_bytes};
use super::gram::{LEVEL_MAX, LEVELS};
use super::index::{Similarity, State};
use super::rows::{
    CONTAINED, CONTENTS, ContentRow, Counts, FEATURES, containment_of, hash_prefix, posting_number,
};
use super::sketch::{Asked, QuerySketch};
use crate::db::Db;
use crate::id::RecipeId;
use std::collections::{HashMap, HashSet};

/// A feature is suppressed if it is in more chunks than this many times the cap, without counting contents.
const CHUNKS_PER_CONTENT: usize = 4;

/// Features whose postings are held at a time: a few tens of MiB at most.
const FEATURES_AT_ONCE: usize = 256;
/// Of a query whose features so many rows have been read for, the other features are not followed: about a second.
const ROWS_MAX: usize = 1 << 25;

/// Where the cap suppresses more than half of a query's features, so many of them are followed all the same, with a
/// cap so many times as high: some tens of milliseconds at most.
const RETRIED_FEATURES: usize = 16;
const RETRY_CAP_FACTOR: usize = 8;

/// A content that probably has something in common with the queried file. The shares are estimates, from 0 to
/// 1, of bytes; [`super::exact::compare_beside`] gives the facts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// Which content.
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

/// What a query found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answer {
    /// By containment, then resemblance, then id; the best first.
    pub candidates: Vec<Candidate>,
    /// Features of the query that too many contents have. They are in no estimate.
    pub suppressed_features: usize,
    /// Features of the query that are of boilerplate. They are in no estimate of what the query has.
    pub boilerplate_features: usize,
}

/// Features in common with one content, by the coarser level of the two sides.
#[derive(Default)]
struct Tally {
    at: [u32; LEVELS],
    /// Which of the features that are placed, each once.
    placed: Vec<u16>,
}

impl Similarity {
    /// The contents of which the queried file may share `min` (0 to 1) or more, either way round.
    ///
    /// Shortlisted is what is estimated at half of `min`, and with few features also what could by chance
    /// have been estimated lower. At most `limit`, the best. The queried file itself is among them if it is
    /// in the index. Time: about 2 to 15 us a feature, so 1 to 2 ms for a file of 16 KiB, and for a large one no more than
    /// some seconds: of its features at most 2^18 are looked up.
    pub fn query(&self, sketch: &QuerySketch, min: f64, limit: usize) -> Result<Answer, SimilarityError> {
        self.query_beside(sketch, &Boilerplate::default(), min, limit)
    }

    /// As [`Similarity::query`], for what the file has beside `boilerplate`.
    pub fn query_beside(
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
        let cap = self.options.frequency_cap;
        let mut seen = Seen::of(sketch);
        let mut suppressed = Vec::new();
        let mut followed = 0;
        // They are in the order of their hashes, so the first of them are a sample of all.
        for part in features.chunks(FEATURES_AT_ONCE) {
            suppressed.append(&mut self.follow(&state, part, cap, &mut seen)?);
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
            let still = self.follow(&state, &retried, cap.saturating_mul(RETRY_CAP_FACTOR), &mut seen)?;
            suppressed.retain(|feature| !retried.contains(feature) || still.contains(feature));
        }
        let counted = Counted {
            bytes: sketch.counted() as f64 * (1.0 - boilerplate_features as f64 / all.max(1) as f64),
            thinning: sketch.thinning() * unfollowed,
        };
        let last = features.last().map_or(0, |asked| asked.feature.bits());
        let known = sketch.places().iter().filter(|place| place.feature.bits() <= last);
        let places = Places::of(&known.copied().collect::<Vec<_>>(), &seen.counting, sketch.counted());
        let candidates = self.rank(&state, &counted, seen, &places, min, limit)?;
        Ok(Answer { candidates, suppressed_features: suppressed.len(), boilerplate_features })
    }

    /// Counts which contents have the features; returns those that more contents have than `cap`.
    fn follow(
        &self,
        state: &State,
        features: &[Asked],
        cap: usize,
        seen: &mut Seen,
    ) -> Result<Vec<Asked>, SimilarityError> {
        let postings = postings(&*self.db, state, features, cap)?;
        let chunks = containing(&*self.db, state, &postings, cap)?;
        seen.rows += postings.rows + chunks.values().map(|(_, contents)| contents.len()).sum::<usize>();
        let mut suppressed = Vec::new();
        let mut contents: Vec<(u32, u8)> = Vec::new();
        for (i, &asked) in features.iter().enumerate() {
            contents.clear();
            let found = &postings.chunks[postings.starts[i]..postings.starts[i + 1]];
            for (chunk_level, of_chunk) in found.iter().filter_map(|chunk| chunks.get(chunk)) {
                contents.extend(of_chunk.iter().map(|&content| (content, *chunk_level)));
            }
            contents.sort_unstable();
            contents.dedup_by_key(|(content, _)| *content);
            if postings.suppressed[i] || contents.len() > cap {
                suppressed.push(asked);
                continue;
            }
            let placed = seen.count(asked);
            for &(content, chunk_level) in &contents {
                let tally = seen.tallies.entry(content).or_default();
                tally.at[usize::from(asked.level.max(chunk_level))] += 1;
                tally.placed.extend(placed);
            }
        }
        Ok(suppressed)
    }

    fn rank(
        &self,
        state: &State,
        counted: &Counted,
        seen: Seen,
        places: &Places,
        min: f64,
        limit: usize,
    ) -> Result<Vec<Candidate>, SimilarityError> {
        let Seen { weights: query, tallies, .. } = seen;
        let mut tallies: Vec<_> = tallies.into_iter().collect();
        tallies.sort_unstable_by_key(|(content, _)| *content);
        let mut rows: Vec<Option<ContentRow>> = vec![None; tallies.len()];
        let numbers: Vec<_> = tallies.iter().map(|(content, _)| content.to_be_bytes()).collect();
        CONTENTS.scan_each(&*self.db, &numbers, |i, row| {
            rows[i] = Some(ContentRow::of_row(row).1);
            false
        })?;
        let mut candidates = Vec::new();
        for ((content, tally), row) in tallies.into_iter().zip(rows) {
            let buffered = || state.buffers().find_map(|buffer| buffer.contents.get(&content).copied());
            let Some(row) = row.or_else(buffered).filter(|_| !state.is_dead(content)) else {
                continue;
            };
            // Samples of unlike levels do not add up to exactly 1, even where all is found.
            let found: u32 = tally.at.iter().sum();
            let containment = match found {
                all if all == query.features => 1.0,
                _ => share(&tally, |level| query.at(level)),
            };
            // What was found of it is a part of what the whole query would have shown.
            let contained_in = share(&tally, |level| count_at(&row.counts, level) / counted.thinning);
            if !(plausible(&tally, containment, min) || plausible(&tally, contained_in, min)) {
                continue;
            }
            let middle = shares_of_bytes(containment, contained_in);
            let (grams, seen) = (containment, places.share(&tally.placed, row.counts.level));
            let containment = if found == query.features { 1.0 } else { seen.unwrap_or(middle.0) };
            // What the query has more than once the other need not have as often.
            let least = (contained_in * containment / grams).min(middle.1);
            // It has as many bytes in common as the query, unless its size counts padding.
            let common = containment * counted.bytes;
            let contained_in = least.max((least + (common / row.size.max(1) as f64).min(1.0)) / 2.0);
            candidates.push(Candidate {
                recipe: row.recipe,
                size: row.size,
                containment,
                contained_in,
                resemblance: resemblance(containment, contained_in),
                bytes_common: common as u64,
            });
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
}

/// What of the queried file its features stand for.
struct Counted {
    /// Its bytes, but those of boilerplate.
    bytes: f64,
    /// How many features there are for each that was looked up.
    thinning: f64,
}

/// What following features has shown.
struct Seen {
    /// Rows that were read for it.
    rows: usize,
    weights: QueryCounts,
    tallies: HashMap<u32, Tally>,
    /// Which features have a place.
    placed: HashSet<u64>,
    /// Those of them that were followed, each with an index.
    counting: HashMap<u64, u16>,
}

impl Seen {
    fn of(sketch: &QuerySketch) -> Seen {
        let placed = sketch.places().iter().map(|place| place.feature.bits()).collect();
        let (weights, tallies, counting) = Default::default();
        Seen { rows: 0, weights, tallies, placed, counting }
    }

    /// A feature is followed. If it has a place, its index among those that have one.
    fn count(&mut self, asked: Asked) -> Option<u16> {
        self.weights.add(asked);
        let (bits, next) = (asked.feature.bits(), self.counting.len() as u16);
        self.placed.contains(&bits).then(|| *self.counting.entry(bits).or_insert(next))
    }
}

/// How many features the query would have at each level: a feature of a finer level counts if a level selects
/// it, one of a coarser level stands for as many as the level would have selected more.
#[derive(Default)]
struct QueryCounts {
    at: [f64; LEVELS],
    /// How many there are in all.
    features: u32,
}

impl QueryCounts {
    fn add(&mut self, Asked { feature, level: selected_at, .. }: Asked) {
        self.features += 1;
        for level in 0..=LEVEL_MAX {
            self.at[usize::from(level)] += if level < selected_at {
                f64::from(1u32 << (selected_at - level))
            } else {
                f64::from(u8::from(feature.level() >= level))
            };
        }
    }

    fn at(&self, level: u8) -> f64 {
        self.at[usize::from(level)]
    }
}

/// The same for a content, whose features below its coarsest level are not counted.
fn count_at(counts: &Counts, level: u8) -> f64 {
    let finer = counts.level.saturating_sub(level);
    f64::from(counts.at[usize::from(level.max(counts.level))]) * f64::from(1u32 << finer)
}

fn share(tally: &Tally, count: impl Fn(u8) -> f64) -> f64 {
    let parts = (0..=LEVEL_MAX).map(|level| f64::from(tally.at[usize::from(level)]) / count(level).max(1.0));
    parts.sum::<f64>().min(1.0)
}

/// Whether `share`, estimated from a tally, could come from a true share of `min`.
fn plausible(tally: &Tally, share: f64, min: f64) -> bool {
    let half = min / 2.0;
    if share >= half {
        return true;
    }
    // At a true share of `half`, `expected` features would have been found, give or take their square root.
    let found = f64::from(tally.at.iter().sum::<u32>());
    let expected = found * half / share.max(f64::MIN_POSITIVE);
    found >= 1.0 && found >= expected - 2.0 * expected.sqrt()
}

/// |A∩B| / |A∪B| from |A∩B|/|A| and |A∩B|/|B|.
fn resemblance(a: f64, b: f64) -> f64 {
    if a <= 0.0 || b <= 0.0 {
        return 0.0;
    }
    (1.0 / (1.0 / a + 1.0 / b - 1.0)).clamp(0.0, 1.0)
}

/// The chunks that have each feature: sorted, each once, and bounded.
struct Found {
    /// Of feature `i`: `chunks[starts[i]..starts[i + 1]]`.
    starts: Vec<usize>,
    chunks: Vec<u32>,
    suppressed: Vec<bool>,
    /// Rows that were read, those of suppressed features included.
    rows: usize,
}

fn postings(db: &dyn Db, state: &State, features: &[Asked], cap: usize) -> Result<Found, SimilarityError> {
    let most = cap.saturating_mul(CHUNKS_PER_CONTENT);
    let prefixes: Vec<_> = features.iter().map(|asked| hash_prefix(asked.feature.bits())).collect();
    let mut stored: Vec<(usize, u32)> = Vec::new();
    let (mut of, mut count) = (0, 0);
    FEATURES.scan_each(db, &prefixes, |i, row| {
        count = if i == of { count + 1 } else { 1 };
        of = i;
        stored.push((i, posting_number(row)));
        count <= most
    })?;
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

/// The contents of each chunk that was found, one more than `cap` at most, so that it shows that there are more.
fn containing(db: &dyn Db, state: &State, found: &Found, cap: usize) -> Result<Containing, SimilarityError> {
    let mut numbers = found.chunks.clone();
    numbers.sort_unstable();
    numbers.dedup();
    let mut chunks = Containing::with_capacity(numbers.len());
    for buffer in state.buffers() {
        for number in &numbers {
            if let Some((level, contents)) = buffer.contained.get(number) {
                let (_, all) = chunks.entry(*number).or_insert((*level, Vec::new()));
                all.extend_from_slice(contents);
            }
        }
    }
    let prefixes: Vec<_> = numbers.iter().map(|number| number.to_be_bytes()).collect();
    CONTAINED.scan_each(db, &prefixes, |i, row| {
        let (_, content, level) = containment_of(row);
        let (_, all) = chunks.entry(numbers[i]).or_insert((level, Vec::new()));
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
