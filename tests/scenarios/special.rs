//! Scenarios that take more than two users between two syncs: a third device, connections that are cut, a full disk.

use crate::common::{fuse_available, noise, root_and_fuse_available, succeed};
use crate::world::{Do, FORMS, Side, act, manifest};
use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Three devices in a line: what the first and the last do meets in the middle, and comes to all.
#[test]
fn a_third_device() {
    if !fuse_available() {
        return;
    }
    for form in FORMS {
        let (a, b, c) = (Side::new(form), Side::new(form), Side::new(form));
        act(
            &a.root(),
            &[Do::Write("f", "old"), Do::Write("g", "g"), Do::MakeDir("d"), Do::Write("d/x", "x")],
        );
        assert_eq!((a.sync(&b, &[]).0, b.sync(&c, &[]).0), (0, 0));
        act(&a.root(), &[Do::Rename("f", "renamed"), Do::Write("g", "of a"), Do::Rename("d", "e")]);
        act(&c.root(), &[Do::Append("f", " and new"), Do::Write("g", "of c"), Do::Save("d/x", "x of c")]);
        assert_eq!(a.sync(&b, &[]).0, 0);
        assert_eq!(c.sync(&b, &[]).0, 1, "g was changed twice");
        assert_eq!((b.sync(&a, &[]).0, c.sync(&a, &[]).0), (0, 0));
        let all = [&a, &b, &c].map(|side| manifest(&side.root()));
        assert_eq!((&all[0], &all[1]), (&all[1], &all[2]), "{form:?}");
        let text = |path: &str| fs::read_to_string(a.root().join(path)).unwrap();
        assert_eq!(
            (text("renamed"), text("e/x")),
            ("old and new".to_owned(), "x of c".to_owned()),
            "{form:?}"
        );
        assert_eq!(
            all[0].keys().filter(|path| path.starts_with("g.conflict-")).count(),
            1,
            "{form:?}: {all:?}"
        );
    }
}

/// A sync that is cut at some moments goes on with the next one, and loses nothing.
#[test]
fn cut_and_resumed() {
    if !fuse_available() {
        return;
    }
    for form in FORMS {
        let (a, b) = (Side::new(form), Side::new(form));
        act(&a.root(), &[Do::Write("f", "old"), Do::MakeDir("d"), Do::Write("d/x", "x")]);
        assert_eq!(a.sync(&b, &[]).0, 0);
        act(&a.root(), &[Do::Rename("f", "renamed"), Do::Rename("d", "e"), Do::Write("empty", "")]);
        act(&b.root(), &[Do::Append("f", " and new"), Do::Write("d/made", "made")]);
        for n in 0..4 {
            fs::write(a.root().join(format!("large{n}")), noise(n, 300_000)).unwrap();
        }
        for milliseconds in [100, 300, 600, 1_000] {
            let mut command = a.mount.dedupctl();
            command.args(["sync", "--bwlimit", "400K"]).arg(b.root()).arg(a.root());
            let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
            std::thread::sleep(Duration::from_millis(milliseconds));
            let _ = child.kill();
            child.wait().unwrap();
        }
        let (code, report) = a.sync(&b, &[]);
        assert_eq!(code, 0, "{form:?}: {report}");
        let (here, there) = (manifest(&a.root()), manifest(&b.root()));
        assert_eq!(here, there, "{form:?}");
        let text = |path: &str| fs::read_to_string(b.root().join(path)).ok();
        assert_eq!(text("renamed").as_deref(), Some("old and new"), "{form:?}: {here:?}");
        assert_eq!(text("e/made").as_deref(), Some("made"), "{form:?}: {here:?}");
        assert!(["f", "d"].iter().all(|path| !b.root().join(path).exists()), "{form:?}: {here:?}");
    }
}

/// A filesystem of a size of its own.
struct Disk(tempfile::TempDir);

impl Disk {
    fn new(size: &str) -> Disk {
        let dir = tempfile::tempdir().unwrap();
        succeed(
            Command::new("mount")
                .args(["-t", "tmpfs", "-o", &format!("size={size}"), "none"])
                .arg(dir.path()),
        );
        Disk(dir)
    }

    fn resize(&self, size: &str) {
        succeed(Command::new("mount").args(["-o", &format!("remount,size={size}")]).arg(self.0.path()));
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

/// What fits on a small disk arrives, the rest is named; with more room all of it comes, and nothing stays mounted.
#[test]
fn a_full_peer() {
    if !root_and_fuse_available() {
        return;
    }
    for form in FORMS {
        let disk = Disk::new("32M");
        let (a, b) = (Side::new(form), Side::new_in(form, disk.0.path()));
        act(&a.root(), &[Do::Write("small", "s"), Do::MakeDir("d"), Do::Write("d/small", "s")]);
        fs::write(a.root().join("large"), noise(1, 40_000_000)).unwrap();
        let (code, report) = a.sync(&b, &[]);
        assert_eq!(code, 1, "{form:?}: {report}");
        let named = report["skipped"].as_array().unwrap().iter().any(|row| row["path"] == "large");
        assert!(named, "{form:?}: {report}");
        assert!(!a.is_left_mounted() && !b.is_left_mounted(), "{form:?}");
        let there = manifest(&b.root());
        assert_eq!(there.keys().collect::<Vec<_>>(), ["d", "d/small", "small"], "{form:?}");
        disk.resize("256M");
        assert_eq!(a.sync(&b, &[]).0, 0, "{form:?}");
        assert_eq!(manifest(&a.root()), manifest(&b.root()), "{form:?}");
        drop(b);
    }
}
