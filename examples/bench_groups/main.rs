//! All against all: how long it takes, and how much memory.
//!
//! `cargo run --release --example bench_groups -- synthetic DIR FILES MEMORY_MIB FAMILY SCRATCH [scattered]`: FILES
//! contents in families of FAMILY that share from 30 to 90% of their features with a common ancestor. How many features
//! a content has, and how densely it is sampled, is taken from the files of DIR. `scattered` has the members of a
//! family added far from each other instead of one after the other.
//!
//! `cargo run --release --example bench_groups -- tree DIR SCRATCH`: indexes DIR in a store in SCRATCH, then identical
//! files and groups, beside `rmlint`, `jdupes` and `fclones` on the same tree, each if it is installed.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a benchmark")]

mod synthetic;
mod tree;

use std::path::{Path, PathBuf};
use std::time::Instant;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        ["synthetic", dir, files, memory, family, scratch, ref rest @ ..] => synthetic::run(
            Path::new(dir),
            files.parse().unwrap(),
            memory.parse::<usize>().unwrap() << 20,
            family.parse().unwrap(),
            Path::new(scratch),
            rest == ["scattered"],
        ),
        ["tree", dir, scratch] => tree::run(Path::new(dir), Path::new(scratch)),
        _ => panic!(
            "usage: bench_groups synthetic DIR FILES MEMORY_MIB FAMILY SCRATCH [scattered] | tree DIR SCRATCH"
        ),
    }
}

/// One phase: its time, processor time of this process and of those that it waited for, and the most memory that this
/// process took in it.
struct PhaseMeter {
    name: &'static str,
    start: Instant,
    cpu_s: f64,
}

fn cpu_s() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    // utime, stime, cutime, cstime: fields 14 to 17, of which the name in brackets is the second.
    let (_, fields) = stat.rsplit_once(") ").unwrap();
    let ticks: u64 = fields.split(' ').skip(11).take(4).map(|ticks| ticks.parse::<u64>().unwrap()).sum();
    ticks as f64 / rustix::param::clock_ticks_per_second() as f64
}

impl PhaseMeter {
    fn start(name: &'static str) -> PhaseMeter {
        // Resets the peak, where the kernel allows it.
        let _ = std::fs::write("/proc/self/clear_refs", "5");
        PhaseMeter { name, start: Instant::now(), cpu_s: cpu_s() }
    }

    fn end(self, said: &str) {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap().trim();
        println!(
            "{:<28} {:>8.1} s, {:>8.1} s of CPU  peak {:>12}  {said}",
            self.name,
            self.start.elapsed().as_secs_f64(),
            cpu_s() - self.cpu_s,
            peak
        );
    }
}

fn files_below(dir: &Path, files: &mut Vec<PathBuf>) {
    let mut entries: Vec<_> = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap()).collect();
    entries.sort_by_key(|entry| entry.file_name());
    for entry in entries {
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            files_below(&entry.path(), files);
        } else if kind.is_file() {
            files.push(entry.path());
        }
    }
}
