//! A directory, mounted over itself by the real program, and the commands that are measured.

use crate::process::Process;
use crate::row::Row;
use std::fs;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How often a process is looked at.
const LOOK: Duration = Duration::from_millis(5);
/// What is freed at once is freed by then.
const SETTLED: Duration = Duration::from_secs(2);

pub struct Mounted {
    pub root: PathBuf,
    /// The directory below the mount.
    bare: fs::File,
    programs: PathBuf,
    daemon: Option<Child>,
    limit: Duration,
}

impl Mounted {
    /// Does not mount yet. A step that takes longer than `limit` is killed.
    pub fn new(root: &Path, limit: Duration) -> Self {
        let bare = fs::File::open(root).unwrap();
        Self { root: root.to_owned(), bare, programs: programs(), daemon: None, limit }
    }

    pub fn program(&self, name: &str, args: &[&str]) -> Command {
        let mut command = Command::new(self.programs.join(name));
        command.args(args).stdout(Stdio::null());
        command
    }

    pub fn daemon(&self) -> Option<Process> {
        self.daemon.as_ref().map(|daemon| Process(daemon.id()))
    }

    /// Mounts, and waits until the mount answers.
    pub fn mount(&mut self) -> Row {
        let begun = Instant::now();
        let root = self.root.to_str().unwrap().to_owned();
        self.daemon = Some(self.program("dedupfs", &["-f", &root]).stderr(Stdio::null()).spawn().unwrap());
        while !mounts().lines().any(|line| line.split(' ').nth(4) == Some(&root)) {
            assert!(self.daemon().unwrap().runs(), "dedupfs has ended: {}", self.root.display());
            std::thread::sleep(LOOK);
        }
        assert!(self.program("dedupctl", &["status", &root]).status().unwrap().success());
        let row = Row { seconds: begun.elapsed().as_secs_f64(), ..Row::default() };
        self.with_sizes(row, self.daemon(), 0.0)
    }

    /// Unmounts, and waits until the daemon has ended.
    pub fn unmount(&mut self) -> Row {
        let root = self.root.to_str().unwrap().to_owned();
        let row = self.measure(vec![self.program("dedupctl", &["unmount", &root])]);
        let ended = self.daemon.take().unwrap().wait().unwrap();
        assert!(row.cut || ended.success(), "the daemon ended with {ended}");
        row
    }

    /// Runs the commands one after the other.
    pub fn measure(&self, commands: Vec<Command>) -> Row {
        let (daemon, begun) = (self.daemon(), Instant::now());
        let before = daemon.map_or(0.0, Process::seconds);
        daemon.inspect(|daemon| daemon.forget_peak());
        let mut row = Row::default();
        for mut command in commands {
            let mut child = command.spawn().unwrap();
            let process = Process(child.id());
            let mut looks = 0u32;
            while process.runs() {
                if looks.is_multiple_of(20) {
                    row.descriptors = row.descriptors.max(daemon.unwrap_or(process).descriptors() as u64);
                }
                // Of a daemon that ends, too.
                row.peak = row.peak.max(daemon.unwrap_or(process).peak());
                row.daemon = row.daemon.max(daemon.map_or(0.0, Process::seconds) - before);
                if begun.elapsed() > self.limit {
                    child.kill().unwrap();
                    row.cut = true;
                }
                looks += 1;
                std::thread::sleep(LOOK);
            }
            row.command += process.seconds();
            let status = child.wait().unwrap();
            assert!(row.cut || status.success(), "{command:?}: {status}");
        }
        row.seconds = begun.elapsed().as_secs_f64();
        self.with_sizes(row, daemon, before)
    }

    /// Adds what the process holds after a while, and the store's sizes.
    fn with_sizes(&self, mut row: Row, daemon: Option<Process>, before: f64) -> Row {
        std::thread::sleep(SETTLED);
        if let Some(daemon) = daemon.filter(|daemon| daemon.runs()) {
            let memory = daemon.memory();
            row.daemon = row.daemon.max(daemon.seconds() - before);
            row.peak = row.peak.max(daemon.peak());
            row.descriptors = row.descriptors.max(daemon.descriptors() as u64);
            (row.resident, row.proportional, row.anonymous) =
                (memory.resident, memory.proportional, memory.anonymous);
        }
        let store = PathBuf::from(format!("/proc/self/fd/{}/.dedupfs", self.bare.as_raw_fd()));
        (row.index, row.packs) = (bytes(&store.join("index")), bytes(&store.join("packs")));
        row
    }
}

impl Drop for Mounted {
    /// Leaves no mount after a failed measurement.
    fn drop(&mut self) {
        if let Some(daemon) = &mut self.daemon {
            let _ = Command::new("fusermount3").arg("-uz").arg(&self.root).status();
            let _ = daemon.wait();
        }
    }
}

fn mounts() -> String {
    fs::read_to_string("/proc/self/mountinfo").unwrap()
}

/// Where `dedupfs` and `dedupctl` are: `DEDUPFS_PROGRAMS`, or the directory that cargo puts them in.
fn programs() -> PathBuf {
    if let Some(dir) = std::env::var_os("DEDUPFS_PROGRAMS") {
        return dir.into();
    }
    let exe = std::env::current_exe().unwrap();
    exe.ancestors().nth(2).unwrap().to_owned()
}

/// Bytes on disk of all files below `dir`.
fn bytes(dir: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt as _;
    let Ok(entries) = fs::read_dir(dir) else { return 0 };
    let of = |entry: fs::DirEntry| match entry.metadata() {
        Ok(meta) if meta.is_dir() => bytes(&entry.path()),
        Ok(meta) => meta.blocks() * 512,
        Err(_) => 0,
    };
    entries.flatten().map(of).sum()
}
