//! Taking in a directory, new and once more, against ceilings of the same run and against its peers.
//!
//! The store reads, cuts, hashes, compresses, appends, syncs and writes its index; a ceiling does one of these only.
//! Peers (borg, restic, casync) run as they come, with zstd at its fastest where they can be told.

use super::{ID, drop_caches};
use dedupfs::chunk::ChunkParams;
use dedupfs::db::IndexDb;
use dedupfs::id::{ChunkId, RecipeId};
use dedupfs::recipe::{ChunkRef, Recipe};
use dedupfs::store::{Store, StoreOptions, Writer};
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

const MIB: f64 = 1048576.0;

fn files_in(dir: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap().map(Result::unwrap) {
        match entry.file_type().unwrap() {
            kind if kind.is_dir() => files_in(&entry.path(), files),
            kind if kind.is_file() => files.push(entry.path()),
            _ => {}
        }
    }
}

/// Calls `work` for all items on all cores; seconds that it took.
fn timed<T: Sync, S>(items: &[T], start: impl Fn() -> S + Sync, work: impl Fn(&mut S, &T) + Sync) -> f64 {
    let (begin, next) = (Instant::now(), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().unwrap().get() {
            scope.spawn(|| {
                let mut state = start();
                while let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) {
                    work(&mut state, item);
                }
            });
        }
    });
    begin.elapsed().as_secs_f64()
}

fn cut(params: ChunkParams, bytes: &[u8], mut each: impl FnMut(ChunkRef, &[u8])) {
    let mut start = 0;
    for len in params.cut(bytes, true) {
        let chunk = &bytes[start..start + len as usize];
        start += len as usize;
        each(ChunkRef { id: ChunkId::of(chunk), len }, chunk);
    }
}

/// A writer that is flushed when its thread has no more files.
struct Flushed(Writer);

impl Drop for Flushed {
    fn drop(&mut self) {
        self.0.flush().unwrap();
    }
}

fn row(name: &str, mib: f64, seconds: f64, ceiling: Option<f64>) -> f64 {
    let ratio = ceiling.map_or(String::new(), |ceiling| format!("{:.2} of ceiling", mib / seconds / ceiling));
    println!("{name:<56} {seconds:>7.2} s {:>8.0} MiB/s  {ratio}", mib / seconds);
    mib / seconds
}

pub(super) fn run(dir: &Path, work: &Path) {
    let _ = std::fs::remove_dir_all(work);
    std::fs::create_dir_all(work).unwrap();
    let mut files = Vec::new();
    files_in(dir, &mut files);
    let params = ChunkParams::default();

    // Once, so that everybody reads from the page cache.
    let seen = Mutex::new(HashSet::new());
    let unique: Mutex<Vec<Vec<u8>>> = Mutex::default();
    let bytes = AtomicUsize::new(0);
    timed(
        &files,
        || (),
        |(), path| {
            let content = std::fs::read(path).unwrap();
            bytes.fetch_add(content.len(), Ordering::Relaxed);
            cut(params, &content, |chunk, part| {
                if seen.lock().unwrap().insert(chunk.id) {
                    unique.lock().unwrap().push(part.to_vec());
                }
            });
        },
    );
    let unique = unique.into_inner().unwrap();
    let all_mib = bytes.into_inner() as f64 / MIB;
    let unique_mib = unique.iter().map(Vec::len).sum::<usize>() as f64 / MIB;
    println!("{} files, {all_mib:.0} MiB; {} unique chunks, {unique_mib:.0} MiB", files.len(), unique.len());

    let seconds = timed(
        &files,
        || (),
        |(), path| {
            cut(params, &std::fs::read(path).unwrap(), |_, _| {});
        },
    );
    let hashing = row("ceiling: read, fastcdc, blake3, all cores", all_mib, seconds, None);
    let start = || (zstd::bulk::Compressor::new(1).unwrap(), vec![0; 1 << 20]);
    let seconds = timed(&unique, start, |(zstd, out), bytes| {
        zstd.compress_to_buffer(bytes, &mut out[..]).unwrap();
    });
    let zstd = row("ceiling: zstd 1 of the unique chunks, all cores", unique_mib, seconds, None);
    drop(unique);
    peer(
        "cp -r, and sync",
        all_mib,
        &format!("cp -r {} {}/copy && sync -f {0}", dir.display(), work.display()),
    );

    let home = work.join("store");
    std::fs::create_dir_all(&home).unwrap();
    let open = || {
        let db = Arc::new(IndexDb::open(&home.join("index"), 32 << 20).unwrap());
        Arc::new(Store::open(&home, ID, db, StoreOptions::default(), &mut |_, _| {}).unwrap())
    };
    let store = open();
    let recipes = Mutex::new(Vec::new());
    for (name, unique, ceiling) in
        [("unique data", unique_mib, zstd), ("the same data again", all_mib, hashing)]
    {
        let begin = Instant::now();
        timed(
            &files,
            || Flushed(store.writer()),
            |Flushed(writer), path| {
                let mut chunks = Vec::new();
                cut(params, &std::fs::read(path).unwrap(), |chunk, bytes| {
                    writer.put(chunk.id, bytes).unwrap();
                    chunks.push(chunk);
                });
                let recipe = writer.put_recipe(&Recipe::new(chunks)).unwrap();
                recipes.lock().unwrap().push(recipe);
            },
        );
        row(&format!("store: {name}"), unique, begin.elapsed().as_secs_f64(), Some(ceiling));
        store.sync().unwrap();
        store.persist().unwrap();
        let seconds = begin.elapsed().as_secs_f64();
        row(&format!("store: {name}, durable, index written"), unique, seconds, Some(ceiling));
        row("   that is, of all bytes", all_mib, seconds, None);
    }
    drop(store);
    let begin = Instant::now();
    let store = open();
    println!("open {:.3} s", begin.elapsed().as_secs_f64());
    reads(&store, &home, seen.into_inner().unwrap().into_iter().collect());
    checks(&store, &home);
    drop(store);
    std::fs::remove_dir_all(home.join("index")).unwrap();
    drop_caches(&home);
    let begin = Instant::now();
    drop(open());
    row("rebuild of the index, cold (all bytes)", all_mib, begin.elapsed().as_secs_f64(), None);
    gc(&open(), &home, &recipes.into_inner().unwrap());
    peers(dir, work, all_mib);
}

fn reads(store: &Store, home: &Path, mut ids: Vec<ChunkId>) {
    // Sorted by hash: an order that has nothing to do with that of the packs.
    ids.sort();
    for (name, cold) in [("cold", true), ("warm pages", false)] {
        if cold {
            drop_caches(home);
        }
        let from = if cold { 0 } else { 5000 };
        if !cold {
            crate::read_packs(home);
        }
        let mut times: Vec<_> = ids[from..]
            .iter()
            .take(5000)
            .map(|id| {
                let begin = Instant::now();
                store.read(id).unwrap();
                begin.elapsed().as_secs_f64() * 1e6
            })
            .collect();
        times.sort_by(f64::total_cmp);
        let at = |part: f64| times[((times.len() - 1) as f64 * part) as usize];
        println!("random chunk, {name}: p50 {:.0} us, p99 {:.0} us", at(0.5), at(0.99));
    }
}

fn checks(store: &Store, home: &Path) {
    for (name, cold) in [("cold", true), ("warm", false)] {
        let drop = || {
            if cold {
                drop_caches(home)
            }
        };
        drop();
        let begin = Instant::now();
        let mib = crate::read_packs(home) as f64 / MIB;
        let cat =
            row(&format!("ceiling: cat of the packs, {name}"), mib, begin.elapsed().as_secs_f64(), None);
        drop();
        let begin = Instant::now();
        store.verify(true, &mut |_, _| {}, &mut |damage| panic!("{damage}")).unwrap();
        row(&format!("deep check, {name}"), mib, begin.elapsed().as_secs_f64(), Some(cat));
    }
}

/// Keeps every other file.
fn gc(store: &Arc<Store>, home: &Path, recipes: &[RecipeId]) {
    let mut recipes = recipes.to_vec();
    recipes.sort();
    recipes.dedup();
    let begin = Instant::now();
    let collection = store.collect(&mut |_, _| true).unwrap().unwrap();
    recipes.iter().step_by(2).for_each(|recipe| collection.keep(recipe).unwrap());
    let plan = collection.plan(&mut |_, _| true).unwrap().unwrap();
    println!("gc: marked and planned in {:.2} s", begin.elapsed().as_secs_f64());
    let begin = Instant::now();
    let done = collection.apply(&plan, &mut |_, _| true).unwrap();
    row("gc: bytes copied", done.copied_bytes as f64 / MIB, begin.elapsed().as_secs_f64(), None);
    let left = crate::read_packs(home) as f64 / MIB;
    println!(
        "gc: {:.0} MiB of packs before half of the files were deleted, {left:.0} MiB after",
        plan.stored_bytes as f64 / MIB
    );
}

fn peer(name: &str, mib: f64, command: &str) {
    let begin = Instant::now();
    let done = Command::new("timeout")
        .args(["120", "sh", "-c", command])
        .envs([
            ("BORG_BASE_DIR", "/tmp/bench-borg"),
            ("RESTIC_PASSWORD", "x"),
            ("RESTIC_CACHE_DIR", "/tmp/bench-restic"),
        ])
        .env("BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK", "yes")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .unwrap();
    if done.success() {
        row(name, mib, begin.elapsed().as_secs_f64(), None);
    } else {
        println!("{name:<56} failed, is missing, or took over 120 s");
    }
}

fn peers(dir: &Path, work: &Path, mib: f64) {
    let (dir, at) = (dir.display(), work.display());
    let set_up = format!("borg init -e none {at}/borg; restic init -r {at}/restic; mkdir {at}/casync");
    let _ = Command::new("sh")
        .args(["-c", &set_up])
        .envs([("BORG_BASE_DIR", "/tmp/bench-borg"), ("RESTIC_PASSWORD", "x")])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    for turn in ["new", "again"] {
        // Each is told to read the files again rather than to believe their times.
        let borg = format!("borg create -C zstd,1 --files-cache disabled {at}/borg::{turn} {dir}");
        let restic = format!("restic backup -r {at}/restic --force --compression auto {dir}");
        let casync = format!("casync make --store={at}/casync/s.castr {at}/casync/{turn}.caidx {dir}");
        for (name, command) in [("borg", borg), ("restic", restic), ("casync", casync)] {
            peer(&format!("peer: {name}, {turn}"), mib, &command);
        }
    }
}
