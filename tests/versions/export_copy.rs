//! `dedupctl export --to` and `--tar`: a copy with all that `cp -a` keeps, and an archive from which tar makes one.
//!
//! Seen to fail: with zeros written as they are; with a half-written file left.
#![allow(clippy::unwrap_used, reason = "a test stops at the first error")]

use crate::common::session::{dedupctl, fast_dir, files_below};
use crate::common::twins::{Entry, assert_same, look, make, set_mtime};
use crate::common::{As, Mount, as_both, fuse_available, is_root, noise, prose, succeed, text, xattr};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

fn ok(dir: &Path, args: &[&str]) -> serde_json::Value {
    let output = dedupctl(&[args, &["--json"]].concat(), dir);
    assert!(output.status.success(), "{args:?}: {}", text(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn refused(dir: &Path, args: &[&str]) -> String {
    let output = dedupctl(args, dir);
    assert_eq!(output.status.code(), Some(2), "{args:?}: {}", text(&output));
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Extracts an archive as GNU tar does it.
fn extract(archive: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    let mut tar = Command::new("tar");
    tar.args(["--xattrs", "--xattrs-include=*", "--acls", "--numeric-owner", "-xpf"])
        .arg(archive)
        .arg("-C")
        .arg(to);
    let output = succeed(&mut tar);
    let said = String::from_utf8_lossy(&output.stderr);
    // It finds times before 1970 odd, and sets them.
    assert!(said.lines().all(|line| line.contains("implausibly old")), "{}", text(&output));
}

/// Everything a tree has but what an archive does not.
fn without_root(mut tree: BTreeMap<PathBuf, Entry>) -> BTreeMap<PathBuf, Entry> {
    tree.remove(Path::new(""));
    tree
}

#[test]
fn a_copy_is_a_twin_and_the_source_is_as_it_was() {
    let (dir, place) = (fast_dir(), fast_dir());
    make(dir.path());
    let before = without_root(look(dir.path()));
    ok(dir.path(), &["init", "."]);
    ok(dir.path(), &["scan", ".", "--offline", "--yes"]);
    set_mtime(dir.path(), 1_200_000_000, 77);
    let bare = look(dir.path());
    let at = |name: &str| place.path().join(name).to_str().unwrap().to_owned();
    let report = ok(dir.path(), &["export", "--to", &at("copy"), "--verify"]);
    assert_eq!(report["failed"], serde_json::json!([]));
    assert_eq!(report["verified"], report["files"]);
    let copy = look(Path::new(&at("copy")));
    assert_eq!(copy[Path::new("")].mtime, (1_200_000_000, 77));
    assert_same(&before, &without_root(copy), true);
    // Without an index too, and to an archive.
    fs::remove_dir_all(dir.path().join(".dedupfs/index")).unwrap();
    ok(dir.path(), &["export", "--tar", &at("archive.tar")]);
    assert_same(&bare, &look(dir.path()), true);
    if Command::new("tar").arg("--version").output().is_ok() && is_root() {
        extract(Path::new(&at("archive.tar")), Path::new(&at("extracted")));
        let extracted = look(Path::new(&at("extracted")));
        assert_eq!(extracted[Path::new("")].mtime, (1_200_000_000, 77));
        assert_same(&before, &without_root(extracted), true);
    }
    // A part, and one file.
    ok(dir.path(), &["export", "odd", "--to", &at("odd")]);
    assert_eq!(Path::new(&at("odd")).read_dir().unwrap().count(), 6);
    ok(dir.path(), &["export", "plain/text", "--to", &at("one")]);
    assert!(fs::read(place.path().join("one/text")).unwrap() == prose(2, 300_000));
}

#[test]
fn python_reads_the_archive_too() {
    let (dir, place) = (fast_dir(), fast_dir());
    make(dir.path());
    ok(dir.path(), &["init", "."]);
    ok(dir.path(), &["scan", ".", "--offline", "--yes"]);
    let archive = place.path().join("a.tar");
    ok(dir.path(), &["export", "--tar", archive.to_str().unwrap()]);
    let script = "import sys, tarfile, hashlib, os\n\
        t = tarfile.open(sys.argv[1])\n\
        for m in t.getmembers():\n\
        \x20   path = os.path.join(sys.argv[2], m.name)\n\
        \x20   assert os.path.lexists(path), path\n\
        \x20   if m.isreg():\n\
        \x20       data = t.extractfile(m).read()\n\
        \x20       print(hashlib.sha256(data).hexdigest(), os.fsencode(m.name).hex(), m.mtime)\n";
    let output = succeed(Command::new("python3").args(["-c", script]).arg(&archive).arg(dir.path()));
    ok(dir.path(), &["export"]);
    let listed = String::from_utf8(output.stdout).unwrap();
    // Links are not listed again.
    assert!(listed.lines().count() >= files_below(&dir.path().join("many")).len() + 15, "{listed}");
    let sums =
        Command::new("sha256sum").args(["-z"]).args(files_below(&dir.path().join("many"))).output().unwrap();
    for line in String::from_utf8(sums.stdout).unwrap().split('\0').filter(|line| !line.is_empty()) {
        assert!(listed.contains(&line[..64]), "{line}");
    }
}

#[test]
fn only_an_empty_place_or_an_unfinished_copy() {
    let (dir, place) = (fast_dir(), fast_dir());
    for i in 0..30u64 {
        fs::write(dir.path().join(format!("f{i}")), noise(i, 50_000)).unwrap();
    }
    ok(dir.path(), &["init", "."]);
    ok(dir.path(), &["scan", ".", "--offline", "--yes"]);
    let to = place.path().join("to");
    let target = to.to_str().unwrap();
    fs::create_dir(&to).unwrap();
    fs::write(to.join("f3"), "somebody's").unwrap();
    assert!(refused(dir.path(), &["export", "--to", target]).contains("found something in it"));
    assert!(refused(dir.path(), &["export", "--to", target, "--resume"]).contains("interrupted"));
    assert_eq!(fs::read(to.join("f3")).unwrap(), b"somebody's");
    fs::remove_file(to.join("f3")).unwrap();
    for inside in [".", "sub", ".dedupfs/copy"] {
        assert!(refused(dir.path(), &["export", "--to", inside]).contains("apart from"), "{inside}");
    }
    assert!(refused(dir.path(), &["export", "--tar", "archive"]).contains("apart from"));
    assert!(refused(dir.path(), &["export", "--tar", "-", "--json"]).contains("both want stdout"));
    refused(dir.path(), &["export", "--to", target, "--remove-store"]);
    refused(dir.path(), &["export", "--resume"]);
    // Killed on the way: some files are there, one is cut short, one is somebody's idea of it.
    ok(dir.path(), &["export", "--to", target]);
    assert_eq!(to.read_dir().unwrap().count(), 30);
    fs::write(to.join(".dedupfs-export-unfinished"), "").unwrap();
    let untouched = fs::metadata(to.join("f9")).unwrap();
    (20..30).for_each(|i| fs::remove_file(to.join(format!("f{i}"))).unwrap());
    File::options().write(true).open(to.join("f5")).unwrap().set_len(100).unwrap();
    assert!(refused(dir.path(), &["export", "--to", target]).contains("found something in it"));
    ok(dir.path(), &["export", "--to", target, "--resume", "--verify"]);
    ok(dir.path(), &["export"]);
    assert_same(&without_root(look(dir.path())), &without_root(look(&to)), true);
    use std::os::unix::fs::MetadataExt;
    assert_eq!(fs::metadata(to.join("f9")).unwrap().ino(), untouched.ino(), "what was done is kept");
}

#[test]
fn a_damaged_file_is_named_and_in_no_copy() {
    let (dir, place) = (fast_dir(), fast_dir());
    for i in 0..5u64 {
        fs::write(dir.path().join(format!("f{i}")), noise(i, 50_000)).unwrap();
    }
    // Longer than what is kept in memory.
    fs::write(dir.path().join("long"), noise(90, 9 << 20)).unwrap();
    ok(dir.path(), &["init", "."]);
    ok(dir.path(), &["scan", ".", "--offline", "--yes"]);
    for (seed, len, at) in [(2, 50_000, 30_000), (90, 9 << 20, 8 << 20)] {
        let bad = &noise(seed, len)[at..at + 64];
        let packs = files_below(&dir.path().join(".dedupfs/packs"));
        let found = packs.iter().find_map(|pack| {
            let bytes = fs::read(pack).unwrap();
            Some((pack, bytes.windows(64).position(|window| window == bad)?))
        });
        let (pack, at) = found.unwrap();
        File::options().write(true).open(pack).unwrap().write_all_at(b"XXXX", at as u64).unwrap();
    }
    for (flag, name) in [("--to", "copy"), ("--tar", "archive")] {
        let target = place.path().join(name);
        let output = dedupctl(&["export", "--json", flag, target.to_str().unwrap()], dir.path());
        assert_eq!(output.status.code(), Some(1), "{}", text(&output));
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let names: Vec<_> =
            report["failed"].as_array().unwrap().iter().map(|one| one["path"].clone()).collect();
        assert_eq!(names, ["f2", "long"]);
        assert_eq!(report["files"], 4);
    }
    assert!(!place.path().join("copy/f2").exists() && !place.path().join("copy/long").exists());
    assert!(fs::read(place.path().join("copy/f3")).unwrap() == noise(3, 50_000));
    let listed = succeed(Command::new("tar").arg("-tf").arg(place.path().join("archive")));
    assert_eq!(String::from_utf8(listed.stdout).unwrap(), "./\n./f0\n./f1\n./f3\n./f4\n");
}

/// From a mount, as any program reads it; to a stream.
#[test]
fn a_mount_is_copied_too() {
    as_both(|user| {
        let mount = Mount::prepare(user);
        mount.init("hybrid_min = \"1MiB\"");
        mount.start();
        make(&mount.mnt());
        fs::write(mount.at("hybrid"), noise(50, 2_000_000)).unwrap();
        mount.settle();
        let hybrid = File::options().write(true).open(mount.at("hybrid")).unwrap();
        hybrid.write_all_at(b"changed", 1_000_000).unwrap();
        let copy = mount.root.path().join("copy");
        let report = mount.ctl(&["export", "--verify", "--to", copy.to_str().unwrap()]);
        assert_eq!(report["verified"], report["files"], "{report}");
        let before = look(&mount.mnt());
        assert_same(&without_root(before.clone()), &without_root(look(&copy)), false);
        assert!(mount.is_stub("plain/text"), "the source is as it was");
        let archive = mount.root.path().join("archive");
        let mut command = mount.dedupctl();
        command.args(["export", "--tar", "-"]).arg(mount.mnt()).stdout(File::create(&archive).unwrap());
        assert!(command.stdin(Stdio::null()).status().unwrap().success());
        if user == As::Root {
            let extracted = mount.root.path().join("extracted");
            extract(&archive, &extracted);
            assert_same(&without_root(before), &without_root(look(&extracted)), false);
        }
        drop(hybrid);
        assert!(xattr(&mount.backing().join("plain/text"), "user.dedupfs").is_some());
    });
}

#[test]
fn a_full_target_is_an_error_and_leaves_no_half_file() {
    if !is_root() || !fuse_available() {
        return;
    }
    let (dir, place) = (fast_dir(), fast_dir());
    fs::write(dir.path().join("a"), noise(1, 200_000)).unwrap();
    fs::write(dir.path().join("b"), noise(2, 3_000_000)).unwrap();
    ok(dir.path(), &["init", "."]);
    ok(dir.path(), &["scan", ".", "--offline", "--yes"]);
    succeed(Command::new("mount").args(["-t", "tmpfs", "-o", "size=1m", "none"]).arg(place.path()));
    let to = place.path().join("to");
    let said = refused(dir.path(), &["export", "--to", to.to_str().unwrap()]);
    let forced = dedupctl(&["export", "--json", "--force", "--to", to.to_str().unwrap()], dir.path());
    let archive = refused(dir.path(), &["export", "--tar", place.path().join("tar").to_str().unwrap()]);
    let there = (to.join("a").exists(), to.join("b").exists(), place.path().join("tar").exists());
    succeed(Command::new("umount").arg(place.path()));
    assert!(said.contains("nothing was copied"), "{said}");
    assert_eq!(forced.status.code(), Some(1), "{}", text(&forced));
    assert!(archive.contains("not whole"), "{archive}");
    assert_eq!(there, (true, false, false));
}
