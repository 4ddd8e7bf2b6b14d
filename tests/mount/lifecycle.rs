//! From mounting to the end, in every way that mounts begin and end.
//!
//! Seen to fail with:
//!
//! - `a_mount_can_follow_..`: a store in use that is not waited for; and a daemon believed to be there as long as it
//!   listens.
//! - `a_directory_mounted_elsewhere_..`: a store in use that is not asked who has it.
//! - `sigterm_detaches_..`: a detached mount served for ten seconds only.
//! - `unmount_waits_..`: a request to unmount carried out when who asked has gone.
//! - `a_directory_that_vanished_..`: a read-only filesystem taken for a lack of permission.
#![allow(clippy::unwrap_used, reason = "a test stops at the first error")]

use crate::common::{
    As, Mount, as_both, fuse_available, namespaces, noise, prose, root_and_fuse_available, succeed, text,
};
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// More than any step takes however busy the machine is.
const TIME_MAX: Duration = Duration::from_secs(180);

fn wait_for(what: &str, done: impl Fn() -> bool) {
    let end = Instant::now() + TIME_MAX;
    while !done() {
        assert!(Instant::now() < end, "waited {TIME_MAX:?} for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn signal(pid: i32, signal: Signal) {
    kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
}

fn runs(pid: i32) -> bool {
    Path::new(&format!("/proc/{pid}/root")).exists()
}

fn wait_for_the_end(mount: &Mount, pid: i32) {
    wait_for("the daemon's end", || !runs(pid));
    assert!(!mount.is_mounted());
}

fn log(mount: &Mount) -> String {
    fs::read_to_string(mount.dir().join(".dedupfs/dedupfs.log")).unwrap()
}

/// Everything in the bare directory but the store's own housekeeping: content, records and times.
fn bare(dir: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for path in crate::common::session::files_below(dir) {
        let name = path.strip_prefix(dir).unwrap().display().to_string();
        let kept = ["lock", "daemon.json", "dedupfs.log"].map(|name| format!(".dedupfs/{name}"));
        if kept.contains(&name) || name.starts_with(".dedupfs/index") {
            continue;
        }
        let meta = fs::metadata(&path).unwrap();
        let content = blake3::hash(&fs::read(&path).unwrap());
        let record = crate::common::xattr(&path, "user.dedupfs");
        found.push(format!(
            "{name} {:?} {:o} {content} {record:?}",
            meta.modified(),
            meta.permissions().mode()
        ));
    }
    found
}

#[test]
fn sigterm_ends_it_well_idle_and_under_load() {
    as_both(|user| {
        let mount = Mount::prepare(user);
        for load in [false, true] {
            let foreground = mount.dedupfs().arg("--foreground").arg(mount.dir()).arg(mount.mnt()).spawn();
            let mut daemon = foreground.unwrap();
            wait_for("the mount", || mount.is_mounted());
            let name = |thread: u64, i: u64| mount.at(&format!("{load}-{thread}-{i}"));
            let content = |thread: u64, i: u64| noise(thread << 32 | i, 1 + (i * 7919) as usize % 50_000);
            let (mount, name, content) = (&mount, &name, &content);
            let closed: Vec<u64> = std::thread::scope(|scope| {
                let writers: Vec<_> = (0..3u64)
                    .map(|thread| {
                        scope.spawn(move || {
                            let most = if load { 100_000 } else { 20 };
                            // Once it is unmounted, names lead to the directory below the mount point.
                            let write = |i: &u64| {
                                mount.is_mounted() && fs::write(name(thread, *i), content(thread, *i)).is_ok()
                            };
                            (0..most).take_while(write).count() as u64
                        })
                    })
                    .collect();
                if load {
                    std::thread::sleep(Duration::from_millis(400));
                    signal(daemon.id() as i32, Signal::TERM);
                }
                writers.into_iter().map(|writer| writer.join().unwrap()).collect()
            });
            if !load {
                signal(daemon.id() as i32, Signal::TERM);
            }
            wait_for("the mount to go", || !mount.is_mounted());
            let end = Instant::now() + TIME_MAX;
            while daemon.try_wait().unwrap().is_none() {
                assert!(Instant::now() < end, "the daemon does not end");
                std::thread::sleep(Duration::from_millis(5));
            }
            assert_eq!(daemon.wait().unwrap().code(), Some(0), "load: {load}");
            // What came too late for the mount fell through to the mount point.
            for entry in fs::read_dir(mount.mnt()).unwrap() {
                fs::remove_file(entry.unwrap().path()).unwrap();
            }
            mount.start();
            for (thread, count) in closed.iter().enumerate() {
                // The last of each may have come too late.
                for i in 0..count.saturating_sub(u64::from(load)) {
                    let path = name(thread as u64, i);
                    let found = fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
                    assert!(found == content(thread as u64, i), "{}", path.display());
                }
            }
            mount.unmount();
        }
    });
}

/// Files that wait when a mount ends may be more than a process may have open: each kept a descriptor once its path was told, and
/// then the index could not be written.
///
/// Seen to fail: with descriptors kept once a path was told.
#[test]
fn more_files_can_wait_than_descriptors_are_allowed() {
    as_both(|user| {
        let mount = Mount::prepare(user);
        let program = mount.dedupfs();
        let mut few = Command::new("sh");
        few.args(["-c", "ulimit -n 2000; exec \"$@\"", "sh"]).arg(program.get_program());
        few.envs(program.get_envs().filter_map(|(name, value)| Some((name, value?))));
        few.args(["--foreground", "--dedup", "idle:1h"]).arg(mount.dir()).arg(mount.mnt());
        let mut daemon = few.spawn().unwrap();
        wait_for("the mount", || mount.is_mounted());
        let names: Vec<String> = (0..2_500).map(|i| i.to_string()).collect();
        let text = prose(7, 5_000);
        for name in &names {
            fs::write(mount.at(name), &text).unwrap();
        }
        signal(daemon.id() as i32, Signal::TERM);
        assert_eq!(daemon.wait().unwrap().code(), Some(0));
        mount.start();
        mount.settle();
        let plain: Vec<_> = names.iter().filter(|name| !mount.is_stub(name)).collect();
        assert!(plain.is_empty(), "{} are plain, {} among them", plain.len(), plain[0]);
    });
}

#[test]
fn a_dead_mount_is_cleared_while_programs_are_still_in_it() {
    as_both(|user| {
        let mount = Mount::new(user);
        fs::create_dir(mount.at("sub")).unwrap();
        fs::write(mount.at("sub/stub"), noise(1, 100_000)).unwrap();
        mount.settle();
        let mut stub = File::open(mount.at("sub/stub")).unwrap();
        let mut plain = File::create(mount.at("sub/plain")).unwrap();
        plain.write_all(&noise(2, 50_000)).unwrap();
        let mut inside = mount.command("sleep").arg("60").current_dir(mount.at("sub")).spawn().unwrap();
        mount.kill();
        mount.start();
        assert_eq!(fs::read(mount.at("sub/stub")).unwrap(), noise(1, 100_000));
        assert_eq!(fs::read(mount.at("sub/plain")).unwrap(), noise(2, 50_000));
        let mut bytes = Vec::new();
        let dead = stub.read_to_end(&mut bytes).unwrap_err();
        assert_eq!(dead.raw_os_error(), Some(libc::ENOTCONN), "an error, never other bytes");
        drop((stub, plain));
        inside.kill().unwrap();
        inside.wait().unwrap();
        mount.settle();
        mount.remount();
        assert_eq!(fs::read(mount.at("sub/stub")).unwrap(), noise(1, 100_000));
    });
}

#[test]
fn a_busy_mount_is_not_unmounted_and_goes_on() {
    as_both(|user| {
        let mount = Mount::new(user);
        fs::write(mount.at("file"), noise(3, 50_000)).unwrap();
        mount.settle();
        let holder = OpenOptions::new().read(true).write(true).open(mount.at("file")).unwrap();
        let output = mount.dedupctl().arg("unmount").arg(mount.mnt()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(mount.mnt().to_str().unwrap()) && said.contains("is in use"), "{said}");
        assert!(said.contains("hint:") && said.contains("fuser -vm"), "{said}");
        assert!(mount.is_mounted());
        holder.write_all_at(b"CHANGED", 100).unwrap();
        fs::write(mount.at("other"), prose(1, 40_000)).unwrap();
        drop(holder);
        mount.remount();
        let mut expected = noise(3, 50_000);
        expected[100..107].copy_from_slice(b"CHANGED");
        assert_eq!(fs::read(mount.at("file")).unwrap(), expected);
        assert_eq!(fs::read(mount.at("other")).unwrap(), prose(1, 40_000));
    });
}

/// A signal detaches a busy mount; whoever has files open keeps them, for however long.
#[test]
fn sigterm_detaches_a_busy_mount_and_waits_for_the_last_close() {
    as_both(|user| {
        let mount = Mount::new(user);
        fs::write(mount.at("stub"), noise(4, 300_000)).unwrap();
        mount.settle();
        let stub = File::open(mount.at("stub")).unwrap();
        let file = File::create(mount.at("file")).unwrap();
        let pid = mount.pid();
        signal(pid, Signal::TERM);
        wait_for("the mount to be detached", || !mount.is_mounted());
        std::thread::sleep(Duration::from_secs(12));
        let mut bytes = vec![0; 300_000];
        stub.read_exact_at(&mut bytes, 0).unwrap();
        assert!(bytes == noise(4, 300_000));
        file.write_all_at(&noise(5, 70_000), 0).unwrap();
        file.sync_all().unwrap();
        assert!(runs(pid));
        // Who has the store is told, not a mount that cannot be reached.
        let output = mount.dedupfs().arg(mount.dir()).arg(mount.mnt()).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{}", text(&output));
        assert!(
            String::from_utf8_lossy(&output.stderr).contains(&format!("process {pid}")),
            "{}",
            text(&output)
        );
        drop((stub, file));
        wait_for_the_end(&mount, pid);
        mount.start();
        assert_eq!(fs::read(mount.at("file")).unwrap(), noise(5, 70_000));
    });
}

#[test]
fn the_systems_own_commands_end_it() {
    as_both(|user| {
        let mount = Mount::new(user);
        let commands: &[&[&str]] = match user {
            As::Root => &[&["umount"], &["fusermount3", "-u"], &["umount", "-l"]],
            As::User => &[&["fusermount3", "-u"], &["fusermount3", "-u", "-z"]],
        };
        for (i, command) in commands.iter().enumerate() {
            let name = format!("file-{i}");
            fs::write(mount.at(&name), prose(i as u64, 60_000)).unwrap();
            let pid = mount.pid();
            // A file is closed a moment after its program has closed it.
            let unmounted = || {
                let mut unmount = mount.command(command[0]);
                let output = unmount.args(&command[1..]).arg(mount.mnt()).output().unwrap();
                assert!(output.status.success() || text(&output).contains("busy"), "{}", text(&output));
                output.status.success()
            };
            wait_for("an unmount", unmounted);
            wait_for_the_end(&mount, pid);
            assert!(log(&mount).contains(": unmounted;"), "{}", log(&mount));
            assert!(!mount.dir().join(".dedupfs/daemon.json").exists());
            mount.start();
            assert_eq!(fs::read(mount.at(&name)).unwrap(), prose(i as u64, 60_000));
        }
    });
}

/// The command that unmounts returns before the daemon has closed the store.
#[test]
fn a_mount_can_follow_an_unmount_at_once() {
    if !root_and_fuse_available() {
        return;
    }
    let mount = Mount::new(As::Root);
    for round in 0..4u64 {
        for i in 0..100 {
            fs::write(mount.at(&format!("{i}")), noise(round * 1000 + i, 40_000)).unwrap();
        }
        wait_for("an unmount", || unmount(mount.mnt(), UnmountFlags::empty()).is_ok());
        mount.start();
    }
    assert_eq!(fs::read(mount.at("7")).unwrap(), noise(3007, 40_000));
}

#[test]
fn a_directory_mounted_elsewhere_names_where() {
    as_both(|user| {
        let mount = Mount::new(user);
        let output = mount.dedupfs().arg(mount.dir()).arg(mount.root.path().join("home")).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{said}");
        let (mnt, pid) = (mount.mnt().to_str().unwrap().to_owned(), format!("process {}", mount.pid()));
        assert!(said.contains(&mnt) && said.contains(&pid) && said.contains("dedupctl unmount"), "{said}");
    });
}

/// Several rounds of a commit.
const MUCH: u64 = 160;

/// Writes so much that converting it takes a while.
fn much(mount: &Mount) {
    for i in 0..MUCH {
        fs::write(mount.at(&format!("much-{i}")), noise(1000 + i, 2 << 20)).unwrap();
    }
}

#[test]
fn unmount_waits_for_conversions_and_can_be_interrupted() {
    if !fuse_available() {
        return;
    }
    let mount = Mount::with_flags(As::Root, &["--dedup", "idle:1h"]);
    much(&mount);
    let mut unmount = mount.dedupctl();
    unmount.arg("unmount").arg(mount.mnt()).arg("--json").stdout(Stdio::piped()).stderr(Stdio::piped());
    let unmount = unmount.spawn().unwrap();
    let is_stub = |i: u64| mount.is_stub(&format!("much-{i}"));
    wait_for("the first round", || (0..MUCH).any(is_stub));
    // Not SIGINT: what a shell starts in the background ignores it.
    signal(unmount.id() as i32, Signal::TERM);
    let output = unmount.wait_with_output().unwrap();
    assert!(output.stdout.is_empty(), "{}", text(&output));
    // Time for a daemon that goes on regardless.
    wait_for("an answer", || {
        mount.dedupctl().arg("status").arg(mount.mnt()).output().unwrap().status.success()
    });
    std::thread::sleep(Duration::from_secs(2));
    assert!(mount.is_mounted(), "what was interrupted is not done");
    fs::write(mount.at("after"), "still here").unwrap();
    let none = namespaces::none();
    let output = succeed(mount.dedupctl().arg("unmount").arg(mount.mnt()).arg("--json"));
    drop(none);
    let said: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(said["unmounted"].as_str(), mount.mnt().to_str());
    assert!((0..MUCH).all(is_stub), "it waits for conversions");
    mount.start();
    assert_eq!(fs::read(mount.at("much-7")).unwrap(), noise(1007, 2 << 20));
}

#[test]
fn a_scan_under_way_does_not_delay_the_end() {
    if !fuse_available() {
        return;
    }
    let mount = Mount::prepare(As::Root);
    for i in 0..1500 {
        fs::write(mount.dir().join(format!("{i}")), noise(i, 40_000)).unwrap();
    }
    mount.start();
    let mut scan = mount.dedupctl();
    scan.arg("scan").arg(mount.mnt()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut scan = scan.spawn().unwrap();
    wait_for("the scan to begin", || (0..1500).any(|i| mount.is_stub(&i.to_string())));
    let pid = mount.pid();
    signal(pid, Signal::TERM);
    wait_for_the_end(&mount, pid);
    wait_for("the scan to end", || {
        !runs(scan.id() as i32)
            || fs::read_to_string(format!("/proc/{}/stat", scan.id())).is_ok_and(|stat| stat.contains(") Z"))
    });
    scan.wait().unwrap();
    mount.start();
    for i in 0..1500 {
        assert!(fs::read(mount.at(&i.to_string())).unwrap() == noise(i, 40_000), "{i}");
    }
}

#[test]
fn it_starts_without_stdin_stdout_and_stderr() {
    as_both(|user| {
        let mount = Mount::prepare(user);
        let mut shell = mount.command("sh");
        shell.args(["-c", "exec \"$@\" <&- >&- 2>&-", "sh"]).arg(mount.dedupfs().get_program());
        succeed(shell.arg(mount.dir()).arg(mount.mnt()));
        fs::write(mount.at("file"), prose(2, 50_000)).unwrap();
        mount.settle();
        assert_eq!(fs::read(mount.at("file")).unwrap(), prose(2, 50_000));
        // Nothing but what it opened itself lies under those numbers.
        for fd in 0..2 {
            let target = fs::read_link(format!("/proc/{}/fd/{fd}", mount.pid())).unwrap();
            assert_eq!(target, Path::new("/dev/null"), "{fd}");
        }
        assert!(log(&mount).contains(": mounted"));
        let mode = fs::metadata(mount.dir().join(".dedupfs/dedupfs.log")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    });
}

#[test]
fn read_only_refuses_every_change_and_makes_none() {
    as_both(|user| {
        let mut mount = Mount::new(user);
        fs::create_dir(mount.at("sub")).unwrap();
        fs::write(mount.at("stub"), noise(6, 80_000)).unwrap();
        mount.settle();
        mount.unmount();
        fs::write(mount.dir().join("plain"), "plain").unwrap();
        symlink("plain", mount.dir().join("link")).unwrap();
        let before = bare(&mount.dir());
        mount.flags = vec!["-o".to_owned(), "ro".to_owned()];
        mount.start();
        let at = |name: &str| mount.at(name);
        let attempts: Vec<(&str, std::io::Result<()>)> = vec![
            ("create", File::create_new(at("new")).map(drop)),
            ("write a stub", OpenOptions::new().write(true).open(at("stub")).map(drop)),
            ("write a plain file", OpenOptions::new().append(true).open(at("plain")).map(drop)),
            ("truncate", File::create(at("stub")).map(drop)),
            ("mkdir", fs::create_dir(at("new"))),
            ("rmdir", fs::remove_dir(at("sub"))),
            ("unlink", fs::remove_file(at("stub"))),
            ("rename", fs::rename(at("stub"), at("other"))),
            ("link", fs::hard_link(at("stub"), at("other"))),
            ("symlink", symlink("x", at("new"))),
            ("chmod", fs::set_permissions(at("stub"), fs::Permissions::from_mode(0o600))),
            ("chown", std::os::unix::fs::chown(at("stub"), Some(0), Some(0))),
            ("times", File::open(at("stub")).unwrap().set_modified(std::time::SystemTime::now())),
            (
                "setxattr",
                rustix::fs::setxattr(at("stub"), "user.x", b"1", rustix::fs::XattrFlags::empty())
                    .map_err(Into::into),
            ),
            ("removexattr", rustix::fs::removexattr(at("stub"), "user.x").map_err(Into::into)),
            (
                "mknod",
                rustix::fs::mknodat(rustix::fs::CWD, at("fifo"), rustix::fs::FileType::Fifo, 0o600.into(), 0)
                    .map_err(Into::into),
            ),
        ];
        for (what, result) in attempts {
            assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::EROFS), "{what}");
        }
        assert_eq!(fs::read(at("stub")).unwrap(), noise(6, 80_000));
        assert_eq!(fs::read(at("link")).unwrap(), b"plain");
        mount.ctl(&["settle"]);
        mount.unmount();
        assert_eq!(bare(&mount.dir()), before);
    });
}

/// A line of fstab reaches the program with all its options; in a mount namespace of its own.
#[test]
fn a_line_in_fstab_mounts_it() {
    if !root_and_fuse_available() {
        return;
    }
    let mount = Mount::prepare(As::Root);
    let (bin, fstab) = (mount.root.path().join("bin"), mount.root.path().join("fstab"));
    fs::create_dir(&bin).unwrap();
    for program in [env!("CARGO_BIN_EXE_dedupfs"), env!("CARGO_BIN_EXE_dedupctl")] {
        fs::copy(program, bin.join(Path::new(program).file_name().unwrap())).unwrap();
    }
    let (dir, mnt) = (mount.dir(), mount.mnt());
    let run = |options: &str, script: &str| {
        fs::write(&fstab, format!("{} {} fuse.dedupfs {options} 0 0\n", dir.display(), mnt.display()))
            .unwrap();
        let script = format!(
            "set -e; mount --bind \"$1\" /usr/local/bin; hash -r; mount --fstab \"$4\" \"$3\"; {script}"
        );
        let mut command = mount.command("timeout");
        command.args(["60", "unshare", "-m", "--propagation", "private", "sh", "-c", &script, "sh"]);
        let _making = namespaces::making();
        command.arg(&bin).arg(&dir).arg(&mnt).arg(&fstab).output().unwrap()
    };
    let end = "umount \"$3\"; while [ -e \"$2/.dedupfs/daemon.json\" ]; do sleep 0.1; done";
    let use_it =
        format!("echo text > \"$3/file\"; findmnt -no OPTIONS \"$3\"; dedupctl status \"$3\" --json; {end}");
    let options = "rw,noauto,nofail,_netdev,user,noexec,x-systemd.automount,x-systemd.idle-timeout=1min,\
        X-comment=mine,comment=old,dedup=idle:7m,memory=64MiB";
    let output = run(options, &use_it);
    assert!(output.status.success(), "{}", text(&output));
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains("noexec") && said.contains("nosuid") && said.contains("idle:7m"), "{said}");
    let output =
        run("ro,x-systemd.requires=a.service", &format!("cat \"$3/file\"; ! touch \"$3/file\"; {end}"));
    assert!(output.status.success() && output.stdout == b"text\n", "{}", text(&output));
    let output = run("compress=lots", "true");
    assert!(!output.status.success());
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("\"compress=lots\" is not known"),
        "{}",
        text(&output)
    );
}

/// Runs a script in a mount namespace of its own where mount(8), which looks in the system's directories only, finds the
/// programs. `$2` is the mount point. Returns all that it said.
fn run_with_programs(mount: &Mount, script: &str) -> String {
    let bin = mount.root.path().join("bin");
    fs::create_dir_all(&bin).unwrap();
    for program in [env!("CARGO_BIN_EXE_dedupfs"), env!("CARGO_BIN_EXE_dedupctl")] {
        let to = bin.join(Path::new(program).file_name().unwrap());
        if !to.exists() {
            fs::copy(program, to).unwrap();
        }
    }
    let script = format!("mount --bind \"$1\" /usr/local/bin; hash -r; cd /; {script}");
    let mut command = mount.command("timeout");
    command.args(["60", "unshare", "-m", "--propagation", "private", "sh", "-c", &script, "sh"]);
    let _making = namespaces::making();
    text(&command.arg(&bin).arg(mount.mnt()).output().unwrap())
}

/// As an administrator types it: mount(8) reads the mount's source, and has a helper look for a program. Seen to fail: the
/// helper ran the source, a directory.
#[test]
fn a_mount_becomes_read_only_and_writable_again() {
    if !root_and_fuse_available() {
        return;
    }
    for in_place in [false, true] {
        let mut mount = Mount::prepare(As::Root);
        mount.in_place = in_place;
        mount.start();
        fs::write(mount.at("file"), b"text").unwrap();
        let run = |script: &str| run_with_programs(&mount, script);
        let said = run(
            "findmnt -no FSTYPE \"$2\"; mount -o remount,ro \"$2\" && cat \"$2/file\"; touch \"$2/file\"",
        );
        assert!(said.contains("fuse.dedupfs") && said.contains("text"), "{said}");
        assert!(said.contains("touch: ") && said.contains("Read-only file system"), "{said}");
        let refused = fs::write(mount.at("other"), b"text").unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EROFS), "in all namespaces");
        mount.settle();
        let said = run("mount -o remount,rw \"$2\" && touch \"$2/other\" && ls \"$2\"");
        assert!(said.contains("file") && said.contains("other"), "{said}");
        let said = run(
            "exec 3> \"$2/open\"; mount -o remount,ro \"$2\"; mount -o remount,noexec \"$2\"; findmnt -no OPTIONS \"$2\"",
        );
        assert!(said.contains("noexec") && said.contains("files are open for writing"), "{said}");
        mount.unmount();
    }
}

/// Such a mount tells root nothing of its daemon.
#[test]
fn root_remounts_an_ordinary_users_mount() {
    if !root_and_fuse_available() {
        return;
    }
    fs::set_permissions("/dev/fuse", fs::Permissions::from_mode(0o666)).unwrap();
    let mount = Mount::prepare(As::Root);
    let root = mount.root.path().to_owned();
    fs::set_permissions(&root, fs::Permissions::from_mode(0o755)).unwrap();
    for dir in [mount.dir(), mount.mnt(), root.join("home")] {
        std::os::unix::fs::chown(dir, Some(65534), Some(65534)).unwrap();
    }
    let user = "setpriv --reuid 65534 --regid 65534 --clear-groups --";
    let dir = mount.dir();
    let said = run_with_programs(
        &mount,
        &format!(
            "{user} dedupfs '{}' \"$2\"; {user} touch \"$2/a\"; mount -o remount,ro \"$2\"; {user} touch \"$2/b\"; \
             mount -o remount,rw \"$2\"; {user} touch \"$2/c\"; {user} ls \"$2\"; findmnt -no OPTIONS \"$2\"; \
             {user} dedupctl unmount \"$2\"",
            dir.display()
        ),
    );
    assert!(said.contains("Read-only file system") && said.contains("a\nc\n"), "{said}");
    assert!(said.contains("nosuid,nodev") && said.contains("unmounted"), "{said}");
}

#[test]
fn a_daemon_that_was_started_read_only_is_not_remounted_writable() {
    if !root_and_fuse_available() {
        return;
    }
    let mount = Mount::prepare(As::Root);
    mount.init("");
    succeed(mount.dedupfs().arg(mount.dir()).arg(mount.mnt()).args(["-o", "ro"]));
    let remount = |dir: &Path, options: &str| {
        let output = mount.dedupfs().arg(dir).args(["-o", options]).output().unwrap();
        assert!(!output.status.success(), "{}", text(&output));
        text(&output)
    };
    assert!(remount(&mount.mnt(), "rw,remount").contains("without `ro`"));
    assert!(remount(mount.root.path(), "remount,ro").contains("nothing to remount"));
}

/// As whom a command runs that is neither root nor the owner.
const STRANGER: [&str; 6] = ["setpriv", "--reuid", "1234", "--regid", "1234", "--clear-groups"];

#[test]
fn other_users_are_let_in_as_far_as_modes_say() {
    if !root_and_fuse_available() {
        return;
    }
    let mount = Mount::with_flags(As::Root, &["--allow-other"]);
    fs::set_permissions(mount.root.path(), fs::Permissions::from_mode(0o755)).unwrap();
    for (name, mode) in [("open", 0o644), ("closed", 0o600), ("group", 0o640)] {
        fs::write(mount.at(name), prose(3, 30_000)).unwrap();
        fs::set_permissions(mount.at(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    std::os::unix::fs::chown(mount.at("group"), None, Some(1234)).unwrap();
    mount.settle();
    let as_stranger = |script: &str, name: &str| {
        let mut command = Command::new(STRANGER[0]);
        command.args(&STRANGER[1..]).args(["sh", "-c", script, "sh"]).arg(mount.at(name));
        command.stderr(Stdio::null()).status().unwrap().success()
    };
    for (name, read) in [("open", true), ("closed", false), ("group", true)] {
        assert!(mount.is_stub(name));
        assert_eq!(as_stranger("cat \"$1\" > /dev/null", name), read, "{name}");
        assert!(!as_stranger("echo x >> \"$1\"", name), "{name}");
        assert!(!as_stranger("chmod 777 \"$1\"", name), "{name}");
        assert!(mount.is_stub(name), "{name}: a refused open changes nothing");
    }
}

/// An ordinary user may let others in only where the administrator agrees: in mount namespaces with another
/// fuse.conf.
#[test]
fn an_ordinary_user_needs_the_administrators_consent_to_let_others_in() {
    if !root_and_fuse_available() {
        return;
    }
    let mount = Mount::prepare(As::Root);
    fs::set_permissions(mount.root.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let (bin, etc) = (mount.root.path().join("bin"), mount.root.path().join("etc"));
    fs::create_dir(&bin).unwrap();
    // In the place of this machine's: fusermount3 wants a user with a name, and the list of mounts.
    fs::create_dir(&etc).unwrap();
    std::os::unix::fs::symlink("/proc/self/mounts", etc.join("mtab")).unwrap();
    fs::write(etc.join("passwd"), "root:x:0:0::/:/bin/sh\nsomeone:x:65534:65534::/:/bin/sh\n").unwrap();
    for program in [env!("CARGO_BIN_EXE_dedupfs"), env!("CARGO_BIN_EXE_dedupctl")] {
        fs::copy(program, bin.join(Path::new(program).file_name().unwrap())).unwrap();
    }
    for dir in [mount.dir(), mount.mnt(), mount.root.path().join("home")] {
        std::os::unix::fs::chown(dir, Some(65534), Some(65534)).unwrap();
    }
    if fs::metadata("/dev/fuse").unwrap().permissions().mode() & 0o666 != 0o666 {
        fs::set_permissions("/dev/fuse", fs::Permissions::from_mode(0o666)).unwrap();
    }
    let script = "set -e; mount --bind \"$4\" /etc; \
        user='setpriv --reuid 65534 --regid 65534 --clear-groups'; \
        $user \"$1/dedupfs\" -o allow_other \"$2\" \"$3\"; \
        $user sh -c 'echo open > \"$1/open\"; echo closed > \"$1/closed\"; chmod 644 \"$1/open\"; chmod 600 \"$1/closed\"' sh \"$3\"; \
        $user \"$1/dedupctl\" settle \"$3\" > /dev/null; \
        other='setpriv --reuid 1234 --regid 1234 --clear-groups'; \
        $other cat \"$3/open\"; ! $other cat \"$3/closed\" 2> /dev/null; cat \"$3/closed\"; \
        $user \"$1/dedupctl\" unmount \"$3\"";
    let run = |allowed: bool| {
        fs::write(etc.join("fuse.conf"), if allowed { "user_allow_other\n" } else { "# nothing\n" }).unwrap();
        let mut command = mount.command("timeout");
        command.args(["60", "unshare", "-m", "--propagation", "private", "sh", "-c", script, "sh"]);
        let _making = namespaces::making();
        command.arg(&bin).arg(mount.dir()).arg(mount.mnt()).arg(&etc).output().unwrap()
    };
    let output = run(false);
    assert!(!output.status.success(), "{}", text(&output));
    assert!(String::from_utf8_lossy(&output.stderr).contains("user_allow_other"), "{}", text(&output));
    let output = run(true);
    assert!(output.status.success(), "{}", text(&output));
    assert!(output.stdout.starts_with(b"open\nclosed\n"), "{}", text(&output));
}

#[test]
fn a_directory_that_vanished_or_may_not_be_written_does_not_hold_up_the_end() {
    if !root_and_fuse_available() {
        return;
    }
    let mount = Mount::new(As::Root);
    fs::write(mount.at("file"), prose(4, 50_000)).unwrap();
    mount.settle();
    let pid = mount.pid();
    fs::remove_dir_all(mount.dir()).unwrap();
    assert!(
        fs::read_dir(mount.mnt()).is_ok_and(|entries| entries.count() == 0)
            || fs::read_dir(mount.mnt()).is_err()
    );
    assert!(fs::write(mount.at("new"), "x").is_err());
    signal(pid, Signal::TERM);
    wait_for_the_end(&mount, pid);

    let mount = Mount::new(As::Root);
    fs::write(mount.at("file"), prose(5, 50_000)).unwrap();
    mount.settle();
    mount.unmount();
    let script = "set -e; mount --bind \"$2\" \"$2\"; mount -o remount,bind,ro \"$2\"; \
        ! \"$1/dedupfs\" \"$2\" \"$3\"; \"$1/dedupfs\" -o ro \"$2\" \"$3\"; cat \"$3/file\"; \
        \"$1/dedupctl\" unmount \"$3\" > /dev/null";
    let bin = Path::new(env!("CARGO_BIN_EXE_dedupfs")).parent().unwrap();
    let mut command = mount.command("timeout");
    command.args(["60", "unshare", "-m", "--propagation", "private", "sh", "-c", script, "sh"]);
    let making = namespaces::making();
    let output = succeed(command.arg(bin).arg(mount.dir()).arg(mount.mnt()));
    drop(making);
    assert!(output.stdout == prose(5, 50_000), "{}", String::from_utf8_lossy(&output.stderr));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains(mount.dir().to_str().unwrap()) && said.contains("Read-only file system"), "{said}");
    assert!(said.contains("-o ro"), "{said}");
}

/// A sandbox or a container that was started meanwhile has a copy of the mount: `unmount` says so and does not wait for it,
/// and `--lazy` ends it there too.
#[test]
fn an_unmount_does_not_wait_for_other_mount_namespaces() {
    if !root_and_fuse_available() {
        return;
    }
    let mount = Mount::new(As::Root);
    fs::write(mount.at("f"), "content").unwrap();
    // It holds this mount alone, not those of other tests.
    let hold = "while read -r _ at kind _; do
            case $kind in fuse*) [ \"$at\" = \"$0\" ] || umount -l \"$at\" ;; esac
        done < /proc/mounts; echo ready; read _";
    let mut holder = Command::new("unshare");
    holder.args(["--mount", "--propagation", "private", "sh", "-c", hold]).arg(mount.mnt());
    let making = namespaces::making();
    let mut holder = holder.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut ready = [0; 6];
    holder.stdout.as_mut().unwrap().read_exact(&mut ready).unwrap();
    drop(making);
    let unmount = |args: &[&str]| {
        let output = mount.dedupctl().args(["unmount", "--json"]).args(args).output().unwrap();
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        (output.status.code(), report["held_by"].to_string(), text(&output))
    };
    let dir = mount.dir();
    let (code, held_by, all) = unmount(&[mount.mnt().to_str().unwrap()]);
    assert_eq!(code, Some(1), "{all}");
    assert!(held_by.contains("sh"), "{all}");
    assert!(all.contains("--lazy"), "{all}");
    assert!(!mount.at("f").exists(), "it is still mounted here");
    // Its daemon is found by the directory.
    let (code, held_by, all) = unmount(&["--lazy", dir.to_str().unwrap()]);
    assert_eq!((code, &*held_by), (Some(0), "null"), "{all}");
    drop(holder.stdin.take());
    holder.wait().unwrap();
    mount.start();
    assert_eq!(fs::read(mount.at("f")).unwrap(), b"content");
    mount.unmount();
}
