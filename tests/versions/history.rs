//! Versions of files: listed, followed through renames, brought back, given up by the rules.
#![allow(clippy::unwrap_used, reason = "a test stops at the first error")]

use crate::common::{As, Mount, as_both, fuse_available, noise, prose, text};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

fn put(mount: &Mount, name: &str, bytes: &[u8]) {
    fs::write(mount.at(name), bytes).unwrap();
    mount.settle();
}

fn numbers(log: &Value) -> Vec<u64> {
    log["versions"].as_array().unwrap().iter().map(|row| row["n"].as_u64().unwrap()).collect()
}

fn sizes(log: &Value) -> Vec<u64> {
    log["versions"].as_array().unwrap().iter().map(|row| row["size"].as_u64().unwrap()).collect()
}

/// Runs `dedupctl` where it may fail.
fn fails(mount: &Mount, args: &[&str]) -> String {
    let output = mount.dedupctl().args(args).current_dir(mount.mnt()).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{args:?}: {}", text(&output));
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn pack_bytes(mount: &Mount) -> u64 {
    let packs = fs::read_dir(mount.backing().join(".dedupfs/packs")).unwrap();
    packs.map(|pack| pack.unwrap().metadata().unwrap().len()).sum()
}

#[test]
fn versions_are_listed_and_brought_back() {
    as_both(|user| {
        let mount = Mount::new(user);
        let versions: Vec<Vec<u8>> = (0..3).map(|i| prose(i, 20_000 + 5_000 * i as usize)).collect();
        for bytes in &versions {
            put(&mount, "file", bytes);
        }
        fs::set_permissions(mount.at("file"), fs::Permissions::from_mode(0o640)).unwrap();
        let log = mount.ctl(&["log", "file"]);
        assert_eq!(numbers(&log), [1, 2, 3], "{log}");
        assert_eq!(sizes(&log), [20_000, 25_000, 30_000]);
        let row = &log["versions"][0];
        assert!(row["time"].as_str().unwrap().ends_with('Z') && row["recipe"].as_str().unwrap().len() == 32);
        assert!(!row["machine"].as_str().unwrap().is_empty());

        let out = mount.root.path().join("home/out");
        mount.ctl(&["restore", "file@1", "-o", out.to_str().unwrap()]);
        assert!(fs::read(&out).unwrap() == versions[0]);
        assert!(fails(&mount, &["restore", "file@1", "-o", out.to_str().unwrap()]).contains("exists"));

        // In place: read through pages that the kernel may have, then by a program that has the file open.
        assert!(fs::read(mount.at("file")).unwrap() == versions[2]);
        mount.ctl(&["restore", "file@2"]);
        assert!(fs::read(mount.at("file")).unwrap() == versions[1]);
        assert!(mount.is_stub("file"));
        let log = mount.ctl(&["log", "file"]);
        assert_eq!(sizes(&log), [20_000, 25_000, 30_000, 25_000], "{log}");
        mount.ctl(&["restore", "file@3"]);
        assert!(fs::read(mount.at("file")).unwrap() == versions[2]);

        assert!(fails(&mount, &["restore", "file@99"]).contains("there is no version 99"));
        assert!(fails(&mount, &["restore", "nothing@1"]).contains("there is no version 1"));
        let names: Vec<_> =
            fs::read_dir(mount.mnt()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["file"], "nothing else is left behind");
    });
}

#[test]
fn what_is_not_a_version_yet_becomes_one_before_it_is_replaced() {
    if !fuse_available() {
        return;
    }
    let mount = Mount::prepare(As::Root);
    // One that no commit makes a stub of.
    mount.init("[[policy]]\nmatch = \"plain\"\nmin_size = \"1GiB\"");
    mount.start();
    let (old, new) = (prose(1, 9_000), prose(2, 9_500));
    put(&mount, "file", &old);
    mount.ctl(&["log", "file"]);
    fs::rename(mount.at("file"), mount.at("plain")).unwrap();
    fs::write(mount.at("plain"), &new).unwrap();
    mount.settle();
    assert!(!mount.is_stub("plain"));
    mount.ctl(&["restore", "plain@1"]);
    assert!(fs::read(mount.at("plain")).unwrap() == old);
    let log = mount.ctl(&["log", "plain"]);
    assert_eq!(sizes(&log), [9_000, 9_500, 9_000], "{log}");
    mount.ctl(&["restore", "plain@2"]);
    assert!(fs::read(mount.at("plain")).unwrap() == new);
    // While somebody writes to it nothing is put in its place.
    let open = fs::OpenOptions::new().append(true).open(mount.at("plain")).unwrap();
    assert!(fails(&mount, &["restore", "plain@1"]).contains("open for writing"));
    drop(open);
}

#[test]
fn a_file_is_followed_through_renames_and_removal() {
    if !fuse_available() {
        return;
    }
    let mount = Mount::new(As::Root);
    fs::create_dir_all(mount.at("a/b")).unwrap();
    put(&mount, "a/b/one", &prose(1, 5_000));
    put(&mount, "a/b/one", &prose(2, 6_000));
    fs::rename(mount.at("a/b/one"), mount.at("a/b/two")).unwrap();
    put(&mount, "a/b/two", &prose(3, 7_000));
    fs::rename(mount.at("a"), mount.at("z")).unwrap();
    put(&mount, "z/b/two", &prose(4, 8_000));
    let log = mount.ctl(&["log", "z/b/two"]);
    assert_eq!(sizes(&log), [5_000, 6_000, 7_000, 8_000], "{log}");
    assert_eq!(log["versions"][0]["path"], "a/b/one");

    // As editors save: another file, renamed over it.
    for i in 0..3u64 {
        fs::write(mount.at("z/b/.tmp"), prose(10 + i, 9_000 + i as usize)).unwrap();
        if i == 1 {
            mount.settle();
        }
        fs::rename(mount.at("z/b/.tmp"), mount.at("z/b/two")).unwrap();
        mount.settle();
    }
    let log = mount.ctl(&["log", "z/b/two"]);
    assert_eq!(sizes(&log), [5_000, 6_000, 7_000, 8_000, 9_000, 9_001, 9_002], "{log}");

    // What came by two renames is in the order of both, whatever was written first.
    put(&mount, "x", &prose(40, 1_000));
    put(&mount, "y", &prose(41, 2_000));
    fs::rename(mount.at("x"), mount.at("y")).unwrap();
    put(&mount, "y", &prose(42, 3_000));
    fs::rename(mount.at("y"), mount.at("moved")).unwrap();
    assert_eq!(sizes(&mount.ctl(&["log", "moved"])), [2_000, 1_000, 3_000]);

    // Another file that had the first name has nothing to do with it.
    fs::create_dir_all(mount.at("a/b")).unwrap();
    put(&mount, "a/b/one", &prose(20, 100_000));
    assert_eq!(sizes(&mount.ctl(&["log", "z/b/two"])).len(), 7);

    // Two files that change places take their versions along.
    put(&mount, "left", &prose(30, 1_000));
    put(&mount, "right", &prose(31, 2_000));
    let flags = rustix::fs::RenameFlags::EXCHANGE;
    let cwd = rustix::fs::CWD;
    rustix::fs::renameat_with(cwd, mount.at("left"), cwd, mount.at("right"), flags).unwrap();
    put(&mount, "left", &prose(32, 3_000));
    let log = sizes(&mount.ctl(&["log", "left"]));
    assert!(log.contains(&2_000) && log.last() == Some(&3_000), "{log:?}");

    // Gone, with its directory: it can be had still.
    fs::remove_dir_all(mount.at("z")).unwrap();
    let log = mount.ctl(&["log", "z/b/two"]);
    assert_eq!(sizes(&log).last(), Some(&9_002), "{log}");
    mount.ctl(&["restore", "z/b/two@7"]);
    assert!(fs::read(mount.at("z/b/two")).unwrap() == prose(12, 9_002));
    mount.ctl(&["restore", "z/b/two@1"]);
    assert!(fs::read(mount.at("z/b/two")).unwrap() == prose(1, 5_000));
    // The last that there was.
    fs::remove_file(mount.at("z/b/two")).unwrap();
    mount.ctl(&["restore", "z/b/two"]);
    assert!(fs::read(mount.at("z/b/two")).unwrap() == prose(1, 5_000));
}

/// Each name of a file has all of its versions, also one that is gone, and after a rename of another.
#[test]
fn versions_are_under_every_name_of_a_file() {
    if !fuse_available() {
        return;
    }
    let mount = Mount::new(As::Root);
    fs::create_dir(mount.at("dir")).unwrap();
    put(&mount, "one", &prose(1, 5_000));
    fs::hard_link(mount.at("one"), mount.at("dir/two")).unwrap();
    put(&mount, "dir/two", &prose(2, 6_000));
    for name in ["one", "dir/two"] {
        assert_eq!(sizes(&mount.ctl(&["log", name])), [5_000, 6_000], "{name}");
    }
    fs::hard_link(mount.at("one"), mount.at("dir/three")).unwrap();
    fs::rename(mount.at("dir/three"), mount.at("three")).unwrap();
    put(&mount, "three", &prose(3, 7_000));
    fs::remove_file(mount.at("one")).unwrap();
    put(&mount, "three", &prose(4, 8_000));
    for name in ["dir/two", "three"] {
        assert_eq!(sizes(&mount.ctl(&["log", name])), [5_000, 6_000, 7_000, 8_000], "{name}");
    }
    fs::remove_file(mount.at("dir/two")).unwrap();
    put(&mount, "three", &prose(5, 9_000));
    assert_eq!(sizes(&mount.ctl(&["log", "one"])), [5_000, 6_000, 7_000], "as long as it was there");
    assert_eq!(sizes(&mount.ctl(&["log", "dir/two"])), [5_000, 6_000, 7_000, 8_000]);
    assert_eq!(sizes(&mount.ctl(&["log", "three"])), [5_000, 6_000, 7_000, 8_000, 9_000]);
    // Another file at a name that is gone is not what was there.
    put(&mount, "one", &prose(6, 1_000));
    assert_eq!(sizes(&mount.ctl(&["log", "three"])).len(), 5);
    mount.ctl(&["restore", "dir/two@2"]);
    assert!(fs::read(mount.at("dir/two")).unwrap() == prose(2, 6_000));
    // A scan has nothing to add.
    mount.ctl(&["scan"]);
    assert_eq!(sizes(&mount.ctl(&["log", "three"])).len(), 5);
}

/// A name with an `@` that exists wins; versions are compared by their bytes.
#[test]
fn versions_are_compared() {
    if !fuse_available() {
        return;
    }
    let mount = Mount::new(As::Root);
    let first = noise(1, 40_000);
    let second = [&noise(2, 1_000)[..], &first[..30_000], &noise(3, 500)].concat();
    put(&mount, "data", &first);
    put(&mount, "data", &second);
    let diff = mount.ctl(&["diff", "data@1", "data@2"]);
    assert_eq!(diff["bytes_common"], 30_000, "{diff}");
    assert_eq!(diff["regions"][0]["a_offset"], 0);
    assert_eq!(diff["regions"][0]["b_offset"], 1_000);
    assert_eq!(diff["regions"][0]["length"], 30_000);
    assert_eq!(mount.ctl(&["diff", "data@2", "data"])["identical"], true);
    let outside = mount.root.path().join("home/outside");
    fs::write(&outside, &first).unwrap();
    assert_eq!(mount.ctl(&["diff", "data@1", outside.to_str().unwrap()])["identical"], true);
    put(&mount, "data@1", &noise(9, 9_000));
    let diff = mount.ctl(&["diff", "data@1", "data@2"]);
    assert_eq!(diff["bytes_common"], 0, "the file of that name is meant: {diff}");
    let log = mount.ctl(&["log", "data@1"]);
    assert_eq!(sizes(&log), [9_000]);
}

/// Everything is in the packs: without an index, after a kill, without a daemon.
#[test]
fn versions_outlive_the_index_a_kill_and_the_daemon() {
    if !fuse_available() {
        return;
    }
    let mount = Mount::new(As::Root);
    for i in 0..4u64 {
        put(&mount, "file", &prose(i, 10_000 + i as usize));
    }
    fs::rename(mount.at("file"), mount.at("moved")).unwrap();
    put(&mount, "moved", &prose(5, 10_004));
    let before = mount.ctl(&["log", "moved"]);
    assert_eq!(sizes(&before).len(), 5);
    mount.kill();
    mount.start();
    assert_eq!(mount.ctl(&["log", "moved"]), before, "after a kill");
    mount.unmount();
    fs::remove_dir_all(mount.backing().join(".dedupfs/index")).unwrap();
    let direct = |args: &[&str]| {
        let output = mount.dedupctl().args(args).arg("--json").current_dir(mount.dir()).output().unwrap();
        assert!(output.status.success(), "{}", text(&output));
        serde_json::from_slice::<Value>(&output.stdout).unwrap()
    };
    assert_eq!(direct(&["log", "moved"]), before, "without index and daemon");
    direct(&["restore", "moved@1"]);
    assert_eq!(mount.below("moved").0, 10_000, "only a mount makes stubs");
    mount.start();
    assert!(fs::read(mount.at("moved")).unwrap() == prose(0, 10_000));
    assert_eq!(sizes(&mount.ctl(&["log", "moved"])).len(), 6);
    assert_eq!(mount.ctl(&["check", "--deep"])["damaged"], serde_json::json!([]));
}

/// Stubs that were there before there was a history have a version after the first mount that keeps one.
#[test]
fn what_was_there_before_has_a_version() {
    if !fuse_available() {
        return;
    }
    let mount = Mount::prepare(As::Root);
    mount.init("[history]\nkeep = \"none\"");
    mount.start();
    put(&mount, "file", &prose(1, 10_000));
    assert_eq!(sizes(&mount.ctl(&["log", "file"])), [0u64; 0]);
    mount.unmount();
    let config = mount.backing().join(".dedupfs/config.toml");
    let text = fs::read_to_string(&config).unwrap().replace("\"none\"", "\"rules\"");
    fs::write(&config, text).unwrap();
    mount.start();
    mount.ctl(&["scan"]);
    assert_eq!(sizes(&mount.ctl(&["log", "file"])), [10_000]);
    put(&mount, "file", &prose(2, 20_000));
    mount.ctl(&["restore", "file@1"]);
    assert!(fs::read(mount.at("file")).unwrap() == prose(1, 10_000));
}

#[test]
fn a_collection_leaves_what_is_listed() {
    if !fuse_available() {
        return;
    }
    let mount = Mount::new(As::Root);
    let len = 300_000;
    for i in 0..20u64 {
        fs::write(mount.at(&format!("f{i}")), noise(i, len)).unwrap();
    }
    mount.settle();
    for i in 0..20u64 {
        match i % 3 {
            0 => fs::remove_file(mount.at(&format!("f{i}"))).unwrap(),
            1 => fs::write(mount.at(&format!("f{i}")), noise(100 + i, len)).unwrap(),
            _ => fs::rename(mount.at(&format!("f{i}")), mount.at(&format!("g{i}"))).unwrap(),
        }
    }
    mount.settle();
    let done = mount.ctl(&["gc"]);
    // 7 removed, 7 overwritten.
    let kept = done["kept_for_history_bytes"].as_u64().unwrap();
    assert!((14 * len as u64..15 * len as u64).contains(&kept), "{done}");
    assert_eq!((&done["versions"], &done["versions_dropped"]), (&27.into(), &0.into()), "{done}");
    for i in 0..20u64 {
        let name = if i % 3 == 2 { format!("g{i}") } else { format!("f{i}") };
        let out = mount.root.path().join(format!("home/{name}"));
        mount.ctl(&["restore", &format!("{name}@1"), "-o", out.to_str().unwrap()]);
        assert!(fs::read(&out).unwrap() == noise(i, len), "{name}");
    }
    // Who wants the bytes back at once has them back.
    mount.unmount();
    let full = pack_bytes(&mount);
    let config = mount.backing().join(".dedupfs/config.toml");
    let text = fs::read_to_string(&config).unwrap() + "\n[history]\nkeep = \"none\"\n";
    fs::write(&config, text).unwrap();
    mount.start();
    let plan = mount.ctl(&["gc", "--dry-run"]);
    assert_eq!(plan["versions_dropped"], 27, "{plan}");
    assert_eq!(numbers(&mount.ctl(&["log", "f0"])), [1], "a dry run gives nothing up");
    let done = mount.ctl(&["gc"]);
    assert!(done["reclaimed_bytes"].as_u64().unwrap() > 13 * len as u64, "{done}");
    assert!(pack_bytes(&mount) < full - 13 * len as u64);
    assert_eq!(numbers(&mount.ctl(&["log", "f0"])), [0u64; 0]);
    assert!(fails(&mount, &["restore", "f0@1"]).contains("given up by the rules"));
    mount.remount();
    assert!(fails(&mount, &["restore", "f0@1"]).contains("given up by the rules"));
    for i in 0..20u64 {
        match i % 3 {
            0 => assert!(!Path::new(&mount.at(&format!("f{i}"))).exists()),
            1 => assert!(fs::read(mount.at(&format!("f{i}"))).unwrap() == noise(100 + i, len)),
            _ => assert!(fs::read(mount.at(&format!("g{i}"))).unwrap() == noise(i, len)),
        }
    }
    assert_eq!(mount.ctl(&["check", "--deep"])["damaged"], serde_json::json!([]));
}

/// What the rules give up is told of until the next collection; then it is gone from the log, and numbers stay.
#[test]
fn what_was_given_up_goes_out_of_the_log() {
    if !fuse_available() {
        return;
    }
    let mount = Mount::prepare(As::Root);
    mount.init("[history]\nall = \"2s\"\nhourly = 0\ndaily = 0\nweekly = 0\nmonthly = 0");
    mount.start();
    put(&mount, "gone", &noise(100, 50_000));
    fs::remove_file(mount.at("gone")).unwrap();
    for i in 0..6u64 {
        put(&mount, "file", &noise(i, 50_000 + i as usize));
    }
    let wait = || std::thread::sleep(std::time::Duration::from_millis(3_100));
    wait();
    put(&mount, "file", &noise(7, 60_000));
    let done = mount.ctl(&["gc"]);
    assert_eq!((&done["versions"], &done["versions_dropped"]), (&2.into(), &6.into()), "{done}");
    assert_eq!(numbers(&mount.ctl(&["log", "file"])), [6, 7], "it was there until a moment ago");
    assert_eq!(mount.ctl(&["log", "file"])["given_up"], 5);
    for name in ["gone@1", "file@5", "file@2"] {
        assert!(fails(&mount, &["restore", name]).contains("given up by the rules"), "{name}");
    }
    mount.ctl(&["gc"]);
    assert!(fails(&mount, &["restore", "gone@1"]).contains("there is no version 1"), "nothing tells of it");
    let check = |numbered: &[u64]| {
        assert_eq!(numbers(&mount.ctl(&["log", "file"])), numbered);
        for name in ["file@5", "file@2"] {
            assert!(fails(&mount, &["restore", name]).contains("given up by the rules"), "{name}");
        }
    };
    check(&[6, 7]);
    put(&mount, "file", &noise(8, 70_000));
    check(&[6, 7, 8]);
    mount.kill();
    mount.start();
    check(&[6, 7, 8]);
    mount.unmount();
    fs::remove_dir_all(mount.backing().join(".dedupfs/index")).unwrap();
    mount.start();
    check(&[6, 7, 8]);
    wait();
    mount.ctl(&["gc"]);
    mount.ctl(&["gc"]);
    check(&[8]);
    assert_eq!(mount.ctl(&["check", "--deep"])["damaged"], serde_json::json!([]));
}

#[test]
fn rules_leave_files_out() {
    if !fuse_available() {
        return;
    }
    let mount = Mount::prepare(As::Root);
    mount.init("[[policy]]\nmatch = \"target/\"\nhistory = \"off\"");
    mount.start();
    fs::create_dir(mount.at("target")).unwrap();
    for name in ["target/built", "source"] {
        put(&mount, name, &prose(1, 10_000));
        put(&mount, name, &prose(2, 12_000));
    }
    assert_eq!(sizes(&mount.ctl(&["log", "source"])), [10_000, 12_000]);
    assert_eq!(sizes(&mount.ctl(&["log", "target/built"])), [0u64; 0]);
    assert_eq!(fs::metadata(mount.at("target/built")).unwrap().size(), 12_000);
}

#[test]
fn a_copy_without_xattrs_is_put_right() {
    if !fuse_available() {
        return;
    }
    let mount = Mount::new(As::Root);
    fs::create_dir(mount.at("dir")).unwrap();
    for i in 0..5u64 {
        fs::write(mount.at(&format!("dir/f{i}")), prose(i, 10_000 + i as usize)).unwrap();
    }
    mount.settle();
    fs::rename(mount.at("dir/f1"), mount.at("dir/moved")).unwrap();
    // Really empty by what came later, with the time of before.
    let time = mount.at("dir/f2").metadata().unwrap().modified().unwrap();
    fs::File::create(mount.at("dir/f2")).unwrap().set_modified(time).unwrap();
    put(&mount, "dir/f1", &prose(7, 20_000));
    put(&mount, "dir/moved", &prose(8, 30_000));
    mount.unmount();
    let copy = Mount::prepare(As::Root);
    let from = format!("{}/.", mount.dir().display());
    let mut cp = copy.command("cp");
    crate::common::succeed(cp.args(["-r", "--preserve=mode,ownership,timestamps", &from]).arg(copy.dir()));
    assert!(crate::common::xattr(&copy.backing().join("dir/f0"), "user.dedupfs").is_none());
    let ctl = |args: &[&str]| {
        let output = copy.dedupctl().args(args).arg("--json").current_dir(copy.dir()).output().unwrap();
        assert!(output.status.code().is_some_and(|code| code < 2), "{}", text(&output));
        serde_json::from_slice::<Value>(&output.stdout).unwrap()
    };
    let plan = ctl(&["check", "--repair", "--dry-run"]);
    assert_eq!(copy.below("dir/f0").0, 0, "{plan}");
    let done = ctl(&["check", "--repair"]);
    let repaired = done["plan"].as_array().unwrap().iter().filter(|row| row["done"] == true).count();
    assert_eq!(repaired, 5, "f0, f1, f3, f4, moved: {done}");
    assert!(done.to_string().contains("the versions of its path"), "{done}");
    copy.start();
    for (name, bytes) in [
        ("f0", prose(0, 10_000)),
        ("f1", prose(7, 20_000)),
        ("f2", Vec::new()),
        ("f3", prose(3, 10_003)),
        ("f4", prose(4, 10_004)),
        ("moved", prose(8, 30_000)),
    ] {
        assert!(fs::read(copy.at(&format!("dir/{name}"))).unwrap() == bytes, "{name}");
    }
}

/// What removing something would free, and then does.
#[test]
fn what_would_be_freed_is_what_is() {
    if !fuse_available() {
        return;
    }
    let mount = Mount::without_history(As::Root);
    let len = 200_000;
    fs::create_dir(mount.at("dir")).unwrap();
    for i in 0..8u64 {
        fs::write(mount.at(&format!("dir/f{i}")), noise(i, len)).unwrap();
    }
    // Half of it is elsewhere too: as a copy, as another name.
    for i in 0..3u64 {
        fs::write(mount.at(&format!("copy{i}")), noise(i, len)).unwrap();
    }
    fs::hard_link(mount.at("dir/f3"), mount.at("name")).unwrap();
    mount.settle();
    let near = |value: &Value, files: u64| {
        let (found, wanted) = (value.as_u64().unwrap(), files * len as u64);
        assert!(found <= wanted * 102 / 100 && found >= wanted * 95 / 100, "{found} of {wanted}");
    };
    let of = mount.ctl(&["status", "--of", "dir"]);
    assert_eq!((&of["files"], &of["logical_bytes"]), (&8.into(), &(8 * len).into()), "{of}");
    near(&of["frees_bytes"], 4);
    mount.ctl(&["snapshot", "create", "--name", "pin"]);
    let of = mount.ctl(&["status", "--of", "dir"]);
    assert_eq!(of["frees_bytes"], 0, "the snapshot has it: {of}");
    near(&of["frees_after_history_bytes"], 4);
    fs::remove_dir_all(mount.at("dir")).unwrap();
    mount.settle();
    let of = mount.ctl(&["status", "--of", ".snapshots/pin"]);
    near(&of["frees_bytes"], 4);
    let before = pack_bytes(&mount);
    mount.ctl(&["snapshot", "remove", "pin"]);
    mount.ctl(&["gc"]);
    near(&(before - pack_bytes(&mount)).into(), 4);
    assert!(fails(&mount, &["status", "--of", "nothing"]).contains("nothing"));
}

/// What a version that cannot be read needs stays, also once its frame can be read again; other garbage goes all the same.
#[test]
fn an_unreadable_version_keeps_what_it_may_need_and_stops_no_collection() {
    if !fuse_available() {
        return;
    }
    let mount = Mount::prepare(As::Root);
    mount.init("[[policy]]\nmatch = \"junk*\"\nhistory = \"off\"");
    mount.start();
    let len = 600_000;
    put(&mount, "file", &noise(1, len));
    put(&mount, "file", &noise(2, 1_000));
    put(&mount, "junk0", &noise(3, 2 * len));
    let log = mount.ctl(&["log", "file"]);
    let hex = log["versions"][0]["recipe"].as_str().unwrap().to_owned();
    let id: Vec<u8> = (0..16).map(|i| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).unwrap()).collect();
    mount.unmount();
    let place = |bytes: &[u8]| bytes.windows(16).position(|window| window == id);
    let packs =
        fs::read_dir(mount.backing().join(".dedupfs/packs")).unwrap().map(|pack| pack.unwrap().path());
    let pack = packs.into_iter().find(|pack| place(&fs::read(pack).unwrap()).is_some()).unwrap();
    // In the header of its frame; the payload follows.
    let flip = || {
        let mut bytes = fs::read(&pack).unwrap();
        let at = place(&bytes).unwrap() + 50;
        bytes[at] ^= 1;
        fs::write(&pack, bytes).unwrap();
    };
    flip();
    mount.start();
    fs::remove_file(mount.at("junk0")).unwrap();
    mount.settle();
    let done = mount.ctl(&["gc"]);
    assert_eq!((&done["unreadable"], &done["reclaimed_bytes"]), (&1.into(), &0.into()), "{done}");
    for round in 1..3u64 {
        put(&mount, "junk", &noise(10 + round, len));
        fs::remove_file(mount.at("junk")).unwrap();
        mount.settle();
        let done = mount.ctl(&["gc"]);
        let freed = done["reclaimed_bytes"].as_u64().unwrap();
        assert!(done["unreadable"] == 1 && (len as u64..len as u64 * 11 / 10).contains(&freed), "{done}");
    }
    assert!(fails(&mount, &["restore", "file@1"]).contains("damaged"));
    mount.unmount();
    flip();
    mount.start();
    let done = mount.ctl(&["gc"]);
    let freed = done["reclaimed_bytes"].as_u64().unwrap();
    assert!(done["unreadable"] == 0 && freed > 2 * len as u64 * 9 / 10, "{done}");
    mount.ctl(&["restore", "file@1"]);
    assert!(fs::read(mount.at("file")).unwrap() == noise(1, len));
}
