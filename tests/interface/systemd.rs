//! The units of `systemd/`: they are valid, what they run is there, and the daemon tells the service manager the truth.
//!
//! Seen to fail with: a misspelt key in a unit; an option that `dedupctl` does not have.
#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a test stops at the first error, and says aloud that it was skipped"
)]

use crate::common::{As, Mount, as_both, fuse_available, prose, succeed, text};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// More than any step takes however busy the machine is.
const TIME_MAX: Duration = Duration::from_secs(60);

fn units(dir: &str) -> Vec<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join(dir);
    let paths = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let mut units: Vec<PathBuf> = paths
        .filter(|path| {
            let extension = path.extension().and_then(|e| e.to_str());
            extension == Some("service") || extension == Some("timer")
        })
        .collect();
    units.sort();
    assert!(!units.is_empty());
    units
}

#[test]
fn units_are_valid() {
    if Command::new("systemd-analyze").arg("--version").output().is_err() {
        assert!(
            std::env::var_os("DEDUPFS_REQUIRE_FUSE").is_none(),
            "this test needs systemd-analyze and must not be skipped"
        );
        eprintln!("SKIPPED: this test needs systemd-analyze");
        return;
    }
    for (from, flag) in [("systemd", "--system"), ("systemd/user", "--user")] {
        // It looks whether the programs are there, so the units name those of this build.
        let dir = tempfile::tempdir().unwrap();
        let mut copies = Vec::new();
        for unit in units(from) {
            let text = fs::read_to_string(&unit).unwrap();
            let text = text
                .replace("/usr/bin/dedupfs", env!("CARGO_BIN_EXE_dedupfs"))
                .replace("/usr/bin/dedupctl", env!("CARGO_BIN_EXE_dedupctl"));
            let copy = dir.path().join(unit.file_name().unwrap());
            fs::write(&copy, text).unwrap();
            copies.push(copy);
        }
        let mut verify = Command::new("systemd-analyze");
        verify.args(["verify", "--man=no", flag]).args(&copies).env("XDG_RUNTIME_DIR", dir.path());
        let output = verify.output().unwrap();
        let said = text(&output);
        let ours: Vec<&str> = said.lines().filter(|line| line.contains("dedupfs")).collect();
        assert!(output.status.success() && ours.is_empty(), "{from}: {said}");
    }
}

#[test]
fn what_the_timers_run_works_on_a_mount() {
    if !fuse_available() {
        return;
    }
    let mount = Mount::in_place(if crate::common::is_root() { As::Root } else { As::User });
    fs::write(mount.at("a"), prose(1, 100_000)).unwrap();
    let textfile = mount.root.path().join("home");
    let peer = mount.root.path().join("peer");
    fs::create_dir(&peer).unwrap();
    succeed(mount.dedupctl().args(["remote", "add", "peer"]).arg(&peer).arg("--at").arg(mount.dir()));
    let mut ran = 0;
    for unit in units("systemd") {
        let unit = fs::read_to_string(&unit).unwrap();
        for line in unit.lines().filter_map(|line| line.strip_prefix("ExecStart=/usr/bin/dedupctl ")) {
            let words = line.split(' ').map(|word| {
                word.replace("%f", mount.dir().to_str().unwrap())
                    .replace("%i", "instance")
                    .replace("$DEDUPFS_PEER", "peer")
                    .replace("/var/lib/prometheus/node-exporter", textfile.to_str().unwrap())
            });
            let mut command = mount.dedupctl();
            command.args(words);
            if line.contains("--watch") {
                // It would not end; and the peer is not mounted.
                assert_eq!(command.output().unwrap().status.code(), Some(2), "{line}");
                continue;
            }
            succeed(&mut command);
            ran += 1;
        }
    }
    assert!(ran >= 4);
    assert!(fs::read_dir(&peer).unwrap().any(|entry| entry.unwrap().file_name() == "a"));
    let metrics = fs::read_to_string(textfile.join("dedupfs-instance.prom")).unwrap();
    let label = format!("root=\"{}\"", mount.dir().display());
    let mounted = metrics.lines().find(|line| line.starts_with("dedupfs_mounted{")).unwrap();
    assert!(mounted.contains(&label) && mounted.ends_with(" 1.0"), "{mounted}");
    assert!(metrics.contains("# TYPE dedupfs_files gauge\n"), "{metrics}");
}

#[test]
fn a_service_is_ready_when_the_mount_answers_and_tells_its_end() {
    as_both(|user| {
        let mount = Mount::prepare(user);
        let path = mount.root.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_read_timeout(Some(TIME_MAX)).unwrap();
        let next = |wanted: &str| loop {
            let mut message = [0; 4096];
            let length = socket.recv(&mut message).unwrap_or_else(|e| panic!("{wanted}: {e}"));
            let message = String::from_utf8(message[..length].to_vec()).unwrap();
            if message.lines().any(|line| line == wanted) {
                return message;
            }
        };
        let mut daemon = mount.dedupfs();
        daemon.arg("--foreground").arg(mount.dir()).arg(mount.mnt()).env("NOTIFY_SOCKET", &path);
        let mut daemon = daemon.spawn().unwrap();
        let ready = next("READY=1");
        assert!(mount.is_mounted());
        assert!(ready.contains(&format!("STATUS=mounted at {}", mount.mnt().display())), "{ready}");
        kill_process(Pid::from_child(&daemon), Signal::TERM).unwrap();
        next("STOPPING=1");
        assert!(daemon.wait().unwrap().success());
        assert!(!mount.is_mounted());
    });
}
