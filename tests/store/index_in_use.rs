//! A daemon writes its index anew while it uses it, and may be killed in the middle of that.
//!
//! Seen to fail with nothing done while it is in use.
#![allow(clippy::unwrap_used, reason = "a test stops at the first error")]

use crate::common::{As, Mount, fuse_available, noise};
use std::fs;
use std::time::{Duration, Instant};

/// More than anything here takes however busy the machine is.
const SOON: Duration = Duration::from_secs(120);
/// Their index takes some MiB.
const FILES: u64 = 6000;

fn bytes(file: u64) -> Vec<u8> {
    noise(file + 1, 700 + (file % 300) as usize)
}

fn fill(mount: &Mount, files: std::ops::Range<u64>) {
    for file in files {
        let dir = mount.at(&format!("dir-{}", file / 500));
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join(file.to_string()), bytes(file)).unwrap();
    }
    mount.settle();
}

fn compare(mount: &Mount, files: u64) {
    for file in 0..files {
        let path = mount.at(&format!("dir-{}/{file}", file / 500));
        assert!(fs::read(&path).unwrap() == bytes(file), "{}", path.display());
    }
}

#[track_caller]
fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + SOON;
    while !is_so() {
        assert!(Instant::now() < end, "{what}: not within {SOON:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn an_index_in_use_shrinks_and_a_kill_meanwhile_costs_nothing() {
    if !fuse_available() {
        return;
    }
    let mount = Mount::new(As::User);
    let state = mount.dir().join(".dedupfs");
    let copies = || {
        let log = fs::read_to_string(state.join("dedupfs.log")).unwrap();
        log.matches("the index was compacted").count()
    };
    let index = || mount.ctl(&["status"])["index_bytes"].as_u64().unwrap();
    fill(&mount, 0..FILES);
    let before = index();
    wait_until("an index in use is written anew", || {
        compare(&mount, 50);
        copies() > 0
    });
    assert!(index() < before, "{} of {before} bytes", index());
    compare(&mount, FILES);
    let (mut files, mut met) = (FILES, 0);
    for round in 0..3 {
        // A copy may begin while it is filled.
        let done = copies();
        fill(&mount, files..files * 8 / 5);
        files = files * 8 / 5;
        wait_until("a copy is begun", || state.join("index/rows.copy").exists() || copies() > done);
        std::thread::sleep(Duration::from_millis(60 * round));
        mount.kill();
        met += u32::from(state.join("index/rows.copy").exists());
        mount.start();
        assert!(!state.join("index/rows.copy").exists());
        compare(&mount, files);
        let check = mount.ctl(&["check"]);
        assert_eq!(check["damaged"].as_array().unwrap().len(), 0, "{check}");
    }
    assert!(met > 0, "killed at other times only");
    let damaged = fs::read_dir(&state).unwrap().map(|entry| entry.unwrap().file_name());
    assert_eq!(damaged.filter(|name| name.to_string_lossy().contains("damaged")).count(), 0);
}
