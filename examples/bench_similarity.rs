//! Measures the similarity index on a directory of files: `bench_similarity DIR [FILES [QUERIES]]`.
//!
//! Files are sampled by the hash of their names, so that a file of all releases is in the sample or is not.
//! The truth is `exact::compare` of each queried file with every file that has enough of its 32-byte grams:
//! a query that repeats itself so much that its distinct grams are under 1/504 of its length may lack pairs.
#![allow(clippy::print_stdout, clippy::unwrap_used, missing_docs)]

use dedupfs::chunk::ChunkParams;
use dedupfs::db::{Db, SledDb, Table};
use dedupfs::id::{ChunkId, RecipeId};
use dedupfs::recipe::{ChunkRef, Recipe};
use dedupfs::similarity::{QuerySketch, Similarity, SimilarityOptions, Sketch, SketchParams, exact};
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

const MEMORY_BYTES: usize = 64 << 20;

struct File {
    bytes: Vec<u8>,
    lens: Vec<u32>,
    ids: Vec<ChunkId>,
    recipe: Recipe,
    id: RecipeId,
}

impl File {
    fn chunks(&self) -> impl Iterator<Item = (ChunkId, &[u8])> {
        let mut at = 0;
        self.ids.iter().zip(&self.lens).map(move |(id, &len)| {
            at += len as usize;
            (*id, &self.bytes[at - len as usize..at])
        })
    }
}

fn walk(dir: &Path, out: &mut Vec<PathBuf>) {
    let Ok(entries) = std::fs::read_dir(dir) else {
        return;
    };
    for entry in entries.flatten() {
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            walk(&entry.path(), out);
        } else if kind.is_file() {
            out.push(entry.path());
        }
    }
}

fn load(dir: &Path, count: usize) -> Vec<File> {
    let mut paths = Vec::new();
    walk(dir, &mut paths);
    // By the file's name alone: the same file of all releases is in the sample or is not.
    paths.sort_by_key(|path| {
        (blake3::hash(path.file_name().unwrap().as_encoded_bytes()).as_bytes()[..8].to_vec(), path.clone())
    });
    let mut seen = HashSet::new();
    let mut files = Vec::new();
    for path in paths {
        let bytes = std::fs::read(&path).unwrap();
        if bytes.len() < 64 || bytes.len() > 8 << 20 {
            continue;
        }
        let lens = ChunkParams::default().cut(&bytes, true);
        let mut at = 0;
        let ids: Vec<_> = lens
            .iter()
            .map(|&len| {
                at += len as usize;
                ChunkId::of(&bytes[at - len as usize..at])
            })
            .collect();
        let recipe = Recipe::new(ids.iter().zip(&lens).map(|(&id, &len)| ChunkRef { id, len }).collect());
        let id = recipe.id();
        if seen.insert(id) {
            files.push(File { bytes, lens, ids, recipe, id });
        }
        if files.len() == count {
            break;
        }
    }
    files
}

/// For each queried file the share of it that each file has, where that is above zero.
fn truth(files: &[File], queries: &[usize]) -> Vec<HashMap<usize, f64>> {
    fn grams(bytes: &[u8]) -> impl Iterator<Item = u64> + '_ {
        let (mut hash, table) = (0u64, |b: u8| {
            (u64::from(b) + 1)
                .wrapping_mul(0x9e37_79b9_7f4a_7c15)
                .rotate_left(u32::from(b))
                .wrapping_mul(0xd6e8_feb8_6659_fd93)
        });
        bytes.iter().enumerate().filter_map(move |(i, &b)| {
            hash = hash.rotate_left(1) ^ table(b);
            if i >= 32 {
                hash ^= table(bytes[i - 32]).rotate_left(32);
            }
            (i >= 31).then(|| hash.wrapping_mul(0xbf58_476d_1ce4_e5b9))
        })
    }
    let mut of_queries: HashMap<u64, Vec<u32>> = HashMap::new();
    for (q, &file) in queries.iter().enumerate() {
        // Every query gram counts: a filter bound on what exact comparison could find.
        grams(&files[file].bytes).for_each(|gram| {
            let list = of_queries.entry(gram).or_default();
            if list.last() != Some(&(q as u32)) {
                list.push(q as u32);
            }
        });
    }
    let mut filter = vec![0u64; 1 << 21];
    of_queries.keys().for_each(|gram| filter[(gram >> 43) as usize] |= 1 << (gram >> 37 & 63));
    let mut truth = vec![HashMap::new(); queries.len()];
    for (i, file) in files.iter().enumerate() {
        let mut shared: HashMap<u32, HashSet<u64>> = HashMap::new();
        for gram in
            grams(&file.bytes).filter(|gram| filter[(gram >> 43) as usize] >> (gram >> 37 & 63) & 1 == 1)
        {
            for &q in of_queries.get(&gram).into_iter().flatten() {
                shared.entry(q).or_default().insert(gram);
            }
        }
        for (q, grams) in shared {
            let query = &files[queries[q as usize]];
            // One gram covers 32 bytes; distinct grams this few cannot make up 20%, unless the file repeats itself.
            if queries[q as usize] != i && grams.len() * 63 >= query.bytes.len() / 8 {
                let common = exact::compare(&&query.bytes[..], &&file.bytes[..], MEMORY_BYTES).unwrap();
                truth[q as usize].insert(i, common.a_bytes as f64 / query.bytes.len() as f64);
            }
        }
    }
    truth
}

fn table_bytes(db: &dyn Db, table: Table) -> u64 {
    let mut bytes = 0;
    db.scan(table, &[], &mut |key, value| {
        bytes += (1 + key.len() + value.len()) as u64;
        true
    })
    .unwrap();
    bytes
}

fn mb_per_s(bytes: u64, from: Instant) -> f64 {
    bytes as f64 / 1e6 / from.elapsed().as_secs_f64()
}

fn main() {
    let mut args = std::env::args().skip(1);
    let dir = PathBuf::from(args.next().expect("a directory"));
    let number = |arg: Option<String>, default| arg.map_or(default, |n| n.parse().unwrap());
    let files = load(&dir, number(args.next(), 4000));
    let count = number(args.next(), 150);
    let queries: Vec<usize> = (0..count).map(|i| i * files.len() / count).collect();
    let total: u64 = files.iter().map(|f| f.bytes.len() as u64).sum();
    let mut unique = HashSet::new();
    let chunks: Vec<&[u8]> =
        files.iter().flat_map(File::chunks).filter(|(id, _)| unique.insert(*id)).map(|(_, c)| c).collect();
    let unique: u64 = chunks.iter().map(|c| c.len() as u64).sum();
    println!(
        "{} contents, {:.1} MB, {:.1} MB unique in {} chunks",
        files.len(),
        total as f64 / 1e6,
        unique as f64 / 1e6,
        chunks.len()
    );

    let from = Instant::now();
    let mut copy = vec![0; 64 << 20];
    for chunk in &chunks {
        copy[..chunk.len()].copy_from_slice(chunk);
        std::hint::black_box(&mut copy);
    }
    println!("memcpy {:.0} MB/s", mb_per_s(unique, from));
    let from = Instant::now();
    let sum = chunks.iter().fold(0u8, |sum, c| sum ^ blake3::hash(c).as_bytes()[0]);
    println!("blake3 {:.0} MB/s ({sum})", mb_per_s(unique, from));
    let from = Instant::now();
    let truth = truth(&files, &queries);
    println!("truth in {:.1} s", from.elapsed().as_secs_f64());
    let (mut bytes, mut done, from) = (0, 0, Instant::now());
    for (&q, pairs) in queries.iter().zip(&truth) {
        for (&i, _) in pairs.iter().filter(|(_, share)| **share > 0.9) {
            exact::compare(&&files[q].bytes[..], &&files[i].bytes[..], MEMORY_BYTES).unwrap();
            bytes += (files[q].bytes.len() + files[i].bytes.len()) as u64;
            done += 1;
        }
    }
    println!(
        "exact::compare of {done} pairs with 90% or more in common: {:.0} MB/s of both\n",
        mb_per_s(bytes, from)
    );

    println!(
        "  m   cap |   MB/s | index%  feat%  B/post  disk% | build s | r25    r50    r80   | small  prec | shortlist  p50 us  p99 us | supp | pairs"
    );
    for (m, cap) in [(16, 500), (24, 500), (32, 500), (64, 500), (24, 2000), (32, 2000)] {
        let params = SketchParams { floor_features: m, ..SketchParams::default() };
        measure(&files, &queries, &truth, &chunks, unique, params, cap);
    }
}

fn measure(
    files: &[File],
    queries: &[usize],
    truth: &[HashMap<usize, f64>],
    chunks: &[&[u8]],
    unique: u64,
    params: SketchParams,
    cap: usize,
) {
    let from = Instant::now();
    let features: usize = chunks.iter().map(|c| Sketch::with_params(c, params).len()).sum();
    let speed = mb_per_s(unique, from);
    let dir = tempfile::tempdir().unwrap();
    let db = Arc::new(SledDb::open(&dir.path().join("index"), 256 << 20).unwrap());
    let index = Similarity::open(
        db.clone(),
        SimilarityOptions { frequency_cap: cap, ..SimilarityOptions::default() },
    )
    .unwrap();
    let from = Instant::now();
    for file in files {
        for (id, chunk) in file.chunks() {
            if !index.knows_chunk(&id).unwrap() {
                index.add_chunk(id, Sketch::with_params(chunk, params)).unwrap();
            }
        }
        index.add_content(file.id, &file.recipe).unwrap();
    }
    index.flush().unwrap();
    db.flush().unwrap();
    let build = from.elapsed().as_secs_f64();
    let percent = |bytes: u64| bytes as f64 * 100.0 / unique as f64;
    let posting_bytes = table_bytes(&*db, Table::Features);
    let tables = [Table::Features, Table::Sketched, Table::Contained, Table::Contents, Table::Numbered];
    let index_bytes: u64 = tables.iter().map(|&t| table_bytes(&*db, t)).sum();

    let place: HashMap<RecipeId, usize> = files.iter().enumerate().map(|(i, f)| (f.id, i)).collect();
    let (mut found, mut wanted) = ([0.0f64; 4], [0.0f64; 4]);
    let (mut shortlisted, mut right, mut suppressed, mut times) = (0, 0, 0, Vec::new());
    for (q, &file) in queries.iter().enumerate() {
        let from = Instant::now();
        let mut sketch = QuerySketch::with_params(params);
        files[file].chunks().for_each(|(_, chunk)| sketch.add_chunk(chunk));
        let answer = index.query(&sketch, 0.25, usize::MAX).unwrap();
        times.push(from.elapsed().as_micros());
        suppressed += answer.suppressed_features;
        let got: HashSet<usize> =
            answer.candidates.iter().map(|c| place[&c.recipe]).filter(|&i| i != file).collect();
        shortlisted += got.len();
        right += got.iter().filter(|i| truth[q].get(i).is_some_and(|&share| share >= 0.25)).count();
        for (i, &share) in &truth[q] {
            let small = files[file].bytes.len() < 2048;
            for (n, hit) in
                [share >= 0.25, share >= 0.5, share >= 0.8, share >= 0.25 && small].into_iter().enumerate()
            {
                wanted[n] += f64::from(u8::from(hit));
                found[n] += f64::from(u8::from(hit && got.contains(i)));
            }
        }
    }
    times.sort_unstable();
    let recall: Vec<f64> = found.iter().zip(wanted).map(|(f, w)| f / w.max(1.0)).collect();
    println!(
        "{:3} {:5} | {speed:6.0} | {:6.2} {:6.2} {:7.2} {:6.2} | {build:7.2} | {:.3}  {:.3}  {:.3} | {:.3}  {:6.3} | {shortlisted:9} {:7} {:7} | {suppressed} | {} {} {}",
        params.floor_features,
        cap.min(99_999),
        percent(index_bytes),
        percent(posting_bytes),
        posting_bytes as f64 / features as f64,
        percent(db.bytes_on_disk()),
        recall[0],
        recall[1],
        recall[2],
        recall[3],
        right as f64 / shortlisted as f64,
        times[times.len() / 2],
        times[times.len() * 99 / 100],
        wanted[0],
        wanted[1],
        wanted[2],
    );
}
