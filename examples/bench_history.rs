//! How long snapshots of a large tree take, and what they weigh.
//!
//! `cargo run --release --example bench_history -- DIR FILES`: makes FILES files of some 20 bytes in DIR, a thousand to a directory,
//! and takes snapshots: the first, one of a walk without changes, and with 0, 100 and a tenth of FILES changes known.
//! Then the time of a rename, with and without history.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a measurement stops at the first error, and prints"
)]

use dedupfs::history::Taken;
use dedupfs::overlay::{Caller, Dedup, NodeId, OpenFlags, Overlay, ROOT};
use dedupfs::repo::{InitOptions, OpenOptions, Repo};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Instant;

const CALLER: Caller = Caller { uid: 0, gid: 0, umask: 0o022 };

fn path(i: u64) -> PathBuf {
    PathBuf::from(format!("d{:05}/f{i:07}", i / 1000))
}

fn node(overlay: &Overlay, path: &Path) -> NodeId {
    path.components().fold(ROOT, |at, part| overlay.lookup(at, part.as_os_str()).unwrap().node)
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
    let repo = Repo::open(&layout, &options, &mut |_| {}).unwrap();
    let overlay = repo.overlay().clone();
    let background = overlay.start();
    let packs = || overlay.store().stats().stored_bytes;
    let snapshot = |what: &str, alone: bool| {
        let (before, begun) = (packs(), Instant::now());
        let Taken { snapshot, looked_at, .. } =
            repo.history().snapshot("", repo.id(), alone, &mut |_| true).unwrap();
        let (time, bytes) = (begun.elapsed().as_secs_f64(), packs() - before);
        println!("{what}: {time:.3} s, {bytes} bytes, {looked_at} looked at, {} files", snapshot.files);
    };
    snapshot("first, with all contents", true);
    snapshot("a walk, no changes", false);
    snapshot("no changes", true);
    for count in [100, files / 10] {
        for i in 0..count {
            let i = i * (files / count);
            let flags = OpenFlags { write: true, truncate: true, ..OpenFlags::default() };
            let file = node(&overlay, &path(i));
            let opened = overlay.open(file, flags, &|_| None).unwrap();
            overlay.write(&opened.handle, 0, format!("changed {i} {count}").as_bytes()).unwrap();
            overlay.release(&opened.handle);
        }
        overlay.settle(&mut |_| true).unwrap();
        snapshot(&format!("{count} changes"), true);
    }
    let parent = node(&overlay, Path::new("d00000"));
    let renames = 20_000;
    let begun = Instant::now();
    for i in 0..renames {
        let (from, to) = if i % 2 == 0 { ("f0000001", "other") } else { ("other", "f0000001") };
        overlay.rename((parent, OsStr::new(from)), (parent, OsStr::new(to)), 0, CALLER).unwrap();
    }
    println!("a rename: {:.2} us", begun.elapsed().as_secs_f64() * 1e6 / f64::from(renames));
    let left = background.stop();
    drop(overlay);
    repo.close(left).unwrap();
}
