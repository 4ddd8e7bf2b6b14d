//! What `dedupctl sync` leaves out, asks about, refuses and cleans up, on real overlays.
#![allow(clippy::unwrap_used, reason = "a test stops at the first error")]

use crate::common::{As, Mount, as_both, fuse_available, noise, succeed, text};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

fn sync(mount: &Mount, args: &[&str]) -> Command {
    let mut command = mount.dedupctl();
    command.arg("sync").args(args).arg("--json");
    command
}

#[track_caller]
fn json(command: &mut Command, code: i32) -> Value {
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(code), "{command:?}: {}", text(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[track_caller]
fn refused(command: &mut Command, told: &[&str]) {
    let output = command.output().unwrap();
    let said = text(&output);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(told.iter().all(|told| said.contains(told)), "{said}");
}

fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// A pattern that one side adds holds on both: what it leaves out stays where it is, and nothing waits.
#[test]
fn a_new_pattern_converges() {
    as_both(|user| {
        for in_place in [true, false] {
            let mounted = || if in_place { Mount::in_place(user) } else { Mount::new(user) };
            let (a, b) = (mounted(), mounted());
            let run = |code| json(&mut sync(&a, &[path(&b.mnt()), path(&a.mnt())]), code);
            fs::write(a.at("f"), "f").unwrap();
            fs::create_dir(a.at("old")).unwrap();
            fs::write(a.at("old/synced"), "synced").unwrap();
            run(0);
            fs::write(a.at(".dedupfsignore"), "/cache/\n/old/\n").unwrap();
            fs::create_dir(a.at("cache")).unwrap();
            fs::write(a.at("cache/c"), "of a").unwrap();
            fs::create_dir(b.at("cache")).unwrap();
            fs::write(b.at("cache/other"), "of b").unwrap();
            fs::write(b.at("old/synced"), "edited on b").unwrap();
            fs::write(b.at("g"), "g").unwrap();
            for round in 0..3 {
                let report = run(0);
                assert_eq!(report["conflicts"].as_array().map(Vec::len), Some(0), "{report}");
                assert!(round == 0 || report["created"] == 0, "{report}");
                for mount in [&a, &b] {
                    assert_eq!(names(&mount.mnt()), [".dedupfsignore", "cache", "f", "g", "old"], "{report}");
                }
                assert_eq!(
                    (names(&a.at("cache")), names(&b.at("cache"))),
                    (vec!["c".into()], vec!["other".into()])
                );
                assert_eq!(fs::read_to_string(a.at("old/synced")).unwrap(), "synced");
                assert_eq!(fs::read_to_string(b.at("old/synced")).unwrap(), "edited on b");
            }
            // No pattern any more: both sides have all of it.
            fs::write(b.at(".dedupfsignore"), "").unwrap();
            run(0);
            run(0);
            for mount in [&a, &b] {
                assert_eq!(names(&mount.at("cache")), ["c", "other"]);
                assert_eq!(fs::read_to_string(mount.at("old/synced")).unwrap(), "edited on b");
            }
        }
    });
}

/// `git gc`, and a tree that is moved by copying and deleting, lose no content; deleting most of it does.
#[test]
fn the_guard_counts_contents() {
    if !fuse_available() {
        return;
    }
    let (a, b) = (Mount::new(As::Root), Mount::new(As::Root));
    let run = |code| json(&mut sync(&a, &[path(&b.mnt()), path(&a.mnt())]), code);
    let git = |args: &[&str]| {
        let identity = ["-c", "user.name=t", "-c", "user.email=t@localhost", "-c", "gc.auto=0"];
        succeed(a.command("git").arg("-C").arg(a.at("repo")).args(identity).args(args));
    };
    fs::create_dir(a.at("repo")).unwrap();
    git(&["init", "-q"]);
    for n in 0..20 {
        fs::write(a.at(&format!("repo/{n}")), format!("text {n}")).unwrap();
        git(&["add", "."]);
        git(&["commit", "-q", "-m", "one more"]);
    }
    run(0);
    git(&["gc", "-q", "--prune=now"]);
    run(0);
    succeed(a.command("git").arg("-C").arg(b.at("repo")).args(["fsck", "--strict"]));
    // Other inodes with the same contents.
    succeed(a.command("cp").arg("-r").arg(a.at("repo")).arg(a.at("moved")));
    fs::remove_dir_all(a.at("repo")).unwrap();
    run(0);
    assert!(b.at("moved/19").exists() && !b.at("repo").exists());
    fs::remove_dir_all(a.at("moved")).unwrap();
    fs::write(a.at("new"), noise(1, 1_000_000)).unwrap();
    refused(&mut sync(&a, &[path(&b.mnt()), path(&a.mnt())]), &["would be lost", "--force"]);
    assert!(b.at("moved/19").exists());
    assert_eq!(fs::read_dir(b.at(".")).unwrap().count(), 1, "nothing was staged");
}

/// Private mounts of a process and of those that it started.
fn private_mounts(pid: u32) -> Vec<PathBuf> {
    let stats = fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| {
        let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
        let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
        let parent: u32 = stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()?;
        Some((pid, parent))
    });
    let pids = stats.filter(|(child, parent)| *child == pid || *parent == pid).map(|(child, _)| child);
    pids.map(|pid| PathBuf::from(format!("/run/dedupfs/dedupfs-sync-{pid}")))
        .filter(|path| path.exists())
        .collect()
}

fn is_mounted(path: &Path) -> bool {
    let table = fs::read("/proc/self/mountinfo").unwrap();
    String::from_utf8_lossy(&table).lines().any(|line| line.split(' ').nth(4) == path.to_str())
}

fn is_running(pid: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

/// The same command, with SIGINT's default action: what a shell starts in the background ignores it.
fn interruptible(command: &Command) -> Command {
    let mut env = Command::new("env");
    env.arg("--default-signal=INT").arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => env.env(name, value),
            None => env.env_remove(name),
        };
    }
    env
}

#[track_caller]
fn wait_until(what: &str, done: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(60);
    while !done() {
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// However a sync ends, what it mounted for itself goes; also if the mount's daemon is killed with it, with the next command.
#[test]
fn no_private_mount_is_left() {
    if !fuse_available() {
        return;
    }
    let mount = Mount::prepare(As::Root);
    let (dir, peer) = (mount.dir(), mount.root.path().join("peer"));
    fs::create_dir(&peer).unwrap();
    succeed(mount.dedupctl().arg("init").arg(&dir));
    fs::write(dir.join("large"), noise(2, 4_000_000)).unwrap();
    for (signal, whom) in
        [("INT", "caller"), ("TERM", "caller"), ("KILL", "caller"), ("KILL", "called"), ("KILL", "all")]
    {
        // So slowly that there is time.
        let mut command = interruptible(&sync(&mount, &["--bwlimit", "100K", path(&peer), path(&dir)]));
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let caller = child.id().to_string();
        let mounted =
            || private_mounts(child.id()).into_iter().filter(|path| is_mounted(path)).collect::<Vec<_>>();
        wait_until("both sides are mounted", || mounted().len() == 2);
        let mounts = mounted();
        let number = |path: &PathBuf| path.to_str().unwrap().rsplit_once('-').unwrap().1.to_owned();
        let called = mounts.iter().map(number).find(|pid| *pid != caller).unwrap();
        let pids = match whom {
            "caller" => vec![caller],
            "called" => vec![called],
            _ => {
                let daemons = mounts.iter().flat_map(|private| {
                    let listed = mount.command("pgrep").args(["-f", path(private)]).output().unwrap();
                    String::from_utf8(listed.stdout).unwrap().lines().map(str::to_owned).collect::<Vec<_>>()
                });
                daemons.chain([caller, called]).collect()
            }
        };
        let _ = mount.command("kill").arg(format!("-{signal}")).args(&pids).output();
        let status = child.wait().unwrap();
        assert!(!status.success(), "{signal} to {whom}: {status}");
        let left = || mounts.iter().filter(|path| is_mounted(path) || path.exists()).count();
        if whom == "all" {
            wait_until("the mounts are dead", || {
                // Another command on this machine may have cleared them already.
                let dead = |path: &PathBuf| match rustix::fs::statfs(path) {
                    Ok(_) => false,
                    Err(e) => e == rustix::io::Errno::NOTCONN || e == rustix::io::Errno::NOENT,
                };
                mounts.iter().all(dead)
            });
            // A mount is cleared if the process that it belongs to has ended.
            wait_until("both processes have ended", || mounts.iter().all(|path| !is_running(&number(path))));
            let conflicts = mount.dedupctl().arg("conflicts").current_dir(&dir).output().unwrap();
            assert_eq!(conflicts.status.code(), Some(0), "{}", text(&conflicts));
            // A process that was killed after it had unmounted leaves an empty directory.
            wait_until(&format!("the next command clears {mounts:?}"), || {
                mounts.iter().all(|path| !is_mounted(path))
            });
            assert!(mounts.iter().all(|path| !path.exists() || names(path).is_empty()), "{mounts:?}");
        } else {
            wait_until(&format!("what was mounted goes after {signal} to {whom}: {mounts:?}"), || {
                left() == 0
            });
        }
    }
    json(&mut sync(&mount, &[path(&peer), path(&dir)]), 0);
}

/// A peer's device is remembered: neither the empty mount point of its disk nor another disk there is taken for it.
#[test]
fn a_peer_is_the_device_that_was_met_first() {
    as_both(|user| {
        let (mount, other) = (Mount::new(user), Mount::new(user));
        let (disk, away) = (mount.root.path().join("disk"), mount.root.path().join("away"));
        let mnt = mount.mnt();
        fs::write(mount.at("f"), "f").unwrap();
        fs::create_dir(&disk).unwrap();
        succeed(mount.dedupctl().args(["remote", "add", "usb", path(&disk), path(&mnt)]));
        for peer in ["usb", path(&disk)] {
            json(&mut sync(&mount, &[peer, path(&mnt)]), 0);
            // Not plugged in.
            fs::rename(&disk, &away).unwrap();
            let named =
                if peer == "usb" { "remote usb: no such directory" } else { "no remote of that name" };
            refused(&mut sync(&mount, &[peer, path(&mnt)]), &[named, path(&disk), "--create"]);
            fs::create_dir(&disk).unwrap();
            for args in [&["--dry-run"][..], &[]] {
                refused(
                    &mut sync(&mount, &[args, &[peer, path(&mnt)]].concat()),
                    &["no copy is here", "--create"],
                );
                assert_eq!(names(&disk).len(), 0);
            }
            fs::remove_dir(&disk).unwrap();
            fs::rename(&away, &disk).unwrap();
            json(&mut sync(&mount, &[peer, path(&mnt)]), 0);
        }
        // Another disk, with a copy of something else.
        fs::write(other.at("of another"), "x").unwrap();
        fs::rename(&disk, &away).unwrap();
        json(&mut sync(&other, &["--create", path(&disk), path(&other.mnt())]), 0);
        refused(&mut sync(&mount, &["usb", path(&mnt)]), &["was met here before", "--replace"]);
        assert!(!mount.at("of another").exists());
        let listed = || {
            let output = mount.dedupctl().args(["remote", "list", "--json", path(&mnt)]).output().unwrap();
            serde_json::from_slice::<Value>(&output.stdout).unwrap()["remotes"][0].clone()
        };
        let first = listed()["device"].clone();
        assert!(first.is_string(), "{}", listed());
        succeed(mount.dedupctl().args(["remote", "add", "--replace", "usb", path(&disk), path(&mnt)]));
        assert!(listed()["device"].is_null());
        json(&mut sync(&mount, &["usb", path(&mnt)]), 0);
        assert!(mount.at("of another").exists() && listed()["device"] != first);
        // And back: asked for with the sync itself.
        fs::remove_dir_all(&disk).unwrap();
        fs::rename(&away, &disk).unwrap();
        refused(&mut sync(&mount, &["usb", path(&mnt)]), &["was met here before"]);
        json(&mut sync(&mount, &["--replace", "usb", path(&mnt)]), 0);
        assert_eq!(listed()["device"], first);
        // A new copy, where there is none any more.
        fs::remove_dir_all(&disk).unwrap();
        fs::create_dir(&disk).unwrap();
        json(&mut sync(&mount, &["--create", "usb", path(&mnt)]), 0);
        assert!(listed()["device"] != first);
    });
}

/// Writes a program.
fn script(at: &Path, text: &str) {
    fs::write(at, format!("#!/bin/sh\n{text}\n")).unwrap();
    fs::set_permissions(at, PermissionsExt::from_mode(0o755)).unwrap();
}

/// A program on the other side that is older, or not there, ends before it says anything.
#[test]
fn a_peer_that_says_nothing_is_explained() {
    if !fuse_available() {
        return;
    }
    let mount = Mount::new(As::Root);
    let at = |name: &str| mount.root.path().join(name);
    let (ssh, old, cut) = (at("ssh"), at("old"), at("cut"));
    script(&ssh, "shift 2; exec sh -c \"$1\"");
    let unknown = "echo \"error: unexpected argument '--expect' found\" >&2; exit 2";
    let program = env!("CARGO_BIN_EXE_dedupctl");
    script(&old, &format!("case \"$*\" in *--expect*) {unknown};; esac\nexec {program} \"$@\""));
    script(&cut, "exit 255");
    let (mnt, peer) = (mount.mnt(), format!("server:{}", at("peer").display()));
    let with = |ssh: &Path, remote: &str, args: &[&str]| {
        let ways = ["--ssh", path(ssh), "--remote-program", remote];
        sync(&mount, &[&ways[..], args, &[&peer, path(&mnt)]].concat())
    };
    fs::write(mount.at("f"), "1").unwrap();
    refused(&mut with(&ssh, "no-such-program", &[]), &[&peer, "cannot be run on server", "--remote-program"]);
    refused(&mut with(&cut, path(&old), &[]), &[&peer, "the connection to server failed"]);
    json(&mut with(&ssh, path(&old), &["--create"]), 0);
    fs::write(mount.at("f"), "2").unwrap();
    let told =
        [&peer[..], "older than this one", "that the copy of", "install this release on server", "--replace"];
    refused(&mut with(&ssh, path(&old), &[]), &told);
    assert_eq!(fs::read_to_string(at("peer").join("f")).unwrap(), "1");
    json(&mut with(&ssh, path(&old), &["--replace"]), 0);
    assert_eq!(fs::read_to_string(at("peer").join("f")).unwrap(), "2");
}

/// The overlay is the last word of every command, and `--at` means the same.
#[test]
fn the_overlay_comes_last() {
    if !fuse_available() {
        return;
    }
    let mount = Mount::new(As::Root);
    let mnt = mount.mnt();
    let says = |args: &[&str]| {
        let output = mount.dedupctl().args(args).current_dir("/").output().unwrap();
        (output.status.code(), text(&output))
    };
    for args in [
        &["remote", "add", "a", "/tmp"][..],
        &["remote", "list"],
        &["remote", "remove", "a"],
        &["conflicts"],
        &["snapshot", "create", "--name", "one"],
        &["snapshot", "list"],
        &["snapshot", "diff", "one", "one"],
        &["snapshot", "remove", "one"],
    ] {
        let (code, said) = says(&[args, &[path(&mnt)]].concat());
        assert_eq!(code, Some(0), "{args:?}: {said}");
        if args != ["snapshot", "remove", "one"] && args != ["remote", "remove", "a"] {
            let (code, said) = says(&[args, &["--at", path(&mnt)]].concat());
            let made = said.contains("one") && code == Some(2);
            assert!(code == Some(0) || made, "{args:?}: {said}");
        }
    }
    let peer = mount.root.path().join("peer");
    fs::create_dir(&peer).unwrap();
    let (code, said) = says(&["sync", path(&mnt), path(&peer)]);
    let right = format!("dedupctl sync {} {}", path(&peer), path(&mnt));
    assert!(code == Some(2) && said.contains(&right), "{said}");
}
