//! Manber, "Finding similar files in a large file system" (TR 93-33), section 5: the random test, and the all-against-all.

use dedupfs::db::{Db, MemDb, Table};
use dedupfs::id::RecipeId;
use dedupfs::similarity::methods::sif::report::Rules;
use dedupfs::similarity::methods::sif::{CollateOptions, Saved, Selection, Sif, learn};
use dedupfs::similarity::methods::{AnySketch, Index, IndexOptions, Method, sketch_of};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const FILES: usize = 4000;
const BYTES: u64 = 60_000_000;
const RUNS: u64 = 50;
const SEED: u64 = 93_33;

pub fn run(dir: &Path) {
    let mut files = text_files(dir);
    let all: u64 = files.iter().map(|(_, bytes)| bytes.len() as u64).sum();
    println!("{} text files, {:.1} MB; seed {SEED}", files.len(), all as f64 / 1e6);
    println!(
        "paper: 4000 files of 60 MB; 500 to 1000 MB an hour; 3.1 s a query; 37% to 62%, average 52%; index 5%, later 2%"
    );
    files.sort();
    let by_size = |(_, (_, bytes)): &(usize, &(PathBuf, Vec<u8>))| bytes.len().abs_diff(30 << 10);
    let (c, (name, content)) = files.iter().enumerate().min_by_key(by_size).unwrap();
    println!("the queried file: {} of {} bytes", name.display(), content.len());
    let sample: Vec<&[u8]> = files.iter().step_by(20).map(|(_, bytes)| &bytes[..]).collect();
    let start = seconds();
    let anchors = learn(&sample, 200).unwrap();
    println!("learned {anchors} from {} files in {:.1} s", sample.len(), seconds() - start);
    for sif in [Sif::default(), Sif { selection: Selection::Anchored(anchors), bits: 30 }] {
        experiment(&sif, &files, c, all);
    }
}

fn experiment(sif: &Sif, files: &[(PathBuf, Vec<u8>)], c: usize, all: u64) {
    println!("\n{}", sif.parameters());
    let start = seconds();
    let sketches: Vec<_> = files.iter().map(|(_, bytes)| sketch_of(sif, None, bytes)).collect();
    let fingering = seconds() - start;
    let count: u64 = sketches.iter().map(|sketch| sketch.count()).sum();
    println!(
        "fingerprints: {count}, one in {:.0} bytes; {fingering:.2} s cpu, {:.0} MB an hour",
        all as f64 / count as f64,
        all as f64 / 1e6 / fingering * 3600.0
    );
    let db = Arc::new(MemDb::new());
    let index = Index::open(db.clone(), Arc::new(sif.clone()), IndexOptions::default()).unwrap();
    let start = seconds();
    let mut names: HashMap<RecipeId, Vec<Vec<u8>>> = HashMap::new();
    for ((path, bytes), sketch) in files.iter().zip(&sketches) {
        let id = RecipeId::of(bytes);
        names.entry(id).or_default().push(path.as_os_str().as_encoded_bytes().to_vec());
        index.add(id, &AnySketch::of(sif, sketch).unwrap()).unwrap();
    }
    index.flush().unwrap();
    println!("sorted into the index in {:.2} s cpu", seconds() - start);
    let bytes_of = |table| {
        let mut bytes = 0;
        db.scan(table, &[], &mut |key, value| {
            bytes += key.len() + value.len();
            true
        })
        .unwrap();
        bytes as f64 / all as f64 * 100.0
    };
    println!(
        "index: by fingerprint {:.2}%, by file {:.2}%, names {:.2}% of the text",
        bytes_of(Table::MethodKeys),
        bytes_of(Table::MethodSketches),
        bytes_of(Table::MethodNumbered)
    );
    random_test(sif, &index, &files[c].1);
    let start = seconds();
    let mut names = |id: &RecipeId| names.get(id).cloned().unwrap_or_default();
    let saved =
        Saved::collate(&index, sif, &mut names, &CollateOptions::default(), &std::env::temp_dir()).unwrap();
    println!(
        "all against all: {} sets collated in {:.2} s cpu, {} fingerprints left out",
        saved.sets.len(),
        seconds() - start,
        saved.left_out
    );
    for share_min in [0.25, 0.5] {
        let start = seconds();
        let groups = saved.groups(&Rules { share_min, ..Rules::default() });
        println!("  {} groups at {:.0}%: {:.2} s cpu", groups.len(), share_min * 100.0, seconds() - start);
    }
}

/// 300 substitutions of 50 bytes, 50 times.
fn random_test(sif: &Sif, index: &Index, file: &[u8]) {
    let id = RecipeId::of(file);
    let mut x = SEED;
    let mut random = |below: usize| {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        (x >> 20) as usize % below
    };
    let (mut right, mut only, mut shares) = (0, 0, Vec::new());
    let start = seconds();
    for _ in 0..RUNS {
        let mut edited = file.to_vec();
        for _ in 0..300 {
            let at = random(edited.len() - 50);
            edited[at..at + 50].iter_mut().for_each(|byte| *byte = b' ' + random(95) as u8);
        }
        let found = index
            .query(&AnySketch::of(sif, &sketch_of(sif, None, &edited)).unwrap(), 0.0, usize::MAX)
            .unwrap();
        // The paper's share is that of the query that is in the other file.
        let over: Vec<_> = found.iter().filter(|found| found.likeness.containment >= Some(0.05)).collect();
        let share = over.iter().find(|found| found.id == id).and_then(|found| found.likeness.containment);
        right += u64::from(share.is_some());
        only += u64::from(share.is_some() && over.len() == 1);
        shares.push(share.unwrap_or(0.0) * 100.0);
    }
    let cpu = (seconds() - start) / RUNS as f64;
    let (least, most) =
        (shares.iter().copied().fold(f64::MAX, f64::min), shares.iter().copied().fold(0.0, f64::max));
    println!(
        "random test: found {right} of {RUNS}, and only it {only}; {least:.0}% to {most:.0}%, average {:.0}%; {:.1} ms cpu a query",
        shares.iter().sum::<f64>() / RUNS as f64,
        cpu * 1000.0
    );
}

/// Different text files below `dir`, up to the paper's number and bytes.
fn text_files(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let (mut files, mut bytes, mut dirs) = (Vec::new(), 0, vec![dir.to_owned()]);
    let mut seen = std::collections::HashSet::new();
    while let Some(dir) = dirs.pop() {
        let mut entries: Vec<_> =
            std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
        entries.sort();
        for path in entries {
            if path.is_symlink() {
                continue;
            }
            if path.is_dir() {
                dirs.push(path);
                continue;
            }
            let Ok(content) = std::fs::read(&path) else { continue };
            let is_text = !content.is_empty() && !content.iter().take(4096).any(|byte| *byte == 0);
            // About the paper's mean of 15 KB: very short files would fill the number first.
            if is_text
                && content.len() > 2000
                && content.len() < 200_000
                && seen.insert(RecipeId::of(&content))
            {
                bytes += content.len() as u64;
                files.push((path, content));
            }
            if files.len() == FILES || bytes > BYTES {
                return files;
            }
        }
    }
    files
}

/// What this thread, the only one, has had of the processor.
fn seconds() -> f64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}
