//! What grouping saves and what it costs, on any directories, beside other tools on the same files.
//!
//! ```text
//! cargo run --release --example bench_compress -- WORKDIR [--mib N] [--level N] [--group-kib N] [--archive-kib N] [--tiers] [--peers] [--parts] [--half] DIR...
//! ```
//!
//! Of each DIR the first N MiB of regular files, in the order of their names (default 100), are put into a store in
//! WORKDIR, read, grouped, and read again. With `--peers` they are copied to WORKDIR and given to `tar | zstd -19
//! --long=31`, `mksquashfs`, `mkfs.erofs`, `borg`, `restic`, `lrzip` and `zpaq`, as far as these are installed. Times are of the clock, on a machine that should have
//! nothing else to do; reads come from the page cache, so what they measure is decoding. Levels, sizes of groups and of archives
//! may be given several times: all combinations are measured, or with `--tiers` those of `balanced` and `cold`. Stores are sealed, so footers count. The last
//! column is what `Store::open` takes without an index. With `--parts` it is told what the bytes of each store are, with
//! `--half` what is stored once the first half of the files is gone.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a measurement stops at the first error, and prints what it finds"
)]

use dedupfs::chunk::ChunkParams;
use dedupfs::db::{Db, MemDb};
use dedupfs::id::{ChunkId, RecipeId, StoreId};
use dedupfs::recipe::{ChunkRef, Recipe};
use dedupfs::store::{RegroupOptions, Store, StoreOptions};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

/// So many random reads, but no more than take so long: deflating is slow.
const RANDOM_READS: u64 = 20_000;
const RANDOM_SECONDS_MAX: u64 = 20;
/// All is read so many times, each time with new caches, and the fastest counts.
const BEST_OF: usize = 3;

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

/// MiB/s of all files one after the other, at best, and microseconds for 4 KiB anywhere, with hardly any cache.
fn reads(dir: &Path, db: &Arc<MemDb>, recipes: &[Recipe]) -> (f64, f64) {
    let mut buffer = vec![0; 1 << 20];
    let mut read_on = || {
        let store = open(dir, db, 64 << 20);
        let (mut bytes, begun) = (0, Instant::now());
        for recipe in recipes {
            let mut at = 0;
            while at < recipe.size() {
                at += store.read_at(recipe, at, &mut buffer).unwrap() as u64;
            }
            bytes += at;
        }
        bytes as f64 / begun.elapsed().as_secs_f64() / f64::from(1 << 20)
    };
    let sequential = (0..BEST_OF).map(|_| read_on()).fold(0.0, f64::max);
    let store = open(dir, db, 256 << 10);
    let mut x = 88_172_645_463_325_252_u64;
    let mut draw = |below: u64| {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x % below
    };
    let (begun, mut count) = (Instant::now(), 0);
    while count < RANDOM_READS && begun.elapsed().as_secs() < RANDOM_SECONDS_MAX {
        count += 1;
        let recipe = &recipes[draw(recipes.len() as u64) as usize];
        store.read_at(recipe, draw(recipe.size()), &mut buffer[..4096]).unwrap();
    }
    (sequential, begun.elapsed().as_secs_f64() * 1e6 / count as f64)
}

/// Seals the newest pack with its footer, as a full one is; bytes stored.
fn seal(dir: &Path, db: &Arc<MemDb>) -> u64 {
    let store = open(dir, db, 1 << 20);
    let collection = store.collect(&mut |_, _| true).unwrap().unwrap();
    collection.leave_until_now().unwrap();
    collection.begin_pack().unwrap();
    store.stats().stored_bytes
}

/// Milliseconds to open a store whose index is lost, the best of three times.
fn rebuild(dir: &Path) -> f64 {
    let once = || {
        let (begun, db) = (Instant::now(), Arc::new(MemDb::new()));
        drop(open(dir, &db, 1 << 20));
        begun.elapsed().as_secs_f64() * 1e3
    };
    (0..3).map(|_| once()).fold(f64::INFINITY, f64::min)
}

/// What is stored after the older half of the files is gone and garbage was collected, and a store's of the rest alone,
/// grouped.
fn half(
    store: &Arc<Store>,
    dir: &Path,
    recipes: &[Recipe],
    files: &[PathBuf],
    options: &RegroupOptions,
    best: u64,
) {
    let middle = files.len() / 2;
    let begun = Instant::now();
    let collection = store.collect(&mut |_, _| true).unwrap().unwrap();
    for recipe in &recipes[middle..] {
        collection.keep(&RecipeId::of(&recipe.encode())).unwrap();
    }
    let plan = collection.plan(&mut |_, _| true).unwrap().unwrap();
    collection.apply(&plan, &mut |_, _| true).unwrap();
    drop(collection);
    row(
        "the newer half of the files kept",
        store.stats().stored_bytes,
        best,
        begun.elapsed().as_secs_f64(),
        None,
    );
    let dir = dir.join("half");
    fs::create_dir(&dir).unwrap();
    let fresh = open(&dir, &Arc::new(MemDb::new()), 64 << 20);
    put(&fresh, &files[middle..]);
    let begun = Instant::now();
    let plan = fresh.plan_regroup(options, &mut |_, _| true).unwrap().unwrap();
    fresh.regroup(&plan, options, &mut |_, _| true).unwrap();
    row("the newer half alone", fresh.stats().stored_bytes, best, begun.elapsed().as_secs_f64(), None);
}

/// What the frames of a store's packs take, by their kind: how many there are, and the bytes of their headers, of the
/// tables of groups, and of all else.
fn parts(dir: &Path) {
    let names = [
        "",
        "chunks",
        "recipes",
        "footers",
        "voids",
        "",
        "",
        "",
        "groups of roots",
        "groups of deltas",
        "dictionaries",
        "groups of recipes",
    ];
    let number = |bytes: &[u8], at: usize| u32::from_le_bytes(*bytes[at..].first_chunk().unwrap()) as usize;
    let mut parts = [(0u64, 0u64, 0u64); 12];
    for entry in fs::read_dir(dir.join("packs")).unwrap() {
        let pack = fs::read(entry.unwrap().path()).unwrap();
        let mut at = 40;
        while at < pack.len() {
            let (kind, stored) = (usize::from(pack[at + 4]), number(&pack, at + 8));
            let named = pack[at + 6] & 2 == 0;
            let table = if (kind == 8 || kind == 9) && named { 16 + 36 * number(&pack, at + 56) } else { 0 };
            // Recipes in a group.
            let kind = if kind == 8 && pack[at + 6] & 4 != 0 { 11 } else { kind };
            let part = &mut parts[kind];
            *part = (part.0 + 1, part.1 + table as u64, part.2 + (stored - table) as u64);
            at += 56 + stored;
        }
    }
    println!(
        "\n| part | frames | headers, MB | tables, MB | payloads, MB |\n| --- | --- | --- | --- | --- |"
    );
    let mb = |bytes: u64| bytes as f64 / 1e6;
    for (name, (count, tables, payloads)) in names.iter().zip(parts).filter(|(_, part)| part.0 > 0) {
        println!("| {name} | {count} | {:.2} | {:.2} | {:.2} |", mb(count * 56), mb(tables), mb(payloads));
    }
    println!();
}

fn row(name: &str, bytes: u64, best: u64, seconds: f64, read: Option<(&Path, (f64, f64))>) {
    let share = if best > 0 { format!("{:.2}", bytes as f64 / best as f64) } else { "-".to_owned() };
    let read = read.map_or("- | - | -".to_owned(), |(dir, (sequential, random))| {
        format!("{sequential:.0} | {random:.1} | {:.1}", rebuild(dir))
    });
    println!("| {name} | {:.2} | {share} | {seconds:.1} | {read} |", bytes as f64 / 1e6);
}

/// Each prints how many bytes it made of the directory that it runs in. The first is what all are compared with.
const PEERS: [(&str, &str); 8] = [
    ("tar, zstd -19 --long=31", "tar --sort=name -cf - . | zstd -19 --long=31 -T1 -c | wc -c"),
    (
        "squashfs zstd 19, 128 KiB as by default",
        "mksquashfs . ../image -comp zstd -Xcompression-level 19 -quiet -no-progress -processors 1 >&2; \
         stat -c %s ../image; rm ../image",
    ),
    (
        "squashfs zstd 19, 1 MiB",
        "mksquashfs . ../image -comp zstd -Xcompression-level 19 -b 1M -quiet -no-progress -processors 1 >&2; \
         stat -c %s ../image; rm ../image",
    ),
    (
        "erofs lz4hc, 1 MiB",
        "mkfs.erofs -zlz4hc,12 -C1048576 -Eztailpacking --quiet ../image . >&2; stat -c %s ../image; rm ../image",
    ),
    (
        "borg zstd,19",
        "export BORG_BASE_DIR=../borg.base; borg init -e none ../borg; borg create -C zstd,19 ../borg::a .; \
         du -sb ../borg/data | cut -f1; rm -r ../borg ../borg.base",
    ),
    (
        "restic max",
        "export RESTIC_PASSWORD=a RESTIC_CACHE_DIR=../cache; restic -q -r ../restic init >&2; \
         restic -q -r ../restic backup --compression max . >&2; du -sb ../restic | cut -f1; rm -r ../restic ../cache",
    ),
    (
        "lrzip -L 9",
        "tar --sort=name -cf ../t.tar .; lrzip -q -p 1 -L 9 -o ../t.lrz ../t.tar >&2; stat -c %s ../t.lrz; rm ../t.*",
    ),
    ("zpaq -m3", "zpaq a ../z.zpaq . -m3 -t1 > /dev/null 2>&1; stat -c %s ../z.zpaq; rm ../z.zpaq"),
];

/// The bytes that a shell command prints a count of, its seconds, and the most memory of any of its programs in KiB; none if it
/// fails.
fn peer(script: &str, dir: &Path) -> Option<(u64, f64, u64)> {
    let begun = Instant::now();
    let mut command = Command::new("/usr/bin/time");
    let output = command.args(["-f", "%M", "sh", "-ec", script]).current_dir(dir).output().ok()?;
    let bytes = String::from_utf8_lossy(&output.stdout).trim().parse().ok()?;
    let told = String::from_utf8_lossy(&output.stderr);
    Some((bytes, begun.elapsed().as_secs_f64(), told.lines().last()?.trim().parse().ok()?))
}

fn main() {
    let mut args = std::env::args().skip(1);
    let work = PathBuf::from(args.next().expect(
        "WORKDIR [--mib N] [--level N] [--group-kib N] [--archive-kib N] [--tiers] [--peers] [--parts] [--half] DIR...",
    ));
    let (mut mib, mut levels, mut peers, mut dirs) = (100u64, Vec::new(), false, Vec::new());
    let (mut groups, mut archives, mut told, mut halved) = (Vec::new(), Vec::new(), false, false);
    let mut tiers = false;
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--mib" => mib = args.next().unwrap().parse().unwrap(),
            "--level" => levels.push(args.next().unwrap().parse().unwrap()),
            "--group-kib" => groups.push(args.next().unwrap().parse().unwrap()),
            "--archive-kib" => archives.push(args.next().unwrap().parse::<u32>().unwrap()),
            "--tiers" => tiers = true,
            "--peers" => peers = true,
            "--parts" => told = true,
            "--half" => halved = true,
            _ => dirs.push(PathBuf::from(arg)),
        }
    }
    if levels.is_empty() {
        levels.push(9);
    }
    if groups.is_empty() {
        groups.push(RegroupOptions::default().group_bytes >> 10);
    }
    if archives.is_empty() {
        archives.push(0);
    }
    let mut options = Vec::new();
    for &level in &levels {
        for kib in &groups {
            let bytes = archives.iter().map(|kib| kib << 10);
            options.extend(bytes.map(|bytes| RegroupOptions::new(level, kib << 10, bytes)));
        }
    }
    if tiers {
        options = vec![RegroupOptions::default(), RegroupOptions::cold()];
    }
    for dir in dirs {
        measure(&dir, &work, mib << 20, &options, peers, told, halved);
    }
}

fn measure(
    dir: &Path,
    work: &Path,
    most: u64,
    options: &[RegroupOptions],
    peers: bool,
    told: bool,
    halved: bool,
) {
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
        "| what | MB | of the first | s | sequential MiB/s | random 4 KiB, us | index rebuilt, ms |\n| --- | --- | --- | --- | --- | --- | --- |"
    );
    let mut best = 0;
    if peers {
        for path in &taken {
            let to = copy.join(path.strip_prefix(dir).unwrap());
            fs::create_dir_all(to.parent().unwrap()).unwrap();
            fs::copy(path, to).unwrap();
        }
        for (name, script) in PEERS {
            match peer(script, &copy) {
                Some((bytes, seconds, kib)) => {
                    best = if best == 0 { bytes } else { best };
                    row(&format!("{name} ({} MiB of memory)", kib >> 10), bytes, best, seconds, None);
                }
                None => println!("| {name} | not installed | | | | | |"),
            }
        }
    }
    for (i, options) in options.iter().enumerate() {
        let store_dir = work.join("store");
        let _ = fs::remove_dir_all(&store_dir);
        fs::create_dir_all(&store_dir).unwrap();
        let db = Arc::new(MemDb::new());
        let begun = Instant::now();
        let recipes = put(&open(&store_dir, &db, 64 << 20), &taken);
        let seconds = begun.elapsed().as_secs_f64();
        if i == 0 {
            let stored = seal(&store_dir, &db);
            let read = reads(&store_dir, &db, &recipes);
            row("store, a frame a chunk", stored, best, seconds, Some((&store_dir, read)));
        }
        let store = open(&store_dir, &db, 64 << 20);
        let begun = Instant::now();
        let plan = store.plan_regroup(options, &mut |_, _| true).unwrap().unwrap();
        let done = store.regroup(&plan, options, &mut |_, _| true).unwrap();
        let seconds = begun.elapsed().as_secs_f64();
        drop(store);
        let stored = seal(&store_dir, &db);
        let RegroupOptions { level, group_bytes, archive_bytes, .. } = options;
        let name = format!(
            "grouped, {} KiB, archives {} KiB, level {level}: {} chunks, {} deltas, {} inflated",
            group_bytes >> 10,
            archive_bytes >> 10,
            done.chunks,
            done.deltas,
            done.inflated
        );
        row(&name, stored, best, seconds, Some((&store_dir, reads(&store_dir, &db, &recipes))));
        if told {
            parts(&store_dir);
        }
        if halved {
            half(&open(&store_dir, &db, 64 << 20), &store_dir, &recipes, &taken, options, best);
        }
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
