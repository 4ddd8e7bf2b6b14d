//! The chunk index at millions of chunks: speed while it fills, memory, disk, opening, looking up, rebuilding.
//!
//! Each phase is a process of its own, so that its peak memory is its own. Chunks are 32 bytes, a function
//! of their number, so that nothing but the index and the packs has to hold them.

use super::{ID, drop_caches, drop_pages};
use dedupfs::config::parse_size;
use dedupfs::db::IndexDb;
use dedupfs::id::ChunkId;
use dedupfs::repo::Memory;
use dedupfs::store::{Store, StoreOptions};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

const BATCH: u64 = 1000;
const MILLION: u64 = 1_000_000;

/// Fills a store with `millions` of chunks, then opens it and rebuilds its index.
pub(super) fn run(work: &Path, millions: &str, memory: &str) {
    let _ = std::fs::remove_dir_all(work);
    std::fs::create_dir_all(work).unwrap();
    let me = std::env::current_exe().unwrap();
    for phase in ["index-fill", "index-open", "index-rebuild"] {
        let status = Command::new(&me).arg(phase).arg(work).args([millions, memory]).status().unwrap();
        assert!(status.success(), "{phase} failed");
    }
}

fn chunk(n: u64) -> (ChunkId, [u8; 32]) {
    let bytes = *blake3::hash(&n.to_le_bytes()).as_bytes();
    (ChunkId::of(&bytes), bytes)
}

fn count_of(millions: &str) -> u64 {
    (millions.parse::<f64>().unwrap() * MILLION as f64) as u64
}

fn open(work: &Path, setting: &str, progress: &mut dyn FnMut(u64, u64)) -> Arc<Store> {
    let memory = Memory::divide(parse_size(setting).ok(), None);
    let db = Arc::new(IndexDb::open(&work.join("index"), memory.index_cache_bytes).unwrap());
    // Small packs hold about as many of these tiny chunks as packs of the usual size hold usual chunks.
    let options = StoreOptions {
        pack_bytes_max: 1 << 20,
        cache_bytes: memory.cache_bytes,
        recent_rows: memory.recent_rows,
        filter_bytes: memory.filter_bytes,
        ..StoreOptions::default()
    };
    Arc::new(Store::open(work, ID, db, options, progress).unwrap())
}

/// Seconds of processor time that this process took so far; it tells more than the clock on a busy machine.
fn cpu() -> f64 {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap();
    let ticks = text.rsplit(')').next().unwrap().split_whitespace().skip(11).take(2);
    ticks.map(|ticks| ticks.parse::<f64>().unwrap() / 100.0).sum()
}

/// MiB of resident memory: now, and at most since the process began.
fn memory() -> (u64, u64) {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = |key: &str| {
        let line = text.lines().find(|line| line.starts_with(key)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() >> 10
    };
    (line("VmRSS"), line("VmHWM"))
}

fn bytes_in(dir: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(dir) else { return 0 };
    let sizes = entries.flatten().map(|entry| match entry.metadata() {
        Ok(meta) if meta.is_dir() => bytes_in(&entry.path()),
        Ok(meta) => std::os::unix::fs::MetadataExt::blocks(&meta) * 512,
        Err(_) => 0,
    });
    sizes.sum()
}

/// Calls `work` with each number below `count`, on as many threads as there are cores.
fn on_all_cores(count: u64, work: impl Fn(&mut dyn Iterator<Item = u64>) + Sync) {
    let next = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().unwrap().get() {
            scope.spawn(|| {
                let mut numbers = std::iter::from_fn(|| {
                    let from = next.fetch_add(BATCH, Ordering::Relaxed);
                    (from < count).then(|| from..(from + BATCH).min(count))
                })
                .flatten();
                work(&mut numbers);
            });
        }
    });
}

pub(super) fn fill(work: &Path, millions: &str, setting: &str) {
    let count = count_of(millions);
    let store = open(work, setting, &mut |_, _| {});
    let start = Instant::now();
    let mut last = 0.0;
    let mut slowest = 0.0f64;
    println!("chunks     this million/s   RSS   peak MiB   index MiB   bytes a row");
    for million in 0..count.div_ceil(MILLION) {
        let from = million * MILLION;
        let many = MILLION.min(count - from);
        on_all_cores(many, |numbers| {
            let mut writer = store.writer();
            for n in numbers {
                let (id, bytes) = chunk(from + n);
                writer.put(id, &bytes).unwrap();
            }
            writer.flush().unwrap();
        });
        let now = start.elapsed().as_secs_f64();
        slowest = slowest.max(now - last);
        let index = bytes_in(&work.join("index"));
        let (rss, peak) = memory();
        println!(
            "{:>9} {:>13.0} {rss:>9} {peak:>9} {:>11} {:>9.0}",
            from + many,
            many as f64 / (now - last),
            index >> 20,
            index as f64 / (from + many) as f64
        );
        last = now;
    }
    println!("filled in {last:.1} s ({:.1} s of processor), {:.0} chunks/s", cpu(), count as f64 / last);
    let start = Instant::now();
    store.sync().unwrap();
    println!("sync    {:.2} s", start.elapsed().as_secs_f64());
    let start = Instant::now();
    store.persist().unwrap();
    println!("persist {:.2} s", start.elapsed().as_secs_f64());
    assert_eq!(store.stats().chunks, count);
    let start = Instant::now();
    drop(store);
    let index = bytes_in(&work.join("index"));
    println!("close   {:.2} s", start.elapsed().as_secs_f64());
    println!(
        "index   {} MiB, {:.0} bytes a row; packs {} MiB; peak RSS {} MiB",
        index >> 20,
        index as f64 / count as f64,
        bytes_in(&work.join("packs")) >> 20,
        memory().1
    );
}

pub(super) fn reopen(work: &Path, millions: &str, setting: &str) {
    let count = count_of(millions);
    for (name, cold) in [("cold", true), ("warm", false)] {
        if cold {
            drop_caches(work);
            drop_pages(&work.join("index"));
        }
        let start = Instant::now();
        let store = open(work, setting, &mut |_, _| {});
        println!("open {name} {:.3} s, peak RSS {} MiB", start.elapsed().as_secs_f64(), memory().1);
        assert_eq!(store.stats().chunks, count);
        let start = Instant::now();
        let spread = |n: u64| (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20) % count;
        for n in 0..10_000 {
            assert!(store.known(&chunk(spread(n)).0).unwrap());
        }
        println!("first 10,000 look-ups {:.3} s", start.elapsed().as_secs_f64());
        if cold {
            continue;
        }
        let many = count.min(MILLION / 4);
        for (what, each) in
            [("hits in random order", &spread as &(dyn Fn(u64) -> u64 + Sync)), ("misses", &|n| n + count)]
        {
            let start = Instant::now();
            on_all_cores(many, |numbers| {
                for n in numbers {
                    assert_eq!(store.known(&chunk(each(n)).0).unwrap(), each(n) < count);
                }
            });
            println!("{what} {:.0} /s", many as f64 / start.elapsed().as_secs_f64());
        }
        let start = Instant::now();
        on_all_cores(many, |numbers| {
            let mut writer = store.writer();
            for n in numbers {
                let (id, bytes) = chunk(n);
                assert!(!writer.put(id, &bytes).unwrap());
            }
        });
        println!("puts of known chunks, in order {:.0} /s", many as f64 / start.elapsed().as_secs_f64());
        println!("peak RSS {} MiB", memory().1);
    }
}

pub(super) fn rebuild(work: &Path, millions: &str, setting: &str) {
    let count = count_of(millions);
    std::fs::remove_dir_all(work.join("index")).unwrap();
    drop_caches(work);
    let start = Instant::now();
    let mut calls = 0;
    let store = open(work, setting, &mut |_, _| calls += 1);
    println!(
        "rebuild {:.1} s ({:.1} s of processor), {:.0} rows/s, progress told {calls} times, peak RSS {} MiB, index {} MiB",
        start.elapsed().as_secs_f64(),
        cpu(),
        count as f64 / start.elapsed().as_secs_f64(),
        memory().1,
        bytes_in(&work.join("index")) >> 20
    );
    assert_eq!(store.stats().chunks, count);
    let start = Instant::now();
    drop(store);
    println!("close {:.2} s", start.elapsed().as_secs_f64());
}
