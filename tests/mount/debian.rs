//! A whole Debian on a mount: debootstrap unpacks it, apt changes it from within, and what dpkg knows of each of its files
//! is still so when they have become stubs.
//!
//! Wants root, debootstrap and a mirror: `DEDUPFS_PACKAGE_MIRROR`, or the first that this machine's apt uses. By hand:
//! `cargo test --test mount -- --ignored --nocapture debian::`.
//!
//! Seen to fail with one byte of a program changed when it had become a stub: dpkg says so.
#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a test stops at the first error, and tells how much it did"
)]

use crate::common::{As, Mount, root_and_fuse_available, succeed};
use std::process::{Command, Stdio};

/// A package without dependencies, and with a program.
const PACKAGE: &str = "hello";
/// One whose installation changes many files that were there before: it is upgraded to itself, scripts and all.
const AGAIN: &str = "perl-base";

/// Mirror and release that this machine's apt uses first.
fn debian() -> (String, String) {
    let mut ask = Command::new("apt-get");
    ask.args(["indextargets", "--format", "$(SITE) $(CODENAME)", "Created-By: Packages", "Origin: Debian"]);
    let said = String::from_utf8(succeed(&mut ask).stdout).unwrap();
    let line = said.lines().next().expect("apt knows a mirror of Debian; `apt-get update`?");
    let (mirror, release) = line.split_once(' ').unwrap();
    let mirror = std::env::var("DEDUPFS_PACKAGE_MIRROR").unwrap_or_else(|_| mirror.to_owned());
    (mirror, release.to_owned())
}

/// Runs a program for at most so long; what it says.
fn run(mount: &Mount, seconds: u32, words: &[&str]) -> String {
    let mut command = mount.command("timeout");
    command.arg(seconds.to_string()).args(words).current_dir(mount.mnt()).stdin(Stdio::null());
    command
        .env("LC_ALL", "C")
        .env("DEBIAN_FRONTEND", "noninteractive")
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
    String::from_utf8(succeed(&mut command).stdout).unwrap()
}

fn inside(mount: &Mount, seconds: u32, script: &str) -> String {
    run(mount, seconds, &["chroot", "debian", "/bin/sh", "-euc", script])
}

/// Every name with its kind, mode, owner, links, size, times and target, and every file's content.
fn everything(mount: &Mount) -> String {
    let script = "find . -printf '%p %y %m %U %G %n %s %T@ %C@ %l\\n' | sort; \
        find . -type f -print0 | sort -z | xargs -0 sha256sum";
    run(mount, 900, &["sh", "-euc", &format!("cd debian; {script}")])
}

#[test]
#[ignore = "wants root, debootstrap and a mirror of Debian"]
fn a_debian_is_installed_and_runs_from_stubs() {
    assert!(root_and_fuse_available());
    let (mirror, release) = debian();
    let mount = Mount::new(As::Root);
    run(&mount, 1800, &["debootstrap", "--variant=minbase", &release, "debian", &mirror]);
    mount.settle();
    assert!(mount.is_stub("debian/usr/bin/dpkg"));

    // dpkg, apt and all that they call are stubs now, and write over stubs.
    let install = "apt-get -q update; apt-get -qy install";
    inside(&mount, 900, &format!("{install} {PACKAGE}; apt-get -qy install --reinstall {AGAIN}"));
    assert_eq!(inside(&mount, 60, PACKAGE).trim(), "Hello, world!");
    let plain = everything(&mount);
    assert_eq!(inside(&mount, 300, "dpkg --verify"), "");
    mount.settle();
    for fresh in [false, true] {
        if fresh {
            mount.remount();
        }
        assert!(mount.is_stub(&format!("debian/usr/bin/{PACKAGE}")) && mount.is_stub("debian/usr/bin/perl"));
        assert_eq!(inside(&mount, 300, "dpkg --verify"), "");
        let stubs = everything(&mount);
        let differs = plain.lines().zip(stubs.lines()).find(|(plain, stub)| plain != stub);
        assert!(plain == stubs, "{differs:?}");
    }

    inside(&mount, 300, &format!("apt-get -qy purge {PACKAGE}; ! command -v {PACKAGE}; dpkg --audit"));
    assert_eq!(inside(&mount, 300, "dpkg --verify"), "");
    mount.settle();
    let check = mount.ctl(&["check", "--deep"]);
    assert_eq!(check["damaged"].as_array().unwrap().len(), 0, "{check}");
    let status = mount.ctl(&["status"]);
    eprintln!(
        "{release}: {} files, {} bytes, stored in {}",
        status["files"], status["logical_bytes"], status["stored_bytes"]
    );
}
