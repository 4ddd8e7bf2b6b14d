//! kill -9 of the daemon: what was closed before is intact after the next mount.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test stops at the first error, and tells how much it did"
)]

use crate::common::{As, Mount, fuse_available, noise, prose};
use std::fs;
use std::sync::Mutex;
use std::time::Duration;

/// Files as (name, seed, length); even seeds are text, odd ones noise.
fn content(seed: u64, len: usize) -> Vec<u8> {
    if seed.is_multiple_of(2) { prose(seed, len) } else { noise(seed, len) }
}

/// Kills the daemon `rounds` times while two threads write; checks every file that was closed before.
///
/// What a kill rarely hits, `tests/store/overlay.rs` lays out by hand: each state that a crash can leave of a file.
/// The order of fsyncs cannot show here, since a killed process loses nothing that it has written.
fn kill_while_writing(rounds: u64) {
    let mount = Mount::new(As::Root);
    let closed = Mutex::new(Vec::new());
    for round in 0..rounds {
        std::thread::scope(|scope| {
            for thread in 0..2u64 {
                let (mount, closed) = (&mount, &closed);
                scope.spawn(move || {
                    for i in 0..100_000u64 {
                        let seed = round * 1_000_000 + thread * 500_000 + i;
                        let len = 1 + (seed * 7919) as usize % 60_000;
                        let name = format!("{round}-{thread}-{i}");
                        // Once the daemon is gone every call fails; a close that succeeded counts.
                        if fs::write(mount.at(&name), content(seed, len)).is_err() {
                            return;
                        }
                        closed.lock().unwrap().push((name, seed, len));
                        // Reopen some old ones for writing, so that hydrations are cut short too.
                        if i % 7 == 3 {
                            let old = format!("{round}-{thread}-{}", i / 2);
                            if fs::OpenOptions::new().append(true).open(mount.at(&old)).is_err() {
                                return;
                            }
                        }
                    }
                });
            }
            std::thread::sleep(Duration::from_millis(150 + round * 37 % 400));
            mount.kill();
        });
        mount.start();
        for (name, seed, len) in closed.lock().unwrap().iter() {
            let found = fs::read(mount.at(name)).unwrap_or_else(|e| panic!("round {round}: {name}: {e}"));
            assert!(found == content(*seed, *len), "round {round}: {name} differs");
        }
    }
    let files = closed.lock().unwrap().len();
    mount.settle();
    let check = mount.ctl(&["check", "--deep"]);
    assert_eq!(check["damaged"].as_array().unwrap().len(), 0, "{check}");
    println!("{rounds} kills, {files} files closed before one, all intact");
}

#[test]
fn closed_files_survive_a_few_kills() {
    if fuse_available() {
        kill_while_writing(3);
    }
}

/// The long form: `cargo test --release --test store -- --ignored --nocapture crash::`.
#[test]
#[ignore = "takes minutes"]
fn closed_files_survive_twenty_kills() {
    assert!(fuse_available());
    kill_while_writing(20);
}

#[test]
fn a_dead_mount_is_cleared_at_the_next_start() {
    if !fuse_available() {
        return;
    }
    for in_place in [false, true] {
        let mount = if in_place { Mount::in_place(As::Root) } else { Mount::new(As::Root) };
        fs::write(mount.at("file"), prose(1, 50_000)).unwrap();
        mount.kill();
        assert!(mount.is_mounted());
        assert_eq!(fs::metadata(mount.mnt()).unwrap_err().raw_os_error(), Some(libc::ENOTCONN));
        mount.start();
        assert_eq!(fs::read(mount.at("file")).unwrap(), prose(1, 50_000));
    }
}
