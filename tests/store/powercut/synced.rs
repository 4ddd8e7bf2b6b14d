//! A sync whose receiver loses power.
//!
//! After each cut: each file of the receiver is whole, as it was or as the sender has it; from the end of the sync on it is the
//! latter. The next sync makes both sides equal, and takes nothing from what the cut left.
//!
//! Seen to fail without the syncfs that makes the staged contents durable (`sync/local/steps.rs`): files of zeros, within 24 cuts.

use super::disk::{Image, Kind, Mounted};
use super::log::Cutter;
use super::random::Random;
use super::recorder::Recorder;
use super::{EXT4, available, seed, work_dir};
use crate::common::session::{Session, copy_tree, dedupctl};
use crate::common::{As, Mount, noise, prose, succeed, text};
use std::path::Path;

/// Files on both sides at first. Those before [`CHANGED`] are changed, those from here to [`ALL`] are new.
const SHARED: u64 = 40;
const CHANGED: u64 = 30;
const ALL: u64 = 55;

fn name(i: u64) -> String {
    format!("file {i}")
}

fn content(i: u64, version: u64) -> Vec<u8> {
    let (seed, len) = (version << 32 | i, 2_000 + 900 * i as usize);
    if i.is_multiple_of(3) { noise(seed, len) } else { prose(seed, len) }
}

/// The version that the sender has in the end.
fn newest(i: u64) -> u64 {
    if (CHANGED..SHARED).contains(&i) { 1 } else { 2 }
}

/// Checks the files of the receiver in `dir`. Each may also be as it was before if `done` is not set.
fn look(dir: &Path, done: bool) -> Result<(), String> {
    let session = Session::open(dir).map_err(|e| e.to_string())?;
    let mut wrong = Vec::new();
    for i in 0..ALL {
        let good = match session.read(&name(i)) {
            Ok(bytes) => bytes == content(i, newest(i)) || !done && i < SHARED && bytes == content(i, 1),
            Err(_) => !done && i >= SHARED,
        };
        if !good {
            wrong.push(format!("{}: {:?}", name(i), session.read(&name(i)).map(|bytes| bytes.len())));
        }
    }
    session.close().map_err(|e| e.to_string())?;
    let others = std::fs::read_dir(dir).unwrap().filter(|entry| {
        let found = entry.as_ref().unwrap().file_name();
        found.to_str().is_some_and(|found| found.contains("conflict"))
    });
    wrong.extend(others.map(|other| format!("{other:?}")));
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n  ")) }
}

fn run(kind: Kind, cuts: usize, seed: u64) {
    let work = work_dir();
    let recorder = Recorder::new(&work.path().join("disk"), kind.bytes);
    kind.make(&recorder.image());
    let fs = work.path().join("fs");
    let mounted = Mounted::new(&recorder.image(), &fs, kind).unwrap();
    let (a, before) = (work.path().join("a"), work.path().join("before"));
    std::fs::create_dir(&a).unwrap();
    for i in 0..SHARED {
        std::fs::write(a.join(name(i)), content(i, 1)).unwrap();
    }
    let mut b = Mount::prepare_in(As::Root, &fs);
    b.in_place = true;
    // Files that become stubs are durable by that already.
    b.init("dedup = \"idle:1h\"");
    b.start();
    let sync = || succeed(b.dedupctl().arg("sync").arg("--create").arg(&a).arg(b.dir()));
    sync();
    b.settle();
    for i in (0..CHANGED).chain(SHARED..ALL) {
        std::fs::write(a.join(name(i)), content(i, 2)).unwrap();
    }
    copy_tree(&a, &before);
    rustix::fs::syncfs(std::fs::File::open(&fs).unwrap()).unwrap();
    recorder.start();
    sync();
    let end = recorder.position();
    let dir = b.dir().strip_prefix(&fs).unwrap().to_owned();
    b.unmount();
    drop(b);
    mounted.unmount();
    let mut log = recorder.finish();
    log.events.truncate(end);
    let mut random = Random::new(seed);
    // Every fifth right after the end.
    let mut places: Vec<_> =
        (0..cuts).map(|i| if i % 5 == 0 { end } else { random.below(end as u64 + 1) as usize }).collect();
    places.sort_unstable();
    let mut cutter = Cutter::new(&log);
    for place in places {
        let (bytes, fate) = cutter.cut(place, &mut random);
        let image = Image::new(&bytes);
        let mounted = Mounted::new(&image.path(), &fs, kind).unwrap();
        let receiver = fs.join(&dir);
        let peer = work.path().join("peer");
        copy_tree(&before, &peer);
        let result = look(&receiver, place == end).and_then(|()| {
            let output = dedupctl(&["sync", peer.to_str().unwrap(), receiver.to_str().unwrap()], work.path());
            if !output.status.success() {
                return Err(format!("the next sync: {}", text(&output)));
            }
            look(&receiver, true).map_err(|e| format!("after the next sync: {e}"))?;
            look(&peer, true).map_err(|e| format!("the sender, after the next sync: {e}"))
        });
        mounted.unmount();
        std::fs::remove_dir_all(&peer).unwrap();
        if let Err(wrong) = result {
            panic!("cut at {place} of {end} events ({fate}), {kind:?}, seed {seed}: {wrong}");
        }
    }
    println!("{kind:?}: {cuts} cuts of {end} events");
}

#[test]
fn a_sync_survives_a_few_power_cuts() {
    if !available() {
        return;
    }
    for kind in EXT4 {
        run(kind, 12, seed());
    }
}

/// `cargo test --test store -- --ignored --nocapture synced`.
#[test]
#[ignore = "takes minutes"]
fn a_sync_survives_hundreds_of_power_cuts() {
    assert!(available());
    for kind in EXT4 {
        run(kind, 150, seed());
    }
}
