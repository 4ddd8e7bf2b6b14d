//! The experiments of the papers whose methods dedupfs has, run again: then and now.
//!
//! `cargo run --release --example papers -- sif DIR`: 4,000 text files of DIR, about 60 MB, and one with half of it
//! replaced.
//!
//! `cargo run --release --example papers -- winnow DIR PLOT.svg`: noise, and the web pages of DIR.
//!
//! `cargo run --release --example papers -- chunk-graph DIR SCRATCH [DOCUMENTS]`: a collection of DOCUMENTS (52,125)
//! documents, those of DIR and, if they are too few, edited versions of them.
//!
//! `cargo run --release --example papers -- simhash DIR`: files of DIR, and files that are made.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a benchmark")]

mod chunk_graph;
mod sif;
mod simhash;
mod winnow;

use std::path::{Path, PathBuf};
use std::time::Instant;

/// The paper's collection.
const DOCUMENTS: usize = 52_125;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        ["chunk-graph", dir, scratch] => chunk_graph::run(Path::new(dir), Path::new(scratch), DOCUMENTS),
        ["chunk-graph", dir, scratch, documents] => {
            chunk_graph::run(Path::new(dir), Path::new(scratch), documents.parse().unwrap());
        }
        ["sif", dir] => sif::run(Path::new(dir)),
        ["winnow", dir, plot] => winnow::run(Path::new(dir), Path::new(plot)),
        ["simhash", dir] => simhash::run(Path::new(dir)),
        _ => panic!(
            "usage: papers sif DIR | winnow DIR PLOT.svg | chunk-graph DIR SCRATCH [DOCUMENTS] | simhash DIR"
        ),
    }
}

/// One phase: its time, and the most memory that the process took in it.
struct Meter {
    start: Instant,
    processor: f64,
}

impl Meter {
    fn start() -> Meter {
        // Resets the peak, where the kernel allows it.
        let _ = std::fs::write("/proc/self/clear_refs", "5");
        Meter { start: Instant::now(), processor: processor_seconds() }
    }

    /// Processor time so far.
    fn seconds(&self) -> f64 {
        processor_seconds() - self.processor
    }

    fn end(self, name: &str, said: &str) {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        let peak: u64 = peak.trim().trim_end_matches(" kB").parse().unwrap();
        println!(
            "{name:<34} {:>7.2} s cpu {:>7.1} s elapsed {:>5} MiB peak  {said}",
            self.seconds(),
            self.start.elapsed().as_secs_f64(),
            peak >> 10
        );
    }
}

/// What this thread, the only one, has had of the processor.
fn processor_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/schedstat").unwrap();
    stat.split(' ').next().unwrap().parse::<f64>().unwrap() / 1e9
}

/// A generator that gives the same on every machine (xorshift64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 >> 11
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }
}

fn files_below(dir: &Path) -> Vec<PathBuf> {
    let (mut dirs, mut files) = (vec![dir.to_owned()], Vec::new());
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(dir).unwrap() {
            let entry = entry.unwrap();
            match entry.file_type().unwrap() {
                kind if kind.is_dir() => dirs.push(entry.path()),
                kind if kind.is_file() => files.push(entry.path()),
                _ => {}
            }
        }
    }
    files.sort();
    files
}
