//! The suites that others test filesystems with, run whole on a mount and on the filesystem beneath it. They are not
//! installed by our own tests: `cargo install pjdfstest fsx`, then `cargo test --test mount -- --ignored posix::` as root.
//! What they found is frozen as plain tests in tests/mount/semantics/ and tests/mount/fsx.rs.
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a test stops at the first error, and reports")]

use crate::common::{As, Mount, succeed, text};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A filesystem of its own below everything, unmounted when dropped.
struct Disk {
    _image: tempfile::TempDir,
    /// Short, wherever temporary files are: the path of a socket has at most 108 bytes, and pjdfstest makes some.
    at: tempfile::TempDir,
}

impl Disk {
    fn new(mega_bytes: u64) -> Disk {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("image");
        fs::File::create(&image).unwrap().set_len(mega_bytes << 20).unwrap();
        succeed(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&image));
        let at = tempfile::Builder::new().prefix("d").tempdir_in("/tmp").unwrap();
        let disk = Disk { _image: dir, at };
        succeed(Command::new("mount").args(["-o", "loop"]).arg(image).arg(disk.at()));
        fs::set_permissions(disk.at(), PermissionsExt::from_mode(0o755)).unwrap();
        disk
    }

    fn at(&self) -> PathBuf {
        self.at.path().to_owned()
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.at()).status();
    }
}

/// Results of all cases by name. Two users of every Debian stand for strangers.
fn pjdfstest(at: &Path, other: &Path) -> BTreeMap<String, String> {
    let config = at.parent().unwrap().join("pjdfstest.toml");
    let settings = "[features]\nposix_fallocate = {}\nrename_ctime = {}\nutime_now = {}\nutimensat = {}\n\
        [settings]\nnaptime = 0.01\nallow_remount = false\n\
        [dummy_auth]\nentries = [[\"games\", \"games\"], [\"man\", \"man\"]]\n";
    fs::write(&config, settings).unwrap();
    fs::create_dir(at).unwrap();
    let mut command = Command::new("timeout");
    command.args(["900", "pjdfstest", "-c"]).arg(config).arg("-p").arg(at).arg("-s").arg(other);
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains("Summary:"), "is pjdfstest on the PATH? {}", text(&output));
    eprintln!("{}: {}", at.display(), said.lines().last().unwrap());
    let mut results = BTreeMap::new();
    for line in said.lines() {
        let words: Vec<_> = line.split_whitespace().collect();
        if let [name, result @ ("ok" | "FAILED" | "skipped")] = words[..] {
            results.insert(name.to_owned(), result.to_owned());
        }
    }
    assert!(results.len() > 300, "{said}");
    results
}

#[test]
#[ignore = "wants pjdfstest on the PATH"]
fn pjdfstest_passes_as_on_the_filesystem_below() {
    let (disk, other) = (Disk::new(1024), Disk::new(300));
    let native = disk.at().join("native");
    fs::create_dir(&native).unwrap();
    let expected = pjdfstest(&native.join("t"), &other.at());
    for (in_place, flags) in [(false, &[][..]), (false, &["--no-passthrough"]), (true, &[])] {
        let mount = match in_place {
            true => Mount::in_place_in(As::Root, &disk.at()),
            false => {
                let mut mount = Mount::prepare_in(As::Root, &disk.at());
                mount.flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
                mount.start();
                mount
            }
        };
        fs::set_permissions(mount.root.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let found = pjdfstest(&mount.at("t"), &other.at());
        let worse: Vec<_> =
            expected.iter().filter(|(name, result)| found.get(*name) != Some(result)).collect();
        // The C library does not know the limit for FUSE, and the case is skipped.
        let known: Vec<_> = worse.iter().filter(|(name, _)| *name != "link::link_count_max").collect();
        assert!(known.is_empty(), "in place: {in_place}, {flags:?}: {known:?}");
    }
}

/// Where a part of a test that is run as an ordinary user finds another filesystem.
const OTHER: &str = "DEDUPFS_TEST_OTHER";

#[test]
#[ignore = "wants pjdfstest on the PATH"]
fn pjdfstest_passes_for_a_user_as_on_the_filesystem_below() {
    if crate::common::is_root() {
        let (disk, other) = (Disk::new(1024), Disk::new(300));
        for at in [disk.at(), other.at()] {
            fs::set_permissions(at, PermissionsExt::from_mode(0o777)).unwrap();
        }
        return crate::common::again_as_user(&[("TMPDIR", &disk.at()), (OTHER, &other.at())]);
    }
    let other = PathBuf::from(std::env::var_os(OTHER).expect("this test is started by root"));
    let native = std::env::temp_dir().join("native");
    fs::create_dir(&native).unwrap();
    let expected = pjdfstest(&native.join("t"), &other);
    let mount = Mount::new(As::User);
    let found = pjdfstest(&mount.at("t"), &other);
    let worse: Vec<_> = expected.iter().filter(|(name, result)| found.get(*name) != Some(result)).collect();
    let known: Vec<_> = worse.iter().filter(|(name, _)| *name != "link::link_count_max").collect();
    assert!(known.is_empty(), "{known:?}");
}

/// All that fsx can do, but for calls whose only effect is to wait for the disk, which are rare.
const FSX: &str = "flen = 1048576\nnomsyncafterwrite = true\n[opsize]\nmax = 65536\nmin = 1\n[weights]\nclose_open = 1\n\
    invalidate = 1\nmapread = 10\nmapwrite = 10\nread = 10\nwrite = 10\ntruncate = 5\nfsync = 0.05\nfdatasync = 0.05\n\
    posix_fallocate = 3\npunch_hole = 5\nsendfile = 5\nposix_fadvise = 2\ncopy_file_range = 5\n";

/// Of each of the four seeds.
const ROUNDS: u64 = 10;
const ROUND_OPS: u64 = 25_000;

/// One file through all rounds. It is closed and opened again within each while somebody asks for conversions all the
/// time; after each it becomes a stub and is mounted anew, and the next round begins with that stub.
fn fsx(flags: &[&str], seed: u64) {
    let mount = Mount::with_flags(As::Root, flags);
    let (config, path) = (mount.root.path().join("fsx.toml"), mount.at("file"));
    fs::write(&config, FSX).unwrap();
    for round in 0..ROUNDS {
        let seed = (seed * 100 + round).to_string();
        let mut command = Command::new("timeout");
        command.args(["3000", "fsx", "-q", "-N", &ROUND_OPS.to_string(), "-S", &seed, "-f"]).arg(&config);
        command.arg("-P").arg(mount.root.path()).arg(&path);
        let ended = AtomicBool::new(false);
        let output = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !ended.load(Ordering::Relaxed) {
                    mount.ctl(&["settle"]);
                    std::thread::sleep(Duration::from_millis(100));
                }
            });
            let output = command.output();
            ended.store(true, Ordering::Relaxed);
            output.expect("timeout is there")
        });
        assert!(output.status.success(), "{flags:?}, seed {seed}: is fsx on the PATH? {}", text(&output));
        let before = fs::read(&path).unwrap();
        mount.settle();
        assert!(before.is_empty() || mount.is_stub("file"), "{flags:?}, seed {seed}");
        assert!(fs::read(&path).unwrap() == before, "{flags:?}, seed {seed}, as a stub");
        mount.remount();
        assert!(fs::read(&path).unwrap() == before, "{flags:?}, seed {seed}, mounted anew");
    }
    eprintln!("{flags:?}, seed {seed}: {} operations", ROUNDS * ROUND_OPS);
}

#[test]
#[ignore = "wants fsx on the PATH, and an hour"]
fn fsx_finds_nothing_in_a_million_operations() {
    std::thread::scope(|scope| {
        for (flags, seeds) in [(&[][..], 1..3), (&["--no-passthrough"], 3..5)] {
            seeds.for_each(|seed| drop(scope.spawn(move || fsx(flags, seed))));
        }
    });
}
