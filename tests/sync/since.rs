//! Syncs of overlays that are mounted over themselves: the daemon says what has changed, and nothing is walked. What it cannot
//! know is found all the same.
#![allow(clippy::unwrap_used, reason = "a test stops at the first error")]

#[path = "../stress/map.rs"]
#[allow(dead_code, reason = "the stress test needs all of it")]
mod map;

use crate::common::{As, Mount, as_both, text};
use map::{How, Map};
use serde_json::Value;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

struct Pair {
    a: Mount,
    b: Mount,
}

impl Pair {
    fn new(user: As) -> Pair {
        Pair { a: Mount::in_place(user), b: Mount::in_place(user) }
    }

    #[track_caller]
    fn sync(&self) -> Value {
        let mut command = self.a.dedupctl();
        command.arg("sync").arg(self.b.dir()).arg(self.a.dir()).arg("--json");
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", text(&output));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Syncs until the daemons know of no change any more.
    fn settle(&self) {
        for _ in 0..3 {
            self.sync();
        }
    }

    #[track_caller]
    fn assert_same(&self) {
        assert_eq!(files(&self.a.dir()), files(&self.b.dir()));
    }
}

/// What is in a directory, without the store.
fn files(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let (mut found, mut next) = (BTreeMap::new(), vec![dir.to_owned()]);
    while let Some(at) = next.pop() {
        for entry in fs::read_dir(&at).unwrap().map(Result::unwrap) {
            let path = entry.path();
            if [".dedupfs", "DEDUPFS-README.txt"].map(OsString::from).contains(&entry.file_name()) {
                continue;
            }
            let content = match entry.file_type().unwrap() {
                kind if kind.is_dir() => {
                    next.push(path.clone());
                    b"directory".to_vec()
                }
                kind if kind.is_symlink() => {
                    fs::read_link(&path).unwrap().into_os_string().into_encoded_bytes()
                }
                _ => fs::read(&path).unwrap(),
            };
            found.insert(path.strip_prefix(dir).unwrap().to_owned(), content);
        }
    }
    found
}

/// Of a file with the same length and time, only the inode shows that it has changed.
fn rewrite_unseen(path: &Path, content: &str) {
    let time = fs::metadata(path).unwrap().modified().unwrap();
    fs::write(path, content).unwrap();
    fs::File::options().write(true).open(path).unwrap().set_modified(time).unwrap();
}

/// Seen to fail with any list of changes taken for the one that the moment belongs to.
#[test]
fn what_changed_while_not_mounted_is_found() {
    as_both(|user| {
        let pair = Pair::new(user);
        fs::create_dir_all(pair.a.at("d/e")).unwrap();
        fs::write(pair.a.at("d/e/edited"), "one").unwrap();
        fs::write(pair.a.at("d/removed"), "removed").unwrap();
        fs::write(pair.a.at("d/moved"), "moved").unwrap();
        pair.settle();
        pair.assert_same();
        // A stub has no content of its own, so a program replaces it.
        pair.a.unmount();
        fs::remove_file(pair.a.dir().join("d/e/edited")).unwrap();
        fs::write(pair.a.dir().join("d/e/edited"), "two").unwrap();
        fs::remove_file(pair.a.dir().join("d/removed")).unwrap();
        fs::rename(pair.a.dir().join("d/moved"), pair.a.dir().join("d/e/moved")).unwrap();
        fs::write(pair.a.dir().join("new"), "new").unwrap();
        pair.a.start();
        let report = pair.sync();
        assert_eq!(report["there"]["deleted"], 1, "{report}");
        pair.assert_same();
        assert_eq!(fs::read(pair.b.at("d/e/edited")).unwrap(), b"two");
        assert!(pair.b.at("new").exists() && pair.b.at("d/e/moved").exists());
    });
}

#[test]
fn what_changed_before_the_daemon_was_killed_is_found() {
    as_both(|user| {
        let pair = Pair::new(user);
        fs::write(pair.a.at("f"), "one").unwrap();
        pair.settle();
        rewrite_unseen(&pair.a.at("f"), "two");
        fs::write(pair.a.at("new"), "new").unwrap();
        pair.a.kill();
        pair.a.start();
        pair.sync();
        pair.assert_same();
        assert_eq!(fs::read(pair.b.at("f")).unwrap(), b"two");
    });
}

/// An overlay that is mounted elsewhere leaves its directory in reach: a change there passes the daemon by.
#[test]
fn what_changed_below_a_mount_elsewhere_is_found() {
    as_both(|user| {
        let pair = Pair { a: Mount::new(user), b: Mount::in_place(user) };
        let sync = || {
            let mut command = pair.a.dedupctl();
            let output = command.arg("sync").arg(pair.b.dir()).arg(pair.a.mnt()).output().unwrap();
            assert_eq!(output.status.code(), Some(0), "{}", text(&output));
        };
        fs::create_dir(pair.a.at("d")).unwrap();
        fs::write(pair.a.at("d/old"), "old").unwrap();
        (0..3).for_each(|_| sync());
        fs::write(pair.a.backing().join("d/new"), "new").unwrap();
        sync();
        assert_eq!(fs::read(pair.b.at("d/new")).unwrap(), b"new");
    });
}

/// Each kind of change alone, so that it cannot be found by way of another one.
#[test]
fn each_kind_of_change_is_found() {
    as_both(|user| {
        let pair = Pair::new(user);
        let at = |path: &str| pair.a.at(path);
        fs::create_dir_all(at("d/e")).unwrap();
        for name in ["d/f", "d/g", "d/e/h", "top", "linked"] {
            fs::write(at(name), name).unwrap();
        }
        fs::hard_link(at("linked"), at("d/link")).unwrap();
        pair.settle();
        let changes: [(&str, &dyn Fn()); 14] = [
            ("unseen", &|| rewrite_unseen(&at("d/f"), "D/F")),
            ("new", &|| fs::write(at("d/new"), "new").unwrap()),
            ("replaced", &|| {
                fs::write(at("d/tmp"), "by a rename").unwrap();
                fs::rename(at("d/tmp"), at("d/g")).unwrap();
            }),
            ("through a link", &|| fs::write(at("linked"), "through a link").unwrap()),
            ("directory renamed", &|| fs::rename(at("d/e"), at("e")).unwrap()),
            ("file in it", &|| fs::write(at("e/h"), "in it").unwrap()),
            ("tree", &|| {
                fs::create_dir_all(at("x/y/z")).unwrap();
                fs::write(at("x/y/z/f"), "f").unwrap();
            }),
            ("tree moved", &|| fs::rename(at("x/y"), at("d/y")).unwrap()),
            ("directory for a file", &|| {
                fs::remove_file(at("top")).unwrap();
                fs::create_dir(at("top")).unwrap();
                fs::write(at("top/f"), "f").unwrap();
            }),
            ("symlink", &|| symlink("d/f", at("symlink")).unwrap()),
            ("symlink replaced", &|| {
                fs::remove_file(at("symlink")).unwrap();
                symlink("d/g", at("symlink")).unwrap();
            }),
            ("removed", &|| fs::remove_file(at("d/new")).unwrap()),
            ("tree removed", &|| fs::remove_dir_all(at("d/y")).unwrap()),
            ("shorter", &|| fs::File::options().write(true).open(at("e/h")).unwrap().set_len(1).unwrap()),
        ];
        for (name, change) in changes {
            change();
            let report = pair.sync();
            assert_eq!(files(&pair.a.dir()), files(&pair.b.dir()), "{name}: {report}");
            assert_eq!(pair.sync()["sent_bytes"].as_u64().map(|sent| sent < 1000), Some(true), "{name}");
        }
    });
}

/// A program that keeps its file open, or mapped, changes it without a word to anyone. Seen to fail if such files do not count.
#[test]
fn what_an_open_file_gets_is_found() {
    as_both(|user| {
        let pair = Pair::new(user);
        let mut file = fs::File::create(pair.a.at("log")).unwrap();
        let mut lines = String::new();
        for line in ["one\n", "two\n", "three\n"] {
            file.write_all(line.as_bytes()).unwrap();
            lines.push_str(line);
            std::thread::sleep(Duration::from_millis(150));
            pair.sync();
            assert_eq!(fs::read_to_string(pair.b.at("log")).unwrap(), lines);
        }
        drop(file);
        pair.sync();
        fs::write(pair.a.at("mapped"), vec![b'a'; 4096]).unwrap();
        let file = fs::File::options().read(true).write(true).open(pair.a.at("mapped")).unwrap();
        let map = Map::new(&file, 4096, How::Writable).unwrap();
        drop(file);
        for n in 0..4 {
            map.set(n, n as u64);
            // The next write has a time of its own only if the page was written back.
            map.sync().unwrap();
            std::thread::sleep(Duration::from_millis(150));
            pair.sync();
        }
        map.set(4, 4);
        drop(map);
        std::thread::sleep(Duration::from_millis(150));
        pair.sync();
        let expected: Vec<u8> = (0..5).flat_map(u64::to_ne_bytes).collect();
        assert_eq!(fs::read(pair.b.at("mapped")).unwrap()[..40], expected);
    });
}

#[test]
fn what_changes_during_a_sync_is_not_lost() {
    as_both(|user| {
        let pair = Pair::new(user);
        for n in 0..200 {
            fs::create_dir_all(pair.a.at(&format!("d{}", n % 10))).unwrap();
            fs::write(pair.a.at(&format!("d{}/{n}", n % 10)), format!("{n}")).unwrap();
        }
        pair.settle();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut n = 0;
                while !stop.load(Ordering::Relaxed) {
                    let path = |n: usize| pair.a.at(&format!("d{}/{}", n % 10, n % 200));
                    let _ = match n % 4 {
                        0 => fs::write(path(n), format!("changed {n}")),
                        1 => fs::rename(path(n), path(n + 20)),
                        2 => fs::write(pair.a.at(&format!("d{}/new {}", n % 10, n % 130)), "new"),
                        _ => fs::remove_file(path(n)),
                    };
                    n += 7;
                    std::thread::sleep(Duration::from_millis(10));
                }
            });
            for _ in 0..4 {
                // Files that change meanwhile may wait, or end it.
                pair.a.dedupctl().arg("sync").arg(pair.b.dir()).arg(pair.a.dir()).output().unwrap();
            }
            stop.store(true, Ordering::Relaxed);
        });
        std::thread::sleep(Duration::from_millis(150));
        let sync = || pair.a.dedupctl().arg("sync").arg(pair.b.dir()).arg(pair.a.dir()).output().unwrap();
        // Conflicts that came of it are reported once.
        let codes: Vec<Option<i32>> = (0..4).map(|_| sync().status.code()).collect();
        assert_eq!(codes[2..], [Some(0); 2], "{codes:?}");
        pair.assert_same();
    });
}

/// The rules decide what was examined.
#[test]
fn a_new_rule_is_not_missed() {
    as_both(|user| {
        let pair = Pair::new(user);
        fs::write(pair.a.at(".dedupfsignore"), "*.o\nbuild/\n").unwrap();
        fs::create_dir(pair.a.at("build")).unwrap();
        fs::write(pair.a.at("build/f"), "f").unwrap();
        fs::write(pair.a.at("x.o"), "x").unwrap();
        pair.settle();
        assert!(!pair.b.at("x.o").exists() && !pair.b.at("build").exists());
        fs::write(pair.a.at("build/g"), "g").unwrap();
        pair.sync();
        assert!(!pair.b.at("build").exists());
        fs::write(pair.a.at(".dedupfsignore"), "").unwrap();
        pair.sync();
        pair.assert_same();
        assert!(pair.b.at("build/g").exists() && pair.b.at("x.o").exists());
    });
}

/// Returns whether a sync examined files, and its standard error.
#[track_caller]
fn examined(pair: &Pair) -> (bool, String) {
    let mut command = pair.a.dedupctl();
    command.arg("sync").arg(pair.b.dir()).arg(pair.a.dir()).env("DEDUPFS_LOG", "debug");
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    (log.contains("have changed since the last sync"), log)
}

/// New directories, a replaced file, a renamed and a removed one: the sync that brings them need not look at them again.
#[test]
fn a_sync_does_not_examine_its_own_changes() {
    as_both(|user| {
        let pair = Pair::new(user);
        let at = |path: &str| pair.a.dir().join(path);
        for dir in ["one", "one/below", "two"] {
            fs::create_dir(at(dir)).unwrap();
            for n in 0..20 {
                fs::write(at(&format!("{dir}/{n}")), format!("{dir} {n}").repeat(50)).unwrap();
            }
        }
        symlink("below/3", at("one/link")).unwrap();
        let sync = || {
            // The side that made the changes looks at its written files once more, unless its daemon is a new one.
            pair.a.unmount();
            pair.a.start();
            pair.sync();
            pair.assert_same();
        };
        sync();
        let (again, log) = examined(&pair);
        assert!(!again, "{log}");
        fs::write(at("one/3"), "edited").unwrap();
        fs::rename(at("one/4"), at("two/moved")).unwrap();
        fs::remove_file(at("two/5")).unwrap();
        sync();
        let (again, log) = examined(&pair);
        assert!(!again, "{log}");
        // Files that arrived are ordinary ones.
        fs::write(pair.b.dir().join("one/below/7"), "edited there").unwrap();
        fs::remove_dir_all(pair.b.dir().join("two")).unwrap();
        pair.sync();
        pair.assert_same();
        assert_eq!(fs::read(at("one/below/7")).unwrap(), b"edited there");
    });
}

/// The daemon never saw them being written.
#[test]
fn files_that_a_sync_staged_below_the_mount_are_converted() {
    as_both(|user| {
        let pair = Pair::new(user);
        fs::create_dir(pair.a.dir().join("new")).unwrap();
        fs::write(pair.b.dir().join("there"), "there before").unwrap();
        pair.sync();
        for name in ["new/one", "new/two", "single", "there"] {
            fs::write(pair.a.dir().join(name), name.repeat(2000)).unwrap();
        }
        pair.sync();
        let status = pair.b.ctl(&["status"]);
        let number = |field: &str| status[field].as_u64();
        assert_eq!((number("files"), number("plain_bytes")), (Some(4), Some(0)), "{status}");
        pair.assert_same();
    });
}
