//! That a file became a stub, or is a plain one again, shows to no program: not in its attributes, not to tools
//! that remember them.
//!
//! Seen to fail with: a file let go of with its last name, though somebody had just looked it up
//! (`what_was_found_before_..`); a record made of a stub's record when it is written back, not of its inode
//! (`times_that_were_set_..`).
#![allow(clippy::unwrap_used, reason = "a test stops at the first error")]

use crate::common::{As, Mount, as_both, fuse_available, noise, prose, root_and_fuse_available, succeed};
use rustix::fs::{FlockOperation, XattrFlags, flock, setxattr};
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

/// Files become stubs only when the test says so.
const WHEN_TOLD: [&str; 2] = ["--dedup", "idle:1h"];

/// Runs `check` on files that are plain, then stubs, and then what comes after.
fn through_everything(mount: &Mount, files: &[&str], check: impl Fn(&str)) {
    let stubs = || files.iter().filter(|name| mount.is_stub(name)).count();
    check("plain");
    mount.settle();
    assert_eq!(stubs(), files.len());
    check("converted");
    mount.remount();
    check("mounted again");
    mount.kill();
    mount.start();
    check("mounted again after a kill");
    // What a kill left undone is caught up with beside this.
    mount.settle();
    for name in files {
        drop(OpenOptions::new().write(true).open(mount.at(name)).unwrap());
    }
    assert_eq!(stubs(), 0);
    check("written back");
    mount.settle();
    assert_eq!(stubs(), files.len());
    check("converted again");
    for name in files {
        drop(OpenOptions::new().write(true).open(mount.at(name)).unwrap());
    }
    mount.remount();
    check("written back, then mounted again");
}

/// Makes files of several sizes and returns their names.
fn make_files(mount: &Mount) -> [&'static str; 4] {
    let names = ["one", "two", "sub/three", "sub/four"];
    fs::create_dir(mount.at("sub")).unwrap();
    for (i, name) in names.iter().enumerate() {
        fs::write(mount.at(name), prose(i as u64, 1 + i * 60_000)).unwrap();
        // Written back, so that the block count is final.
        File::open(mount.at(name)).unwrap().sync_all().unwrap();
    }
    names
}

#[test]
fn attributes_stay_through_everything() {
    as_both(|user| {
        let mount = Mount::with_flags(user, &WHEN_TOLD);
        let files = make_files(&mount);
        fs::hard_link(mount.at("one"), mount.at("link")).unwrap();
        let attributes = |name: &&str| {
            let m = fs::metadata(mount.at(name)).unwrap();
            let times = (m.mtime(), m.mtime_nsec(), m.ctime(), m.ctime_nsec());
            (m.ino(), m.nlink(), m.len(), m.blocks(), times, m.mode(), m.uid(), m.gid())
        };
        let before: Vec<_> = files.iter().map(attributes).collect();
        through_everything(&mount, &files, |when| {
            let now: Vec<_> = files.iter().map(attributes).collect();
            assert_eq!(now, before, "{when}");
        });
    });
}

/// What was set of a stub is in its inode alone, and is there still when it has been written back.
#[test]
fn times_that_were_set_of_a_stub_outlive_its_being_written_back() {
    as_both(|user| {
        let mount = Mount::with_flags(user, &WHEN_TOLD);
        let path = mount.at("file");
        let times = || {
            let m = fs::metadata(&path).unwrap();
            (m.mtime(), m.mtime_nsec(), m.ctime(), m.ctime_nsec())
        };
        fs::write(&path, noise(1, 60_000)).unwrap();
        mount.settle();
        // Longer than a change of the ctime is taken for our own.
        std::thread::sleep(Duration::from_millis(300));
        let modified = std::time::UNIX_EPOCH + Duration::new(1_000_000_000, 7);
        File::open(&path).unwrap().set_modified(modified).unwrap();
        assert!(mount.is_stub("file"));
        let before = times();
        assert_eq!((before.0, before.1), (1_000_000_000, 7));
        drop(OpenOptions::new().write(true).open(&path).unwrap());
        assert!(!mount.is_stub("file"));
        // The kernel may remember what it was told before; the bare directory and the next mount do not.
        let below = || fs::metadata(mount.dir().join("file")).map(|m| (m.mtime(), m.mtime_nsec())).unwrap();
        assert_eq!((times(), below()), (before, (1_000_000_000, 7)), "written back");
        mount.remount();
        assert_eq!(times(), before, "written back, then mounted again");
        mount.settle();
        assert!(mount.is_stub("file"));
        assert_eq!(times(), before, "a stub again");
        succeed(mount.dedupctl().args(["export", "file"]).current_dir(mount.mnt()));
        assert!(!mount.is_stub("file"));
        assert_eq!(below(), (1_000_000_000, 7), "exported");
    });
}

/// Whatever moves a ctime moves it also in the moment after a conversion, in which our own changes are hidden.
#[test]
fn the_ctime_moves_with_every_change_right_after_a_conversion() {
    as_both(|user| {
        let mount = Mount::with_flags(user, &WHEN_TOLD);
        let path = mount.at("file");
        type Change = fn(&Path);
        let changes: [(&str, Change); 11] = [
            ("chmod", |path| fs::set_permissions(path, PermissionsExt::from_mode(0o640)).unwrap()),
            ("chown", |path| {
                let m = fs::metadata(path).unwrap();
                std::os::unix::fs::chown(path, Some(m.uid()), Some(m.gid())).unwrap();
            }),
            ("rename", |path| {
                fs::rename(path, path.with_extension("x")).unwrap();
                fs::rename(path.with_extension("x"), path).unwrap();
            }),
            ("link", |path| fs::hard_link(path, path.with_extension("link")).unwrap()),
            ("unlink", |path| fs::remove_file(path.with_extension("link")).unwrap()),
            ("setxattr", |path| setxattr(path, "user.x", b"1", XattrFlags::empty()).unwrap()),
            ("removexattr", |path| rustix::fs::removexattr(path, "user.x").unwrap()),
            ("utimens", |path| {
                File::open(path)
                    .unwrap()
                    .set_modified(std::time::UNIX_EPOCH + Duration::from_secs(9))
                    .unwrap();
            }),
            ("write", |path| {
                OpenOptions::new().write(true).open(path).unwrap().write_all_at(b"X", 5).unwrap()
            }),
            ("truncate", |path| OpenOptions::new().write(true).open(path).unwrap().set_len(20_000).unwrap()),
            ("empty", |path| drop(File::create(path).unwrap())),
        ];
        fs::write(&path, noise(1, 60_000)).unwrap();
        for (what, change) in changes {
            mount.settle();
            assert!(mount.is_stub("file"), "{what}");
            let ctime = |path: &Path| fs::metadata(path).map(|m| (m.ctime(), m.ctime_nsec())).unwrap();
            let before = ctime(&path);
            change(&path);
            assert!(ctime(&path) > before, "{what}");
            // And it stays so.
            mount.settle();
            assert!(ctime(&path) > before, "{what}, later");
        }
    });
}

#[test]
fn git_rsync_tar_find_and_make_see_no_change() {
    as_both(|user| {
        let mount = Mount::with_flags(user, &WHEN_TOLD);
        let files = make_files(&mount);
        let outside = |name: &str| mount.root.path().join(name);
        let run = |program: &str, args: &[&str]| {
            let mut command = mount.command(program);
            let output = succeed(command.args(args).current_dir(mount.mnt()).env("GIT_CONFIG_NOSYSTEM", "1"));
            String::from_utf8(output.stdout).unwrap()
        };
        let (copy, git) = (outside("copy"), outside("git"));
        let (copy, git) = (copy.to_str().unwrap(), format!("--git-dir={}", git.display()));
        let snapshot = outside("snapshot");
        run("git", &["init", "-q", "--bare", outside("git").to_str().unwrap()]);
        run("git", &[&git, "--work-tree=.", "add", "."]);
        run("rsync", &["-a", "./", copy]);
        let dump = |archive: &str| {
            // It writes what it saw into the snapshot: each time from the first.
            let (work, archive) = (outside("work"), outside(archive));
            if snapshot.exists() {
                fs::copy(&snapshot, &work).unwrap();
            }
            let listed = format!("--listed-incremental={}", work.display());
            run("tar", &["--no-check-device", &listed, "-cf", archive.to_str().unwrap(), "."]);
            if !snapshot.exists() {
                fs::copy(&work, &snapshot).unwrap();
            }
            let names = run("tar", &["-tf", archive.to_str().unwrap()]);
            names.lines().filter(|name| !name.ends_with('/')).map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(dump("first").len(), files.len());
        fs::write(outside("Makefile"), "one: two\n\t@echo made\n").unwrap();
        File::open(mount.at("one")).unwrap().set_modified(std::time::SystemTime::now()).unwrap();
        run("git", &[&git, "--work-tree=.", "update-index", "--refresh"]);
        run("rsync", &["-a", "./", copy]);
        fs::remove_file(&snapshot).unwrap();
        dump("first");
        fs::write(outside("reference"), "now").unwrap();
        through_everything(&mount, &files, |when| {
            // Unlike `git status`, this does not read a file to find that only its attributes changed.
            assert_eq!(run("git", &[&git, "--work-tree=.", "diff-files"]), "", "git: {when}");
            assert_eq!(run("rsync", &["-ain", "./", copy]), "", "rsync: {when}");
            assert_eq!(dump("next"), Vec::<String>::new(), "tar: {when}");
            let reference = outside("reference");
            let reference = reference.to_str().unwrap();
            let newer = ["-type", "f", "(", "-newer", reference, "-o", "-cnewer", reference, ")"];
            assert_eq!(run("find", &[&["."], &newer[..]].concat()), "", "find: {when}");
            run("make", &["-q", "-f", outside("Makefile").to_str().unwrap(), "one"]);
        });
    });
}

#[test]
fn borg_reads_no_file_again() {
    if !fuse_available() {
        return;
    }
    let mount = Mount::with_flags(As::Root, &WHEN_TOLD);
    let files = make_files(&mount);
    // It never remembers the newest of all files.
    fs::write(mount.at("sub/newest"), "x").unwrap();
    let borg = |args: &[&str]| {
        let mut command = mount.command("borg");
        command.env("BORG_BASE_DIR", mount.root.path().join("home"));
        command.env("BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK", "yes");
        let repo = mount.root.path().join("borg");
        let output = succeed(command.env("BORG_REPO", repo).args(args).current_dir(mount.mnt()));
        String::from_utf8(output.stderr).unwrap()
    };
    borg(&["init", "--encryption=none"]);
    let number = std::cell::Cell::new(0);
    let create = || {
        number.set(number.get() + 1);
        let archive = format!("::{}", number.get());
        let args = ["create", "--list", "--filter=AMCE", "--files-cache=ctime,size,inode", &archive, "."];
        borg(&args).lines().filter(|line| !line.contains("newest")).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(create().len(), files.len());
    through_everything(&mount, &files, |when| assert_eq!(create(), Vec::<String>::new(), "{when}"));
}

#[test]
fn locks_are_held_across_an_attempt_to_convert() {
    as_both(|user| {
        let mount = Mount::new(user);
        for name in ["flock", "fcntl"] {
            fs::write(mount.at(name), noise(2, 50_000)).unwrap();
            mount.settle();
            assert!(mount.is_stub(name));
        }
        let flocked = File::open(mount.at("flock")).unwrap();
        flock(&flocked, FlockOperation::NonBlockingLockExclusive).unwrap();
        let writer = OpenOptions::new().read(true).write(true).open(mount.at("fcntl")).unwrap();
        rustix::fs::fcntl_lock(&writer, FlockOperation::NonBlockingLockExclusive).unwrap();
        mount.settle();
        let taken = |script: &str, name: &str| {
            let mut other = mount.command("python3");
            other.args(["-c", script]).arg(mount.at(name)).stderr(Stdio::null());
            !other.status().unwrap().success()
        };
        let script = "import fcntl, sys; fcntl.flock(open(sys.argv[1]), fcntl.LOCK_EX | fcntl.LOCK_NB)";
        assert!(taken(script, "flock"));
        let lockf = "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'r+'), fcntl.LOCK_EX | fcntl.LOCK_NB)";
        assert!(taken(lockf, "fcntl"));
        drop((flocked, writer));
        assert!(!taken(script, "flock") && !taken(lockf, "fcntl"));
    });
}

/// Programs that run keep running from what they were started from.
#[test]
fn a_running_program_is_not_converted_under_itself() {
    as_both(|user| {
        let mount = Mount::new(user);
        fs::copy("/bin/sleep", mount.at("plain")).unwrap();
        let start = |name: &str| {
            let end = Instant::now() + Duration::from_secs(20);
            loop {
                // Whoever forks just then holds a copy of a descriptor for writing.
                match mount.command(mount.at(name)).arg("4").spawn() {
                    Err(e) if e.raw_os_error() == Some(libc::ETXTBSY) && Instant::now() < end => {}
                    child => return child.unwrap(),
                }
            }
        };
        fs::copy("/bin/sleep", mount.at("stub")).unwrap();
        mount.settle();
        assert!(mount.is_stub("stub"));
        fs::copy("/bin/sleep", mount.at("fresh")).unwrap();
        let mut running = [start("plain"), start("stub"), start("fresh")];
        mount.settle();
        assert!(!mount.is_stub("fresh"));
        for child in &mut running {
            assert!(child.wait().unwrap().success());
        }
        for name in ["plain", "stub", "fresh"] {
            assert!(fs::read(mount.at(name)).unwrap() == fs::read("/bin/sleep").unwrap(), "{name}");
        }
    });
}

#[test]
fn what_a_stub_cannot_keep_stays_plain_without_a_word() {
    if !root_and_fuse_available() {
        return;
    }
    let mount = Mount::prepare(As::Root);
    mount.start();
    for name in ["capable", "full", "listed"] {
        fs::write(mount.at(name), noise(3, 3_000)).unwrap();
    }
    // CAP_NET_BIND_SERVICE, permitted and effective, as setcap(8) writes it.
    let capability = [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    setxattr(mount.at("capable"), "security.capability", &capability, XattrFlags::empty()).unwrap();
    let mut filled = 0;
    while setxattr(mount.at("full"), format!("user.{filled}"), &[7; 200], XattrFlags::empty()).is_ok()
        && filled < 400
    {
        filled += 1;
    }
    while setxattr(mount.at("full"), format!("user.x{filled}"), b"", XattrFlags::empty()).is_ok()
        && filled < 900
    {
        filled += 1;
    }
    succeed(mount.command("setfacl").args(["-m", "u:1234:r"]).arg(mount.at("listed")));
    fs::write(mount.at("other"), noise(4, 30_000)).unwrap();
    mount.settle();
    assert!(mount.is_stub("other"));
    let (acl, capable) =
        (crate::common::xattr(&mount.at("listed"), "system.posix_acl_access"), "security.capability");
    assert!(acl.is_some());
    mount.remount();
    for name in ["capable", "full", "listed"] {
        assert!(fs::read(mount.at(name)).unwrap() == noise(3, 3_000), "{name}");
    }
    assert!(!mount.is_stub("capable") && !mount.is_stub("full"));
    assert_eq!(crate::common::xattr(&mount.at("capable"), capable).as_deref(), Some(&capability[..]));
    assert_eq!(crate::common::xattr(&mount.at("listed"), "system.posix_acl_access"), acl);
    let log = fs::read_to_string(mount.dir().join(".dedupfs/dedupfs.log")).unwrap();
    assert!(!log.contains("ERROR") && !log.contains("WARN"), "{log}");
}

/// A daemon that is no root reads a stub's record and fills its file with the owner's rights only.
#[test]
fn modes_that_shut_out_their_owner_lose_nothing() {
    as_both(|user| {
        let mount = Mount::new(user);
        let mode =
            |name: &str, mode| fs::set_permissions(mount.at(name), PermissionsExt::from_mode(mode)).unwrap();
        for bits in [0o000, 0o200, 0o444, 0o400] {
            let (before, after) = (format!("stub-{bits:o}"), format!("plain-{bits:o}"));
            fs::write(mount.at(&before), noise(5, 40_000)).unwrap();
            mount.settle();
            assert!(mount.is_stub(&before));
            mode(&before, bits);
            fs::write(mount.at(&after), noise(6, 40_000)).unwrap();
            mode(&after, bits);
            mount.settle();
            mount.remount();
            for (name, seed) in [(&before, 5), (&after, 6)] {
                let m = fs::metadata(mount.at(name)).unwrap();
                assert_eq!((m.len(), m.mode() & 0o7777), (40_000, bits), "{name}");
                if bits & 0o400 != 0 || user == As::Root {
                    assert!(fs::read(mount.at(name)).unwrap() == noise(seed, 40_000), "{name}");
                } else {
                    let refused = fs::read(mount.at(name)).unwrap_err();
                    assert_eq!(refused.raw_os_error(), Some(libc::EACCES), "{name}");
                }
                mode(name, 0o600);
                assert!(fs::read(mount.at(name)).unwrap() == noise(seed, 40_000), "{name}");
                OpenOptions::new().append(true).open(mount.at(name)).unwrap();
            }
        }
    });
}

/// The kernel forgets inodes while they are being converted.
#[test]
fn a_conversion_outlives_what_the_kernel_remembers() {
    if !root_and_fuse_available() {
        return;
    }
    let mount = Mount::with_flags(As::Root, &WHEN_TOLD);
    for i in 0..300 {
        fs::write(mount.at(&i.to_string()), noise(i, 30_000)).unwrap();
    }
    std::thread::scope(|scope| {
        let settle = scope.spawn(|| mount.settle());
        while !settle.is_finished() {
            fs::write("/proc/sys/vm/drop_caches", "2").unwrap();
            std::thread::sleep(Duration::from_millis(100));
        }
    });
    for i in 0..300 {
        assert!(mount.is_stub(&i.to_string()), "{i}");
        assert!(fs::read(mount.at(&i.to_string())).unwrap() == noise(i, 30_000), "{i}");
    }
}

/// A program that looked a file up just before another one was renamed over it can open what it found.
#[test]
fn what_was_found_before_it_lost_its_name_can_be_opened() {
    as_both(|user| {
        let mount = Mount::with_flags(user, &WHEN_TOLD);
        fs::write(mount.at("file"), noise(7, 50_000)).unwrap();
        let found =
            rustix::fs::open(mount.at("file"), rustix::fs::OFlags::PATH, rustix::fs::Mode::empty()).unwrap();
        fs::write(mount.at("new"), noise(8, 50_000)).unwrap();
        fs::rename(mount.at("new"), mount.at("file")).unwrap();
        use std::os::fd::AsRawFd;
        let bytes = fs::read(format!("/proc/self/fd/{}", found.as_raw_fd())).unwrap();
        assert!(bytes == noise(7, 50_000));
        assert!(fs::read(mount.at("file")).unwrap() == noise(8, 50_000));
    });
}
