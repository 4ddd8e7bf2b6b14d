//! All methods and the default side by side, on the files of a directory, against exact truth: recall,
//! precision, index size and speed.
//!
//! Files are in memory, so that the speed is the method's and not the disk's; times are processor time.

pub use super::recommend::Recommendation;
use super::recommend::{fitted, recommend};
use super::standing::{DEFAULT, Standing};
use crate::chunk::ChunkParams;
use crate::contents::error::Result;
use crate::db::{Db, MemDb, Table};
use crate::id::{ChunkId, RecipeId};
use crate::query::methods::files::{open_regular, walk};
use crate::recipe::{ChunkRef, Recipe};
use crate::similarity::methods::{AnyMethod, AnySketch, Chosen, Index, IndexOptions, Sketcher, names};
use crate::similarity::{QuerySketch, Similarity, SimilarityOptions, Sketch, exact};
use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Containments for which recall is reported.
pub const THRESHOLDS: [f64; 3] = [0.25, 0.5, 0.8];
const MEMORY_BYTES: usize = 64 << 20;

/// How to compare.
#[derive(Clone, Copy, Debug)]
pub struct CompareOptions {
    /// Contents to ask about.
    pub queries: usize,
    /// Chooses them.
    pub seed: u64,
    /// Most bytes of files to read.
    pub bytes_max: u64,
}

/// Result of a comparison of methods.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Comparison {
    /// Different contents.
    pub contents: usize,
    /// Their bytes.
    pub bytes: u64,
    /// Number of queries.
    pub queries: usize,
    /// Which, by [`CompareOptions::seed`].
    pub seed: u64,
    /// How many pairs of a query and another content reach each of [`THRESHOLDS`].
    pub pairs: [u64; 3],
    /// Files that were not read.
    pub left_out: usize,
    /// Bytes of the smallest, the median and the largest content.
    pub sizes: [u64; 3],
    /// The default first, then each method, those with fitted parameters last.
    pub methods: Vec<Standing>,
    /// Which to use; `None` if no file has a quarter of another.
    pub recommendation: Option<Recommendation>,
}

/// A listed content: its place, and the containments of the query in it and of it in the query; `None` if the method
/// does not measure them.
type Listed = (usize, Option<(f64, f64)>);

/// Something that finds similar contents.
trait Contender {
    fn name(&self) -> String;

    /// [`Standing::method`].
    fn method(&self) -> String {
        self.name()
    }

    fn is_fitted(&self) -> bool {
        false
    }

    fn parameters(&self) -> String;
    fn add(&mut self, place: usize, name: &OsString, bytes: &[u8]) -> Result<()>;
    fn finish(&mut self) -> Result<()>;
    /// Returns the contents listed at half the lowest threshold, and the processor time without making the sketch.
    fn query(&self, name: &OsString, bytes: &[u8]) -> Result<(Vec<Listed>, Duration)>;
    fn db(&self) -> &dyn Db;
}

struct ByMethod {
    chosen: Chosen,
    fitted: bool,
    method: Arc<dyn AnyMethod>,
    index: Index,
    db: Arc<MemDb>,
    places: HashMap<RecipeId, usize>,
}

impl ByMethod {
    fn sketch(&self, name: &OsString, bytes: &[u8]) -> Result<AnySketch> {
        let mut sketcher = Sketcher::new(self.method.clone(), Some(name), Path::new(""), usize::MAX);
        sketcher.add(bytes)?;
        Ok(sketcher.finish()?)
    }
}

impl Contender for ByMethod {
    fn name(&self) -> String {
        self.method.name().to_owned()
    }

    fn method(&self) -> String {
        self.chosen.to_string()
    }

    fn is_fitted(&self) -> bool {
        self.fitted
    }

    fn parameters(&self) -> String {
        self.method.settings()
    }

    fn add(&mut self, place: usize, name: &OsString, bytes: &[u8]) -> Result<()> {
        let id = RecipeId::of(&place.to_le_bytes());
        self.places.insert(id, place);
        Ok(self.index.add(id, &self.sketch(name, bytes)?)?)
    }

    fn finish(&mut self) -> Result<()> {
        Ok(self.index.flush()?)
    }

    fn query(&self, name: &OsString, bytes: &[u8]) -> Result<(Vec<Listed>, Duration)> {
        let sketch = self.sketch(name, bytes)?;
        let start = processor_time();
        let found = self.index.query(&sketch, 0.0, usize::MAX)?;
        let took = processor_time() - start;
        let listed = found.into_iter().filter_map(|found| {
            let shares = found.likeness.containment.zip(found.likeness.contained_in);
            // With resemblance J both containments are at least J; J is taken for both.
            let shares = shares.or(found.likeness.resemblance.map(|share| (share, share)));
            Some((*self.places.get(&found.id)?, shares))
        });
        Ok((listed.collect(), took))
    }

    fn db(&self) -> &dyn Db {
        &*self.db
    }
}

struct Default {
    similarity: Similarity,
    db: Arc<MemDb>,
    places: HashMap<RecipeId, usize>,
}

fn chunks(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut start = 0;
    ChunkParams::default().cut(bytes, true).into_iter().map(move |len| {
        start += len as usize;
        &bytes[start - len as usize..start]
    })
}

impl Contender for Default {
    fn name(&self) -> String {
        DEFAULT.to_owned()
    }

    fn parameters(&self) -> String {
        "features of chunks".to_owned()
    }

    fn add(&mut self, place: usize, _name: &OsString, bytes: &[u8]) -> Result<()> {
        let mut refs = Vec::new();
        for chunk in chunks(bytes) {
            let id = ChunkId::of(chunk);
            if !self.similarity.knows_chunk(&id)? {
                self.similarity.add_chunk(id, Sketch::of_chunk(chunk))?;
            }
            refs.push(ChunkRef { id, len: chunk.len() as u32 });
        }
        let recipe = Recipe::new(refs);
        self.places.insert(recipe.id(), place);
        Ok(self.similarity.add_content(recipe.id(), &recipe)?)
    }

    fn finish(&mut self) -> Result<()> {
        Ok(self.similarity.flush()?)
    }

    fn query(&self, _name: &OsString, bytes: &[u8]) -> Result<(Vec<Listed>, Duration)> {
        let mut sketch = QuerySketch::new();
        chunks(bytes).for_each(|chunk| sketch.add_chunk(chunk));
        let start = processor_time();
        let answer = self.similarity.query(&sketch, THRESHOLDS[0] / 2.0, usize::MAX)?;
        let took = processor_time() - start;
        let listed = answer.candidates.into_iter().filter_map(|found| {
            Some((*self.places.get(&found.recipe)?, Some((found.containment, found.contained_in))))
        });
        Ok((listed.collect(), took))
    }

    fn db(&self) -> &dyn Db {
        &*self.db
    }
}

/// Exact result of a query: containments of the query in each other content, and of each in the query.
struct Truth {
    query: usize,
    shares: Vec<(f64, f64)>,
}

/// Compares all methods on the regular files below `root`. `progress` gets the step, the amount done and the whole amount.
///
/// Fails if `root` cannot be read. Counts files that cannot be read.
pub fn compare(
    root: &Path,
    options: &CompareOptions,
    progress: &mut dyn FnMut(&str, u64, u64),
) -> Result<Comparison> {
    let (mut contents, mut seen, mut unreadable) = (Vec::new(), HashSet::new(), Vec::new());
    let (mut bytes, mut beyond) = (0, 0);
    walk(root, &mut unreadable, &mut |path, _| {
        let io = |e| crate::contents::OverlayError::io("read", path, e);
        let size = path.metadata().map_err(io)?.len();
        if bytes + size > options.bytes_max {
            beyond += 1;
            return Ok(());
        }
        let mut content = Vec::new();
        open_regular(path)?.read_to_end(&mut content).map_err(io)?;
        if seen.insert(RecipeId::of(&content)) {
            bytes += content.len() as u64;
            contents.push((path.file_name().unwrap_or_default().to_owned(), content));
        }
        progress("reading", contents.len() as u64, 0);
        Ok(())
    })?;
    let truths = truths(&contents, options, progress)?;
    let mut pairs = [0; 3];
    for (share, _) in truths.iter().flat_map(|truth| &truth.shares) {
        THRESHOLDS.iter().zip(&mut pairs).for_each(|(least, pairs)| *pairs += u64::from(share >= least));
    }
    let mut sizes: Vec<u64> = contents.iter().map(|(_, content)| content.len() as u64).collect();
    sizes.sort_unstable();
    let at = |at: usize| sizes.get(at).copied().unwrap_or(0);
    let sizes = [at(0), at(sizes.len() / 2), at(sizes.len().saturating_sub(1))];
    let mut methods = Vec::new();
    let db = Arc::new(MemDb::new());
    let similarity = Similarity::open(db.clone(), SimilarityOptions::default())?;
    let default: Box<dyn Contender> = Box::new(Default { similarity, db, places: HashMap::new() });
    let by_method = |(chosen, fitted): (Chosen, bool)| -> Result<Box<dyn Contender>> {
        let method = chosen.any();
        let db = Arc::new(MemDb::new());
        let index = Index::open(db.clone(), method.clone(), IndexOptions::default())?;
        Ok(Box::new(ByMethod { chosen, fitted, method, index, db, places: HashMap::new() }))
    };
    let others = names().into_iter().filter_map(|name| name.parse().ok()).map(|chosen| (chosen, false));
    let fitted = fitted(sizes[1]).into_iter().map(|chosen| (chosen, true));
    for contender in std::iter::once(Ok(default)).chain(others.chain(fitted).map(by_method)) {
        methods.push(judge(&mut *contender?, &contents, bytes, &truths, progress)?);
    }
    Ok(Comparison {
        contents: contents.len(),
        bytes,
        queries: truths.len(),
        seed: options.seed,
        pairs,
        left_out: unreadable.len() + beyond,
        sizes,
        recommendation: recommend(&methods),
        methods,
    })
}

fn truths(
    contents: &[(OsString, Vec<u8>)],
    options: &CompareOptions,
    progress: &mut dyn FnMut(&str, u64, u64),
) -> Result<Vec<Truth>> {
    // The smallest hashes of seed and place: the same files for the same seed.
    let mut places: Vec<usize> =
        (0..contents.len()).filter(|place| contents[*place].1.len() >= 2 * exact::MATCH_BYTES_MIN).collect();
    places.sort_by_cached_key(|place| {
        *blake3::hash(&[options.seed.to_le_bytes(), (*place as u64).to_le_bytes()].concat()).as_bytes()
    });
    places.truncate(options.queries);
    let total = (places.len() * contents.len()) as u64;
    let mut truths = Vec::new();
    for query in places {
        let mut shares = Vec::with_capacity(contents.len());
        for (place, (_, other)) in contents.iter().enumerate() {
            if place.is_multiple_of(64) {
                progress("comparing bytes", (truths.len() * contents.len() + place) as u64, total);
            }
            let (a, b) = (&contents[query].1[..], &other[..]);
            let common = exact::compare(&a, &b, MEMORY_BYTES)
                .map_err(|e| crate::contents::OverlayError::io("compare", "files in memory", e))?;
            let share =
                |common: u64, of: &[u8]| if of.is_empty() { 0.0 } else { common as f64 / of.len() as f64 };
            let both = (share(common.a_bytes, a), share(common.b_bytes, b));
            shares.push(if place == query { (0.0, 0.0) } else { both });
        }
        truths.push(Truth { query, shares });
    }
    Ok(truths)
}

fn judge(
    contender: &mut dyn Contender,
    contents: &[(OsString, Vec<u8>)],
    bytes: u64,
    truths: &[Truth],
    progress: &mut dyn FnMut(&str, u64, u64),
) -> Result<Standing> {
    let name = contender.name();
    let start = processor_time();
    for (place, (file, content)) in contents.iter().enumerate() {
        progress(&name, place as u64, contents.len() as u64);
        contender.add(place, file, content)?;
    }
    contender.finish()?;
    let building = processor_time() - start;
    let (mut asked, mut found, mut there) = (Duration::ZERO, [0u64; 3], [0u64; 3]);
    let (mut listed, mut right) = (0u64, 0u64);
    for truth in truths {
        let (file, content) = &contents[truth.query];
        let (answer, took) = contender.query(file, content)?;
        asked += took;
        let answer: HashMap<usize, Option<(f64, f64)>> =
            answer.into_iter().filter(|(place, _)| *place != truth.query).collect();
        for (place, (share, _)) in truth.shares.iter().enumerate() {
            for (at, least) in THRESHOLDS.iter().enumerate().filter(|(_, least)| share >= least) {
                there[at] += 1;
                let estimate = answer.get(&place).map(|shares| shares.map_or(f64::MAX, |(share, _)| share));
                found[at] += u64::from(estimate.is_some_and(|estimate| estimate >= least / 2.0));
            }
        }
        let enough = |(a, b): (f64, f64)| a.max(b) >= THRESHOLDS[0];
        for (place, _) in answer.iter().filter(|(_, shares)| shares.is_none_or(enough)) {
            listed += 1;
            right += u64::from(enough(truth.shares[*place]));
        }
    }
    let share = |part: u64, of: u64| (of > 0).then(|| part as f64 / of as f64);
    let [recall_25, recall_50, recall_80] = [0, 1, 2].map(|at| share(found[at], there[at]));
    Ok(Standing {
        name,
        method: contender.method(),
        fitted: contender.is_fitted(),
        parameters: contender.parameters(),
        recall_25,
        recall_50,
        recall_80,
        precision: share(right, listed),
        index_share: share(index_bytes(contender.db())?, bytes).unwrap_or(0.0),
        mib_per_s: bytes as f64 / f64::from(1 << 20) / building.as_secs_f64().max(1e-9),
        query_ms: asked.as_secs_f64() * 1000.0 / truths.len().max(1) as f64,
    })
}

/// Keys and values. A database on disk takes some more.
fn index_bytes(db: &dyn Db) -> Result<u64> {
    let mut bytes = 0;
    for table in Table::ALL {
        db.scan(table, &[], &mut |key, value| {
            bytes += (key.len() + value.len()) as u64;
            true
        })?;
    }
    Ok(bytes)
}

fn processor_time() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}
