//! Measures the store against ceilings taken in the same run.
//!
//! `bench_store data DIR WORKDIR [MIB]`: put, rebuild, verify and read on real files.
//! `bench_store ingest DIR WORKDIR`: taking in a directory, against its ceilings and against borg, restic and casync.
//! `bench_store rows WORKDIR MILLIONS`: size and memory of the chunk index in sled.
//! `bench_store index WORKDIR MILLIONS [MEMORY]`: a store of so many tiny chunks: filling, opening, rebuilding.
#![expect(clippy::print_stdout, reason = "a benchmark prints its table")]
#![expect(clippy::unwrap_used, reason = "a benchmark may stop at the first error")]

mod index;
mod ingest;

use dedupfs::chunk::ChunkParams;
use dedupfs::db::{Db, IndexDb, Layout, MemDb, Runs, Table};
use dedupfs::id::{ChunkId, RecipeId, StoreId};
use dedupfs::recipe::{ChunkRef, Recipe};
use dedupfs::store::{Store, StoreOptions};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

const ID: StoreId = StoreId([1; 16]);

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        ["data", dir, work] => data(Path::new(dir), Path::new(work), 300),
        ["data", dir, work, mib] => data(Path::new(dir), Path::new(work), mib.parse().unwrap()),
        ["ingest", dir, work] => ingest::run(Path::new(dir), Path::new(work)),
        ["rows", work, millions] => rows(Path::new(work), millions.parse().unwrap()),
        ["index", work, millions] => index::run(Path::new(work), millions, ""),
        ["index", work, millions, memory] => index::run(Path::new(work), millions, memory),
        ["index-fill", work, millions, memory] => index::fill(Path::new(work), millions, memory),
        ["index-open", work, millions, memory] => index::reopen(Path::new(work), millions, memory),
        ["index-rebuild", work, millions, memory] => index::rebuild(Path::new(work), millions, memory),
        _ => println!(
            "usage: bench_store data DIR WORKDIR [MIB] | ingest DIR WORKDIR | rows WORKDIR MILLIONS | index WORKDIR MILLIONS [MEMORY]"
        ),
    }
}

fn row(name: &str, mib: f64, seconds: f64, ceiling: Option<f64>) -> f64 {
    let rate = mib / seconds;
    let ratio = ceiling.map_or(String::new(), |ceiling| format!("{:.2} of ceiling", rate / ceiling));
    println!("{name:<52} {rate:>9.0} MiB/s  {ratio}");
    rate
}

fn gather(dir: &Path, room: &mut usize, files: &mut Vec<Vec<u8>>) {
    let mut entries: Vec<_> = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap()).collect();
    entries.sort_by_key(std::fs::DirEntry::path);
    for entry in entries {
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            gather(&entry.path(), room, files);
        } else if kind.is_file() && *room > 0 {
            let bytes = std::fs::read(entry.path()).unwrap();
            *room = room.saturating_sub(bytes.len());
            files.push(bytes);
        }
    }
}

/// Reads all pack files; their bytes.
fn read_packs(dir: &Path) -> usize {
    let packs = std::fs::read_dir(dir.join("packs")).unwrap();
    packs.map(|entry| std::fs::read(entry.unwrap().path()).unwrap().len()).sum()
}

fn drop_caches(dir: &Path) {
    drop_pages(&dir.join("packs"));
}

fn drop_pages(dir: &Path) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let file = std::fs::File::open(entry.unwrap().path()).unwrap();
        if !file.metadata().unwrap().is_file() {
            continue;
        }
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    }
}

fn data(dir: &Path, work: &Path, mib: usize) {
    let mut files = Vec::new();
    gather(dir, &mut (mib << 20), &mut files);
    let params = ChunkParams::default();
    let mut pieces = Vec::new();
    for file in &files {
        let mut start = 0;
        let mut chunks = Vec::new();
        for len in params.cut(file, true) {
            let bytes = &file[start..start + len as usize];
            start += len as usize;
            chunks.push((ChunkRef { id: ChunkId::of(bytes), len }, bytes));
        }
        pieces.push(chunks);
    }
    let mut seen = std::collections::HashSet::new();
    let unique: Vec<&[u8]> =
        pieces.iter().flatten().filter(|(c, _)| seen.insert(c.id)).map(|(_, b)| *b).collect();
    let all_mib = files.iter().map(Vec::len).sum::<usize>() as f64 / 1048576.0;
    let unique_mib = unique.iter().map(|b| b.len()).sum::<usize>() as f64 / 1048576.0;
    println!("{} files, {all_mib:.0} MiB; {} unique chunks, {unique_mib:.0} MiB", files.len(), unique.len());

    let mut compressor = zstd::bulk::Compressor::new(1).unwrap();
    let mut out = vec![0; 1 << 20];
    let start = Instant::now();
    let packed: Vec<Vec<u8>> = unique
        .iter()
        .map(|bytes| {
            let len = compressor.compress_to_buffer(bytes, &mut out[..]).unwrap();
            out[..len].to_vec()
        })
        .collect();
    let zstd_rate =
        row("ceiling: zstd 1 of unique chunks, one core", unique_mib, start.elapsed().as_secs_f64(), None);
    let mut decompressor = zstd::bulk::Decompressor::new().unwrap();
    let start = Instant::now();
    for bytes in &packed {
        decompressor.decompress_to_buffer(bytes, &mut out[..]).unwrap();
    }
    let decode_rate = row("ceiling: decompress, one core", unique_mib, start.elapsed().as_secs_f64(), None);

    for threads in [1, 2] {
        let _ = std::fs::remove_dir_all(work);
        std::fs::create_dir_all(work).unwrap();
        let db = Arc::new(IndexDb::open(&work.join("index"), 32 << 20).unwrap());
        let store = Arc::new(Store::open(work, ID, db, StoreOptions::default(), &mut |_, _| {}).unwrap());
        let start = Instant::now();
        let next = std::sync::atomic::AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    let mut writer = store.writer();
                    while let Some(chunks) =
                        pieces.get(next.fetch_add(1, std::sync::atomic::Ordering::Relaxed))
                    {
                        for (chunk, bytes) in chunks {
                            writer.put(chunk.id, bytes).unwrap();
                        }
                        writer.put_recipe(&Recipe::new(chunks.iter().map(|(c, _)| *c).collect())).unwrap();
                    }
                    writer.flush().unwrap();
                });
            }
        });
        let put = start.elapsed().as_secs_f64();
        store.sync().unwrap();
        let synced = start.elapsed().as_secs_f64();
        store.persist().unwrap();
        let persisted = start.elapsed().as_secs_f64();
        row(
            &format!("put, {threads} writers (unique bytes)"),
            unique_mib,
            put,
            Some(zstd_rate * threads as f64),
        );
        row(&format!("put + sync, {threads} writers"), unique_mib, synced, Some(zstd_rate * threads as f64));
        row(
            &format!("put + sync + persist, {threads} writers"),
            unique_mib,
            persisted,
            Some(zstd_rate * threads as f64),
        );
        println!("{:?}", store.stats());
        let start = Instant::now();
        let mut writer = store.writer();
        for (chunk, bytes) in pieces.iter().flatten() {
            writer.put(chunk.id, bytes).unwrap();
        }
        row(
            "put of known chunks, one writer (all bytes; hash not counted)",
            all_mib,
            start.elapsed().as_secs_f64(),
            None,
        );
    }

    let packs: u64 =
        std::fs::read_dir(work.join("packs")).unwrap().map(|e| e.unwrap().metadata().unwrap().len()).sum();
    let packs_mib = packs as f64 / 1048576.0;
    drop_caches(work);
    let start = Instant::now();
    for entry in std::fs::read_dir(work.join("packs")).unwrap() {
        std::fs::read(entry.unwrap().path()).unwrap();
    }
    let disk_rate =
        row("ceiling: reading the pack files, cold", packs_mib, start.elapsed().as_secs_f64(), None);
    let options = StoreOptions { cache_bytes: 64 << 20, ..StoreOptions::default() };
    drop_caches(work);
    let start = Instant::now();
    let store =
        Arc::new(Store::open(work, ID, Arc::new(MemDb::new()), options.clone(), &mut |_, _| {}).unwrap());
    row("rebuild from packs, cold (pack bytes)", packs_mib, start.elapsed().as_secs_f64(), Some(disk_rate));
    for deep in [false, true] {
        drop_caches(work);
        let start = Instant::now();
        let frames = store.verify(deep, &mut |_, _| {}, &mut |d| println!("{d}")).unwrap().frames;
        row(
            &format!("verify deep={deep}, {frames} frames, cold (pack bytes)"),
            packs_mib,
            start.elapsed().as_secs_f64(),
            Some(disk_rate),
        );
    }
    drop(store);
    reads(work, &options, &pieces, decode_rate);
}

fn reads(work: &Path, options: &StoreOptions, pieces: &[Vec<(ChunkRef, &[u8])>], decode_rate: f64) {
    let recipes: Vec<Recipe> =
        pieces.iter().map(|p| Recipe::new(p.iter().map(|(c, _)| *c).collect())).collect();
    let ids: Vec<RecipeId> = recipes.iter().map(Recipe::id).collect();
    let mut buf = vec![0; 128 << 10];
    for (name, cold, ahead) in [
        ("cold", true, false),
        ("cold, ahead 64", true, true),
        ("warm pages", false, false),
        ("warm pages, ahead 64", false, true),
    ] {
        let db = Arc::new(IndexDb::open(&work.join("index"), 32 << 20).unwrap());
        let store = Store::open(work, ID, db, options.clone(), &mut |_, _| {}).unwrap();
        if cold {
            drop_caches(work);
        }
        let start = Instant::now();
        let mut bytes = 0;
        // One long file: the whole data set in order, as one recipe.
        let whole = Recipe::new(recipes.iter().flat_map(|r| r.chunks().to_vec()).collect());
        let mut hinted = 0;
        while bytes < whole.size() {
            if ahead {
                let at = whole.chunk_at(bytes).unwrap();
                let to = (at + 64).min(whole.chunks().len());
                if to - hinted.min(to) >= 16 || to == whole.chunks().len() && hinted < to {
                    store.prefetch(&whole.chunks()[hinted.max(at)..to]);
                    hinted = to;
                }
            }
            bytes += store.read_at(&whole, bytes, &mut buf).unwrap() as u64;
        }
        row(
            &format!("read_at sequential 128 KiB, {name}"),
            bytes as f64 / 1048576.0,
            start.elapsed().as_secs_f64(),
            Some(decode_rate),
        );
        if ahead {
            continue;
        }
        drop_caches_if(cold, work);
        let start = Instant::now();
        let (mut x, mut done, mut count) = (88172645463325252u64, 0u64, 0);
        while start.elapsed().as_secs_f64() < 3.0 {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            done += store.read_at(&whole, x % whole.size(), &mut buf[..4096]).unwrap() as u64;
            count += 1;
        }
        let seconds = start.elapsed().as_secs_f64();
        println!(
            "read_at random 4 KiB, {name:<30} {:>9.0} /s  {:.1} us each",
            f64::from(count) / seconds,
            seconds * 1e6 / f64::from(count)
        );
        row(
            "   of that, decoded bytes if each read decodes 16 KiB",
            done as f64 * 4.0 / 1048576.0,
            seconds,
            Some(decode_rate),
        );
        let start = Instant::now();
        for id in &ids {
            store.recipe(id).unwrap();
        }
        println!(
            "recipe look-up, {name:<36} {:>9.1} us each",
            start.elapsed().as_secs_f64() * 1e6 / ids.len() as f64
        );
    }
}

fn drop_caches_if(cold: bool, work: &Path) {
    if cold {
        drop_caches(work);
    }
}

fn rss_mib() -> f64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = |key: &str| {
        let line = text.lines().find(|line| line.starts_with(key)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<f64>().unwrap() / 1024.0
    };
    println!("   peak RSS {:.0} MiB", line("VmHWM"));
    line("VmRSS")
}

fn rows(work: &Path, millions: f64) {
    let _ = std::fs::remove_dir_all(work);
    std::fs::create_dir_all(work).unwrap();
    let db = IndexDb::open(&work.join("index"), 32 << 20).unwrap();
    let runs: Runs = Runs::new(Layout { table: Table::Chunks, row_len: 49, key_len: 33 });
    let count = (millions * 1e6) as u64;
    let start = Instant::now();
    let key = |n: u64| {
        let mut key = [1; 33];
        key[..32].copy_from_slice(blake3::hash(&n.to_le_bytes()).as_bytes());
        key
    };
    for bulk in 0..count.div_ceil(64 << 10) {
        let mut rows = Vec::new();
        for n in bulk << 16..((bulk + 1) << 16).min(count) {
            rows.extend_from_slice(&key(n));
            rows.extend_from_slice(&[7; 16]);
        }
        runs.merge(&db, rows, Vec::new()).unwrap();
        db.flush().unwrap();
    }
    let seconds = start.elapsed().as_secs_f64();
    println!("{:.0} rows/s merged in bulks of 64k", count as f64 / seconds);
    println!("   RSS {:.0} MiB", rss_mib());
    let start = Instant::now();
    let (mut x, mut count_found) = (1u64, 0);
    for _ in 0..100_000 {
        x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        count_found += u64::from(runs.find(&db, &key((x >> 20) % count)).unwrap().is_some());
    }
    assert_eq!(count_found, 100_000);
    println!("   find: {:.1} us", start.elapsed().as_secs_f64() * 10.0);
    drop(db);
    let db = IndexDb::open(&work.join("index"), 32 << 20).unwrap();
    println!(
        "   {:.0} bytes a row on disk (by sled), RSS after reopen {:.0} MiB",
        db.bytes_on_disk() as f64 / count as f64,
        rss_mib()
    );
    let start = Instant::now();
    drop(db);
    println!("   close {:.2} s", start.elapsed().as_secs_f64());
}
