//! How long snapshots of a large tree take, and what they weigh.
//!
//! `cargo run --release --example bench_history -- DIR FILES`: makes FILES files of some 20 bytes in DIR, a thousand to a directory,
//! and takes snapshots: the first, one after a restart, and with 0, 100 and 100,000 changes known (half of FILES if that is
//! less). Then the time of a rename, and of an open, write and close, with versions and without. Memory is the most that
//! the process has had.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a measurement stops at the first error, and prints"
)]

use dedupfs::history::Taken;
use dedupfs::overlay::{Background, Caller, Dedup, NodeId, OpenFlags, Overlay, ROOT};
use dedupfs::repo::{InitOptions, Layout, OpenOptions, Repo};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

const CALLER: Caller = Caller { uid: 0, gid: 0, umask: 0o022 };

fn path(i: u64) -> PathBuf {
    PathBuf::from(format!("d{:05}/f{i:07}", i / 1000))
}

fn node(overlay: &Overlay, path: &Path) -> NodeId {
    path.components().fold(ROOT, |at, part| overlay.tree.lookup(at, part.as_os_str()).unwrap().node)
}

fn main() {
    let mut args = std::env::args().skip(1);
    let dir = PathBuf::from(args.next().expect("DIR"));
    let files: u64 = args.next().expect("FILES").parse().unwrap();
    std::fs::create_dir_all(&dir).unwrap();
    let begun = Instant::now();
    for i in 0..files {
        let path = dir.join(path(i));
        if i % 1000 == 0 {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        }
        std::fs::write(path, format!("content of file {i}")).unwrap();
    }
    println!("{files} files made in {:.1} s", begun.elapsed().as_secs_f64());
    let layout = Repo::init(&dir, None, &InitOptions::default()).unwrap();
    // Plain files: their contents are stored by the first snapshot.
    let options = OpenOptions { dedup: Some(Dedup::Off), ..OpenOptions::default() };
    // Younger files are read again by the next.
    std::thread::sleep(Duration::from_secs(4));
    let mut session = Session::open(&layout, &options);
    session.snapshot("first, with all contents", true);
    session.close();
    session = Session::open(&layout, &options);
    session.snapshot("after a restart, no changes", false);
    session.snapshot("no changes", true);
    for count in [100, 100_000.min(files / 2)] {
        for i in 0..count {
            let path = path(i * (files / count));
            let file = node(&session.overlay, &path);
            save(&session.overlay, file, format!("changed {i} {count}").as_bytes());
            // As the kernel does, or each would keep a descriptor.
            session.overlay.tree.forget(file, 1);
            session.overlay.tree.forget(node(&session.overlay, path.parent().unwrap()), 2);
        }
        session.overlay.maintenance.settle(&mut |_| true).unwrap();
        session.snapshot(&format!("{count} changes"), true);
    }
    session.close();
    for versions in [true, false] {
        let config = if versions { "" } else { "[history]\nkeep = \"none\"\n" };
        std::fs::write(layout.file("config.toml"), config).unwrap();
        let session = Session::open(&layout, &OpenOptions { convert: true, ..OpenOptions::default() });
        latencies(&session.overlay, if versions { "with versions" } else { "without versions" });
        session.close();
    }
}

struct Session {
    repo: Repo,
    overlay: Arc<Overlay>,
    background: Background,
}

impl Session {
    fn open(layout: &Layout, options: &OpenOptions) -> Session {
        let repo = Repo::open(layout, options, &mut |_| {}).unwrap();
        let overlay = repo.overlay().clone();
        let background = overlay.start();
        Session { repo, overlay, background }
    }

    fn snapshot(&self, what: &str, alone: bool) {
        let packs = || self.overlay.store().stats().stored_bytes;
        let (before, begun) = (packs(), Instant::now());
        let Taken { snapshot, looked_at, read, .. } =
            self.repo.history().snapshot("", self.repo.id(), alone, &mut |_| true).unwrap();
        let (time, bytes) = (begun.elapsed().as_secs_f64(), packs() - before);
        let (files, peak) = (snapshot.files, peak_mib());
        println!(
            "{what}: {time:.3} s, {bytes} bytes, {looked_at} looked at, {read} read, {files} files, {peak} MiB"
        );
    }

    fn close(self) {
        let left = self.background.stop();
        drop(self.overlay);
        self.repo.close(left).unwrap();
    }
}

fn save(overlay: &Overlay, file: NodeId, bytes: &[u8]) {
    let flags = OpenFlags { write: true, truncate: true, ..OpenFlags::default() };
    let opened = overlay.tree.open(file, flags, &|_| None).unwrap();
    overlay.tree.write(&opened.handle, 0, bytes).unwrap();
    overlay.tree.release(&opened.handle);
}

/// Microseconds of a rename, and of an open, write and close of files that are taken in meanwhile: median and 99th
/// percentile.
fn latencies(overlay: &Overlay, what: &str) {
    let parent = node(overlay, Path::new("d00000"));
    let measure = |name: &str, count: u32, act: &mut dyn FnMut(u32)| {
        let mut times: Vec<u128> = Vec::new();
        for i in 0..count {
            let begun = Instant::now();
            act(i);
            times.push(begun.elapsed().as_nanos());
        }
        times.sort_unstable();
        let at = |share: usize| times[times.len() * share / 100] as f64 / 1e3;
        println!("{what}: {name}: {:.1} us, {:.1} us for the 99th of 100", at(50), at(99));
    };
    measure("a rename", 20_000, &mut |i| {
        let (from, to) = if i % 2 == 0 { ("f0000001", "other") } else { ("other", "f0000001") };
        overlay.tree.rename((parent, OsStr::new(from)), (parent, OsStr::new(to)), 0, CALLER).unwrap();
    });
    let files: Vec<NodeId> = (2..1000).map(|i| node(overlay, &path(i))).collect();
    let bytes = vec![b'x'; 8192];
    measure("a save of 8 KiB", 20_000, &mut |i| save(overlay, files[i as usize % files.len()], &bytes));
    let begun = Instant::now();
    overlay.maintenance.settle(&mut |_| true).unwrap();
    println!("{what}: then settled in {:.2} s", begun.elapsed().as_secs_f64());
}

/// The most memory that this process has had, in MiB.
fn peak_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.split_whitespace().next().unwrap().parse::<u64>().unwrap() / 1024
}
