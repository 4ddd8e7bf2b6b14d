//! Scenarios that take more than two users between two syncs: a third device, connections that are cut, a full disk.

use super::world::{Do, FORMS, Form, Side, act, manifest};
use crate::common::{again_as_user, as_both, noise, root_and_fuse_available, succeed};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Three devices in a line: what the first and the last do meets in the middle, and comes to all.
#[test]
fn a_third_device() {
    as_both(|_| FORMS.into_iter().for_each(three_devices_in));
}

fn three_devices_in(form: Form) {
    let (a, b, c) = (Side::new(form), Side::new(form), Side::new(form));
    act(&a.root(), &[Do::Write("f", "old"), Do::Write("g", "g"), Do::MakeDir("d"), Do::Write("d/x", "x")]);
    assert_eq!((a.sync(&b, &[]).0, b.sync(&c, &[]).0), (0, 0));
    act(&a.root(), &[Do::Rename("f", "renamed"), Do::Write("g", "of a"), Do::Rename("d", "e")]);
    act(&c.root(), &[Do::Append("f", " and new"), Do::Write("g", "of c"), Do::Save("d/x", "x of c")]);
    assert_eq!(a.sync(&b, &[]).0, 0);
    assert_eq!(c.sync(&b, &[]).0, 1, "g was changed twice");
    assert_eq!((b.sync(&a, &[]).0, c.sync(&a, &[]).0), (0, 0));
    let all = [&a, &b, &c].map(|side| manifest(&side.root()));
    assert_eq!((&all[0], &all[1]), (&all[1], &all[2]), "{form:?}");
    let text = |path: &str| fs::read_to_string(a.root().join(path)).unwrap();
    assert_eq!((text("renamed"), text("e/x")), ("old and new".to_owned(), "x of c".to_owned()), "{form:?}");
    assert_eq!(all[0].keys().filter(|path| path.starts_with("g.conflict-")).count(), 1, "{form:?}: {all:?}");
}

/// A sync that is cut at some moments goes on with the next one, and loses nothing.
#[test]
fn cut_and_resumed() {
    as_both(|_| FORMS.into_iter().for_each(cut_and_resume_in));
}

fn cut_and_resume_in(form: Form) {
    let (a, b) = (Side::new(form), Side::new(form));
    act(&a.root(), &[Do::Write("f", "old"), Do::MakeDir("d"), Do::Write("d/x", "x")]);
    assert_eq!(a.sync(&b, &[]).0, 0);
    act(&a.root(), &[Do::Rename("f", "renamed"), Do::Rename("d", "e"), Do::Write("empty", "")]);
    act(&b.root(), &[Do::Append("f", " and new"), Do::Write("d/made", "made")]);
    for n in 0..4 {
        fs::write(a.root().join(format!("large{n}")), noise(n, 300_000)).unwrap();
    }
    for milliseconds in [100, 300, 600, 1_000] {
        let mut command = a.mount.dedupctl();
        command.args(["sync", "--bwlimit", "400K"]).arg(b.root()).arg(a.root());
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(milliseconds));
        let _ = child.kill();
        child.wait().unwrap();
    }
    let (code, report) = a.sync(&b, &[]);
    assert_eq!(code, 0, "{form:?}: {report}");
    let (here, there) = (manifest(&a.root()), manifest(&b.root()));
    assert_eq!(here, there, "{form:?}");
    let text = |path: &str| fs::read_to_string(b.root().join(path)).ok();
    assert_eq!(text("renamed").as_deref(), Some("old and new"), "{form:?}: {here:?}");
    assert_eq!(text("e/made").as_deref(), Some("made"), "{form:?}: {here:?}");
    assert!(["f", "d"].iter().all(|path| !b.root().join(path).exists()), "{form:?}: {here:?}");
}

/// In the environment of the part that an ordinary user runs: a small disk.
const DISK: &str = "DEDUPFS_TEST_DISK";

/// A filesystem of 256 MiB to which everybody may write.
struct Disk(tempfile::TempDir);

impl Disk {
    fn new() -> Disk {
        let dir = tempfile::tempdir().unwrap();
        let mut mount = Command::new("mount");
        succeed(mount.args(["-t", "tmpfs", "-o", "size=256M,mode=1777", "none"]).arg(dir.path()));
        Disk(dir)
    }
}

/// A disk of ext4, which makes all its inodes when it is made.
fn disk_of_ext4(image: &Path) -> Disk {
    fs::File::create(image).unwrap().set_len(64 << 20).unwrap();
    succeed(Command::new("mkfs.ext4").args(["-q", "-N", "1024"]).arg(image));
    let disk = Disk(tempfile::tempdir().unwrap());
    succeed(Command::new("mount").args(["-o", "loop"]).arg(image).arg(disk.0.path()));
    disk
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

/// What fits on a small disk arrives, the rest is named; with more room all of it comes, and nothing stays mounted.
#[test]
fn a_full_peer() {
    if let Some(disk) = std::env::var_os(DISK) {
        return FORMS.into_iter().for_each(|form| full_peer_in(form, Path::new(&disk)));
    }
    if !root_and_fuse_available() {
        return;
    }
    let disk = Disk::new();
    FORMS.into_iter().for_each(|form| full_peer_in(form, disk.0.path()));
    again_as_user(&[(DISK, disk.0.path())]);
}

fn full_peer_in(form: Form, disk: &Path) {
    // 32 MiB are left.
    let other = disk.join("other");
    let filled = fs::File::create(&other).unwrap();
    rustix::fs::fallocate(&filled, rustix::fs::FallocateFlags::empty(), 0, 224 << 20).unwrap();
    let (a, b) = (Side::new(form), Side::new_in(form, disk));
    act(&a.root(), &[Do::Write("small", "s"), Do::MakeDir("d"), Do::Write("d/small", "s")]);
    fs::write(a.root().join("large"), noise(1, 40_000_000)).unwrap();
    let (code, report) = a.sync(&b, &[]);
    assert_eq!(code, 1, "{form:?}: {report}");
    let named = report["skipped"].as_array().unwrap().iter().any(|row| row["path"] == "large");
    assert!(named, "{form:?}: {report}");
    assert!(!a.is_left_mounted() && !b.is_left_mounted(), "{form:?}");
    let there = manifest(&b.root());
    assert_eq!(there.keys().collect::<Vec<_>>(), ["d", "d/small", "small"], "{form:?}");
    // Nor is it sent in vain by the next one.
    act(&a.root(), &[Do::Append("small", " and more")]);
    let (code, report) = a.sync(&b, &[]);
    assert_eq!((code, &report["updated"]), (1, &1.into()), "{form:?}: {report}");
    assert!(report["sent_bytes"].as_u64().unwrap() < 1_000_000, "{form:?}: {report}");
    drop(filled);
    fs::remove_file(&other).unwrap();
    let (code, report) = a.sync(&b, &[]);
    assert_eq!(code, 0, "{form:?}: {report}");
    assert_eq!(manifest(&a.root()), manifest(&b.root()), "{form:?}");
}

/// A filesystem that has no xattrs, and does not say how large it is, can be a peer: what has xattrs is named.
#[test]
fn a_peer_without_xattrs() {
    if !root_and_fuse_available() {
        return;
    }
    for form in FORMS {
        let disk = Disk(tempfile::tempdir().unwrap());
        succeed(Command::new("mount").args(["-t", "ramfs", "none"]).arg(disk.0.path()));
        let (a, b) = (Side::new(form), Side::new_in(form, disk.0.path()));
        act(&a.root(), &[Do::Write("f", "1"), Do::Xattr("f", "x"), Do::MakeDir("d"), Do::Write("d/g", "g")]);
        for text in ["1", "2"] {
            let (code, report) = a.sync(&b, &[]);
            assert_eq!((code, &report["skipped"][0]["path"]), (1, &"f".into()), "{form:?}: {report}");
            assert_eq!(fs::read_to_string(b.root().join("f")).unwrap(), text, "{form:?}");
            act(&a.root(), &[Do::Write("f", "2")]);
            act(&b.root(), &[Do::Append("d/g", text)]);
        }
        // A missing xattr is no deletion.
        assert!(manifest(&a.root())["f"].contains(" x "), "{form:?}");
        act(&a.root(), &[Do::Remove("f")]);
        assert_eq!(a.sync(&b, &[]).0, 0, "{form:?}");
        assert_eq!(manifest(&a.root()), manifest(&b.root()), "{form:?}");
        assert_eq!(fs::read_to_string(a.root().join("d/g")).unwrap(), "g12", "{form:?}");
    }
}

/// What there are inodes for on the other side arrives, the rest is named; later all of it comes.
#[test]
fn a_peer_without_inodes() {
    if !root_and_fuse_available() {
        return;
    }
    FORMS.into_iter().for_each(|form| {
        let image = tempfile::NamedTempFile::new().unwrap();
        let disk = disk_of_ext4(image.path());
        without_inodes_in(form, disk.0.path());
    });
}

fn without_inodes_in(form: Form, disk: &Path) {
    let (a, b) = (Side::new(form), Side::new_in(form, disk));
    let others = disk.join("others");
    fs::create_dir(&others).unwrap();
    let free = || rustix::fs::statvfs(disk).unwrap().f_favail;
    for n in 0..free().saturating_sub(250) {
        fs::write(others.join(n.to_string()), "").unwrap();
    }
    for n in 0..150 {
        let dir = a.root().join(format!("d{}", n / 3));
        let _ = fs::create_dir(&dir);
        fs::write(dir.join(format!("f{n}")), n.to_string()).unwrap();
        fs::write(dir.join(format!("empty{n}")), "").unwrap();
    }
    for _ in 0..2 {
        let (code, report) = a.sync(&b, &[]);
        assert_eq!(code, 1, "{form:?}: {report}");
        let skipped = report["skipped"].as_array().unwrap();
        // What is staged for the next sync does not count.
        let count = |side: &Side| {
            manifest(&side.root()).keys().filter(|path| !path.starts_with(".dedupfs-sync")).count()
        };
        let (here, there) = (count(&a), count(&b));
        assert_eq!(there + skipped.len(), here, "{form:?}: {report}");
        assert!(there > 50 && skipped[0]["reason"].as_str().unwrap().contains("inode"), "{form:?}: {report}");
        assert!(!a.is_left_mounted() && !b.is_left_mounted(), "{form:?}");
    }
    fs::remove_dir_all(&others).unwrap();
    assert_eq!(a.sync(&b, &[]).0, 0, "{form:?}");
    assert_eq!(manifest(&a.root()), manifest(&b.root()), "{form:?}");
}

/// `rm old; echo > f`: the kernel remembers the removed file for a moment, and `f` cannot have its number in the mount, although it
/// has it below. A sync knows it by the number that it has later.
#[test]
fn a_rename_of_a_file_that_got_the_number_of_a_removed_one() {
    as_both(|_| [Form::OverItself, Form::Elsewhere].into_iter().for_each(reused_number_in));
}

fn reused_number_in(form: Form) {
    let (a, b) = (Side::new(form), Side::new(form));
    let f = a.root().join("f");
    let number = || f.metadata().unwrap().ino();
    let had_another = (0..2_000).find(|_| {
        act(&a.root(), &[Do::Write("old", "old"), Do::Remove("old"), Do::Write("f", "old")]);
        let another = number() >= 1 << 62;
        if !another {
            act(&a.root(), &[Do::Remove("f")]);
        }
        another
    });
    assert!(had_another.is_some(), "{form:?}: no number was used again in time");
    assert_eq!(a.sync(&b, &[]).0, 0);
    a.mount.remount();
    assert!(number() < 1 << 62, "{form:?}");
    act(&a.root(), &[Do::Rename("f", "g")]);
    act(&b.root(), &[Do::Append("f", " and new")]);
    assert_eq!(a.sync(&b, &[]).0, 0);
    for side in [&a, &b] {
        let all = manifest(&side.root());
        assert_eq!(all.keys().collect::<Vec<_>>(), ["g"], "{form:?}");
        assert_eq!(fs::read_to_string(side.root().join("g")).unwrap(), "old and new", "{form:?}");
    }
}
