//! `dedupctl optimize` on real mounts and without one.
#![allow(clippy::unwrap_used, reason = "a test stops at the first error")]

mod common;

use common::{As, Mount, as_both, noise, prose, succeed};
use std::fs;
use std::time::{Duration, Instant};

/// Ten versions of a text, each with its own lines here and there.
fn version(n: usize) -> Vec<u8> {
    let mut text = prose(7, 400_000);
    for (i, at) in (n * 1500..text.len() - 100).step_by(40_000).enumerate() {
        let line = format!("\nversion {n} changed this as change {i}\n");
        text[at..at + line.len()].copy_from_slice(line.as_bytes());
    }
    text
}

fn whole(mount: &Mount) {
    for n in 0..10 {
        assert!(fs::read(mount.at(&format!("v{n}"))).unwrap() == version(n), "v{n} differs");
    }
    assert!(fs::read(mount.at("noise")).unwrap() == noise(3, 300_000));
}

#[test]
fn versions_take_less_room_and_read_as_before() {
    as_both(|user| {
        let mount = Mount::new(user);
        for n in 0..10 {
            fs::write(mount.at(&format!("v{n}")), version(n)).unwrap();
        }
        fs::write(mount.at("noise"), noise(3, 300_000)).unwrap();
        mount.settle();
        let predicted = mount.ctl(&["optimize", "--dry-run"]);
        let done = mount.ctl(&["optimize", "--level", "6"]);
        let count = |report: &serde_json::Value, field: &str| report[field].as_u64().unwrap();
        assert!(count(&predicted, "deltas") > 0, "{predicted}");
        let (before, after) = (count(&done, "bytes_before"), count(&done, "bytes_after"));
        assert_eq!(before, count(&predicted, "bytes_before"));
        // The noise is in both.
        assert!((after - 300_000) * 2 < before - 300_000, "{done}");
        assert!(count(&done, "groups") > 0 && count(&done, "chunks") > 50, "{done}");
        whole(&mount);
        assert_eq!(count(&mount.ctl(&["optimize"]), "chunks"), 0, "there is nothing left to do");
        let status = mount.ctl(&["status"]);
        assert!(count(&status, "saved_by_grouping") > 0 && count(&status, "saved_by_dedup") > 0, "{status}");
        mount.remount();
        whole(&mount);
        assert_eq!(mount.ctl(&["check", "--deep"])["damaged"], serde_json::json!([]));
        // What is written afterwards goes beside the groups, and garbage is collected out of them.
        for n in 0..5 {
            fs::remove_file(mount.at(&format!("v{n}"))).unwrap();
        }
        fs::write(mount.at("new"), version(20)).unwrap();
        mount.settle();
        mount.ctl(&["gc"]);
        mount.remount();
        for n in 5..10 {
            assert!(fs::read(mount.at(&format!("v{n}"))).unwrap() == version(n), "v{n} differs");
        }
        assert!(fs::read(mount.at("new")).unwrap() == version(20));
        mount.unmount();
        succeed(mount.dedupctl().args(["check", "--rebuild"]).arg(mount.dir()));
        // Without a daemon too.
        succeed(mount.dedupctl().arg("optimize").arg(mount.dir()));
        mount.start();
        assert_eq!(mount.ctl(&["check", "--deep"])["damaged"], serde_json::json!([]));
    });
}

/// `optimize = "idle:1s"`, and much that nobody has asked for.
#[test]
fn a_mount_at_rest_groups_by_itself() {
    let mount = Mount::prepare(As::Root);
    succeed(mount.dedupctl().arg("init").arg(mount.dir()));
    let path = mount.dir().join(".dedupfs/config.toml");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replace("# optimize = \"idle:1h\"", "optimize = \"idle:1s\"")).unwrap();
    mount.start();
    let text = prose(11, 20 << 20);
    fs::write(mount.at("text"), &text).unwrap();
    mount.settle();
    let end = Instant::now() + Duration::from_secs(100);
    while mount.ctl(&["status"])["saved_by_grouping"].as_u64().unwrap() == 0 {
        assert!(Instant::now() < end, "nothing was grouped");
        std::thread::sleep(Duration::from_millis(200));
    }
    assert!(fs::read(mount.at("text")).unwrap() == text);
    assert_eq!(mount.ctl(&["check", "--deep"])["damaged"], serde_json::json!([]));
}
