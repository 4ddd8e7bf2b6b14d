//! Measures queries on a large index: `bench_queries DIR [CONTENTS [INDEX_DIR]]`, a million contents unless told.
//!
//! Contents are made of the files below DIR, of 256 bytes to 32 KiB: a family is such a file with its bytes replaced one for
//! one, so that it repeats itself as the file does and has no gram of another family's; a member of a family has some
//! lines edited. Families have 1 to 32 members. One content in ten begins with the same licence. The index lies in
//! INDEX_DIR, and stays there: what an earlier run with the same DIR and CONTENTS left is asked as it is. Without
//! INDEX_DIR it lies in a temporary directory.
//!
//! The queries are new members. Blocks are entries of the database that were read. Cold is after the index was closed
//! and opened again, with the system's cache warm.
#![allow(clippy::print_stdout, clippy::unwrap_used, missing_docs)]

use dedupfs::chunk::ChunkParams;
use dedupfs::db::{self, Batch, Db, DbResult, SledDb, Table, Value};
use dedupfs::id::ChunkId;
use dedupfs::recipe::{ChunkRef, Recipe};
use dedupfs::similarity::{QuerySketch, Similarity, SimilarityOptions, Sketch};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const SEED: u64 = 20_261_122;
const CACHE_BYTES: u64 = 32 << 20;
const BUFFER_BYTES: usize = 512 << 20;
const QUERIES: usize = 300;
const LICENCE_EVERY: u64 = 10;
/// As `dedupctl similar` asks unless it is told otherwise.
const LOOKED_AT: usize = 4096;

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (x ^ (x >> 31)) % bound
    }
}

/// The database, and how many of its entries were read.
struct Counting(SledDb, AtomicU64);

impl Db for Counting {
    fn get(&self, table: Table, key: &[u8]) -> DbResult<Option<Value>> {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.get(table, key)
    }
    fn at_or_below(&self, table: Table, key: &[u8]) -> DbResult<Option<(Vec<u8>, Value)>> {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.at_or_below(table, key)
    }
    fn scan(&self, table: Table, from: &[u8], visit: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> DbResult<()> {
        self.0.scan(table, from, &mut |key, value| {
            self.1.fetch_add(1, Ordering::Relaxed);
            visit(key, value)
        })
    }
    fn apply(&self, batch: Batch) -> DbResult<()> {
        self.0.apply(batch)
    }
    fn flush(&self) -> DbResult<()> {
        self.0.flush()
    }
    fn bytes_on_disk(&self) -> u64 {
        self.0.bytes_on_disk()
    }
}

fn files(dir: &Path, out: &mut Vec<Vec<u8>>) {
    let mut paths: Vec<PathBuf> = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).collect();
    paths.sort();
    for path in paths {
        let kind = path.symlink_metadata().unwrap();
        if kind.is_dir() {
            files(&path, out);
        } else if kind.is_file() && (256..=32 << 10).contains(&kind.len()) {
            out.push(std::fs::read(&path).unwrap());
        }
    }
}

struct Maker {
    files: Vec<Vec<u8>>,
    licence: Vec<u8>,
}

impl Maker {
    /// A member of a family, by its number.
    fn member(&self, family: u64, member: u64) -> Vec<u8> {
        let mut of_family = Random(SEED ^ family.wrapping_mul(0x1_0001));
        let mut bytes = self.files[of_family.below(self.files.len() as u64) as usize].clone();
        let mut table: Vec<u8> = (0..=255).collect();
        (1..256).rev().for_each(|i| table.swap(i, of_family.below(i as u64 + 1) as usize));
        bytes.iter_mut().for_each(|byte| *byte = table[usize::from(*byte)]);
        let mut of_member = Random(SEED ^ family << 20 ^ (member + 1) << 50);
        for _ in 0..if member == 0 { 0 } else { 1 + of_member.below(12) } {
            let at = of_member.below(bytes.len() as u64) as usize;
            let end = bytes.len().min(at + of_member.below(80) as usize);
            bytes.splice(at..end, (0..of_member.below(60)).map(|i| (i * i + member) as u8 | 0x80));
            bytes.push(b'\n');
        }
        if (family + member).is_multiple_of(LICENCE_EVERY) {
            bytes.splice(0..0, self.licence.iter().copied());
        }
        bytes
    }
}

fn chunks(bytes: &[u8]) -> Vec<(ChunkRef, &[u8])> {
    let mut rest = bytes;
    let lens = ChunkParams::default().cut(bytes, true);
    let cut = lens.into_iter().map(|len| {
        let (chunk, tail) = rest.split_at(len as usize);
        rest = tail;
        (ChunkRef { id: ChunkId::of(chunk), len }, chunk)
    });
    cut.collect()
}

fn memory(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.trim_matches(|c: char| !c.is_ascii_digit()).parse::<u64>().unwrap() >> 10
}

fn options() -> SimilarityOptions {
    SimilarityOptions { buffer_bytes: BUFFER_BYTES, ..SimilarityOptions::default() }
}

fn sketch(bytes: &[u8]) -> QuerySketch {
    let mut sketch = QuerySketch::new();
    chunks(bytes).iter().for_each(|(_, chunk)| sketch.add_chunk(chunk));
    sketch
}

/// Time that the processor has given to this thread: on a machine that does other things too, a query that waits is not
/// slower for it.
fn processor() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn measure(name: &str, index: &Similarity, db: &Counting, queries: &[QuerySketch]) {
    let (mut times, mut walls, mut blocks, mut found) = (Vec::new(), Vec::new(), Vec::new(), 0);
    for query in queries {
        let before = db.1.load(Ordering::Relaxed);
        let (from, processor_from) = (Instant::now(), processor());
        found += index.query(query, 0.25, LOOKED_AT).unwrap().candidates.len();
        times.push((processor() - processor_from).as_micros());
        walls.push(from.elapsed().as_micros());
        blocks.push(db.1.load(Ordering::Relaxed) - before);
    }
    times.sort_unstable();
    walls.sort_unstable();
    blocks.sort_unstable();
    let at = |share: usize| (queries.len() * share / 100).min(queries.len() - 1);
    println!(
        "{name:24} us of processor p50 {:6} p99 {:6}  us in all p50 {:6} p99 {:7}  blocks p50 {:5} p99 {:6}  candidates {:5.1}",
        times[at(50)],
        times[at(99)],
        walls[at(50)],
        walls[at(99)],
        blocks[at(50)],
        blocks[at(99)],
        found as f64 / queries.len() as f64
    );
}

fn main() {
    let mut args = std::env::args().skip(1);
    let dir = PathBuf::from(args.next().expect("a directory of files"));
    let wanted: u64 = args.next().map_or(1_000_000, |n| n.parse().unwrap());
    let temporary = tempfile::tempdir().unwrap();
    let place = args.next().map_or(temporary.path().join("index"), PathBuf::from);
    let mut all = Vec::new();
    files(&dir, &mut all);
    println!("seed {SEED}; {} files to make contents of", all.len());
    let licence = (0..1100u64).map(|i| b"the licence says that "[(i * i / 7 % 22) as usize]).collect();
    let maker = Maker { files: all, licence };

    let open = |path: &Path| {
        let db = Arc::new(Counting(SledDb::open(path, CACHE_BYTES).unwrap(), AtomicU64::new(0)));
        (Similarity::open(db.clone(), options()).unwrap(), db)
    };
    let is_there = place.exists();
    let (index, db) = open(&place);
    let (mut contents, mut family, mut bytes) = (0u64, 0u64, 0u64);
    let mut members = Vec::new();
    let from = Instant::now();
    while contents < wanted {
        let count = (1 + Random(SEED ^ family).below(1 << (family % 6))).min(wanted - contents);
        members.push(count);
        for member in (0..count).filter(|_| !is_there) {
            let content = maker.member(family, member);
            bytes += content.len() as u64;
            let parts = chunks(&content);
            for (chunk, part) in &parts {
                if !index.knows_chunk(&chunk.id).unwrap() {
                    index.add_chunk(chunk.id, Sketch::of_chunk(part)).unwrap();
                }
            }
            let recipe = Recipe::new(parts.iter().map(|(chunk, _)| *chunk).collect());
            index.add_content(recipe.id(), &recipe).unwrap();
        }
        (family, contents) = (family + 1, contents + count);
    }
    index.flush().unwrap();
    db.flush().unwrap();
    let stats = index.stats();
    println!(
        "{} contents in {family} families, {:.0} MB, {} chunks, {} postings; built in {:.0} s, peak {} MiB",
        stats.contents,
        bytes as f64 / 1e6,
        stats.chunks,
        stats.postings,
        from.elapsed().as_secs_f64(),
        memory("VmHWM:")
    );
    let table = |table| {
        let mut sum = 0;
        let size = &mut |key: &[u8], value: &[u8]| {
            sum += (1 + key.len() + value.len()) as u64;
            true
        };
        db.0.scan(table, &[], size).unwrap();
        sum
    };
    let tables = [
        Table::Features,
        Table::Filters,
        Table::Sketched,
        Table::Contained,
        Table::Contents,
        Table::Numbered,
    ];
    let sizes = tables.map(table);
    let rows: u64 = sizes.iter().sum();
    let each = |bytes: u64| bytes as f64 / stats.contents as f64;
    let share = |part: u64| part as f64 * 100.0 / bytes as f64;
    for (table, size) in tables.iter().zip(sizes) {
        println!("  {:12} {:6.1} B a content", format!("{table:?}"), each(size));
    }
    let disk = db.bytes_on_disk();
    println!("rows {:.1} B a content, {:.2}% of the bytes", each(rows), share(rows));
    println!("on disk {:.1} B a content, {:.2}%", each(disk), share(disk));

    let some: Vec<QuerySketch> = (0..QUERIES)
        .map(|i| {
            let family = i * members.len() / QUERIES;
            sketch(&maker.member(family as u64, members[family] + 7))
        })
        .collect();
    let licence = [sketch(&maker.licence)];
    let large: Vec<u8> = (0..20_000u64).flat_map(|family| maker.member(family, 40)).collect();
    let large = [sketch(&large[..large.len().min(64 << 20)])];
    let peak = memory("VmHWM:");
    measure("warm-up", &index, &db, &some);
    measure("warm", &index, &db, &some);
    drop((index, db));
    let from = Instant::now();
    let (index, db) = open(&place);
    println!("opened in {} ms, {} MiB resident", from.elapsed().as_millis(), memory("VmRSS:"));
    measure("cold", &index, &db, &some);
    measure("warm", &index, &db, &some);
    measure("what a tenth of all has", &index, &db, &licence);
    measure("a file of up to 64 MiB", &index, &db, &large);
    println!("resident {} MiB, peak before queries {peak}, now {} MiB", memory("VmRSS:"), memory("VmHWM:"));
    drop(index);

    let from = Instant::now();
    let copy = temporary.path().join("copy");
    let copied = db::copy(&db.0, &copy, CACHE_BYTES).unwrap();
    copied.flush().unwrap();
    let disk = copied.bytes_on_disk();
    println!(
        "written anew in {:.1} s: {:.1} B a content, {:.2}%",
        from.elapsed().as_secs_f64(),
        each(disk),
        share(disk)
    );
    drop((db, copied));
    let (index, db) = open(&copy);
    measure("cold, written anew", &index, &db, &some);
    measure("warm, written anew", &index, &db, &some);
}
