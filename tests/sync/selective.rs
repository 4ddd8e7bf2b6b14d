//! A device that syncs a part of the tree, by its `config.toml`, on real overlays that are mounted over themselves.
#![allow(clippy::unwrap_used, reason = "a test stops at the first error")]

use crate::common::{As, Mount, as_both, text};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Command;

/// Sets the settings of `[sync]`, and starts the daemon again.
fn select(mount: &Mount, settings: &str) {
    mount.unmount();
    let path = mount.dir().join(".dedupfs/config.toml");
    let old = fs::read_to_string(&path).unwrap();
    let rest = old.split("\n[sync]\n").next().unwrap();
    fs::write(&path, format!("{rest}\n[sync]\n{settings}\n")).unwrap();
    mount.start();
}

fn command(here: &Mount, there: &Mount, flags: &[&str]) -> Command {
    let mut command = here.dedupctl();
    command.arg("sync").args(flags).arg(there.dir()).arg(here.dir());
    command
}

#[track_caller]
fn sync(here: &Mount, there: &Mount, flags: &[&str], code: i32) -> Value {
    let output = command(here, there, flags).arg("--json").output().unwrap();
    assert_eq!(output.status.code(), Some(code), "{}", text(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn write(mount: &Mount, path: &str, text: &str) {
    fs::create_dir_all(mount.at(path).parent().unwrap()).unwrap();
    fs::write(mount.at(path), text).unwrap();
}

fn has(mount: &Mount, path: &str, text: &str) -> bool {
    fs::read_to_string(mount.at(path)).is_ok_and(|found| found == text)
}

fn is_there(mount: &Mount, path: &str) -> bool {
    Path::new(&mount.at(path)).exists()
}

fn full(user: As) -> Mount {
    let full = Mount::in_place(user);
    for path in ["docs/a", "docs/huge/h", "photos/2023/x", "photos/2024-05/y", "disk.iso"] {
        write(&full, path, path);
    }
    full
}

const PART: &str = "only = [\"/docs\", \"/photos/2024*\"]\nnot = [\"/docs/huge\", \"*.iso\"]";

#[test]
fn a_part_of_the_tree_stays_one() {
    as_both(|user| {
        let (full, part) = (full(user), Mount::in_place(user));
        select(&part, PART);
        let report = sync(&part, &full, &["--dry-run"], 0);
        assert_eq!((&report["left_out"], &report["here"]["created"]), (&5.into(), &5.into()), "{report}");
        assert!(!is_there(&part, "docs"));
        let output = command(&part, &full, &[]).output().unwrap();
        assert!(text(&output).contains("left out here: 5 entries"), "{}", text(&output));
        assert!(has(&part, "docs/a", "docs/a") && has(&part, "photos/2024-05/y", "photos/2024-05/y"));
        assert!(["docs/huge", "photos/2023", "disk.iso"].iter().all(|path| !is_there(&part, path)));
        let status = part.ctl(&["status"]);
        assert_eq!(status["syncs"][0]["left_out"], 5, "{status}");
        // Changes of both sides.
        write(&part, "docs/a", "edited on the part");
        write(&part, "disk.iso", "another, of the part");
        fs::remove_file(part.at("photos/2024-05/y")).unwrap();
        write(&full, "docs/huge/h", "edited on the full one");
        fs::rename(full.at("photos/2023/x"), full.at("docs/x")).unwrap();
        let report = sync(&part, &full, &[], 0);
        assert_eq!(report["conflicts"], Value::Array(Vec::new()), "{report}");
        assert!(has(&full, "docs/a", "edited on the part") && has(&part, "docs/x", "photos/2023/x"));
        assert!(has(&full, "disk.iso", "disk.iso") && has(&part, "disk.iso", "another, of the part"));
        assert!(!is_there(&full, "photos/2024-05/y") && !is_there(&part, "docs/huge"));
        // Nothing is left to do.
        for _ in 0..3 {
            let report = sync(&part, &full, &[], 0);
            assert_eq!((&report["created"], &report["left_out"]), (&0.into(), &4.into()), "{report}");
        }
        // Wider: nothing has changed on either side.
        select(&part, "not = [\"*.iso\"]");
        sync(&part, &full, &[], 0);
        assert!(has(&part, "docs/huge/h", "edited on the full one"));
        assert!(has(&part, "disk.iso", "another, of the part") && has(&full, "disk.iso", "disk.iso"));
        // Narrower: the files stay here, and nothing is deleted there.
        select(&part, "only = [\"/photos\"]");
        fs::remove_file(part.at("docs/a")).unwrap();
        sync(&part, &full, &[], 0);
        assert!(
            has(&part, "docs/huge/h", "edited on the full one") && has(&full, "docs/a", "edited on the part")
        );
    });
}

#[test]
fn a_third_device_and_a_wrong_setting() {
    as_both(|user| {
        let (full, part, third) = (full(user), Mount::in_place(user), Mount::in_place(user));
        select(&part, PART);
        sync(&full, &part, &[], 0);
        let device = sync(&part, &full, &[], 0)["device"].as_str().unwrap().to_owned();
        let report = sync(&third, &part, &[], 1);
        let skipped = report["skipped"].as_array().unwrap();
        assert_eq!(skipped.len(), 1, "{report}");
        let why = skipped[0]["reason"].as_str().unwrap();
        assert!(why.contains(&device) && why.contains("2 more"), "{why}");
        assert!(has(&third, "docs/a", "docs/a") && !is_there(&third, "disk.iso"));
        sync(&third, &full, &[], 0);
        for path in ["docs/a", "docs/huge/h", "photos/2023/x", "photos/2024-05/y", "disk.iso"] {
            assert!(has(&third, path, path) && has(&full, path, path), "{path}");
        }
        for (settings, told) in [
            ("only = []", "at least one path"),
            ("only = [\"/docs/**\"]", "`**` is not needed, on line"),
            ("not = [\"a{b\"]", "not \"a{b\" in [sync]"),
            ("onyl = [\"/docs\"]", "did you mean `only`?"),
        ] {
            // The daemon does not start with it either.
            part.unmount();
            let path = part.dir().join(".dedupfs/config.toml");
            let old = fs::read_to_string(&path).unwrap();
            let rest = old.split("\n[sync]\n").next().unwrap();
            fs::write(&path, format!("{rest}\n[sync]\n{settings}\n")).unwrap();
            let output = part.dedupctl().arg("sync").arg(full.dir()).arg(part.dir()).output().unwrap();
            assert_eq!(output.status.code(), Some(2), "{}", text(&output));
            assert!(text(&output).contains(told), "{settings}: {}", text(&output));
            fs::write(&path, old).unwrap();
            part.start();
        }
    });
}
