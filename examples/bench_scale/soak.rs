//! What stays in memory after rounds of creating, settling and deleting the same number of small files.

use crate::mounted::Mounted;
use crate::tree;
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

/// Runs rounds of `files` files for so long. Each round has new files.
pub fn run(dir: &Path, minutes: u64, files: u64) {
    let root = dir.join("soak");
    fs::create_dir_all(&root).unwrap();
    let mut rows = fs::File::create(dir.join("soak.tsv")).unwrap();
    let mut mounted = Mounted::new(&root, Duration::from_secs(600));
    mounted.mount();
    let begun = Instant::now();
    println!(
        "round  minutes  processor s  peak MiB  resident MiB  anonymous MiB  index MiB  packs MiB  descriptors"
    );
    for round in 0.. {
        if begun.elapsed().as_secs() > minutes * 60 {
            break;
        }
        tree::make(&root, round * files, (round + 1) * files);
        let row = mounted.measure(vec![mounted.program("dedupctl", &["settle", root.to_str().unwrap()])]);
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let line = format!(
            "{round}\t{:.1}\t{:.1}\t{:.1}\t{:.1}\t{:.1}\t{:.1}\t{:.1}\t{}",
            begun.elapsed().as_secs_f64() / 60.0,
            mounted.daemon().unwrap().seconds(),
            mib(row.peak),
            mib(row.resident),
            mib(row.anonymous),
            mib(row.index),
            mib(row.packs),
            row.descriptors
        );
        println!("{line}");
        writeln!(rows, "{line}").unwrap();
        for entry in fs::read_dir(&root).unwrap().flatten() {
            if entry.file_type().unwrap().is_dir() {
                fs::remove_dir_all(entry.path()).unwrap();
            }
        }
    }
    mounted.unmount();
    fs::remove_dir_all(&root).unwrap();
}
