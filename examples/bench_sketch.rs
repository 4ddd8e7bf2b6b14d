//! Measures sketching beside what else is done to each byte: `bench_sketch [DIR]`.
//!
//! Chunks are of the files below DIR (the first 256 MiB by path, without one noise and text of 64 MiB each). Every round
//! does all passes in turn, so that they meet the same load; of five rounds the best of each is told, in MB/s of one
//! core by the processor's time.
#![allow(clippy::print_stdout, clippy::unwrap_used, missing_docs)]

use dedupfs::chunk::ChunkParams;
use dedupfs::similarity::Sketch;
use std::hint::black_box;
use std::path::{Path, PathBuf};

const BYTES_MAX: usize = 256 << 20;
const ROUNDS: usize = 5;

/// What is measured, by its name.
type Pass<'a> = (&'static str, Box<dyn FnMut() + 'a>);

fn files(dir: &Path, out: &mut Vec<PathBuf>) {
    let mut paths: Vec<_> = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    for path in paths {
        let kind = path.symlink_metadata().unwrap();
        if kind.is_dir() {
            files(&path, out);
        } else if kind.is_file() {
            out.push(path);
        }
    }
}

fn inputs() -> Vec<(&'static str, Vec<Vec<u8>>)> {
    let Some(dir) = std::env::args().nth(1) else {
        let mut x = 88172645463325252u64;
        let mut next = || {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            x
        };
        let noise: Vec<u8> = (0..8 << 20).flat_map(|_| next().to_le_bytes()).collect();
        let words: Vec<Vec<u8>> =
            (0..2000).map(|_| (0..2 + next() % 9).map(|_| b'a' + (next() % 26) as u8).collect()).collect();
        let mut text = Vec::new();
        while text.len() < 64 << 20 {
            text.extend_from_slice(&words[(next() % 2000) as usize]);
            text.push(b' ');
        }
        let small = text.chunks(700).map(<[u8]>::to_vec).collect();
        return vec![("noise", vec![noise]), ("text", vec![text]), ("text in files of 700 bytes", small)];
    };
    let mut paths = Vec::new();
    files(Path::new(&dir), &mut paths);
    let mut all = Vec::new();
    let mut bytes = 0;
    for path in paths {
        let file = std::fs::read(path).unwrap();
        bytes += file.len();
        if bytes > BYTES_MAX {
            break;
        }
        all.push(file);
    }
    vec![("files", all)]
}

/// Seconds of processor that this thread has taken.
fn processor() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

fn main() {
    let params = ChunkParams::default();
    for (name, files) in inputs() {
        let mut chunks: Vec<&[u8]> = Vec::new();
        for file in &files {
            let mut rest = &file[..];
            for len in params.cut(file, true) {
                let (chunk, tail) = rest.split_at(len as usize);
                chunks.push(chunk);
                rest = tail;
            }
        }
        let bytes: usize = chunks.iter().map(|chunk| chunk.len()).sum();
        let features: usize = chunks.iter().map(|chunk| Sketch::of_chunk(chunk).len()).sum();
        let mut copy = vec![0; 64 << 10];
        let mut passes: [Pass<'_>; 4] = [
            (
                "memcpy",
                Box::new(|| {
                    for chunk in &chunks {
                        copy[..chunk.len()].copy_from_slice(chunk);
                        black_box(&mut copy);
                    }
                }),
            ),
            (
                "blake3",
                Box::new(|| {
                    chunks.iter().for_each(|chunk| {
                        black_box(blake3::hash(chunk));
                    })
                }),
            ),
            (
                "fastcdc",
                Box::new(|| {
                    files.iter().for_each(|file| {
                        black_box(params.cut(file, true));
                    })
                }),
            ),
            (
                "sketch",
                Box::new(|| {
                    chunks.iter().for_each(|chunk| {
                        black_box(Sketch::of_chunk(chunk));
                    })
                }),
            ),
        ];
        let mut best = [f64::INFINITY; 4];
        for _ in 0..ROUNDS {
            for (best, (_, pass)) in best.iter_mut().zip(&mut passes) {
                let from = processor();
                pass();
                *best = best.min(processor() - from);
            }
        }
        println!(
            "{name}: {:.1} MB in {} chunks, {:.1} features a chunk",
            bytes as f64 / 1e6,
            chunks.len(),
            features as f64 / chunks.len() as f64
        );
        for ((pass, _), seconds) in passes.iter().zip(best) {
            println!("  {pass:8} {:8.0} MB/s", bytes as f64 / 1e6 / seconds);
        }
    }
}
