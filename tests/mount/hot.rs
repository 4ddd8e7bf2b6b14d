//! Stubs that are read again and again become plain files for a while, in a mount with passthrough.
//!
//! Seen to fail, each with one thing switched off: nothing ever hot (`a_file_read_..`, `large_files_..`); a version told of
//! what goes back unchanged (`it_cools_..`); work that is not given up (`who_wants_..`); a share that a writer does not end
//! (`a_hot_file_..`, `readers_and_..`); no bound, no least size, no look at the policy (`only_so_much_..`); no look for
//! passthrough (`nothing_changes_..`); a failure that is tried again (`a_damaged_..`); no record HYDRATING
//! (`a_crash_..`).
#![allow(clippy::unwrap_used, reason = "a test stops at the first error")]

use crate::common::session::{Session, copy_tree, fast_dir};
use crate::common::{As, Mount, NO_HISTORY, as_both, fuse_available, noise, root_and_fuse_available, xattr};
use dedupfs::overlay::{OpenFlags, ROOT};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// More than anything here takes however busy the machine is.
const SOON: Duration = Duration::from_secs(60);
const LEN: usize = 2 << 20;
/// More than makes a file hot.
const OFTEN: usize = 30;

fn mount(config: &str) -> Mount {
    let mount = Mount::prepare(As::Root);
    mount.init(config);
    mount.start();
    mount
}

/// A stub with that content, and how it looks from inside.
fn stub(mount: &Mount, name: &str, bytes: &[u8]) -> Look {
    fs::write(mount.at(name), bytes).unwrap();
    mount.settle();
    assert!(mount.is_stub(name), "{name}");
    look(mount, name)
}

type Look = (u64, u64, u64, u64, [i64; 4], u32);

fn look(mount: &Mount, name: &str) -> Look {
    let m = fs::metadata(mount.at(name)).unwrap();
    // Not atime: reading moves that by the rules of the filesystem below, which look at its own ctime.
    let times = [m.mtime(), m.mtime_nsec(), m.ctime(), m.ctime_nsec()];
    (m.ino(), m.nlink(), m.len(), m.blocks(), times, m.mode())
}

#[track_caller]
fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + SOON;
    while !is_so() {
        assert!(Instant::now() < end, "{what}: not within {SOON:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Reads a stub until it is plain; what is read has to be right all along.
#[track_caller]
fn heat(mount: &Mount, name: &str, bytes: &[u8]) {
    wait_until("plain by being read", || {
        assert!(fs::read(mount.at(name)).unwrap() == bytes, "{name} read wrong");
        is_hot(mount, name, bytes.len())
    });
}

fn is_hot(mount: &Mount, name: &str, len: usize) -> bool {
    // While it is written back it may have its length, and its record names the content.
    mount.below(name).0 == len as u64 && recipe_and_state(mount, name).1 == 4
}

fn read_often(mount: &Mount, name: &str, bytes: &[u8]) {
    for _ in 0..OFTEN {
        assert!(fs::read(mount.at(name)).unwrap() == bytes, "{name} read wrong");
    }
}

/// Of the record of a file: which content it names, and what it says that the file is.
fn recipe_and_state(mount: &Mount, name: &str) -> (Vec<u8>, u8) {
    let record = xattr(&mount.backing().join(name), "user.dedupfs").unwrap_or_else(|| vec![0; 64]);
    (record[32..48].to_vec(), record[0] & 0xf)
}

fn hot(mount: &Mount) -> (u64, u64) {
    let status = mount.ctl(&["status"]);
    (status["hot_files"].as_u64().unwrap(), status["hot_bytes"].as_u64().unwrap())
}

fn versions(mount: &Mount, name: &str) -> usize {
    mount.ctl(&["log", name])["versions"].as_array().unwrap().len()
}

/// Nothing shows but in the bare directory and in what `status` says.
#[test]
fn a_file_read_again_and_again_is_plain_for_a_while() {
    if !root_and_fuse_available() {
        return;
    }
    let mount = mount("");
    let bytes = noise(1, LEN);
    let before = stub(&mount, "file", &bytes);
    let recipe = recipe_and_state(&mount, "file").0;
    heat(&mount, "file", &bytes);
    assert_eq!(look(&mount, "file"), before);
    assert!(fs::read(mount.backing().join("file")).unwrap() == bytes, "the bytes are below");
    let (files, room) = hot(&mount);
    assert!(files == 1 && (LEN as u64..=2 * LEN as u64).contains(&room), "{files} {room}");
    // In the store it is: who waits for all files does not wait for it, and has it left alone.
    let settled = mount.ctl(&["settle"]);
    assert_eq!(settled["pending"], 0, "{settled}");
    assert_eq!(mount.ctl(&["scan"])["converted"], 0);
    assert!(is_hot(&mount, "file", LEN) && mount.ctl(&["status"])["pending"] == 0);
    // A snapshot takes it for what it was, also while it is read.
    let reader = File::open(mount.at("file")).unwrap();
    mount.ctl(&["snapshot", "create", "--name", "warm"]);
    drop(reader);
    assert!(fs::read(mount.at(".snapshots/warm/file")).unwrap() == bytes);
    assert_eq!(mount.ctl(&["check", "--deep"])["damaged"].as_array().unwrap().len(), 0);
    assert_eq!(look(&mount, "file"), before);
    // The next daemon knows nothing of it.
    mount.remount();
    wait_until("a stub again", || mount.is_stub("file"));
    assert_eq!(recipe_and_state(&mount, "file").0, recipe);
    assert_eq!(look(&mount, "file"), before);
    assert!(fs::read(mount.at("file")).unwrap() == bytes);
}

/// It goes back to the content that it had, though nothing else needed that, and there is no version of it.
#[test]
fn it_cools_to_the_stub_that_it_was() {
    if !root_and_fuse_available() {
        return;
    }
    for config in ["hot_time = \"3s\"".to_owned(), format!("hot_time = \"3s\"\n{NO_HISTORY}")] {
        let mount = mount(&config);
        let bytes = noise(2, LEN);
        let before = stub(&mount, "file", &bytes);
        let recipe = recipe_and_state(&mount, "file").0;
        let had = versions(&mount, "file");
        heat(&mount, "file", &bytes);
        // As long as it is read it stays. Checked only while it was read a moment ago.
        let (end, mut last) = (Instant::now() + Duration::from_secs(5), Instant::now());
        while Instant::now() < end {
            let stub = mount.is_stub("file");
            assert!(!stub || last.elapsed() > Duration::from_secs(2), "read {:?} ago", last.elapsed());
            last = Instant::now();
            assert!(fs::read(mount.at("file")).unwrap() == bytes);
            std::thread::sleep(Duration::from_millis(200));
        }
        heat(&mount, "file", &bytes);
        fs::rename(mount.at("file"), mount.at("other")).unwrap();
        let moved = look(&mount, "other");
        assert_eq!((moved.0, moved.2, moved.3), (before.0, before.2, before.3));
        mount.ctl(&["gc"]);
        wait_until("a stub again", || mount.is_stub("other"));
        assert_eq!(recipe_and_state(&mount, "other").0, recipe);
        wait_until("told of", || hot(&mount) == (0, 0));
        assert_eq!(versions(&mount, "other"), had, "a version of what has not changed");
        assert_eq!(look(&mount, "other"), moved);
        assert!(fs::read(mount.at("other")).unwrap() == bytes);
        assert_eq!(mount.ctl(&["check", "--deep"])["damaged"].as_array().unwrap().len(), 0);
    }
}

/// What is done to a file while it is hot.
#[test]
fn a_hot_file_can_be_changed_as_any_other() {
    if !root_and_fuse_available() {
        return;
    }
    let mount = mount("");
    let mut bytes = noise(3, LEN);
    stub(&mount, "file", &bytes);
    // Written to, it is an ordinary plain file.
    heat(&mount, "file", &bytes);
    let file = File::options().write(true).open(mount.at("file")).unwrap();
    file.write_all_at(b"changed", 100).unwrap();
    assert_eq!(hot(&mount), (0, 0));
    drop(file);
    bytes[100..107].copy_from_slice(b"changed");
    mount.settle();
    assert!(mount.is_stub("file") && fs::read(mount.at("file")).unwrap() == bytes);
    assert_eq!(versions(&mount, "file"), 2);
    // So it is if it was only opened for that, or cut off by its name.
    heat(&mount, "file", &bytes);
    drop(File::options().write(true).open(mount.at("file")).unwrap());
    // The kernel tells the daemon of a close a little later.
    wait_until("a stub again", || {
        mount.settle();
        mount.is_stub("file") && hot(&mount) == (0, 0)
    });
    heat(&mount, "file", &bytes);
    bytes.truncate(LEN / 2);
    succeed_truncate(&mount.at("file"), LEN as u64 / 2);
    mount.settle();
    assert!(mount.is_stub("file") && fs::read(mount.at("file")).unwrap() == bytes);
    // Names and modes may change.
    heat(&mount, "file", &bytes);
    fs::hard_link(mount.at("file"), mount.at("link")).unwrap();
    fs::set_permissions(mount.at("link"), PermissionsExt::from_mode(0o600)).unwrap();
    assert!(is_hot(&mount, "link", bytes.len()) && hot(&mount).0 == 1);
    assert!(fs::read(mount.at("link")).unwrap() == bytes);
    let reader = File::open(mount.at("link")).unwrap();
    fs::remove_file(mount.at("file")).unwrap();
    assert_eq!(hot(&mount).0, 1);
    fs::remove_file(mount.at("link")).unwrap();
    assert_eq!(hot(&mount), (0, 0), "its room is free with its last name");
    let mut read = vec![0; bytes.len()];
    reader.read_exact_at(&mut read, 0).unwrap();
    assert!(read == bytes);
}

fn succeed_truncate(path: &Path, len: u64) {
    let status = Command::new("truncate").args(["-c", "-s", &len.to_string()]).arg(path).status().unwrap();
    assert!(status.success());
}

/// Three programs read, one writes, the file becomes plain and a stub by turns, and nobody sees what was there before.
#[test]
fn readers_and_a_writer_see_what_is_there() {
    if !root_and_fuse_available() {
        return;
    }
    for config in ["", "hybrid_min = \"256KiB\""] {
        let mount = mount(config);
        let mut bytes = noise(4, LEN + 12_345);
        bytes[..8].fill(0);
        stub(&mount, "file", &bytes);
        let (written, ended) = (AtomicU64::new(0), AtomicBool::new(false));
        // Who opens a file takes it away from its conversion: then it is plain for as long as they go on.
        let quiet = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for pause in [3, 7, 11] {
                let (mount, bytes, written, ended) = (&mount, &bytes, &written, &ended);
                let quiet = &quiet;
                scope.spawn(move || {
                    while !ended.load(Ordering::Relaxed) {
                        let least = written.load(Ordering::SeqCst);
                        let found = fs::read(mount.at("file")).unwrap();
                        let number = u64::from_le_bytes(found[..8].try_into().unwrap());
                        assert!(number >= least, "{number} is older than {least}");
                        assert!(found[8..] == bytes[8..]);
                        std::thread::sleep(Duration::from_millis(pause));
                        while quiet.load(Ordering::Relaxed) && !ended.load(Ordering::Relaxed) {
                            std::thread::sleep(Duration::from_millis(pause));
                        }
                    }
                });
            }
            let end = Ended(&ended);
            for number in 1..=6u64 {
                wait_until("plain by being read", || hot(&mount).0 == 1);
                let file = File::options().write(true).open(mount.at("file")).unwrap();
                file.write_all_at(&number.to_le_bytes(), 0).unwrap();
                written.store(number, Ordering::SeqCst);
                drop(file);
                quiet.store(true, Ordering::Relaxed);
                wait_until("a stub", || {
                    mount.settle();
                    mount.is_stub("file")
                });
                quiet.store(false, Ordering::Relaxed);
            }
            drop(end);
        });
    }
}

/// Lets readers end, also when the writer fails.
struct Ended<'a>(&'a AtomicBool);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Bounded, and only for what gains by it.
#[test]
fn only_so_much_is_kept_and_only_where_it_helps() {
    if !root_and_fuse_available() {
        return;
    }
    let config = "hot_bytes = \"3MiB\"\n[[policy]]\nmatch = \"off/\"\ndedup = \"off\"";
    let mount = mount(config);
    fs::create_dir(mount.at("off")).unwrap();
    let files = [("first", LEN), ("second", LEN), ("small", 100_000), ("large", 2 * LEN), ("kept", LEN)];
    let bytes = |seed: usize, len: usize| noise(seed as u64, len);
    for (seed, (name, len)) in files.into_iter().enumerate() {
        stub(&mount, name, &bytes(seed, len));
    }
    fs::rename(mount.at("kept"), mount.at("off/kept")).unwrap();
    for (seed, (name, len)) in
        [("off/kept", 4, LEN), ("small", 2, 100_000), ("large", 3, 2 * LEN)].map(|(n, s, l)| (s, (n, l)))
    {
        read_often(&mount, name, &bytes(seed, len));
    }
    heat(&mount, "first", &bytes(0, LEN));
    read_often(&mount, "second", &bytes(1, LEN));
    // What comes after it has been looked at, so has it.
    assert_eq!(hot(&mount).0, 1);
    fs::remove_file(mount.at("first")).unwrap();
    stub(&mount, "third", &bytes(9, LEN));
    heat(&mount, "third", &bytes(9, LEN));
    for name in ["off/kept", "small", "large", "second"] {
        assert!(mount.is_stub(name), "{name}");
    }
}

#[test]
fn nothing_changes_where_it_is_off_or_of_no_use() {
    as_both(|user| {
        let flags: &[(&str, &[&str])] = match user {
            As::User => &[("", &[])],
            As::Root => &[("hot_bytes = \"off\"", &[]), ("", &["--no-passthrough"]), ("", &["--read-only"])],
        };
        for (config, flags) in flags {
            let mut mount = Mount::prepare(user);
            mount.init(config);
            mount.start();
            let bytes = noise(5, LEN);
            stub(&mount, "file", &bytes);
            mount.unmount();
            mount.flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
            mount.start();
            read_often(&mount, "file", &bytes);
            std::thread::sleep(Duration::from_millis(500));
            assert!(mount.is_stub("file"), "{config} {flags:?}");
        }
    });
}

/// While it is written back, slowly: who writes to it does not wait for all of it, and a kill loses nothing.
#[test]
fn who_wants_to_write_has_the_work_given_up() {
    if !root_and_fuse_available() {
        return;
    }
    for config in ["convert_rate = \"1MiB/s\"", "convert_rate = \"1MiB/s\"\nhybrid_min = \"off\""] {
        let mount = mount(config);
        let mut bytes = noise(6, 6 * LEN);
        let before = stub(&mount, "file", &bytes);
        let begun = |mount: &Mount, bytes: &[u8]| {
            wait_until("begun", || {
                assert!(fs::read(mount.at("file")).unwrap() == bytes);
                mount.below("file").0 > 0
            });
            assert_eq!(recipe_and_state(mount, "file").1, 3, "it is under way");
        };
        begun(&mount, &bytes);
        assert_eq!(look(&mount, "file"), before);
        mount.kill();
        mount.start();
        assert!(fs::read(mount.at("file")).unwrap() == bytes);
        assert_eq!(look(&mount, "file"), before);
        assert!(mount.is_stub("file"), "it is taken back");
        begun(&mount, &bytes);
        fs::rename(mount.at("file"), mount.at("other")).unwrap();
        assert!(mount.is_stub("other"));
        fs::rename(mount.at("other"), mount.at("file")).unwrap();
        begun(&mount, &bytes);
        let file = File::options().write(true).open(mount.at("file")).unwrap();
        file.write_all_at(b"changed", 5 << 20).unwrap();
        drop(file);
        bytes[5 << 20..(5 << 20) + 7].copy_from_slice(b"changed");
        assert!(fs::read(mount.at("file")).unwrap() == bytes);
        assert_eq!(hot(&mount), (0, 0));
        mount.settle();
        assert!(mount.is_stub("file") && fs::read(mount.at("file")).unwrap() == bytes);
        assert_eq!(mount.ctl(&["check", "--deep"])["damaged"].as_array().unwrap().len(), 0);
    }
}

/// A large file is written back as a whole, though who writes to one would not wait for that.
#[test]
fn large_files_are_kept_too() {
    if !root_and_fuse_available() {
        return;
    }
    let mount = mount("hybrid_min = \"256KiB\"\nhot_time = \"3s\"");
    let bytes = noise(7, 10 * LEN);
    let before = stub(&mount, "file", &bytes);
    heat(&mount, "file", &bytes);
    assert_eq!(look(&mount, "file"), before);
    wait_until("a stub again", || mount.is_stub("file"));
    assert_eq!((look(&mount, "file"), versions(&mount, "file")), (before, 1));
}

/// What cannot be written back stays a stub, is named once, and is as readable as before.
#[test]
fn a_damaged_file_stays_a_stub() {
    if !fuse_available() || !root_and_fuse_available() {
        return;
    }
    let mount = mount("");
    let bytes = noise(8, LEN);
    stub(&mount, "file", &bytes);
    mount.unmount();
    let packs = mount.backing().join(".dedupfs/packs");
    let pack = fs::read_dir(packs).unwrap().next().unwrap().unwrap().path();
    let mut stored = fs::read(&pack).unwrap();
    let needle = &bytes[LEN / 2..LEN / 2 + 32];
    let at = stored.windows(32).position(|window| window == needle).expect("noise is stored as it is");
    stored[at] ^= 1;
    fs::write(&pack, stored).unwrap();
    mount.start();
    let before = look(&mount, "file");
    let log = || fs::read_to_string(mount.backing().join(".dedupfs/dedupfs.log")).unwrap();
    let head = || {
        let mut head = vec![0; 4096];
        File::open(mount.at("file")).unwrap().read_exact_at(&mut head, 0).unwrap();
        assert!(head == bytes[..4096]);
    };
    wait_until("tried", || {
        head();
        log().contains("could not be written back")
    });
    (0..OFTEN).for_each(|_| head());
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(log().matches("could not be written back").count(), 1, "{}", log());
    assert!(mount.is_stub("file") && hot(&mount) == (0, 0));
    assert_eq!(look(&mount, "file"), before);
    assert_eq!(fs::read(mount.at("file")).unwrap_err().raw_os_error(), Some(libc::EIO));
}

const CRASH: &str = "DEDUPFS_TEST_HOT_CRASH";

/// Opens and closes a file often, as the kernel would for who reads it. Nobody asks for its pages.
fn read_by_overlay(session: &Session) {
    let overlay = session.overlay();
    let attr = overlay.tree.lookup(ROOT, OsStr::new("file")).unwrap();
    for _ in 0..OFTEN {
        let opened = overlay.tree.open(attr.node, OpenFlags::READ, &|_| None).unwrap();
        overlay.tree.release(&opened.handle);
    }
}

/// Runs in a process of its own, and aborts at a step.
#[test]
fn the_one_that_crashes() {
    let Some(story) = std::env::var_os(CRASH) else { return };
    let story = story.into_string().unwrap();
    let (step, dir) = story.split_once(' ').unwrap();
    let session = Session::open(Path::new(dir)).unwrap();
    session.overlay().tree.set_passes(true);
    session.overlay().tree.abort_at_step(step.parse().unwrap());
    read_by_overlay(&session);
    wait_until("plain by being read", || session.overlay().tree.hot().0 == 1);
    session.overlay().tree.abort_at_step(0);
    // As it is, without an orderly end.
    std::process::exit(0);
}

#[test]
fn a_crash_at_any_step_loses_nothing() {
    let first = fast_dir();
    let run = crate::common::session::dedupctl(&["init", "."], first.path());
    assert!(run.status.success());
    let bytes = noise(9, LEN);
    let session = Session::open(first.path()).unwrap();
    session.write("file", &bytes).unwrap();
    assert!(session.settle().unwrap());
    session.close().unwrap();
    let mut crashes = 0;
    for step in 1.. {
        let temp = fast_dir();
        let dir = temp.path().join("dir");
        copy_tree(first.path(), &dir);
        let attributes = |session: &Session| session.overlay().tree.lookup(ROOT, OsStr::new("file")).unwrap();
        let session = Session::open(&dir).unwrap();
        let before = attributes(&session);
        session.close().unwrap();
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "hot::the_one_that_crashes", "--nocapture"])
            .env(CRASH, format!("{step} {}", dir.display()))
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let ended = output.status.success();
        let aborted = std::os::unix::process::ExitStatusExt::signal(&output.status) == Some(libc::SIGABRT);
        assert!(ended || aborted, "step {step}: {}", crate::common::text(&output));
        let session = Session::open(&dir).unwrap();
        assert!(session.read("file").unwrap() == bytes, "step {step}");
        let after = attributes(&session);
        assert_eq!(
            (after.ctime, after.mtime, after.size),
            (before.ctime, before.mtime, before.size),
            "{step}"
        );
        session.close().unwrap();
        if ended {
            break;
        }
        crashes += 1;
    }
    assert!(crashes >= 4, "only {crashes} crashes");
}
