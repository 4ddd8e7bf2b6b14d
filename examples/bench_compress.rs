//! What grouping saves and what it costs, on any directories, beside other tools on the same files.
//!
//! ```text
//! cargo run --release --example bench_compress -- WORKDIR [--mib N] [--level N] [--peers] DIR...
//! ```
//!
//! Of each DIR the first N MiB of regular files, in the order of their names (default 100), are put into a store in
//! WORKDIR, read, grouped, and read again. With `--peers` they are copied to WORKDIR and given to `tar | zstd -19
//! --long=31`, `borg` and `mksquashfs`, as far as these are installed. Times are of the clock, on a machine that should have
//! nothing else to do; reads come from the page cache, so what they measure is decoding.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a measurement stops at the first error, and prints what it finds"
)]

use dedupfs::chunk::ChunkParams;
use dedupfs::db::{Db, MemDb};
use dedupfs::id::{ChunkId, StoreId};
use dedupfs::recipe::{ChunkRef, Recipe};
use dedupfs::store::{RegroupOptions, Store, StoreOptions};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

const RANDOM_READS: u64 = 20_000;

fn files_below(dir: &Path, found: &mut Vec<PathBuf>) {
    let mut entries: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap()).collect();
    entries.sort_by_key(|entry| entry.file_name());
    for entry in entries {
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            files_below(&entry.path(), found);
        } else if kind.is_file() {
            found.push(entry.path());
        }
    }
}

fn open(dir: &Path, db: &Arc<MemDb>, cache_bytes: u64) -> Arc<Store> {
    let options = StoreOptions { cache_bytes, prefetch_threads: 0, ..StoreOptions::default() };
    let db: Arc<dyn Db> = db.clone();
    Arc::new(Store::open(dir, StoreId([1; 16]), db, options, &mut |_, _| {}).unwrap())
}

/// MiB/s of all files one after the other, and microseconds for 4 KiB anywhere, with hardly any cache.
fn reads(dir: &Path, db: &Arc<MemDb>, recipes: &[Recipe]) -> (f64, f64) {
    let store = open(dir, db, 64 << 20);
    let (mut bytes, mut buffer) = (0, vec![0; 1 << 20]);
    let begun = Instant::now();
    for recipe in recipes {
        let mut at = 0;
        while at < recipe.size() {
            at += store.read_at(recipe, at, &mut buffer).unwrap() as u64;
        }
        bytes += at;
    }
    let sequential = bytes as f64 / begun.elapsed().as_secs_f64() / f64::from(1 << 20);
    drop(store);
    let store = open(dir, db, 256 << 10);
    let mut x = 88_172_645_463_325_252_u64;
    let mut draw = |below: u64| {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x % below
    };
    let begun = Instant::now();
    for _ in 0..RANDOM_READS {
        let recipe = &recipes[draw(recipes.len() as u64) as usize];
        store.read_at(recipe, draw(recipe.size()), &mut buffer[..4096]).unwrap();
    }
    (sequential, begun.elapsed().as_secs_f64() * 1e6 / RANDOM_READS as f64)
}

fn row(name: &str, bytes: u64, best: u64, seconds: f64, reads: Option<(f64, f64)>) {
    let share = if best > 0 { format!("{:.2}", bytes as f64 / best as f64) } else { "-".to_owned() };
    let (sequential, random) = reads.map_or(("-".to_owned(), "-".to_owned()), |(sequential, random)| {
        (format!("{sequential:.0}"), format!("{random:.1}"))
    });
    println!("| {name} | {:.2} | {share} | {seconds:.1} | {sequential} | {random} |", bytes as f64 / 1e6);
}

/// Bytes that a shell command prints a count of, and its seconds; none if it fails.
fn peer(script: &str, dir: &Path) -> Option<(u64, f64)> {
    let begun = Instant::now();
    let output = Command::new("sh").args(["-ec", script]).current_dir(dir).output().ok()?;
    let bytes = String::from_utf8_lossy(&output.stdout).trim().parse().ok()?;
    Some((bytes, begun.elapsed().as_secs_f64()))
}

fn main() {
    let mut args = std::env::args().skip(1);
    let work = PathBuf::from(args.next().expect("WORKDIR [--mib N] [--level N] [--peers] DIR..."));
    let (mut mib, mut levels, mut peers, mut dirs) = (100u64, Vec::new(), false, Vec::new());
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--mib" => mib = args.next().unwrap().parse().unwrap(),
            "--level" => levels.push(args.next().unwrap().parse().unwrap()),
            "--peers" => peers = true,
            _ => dirs.push(PathBuf::from(arg)),
        }
    }
    if levels.is_empty() {
        levels.push(9);
    }
    for dir in dirs {
        measure(&dir, &work, mib << 20, &levels, peers);
    }
}

fn measure(dir: &Path, work: &Path, most: u64, levels: &[i32], peers: bool) {
    let mut files = Vec::new();
    files_below(dir, &mut files);
    let copy = work.join("files");
    let _ = fs::remove_dir_all(&copy);
    let (mut taken, mut bytes) = (Vec::new(), 0);
    for path in files {
        let len = fs::metadata(&path).unwrap().len();
        if len > 0 && bytes + len <= most {
            bytes += len;
            taken.push(path);
        }
    }
    println!("\n{}: {} files, {:.1} MB\n", dir.display(), taken.len(), bytes as f64 / 1e6);
    println!(
        "| what | MB | of zstd -19 --long | s | sequential MiB/s | random 4 KiB us |\n| --- | --- | --- | --- | --- | --- |"
    );
    let mut best = 0;
    if peers {
        for path in &taken {
            let to = copy.join(path.strip_prefix(dir).unwrap());
            fs::create_dir_all(to.parent().unwrap()).unwrap();
            fs::copy(path, to).unwrap();
        }
        let zstd = "tar --sort=name -cf - . | zstd -19 --long=31 -T1 -c | wc -c";
        let squashfs = "mksquashfs . ../s.squashfs -comp zstd -Xcompression-level 19 -b 1M -quiet -no-progress \
             -processors 1 >&2; stat -c %s ../s.squashfs; rm ../s.squashfs";
        let borg = "export BORG_BASE_DIR=../borg.base; borg init -e none ../borg; borg create -C zstd,19 ../borg::a .; \
             du -sb ../borg/data | cut -f1; rm -r ../borg ../borg.base";
        for (name, script) in
            [("tar, zstd -19 --long=31", zstd), ("squashfs zstd 19, 1 MiB", squashfs), ("borg zstd,19", borg)]
        {
            match peer(script, &copy) {
                Some((bytes, seconds)) => {
                    best = if best == 0 { bytes } else { best };
                    row(name, bytes, best, seconds, None);
                }
                None => println!("| {name} | not installed | | | | |"),
            }
        }
    }
    for (i, level) in levels.iter().enumerate() {
        let store_dir = work.join("store");
        let _ = fs::remove_dir_all(&store_dir);
        fs::create_dir_all(&store_dir).unwrap();
        let db = Arc::new(MemDb::new());
        let begun = Instant::now();
        let recipes = put(&open(&store_dir, &db, 64 << 20), &taken);
        let seconds = begun.elapsed().as_secs_f64();
        if i == 0 {
            let stored = open(&store_dir, &db, 1 << 20).stats().stored_bytes;
            row("store, a frame a chunk", stored, best, seconds, Some(reads(&store_dir, &db, &recipes)));
        }
        let store = open(&store_dir, &db, 64 << 20);
        let options = RegroupOptions { level: *level, ..RegroupOptions::default() };
        let begun = Instant::now();
        let plan = store.plan_regroup(&mut |_, _| true).unwrap().unwrap();
        let done = store.regroup(&plan, &options, &mut |_, _| true).unwrap();
        let (seconds, stored) = (begun.elapsed().as_secs_f64(), store.stats().stored_bytes);
        drop(store);
        let name = format!("grouped, level {level}: {} chunks, {} deltas", done.chunks, done.deltas);
        row(&name, stored, best, seconds, Some(reads(&store_dir, &db, &recipes)));
        fs::remove_dir_all(&store_dir).unwrap();
    }
    let _ = fs::remove_dir_all(&copy);
}

fn put(store: &Arc<Store>, files: &[PathBuf]) -> Vec<Recipe> {
    let mut writer = store.writer();
    let mut recipes = Vec::new();
    for path in files {
        let bytes = fs::read(path).unwrap();
        let (mut chunks, mut start) = (Vec::new(), 0);
        for len in ChunkParams::default().cut(&bytes, true) {
            let chunk = &bytes[start..start + len as usize];
            let id = ChunkId::of(chunk);
            writer.put(id, chunk).unwrap();
            chunks.push(ChunkRef { id, len });
            start += len as usize;
        }
        let recipe = Recipe::new(chunks);
        writer.put_recipe(&recipe).unwrap();
        recipes.push(recipe);
    }
    writer.flush().unwrap();
    store.sync().unwrap();
    recipes
}
