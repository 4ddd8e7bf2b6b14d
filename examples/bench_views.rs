//! What views cost and what they find: `cargo run --release --example bench_views -- DIR [FILES]`.
//!
//! For each view: how many of the files below DIR it suits, how fast it is, what it makes of them, and the index that it
//! takes, as rows of all five tables in per cent of the bytes of the files. Then the pairs of files that have a quarter
//! of either in the other (verified, byte by byte): by their bytes as they are, and by their views. Pairs whose bytes are
//! the same are not counted. FILES (2,000) bounds the sample, taken by the hash of the files' names.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a benchmark")]

use dedupfs::chunk::ChunkParams;
use dedupfs::db::{Db, MemDb, Table};
use dedupfs::id::{ChunkId, RecipeId};
use dedupfs::recipe::{ChunkRef, Recipe};
use dedupfs::similarity::{QuerySketch, Similarity, SimilarityOptions, Sketch, exact};
use dedupfs::view::{HEAD_BYTES, View};
use rustix::time::{ClockId, clock_gettime};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::Cursor;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

const MIN: f64 = 0.25;
const BYTES_MAX: u64 = 64 << 20;
const CANDIDATES: usize = 60;

/// Processor time of this thread: what a machine with other work does not change much.
fn cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// A similarity index in memory.
struct Index {
    db: Arc<MemDb>,
    similarity: Similarity,
    files: HashMap<RecipeId, usize>,
}

impl Index {
    fn new() -> Index {
        let db = Arc::new(MemDb::new());
        let similarity = Similarity::open(db.clone(), SimilarityOptions::default()).unwrap();
        Index { db, similarity, files: HashMap::new() }
    }

    fn add(&mut self, file: usize, bytes: &[u8]) {
        let chunks: Vec<_> = pieces(bytes)
            .map(|piece| {
                let id = ChunkId::of(piece);
                if !self.similarity.knows_chunk(&id).unwrap() {
                    self.similarity.add_chunk(id, Sketch::of_chunk(piece)).unwrap();
                }
                ChunkRef { id, len: piece.len() as u32 }
            })
            .collect();
        let recipe = Recipe::new(chunks);
        self.similarity.add_content(recipe.id(), &recipe).unwrap();
        self.files.entry(recipe.id()).or_insert(file);
    }

    fn row_bytes(&self) -> u64 {
        self.similarity.flush().unwrap();
        let mut sum = 0;
        for table in [
            Table::Features,
            Table::Filters,
            Table::Sketched,
            Table::Contained,
            Table::Contents,
            Table::Numbered,
        ] {
            let mut add = |key: &[u8], value: &[u8]| {
                sum += (key.len() + value.len()) as u64;
                true
            };
            self.db.scan(table, &[], &mut add).unwrap();
        }
        sum
    }

    /// Files of which a quarter is in that one, or the other way round.
    fn alike(
        &self,
        file: usize,
        bytes: &[u8],
        content: impl Fn(usize) -> Vec<u8>,
    ) -> BTreeSet<(usize, usize)> {
        let mut sketch = QuerySketch::new();
        pieces(bytes).for_each(|piece| sketch.add_chunk(piece));
        let answer = self.similarity.query(&sketch, MIN, CANDIDATES).unwrap();
        let others = answer.candidates.iter().map(|candidate| self.files[&candidate.recipe]);
        let is_alike = |&other: &usize| {
            let theirs = content(other);
            let common = exact::compare(&bytes, &&theirs[..], 64 << 20).unwrap();
            let share = |part: u64, whole: usize| part as f64 / whole.max(1) as f64;
            let most = share(common.a_bytes, bytes.len()).max(share(common.b_bytes, theirs.len()));
            common.a_bytes >= 64 && most >= MIN
        };
        others
            .filter(|&other| other != file)
            .filter(is_alike)
            .map(|other| (file.min(other), file.max(other)))
            .collect()
    }
}

fn pieces(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut at = 0;
    ChunkParams::default().cut(bytes, true).into_iter().map(move |len| {
        at += len as usize;
        &bytes[at - len as usize..at]
    })
}

fn through(view: View, bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    view.through(&mut Cursor::new(bytes), &mut |piece| out.extend_from_slice(piece)).unwrap();
    out
}

fn walk(dir: &Path, out: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap().flatten() {
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            walk(&entry.path(), out);
        } else if kind.is_file() && entry.metadata().is_ok_and(|meta| (1..=BYTES_MAX).contains(&meta.len())) {
            out.push(entry.path());
        }
    }
}

fn main() {
    let mut args = std::env::args().skip(1);
    let dir = PathBuf::from(args.next().expect("usage: bench_views DIR [FILES]"));
    let count = args.next().map_or(2000, |text| text.parse().unwrap());
    let mut paths = Vec::new();
    walk(&dir, &mut paths);
    // By the name alone: the same file of all releases is in the sample or is not.
    paths.sort_by_key(|path| {
        let name = path.file_name().unwrap();
        (blake3::hash(name.as_encoded_bytes()).as_bytes()[..8].to_vec(), path.clone())
    });
    paths.truncate(count);
    let mut of: BTreeMap<View, Vec<(usize, Vec<u8>)>> = BTreeMap::new();
    let (mut sniffing, mut seen) = (Duration::ZERO, BTreeSet::new());
    for (file, path) in paths.iter().enumerate() {
        let bytes = std::fs::read(path).unwrap();
        if !seen.insert(*blake3::hash(&bytes).as_bytes()) {
            continue;
        }
        let start = cpu();
        let view = View::of(&bytes[..bytes.len().min(HEAD_BYTES)], path.file_name());
        sniffing += cpu() - start;
        of.entry(view).or_default().push((file, bytes));
    }
    println!("{} distinct files, sniffed in {:?} each", seen.len(), sniffing / (seen.len() as u32).max(1));
    println!(
        "view        files     MB  view MB  view MB/s  raw index %  view index %  raw pairs  view pairs  only by view"
    );
    for (view, files) in &of {
        let (mut raw, mut index) = (Index::new(), Index::new());
        let (mut raw_bytes, mut view_bytes, mut time) = (0, 0, Duration::ZERO);
        for (file, bytes) in files {
            raw.add(*file, bytes);
            let start = cpu();
            let view = through(*view, bytes);
            time += cpu() - start;
            index.add(*file, &view);
            (raw_bytes, view_bytes) = (raw_bytes + bytes.len(), view_bytes + view.len());
        }
        let by_file: HashMap<usize, &[u8]> = files.iter().map(|(file, bytes)| (*file, &bytes[..])).collect();
        let (mut by_bytes, mut by_view) = (BTreeSet::new(), BTreeSet::new());
        for (file, bytes) in files {
            by_bytes.extend(raw.alike(*file, bytes, |other| by_file[&other].to_vec()));
            let seen = through(*view, bytes);
            by_view.extend(index.alike(*file, &seen, |other| through(*view, by_file[&other])));
        }
        println!(
            "{:10} {:6} {:6.1} {:8.1} {:10.0} {:12.2} {:13.2} {:10} {:11} {:13}",
            view.name(),
            files.len(),
            raw_bytes as f64 / 1e6,
            view_bytes as f64 / 1e6,
            raw_bytes as f64 / 1e6 / time.as_secs_f64(),
            100.0 * raw.row_bytes() as f64 / raw_bytes as f64,
            100.0 * index.row_bytes() as f64 / raw_bytes as f64,
            by_bytes.len(),
            by_view.len(),
            by_view.difference(&by_bytes).count(),
        );
    }
}
