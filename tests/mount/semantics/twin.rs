//! A plain directory and a mount in which the same scripts are run.

use crate::common::{As, Mount, text};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// No script here takes longer, however busy the machine is.
const TIME_MAX: Duration = Duration::from_secs(60);

/// A user with a group and supplementary groups.
pub struct Who(pub u32, pub u32, pub &'static str);

/// In group 2000, which is not its first.
pub const MEMBER: Who = Who(1000, 1000, "2000");
pub const STRANGER: Who = Who(1001, 1001, "");

pub struct Twin {
    pub mount: Mount,
}

impl Twin {
    pub fn new(user: As) -> Twin {
        Twin::with_flags(user, &[])
    }

    pub fn with_flags(user: As, flags: &[&str]) -> Twin {
        Twin::on(Mount::with_flags(user, flags))
    }

    /// With a line in the configuration of the store.
    pub fn with_setting(user: As, flags: &[&str], setting: &str) -> Twin {
        let mut mount = Mount::prepare(user);
        mount.flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
        mount.init(setting);
        mount.start();
        Twin::on(mount)
    }

    fn on(mount: Mount) -> Twin {
        fs::set_permissions(mount.root.path(), PermissionsExt::from_mode(0o755)).unwrap();
        fs::create_dir(mount.root.path().join("plain")).unwrap();
        Twin { mount }
    }

    pub fn plain(&self) -> PathBuf {
        self.mount.root.path().join("plain")
    }

    /// Runs a script in both, and says what it printed in both.
    pub fn run(&self, script: &str) -> String {
        self.compare(None, script)
    }

    /// As somebody else. Only root can.
    pub fn run_as(&self, who: &Who, script: &str) -> String {
        self.compare(Some(who), script)
    }

    /// The script on the mount alone: where it is known to differ.
    pub fn on_mount(&self, script: &str) -> String {
        said(&shell(None, script, self.mount.mnt()))
    }

    fn compare(&self, who: Option<&Who>, script: &str) -> String {
        let expected = said(&shell(who, script, self.plain()));
        let found = said(&shell(who, script, self.mount.mnt()));
        assert!(
            found == expected,
            "{script}\n--- on a plain directory\n{expected}\n--- on the mount\n{found}"
        );
        found
    }

    /// Makes stubs of all closed files, and makes sure that these are some.
    pub fn settle(&self, stubs: &[&str]) {
        self.mount.settle();
        for name in stubs {
            assert!(self.mount.is_stub(name), "{name} is a stub");
        }
    }
}

fn said(output: &Output) -> String {
    let out = String::from_utf8_lossy(&output.stdout);
    format!("{out}{}{}", String::from_utf8_lossy(&output.stderr), output.status)
}

fn shell(who: Option<&Who>, script: &str, dir: PathBuf) -> Output {
    let mut command = match who {
        None => Command::new("bash"),
        Some(Who(uid, gid, groups)) => {
            let mut command = Command::new("setpriv");
            command.args(["--reuid", &uid.to_string(), "--regid", &gid.to_string()]);
            match groups.is_empty() {
                true => command.arg("--clear-groups"),
                false => command.args(["--groups", groups]),
            };
            command.arg("bash");
            command
        }
    };
    let command = command.args(["-c", script]).current_dir(dir).env("LC_ALL", "C").env("TZ", "UTC");
    bounded(command.stdin(Stdio::null()))
}

/// The output of a command that has to end by itself.
pub fn bounded(command: &mut Command) -> Output {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let end = Instant::now() + TIME_MAX;
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > end {
            child.kill().unwrap();
            panic!("{command:?} hangs: {}", text(&child.wait_with_output().unwrap()));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    child.wait_with_output().unwrap()
}

/// Waits until `done`, not for ever.
pub fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + TIME_MAX;
    while !done() {
        assert!(Instant::now() < end, "{what}: not within a minute");
        std::thread::sleep(Duration::from_millis(10));
    }
}
