//! Real mounts, as root with kernel passthrough and as an ordinary user through fusermount3.
#![allow(clippy::unwrap_used, reason = "a test stops at the first error")]

use crate::common::{As, Mount, as_both, fuse_available, noise, prose, succeed, text, xattr};
use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Names, kinds, modes, sizes, times and content of a tree.
fn snapshot(root: &Path) -> BTreeSet<String> {
    fn visit(root: &Path, dir: &Path, found: &mut BTreeSet<String>) {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            let meta = fs::symlink_metadata(&path).unwrap();
            let content = if meta.is_file() {
                blake3::hash(&fs::read(&path).unwrap()).to_string()
            } else if meta.is_symlink() {
                fs::read_link(&path).unwrap().display().to_string()
            } else {
                String::new()
            };
            let size = if meta.is_dir() { 0 } else { meta.len() };
            let name = path.strip_prefix(root).unwrap().display().to_string();
            found.insert(format!(
                "{name} {:o} {size} {} {}.{} {content}",
                meta.mode(),
                meta.nlink(),
                meta.mtime(),
                meta.mtime_nsec()
            ));
            if meta.is_dir() {
                visit(root, &path, found);
            }
        }
    }
    let mut found = BTreeSet::new();
    visit(root, root, &mut found);
    found
}

#[test]
fn what_is_written_comes_back_and_takes_no_room() {
    as_both(|user| {
        let mount = Mount::new(user);
        fs::create_dir_all(mount.at("a/b")).unwrap();
        for (name, bytes) in [
            ("a/one", noise(1, 300_000)),
            ("a/b/two", noise(1, 300_000)),
            ("a/text", prose(1, 100_000)),
            ("a/small", b"tiny".to_vec()),
            ("a/empty", Vec::new()),
            ("big", noise(2, 5_000_000)),
        ] {
            fs::write(mount.at(name), bytes).unwrap();
        }
        fs::hard_link(mount.at("big"), mount.at("a/big-too")).unwrap();
        std::os::unix::fs::symlink("a/one", mount.at("link")).unwrap();
        let before = snapshot(&mount.mnt());
        mount.settle();
        assert_eq!(snapshot(&mount.mnt()), before, "conversion must not show");
        for name in ["a/one", "a/b/two", "a/text", "a/small", "big"] {
            assert!(mount.is_stub(name), "{name} {user_is_root}", user_is_root = user == As::Root);
            assert_eq!(mount.below(name), (0, 0), "{name}: a stub takes no blocks");
        }
        assert!(!mount.is_stub("a/empty"));
        mount.remount();
        assert_eq!(snapshot(&mount.mnt()), before);
        let status = mount.ctl(&["status"]);
        assert_eq!(status["mounted"], true);
        assert_eq!(status["pending"], 0);
        // The two equal files are stored once.
        assert!(status["unique_bytes"].as_u64().unwrap() < 5_450_000, "{status}");
        assert!(status["unique_bytes"].as_u64().unwrap() > 5_300_000, "{status}");
        let check = mount.ctl(&["check"]);
        assert_eq!(check["damaged"].as_array().unwrap().len(), 0, "{check}");
    });
}

#[test]
fn in_place_the_mount_hides_the_directory() {
    as_both(|user| {
        let mount = Mount::in_place(user);
        fs::write(mount.at("file"), prose(3, 50_000)).unwrap();
        mount.settle();
        assert_eq!(fs::read(mount.at("file")).unwrap(), prose(3, 50_000));
        assert!(!mount.at(".dedupfs").exists());
        mount.unmount();
        assert!(mount.dir().join(".dedupfs").exists());
        assert!(mount.is_stub("file"));
        mount.start();
        assert_eq!(fs::read(mount.at("file")).unwrap(), prose(3, 50_000));
    });
}

#[test]
fn our_own_names_and_xattr_are_hidden_and_reserved() {
    as_both(|user| {
        let mount = Mount::new(user);
        fs::write(mount.at("file"), noise(4, 10_000)).unwrap();
        mount.settle();
        let names: Vec<_> = fs::read_dir(mount.mnt()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(names, ["file"]);
        for name in [".dedupfs", "DEDUPFS-README.txt"] {
            assert!(fs::symlink_metadata(mount.dir().join(name)).is_ok(), "{name} is there below");
            assert_eq!(fs::symlink_metadata(mount.at(name)).unwrap_err().raw_os_error(), Some(libc::ENOENT));
            assert_eq!(fs::write(mount.at(name), "x").unwrap_err().raw_os_error(), Some(libc::EPERM));
            let renamed = fs::rename(mount.at("file"), mount.at(name));
            assert_eq!(renamed.unwrap_err().raw_os_error(), Some(libc::EPERM));
        }
        fs::create_dir(mount.at("sub")).unwrap();
        fs::create_dir(mount.at("sub/.dedupfs")).expect("only the root's own is reserved");
        let file = mount.at("file");
        assert!(xattr(&mount.dir().join("file"), "user.dedupfs").is_some());
        assert!(xattr(&file, "user.dedupfs").is_none());
        let mut list = [0u8; 1000];
        let len = rustix::fs::listxattr(&file, &mut list[..]).unwrap();
        assert!(!String::from_utf8_lossy(&list[..len]).contains("dedupfs"));
        let flags = rustix::fs::XattrFlags::empty();
        let set = rustix::fs::setxattr(&file, "user.dedupfs", b"forged", flags);
        assert_eq!(set, Err(rustix::io::Errno::PERM));
        assert_eq!(rustix::fs::removexattr(&file, "user.dedupfs"), Err(rustix::io::Errno::PERM));
        rustix::fs::setxattr(&file, "user.mine", b"value", flags).unwrap();
        assert_eq!(xattr(&file, "user.mine").unwrap(), b"value");
        rustix::fs::removexattr(&file, "user.mine").unwrap();
        assert_eq!(fs::read(&file).unwrap(), noise(4, 10_000));
    });
}

#[test]
fn the_namespace_is_the_backing_directorys() {
    as_both(|user| {
        let mount = Mount::new(user);
        let at = |path: &str| mount.at(path);
        fs::create_dir(at("d")).unwrap();
        fs::write(at("d/f"), "content").unwrap();
        mount.settle();
        use rustix::fs::{CWD, RenameFlags, renameat_with};
        fs::write(at("g"), "other").unwrap();
        let noreplace = renameat_with(CWD, at("d/f"), CWD, at("g"), RenameFlags::NOREPLACE);
        assert_eq!(noreplace, Err(rustix::io::Errno::EXIST));
        renameat_with(CWD, at("d/f"), CWD, at("g"), RenameFlags::EXCHANGE).unwrap();
        assert_eq!(fs::read_to_string(at("g")).unwrap(), "content");
        assert_eq!(fs::read_to_string(at("d/f")).unwrap(), "other");
        fs::rename(at("g"), at("d/f")).unwrap();
        assert_eq!(fs::read_to_string(at("d/f")).unwrap(), "content");
        fs::rename(at("d"), at("e")).unwrap();
        assert_eq!(fs::read_to_string(at("e/f")).unwrap(), "content");
        fs::hard_link(at("e/f"), at("h")).unwrap();
        assert_eq!(fs::metadata(at("h")).unwrap().ino(), fs::metadata(at("e/f")).unwrap().ino());
        fs::remove_file(at("e/f")).unwrap();
        assert_eq!(fs::read_to_string(at("h")).unwrap(), "content");
        assert_eq!(fs::metadata(at("h")).unwrap().nlink(), 1);
        fs::remove_dir(at("e")).unwrap();
        assert_eq!(fs::remove_dir(at("e")).unwrap_err().raw_os_error(), Some(libc::ENOENT));
        fs::set_permissions(at("h"), PermissionsExt::from_mode(0o640)).unwrap();
        assert_eq!(fs::metadata(at("h")).unwrap().mode() & 0o7777, 0o640);
        if user == As::Root {
            std::os::unix::fs::chown(at("h"), Some(7), Some(8)).unwrap();
            assert_eq!((fs::metadata(at("h")).unwrap().uid(), fs::metadata(at("h")).unwrap().gid()), (7, 8));
        }
        let then = std::time::UNIX_EPOCH + Duration::new(1_000_000_000, 123_456_789);
        File::open(at("h")).unwrap().set_modified(then).unwrap();
        assert_eq!(fs::metadata(at("h")).unwrap().modified().unwrap(), then);
        rustix::fs::mknodat(CWD, at("fifo"), rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        use std::os::unix::fs::FileTypeExt;
        assert!(fs::symlink_metadata(at("fifo")).unwrap().file_type().is_fifo());
        let (above, below) =
            (rustix::fs::statvfs(mount.mnt()).unwrap(), rustix::fs::statvfs(mount.dir()).unwrap());
        assert_eq!((above.f_blocks, above.f_files), (below.f_blocks, below.f_files));
        File::open(at("h")).unwrap().sync_all().unwrap();
        File::open(mount.mnt()).unwrap().sync_all().unwrap();
        let many = at("many");
        fs::create_dir(&many).unwrap();
        let names: BTreeSet<_> = (0..3000).map(|i| format!("name {i}")).collect();
        names.iter().for_each(|name| fs::write(many.join(name), name).unwrap());
        let listed = fs::read_dir(&many).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
        assert_eq!(listed.collect::<BTreeSet<_>>(), names);
    });
}

/// Everything stat tells, apart from the access time.
fn stat(path: &Path) -> (u64, u64, u64, i64, i64, i64, i64, u32) {
    let m = fs::metadata(path).unwrap();
    (m.ino(), m.len(), m.blocks(), m.mtime(), m.mtime_nsec(), m.ctime(), m.ctime_nsec(), m.mode())
}

#[test]
fn conversion_and_hydration_do_not_show_in_stat() {
    as_both(|user| {
        let mount = Mount::with_flags(user, &["--dedup", "idle:1h"]);
        let path = mount.at("file");
        fs::write(&path, noise(5, 200_000)).unwrap();
        // Written back, so that the block count is final.
        File::open(&path).unwrap().sync_all().unwrap();
        let before = stat(&path);
        mount.settle();
        assert!(mount.is_stub("file"));
        assert_eq!(stat(&path), before);
        mount.remount();
        assert_eq!(stat(&path), before);
        drop(OpenOptions::new().write(true).open(&path).unwrap());
        assert!(!mount.is_stub("file"), "opening for writing brings the bytes back");
        let (_, size, _, mtime, mtime_nsec, ctime, ctime_nsec, _) = stat(&path);
        assert_eq!(
            (size, mtime, mtime_nsec, ctime, ctime_nsec),
            (before.1, before.3, before.4, before.5, before.6)
        );
        mount.settle();
        assert!(mount.is_stub("file"));
        assert_eq!((stat(&path).5, stat(&path).6), (before.5, before.6));
        // A change of the inode right after a conversion does show.
        fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
        assert!((stat(&path).5, stat(&path).6) > (before.5, before.6));
    });
}

#[test]
fn stubs_can_be_written_to() {
    as_both(|user| {
        let mount = Mount::new(user);
        let original = noise(6, 400_000);
        let fresh = |name: &str| {
            fs::write(mount.at(name), &original).unwrap();
            mount.settle();
            assert!(mount.is_stub(name), "{name}");
            mount.at(name)
        };
        let path = fresh("append");
        OpenOptions::new().append(true).open(&path).unwrap().write_all(b"more").unwrap();
        assert_eq!(fs::read(&path).unwrap(), [&original[..], b"more"].concat());
        let path = fresh("middle");
        OpenOptions::new().write(true).open(&path).unwrap().write_all_at(b"MIDDLE", 123_456).unwrap();
        let mut expected = original.clone();
        expected[123_456..123_462].copy_from_slice(b"MIDDLE");
        assert_eq!(fs::read(&path).unwrap(), expected);
        let path = fresh("truncated");
        OpenOptions::new().write(true).truncate(true).open(&path).unwrap().write_all(b"new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        let path = fresh("shortened");
        OpenOptions::new().write(true).open(&path).unwrap().set_len(1000).unwrap();
        assert_eq!(fs::read(&path).unwrap(), original[..1000]);
        let path = fresh("emptied");
        OpenOptions::new().write(true).open(&path).unwrap().set_len(0).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"");
        let path = fresh("extended");
        OpenOptions::new().write(true).open(&path).unwrap().set_len(500_000).unwrap();
        assert_eq!(fs::read(&path).unwrap(), [&original[..], &vec![0; 100_000][..]].concat());
        // A reader that was there first goes on reading, and sees what is written.
        let path = fresh("shared");
        let mut reader = File::open(&path).unwrap();
        let mut first = vec![0; 1000];
        reader.read_exact(&mut first).unwrap();
        OpenOptions::new().write(true).open(&path).unwrap().write_all_at(b"SEEN", 2000).unwrap();
        let mut seen = [0; 4];
        reader.read_exact_at(&mut seen, 2000).unwrap();
        assert_eq!(&seen, b"SEEN");
        drop(reader);
        let names = ["append", "middle", "truncated", "shortened", "emptied", "extended", "shared"];
        let contents: Vec<_> = names.iter().map(|name| fs::read(mount.at(name)).unwrap()).collect();
        mount.settle();
        mount.remount();
        for (name, content) in names.iter().zip(&contents) {
            assert_eq!(&fs::read(mount.at(name)).unwrap(), content, "{name}");
        }
    });
}

#[test]
fn an_unlinked_open_stub_can_be_read_to_its_end() {
    as_both(|user| {
        let mount = Mount::new(user);
        fs::write(mount.at("file"), noise(7, 1_000_000)).unwrap();
        mount.settle();
        let mut file = File::open(mount.at("file")).unwrap();
        fs::remove_file(mount.at("file")).unwrap();
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).unwrap();
        assert_eq!(bytes, noise(7, 1_000_000));
    });
}

/// A mapping outlives the descriptor that it was made from: converting the file under it would kill the program
/// by SIGBUS. Seen to fail when no lease is taken.
#[test]
fn a_mapped_file_is_not_converted_under_its_program() {
    as_both(|user| {
        let mount = Mount::new(user);
        let path = mount.at("mapped");
        let bytes = noise(8, 100_000);
        fs::write(&path, &bytes).unwrap();
        let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        // SAFETY: a new mapping of a file that nothing truncates, unmapped below.
        let mapping = unsafe {
            let (protection, shared) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
            libc::mmap(std::ptr::null_mut(), bytes.len(), protection, shared, file.as_raw_fd(), 0)
        };
        assert_ne!(mapping, libc::MAP_FAILED);
        drop(file);
        std::thread::sleep(Duration::from_millis(100));
        mount.settle();
        assert!(!mount.is_stub("mapped"));
        // SAFETY: the mapping is that long and nobody else in this process uses it.
        let mapped = unsafe { std::slice::from_raw_parts_mut(mapping.cast::<u8>(), bytes.len()) };
        assert!(mapped == bytes);
        mapped[5] ^= 1;
        // SAFETY: `mapped` is not used after this.
        assert_eq!(unsafe { libc::munmap(mapping, bytes.len()) }, 0);
        assert_eq!(fs::read(&path).unwrap()[5], bytes[5] ^ 1);
    });
}

/// Seen to fail when a file was read to its end wherever that had moved to meanwhile.
#[test]
fn a_file_that_grows_faster_than_it_is_read_is_chunked() {
    if !fuse_available() {
        return;
    }
    let mount = Mount::prepare(As::Root);
    mount.init("convert_rate = \"8MiB/s\"");
    mount.start();
    let bytes = noise(9, 1 << 20);
    let mut file = File::create(mount.at("log")).unwrap();
    (0..20).for_each(|_| file.write_all(&bytes).unwrap());
    let known = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let deadline = Instant::now() + Duration::from_secs(40);
            while !known.load(Ordering::Relaxed) && Instant::now() < deadline {
                file.write_all(&bytes).unwrap();
                std::thread::sleep(Duration::from_millis(50));
            }
        });
        // What is found while it grows was chunked.
        let piece = mount.root.path().join("piece");
        fs::write(&piece, &bytes).unwrap();
        let deadline = Instant::now() + Duration::from_secs(30);
        let found = || mount.ctl(&["similar", piece.to_str().unwrap()])["matches"][0]["path"] == "log";
        let mut is_known = found();
        while !is_known && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(200));
            is_known = found();
        }
        known.store(true, Ordering::Relaxed);
        assert!(is_known, "not known while it grows");
    });
}

#[test]
fn a_growing_file_is_chunked_before_it_is_closed() {
    if !fuse_available() {
        return;
    }
    let mount = Mount::new(As::Root);
    let bytes = noise(9, 40 << 20);
    let mut file = File::create(mount.at("log")).unwrap();
    file.write_all(&bytes[..30 << 20]).unwrap();
    let unique = || mount.ctl(&["status"])["unique_bytes"].as_u64().unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while unique() < 29 << 20 {
        assert!(Instant::now() < deadline, "only {} bytes were taken while it was open", unique());
        std::thread::sleep(Duration::from_millis(200));
    }
    // It is known to similarity while it grows.
    fs::write(mount.root.path().join("piece"), &bytes[1 << 20..2 << 20]).unwrap();
    let piece = mount.root.path().join("piece");
    // Its chunks are stored a little before it is found by them.
    loop {
        let found = mount.ctl(&["similar", piece.to_str().unwrap()]);
        if found["matches"][0]["path"] == "log" {
            break;
        }
        assert!(Instant::now() < deadline, "{found}");
        std::thread::sleep(Duration::from_millis(200));
    }
    // What was taken is not believed: here the beginning changes before the close.
    file.seek(SeekFrom::Start(10)).unwrap();
    file.write_all(b"CHANGED").unwrap();
    file.seek(SeekFrom::End(0)).unwrap();
    file.write_all(&bytes[30 << 20..]).unwrap();
    drop(file);
    mount.settle();
    assert!(mount.is_stub("log"));
    let mut expected = bytes;
    expected[10..17].copy_from_slice(b"CHANGED");
    assert_eq!(fs::read(mount.at("log")).unwrap(), expected);
}

#[test]
fn policies_decide_when_files_become_stubs() {
    if !fuse_available() {
        return;
    }
    let off = Mount::with_flags(As::Root, &["--dedup", "off"]);
    fs::write(off.at("plain"), prose(10, 50_000)).unwrap();
    fs::write(off.at("similar"), [&prose(10, 40_000)[..], &noise(1, 10_000)].concat()).unwrap();
    off.settle();
    assert!(!off.is_stub("plain"));
    assert_eq!(off.ctl(&["similar", "plain"])["matches"][0]["path"], "similar");
    let idle = Mount::with_flags(As::Root, &["--dedup", "idle:2s"]);
    fs::write(idle.at("file"), prose(11, 50_000)).unwrap();
    std::thread::sleep(Duration::from_millis(500));
    assert!(!idle.is_stub("file"));
    let deadline = Instant::now() + Duration::from_secs(30);
    while !idle.is_stub("file") {
        assert!(Instant::now() < deadline, "never converted");
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn scan_takes_in_what_was_there_and_goes_on_where_it_was() {
    as_both(|user| {
        let mount = Mount::prepare(user);
        for i in 0..50 {
            fs::create_dir_all(mount.dir().join(format!("d{}", i % 5))).unwrap();
            let path = mount.dir().join(format!("d{}/{i}", i % 5));
            fs::write(&path, prose(i, 30_000)).unwrap();
        }
        mount.start();
        let before = snapshot(&mount.mnt());
        let first = mount.ctl(&["scan", "d1"]);
        assert_eq!((&first["files"], &first["converted"]), (&10.into(), &10.into()), "{first}");
        let second = mount.ctl(&["scan"]);
        assert_eq!(
            (&second["files"], &second["converted"], &second["skipped"]),
            (&50.into(), &40.into(), &10.into())
        );
        assert_eq!(mount.ctl(&["scan"])["skipped"], 50);
        assert_eq!(snapshot(&mount.mnt()), before);
        mount.unmount();
        // Without a daemon it works on the directory directly.
        let path = mount.dir().join("late");
        fs::write(&path, prose(99, 30_000)).unwrap();
        let offline = ["scan", "--offline", "--yes", "--json"];
        let output = succeed(mount.dedupctl().args(offline).arg(mount.dir()));
        let direct: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(direct["converted"], 1, "{}", text(&output));
        mount.start();
        assert_eq!(fs::read(mount.at("late")).unwrap(), prose(99, 30_000));
    });
}

#[test]
fn similar_follows_what_happens_to_files() {
    as_both(|user| {
        let mount = Mount::new(user);
        let original = prose(30, 60_000);
        let edited = [&original[..20_000], b"edited here", &original[20_000..]].concat();
        let write = |name: &str, bytes: &[u8]| {
            fs::write(mount.at(name), bytes).unwrap();
            mount.settle();
        };
        let found = || {
            let answer = mount.ctl(&["similar", "original"]);
            let matches = answer["matches"].as_array().unwrap().clone();
            matches.iter().map(|m| m["path"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        fs::create_dir_all(mount.at("deep/er")).unwrap();
        write("original", &original);
        assert_eq!(found(), Vec::<String>::new());
        write("copy", &edited);
        let answer = mount.ctl(&["similar", "original"]);
        let first = &answer["matches"][0];
        assert_eq!(
            (&first["path"], &first["identical"], &first["verified"]),
            (&"copy".into(), &false.into(), &true.into())
        );
        assert_eq!(first["bytes_common"], 60_000, "{first}");
        assert!(first["contained_in"].as_f64().unwrap() > 0.999, "{first}");
        // Contained: a piece of it, and it within something larger.
        write("piece", &original[10_000..30_000]);
        write("larger", &[&noise(31, 100_000)[..], &original, &noise(32, 100_000)].concat());
        assert_eq!(
            found().into_iter().collect::<BTreeSet<_>>(),
            ["copy", "larger", "piece"].map(String::from).into()
        );
        fs::rename(mount.at("copy"), mount.at("deep/er/moved")).unwrap();
        fs::rename(mount.at("deep"), mount.at("down")).unwrap();
        fs::remove_file(mount.at("piece")).unwrap();
        fs::write(mount.at("larger"), noise(33, 100_000)).unwrap();
        mount.settle();
        assert_eq!(found(), ["down/er/moved"]);
        mount.remount();
        assert_eq!(found(), ["down/er/moved"]);
        fs::hard_link(mount.at("down/er/moved"), mount.at("link")).unwrap();
        fs::remove_file(mount.at("down/er/moved")).unwrap();
        assert_eq!(found(), ["link"]);
        // From outside the overlay.
        let outside = mount.root.path().join("outside");
        fs::write(&outside, &edited).unwrap();
        let answer = mount.ctl(&["similar", outside.to_str().unwrap()]);
        assert_eq!(
            (&answer["matches"][0]["path"], &answer["matches"][0]["identical"]),
            (&"link".into(), &true.into())
        );
    });
}

/// Programs opening, writing, renaming and deleting while files are converted under them.
#[test]
fn readers_and_writers_race_with_conversion() {
    if !fuse_available() {
        return;
    }
    let mount = Mount::new(As::Root);
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let mnt = mount.mnt();
            scope.spawn(move || {
                let mut expected: Vec<Option<Vec<u8>>> = vec![None; 8];
                let mut x = thread + 1;
                for round in 0..400u64 {
                    x ^= x << 13;
                    x ^= x >> 7;
                    x ^= x << 17;
                    let slot = (x % 8) as usize;
                    let path = mnt.join(format!("{thread}-{slot}"));
                    match (x >> 8) % 6 {
                        0 | 1 => {
                            let bytes = noise(round * 10 + thread, (x >> 20) as usize % 70_000);
                            fs::write(&path, &bytes).unwrap();
                            expected[slot] = Some(bytes);
                        }
                        2 => {
                            if let Some(bytes) = &mut expected[slot] {
                                let mut file = OpenOptions::new().append(true).open(&path).unwrap();
                                file.write_all(b"appended").unwrap();
                                bytes.extend_from_slice(b"appended");
                            }
                        }
                        3 => {
                            if expected[slot].take().is_some() {
                                fs::remove_file(&path).unwrap();
                            }
                        }
                        _ => match &expected[slot] {
                            Some(bytes) => assert!(fs::read(&path).unwrap() == *bytes, "{}", path.display()),
                            None => assert!(fs::read(&path).is_err()),
                        },
                    }
                }
                for (slot, bytes) in expected.iter().enumerate() {
                    let path = mnt.join(format!("{thread}-{slot}"));
                    assert!(fs::read(&path).ok() == *bytes, "{}", path.display());
                }
            });
        }
    });
    mount.settle();
    let before = snapshot(&mount.mnt());
    mount.remount();
    assert_eq!(snapshot(&mount.mnt()), before);
    assert_eq!(mount.ctl(&["check", "--deep"])["damaged"].as_array().unwrap().len(), 0);
}

#[test]
fn a_damaged_chunk_is_an_error_and_never_wrong_bytes() {
    if !fuse_available() {
        return;
    }
    let mount = Mount::new(As::Root);
    fs::write(mount.at("victim"), noise(20, 10_000)).unwrap();
    mount.settle();
    fs::write(mount.at("other"), noise(21, 10_000)).unwrap();
    mount.settle();
    mount.unmount();
    let packs = mount.dir().join(".dedupfs/packs");
    let pack = fs::read_dir(packs).unwrap().next().unwrap().unwrap().path();
    let mut bytes = fs::read(&pack).unwrap();
    let needle = &noise(20, 10_000)[5000..5032];
    let at = bytes.windows(32).position(|window| window == needle).expect("noise is stored as it is");
    bytes[at] ^= 1;
    fs::write(&pack, bytes).unwrap();
    mount.start();
    assert_eq!(fs::read(mount.at("victim")).unwrap_err().raw_os_error(), Some(libc::EIO));
    assert_eq!(fs::read(mount.at("other")).unwrap(), noise(21, 10_000), "damage elsewhere stops nobody");
    let log = fs::read_to_string(mount.dir().join(".dedupfs/dedupfs.log")).unwrap();
    assert!(log.contains("victim"), "the log names the file: {log}");
    let output = mount.dedupctl().args(["check", "--json"]).current_dir(mount.mnt()).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    let check: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let paths = check["damaged"].as_array().unwrap().iter().filter_map(|d| d["path"].as_str());
    assert!(paths.collect::<Vec<_>>().contains(&"victim"), "{check}");
    // Writing the same content again heals it, for every file that has it.
    fs::write(mount.at("again"), noise(20, 10_000)).unwrap();
    mount.settle();
    assert_eq!(fs::read(mount.at("victim")).unwrap(), noise(20, 10_000));
}

#[test]
fn read_only_changes_nothing() {
    if !fuse_available() {
        return;
    }
    let mut mount = Mount::new(As::Root);
    fs::write(mount.at("file"), noise(22, 10_000)).unwrap();
    mount.settle();
    mount.unmount();
    fs::write(mount.dir().join("plain"), "plain").unwrap();
    mount.flags = vec!["--read-only".to_owned()];
    mount.start();
    assert_eq!(fs::read(mount.at("file")).unwrap(), noise(22, 10_000));
    assert_eq!(fs::write(mount.at("file"), "x").unwrap_err().raw_os_error(), Some(libc::EROFS));
    assert_eq!(fs::read_to_string(mount.at("plain")).unwrap(), "plain");
    let refused = mount.dedupctl().arg("gc").arg(mount.mnt()).output().unwrap();
    assert!(!refused.status.success() && text(&refused).contains("read-only"), "{}", text(&refused));
    mount.unmount();
    assert!(!mount.is_stub("plain"));
}

/// With a descriptor for each file it would hold 3,000.
#[test]
fn a_daemon_holds_few_descriptors_however_many_files_it_knows() {
    as_both(|user| {
        let mount = Mount::in_place(user);
        for dir in 0..30 {
            fs::create_dir(mount.at(&format!("d{dir}"))).unwrap();
            (0..100).for_each(|n| fs::write(mount.at(&format!("d{dir}/{n}")), format!("{dir} {n}")).unwrap());
        }
        let held = || fs::read_dir(format!("/proc/{}/fd", mount.pid())).unwrap().count();
        let listed = || succeed(mount.command("ls").arg("-lR").arg(mount.mnt())).stdout.len();
        let before = listed();
        assert!(held() < 1_500, "{} after a listing", held());
        assert_eq!(mount.ctl(&["scan"])["errors"], 0);
        assert!(held() < 1_500, "{} after a scan", held());
        mount.settle();
        assert_eq!(listed(), before);
        for dir in 0..30 {
            (0..100).for_each(|n| {
                assert_eq!(
                    fs::read_to_string(mount.at(&format!("d{dir}/{n}"))).unwrap(),
                    format!("{dir} {n}")
                );
            });
        }
        assert!(held() < 1_500, "{} after all were read", held());
    });
}
