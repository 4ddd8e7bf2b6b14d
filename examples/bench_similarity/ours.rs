//! The index as dedupfs builds it, on disk, and what it answers.

use crate::Sketched;
use crate::corpus::File;
use crate::oracle::Truth;
use crate::table::Row;
use dedupfs::chunk::ChunkParams;
use dedupfs::db::{self, Db, IndexDb, Table};
use dedupfs::id::RecipeId;
use dedupfs::similarity::groups::{self, PairOptions, Stars};
use dedupfs::similarity::{QuerySketch, Similarity, SimilarityOptions, Sketch, exact, exact::Patterns};
use dedupfs::store::StoreOptions;
use rustix::time::{ClockId, clock_gettime};
use std::collections::{HashMap, HashSet};
use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;

/// What is asked for.
pub const MIN: f64 = 0.25;
const COMPARE_MEMORY: usize = 64 << 20;
const PAIRS_MEMORY: usize = 64 << 20;
const PAIRS_CAP: u32 = 500;
/// Chunks of a shorter content have their grams in the index in any case, as `overlay/ingest.rs` has it.
const SMALL_BYTES: usize = 128 << 10;
/// Candidates of a query that are compared exactly, evenly of all.
const VERIFIED_MAX: usize = 50;

pub struct Ours {
    /// The index, and all pairs: what `dedupctl similar` and `groups` start from.
    pub rows: Vec<Row>,
    unique: u64,
    speeds: Vec<(&'static str, f64)>,
    rows_bytes: Vec<(Table, u64)>,
    disk_bytes: u64,
    /// The same of a copy, as a mount makes one when it opens an index that has grown.
    copy_bytes: u64,
    suppressed: usize,
    verified: Verified,
    stars: (f64, usize),
}

/// Candidates compared by `exact::compare`, beside the oracle.
#[derive(Default)]
struct Verified {
    compared: usize,
    bytes: usize,
    cpu_s: f64,
    shown: usize,
    /// Shown, but true at less than was asked for.
    wrong: usize,
    /// Not shown, but true.
    lost: usize,
    /// More or fewer bytes are covered than the oracle says.
    over: usize,
    under: usize,
    /// Of the share of the other, summed.
    contained_in_error: f64,
}

pub fn measure(files: &[File], queries: &[usize], truth: &Truth, sketched: Sketched) -> Ours {
    let mut seen = HashSet::new();
    let unique = files.iter().flat_map(File::chunks).filter(|(id, _)| seen.insert(*id));
    let chunks: Vec<&[u8]> = unique.map(|(_, bytes)| bytes).collect();
    let unique: usize = chunks.iter().map(|chunk| chunk.len()).sum();
    let all: usize = files.iter().map(|file| file.bytes.len()).sum();
    let speed = |bytes: usize, work: &mut dyn FnMut()| bytes as f64 / 1e6 / cpu_of(work);
    let mut speeds = vec![
        ("blake3", speed(unique, &mut || chunks.iter().for_each(|chunk| _ = black_box(blake3::hash(chunk))))),
        (
            "cut",
            speed(all, &mut || {
                files.iter().for_each(|file| drop(black_box(ChunkParams::default().cut(&file.bytes, true))))
            }),
        ),
    ];
    let sketching = cpu_of(&mut || chunks.iter().for_each(|chunk| drop(black_box(Sketch::of_chunk(chunk)))));
    speeds.push(("sketch", unique as f64 / 1e6 / sketching));

    let dir = tempfile::tempdir().unwrap();
    let db = Arc::new(IndexDb::open(&dir.path().join("index"), 256 << 20).unwrap());
    let index = Similarity::open(db.clone(), SimilarityOptions::default()).unwrap();
    let building = cpu_of(&mut || build(&index, &*db, files, sketched));
    speeds.push(("sketch and index", unique as f64 / 1e6 / building));
    let tables = [
        Table::Features,
        Table::Filters,
        Table::Sketched,
        Table::Contained,
        Table::Contents,
        Table::Numbered,
    ];
    let rows_bytes: Vec<_> = tables.into_iter().map(|table| (table, table_bytes(&*db, table))).collect();

    let place: HashMap<RecipeId, usize> = files.iter().enumerate().map(|(i, file)| (file.id, i)).collect();
    let (mut found, mut latencies_us, mut suppressed) = (Vec::new(), Vec::new(), 0);
    let mut verified = Verified::default();
    for (query, &file) in queries.iter().enumerate() {
        let mut answer = None;
        let seconds = cpu_of(&mut || {
            let mut sketch = QuerySketch::new();
            files[file].chunks().for_each(|(id, bytes)| sketch.add_named(&id, bytes, 1));
            answer = Some(index.query(&sketch, MIN, usize::MAX).unwrap());
        });
        latencies_us.push(seconds * 1e6);
        let answer = answer.unwrap();
        suppressed += answer.suppressed_features;
        let others = answer
            .candidates
            .iter()
            .map(|candidate| (place[&candidate.recipe], (candidate.containment, candidate.contained_in)));
        let others: HashMap<usize, (f64, f64)> = others.filter(|&(other, _)| other != file).collect();
        verified.compare(files, file, &others, &truth[query]);
        found.push(others.into_iter().map(|(other, (containment, _))| (other, containment)).collect());
    }
    let index_bytes = Some(rows_bytes.iter().map(|(_, bytes)| bytes).sum::<u64>() as f64 / unique as f64);
    let (pairs_row, stars) = all_pairs(&index, dir.path(), files, queries, &place);
    let row = Row {
        name: "dedupfs".into(),
        settings: "FracMinHash, as shipped".into(),
        found,
        estimates: true,
        sketch_mb_s: Some(all as f64 / 1e6 / building),
        latencies_us,
        all_pairs: pairs_row.all_pairs,
        index_share: index_bytes,
        peak_mb: None,
    };
    let disk_bytes = db.bytes_on_disk();
    let copy = db::copy(&*db, &dir.path().join("copy"), 16 << 20).unwrap();
    copy.flush().unwrap();
    let copy_bytes = copy.bytes_on_disk();
    Ours {
        rows: vec![row, pairs_row],
        unique: unique as u64,
        speeds,
        rows_bytes,
        disk_bytes,
        copy_bytes,
        suppressed,
        verified,
        stars,
    }
}

fn build(index: &Similarity, db: &dyn Db, files: &[File], sketched: Sketched) {
    let mut bare = 0;
    for file in files {
        for (id, chunk) in file.chunks() {
            if !index.knows_chunk(&id).unwrap() {
                let has_grams = match sketched {
                    Sketched::Full => file.bytes.len() < SMALL_BYTES || compresses(chunk),
                    Sketched::Chunks => false,
                    Sketched::Grams => true,
                };
                bare += u64::from(!has_grams);
                let sketch = if has_grams { Sketch::of_chunk(chunk) } else { Sketch::bare(chunk.len()) };
                index.add_chunk(id, sketch).unwrap();
            }
        }
        index.add_content(file.id, &file.recipe).unwrap();
    }
    index.flush().unwrap();
    db.flush().unwrap();
    println!("{bare} of {} chunks are known by their ids alone", index.stats().chunks);
}

/// Whether a store would keep a chunk compressed.
fn compresses(chunk: &[u8]) -> bool {
    let level = StoreOptions::default().zstd_level;
    zstd::bulk::compress(chunk, level).unwrap().len() + chunk.len() / 32 < chunk.len()
}

fn all_pairs(
    index: &Similarity,
    dir: &Path,
    files: &[File],
    queries: &[usize],
    place: &HashMap<RecipeId, usize>,
) -> (Row, (f64, usize)) {
    let options = PairOptions { memory_bytes: PAIRS_MEMORY, frequency_cap: PAIRS_CAP, anew: true };
    let mut pairs = None;
    let seconds =
        cpu_of(&mut || pairs = Some(groups::pairs(index, &options, dir, &mut |_, _, _| true).unwrap()));
    let pairs = pairs.unwrap();
    let contents: Vec<usize> = pairs.contents().map(|content| place[&content.unwrap().recipe]).collect();
    let of_query: HashMap<usize, usize> = queries.iter().enumerate().map(|(i, &file)| (file, i)).collect();
    let mut found = vec![HashMap::new(); queries.len()];
    for pair in pairs.iter().map(|pair| pair.unwrap()) {
        let (a, b) = (contents[pair.a as usize], contents[pair.b as usize]);
        for (one, other, share) in [(a, b, pair.a_in_b), (b, a, pair.b_in_a)] {
            if let Some(&query) = of_query.get(&one) {
                found[query].insert(other, share);
            }
        }
    }
    let mut stars = 0;
    let of_stars = cpu_of(&mut || {
        stars = Stars::of(&pairs, MIN, None, PAIRS_MEMORY, &mut |_, _, _| true).unwrap().stars.len();
    });
    let row = Row {
        name: "dedupfs groups".into(),
        settings: format!(
            "pairs of a tenth and more; {} features of {} files",
            pairs.suppressed_features(),
            files.len()
        ),
        found,
        estimates: true,
        all_pairs: Some((seconds, pairs.len())),
        ..Row::default()
    };
    (row, (of_stars, stars))
}

impl Verified {
    fn compare(
        &mut self,
        files: &[File],
        file: usize,
        others: &HashMap<usize, (f64, f64)>,
        truth: &HashMap<usize, crate::oracle::Share>,
    ) {
        let mut order: Vec<usize> = others.keys().copied().collect();
        order.sort_unstable();
        let bytes = &files[file].bytes;
        for &other in order.iter().step_by(order.len().div_ceil(VERIFIED_MAX).max(1)) {
            let mut found = exact::SideBySide::default();
            self.cpu_s += cpu_of(&mut || {
                let (one, other, patterns) = (&&bytes[..], &&files[other].bytes[..], Patterns::padding());
                let covered = patterns.covered(one, COMPARE_MEMORY).unwrap();
                found = exact::compare_excluding(one, &covered, other, &patterns, COMPARE_MEMORY).unwrap();
            });
            let said = truth.get(&other).map_or(0.0, |share| share.of_32);
            let (common, counted) = (found.common, (bytes.len() as u64 - found.a_patterns) as f64);
            let is_shown = common.a_bytes as f64 >= MIN * counted && common.a_bytes > 0;
            if let Some(&(_, contained_in)) = others.get(&other).filter(|_| is_shown) {
                let size = files[other].bytes.len() as u64 - found.b_patterns;
                self.contained_in_error += (contained_in - common.b_bytes as f64 / size.max(1) as f64).abs();
            }
            self.compared += 1;
            self.bytes += bytes.len() + files[other].bytes.len();
            self.shown += usize::from(is_shown);
            self.wrong += usize::from(is_shown && said < MIN);
            self.lost += usize::from(!is_shown && said >= MIN);
            let said = (said * counted).round() as u64;
            self.over += usize::from(common.a_bytes > said);
            self.under += usize::from(common.a_bytes < said);
        }
    }
}

impl Ours {
    pub fn print(&self, truth: &Truth) {
        println!("\nof {:.1} MB of unique chunks, MB a second of processor time:", self.unique as f64 / 1e6);
        self.speeds.iter().for_each(|(what, speed)| println!("  {what:<18} {speed:>7.0}"));
        let percent = |bytes: u64| bytes as f64 * 100.0 / self.unique as f64;
        let rows = self.rows_bytes.iter().map(|(table, bytes)| format!("{table:?} {:.2}", percent(*bytes)));
        let rows: Vec<_> = rows.collect();
        println!(
            "rows in % of that: {}; files of the database {:.2}, of a copy {:.2}",
            rows.join(", "),
            percent(self.disk_bytes),
            percent(self.copy_bytes)
        );
        println!("features suppressed: {} of {} queries", self.suppressed, truth.len());
        let Verified { compared, bytes, cpu_s, shown, wrong, lost, over, under, contained_in_error } =
            &self.verified;
        println!(
            "{compared} candidates compared at {:.0} MB/s of both: {shown} shown, {wrong} of them wrongly, {lost} lost; more bytes than the oracle says in {over}, fewer in {under}",
            *bytes as f64 / 1e6 / cpu_s
        );
        println!(
            "mean error of the share of the other, of those shown: {:.3}",
            contained_in_error / *shown as f64
        );
        println!("stars at {MIN}: {} in {:.2} s", self.stars.1, self.stars.0);
    }
}

fn table_bytes(db: &dyn Db, table: Table) -> u64 {
    let mut bytes = 0;
    let mut add = |key: &[u8], value: &[u8]| {
        bytes += (key.len() + value.len()) as u64;
        true
    };
    db.scan(table, &[], &mut add).unwrap();
    bytes
}

/// Seconds of processor time, of all threads.
fn cpu_of(work: &mut dyn FnMut()) -> f64 {
    let now = || {
        let time = clock_gettime(ClockId::ProcessCPUTime);
        time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
    };
    let start = now();
    work();
    now() - start
}
