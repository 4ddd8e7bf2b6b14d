//! What protects a user from a store: files that stay plain without a mount, directories in which none is made, stores of
//! others that are passed over, and an unmount that works without a store.
#![allow(clippy::unwrap_used, reason = "a test stops at the first error")]

use crate::common::{
    As, Mount, again_as_user, as_both, fuse_available, is_root, namespaces, noise, succeed, text,
};
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::Output;
use std::time::{Duration, Instant};

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn without_a_mount_no_command_converts_files_and_the_next_mount_does() {
    as_both(|user| {
        let mount = Mount::prepare(user);
        let file = mount.dir().join("file");
        fs::write(&file, noise(1, 200_000)).unwrap();
        fs::write(mount.dir().join("copy"), noise(1, 200_000)).unwrap();
        succeed(mount.dedupctl().arg("init").arg(mount.dir()));
        let scanned = succeed(mount.dedupctl().arg("scan").arg(mount.dir()));
        assert!(
            said(&scanned).contains("stay plain") && said(&scanned).contains("--offline"),
            "{}",
            text(&scanned)
        );
        let commands: [&[&str]; 6] = [
            &["settle"],
            &["snapshot", "create"],
            &["gc"],
            &["optimize"],
            &["check", "--rebuild"],
            &["scan"],
        ];
        for args in commands {
            succeed(mount.dedupctl().args(args).current_dir(mount.dir()));
            assert_eq!(fs::read(&file).unwrap(), noise(1, 200_000), "{args:?}");
        }
        let similar = mount.dedupctl().args(["similar", "--json"]).arg(&file).output().unwrap();
        let similar: serde_json::Value = serde_json::from_slice(&similar.stdout).unwrap();
        assert_eq!(similar["matches"][0]["path"], "copy");
        mount.start();
        let end = Instant::now() + Duration::from_secs(20);
        while !(mount.is_stub("file") && mount.is_stub("copy")) {
            assert!(Instant::now() < end, "the mount has not converted what was only indexed");
            std::thread::sleep(Duration::from_millis(20));
        }
        mount.unmount();
    });
}

#[test]
fn a_scan_converts_offline_only_after_a_yes() {
    as_both(|user| {
        let mount = Mount::prepare(user);
        let file = mount.dir().join("file");
        fs::write(&file, noise(1, 100_000)).unwrap();
        succeed(mount.dedupctl().arg("init").arg(mount.dir()));
        let refused = mount.dedupctl().args(["scan", "--offline"]).arg(mount.dir()).output().unwrap();
        assert_eq!(refused.status.code(), Some(2));
        assert!(
            said(&refused).contains("--yes") && said(&refused).contains("look empty"),
            "{}",
            text(&refused)
        );
        assert_eq!(fs::read(&file).unwrap(), noise(1, 100_000));
        succeed(mount.dedupctl().args(["scan", "--offline", "--yes"]).arg(mount.dir()));
        assert_eq!(fs::metadata(&file).unwrap().len(), 0);
    });
}

#[test]
fn no_store_is_made_in_a_directory_of_the_system_or_one_that_was_not_named() {
    as_both(|user| {
        let mount = Mount::prepare(user);
        for program in [mount.dedupfs(), mount.dedupctl()] {
            let mut program = program;
            let is_ctl = program.get_program().to_string_lossy().ends_with("dedupctl");
            if is_ctl {
                program.arg("init");
            }
            let refused = program.arg("/etc").output().unwrap();
            assert_eq!(refused.status.code(), Some(2));
            // An ordinary user may not write there anyway.
            let root = ["/etc", "directory of the system", "--force-root"];
            let others = ["/etc", "Permission denied", "hint:"];
            for part in if user == As::Root { root } else { others } {
                assert!(said(&refused).contains(part), "{part}: {}", text(&refused));
            }
        }
        assert!(!Path::new("/etc/.dedupfs").exists());
        let peer = mount.root.path().join("peer");
        let refused = mount.dedupctl().arg("sync").arg(&peer).current_dir(mount.dir()).output().unwrap();
        assert_eq!(refused.status.code(), Some(2));
        assert!(said(&refused).contains("dedupctl init DIR"), "{}", text(&refused));
        assert!(!peer.exists() && fs::read_dir(mount.dir()).unwrap().next().is_none());
    });
}

/// Names the shared directory that root made for the ordinary user's part.
const SHARED: &str = "DEDUPFS_TEST_SHARED";

#[test]
fn a_store_that_another_user_put_into_a_shared_directory_is_passed_over() {
    if !is_root() {
        if let Some(shared) = std::env::var_os(SHARED) {
            let mount = Mount::prepare(As::User);
            let made = succeed(mount.dedupctl().arg("init").arg(Path::new(&shared).join("theirs")));
            assert!(said(&made).contains("passed over") && said(&made).contains("1234"), "{}", text(&made));
        }
        return;
    }
    if !fuse_available() {
        return;
    }
    let mount = Mount::prepare(As::Root);
    let shared = mount.dir();
    succeed(mount.dedupctl().arg("init").arg(&shared));
    fs::set_permissions(mount.root.path(), PermissionsExt::from_mode(0o755)).unwrap();
    fs::set_permissions(&shared, PermissionsExt::from_mode(0o1777)).unwrap();
    chown(shared.join(".dedupfs"), Some(1234), Some(1234)).unwrap();
    let inner = shared.join("mine");
    fs::create_dir(&inner).unwrap();
    let made = succeed(mount.dedupctl().arg("init").arg(&inner));
    assert!(said(&made).contains("passed over") && said(&made).contains("1234"), "{}", text(&made));
    let theirs = shared.join("theirs");
    fs::create_dir(&theirs).unwrap();
    chown(&theirs, Some(65534), Some(65534)).unwrap();
    again_as_user(&[(SHARED, &shared)]);
    // One of root's own counts.
    chown(shared.join(".dedupfs"), Some(0), Some(0)).unwrap();
    let other = shared.join("other");
    fs::create_dir(&other).unwrap();
    let refused = mount.dedupctl().arg("init").arg(&other).output().unwrap();
    assert!(said(&refused).contains("nested"), "{}", text(&refused));
}

#[test]
fn an_overlay_whose_store_was_removed_is_unmounted_and_that_is_said() {
    as_both(|user| {
        // Converted when somebody waits for it: here when it is unmounted.
        let mount = Mount::with_flags(user, &["--dedup", "idle:1h"]);
        fs::write(mount.at("one"), noise(1, 100_000)).unwrap();
        mount.settle();
        fs::write(mount.at("two"), noise(2, 100_000)).unwrap();
        fs::remove_dir_all(mount.dir().join(".dedupfs")).unwrap();
        let none = namespaces::none();
        let output = mount.dedupctl().arg("unmount").arg(mount.mnt()).output().unwrap();
        drop(none);
        assert_eq!(output.status.code(), Some(1), "{}", text(&output));
        assert!(said(&output).contains("the store was removed"), "{}", text(&output));
        assert!(!mount.is_mounted());
        assert_eq!(fs::read(mount.dir().join("two")).unwrap(), noise(2, 100_000));
    });
}
