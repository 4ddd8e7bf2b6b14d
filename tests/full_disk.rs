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
use dedupfs::db::{Batch, Db, DbError, SledDb, Table};
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
    mount.init(common::NO_HISTORY);
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

/// The room behind the end of sled's file is gone, as when sled makes it shorter, and so is all other room, before
/// what was applied is written: it can still be read, more is refused, and once there is room all of it is there.
/// Seen to fail without opening sled anew, and without applying again what it had not written.
#[test]
fn an_index_comes_back_from_a_full_disk() {
    if !root_and_fuse_available() {
        return;
    }
    let root = tempfile::tempdir().unwrap();
    let (image, at) = (root.path().join("image"), root.path().join("disk"));
    fs::create_dir(&at).unwrap();
    let disk = SmallDisk::new(&image, &at);
    let path = at.join("index");
    let db = SledDb::open(&path, 16 << 20).unwrap();
    let put = |first: u32| {
        let mut batch = Batch::new();
        for i in first..first + 100 {
            batch.put(Table::Chunks, &i.to_be_bytes(), noise(i.into(), 1000));
        }
        db.apply(batch)
    };
    let all_there = |db: &SledDb, end: u32, when: &str| {
        for i in 0..end {
            let value = db.get(Table::Chunks, &i.to_be_bytes()).unwrap();
            assert!(value.as_deref() == Some(&noise(i.into(), 1000)), "{when}: {i}");
        }
    };
    let (mut end, mut refused) = (0, 0);
    for round in 0..8 {
        fill_at_once(&at.join("rest"), disk.free() - (30 << 20));
        // Some of it is on the disk, some is not, and the room is allocated.
        put(end).unwrap();
        db.flush().unwrap();
        put(end + 100).unwrap();
        end += 200;
        let file = File::options().write(true).open(path.join("db")).unwrap();
        file.set_len(file.metadata().unwrap().len()).unwrap();
        fill_at_once(&at.join("all"), u64::MAX);
        // With the reserve it comes back at once, without it when there is room.
        let reserve = round % 2 == 0;
        if !reserve {
            fs::remove_file(path.join("reserve")).unwrap();
            fill_at_once(&at.join("more"), u64::MAX);
        }
        let flushed = db.flush();
        assert!(flushed.is_ok() || !reserve, "{round}: {flushed:?}");
        refused += u32::from(flushed.is_err());
        if reserve {
            all_there(&db, end, "on the full disk");
        }
        assert!(matches!(put(9000), Err(DbError::Full { .. })), "{round}");
        let _ = fs::remove_file(at.join("more"));
        fs::remove_file(at.join("all")).unwrap();
        all_there(&db, end, "once there is room");
        put(end).unwrap();
        end += 100;
        fs::remove_file(at.join("rest")).unwrap();
    }
    // sled may have been quicker than the disk was full.
    assert!(refused > 0);
    db.flush().unwrap();
    drop(db);
    let db = SledDb::open(&path, 16 << 20).unwrap();
    all_there(&db, end, "opened again");
    assert!(db.get(Table::Chunks, &9000u32.to_be_bytes()).unwrap().is_none());
    drop(db);
}

/// Allocates a file of so many bytes, at once; or until nothing fits.
fn fill_at_once(path: &Path, bytes: u64) {
    let file = File::create(path).unwrap();
    let (mut at, mut step) = (0, 64 << 20);
    while step >= 4096 && at < bytes {
        let len = step.min(bytes - at);
        match rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), at, len) {
            Ok(()) => at += len,
            Err(_) => step /= 2,
        }
    }
}

/// An export that does not fit: it says so and changes nothing; forced, it does what it can, and the rest stays.
#[test]
fn an_export_that_does_not_fit() {
    if !root_and_fuse_available() {
        return;
    }
    let mount = Mount::prepare(As::Root);
    let (image, dir) = (mount.root.path().join("image"), mount.dir());
    let disk = SmallDisk::new(&image, &dir);
    mount.start();
    // Ten files of one content, so that they fit only as stubs; and some of their own.
    let big = noise(9000, 16 << 20);
    let names: Vec<String> = (0..10).map(|i| format!("big{i}")).collect();
    for name in &names {
        assert!(write(&mount.at(name), &big));
        settle(&mount);
    }
    let there: Vec<u64> = (0..10).collect();
    for seed in &there {
        assert!(write(&mount.at(&format!("f{seed}")), &noise(*seed, FILE_BYTES)));
    }
    settle(&mount);
    for mounted in [true, false] {
        if !mounted {
            mount.unmount();
        }
        let output = mount.dedupctl().arg("export").arg(&dir).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{}", text(&output));
        assert!(
            String::from_utf8_lossy(&output.stderr).contains("are free; nothing was changed"),
            "{}",
            text(&output)
        );
        assert_eq!(fs::metadata(dir.join("big0")).unwrap().len(), 0);
        let config = fs::read_to_string(dir.join(".dedupfs/config.toml")).unwrap();
        assert!(!config.contains("exported"), "{config}");
    }
    mount.start();
    let output = mount.dedupctl().args(["export", "--force", "--json"]).arg(mount.mnt()).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let failed = report["failed"].as_array().unwrap().len() as u64;
    assert!(failed > 0 && failed < 10, "{report}");
    assert_eq!(report["files"].as_u64().unwrap() + failed, 20, "{report}");
    all_whole(&mount, &there, "after an export that did not fit");
    for name in &names {
        assert!(fs::read(mount.at(name)).unwrap() == big, "{name} differs");
    }
    // Once there is room, the rest follows.
    for name in &names[..8] {
        fs::remove_file(mount.at(name)).unwrap();
    }
    mount.unmount();
    // Those that were removed are former versions, which go only if somebody says so.
    let refused = mount.dedupctl().args(["export", "--remove-store"]).arg(&dir).output().unwrap();
    assert_eq!(refused.status.code(), Some(2), "{}", text(&refused));
    succeed(mount.dedupctl().args(["export", "--remove-store", "--force"]).arg(&dir));
    for name in &names[8..] {
        assert!(fs::read(dir.join(name)).unwrap() == big, "{name} differs");
    }
    assert!(!dir.join(".dedupfs").exists());
    drop(disk);
}
