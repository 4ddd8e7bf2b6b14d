//! Snapshots on real mounts: taken at one moment, looked into, compared, brought back, removed.
#![allow(clippy::unwrap_used, reason = "a test stops at the first error")]

use crate::common::{As, Mount, as_both, fuse_available, noise, prose, text};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

fn create(mount: &Mount, args: &[&str]) -> String {
    let report = mount.ctl(&[&["snapshot", "create"], args].concat());
    report["snapshots"][0]["id"].as_str().unwrap().to_owned()
}

fn ids(mount: &Mount) -> Vec<String> {
    let list = mount.ctl(&["snapshot", "list"]);
    list["snapshots"].as_array().unwrap().iter().map(|row| row["id"].as_str().unwrap().to_owned()).collect()
}

fn fails(mount: &Mount, args: &[&str]) -> String {
    let output = mount.dedupctl().args(args).current_dir(mount.mnt()).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{args:?}: {}", text(&output));
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Mode, mtime, owner, content or target.
type Seen = (u32, (i64, i64), u32, Vec<u8>);
/// What changes something, by what it is.
type Steps<'a> = Vec<(&'static str, Box<dyn Fn() + 'a>)>;

/// All there is below a directory.
fn image(top: &Path) -> BTreeMap<PathBuf, Seen> {
    let (mut found, mut left) = (BTreeMap::new(), vec![top.to_owned()]);
    while let Some(dir) = left.pop() {
        for entry in fs::read_dir(&dir).unwrap() {
            let path = entry.unwrap().path();
            let meta = path.symlink_metadata().unwrap();
            let content = if meta.is_dir() {
                left.push(path.clone());
                Vec::new()
            } else if meta.is_symlink() {
                fs::read_link(&path).unwrap().into_os_string().into_encoded_bytes()
            } else if meta.is_file() {
                fs::read(&path).unwrap()
            } else {
                Vec::new()
            };
            let time = (meta.mtime(), meta.mtime_nsec());
            found
                .insert(path.strip_prefix(top).unwrap().to_owned(), (meta.mode(), time, meta.uid(), content));
        }
    }
    found
}

fn populate(mount: &Mount) {
    fs::create_dir_all(mount.at("src/deep/er")).unwrap();
    fs::create_dir(mount.at("empty")).unwrap();
    for i in 0..30u64 {
        fs::write(mount.at(&format!("src/f{i:02}")), prose(i, 3_000 + 100 * i as usize)).unwrap();
    }
    fs::write(mount.at("src/deep/er/large"), noise(99, 400_000)).unwrap();
    fs::write(mount.at("src/none"), b"").unwrap();
    symlink("deep/er/large", mount.at("src/link")).unwrap();
    fs::hard_link(mount.at("src/f01"), mount.at("src/deep/second")).unwrap();
    fs::set_permissions(mount.at("src/f02"), fs::Permissions::from_mode(0o4711)).unwrap();
    let old = SystemTime::UNIX_EPOCH + Duration::new(1_234_567, 89);
    fs::File::options().write(true).open(mount.at("src/f03")).unwrap().set_modified(old).unwrap();
}

#[test]
fn a_snapshot_is_looked_into_and_brought_back() {
    as_both(|user| {
        let mount = Mount::in_place(user);
        populate(&mount);
        let name = std::ffi::OsStr::new("user.note");
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(mount.at("src/f04"), name, b"kept", flags).unwrap();
        mount.settle();
        let before = image(&mount.at("src"));
        let id = create(&mount, &["--name", "first"]);
        let second = create(&mount, &[]);
        assert_eq!(ids(&mount), [id.clone(), second.clone()]);
        let rows = mount.ctl(&["snapshot", "list"]);
        assert_eq!(rows["snapshots"][0]["root"], rows["snapshots"][1]["root"], "nothing changed: {rows}");
        assert_eq!(rows["snapshots"][0]["files"], 33, "{rows}");

        // Hidden, and there.
        let names: Vec<_> =
            fs::read_dir(mount.mnt()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert!(!names.contains(&".snapshots".into()), "{names:?}");
        for dir in [format!(".snapshots/{id}/src"), ".snapshots/first/src".to_owned()] {
            assert!(image(&mount.at(&dir)) == before, "{dir}");
        }
        assert_eq!(fs::read_dir(mount.at(".snapshots")).unwrap().count(), 2);
        let note = crate::common::xattr(&mount.at(".snapshots/first/src/f04"), "user.note");
        assert_eq!(note.as_deref(), Some(&b"kept"[..]));
        // For reading only.
        for path in [".snapshots/first/src/f00", ".snapshots/first/new", ".snapshots/new"] {
            let error = fs::write(mount.at(path), b"x").unwrap_err();
            let refused = [Some(libc::EROFS), Some(libc::EACCES)];
            assert!(refused.contains(&error.raw_os_error()), "{path}: {error}");
        }
        for failed in [
            fs::remove_file(mount.at(".snapshots/first/src/f00")),
            fs::rename(mount.at("src/f00"), mount.at(".snapshots/first/f00")),
            fs::create_dir(mount.at(".snapshots/first/dir")),
            fs::hard_link(mount.at(".snapshots/first/src/f00"), mount.at("hard")),
        ] {
            failed.unwrap_err();
        }
        let file = fs::File::open(mount.at(".snapshots/first/src/deep/er/large")).unwrap();
        let mut part = vec![0; 1000];
        file.read_exact_at(&mut part, 123_456).unwrap();
        assert!(part == noise(99, 400_000)[123_456..124_456]);
        drop(file);

        // Everything changes.
        fs::write(mount.at("src/f00"), b"other").unwrap();
        fs::remove_file(mount.at("src/f05")).unwrap();
        fs::rename(mount.at("src/deep"), mount.at("moved")).unwrap();
        fs::write(mount.at("src/added"), prose(1, 9_000)).unwrap();
        fs::set_permissions(mount.at("src/f06"), fs::Permissions::from_mode(0o600)).unwrap();
        mount.settle();
        let diff = mount.ctl(&["snapshot", "diff", "first"]);
        let rows: BTreeMap<String, String> = diff["differences"]
            .as_array()
            .unwrap()
            .iter()
            .map(|row| (row["path"].as_str().unwrap().to_owned(), row["how"].as_str().unwrap().to_owned()))
            .collect();
        for (path, how) in [
            ("src/f00", "changed"),
            ("src/f05", "removed"),
            ("src/deep/er/large", "removed"),
            ("moved/er/large", "added"),
            ("src/added", "added"),
            ("src/f06", "attributes"),
        ] {
            assert_eq!(rows.get(path).map(String::as_str), Some(how), "{path}: {rows:?}");
        }
        assert!(!rows.contains_key("src/f07"), "{rows:?}");
        assert_eq!(ids(&mount).len(), 2, "what was compared with is gone again");
        assert!(image(&mount.at(".snapshots/first/src")) == before);

        // To another place, one file in place, then all of it.
        let out = mount.root.path().join("home/out");
        mount.ctl(&["snapshot", "restore", "first", "src", "-o", out.to_str().unwrap()]);
        assert!(image(&out) == before, "to another place");
        let link = |name: &str| out.join(name).metadata().unwrap().ino();
        assert_eq!(link("f01"), link("deep/second"), "hard links are");
        assert!(
            fails(&mount, &["snapshot", "restore", "first", "-o", out.to_str().unwrap()]).contains("exists")
        );
        mount.ctl(&["snapshot", "restore", "first", "src/f05"]);
        assert!(fs::read(mount.at("src/f05")).unwrap() == prose(5, 3_500));
        let done = mount.ctl(&["snapshot", "restore", "first", "--delete"]);
        assert_eq!(done["restored"]["errors"], serde_json::json!([]), "{done}");
        assert!(image(&mount.at("src")) == before, "{done}");
        assert!(!mount.at("moved").exists());
        // What was removed and overwritten for it can be had.
        mount.ctl(&["restore", "src/added"]);
        assert!(fs::read(mount.at("src/added")).unwrap() == prose(1, 9_000));

        mount.ctl(&["snapshot", "remove", "first"]);
        assert_eq!(ids(&mount), std::slice::from_ref(&second));
        assert!(fails(&mount, &["snapshot", "show", "first"]).contains("there is no such snapshot"));
        mount.remount();
        assert_eq!(ids(&mount), std::slice::from_ref(&second));
        assert!(image(&mount.at(&format!(".snapshots/{second}/src"))) == before);
    });
}

/// What is found again by what changed is what a walk of everything finds: the hash of the tree says so.
#[test]
fn changes_alone_make_the_same_tree_as_a_walk() {
    if !fuse_available() {
        return;
    }
    let mount = Mount::in_place(As::Root);
    populate(&mount);
    fs::create_dir(mount.at("many")).unwrap();
    for i in 0..1_500u64 {
        fs::write(mount.at(&format!("many/n{i:04}")), format!("{i}")).unwrap();
    }
    mount.settle();
    let first = mount.ctl(&["snapshot", "create"]);
    assert_eq!(first["walked"], true);
    let steps: Steps<'_> = vec![
        ("nothing", Box::new(|| {})),
        ("a file is written", Box::new(|| fs::write(mount.at("many/n0700"), b"another").unwrap())),
        ("a file is made", Box::new(|| fs::write(mount.at("many/new"), b"new").unwrap())),
        (
            "a file is appended to",
            Box::new(|| {
                let mut file = fs::OpenOptions::new().append(true).open(mount.at("src/f09")).unwrap();
                file.write_all(b"more").unwrap();
            }),
        ),
        (
            "one takes the place of another",
            Box::new(|| fs::rename(mount.at("many/new"), mount.at("many/n0001")).unwrap()),
        ),
        ("a name of two goes", Box::new(|| fs::remove_file(mount.at("src/deep/second")).unwrap())),
        (
            "one is linked",
            Box::new(|| fs::hard_link(mount.at("src/f10"), mount.at("src/deep/er/f10")).unwrap()),
        ),
        (
            "the other name is changed by the one",
            Box::new(|| {
                fs::set_permissions(mount.at("src/f10"), fs::Permissions::from_mode(0o444)).unwrap();
            }),
        ),
        ("a directory moves", Box::new(|| fs::rename(mount.at("src/deep"), mount.at("empty/deep")).unwrap())),
        (
            "a file in it is changed",
            Box::new(|| fs::write(mount.at("empty/deep/er/large"), b"small").unwrap()),
        ),
        (
            "two change places",
            Box::new(|| {
                let (cwd, flags) = (rustix::fs::CWD, rustix::fs::RenameFlags::EXCHANGE);
                rustix::fs::renameat_with(cwd, mount.at("src"), cwd, mount.at("many"), flags).unwrap();
            }),
        ),
        (
            "attributes",
            Box::new(|| {
                let flags = rustix::fs::XattrFlags::empty();
                rustix::fs::setxattr(mount.at("many/f11"), "user.x", b"1", flags).unwrap();
                fs::set_permissions(mount.at("many"), fs::Permissions::from_mode(0o700)).unwrap();
            }),
        ),
        ("a tree goes", Box::new(|| fs::remove_dir_all(mount.at("empty/deep")).unwrap())),
        (
            "a file becomes a directory",
            Box::new(|| {
                fs::remove_file(mount.at("many/f12")).unwrap();
                fs::create_dir(mount.at("many/f12")).unwrap();
                fs::write(mount.at("many/f12/in"), b"it").unwrap();
            }),
        ),
        ("it is emptied", Box::new(|| drop(fs::File::create(mount.at("many/f13")).unwrap()))),
        (
            "a directory of the same name",
            Box::new(|| {
                fs::rename(mount.at("many/f12"), mount.at("many/old")).unwrap();
                fs::create_dir(mount.at("many/f12")).unwrap();
            }),
        ),
        (
            "a symlink is another",
            Box::new(|| {
                fs::remove_file(mount.at("many/link")).unwrap();
                symlink("elsewhere", mount.at("many/link")).unwrap();
            }),
        ),
    ];
    let mut walks = 0;
    for (what, step) in steps {
        step();
        mount.settle();
        let few = mount.ctl(&["snapshot", "create"]);
        // The kernel may forget a removed file before its change is looked up: then a walk finds what changed.
        let walked = few["walked"] == true;
        walks += u32::from(walked);
        // A directory that moved is read as a whole.
        let is_little = few["looked_at"].as_u64().unwrap() < 60;
        assert!(is_little || walked || what == "two change places", "{what}: {few}");
        let all = mount.ctl(&["snapshot", "create", "--walk"]);
        assert_eq!(all["walked"], true);
        for field in ["root", "files", "bytes"] {
            assert_eq!(few["snapshots"][0][field], all["snapshots"][0][field], "{what}: {few} {all}");
        }
    }
    assert!(walks <= 2, "{walks} walks");
}

/// Tells threads to stop, whatever became of who started them.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Two files are renamed together all the time, and written by whole saves: in every snapshot both have moved or neither,
/// and no file is half written.
#[test]
fn a_snapshot_is_of_one_moment() {
    if !fuse_available() {
        return;
    }
    let mount = Mount::in_place(As::Root);
    for dir in 0..40 {
        fs::create_dir(mount.at(&format!("d{dir:02}"))).unwrap();
        for i in 0..20 {
            fs::write(mount.at(&format!("d{dir:02}/f{i}")), format!("{dir} {i}")).unwrap();
        }
    }
    let content = |i: u64| prose(i, 20_000 + (i % 7) as usize * 9_000);
    fs::write(mount.at("saved"), content(0)).unwrap();
    mount.settle();
    let stop = AtomicBool::new(false);
    let mut taken = Vec::new();
    std::thread::scope(|scope| {
        let (mount, stop) = (&mount, &stop);
        // Also when a snapshot fails: a scope waits for its threads.
        let _stopper = StopOnDrop(stop);
        scope.spawn(move || {
            fs::write(mount.at("d00/walker"), b"here").unwrap();
            for i in 0u64.. {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                // From the last directory to the first and back: across the front of a walk.
                let (from, to) = if i.is_multiple_of(2) { ("d00", "d39") } else { ("d39", "d00") };
                fs::rename(mount.at(&format!("{from}/walker")), mount.at(&format!("{to}/walker"))).unwrap();
            }
        });
        scope.spawn(move || {
            for i in 1u64.. {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                let mut file = fs::File::create(mount.at(".saved.tmp")).unwrap();
                for part in content(i).chunks(3_000) {
                    file.write_all(part).unwrap();
                }
                drop(file);
                fs::rename(mount.at(".saved.tmp"), mount.at("saved")).unwrap();
            }
        });
        for i in 0..6 {
            let args: &[&str] = if i % 2 == 0 { &["--walk"] } else { &[] };
            taken.push(create(mount, args));
            std::thread::sleep(Duration::from_millis(30));
        }
    });
    for id in taken {
        let at = |name: &str| mount.at(&format!(".snapshots/{id}/{name}"));
        let walkers = [at("d00/walker"), at("d39/walker")].iter().filter(|path| path.exists()).count();
        assert_eq!(walkers, 1, "{id}");
        let saved = fs::read(at("saved")).unwrap();
        let whole =
            (0..4_000u64).any(|i| 20_000 + (i % 7) as usize * 9_000 == saved.len() && content(i) == saved);
        assert!(whole, "{id}: {} bytes", saved.len());
    }
}

/// One file is saved after the other, in place and the first one slowly, and two are written to in turns while they stay open: the
/// second save is not seen without the first, no save is seen in part, and those that stay open are both as before.
#[test]
fn open_files_are_seen_at_one_moment() {
    if !fuse_available() {
        return;
    }
    let mount = Mount::in_place(As::Root);
    let content = |i: u64| format!("{i:08}\n").repeat(3_000);
    for name in ["first", "second", "left", "right"] {
        fs::write(mount.at(name), content(0)).unwrap();
    }
    mount.settle();
    let stop = AtomicBool::new(false);
    let mut taken = Vec::new();
    std::thread::scope(|scope| {
        let (mount, stop) = (&mount, &stop);
        let _stopper = StopOnDrop(stop);
        scope.spawn(move || {
            for i in 1u64.. {
                // Slow enough to be met at any moment, and open again before it is taken in.
                let mut file = fs::File::create(mount.at("first")).unwrap();
                for part in content(i).as_bytes().chunks(7_000) {
                    file.write_all(part).unwrap();
                    std::thread::sleep(Duration::from_millis(20));
                }
                drop(file);
                fs::write(mount.at("second"), content(i)).unwrap();
                if stop.load(Ordering::Relaxed) {
                    return;
                }
            }
        });
        scope.spawn(move || {
            let open = |name| fs::OpenOptions::new().write(true).open(mount.at(name)).unwrap();
            let (left, right) = (open("left"), open("right"));
            for i in 1u64.. {
                for file in [&left, &right] {
                    file.write_all_at(content(i).as_bytes(), 0).unwrap();
                    std::thread::sleep(Duration::from_millis(1));
                }
                if stop.load(Ordering::Relaxed) {
                    return;
                }
            }
        });
        std::thread::sleep(Duration::from_millis(300));
        for i in 0..8 {
            let args: &[&str] = if i % 2 == 0 { &["--walk"] } else { &[] };
            taken.push(create(mount, args));
            std::thread::sleep(Duration::from_millis(70));
        }
    });
    for id in taken {
        let number = |name: &str| {
            let found = fs::read_to_string(mount.at(&format!(".snapshots/{id}/{name}"))).unwrap();
            let number: u64 = found[..8].parse().unwrap();
            assert!(found == content(number), "{id}: {name} is half written");
            number
        };
        let (first, second) = (number("first"), number("second"));
        assert!(first == second || first == second + 1, "{id}: the first {first}, the second {second}");
        assert_eq!((number("left"), number("right")), (0, 0), "{id}");
    }
}

/// A file that is being written to is as it was last closed.
#[test]
fn a_file_that_is_open_is_as_it_was_closed() {
    if !fuse_available() {
        return;
    }
    let mount = Mount::new(As::Root);
    fs::write(mount.at("file"), prose(1, 10_000)).unwrap();
    mount.settle();
    let mut open = fs::OpenOptions::new().append(true).open(mount.at("file")).unwrap();
    open.write_all(b"half of a sentence").unwrap();
    let mut new = fs::File::create(mount.at("new")).unwrap();
    new.write_all(b"not whole yet").unwrap();
    let report = mount.ctl(&["snapshot", "create", "--name", "open"]);
    assert_eq!(report["snapshots"][0]["open"], 2, "{report}");
    assert!(fs::read(mount.at(".snapshots/open/file")).unwrap() == prose(1, 10_000));
    assert!(!mount.at(".snapshots/open/new").exists());
    drop((open, new));
    let report = mount.ctl(&["snapshot", "create", "--name", "closed"]);
    assert_eq!(report["snapshots"][0]["open"], 0, "{report}");
    assert_eq!(fs::read(mount.at(".snapshots/closed/new")).unwrap(), b"not whole yet");
}

/// Snapshots keep what they need from being collected, and give it back when they are removed; all of it is in the packs.
#[test]
fn snapshots_keep_what_they_need() {
    if !fuse_available() {
        return;
    }
    let mount = Mount::without_history(As::Root);
    let len = 300_000;
    for i in 0..10u64 {
        fs::write(mount.at(&format!("f{i}")), noise(i, len)).unwrap();
    }
    let id = create(&mount, &[]);
    (0..10u64).for_each(|i| fs::remove_file(mount.at(&format!("f{i}"))).unwrap());
    mount.settle();
    let done = mount.ctl(&["gc"]);
    assert_eq!(done["snapshots"], 1);
    assert!(done["kept_for_history_bytes"].as_u64().unwrap() > 10 * len as u64, "{done}");
    mount.kill();
    mount.start();
    mount.unmount();
    fs::remove_dir_all(mount.dir().join(".dedupfs/index")).unwrap();
    mount.start();
    mount.ctl(&["gc"]);
    for i in 0..10u64 {
        assert!(fs::read(mount.at(&format!(".snapshots/{id}/f{i}"))).unwrap() == noise(i, len));
    }
    mount.ctl(&["snapshot", "remove", &id]);
    let done = mount.ctl(&["gc"]);
    assert!(done["reclaimed_bytes"].as_u64().unwrap() > 9 * len as u64, "{done}");
    mount.unmount();
    fs::remove_dir_all(mount.dir().join(".dedupfs/index")).unwrap();
    mount.start();
    assert_eq!(ids(&mount), [""; 0], "one that was removed does not come back with a new index");
    assert_eq!(mount.ctl(&["check", "--deep"])["damaged"], serde_json::json!([]));
}

/// The rules give up what has no name, but for the newest; a name keeps a snapshot until it is removed.
#[test]
fn a_name_keeps_a_snapshot_and_the_rules_the_newest() {
    if !fuse_available() {
        return;
    }
    let mount = Mount::prepare(As::Root);
    mount.init("[history]\nall = \"2s\"\nhourly = 0\ndaily = 0\nweekly = 0\nmonthly = 0");
    mount.start();
    let put = |i: u64| {
        fs::write(mount.at("file"), noise(i, 300_000)).unwrap();
        mount.settle();
    };
    put(1);
    let first = create(&mount, &[]);
    put(2);
    let named = create(&mount, &["--name", "kept"]);
    put(3);
    let newest = create(&mount, &[]);
    put(4);
    assert_eq!(ids(&mount), [first.clone(), named.clone(), newest.clone()]);
    mount.ctl(&["gc"]);
    assert_eq!(ids(&mount).len(), 3, "all are young");
    std::thread::sleep(Duration::from_millis(3_100));
    let plan = mount.ctl(&["gc", "--dry-run"]);
    assert_eq!((plan["snapshots"].as_u64(), ids(&mount).len()), (Some(2), 3), "{plan}");
    let done = mount.ctl(&["gc"]);
    assert!((300_000..400_000).contains(&done["reclaimed_bytes"].as_u64().unwrap()), "one content: {done}");
    assert_eq!(ids(&mount), [named.clone(), newest.clone()]);
    for (id, i) in [(&named, 2), (&newest, 3)] {
        assert!(fs::read(mount.at(&format!(".snapshots/{id}/file"))).unwrap() == noise(i, 300_000), "{i}");
    }
    mount.ctl(&["snapshot", "remove", "kept"]);
    assert!(mount.ctl(&["gc"])["reclaimed_bytes"].as_u64().unwrap() > 290_000);
    assert!(fs::read(mount.at(&format!(".snapshots/{newest}/file"))).unwrap() == noise(3, 300_000));
}

/// What was never taken into the store by itself has no versions; snapshots have it.
#[test]
fn the_log_of_a_plain_file_names_the_snapshots_that_have_it() {
    if !fuse_available() {
        return;
    }
    let mount = Mount::prepare(As::Root);
    mount.init("dedup = \"off\"");
    mount.start();
    let first = create(&mount, &["--name", "before"]);
    fs::write(mount.at("file"), prose(1, 9_000)).unwrap();
    let second = create(&mount, &["--name", "with"]);
    fs::write(mount.at("file"), prose(2, 9_500)).unwrap();
    let third = create(&mount, &[]);
    let log = mount.ctl(&["log", "file"]);
    assert_eq!(log["versions"], serde_json::json!([]), "{log}");
    let rows = log["snapshots"].as_array().unwrap();
    let found: Vec<_> = rows
        .iter()
        .map(|row| {
            (row["id"].as_str().unwrap(), row["name"].as_str().unwrap(), row["size"].as_u64().unwrap())
        })
        .collect();
    assert_eq!(found, [(&*second, "with", 9_000), (&*third, "", 9_500)], "not in {first}");
    let output = mount.dedupctl().args(["log", "file"]).current_dir(mount.mnt()).output().unwrap();
    assert!(text(&output).contains("It is in 2 snapshots"), "{}", text(&output));
    fs::remove_file(mount.at("file")).unwrap();
    assert_eq!(mount.ctl(&["log", "file"])["snapshots"].as_array().unwrap().len(), 2, "also when it is gone");
    mount.ctl(&["snapshot", "restore", "with", "file"]);
    assert!(fs::read(mount.at("file")).unwrap() == prose(1, 9_000));
}

#[test]
fn misuse_is_told_of() {
    if !fuse_available() {
        return;
    }
    let mount = Mount::new(As::Root);
    fs::write(mount.at("file"), b"x").unwrap();
    create(&mount, &["--name", "one"]);
    for (args, said) in [
        (&["snapshot", "create", "--name", "one"][..], "there is one already"),
        (&["snapshot", "create", "--name", "a/b"], "expected one that a directory could have"),
        (&["snapshot", "create", "--name", "beef"], "could be taken for the beginning of an id"),
        (&["snapshot", "remove", "two"], "there is no such snapshot"),
        (&["snapshot", "show", "one", "nothing"], "not in snapshot"),
        (&["snapshot", "restore", "one", "nothing"], "not in snapshot"),
        (&["snapshot", "diff", "one", "two"], "there is no such snapshot"),
    ] {
        let error = fails(&mount, args);
        assert!(error.contains(said) && error.contains("hint:"), "{args:?}: {error}");
    }
    let shown: Value = mount.ctl(&["snapshot", "show", "one"]);
    assert_eq!(shown["entries"][0]["name"], "file", "{shown}");
}
