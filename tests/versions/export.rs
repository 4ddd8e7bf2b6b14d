//! Leaving: `dedupctl export` gives back what was there, whatever happens on the way.
//!
//! Seen to fail: without the hash of each chunk; with the record *plain* before the bytes (at a kill between); without the rule
//! in `config.toml`; without the check of lost records; without the mark of a removal; with zeros of a chunk's ends written;
//! with the base's recipe in the record of a hybrid file that was written back.
#![allow(clippy::unwrap_used, reason = "a test stops at the first error")]

use crate::common::session::{Session, dedupctl, fast_dir, files_below, wait_for_lock};
use crate::common::twins::{assert_same, look, make, set_mtime};
use crate::common::{As, Mount, as_both, fuse_available, noise, prose, text, xattr};
use dedupfs::admin::{self, Context, ExportRequest, Request, Response};
use dedupfs::repo::{InitOptions, Layout, OpenOptions, Repo, finish_removal};
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, UTIME_OMIT};
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const RECORD: &str = "user.dedupfs";

/// Runs `dedupctl export --json` and reads its report.
fn export(dir: &Path, args: &[&str], code: i32) -> serde_json::Value {
    let output = dedupctl(&[&["export", "--json"], args].concat(), dir);
    assert_eq!(output.status.code(), Some(code), "{args:?}: {}", text(&output));
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {}", text(&output)))
}

/// What it says where it fails.
fn refused(dir: &Path, args: &[&str]) -> String {
    let output = dedupctl(&[&["export"], args].concat(), dir);
    assert_eq!(output.status.code(), Some(2), "{}", text(&output));
    assert!(output.stdout.is_empty(), "{}", text(&output));
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn ok(dir: &Path, args: &[&str]) {
    let output = dedupctl(args, dir);
    assert!(output.status.success(), "{args:?}: {}", text(&output));
}

/// A directory in which all is converted that can be.
fn converted(dir: &Path) {
    ok(dir, &["init", "."]);
    ok(dir, &["scan", ".", "--offline", "--yes"]);
}

fn stubs(dir: &Path) -> usize {
    let files = files_below(dir).into_iter().filter(|path| !path.starts_with(dir.join(".dedupfs")));
    files.filter(|path| is_stub(path)).count()
}

fn is_stub(path: &Path) -> bool {
    let meta = path.symlink_metadata().unwrap();
    meta.is_file() && meta.len() == 0 && xattr(path, RECORD).is_some()
}

fn nothing_left(dir: &Path) {
    for path in files_below(dir) {
        assert!(xattr(&path, RECORD).is_none(), "{}", path.display());
    }
    for name in [".dedupfs", "DEDUPFS-README.txt"] {
        assert!(fs::symlink_metadata(dir.join(name)).is_err(), "{name} is left");
    }
}

#[test]
fn everything_is_as_it_was() {
    let dir = fast_dir();
    make(dir.path());
    set_mtime(dir.path(), 1_200_000_000, 77);
    let before = look(dir.path());
    converted(dir.path());
    assert!(stubs(dir.path()) > 50, "{} stubs", stubs(dir.path()));
    let atime = |name: &str| {
        let meta = fs::metadata(dir.path().join(name)).unwrap();
        (meta.atime(), meta.atime_nsec())
    };
    let read = ["odd", "many", "plain/text", "many/3"];
    for name in read {
        let omit = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT as _ };
        let times =
            Timestamps { last_access: Timespec { tv_sec: 1_000, tv_nsec: 5 }, last_modification: omit };
        rustix::fs::utimensat(CWD, dir.path().join(name), &times, AtFlags::empty()).unwrap();
    }
    let report = export(dir.path(), &["--verify"], 0);
    assert!(read.iter().all(|name| atime(name) == (1_000, 5)), "{:?}", read.map(atime));
    assert_eq!(report["failed"], serde_json::json!([]));
    assert!(report["files"].as_u64().unwrap() > 50, "{report}");
    // Each file once, by whichever name.
    assert_eq!(report["verified"], report["files"]);
    assert_eq!(stubs(dir.path()), 0);
    let mut after = look(dir.path());
    // Its own names are in the root.
    after.insert(PathBuf::new(), before[Path::new("")].clone());
    assert_same(&before, &after, true);
    // Again: there is nothing to do. And it stays so.
    let again = export(dir.path(), &[], 0);
    assert_eq!((&again["files"], &again["bytes"]), (&0.into(), &0.into()));
    ok(dir.path(), &["scan", ".", "--offline", "--yes"]);
    assert_eq!(stubs(dir.path()), 0, "a scan leaves them plain");
    // An end to it, with the root's times kept too.
    set_mtime(dir.path(), 1_200_000_000, 77);
    let report = export(dir.path(), &["--remove-store"], 0);
    assert_eq!(report["removed"], true);
    nothing_left(dir.path());
    assert_same(&before, &look(dir.path()), true);
    refused(dir.path(), &["--remove-store"]);
}

/// What can be had nowhere else goes only if somebody says so.
#[test]
fn a_store_with_former_versions_is_not_removed_unasked() {
    let dir = fast_dir();
    fs::write(dir.path().join("file"), noise(1, 50_000)).unwrap();
    converted(dir.path());
    ok(dir.path(), &["snapshot", "create", "--name", "one"]);
    let said = refused(dir.path(), &["--remove-store"]);
    assert!(
        said.contains("0 former versions of files and 1 snapshots") && said.contains("--force"),
        "{said}"
    );
    assert_eq!(stubs(dir.path()), 1, "nothing was changed");
    ok(dir.path(), &["snapshot", "remove", "one"]);
    fs::remove_file(dir.path().join("file")).unwrap();
    let said = refused(dir.path(), &["--remove-store"]);
    assert!(
        said.contains("1 former versions of files and 0 snapshots") && said.contains("of file for example"),
        "{said}"
    );
    ok(dir.path(), &["restore", "file@1"]);
    assert_eq!(stubs(dir.path()), 0, "only a mount makes stubs");
    // The file has it again, and as a version it would be lost.
    refused(dir.path(), &["--remove-store"]);
    assert_eq!(export(dir.path(), &["--remove-store", "--force"], 0)["removed"], true);
    nothing_left(dir.path());
    assert!(fs::read(dir.path().join("file")).unwrap() == noise(1, 50_000));
}

#[test]
fn works_without_an_index() {
    for garbage in [None, Some(&b"no database"[..])] {
        let dir = fast_dir();
        make(dir.path());
        let before = look(dir.path());
        converted(dir.path());
        let index = dir.path().join(".dedupfs/index");
        match garbage {
            None => fs::remove_dir_all(&index).unwrap(),
            Some(bytes) => files_below(&index).iter().for_each(|file| fs::write(file, bytes).unwrap()),
        }
        let report = export(dir.path(), &["--verify", "--remove-store"], 0);
        assert_eq!(report["verified"], report["files"]);
        nothing_left(dir.path());
        let mut after = look(dir.path());
        after.insert(PathBuf::new(), before[Path::new("")].clone());
        assert_same(&before, &after, true);
    }
}

#[test]
fn a_part_stays_plain_and_the_rest_is_left() {
    let dir = fast_dir();
    make(dir.path());
    converted(dir.path());
    let all = stubs(dir.path());
    let odd = dir.path().join("odd");
    let report = export(dir.path(), &["odd"], 0);
    assert_eq!(stubs(&odd), 0);
    assert_eq!(stubs(dir.path()) as u64, all as u64 - report["files"].as_u64().unwrap());
    export(dir.path(), &["many/7"], 0);
    assert!(refused(dir.path(), &["--remove-store", "odd"]).contains("the store is that of"));
    ok(dir.path(), &["scan", ".", "--offline", "--yes"]);
    assert_eq!(stubs(&odd), 0, "a scan leaves them plain");
    assert!(!is_stub(&dir.path().join("many/7")) && is_stub(&dir.path().join("many/8")));
    // The same once more adds no rule.
    let config = || fs::read_to_string(dir.path().join(".dedupfs/config.toml")).unwrap();
    let before = config();
    export(dir.path(), &["many/7"], 0);
    export(dir.path(), &["odd"], 0);
    assert_eq!(config(), before);
    // Without the rules all is as before.
    let kept = before.split("# These files were exported").next().unwrap();
    fs::write(dir.path().join(".dedupfs/config.toml"), kept).unwrap();
    ok(dir.path(), &["scan", ".", "--offline", "--yes"]);
    assert_eq!(stubs(dir.path()), all);
}

#[test]
fn a_config_that_takes_no_rule_is_an_error_and_nothing_is_done() {
    let dir = fast_dir();
    fs::write(dir.path().join("file"), prose(1, 50_000)).unwrap();
    converted(dir.path());
    let config = dir.path().join(".dedupfs/config.toml");
    fs::write(&config, "policy = []\n").unwrap();
    assert!(refused(dir.path(), &[]).contains("config.toml"));
    assert_eq!(stubs(dir.path()), 1);
    fs::remove_file(&config).unwrap();
    export(dir.path(), &[], 0);
    assert_eq!(stubs(dir.path()), 0);
}

#[test]
fn one_damaged_chunk_costs_one_file_and_the_store_stays() {
    let dir = fast_dir();
    let root = dir.path();
    for i in 0..20u64 {
        fs::write(root.join(format!("f{i:02}")), noise(i, 50_000)).unwrap();
    }
    converted(root);
    let bad = &noise(7, 50_000)[20_000..20_064];
    let packs = files_below(&root.join(".dedupfs/packs"));
    let pack = packs.iter().find_map(|pack| {
        let bytes = fs::read(pack).unwrap();
        Some((pack, bytes.windows(64).position(|window| window == bad)?))
    });
    let (pack, at) = pack.unwrap();
    File::options().write(true).open(pack).unwrap().write_all_at(b"XXXX", at as u64).unwrap();
    let report = export(root, &["--remove-store", "--verify"], 1);
    assert_eq!(report["files"], 19);
    assert_eq!(report["removed"], false);
    let failed = report["failed"].as_array().unwrap();
    assert_eq!(failed.len(), 1, "{report}");
    assert_eq!(failed[0]["path"], "f07");
    assert!(failed[0]["reason"].as_str().unwrap().contains("damaged"), "{report}");
    assert!(is_stub(&root.join("f07")), "it stays a stub");
    for i in (0..20u64).filter(|i| *i != 7) {
        assert_eq!(fs::read(root.join(format!("f{i:02}"))).unwrap(), noise(i, 50_000));
    }
    // With the content at hand it is repaired, and then nothing is left.
    let copy = fast_dir();
    fs::write(copy.path().join("copy"), noise(7, 50_000)).unwrap();
    ok(root, &["check", "--repair", "--from", copy.path().to_str().unwrap()]);
    export(root, &["--remove-store"], 0);
    assert_eq!(fs::read(root.join("f07")).unwrap(), noise(7, 50_000));
    nothing_left(root);
}

/// A frame whose checksums are all right and whose bytes are not those of its name: only the hash tells.
#[test]
fn bytes_that_are_not_those_of_their_name_are_not_written_back() {
    let dir = fast_dir();
    let root = dir.path();
    fs::write(root.join("bad"), noise(7, 50_000)).unwrap();
    fs::write(root.join("good"), noise(8, 50_000)).unwrap();
    converted(root);
    let format = fs::read_to_string(root.join(".dedupfs/format.toml")).unwrap();
    let id: dedupfs::id::StoreId = format.split("store = \"").nth(1).unwrap()[..32].parse().unwrap();
    let pack = &files_below(&root.join(".dedupfs/packs"))[0];
    let mut bytes = fs::read(pack).unwrap();
    let first = &noise(7, 50_000)[..64];
    let payload = bytes.windows(64).position(|window| window == first).unwrap();
    let frame = payload - 56;
    let stored = u32::from_le_bytes(bytes[frame + 8..frame + 12].try_into().unwrap()) as usize;
    bytes[payload + 100] ^= 1;
    let crc = crc32fast::hash(&bytes[payload..payload + stored]);
    bytes[frame + 48..frame + 52].copy_from_slice(&crc.to_le_bytes());
    let place =
        [&bytes[frame..frame + 52], &id.0, &0u32.to_le_bytes(), &(frame as u32).to_le_bytes()].concat();
    bytes[frame + 52..frame + 56].copy_from_slice(&crc32fast::hash(&place).to_le_bytes());
    fs::write(pack, bytes).unwrap();
    let report = export(root, &[], 1);
    assert_eq!(report["failed"][0]["path"], "bad", "{report}");
    assert!(report["failed"][0]["reason"].as_str().unwrap().contains("another hash"), "{report}");
    assert!(is_stub(&root.join("bad")));
    assert_eq!(fs::read(root.join("good")).unwrap(), noise(8, 50_000));
}

#[test]
fn a_file_that_lost_its_record_keeps_the_store() {
    let dir = fast_dir();
    fs::write(dir.path().join("lost"), prose(1, 50_000)).unwrap();
    fs::write(dir.path().join("kept"), prose(2, 50_000)).unwrap();
    converted(dir.path());
    rustix::fs::removexattr(dir.path().join("lost"), RECORD).unwrap();
    let report = export(dir.path(), &["--remove-store"], 1);
    assert_eq!(report["failed"][0]["path"], "lost", "{report}");
    assert_eq!(report["removed"], false);
    assert_eq!(fs::read(dir.path().join("kept")).unwrap(), prose(2, 50_000));
    ok(dir.path(), &["check", "--repair"]);
    export(dir.path(), &["--remove-store"], 0);
    assert_eq!(fs::read(dir.path().join("lost")).unwrap(), prose(1, 50_000));
}

#[test]
fn what_differs_from_what_was_stored_is_found_by_verify() {
    let dir = fast_dir();
    let path = dir.path().join("file");
    fs::write(&path, noise(1, 100_000)).unwrap();
    fs::write(dir.path().join("other"), noise(2, 100_000)).unwrap();
    converted(dir.path());
    export(dir.path(), &[], 0);
    // As a disk that loses a block does, whoever wrote it.
    let mtime = fs::metadata(&path).unwrap().modified().unwrap();
    let file = File::options().write(true).open(&path).unwrap();
    file.write_all_at(b"?", 60_000).unwrap();
    file.set_modified(mtime).unwrap();
    drop(file);
    let report = export(dir.path(), &["--verify", "--remove-store"], 1);
    assert_eq!((&report["verified"], &report["removed"]), (&1.into(), &false.into()));
    assert_eq!(report["failed"][0]["path"], "file", "{report}");
    // One that was changed since is what it is.
    fs::write(&path, "another").unwrap();
    export(dir.path(), &["--verify", "--remove-store"], 0);
    assert_eq!(fs::read(&path).unwrap(), b"another");
}

/// A store elsewhere goes if it is that of the directory, and else is left.
#[test]
fn a_store_elsewhere_goes_if_it_is_ours() {
    for ours in [true, false] {
        let (dir, place) = (fast_dir(), fast_dir());
        let store = place.path().join("store");
        fs::write(dir.path().join("file"), prose(1, 50_000)).unwrap();
        ok(dir.path(), &["init", ".", "--store", store.to_str().unwrap()]);
        ok(dir.path(), &["scan", ".", "--offline", "--yes"]);
        if !ours {
            fs::write(store.join("backing.toml"), "root = \"/another\"\n").unwrap();
        }
        let report = export(dir.path(), &["--remove-store"], 0);
        assert_eq!(report["removed"], true);
        assert_eq!(store.join("packs").exists(), !ours);
        assert_eq!(report["store_left"].is_null(), ours, "{report}");
        assert_eq!(fs::read(dir.path().join("file")).unwrap(), prose(1, 50_000));
        nothing_left(dir.path());
        assert_eq!(place.path().read_dir().unwrap().count(), usize::from(!ours));
    }
}

const CRASH: &str = "DEDUPFS_TEST_EXPORT_CRASH";

/// Runs in a process of its own, and aborts at a step.
#[test]
fn the_one_that_crashes() {
    let Some(story) = std::env::var_os(CRASH) else { return };
    let story = story.into_string().unwrap();
    let (step, dir) = story.split_once(' ').unwrap();
    let layout = Layout::of(Path::new(dir)).unwrap().unwrap();
    let repo =
        Repo::open(&layout, &OpenOptions { convert: true, ..OpenOptions::default() }, &mut |_| {}).unwrap();
    repo.overlay().tree.abort_at_step(step.parse().unwrap());
    let request = ExportRequest { path: PathBuf::new(), verify: false, force: false, remove_store: true };
    let context = Context { repo: &repo, mountpoint: None };
    let done = admin::run(context, Request::Export(request), &mut |_| true).unwrap();
    assert!(matches!(done, Response::Export(report) if report.removed));
    repo.overlay().tree.abort_at_step(0);
    repo.close(Vec::new()).unwrap();
    assert!(finish_removal(Path::new(dir)).unwrap());
}

#[test]
fn killed_at_every_step_it_goes_on() {
    let contents: Vec<_> = (0..5u64)
        .map(|i| (format!("f{i}"), if i % 2 == 0 { prose(i, 40_000) } else { noise(i, 30_000) }))
        .collect();
    for step in 1.. {
        let dir = fast_dir();
        for (name, bytes) in &contents {
            fs::write(dir.path().join(name), bytes).unwrap();
            set_mtime(&dir.path().join(name), 1_300_000_000, 42);
        }
        let before = look(dir.path());
        converted(dir.path());
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "export::the_one_that_crashes", "--nocapture"])
            .env(CRASH, format!("{step} {}", dir.path().display()))
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let ended = output.status.success();
        if !ended {
            // Through the overlay nothing has happened, whatever the step.
            let session = Session::open(dir.path()).unwrap_or_else(|e| panic!("step {step}: {e}"));
            for (name, bytes) in &contents {
                assert!(session.read(name).unwrap() == *bytes, "step {step}: {name} differs");
            }
            session.close().unwrap();
            export(dir.path(), &["--remove-store"], 0);
        }
        nothing_left(dir.path());
        let mut after = look(dir.path());
        after.insert(PathBuf::new(), before[Path::new("")].clone());
        assert_same(&before, &after, true);
        if ended {
            assert!(step > 20, "{step} steps: {}", text(&output));
            return;
        }
    }
}

/// In a mount that is in use: files open for reading, for writing, hybrid, and others written meanwhile.
#[test]
fn while_mounted_nobody_notices() {
    as_both(|user| {
        let mount = Mount::prepare(user);
        mount.init("hybrid_min = \"1MiB\"");
        mount.start();
        make(&mount.mnt());
        for i in 0..300u64 {
            fs::write(mount.at(&format!("many/more{i}")), prose(i, 10_000)).unwrap();
        }
        fs::write(mount.at("hybrid"), noise(50, 2_000_000)).unwrap();
        fs::write(mount.at("read"), noise(51, 400_000)).unwrap();
        fs::write(mount.at("write"), noise(52, 400_000)).unwrap();
        mount.settle();
        assert!(["hybrid", "read", "write"].iter().all(|name| mount.is_stub(name)));
        let write = |name: &str| File::options().read(true).write(true).open(mount.at(name)).unwrap();
        let (hybrid, writing) = (write("hybrid"), write("write"));
        hybrid.write_all_at(b"changed", 1_000_000).unwrap();
        writing.write_all_at(b"changed", 100).unwrap();
        let mut reading = File::open(mount.at("read")).unwrap();
        let mut half = vec![0; 200_000];
        reading.read_exact(&mut half).unwrap();
        // Written back by that, an ordinary user's; its record cannot be removed as it is.
        fs::set_permissions(mount.at("many/more2"), PermissionsExt::from_mode(0o444)).unwrap();
        let before = look(&mount.mnt());
        let refused = mount.dedupctl().args(["export", "--remove-store"]).arg(mount.mnt()).output().unwrap();
        assert_eq!(refused.status.code(), Some(2), "{}", text(&refused));
        assert!(String::from_utf8_lossy(&refused.stderr).contains("mounted at"), "{}", text(&refused));
        // Busy with other files all the while.
        let stop = std::sync::atomic::AtomicBool::new(false);
        let report = std::thread::scope(|scope| {
            scope.spawn(|| {
                let busy = mount.at("busy");
                for i in 0u64.. {
                    if stop.load(std::sync::atomic::Ordering::Relaxed) {
                        break;
                    }
                    fs::write(&busy, prose(i, 30_000)).unwrap();
                    fs::rename(&busy, mount.at("renamed")).unwrap();
                    assert_eq!(fs::read(mount.at("renamed")).unwrap(), prose(i, 30_000));
                    fs::remove_file(mount.at("renamed")).unwrap();
                }
            });
            let report = mount.ctl(&["export", "--verify"]);
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
            report
        });
        assert_eq!(report["failed"], serde_json::json!([]));
        assert!(report["files"].as_u64().unwrap() > 340, "{report}");
        let left = files_below(&mount.dir())
            .into_iter()
            .filter(|path| !path.starts_with(mount.dir().join(".dedupfs")));
        let left: Vec<_> = left.filter(|path| is_stub(path)).collect();
        assert!(left.is_empty(), "{left:?}");
        // Who has them open goes on.
        reading.read_to_end(&mut half).unwrap();
        assert!(half == noise(51, 400_000));
        hybrid.write_all_at(b"again", 1_500_000).unwrap();
        writing.write_all_at(b"again", 300).unwrap();
        drop((hybrid, writing, reading));
        let mut wanted = noise(50, 2_000_000);
        wanted[1_000_000..1_000_007].copy_from_slice(b"changed");
        wanted[1_500_000..1_500_005].copy_from_slice(b"again");
        assert!(fs::read(mount.at("hybrid")).unwrap() == wanted);
        // And it stays so, for what is new too, and after the next start.
        fs::write(mount.at("new"), prose(60, 90_000)).unwrap();
        for _ in 0..2 {
            mount.settle();
            assert!(!mount.is_stub("new") && !mount.is_stub("hybrid") && !mount.is_stub("many/more1"));
            mount.remount();
        }
        mount.unmount();
        let report = export(&mount.dir(), &["--remove-store"], 0);
        assert_eq!(report["removed"], true);
        nothing_left(&mount.dir());
        assert!(fs::read(mount.dir().join("hybrid")).unwrap() == wanted);
        let mut after = look(&mount.dir());
        for name in ["", "hybrid", "write", "new", "many"] {
            after.remove(Path::new(name));
        }
        let same = before.into_iter().filter(|(path, _)| after.contains_key(path)).collect();
        assert_same(&same, &after, false);
    });
}

/// What a daemon that was killed has left: a hybrid file, and its socket.
#[test]
fn a_hybrid_file_of_a_dead_daemon() {
    if !fuse_available() {
        return;
    }
    let mut mount = Mount::prepare(As::Root);
    mount.init("hybrid_min = \"64KiB\"");
    mount.start();
    for name in ["hybrid", "stub"] {
        fs::write(mount.at(name), noise(1, 600_000)).unwrap();
    }
    mount.settle();
    let file = File::options().write(true).open(mount.at("hybrid")).unwrap();
    file.write_all_at(b"changed", 300_000).unwrap();
    file.set_len(700_000).unwrap();
    file.sync_all().unwrap();
    mount.kill();
    drop(file);
    let _ = rustix::mount::unmount(mount.mnt(), rustix::mount::UnmountFlags::DETACH);
    mount.flags.clear();
    let report = export(&mount.dir(), &["--verify", "--remove-store"], 0);
    assert_eq!((&report["files"], &report["verified"]), (&2.into(), &1.into()), "{report}");
    nothing_left(&mount.dir());
    let mut wanted = noise(1, 600_000);
    wanted[300_000..300_007].copy_from_slice(b"changed");
    wanted.resize(700_000, 0);
    assert!(fs::read(mount.dir().join("hybrid")).unwrap() == wanted);
    assert!(fs::read(mount.dir().join("stub")).unwrap() == noise(1, 600_000));
}

/// Killed while the store is being removed: nobody opens what is left of it, and the same command finishes.
#[test]
fn a_removal_that_was_cut_short() {
    for gone in 0.. {
        let (dir, place) = (fast_dir(), fast_dir());
        let (root, store) = (dir.path(), place.path().join("store"));
        let elsewhere = gone % 2 == 1;
        fs::write(root.join("file"), prose(1, 50_000)).unwrap();
        match elsewhere {
            true => ok(root, &["init", ".", "--store", store.to_str().unwrap()]),
            false => ok(root, &["init", "."]),
        }
        ok(root, &["scan", ".", "--offline", "--yes"]);
        export(root, &[], 0);
        rustix::fs::removexattr(root.join("file"), RECORD).unwrap();
        set_mtime(root, 1_200_000_000, 77);
        let layout = Layout::of(root).unwrap().unwrap();
        let repo = Repo::open(&layout, &OpenOptions { convert: true, ..OpenOptions::default() }, &mut |_| {})
            .unwrap();
        assert_eq!(repo.begin_removal().unwrap(), None);
        repo.close(Vec::new()).unwrap();
        wait_for_lock(&layout.state);
        for args in [&["status"][..], &["scan"], &["init", "."], &["check", "--rebuild"], &["export"]] {
            let output = dedupctl(args, root);
            assert_eq!(output.status.code(), Some(2), "{args:?}: {}", text(&output));
            assert!(
                String::from_utf8_lossy(&output.stderr).contains("is being removed"),
                "{args:?}: {}",
                text(&output)
            );
        }
        let mut files = files_below(&layout.state);
        files.retain(|path| !path.ends_with("removing.toml") && !path.ends_with("backing.toml"));
        // Says whose the store is until the end.
        files.extend(elsewhere.then(|| store.join("backing.toml")));
        files.push(root.join("DEDUPFS-README.txt"));
        let last = gone >= files.len();
        files.iter().take(gone).for_each(|file| fs::remove_file(file).unwrap());
        if elsewhere && !store.join("backing.toml").exists() {
            // By then its directories have gone too.
            for entry in store.read_dir().unwrap() {
                fs::remove_dir_all(entry.unwrap().path()).unwrap();
            }
        }
        if last {
            // All but the directory itself.
            let _ = fs::remove_dir_all(&store);
            fs::remove_dir_all(root.join(".dedupfs")).unwrap();
            fs::create_dir(root.join(".dedupfs")).unwrap();
        }
        assert_eq!(export(root, &["--remove-store"], 0)["removed"], true);
        nothing_left(root);
        assert!(!store.exists());
        assert_eq!(fs::read(root.join("file")).unwrap(), prose(1, 50_000));
        let meta = fs::metadata(root).unwrap();
        assert!(
            last || (meta.mtime(), meta.mtime_nsec()) == (1_200_000_000, 77),
            "the times of the directory"
        );
        if last {
            return;
        }
    }
}

/// The last look before a store goes: a record that says that the content is in it stays, and is told of.
#[test]
fn records_of_stubs_are_not_taken_off() {
    let dir = fast_dir();
    Repo::init(dir.path(), None, &InitOptions::default()).unwrap();
    let session = Session::open(dir.path()).unwrap();
    session.write("stub", &noise(1, 50_000)).unwrap();
    assert!(session.settle().unwrap());
    fs::write(dir.path().join("plain"), b"").unwrap();
    let mut told = Vec::new();
    session
        .overlay()
        .maintenance
        .remove_records(&mut |_| true, &mut |path, e| told.push((path, e.to_string())))
        .unwrap();
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].0 == Path::new("stub") && told[0].1.contains("its content is in the store"), "{told:?}");
    assert!(xattr(&dir.path().join("stub"), RECORD).is_some());
    assert!(session.read("stub").unwrap() == noise(1, 50_000));
    session.close().unwrap();
}
