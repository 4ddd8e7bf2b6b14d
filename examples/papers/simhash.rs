//! Sadowski and Levin 2007, section 5: keys on similar and different files (Figure 6), the extension in the key (Figure
//! 7), and how time grows with the number of files (Figure 9).

use crate::{Meter, Random, files_below};
use dedupfs::similarity::methods::chunk_graph::{ChunkGraph, ChunkList, common_bytes};
use dedupfs::similarity::methods::simhash::{Counts, KeyKind, SimFind, SimHash, SimSketch, Tolerance};
use dedupfs::similarity::methods::sketch_of;
use std::path::{Path, PathBuf};

const SEED: u64 = 0x7361_646f_7773_6b69;
const TRUNCATED_BYTES: usize = 4096;
const SET_FILES: usize = 1000;
/// The paper's trial with extensions.
const REAL_FILES: usize = 10_364;
const TOLERANCES: [f64; 5] = [0.0005, 0.001, 0.0025, 0.005, 0.01];

pub fn run(dir: &Path) {
    let files = files_below(dir);
    println!("seed {SEED:#x}; {} files below {}", files.len(), dir.display());
    let different = different(&files);
    let similar = similar(&std::fs::read(&files[files.len() / 2]).unwrap(), SET_FILES);
    keys("similar", &similar);
    keys("different", &different);
    extensions(&files);
    growth(&files);
}

fn method(key: KeyKind, tolerance: f64) -> SimHash {
    let tolerance = Tolerance { key: tolerance, size: 0.05, sums: tolerance };
    SimHash { key, tolerance, by_extension: Vec::new() }
}

/// Hits among all pairs; each pair is met from both sides.
fn hits(method: &SimHash, files: &[SimSketch]) -> Counts {
    let (find, mut counts) = (SimFind::new(method, files), Counts::default());
    for file in 0..files.len() as u32 {
        find.similar(file, &mut |_, _| Ok(false), &mut counts).unwrap();
    }
    counts
}

/// Files of 4 KiB, each with a few bytes other than the one before it has.
fn similar(start: &[u8], count: usize) -> Vec<SimSketch> {
    let mut random = Random(SEED);
    let mut bytes: Vec<u8> = start.iter().copied().cycle().take(TRUNCATED_BYTES).collect();
    let next = |_| {
        for _ in 0..3 {
            let at = random.below(bytes.len());
            bytes[at] = random.next() as u8;
        }
        sketch_of(&SimHash::default(), Some("file.dat".as_ref()), &bytes)
    };
    (0..count).map(next).collect()
}

/// Files cut to 4 KiB that have no chunk of 100 bytes in common with an earlier one.
fn different(files: &[PathBuf]) -> Vec<SimSketch> {
    let graph = ChunkGraph::new(dedupfs::chunk::tttd::Tttd::with_target(100).unwrap());
    let (mut random, mut taken, mut sketches) = (Random(SEED), Vec::<ChunkList>::new(), Vec::new());
    for _ in 0..100 * SET_FILES {
        if sketches.len() == SET_FILES {
            break;
        }
        let path = &files[random.below(files.len())];
        let mut bytes = std::fs::read(path).unwrap();
        if bytes.len() < TRUNCATED_BYTES {
            continue;
        }
        bytes.truncate(TRUNCATED_BYTES);
        let list = sketch_of(&graph, None, &bytes);
        if taken.iter().all(|other| common_bytes(list.chunks(), other.chunks()) == 0) {
            taken.push(list);
            sketches.push(sketch_of(&SimHash::default(), path.file_name(), &bytes));
        }
    }
    sketches
}

fn keys(name: &str, files: &[SimSketch]) {
    println!("\n{} {name} files: sum table hits of key hits, by tolerance for each byte", files.len());
    for key in KeyKind::ALL {
        print!("{:<18}", key.name);
        for tolerance in TOLERANCES {
            let Counts { key_hits, sum_hits, .. } = hits(&method(key, tolerance), files);
            print!("  {tolerance}: {:>6}/{:<7} {:.3}", sum_hits / 2, key_hits / 2, ratio(sum_hits, key_hits));
        }
        println!();
    }
}

fn ratio(a: u64, b: u64) -> f64 {
    if b == 0 { 1.0 } else { a as f64 / b as f64 }
}

fn real(files: &[PathBuf], count: usize) -> (Vec<SimSketch>, u64) {
    let (mut random, mut bytes) = (Random(SEED), 0);
    let mut sketch = |_| {
        let path = &files[random.below(files.len())];
        let content = std::fs::read(path).unwrap();
        bytes += content.len() as u64;
        sketch_of(&SimHash::default(), path.file_name(), &content)
    };
    ((0..count).map(&mut sketch).collect(), bytes)
}

fn extensions(files: &[PathBuf]) {
    let meter = Meter::start();
    let (sketches, bytes) = real(files, REAL_FILES);
    let rate = bytes as f64 / 1e6 / meter.seconds();
    println!();
    meter.end("tags counted", &format!("{REAL_FILES} files, {} MB, {rate:.0} MB/s cpu", bytes / 1_000_000));
    let pairs = (REAL_FILES * (REAL_FILES - 1)) as f64;
    println!("share of all pairs that are key hits and sum table hits, by tolerance");
    for key in KeyKind::ALL {
        print!("{:<18}", key.name);
        for tolerance in TOLERANCES {
            let Counts { key_hits, sum_hits, .. } = hits(&method(key, tolerance), &sketches);
            print!("  {tolerance}: {:.2e} {:.2e}", key_hits as f64 / pairs, sum_hits as f64 / pairs);
        }
        println!();
    }
}

/// On similar files, where every key is a hit, and on real ones.
fn growth(files: &[PathBuf]) {
    let start = std::fs::read(&files[files.len() / 2]).unwrap();
    println!("\nSimFind over n files: processor seconds, key hits a file");
    for count in [500, 1000, 2000, 4000, 8000] {
        let mut line = format!("{count:>6}");
        for (name, sketches) in [("similar", similar(&start, count)), ("real", real(files, count).0)] {
            let method = method(KeyKind::SKEW_EXTENSION, 0.01);
            // Until there is enough to measure.
            let (meter, mut rounds, mut key_hits) = (Meter::start(), 0, 0);
            while meter.seconds() < 0.2 {
                key_hits = hits(&method, &sketches).key_hits;
                rounds += 1;
            }
            let each = meter.seconds() / f64::from(rounds);
            line += &format!("  {name} {each:>9.5} s {:>8.1}", key_hits as f64 / count as f64);
        }
        println!("{line}");
    }
}
