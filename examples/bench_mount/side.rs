//! The contestants: each has an ext4 image of its own, and is mounted on it anew for each suite.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Their names: plain ext4 comes first.
pub(super) const NAMES: [&str; 5] = ["native", "bindfs", "null", "root", "user"];

const IMAGE_BYTES: &str = "3G";
/// nobody
const USER: u32 = 65534;
const START: Duration = Duration::from_secs(30);
/// A file that is read again and again is plain within this time.
const HEAT: Duration = Duration::from_secs(120);
/// So often it is read by others.
const READS: u32 = 12;

/// A contestant.
pub(super) struct Side {
    pub(super) name: &'static str,
    image: PathBuf,
    disk: PathBuf,
    mountpoint: PathBuf,
    bin: PathBuf,
    daemon: Option<Child>,
}

impl Side {
    pub(super) fn new(name: &'static str, work: &Path, bin: &Path) -> Side {
        let path = |end: &str| work.join(format!("{name}{end}"));
        Side {
            name,
            image: path(".img"),
            disk: path(".disk"),
            // In place, as dedupfs is meant to be used.
            mountpoint: if matches!(name, "root" | "user") {
                path(".disk").join("tree")
            } else {
                path(".mnt")
            },
            bin: bin.to_owned(),
            daemon: None,
        }
    }

    /// Whether it can take part here.
    pub(super) fn available(&self) -> bool {
        self.name != "bindfs"
            || Command::new("bindfs")
                .arg("-V")
                .stdout(Stdio::null())
                .status()
                .is_ok_and(|status| status.success())
    }

    fn is_user(&self) -> bool {
        self.name == "user"
    }

    pub(super) fn is_dedupfs(&self) -> bool {
        matches!(self.name, "root" | "user")
    }

    /// Where the program works.
    pub(super) fn dir(&self) -> PathBuf {
        let base = if self.name == "native" { self.disk.join("tree") } else { self.mountpoint.clone() };
        base.join("work")
    }

    /// An empty filesystem, mounted.
    pub(super) fn fresh(&mut self, converts: bool) {
        std::fs::create_dir_all(&self.disk).unwrap();
        let _ = std::fs::remove_file(&self.image);
        run(Command::new("truncate").args(["-s", IMAGE_BYTES]).arg(&self.image));
        // All is written now, not while somebody is being timed.
        let options = "lazy_itable_init=0,lazy_journal_init=0";
        run(Command::new("mkfs.ext4").args(["-q", "-F", "-E", options]).arg(&self.image));
        run(Command::new("mount").args(["-o", "loop"]).arg(&self.image).arg(&self.disk));
        for dir in [&self.disk.join("tree"), &self.mountpoint] {
            std::fs::create_dir_all(dir).unwrap();
        }
        if self.is_user() {
            std::os::unix::fs::chown(&self.mountpoint, Some(USER), Some(USER)).unwrap();
        }
        self.start(converts);
        let mut command = Command::new("mkdir");
        run(self.as_user(&mut command).arg(self.dir()));
    }

    fn start(&mut self, converts: bool) {
        let tree = self.disk.join("tree");
        let mut command = match self.name {
            "native" => return,
            "bindfs" => {
                let mut command = Command::new("bindfs");
                command.arg("-f").arg(&tree).arg(&self.mountpoint);
                command
            }
            "null" => {
                let mut command = Command::new(std::env::current_exe().unwrap());
                command.arg("null").arg(&self.mountpoint);
                command
            }
            _ => {
                let mut command = Command::new(self.bin.join("dedupfs"));
                let dedup = if converts { "on-close" } else { "idle:100h" };
                command.arg("-f").arg(&tree).args(["--dedup", dedup]);
                command.env_remove("XDG_RUNTIME_DIR").stderr(Stdio::null());
                command
            }
        };
        self.daemon = Some(self.as_user(&mut command).spawn().unwrap());
        let mounts = || std::fs::read_to_string("/proc/self/mounts").unwrap();
        let at = format!(" {} ", self.mountpoint.display());
        let since = Instant::now();
        while !mounts().contains(&at) {
            assert!(since.elapsed() < START, "{}: not mounted after 30 s", self.name);
            std::thread::sleep(Duration::from_millis(20));
        }
        std::thread::sleep(Duration::from_millis(200));
    }

    /// Ends the daemon and starts another.
    pub(super) fn restart(&mut self, converts: bool) {
        self.stop();
        self.start(converts);
    }

    fn stop(&mut self) {
        let Some(mut daemon) = self.daemon.take() else { return };
        run(Command::new("umount").arg(&self.mountpoint));
        let status = daemon.wait().unwrap();
        assert!(status.success(), "{}: {status}", self.name);
    }

    /// Unmounts, and removes the image.
    pub(super) fn remove(&mut self) {
        self.stop();
        run(Command::new("umount").arg(&self.disk));
        std::fs::remove_file(&self.image).unwrap();
    }

    /// Writes out what it has written; other filesystems of the machine are left alone.
    pub(super) fn sync(&self) {
        rustix::fs::syncfs(std::fs::File::open(&self.disk).unwrap()).unwrap();
        std::fs::File::open(&self.image).unwrap().sync_data().unwrap();
    }

    fn as_user<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        if self.is_user() {
            command.uid(USER).gid(USER);
        }
        command
    }

    /// This program, to do a stage here.
    pub(super) fn stage(&self, name: &str) -> Command {
        let mut command = Command::new(self.bin.join("examples/bench_mount"));
        command.args(["stage", name]).arg(self.dir()).current_dir("/").env("HOME", "/nonexistent");
        self.as_user(&mut command);
        command
    }

    /// Waits until nothing is left to convert.
    pub(super) fn settle(&self) {
        if self.is_dedupfs() {
            let mut command = Command::new(self.bin.join("dedupctl"));
            run(self.as_user(&mut command).arg("settle").arg(&self.mountpoint).stdout(Stdio::null()));
        }
    }

    /// Reads the large file again and again, for root's daemon until it keeps it as a plain file.
    pub(super) fn heat(&self) {
        let since = Instant::now();
        for count in 1.. {
            let output = self.stage("read").output().unwrap();
            assert!(output.status.success(), "{}: {}", self.name, String::from_utf8_lossy(&output.stderr));
            // Between two reads nobody has it open: it is written back then.
            std::thread::sleep(Duration::from_millis(100));
            match self.name {
                "root" if self.is_hot() => return,
                "root" => assert!(since.elapsed() < HEAT, "{}: still a stub after {HEAT:?}", self.name),
                _ if count == READS => return,
                _ => {}
            }
        }
    }

    fn is_hot(&self) -> bool {
        let mut command = Command::new(self.bin.join("dedupctl"));
        let status = command.args(["status", "--json"]).arg(&self.mountpoint).output().unwrap();
        let status: serde_json::Value = serde_json::from_slice(&status.stdout).unwrap();
        status["hot_files"] != 0
    }

    /// User and system time that the daemon has taken.
    pub(super) fn daemon_cpu(&self) -> Duration {
        let Some(daemon) = &self.daemon else { return Duration::ZERO };
        let (mut clock, mut time) = (0, libc::timespec { tv_sec: 0, tv_nsec: 0 });
        // SAFETY: both calls only fill in what they are given.
        let failed = unsafe {
            libc::clock_getcpuclockid(daemon.id() as i32, &raw mut clock)
                | libc::clock_gettime(clock, &raw mut time)
        };
        assert_eq!(failed, 0, "{}: its clock", self.name);
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        // After a failure: nothing of ours stays mounted.
        for dir in [&self.mountpoint, &self.disk] {
            let _ = Command::new("umount").arg("-l").arg(dir).stderr(Stdio::null()).status();
            let _ = std::fs::remove_dir(dir);
        }
        let _ = std::fs::remove_file(&self.image);
        if let Some(mut daemon) = self.daemon.take() {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
    }
}

fn run(command: &mut Command) {
    let status = command.status().unwrap();
    assert!(status.success(), "{command:?}: {status}");
}
