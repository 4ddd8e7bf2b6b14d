//! `dedupctl similar` on a mount full of releases: does it find the same file in the neighbouring releases,
//! and how long does it take?
//!
//! `cargo run --release --example bench_similar -- MOUNT [SAMPLES [ARGUMENTS]]`, where MOUNT holds directories
//! `NAME-VERSION` (at any depth), as `bench_mount` leaves them, and the arguments are more for `dedupctl similar`. A neighbour is the release before or after; it is expected
//! where an exact comparison of the two files finds a quarter of either in the other.
#![allow(clippy::needless_range_loop, reason = "the index is used for more than one list")]
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a benchmark")]

use dedupfs::similarity::exact;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const MIN: f64 = 0.25;

fn main() {
    let mut args = std::env::args().skip(1);
    let mount = PathBuf::from(args.next().expect("usage: bench_similar MOUNT [SAMPLES [ARGUMENTS]]"))
        .canonicalize()
        .unwrap();
    let samples: usize = args.next().map_or(50, |text| text.parse().unwrap());
    let arguments: Vec<String> = args.collect();
    let mut releases = BTreeMap::new();
    find_releases(&mount, 0, &mut releases);
    releases.retain(|_, versions| versions.len() > 1);
    let mut pool = Vec::new();
    for (name, versions) in &mut releases {
        versions.sort();
        for at in 0..versions.len() {
            let mut files = Vec::new();
            list(&versions[at].1, &mut files);
            pool.extend(files.into_iter().map(|file| (name.clone(), at, file)));
        }
    }
    assert!(!pool.is_empty(), "no directories NAME-VERSION below {}", mount.display());
    let bin = std::env::current_exe().unwrap().parent().unwrap().parent().unwrap().join("dedupctl");
    let (mut expected, mut found, mut answered, mut times) = (0, 0, 0, Vec::new());
    // One over the place of each neighbour that is not identical, among those that are not: 1 where it is first.
    let mut places = Vec::new();
    let mut x = 0x9e37_79b9_7f4a_7c15_u64;
    while answered < samples {
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let (name, at, file) = &pool[(x >> 33) as usize % pool.len()];
        let versions = &releases[name];
        let inside = file.strip_prefix(&versions[*at].1).unwrap();
        let around = [at.checked_sub(1), Some(at + 1)];
        let neighbours =
            around.into_iter().flatten().filter_map(|i| versions.get(i)).map(|(_, dir)| dir.join(inside));
        let neighbours: Vec<_> = neighbours.filter(|other| alike(file, other)).collect();
        if neighbours.is_empty() {
            continue;
        }
        answered += 1;
        // Once to warm up, once to time.
        ask(&bin, file, &arguments);
        let (time, paths) = ask(&bin, file, &arguments);
        let alike: Vec<&String> = paths.iter().filter(|(_, same)| !same).map(|(path, _)| path).collect();
        let mut first = None;
        times.push(time);
        for neighbour in neighbours {
            expected += 1;
            let relative = neighbour.strip_prefix(&mount).unwrap();
            let is_it = |path: &String| Path::new(path).ends_with(relative);
            if paths.iter().any(|(path, _)| is_it(path)) {
                found += 1;
                let place = alike.iter().position(|path| is_it(path));
                first = place.into_iter().chain(first).min();
            } else {
                println!(
                    "missed: {} for {}",
                    relative.display(),
                    file.strip_prefix(&mount).unwrap().display()
                );
            }
        }
        places.extend(first.map(|place: usize| 1.0 / (place + 1) as f64));
    }
    println!(
        "first neighbour that is not identical: of {} files, mean of 1 / place {:.3}, first of all {:.1}%",
        places.len(),
        places.iter().sum::<f64>() / places.len().max(1) as f64,
        100.0 * places.iter().filter(|place| **place == 1.0).count() as f64 / places.len().max(1) as f64
    );
    times.sort();
    let ms = |share: f64| times[((times.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e3;
    println!(
        "{answered} files asked about, {expected} neighbours expected, {found} found ({:.1}%)",
        100.0 * found as f64 / expected as f64
    );
    println!(
        "time of a whole `dedupctl similar`, index warm: median {:.1} ms, p90 {:.1} ms, p99 {:.1} ms, slowest {:.1} ms",
        ms(0.5),
        ms(0.9),
        ms(0.99),
        ms(1.0)
    );
}

/// The paths of the answer, and whether each is of an identical file.
fn ask(bin: &Path, file: &Path, arguments: &[String]) -> (Duration, Vec<(String, bool)>) {
    let start = Instant::now();
    let output = Command::new(bin).arg("similar").arg(file).arg("--json").args(arguments).output().unwrap();
    let time = start.elapsed();
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|e| panic!("{}: {e}: {}", file.display(), String::from_utf8_lossy(&output.stderr)));
    let matches = answer["matches"].as_array().unwrap().iter();
    let paths = matches.map(|m| (m["path"].as_str().unwrap().to_owned(), m["identical"] == true));
    (time, paths.collect())
}

fn alike(a: &Path, b: &Path) -> bool {
    let (Ok(a), Ok(b)) = (std::fs::read(a), std::fs::read(b)) else { return false };
    let common = exact::compare(&&a[..], &&b[..], 64 << 20).unwrap();
    let share = |part: u64, whole: usize| part as f64 / whole.max(1) as f64;
    common.a_bytes >= 64 && share(common.a_bytes, a.len()).max(share(common.b_bytes, b.len())) >= MIN
}

/// Directories `NAME-VERSION` by name, each with its version as numbers.
fn find_releases(dir: &Path, depth: usize, found: &mut BTreeMap<String, Vec<(Vec<u64>, PathBuf)>>) {
    for entry in std::fs::read_dir(dir).unwrap().flatten() {
        let path = entry.path();
        if !entry.file_type().unwrap().is_dir() {
            continue;
        }
        let text = entry.file_name().to_string_lossy().into_owned();
        match text.rsplit_once('-').filter(|(_, version)| version.starts_with(|c: char| c.is_ascii_digit())) {
            Some((name, version)) => {
                let numbers = version.split('.').map(|part| part.parse().unwrap_or(0)).collect();
                found.entry(name.to_owned()).or_default().push((numbers, path));
            }
            None if depth < 3 => find_releases(&path, depth + 1, found),
            None => {}
        }
    }
}

fn list(dir: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap().flatten() {
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            list(&entry.path(), files);
        } else if kind.is_file() && entry.metadata().is_ok_and(|meta| meta.len() > 0) {
            files.push(entry.path());
        }
    }
}
