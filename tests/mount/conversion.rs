//! Whatever comes in between, a closed file becomes a stub in the end: it is not forgotten on the way.
//!
//! Each was seen to fail with the named part switched off:
//!
//! - `a_new_index_..`: the row `unconverted` not written.
//! - `a_file_closed_just_before_an_unmount_..`: [`Background::stop`] that tells only what stood in the queue.
//! - `a_file_that_was_held_..`: [`Queue::hasten`] that does nothing.
//! - `a_file_that_is_being_read_..`: `dirty` cleared by a commit that only indexes.
//! - `a_large_file_that_is_closed_..`: `State::stepping` never set, and a step that reads on to the end of the file.
//! - `a_file_under_a_foreign_lease_..`: an error in `take_file` that is only logged.
//!
//! [`Background::stop`]: dedupfs::overlay::Background::stop
//! [`Queue::hasten`]: ../src/convert/queue.rs
#![allow(clippy::unwrap_used, reason = "a test stops at the first error")]

use crate::common::{As, Mount, fuse_available, noise, succeed};
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::CString;
use std::fs::{self, File};
use std::io::Write as _;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// More than a commit takes however busy the machine is, and less than the 30 s after which a file that somebody
/// held is tried again anyway.
const SOON: Duration = Duration::from_secs(20);

/// Of fcntl(2); the crate `libc` does not have it for glibc.
const F_SETSIG: libc::c_int = 10;

fn becomes_a_stub(mount: &Mount, name: &str) {
    let end = Instant::now() + SOON;
    while !mount.is_stub(name) {
        assert!(Instant::now() < end, "{name} is still plain after {SOON:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn wait_for(what: &str, done: impl Fn() -> bool) {
    let end = Instant::now() + SOON;
    while !done() {
        assert!(Instant::now() < end, "waited {SOON:?} for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn signal(pid: i32, signal: Signal) {
    kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
}

fn wait_for_the_end(mount: &Mount, pid: i32) {
    wait_for("the daemon's end", || !Path::new(&format!("/proc/{pid}/root")).exists());
    assert!(!mount.is_mounted());
}

#[test]
fn a_new_index_knows_that_files_wait_to_be_converted() {
    if !fuse_available() {
        return;
    }
    let mut mount = Mount::with_flags(As::Root, &["--dedup", "idle:1h"]);
    fs::write(mount.at("file"), noise(1, 50_000)).unwrap();
    // Unlike `dedupctl unmount`, this does not settle first.
    let pid = mount.pid();
    signal(pid, Signal::TERM);
    wait_for_the_end(&mount, pid);
    assert!(!mount.is_stub("file"));
    succeed(mount.dedupctl().args(["check", "--rebuild"]).arg(mount.dir()));
    assert!(!mount.is_stub("file"), "that was not asked for");
    mount.flags.clear();
    mount.start();
    becomes_a_stub(&mount, "file");
}

/// The kernel tells the daemon of a close some time later, and not at all if it is unmounted before.
#[test]
fn a_file_closed_just_before_an_unmount_is_converted_after_the_next_mount() {
    if !fuse_available() {
        return;
    }
    let mount = Mount::new(As::Root);
    // From the first close on, the kernel knows that it need not ask to flush.
    fs::write(mount.at("other"), b"").unwrap();
    let mut file = File::create(mount.at("file")).unwrap();
    file.write_all(&noise(2, 50_000)).unwrap();
    let pid = mount.pid();
    signal(pid, Signal::STOP);
    drop(file);
    let unmounted = unmount(mount.mnt(), UnmountFlags::empty());
    signal(pid, Signal::CONT);
    unmounted.unwrap();
    wait_for_the_end(&mount, pid);
    assert!(!mount.is_stub("file"));
    mount.start();
    becomes_a_stub(&mount, "file");
}

/// A file that is opened below the mount for longer than a commit insists is tried again every 30 s.
fn held_meanwhile(mount: &Mount, name: &str) {
    let mut file = File::create(mount.at(name)).unwrap();
    let held = File::open(mount.dir().join(name)).unwrap();
    file.write_all(&noise(3, 50_000)).unwrap();
    drop(file);
    std::thread::sleep(Duration::from_secs(3));
    drop(held);
    assert!(!mount.is_stub(name));
}

#[test]
fn a_file_that_was_held_and_is_written_again_is_waited_for() {
    if !fuse_available() {
        return;
    }
    let mount = Mount::new(As::Root);
    held_meanwhile(&mount, "written");
    held_meanwhile(&mount, "truncated");
    fs::write(mount.at("written"), noise(4, 50_000)).unwrap();
    let path = CString::new(mount.at("truncated").as_os_str().as_bytes()).unwrap();
    // SAFETY: the path is a C string. Unlike ftruncate, this opens nothing, so nothing is closed after it.
    assert_eq!(unsafe { libc::truncate(path.as_ptr(), 30_000) }, 0);
    becomes_a_stub(&mount, "written");
    becomes_a_stub(&mount, "truncated");
}

#[test]
fn a_file_that_is_being_read_when_it_is_tried_again_is_not_forgotten() {
    if !fuse_available() {
        return;
    }
    let mount = Mount::new(As::Root);
    held_meanwhile(&mount, "file");
    let reader = File::open(mount.at("file")).unwrap();
    std::thread::sleep(Duration::from_secs(32));
    drop(reader);
    becomes_a_stub(&mount, "file");
}

#[test]
fn a_large_file_that_is_closed_while_it_is_chunked_is_waited_for() {
    if !fuse_available() {
        return;
    }
    let mount = Mount::prepare(As::Root);
    mount.init("convert_rate = \"2MiB/s\"");
    mount.start();
    let content = noise(9, 32 << 20);
    let mut file = File::create(mount.at("file")).unwrap();
    file.write_all(&content).unwrap();
    // Files that grow are looked at every two seconds, and this one is read for 16.
    std::thread::sleep(Duration::from_secs(3));
    drop(file);
    // Long enough for a commit to have met the reader, and to have given up for half a minute.
    std::thread::sleep(Duration::from_secs(3));
    mount.settle();
    assert!(mount.is_stub("file"));
    assert!(fs::read(mount.at("file")).unwrap() == content);
}

#[test]
fn a_file_under_a_foreign_lease_is_converted_when_that_is_gone() {
    if !fuse_available() {
        return;
    }
    let mount = Mount::with_flags(As::Root, &["--dedup", "idle:3s"]);
    fs::write(mount.at("file"), noise(4, 50_000)).unwrap();
    let holder = File::options().read(true).open(mount.dir().join("file")).unwrap();
    // A lease that somebody wants is announced by SIGIO, which would end this process; SIGURG is ignored.
    // SAFETY: F_SETSIG takes the number of a signal, and the descriptor is open.
    assert_eq!(unsafe { libc::fcntl(holder.as_raw_fd(), F_SETSIG, libc::SIGURG) }, 0);
    // SAFETY: F_SETLEASE takes an integer, and the descriptor is open.
    let leased = || unsafe { libc::fcntl(holder.as_raw_fd(), libc::F_SETLEASE, libc::F_RDLCK) } == 0;
    wait_for("a lease", leased);
    // Past the time of the policy.
    std::thread::sleep(Duration::from_millis(3_500));
    assert!(!mount.is_stub("file"));
    drop(holder);
    becomes_a_stub(&mount, "file");
}

/// Holes are cut without being read. A file whose recipe would take more room than its bytes stays as it is, and nobody waits
/// for it to be read.
#[test]
fn holes_are_not_read() {
    if !fuse_available() {
        return;
    }
    let mount = Mount::new(As::Root);
    let make = |name: &str, len: u64, at: u64, bytes: &[u8]| {
        let file = fs::File::create(mount.at(name)).unwrap();
        file.set_len(len).unwrap();
        file.write_all_at(bytes, at).unwrap();
    };
    let (end, head) = (noise(1, 70_000), noise(2, 20_000_000));
    make("disk", 8 << 30, (8 << 30) - 70_000, &end);
    fs::File::options().write(true).open(mount.at("disk")).unwrap().write_all_at(&head, 5_000).unwrap();
    make("empty", 1 << 40, 1 << 39, b"here");
    mount.settle();
    assert!(mount.is_stub("disk"));
    assert!(!mount.is_stub("empty"));
    mount.remount();
    let disk = fs::File::open(mount.at("disk")).unwrap();
    assert_eq!(disk.metadata().unwrap().len(), 8 << 30);
    let zeros = vec![0; 100_000];
    for (at, bytes) in [(5_000, &head[..]), ((8 << 30) - 70_000, &end), (4 << 30, &zeros)] {
        let mut found = vec![1; bytes.len()];
        disk.read_exact_at(&mut found, at).unwrap();
        assert!(found == bytes, "at {at}");
    }
    drop(disk);
    let mut found = [0; 4];
    fs::File::open(mount.at("empty")).unwrap().read_exact_at(&mut found, 1 << 39).unwrap();
    assert_eq!(&found, b"here");
    mount.unmount();
}
