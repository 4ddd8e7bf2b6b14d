//! What taking in one more step of files costs, as a store grows.
//!
//! Makes MIB of files in DIR a step (of 1 MiB, random or of text, unless FILE_KIB says otherwise), takes them in with that setting for
//! `similarity`, and prints for the step: seconds, bytes that this process gave to `write`, and those by the bytes that the packs grew;
//! bytes of the index, and those by the unique bytes; memory. At the end the exponent of the bytes written by the number of the step: 0
//! if the cost is constant, 1 if it grows with what is there.
//!
//! `write_bytes` of `/proc/self/io` is no measure: it counts a page of any size whole that a few bytes were written to.
//!
//! Files are made by another process, so that their own bytes are not counted. Text is of `/usr/share/doc`, `/usr/include`,
//! `/usr/lib/python3` and the sources of crates, in each step with other letters for all letters.

use crate::report::exponent;
use crate::tables;
use dedupfs::config::Config;
use dedupfs::repo::{InitOptions, OpenOptions, Repo};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

const TEXT: [&str; 4] = ["/usr/share/doc", "/usr/include", "/usr/lib/python3", "/usr/lib/python3.12"];

pub fn run(dir: &str, steps: &str, mib: &str, kind: &str, rest: &[&str]) {
    let (dir, mib): (PathBuf, usize) = (dir.into(), mib.parse().unwrap());
    let file_bytes = rest.first().map_or(1 << 10, |kib| kib.parse::<usize>().unwrap()) << 10;
    if let Some(Ok(step)) = rest.get(1).map(|step| step.parse()) {
        return make(&dir, step, mib << 20, kind == "text", file_bytes);
    }
    let similarity = rest.get(1).copied().unwrap_or("full");
    std::fs::create_dir_all(&dir).unwrap();
    let config = Config::parse(&format!("similarity = \"{similarity}\"")).unwrap();
    let layout = Repo::init(&dir, None, &InitOptions { config, ..InitOptions::default() }).unwrap();
    let options = OpenOptions { convert: true, ..OpenOptions::default() };
    let repo = Repo::open(&layout, &options, &mut |_| {}).unwrap();
    let (overlay, background) = (repo.overlay().clone(), repo.overlay().start());
    println!("step  seconds  written MB  by stored  index MB  by unique  RSS MiB");
    let mut costs = Vec::new();
    for step in 0..steps.parse::<u64>().unwrap() {
        let made = std::process::Command::new(std::env::current_exe().unwrap())
            .args([dir.to_str().unwrap(), "0", &mib.to_string(), kind])
            .args([(file_bytes >> 10).to_string(), step.to_string()])
            .status();
        assert!(made.unwrap().success());
        let (before, stored, begun) = (written(), overlay.store().stats().stored_bytes, Instant::now());
        overlay.maintenance.scan(Path::new(""), &mut |_, _, _, _| {}).unwrap();
        overlay.maintenance.settle(&mut |_| true).unwrap();
        let seconds = begun.elapsed().as_secs_f64();
        let (written, stats) = (written() - before, overlay.store().stats());
        let by_stored = written as f64 / (stats.stored_bytes - stored) as f64;
        let (index, mb) = (repo.index_bytes(), |bytes: u64| bytes as f64 / 1e6);
        let share = index as f64 * 100.0 / stats.unique_bytes as f64;
        println!(
            "{step:4}  {seconds:7.1}  {:10.1}  {by_stored:9.2}  {:8.1}  {share:8.2}%  {:7}",
            mb(written),
            mb(index),
            status("VmRSS:") >> 10
        );
        costs.push((step as f64 + 1.0, written as f64));
    }
    println!("exponent of the bytes written by step: {:.2}", exponent(&costs).unwrap_or(f64::NAN));
    let unique = overlay.store().stats().unique_bytes;
    let left = background.stop();
    drop(overlay);
    repo.close(left).unwrap();
    tables::print(&dir, unique, "by unique byte");
}

/// Bytes that this process gave to `write` and its like.
fn written() -> u64 {
    let text = std::fs::read_to_string("/proc/self/io").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("wchar:"));
    line.unwrap().trim().parse().unwrap()
}

/// KiB of a field of the process's status.
fn status(name: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// Makes the files of a step.
fn make(dir: &Path, step: u64, bytes: usize, text: bool, file_bytes: usize) {
    let dir = dir.join(format!("step-{step:04}"));
    std::fs::create_dir_all(&dir).unwrap();
    let pool = if text { pool(bytes, step) } else { Vec::new() };
    for (n, start) in (0..bytes).step_by(file_bytes).enumerate() {
        let len = file_bytes.min(bytes - start);
        let content = if text {
            pool[start..start + len].to_vec()
        } else {
            let mut random = vec![0; len];
            let mut hasher = blake3::Hasher::new();
            hasher.update(&step.to_le_bytes()).update(&(n as u64).to_le_bytes());
            hasher.finalize_xof().fill(&mut random);
            random
        };
        let mut file = std::fs::File::create(dir.join(format!("{n:06}"))).unwrap();
        file.write_all(&content).unwrap();
        // Not written out while what follows is measured.
        file.sync_all().unwrap();
    }
}

/// So many bytes of text, with other letters for all letters each time.
fn pool(bytes: usize, step: u64) -> Vec<u8> {
    let mut dirs: Vec<PathBuf> = TEXT.iter().map(PathBuf::from).collect();
    dirs.extend(std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cargo/registry/src")));
    let (mut pool, mut pass) = (Vec::with_capacity(bytes + (1 << 20)), 0);
    while pool.len() < bytes {
        let (start, letters) = (pool.len(), letters(step << 8 | pass));
        dirs.iter().for_each(|dir| gather(dir, &letters, bytes, &mut pool));
        assert!(pool.len() > start, "there is no text on this machine");
        pass += 1;
    }
    pool
}

/// Adds the text files below `dir` while there is room.
fn gather(dir: &Path, letters: &[u8; 256], bytes: usize, pool: &mut Vec<u8>) {
    let Ok(entries) = std::fs::read_dir(dir) else { return };
    let mut paths: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.sort();
    for path in paths {
        let Ok(meta) = path.symlink_metadata() else { continue };
        if pool.len() >= bytes {
            return;
        }
        if meta.is_dir() {
            gather(&path, letters, bytes, pool);
        } else if meta.is_file() && meta.len() < 4 << 20 {
            let Ok(text) = std::fs::read(&path) else { continue };
            if !text.contains(&0) && std::str::from_utf8(&text).is_ok() {
                pool.extend(text.iter().map(|&byte| letters[usize::from(byte)]));
            }
        }
    }
}

/// A permutation of the letters.
fn letters(seed: u64) -> [u8; 256] {
    let mut letters: [u8; 256] = std::array::from_fn(|byte| byte as u8);
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for alphabet in [b'a', b'A'] {
        for i in (1..26).rev() {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            letters.swap(usize::from(alphabet) + i, usize::from(alphabet) + (x >> 20) as usize % (i + 1));
        }
    }
    letters
}
