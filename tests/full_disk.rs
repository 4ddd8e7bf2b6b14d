//! A disk that is full: it is said at write or fsync, nothing is lost, and everything works again once there is room.
//!
//! On a small ext4 in a loop device, filled through the mount until nothing fits. Seen to fail: when a failed append
//! makes the store refuse writes for good (nothing is converted after the room came back); without the room allocated
//! for sled. Not shown here: the reserve, since some pack is always garbage enough to be removed first.
#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a test stops at the first error, and says aloud that it was skipped"
)]

mod common;

use common::{As, Mount, noise, root_and_fuse_available, succeed, text};
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::Path;
use std::process::Command;

const DISK_BYTES: u64 = 160 << 20;
/// Many to a pack, so that no pack is garbage as a whole when every other file goes.
const FILE_BYTES: usize = 100_000;

/// A small filesystem on a file, unmounted when dropped.
struct SmallDisk<'a> {
    at: &'a Path,
}

impl SmallDisk<'_> {
    fn new<'a>(image: &Path, at: &'a Path) -> SmallDisk<'a> {
        File::create(image).unwrap().set_len(DISK_BYTES).unwrap();
        // No blocks set aside for root, who runs this.
        succeed(Command::new("mkfs.ext4").args(["-q", "-F", "-m", "0"]).arg(image));
        succeed(Command::new("mount").args(["-o", "loop"]).arg(image).arg(at));
        SmallDisk { at }
    }

    fn free(&self) -> u64 {
        let space = rustix::fs::statvfs(self.at).unwrap();
        space.f_bavail * space.f_frsize
    }
}

impl Drop for SmallDisk<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.at).status();
    }
}

/// Writes a file and makes it durable; whether there was room.
fn write(path: &Path, bytes: &[u8]) -> bool {
    let written = File::create(path).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()
    });
    match written {
        Ok(()) => true,
        Err(e) if e.kind() == ErrorKind::StorageFull => {
            fs::remove_file(path).unwrap();
            false
        }
        Err(e) => panic!("{}: expected no error, or that the disk is full: {e}", path.display()),
    }
}

/// Fills the disk; the seeds of the files that are there afterwards.
fn fill(mount: &Mount, first: u64) -> Vec<u64> {
    let mut there = Vec::new();
    for seed in first..first + 3000 {
        // So that it is the store that fills the disk.
        if seed % 64 == 63 {
            settle(mount);
        }
        if write(&mount.at(&format!("f{seed}")), &noise(seed, FILE_BYTES)) {
            there.push(seed);
        } else {
            // Converting others makes room, or not.
            settle(mount);
            if !write(&mount.at(&format!("f{seed}")), &noise(seed, FILE_BYTES)) {
                return there;
            }
            there.push(seed);
        }
    }
    panic!("the disk was never full");
}

/// A full disk may leave files pending: then it is not an error that this says so.
fn settle(mount: &Mount) {
    let mut child = mount.dedupctl().args(["settle"]).arg(mount.mnt()).spawn().unwrap();
    for _ in 0..50 {
        if child.try_wait().unwrap().is_some() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    child.kill().unwrap();
    child.wait().unwrap();
}

fn all_whole(mount: &Mount, seeds: &[u64], when: &str) {
    for seed in seeds {
        let found =
            fs::read(mount.at(&format!("f{seed}"))).unwrap_or_else(|e| panic!("{when}: f{seed}: {e}"));
        assert!(found == noise(*seed, FILE_BYTES), "{when}: f{seed} differs");
    }
}

#[test]
fn a_full_disk_is_told_of_and_loses_nothing() {
    if !root_and_fuse_available() {
        return;
    }
    let mount = Mount::prepare(As::Root);
    let (image, dir) = (mount.root.path().join("image"), mount.dir());
    let disk = SmallDisk::new(&image, &dir);
    mount.start();
    let mut there = fill(&mount, 0);
    assert!(there.len() > 500, "{} files", there.len());
    // To the last byte, so that the index has no room either.
    let mut rest = File::create(mount.at("rest")).unwrap();
    let block = noise(7, 4096);
    while rest.write_all(&block).is_ok() {}
    drop(rest);
    assert!(disk.free() < 200_000, "{} bytes are free", disk.free());
    // Files opened, removed, renamed and committed meanwhile: the index has to take it.
    for i in 0..20 {
        let _ = fs::write(mount.at(&format!("small{i}")), format!("{i}"));
        let _ = fs::rename(mount.at(&format!("small{i}")), mount.at(&format!("renamed{i}")));
    }
    std::thread::sleep(std::time::Duration::from_secs(2));
    all_whole(&mount, &there, "on the full disk");
    // A disk full of garbage: the reserve lets it be collected.
    let gone: Vec<u64> = there.iter().copied().filter(|seed| seed % 2 == 0).collect();
    there.retain(|seed| seed % 2 != 0);
    for seed in &gone {
        fs::remove_file(mount.at(&format!("f{seed}"))).unwrap();
    }
    let output = mount.dedupctl().args(["gc", "--json"]).arg(mount.mnt()).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    fs::remove_file(mount.at("rest")).unwrap();
    all_whole(&mount, &there, "after the collection");
    let free = disk.free();
    assert!(free > 20 << 20, "{free} bytes are free after the collection: {}", text(&output));
    // It goes on as if nothing had been: new files are written, and converted.
    for seed in 5000..5050 {
        assert!(write(&mount.at(&format!("f{seed}")), &noise(seed, FILE_BYTES)));
        there.push(seed);
    }
    assert_eq!(mount.ctl(&["settle"])["pending"], 0);
    assert!(mount.is_stub("f5000"), "files are converted again");
    mount.remount();
    all_whole(&mount, &there, "after a remount");
    assert_eq!(mount.ctl(&["check", "--deep"])["damaged"], serde_json::json!([]));
    mount.kill();
    mount.start();
    all_whole(&mount, &there, "after a kill");
    mount.unmount();
    drop(disk);
}
