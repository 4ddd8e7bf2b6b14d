//! What the tests of real mounts share: a directory, a daemon over it, and `dedupctl`.
#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a test stops at the first error, and says aloud that it was skipped"
)]
#![allow(dead_code, reason = "each test program uses a part")]

pub mod namespaces;
pub mod session;
pub mod twins;

use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;
use tempfile::TempDir;

/// Says aloud that a test was skipped; where FUSE is required, as in CI, skipping is failing.
pub fn fuse_available() -> bool {
    let usable = Path::new("/dev/fuse").exists() && (is_root() || Path::new("/usr/bin/fusermount3").exists());
    if !usable {
        assert!(
            std::env::var_os("DEDUPFS_REQUIRE_FUSE").is_none(),
            "this test needs /dev/fuse and must not be skipped"
        );
        eprintln!("SKIPPED: this test needs /dev/fuse");
    }
    usable
}

/// As [`fuse_available`], for tests that change what only root may.
pub fn root_and_fuse_available() -> bool {
    if !is_root() {
        assert!(std::env::var_os("DEDUPFS_REQUIRE_FUSE").is_none(), "this test wants to be started by root");
        eprintln!("SKIPPED: this test needs root");
    }
    is_root() && fuse_available()
}

/// Set for the part of a test that root has an ordinary user run: where copies of the programs are.
const BIN_VARIABLE: &str = "DEDUPFS_TEST_BIN";
/// fusermount3 wants a user with a name: nobody and nogroup.
const USER: u32 = 65534;

/// Runs a test as root and as an ordinary user, both at once; started by an ordinary user, only as that.
///
/// The user's part runs in a process of its own: root could not look into a user's mount.
pub fn as_both(test: impl Fn(As)) {
    if !fuse_available() {
        return;
    }
    if !is_root() {
        let alone = std::env::var_os(BIN_VARIABLE).is_none();
        assert!(
            !alone || std::env::var_os("DEDUPFS_REQUIRE_FUSE").is_none(),
            "this test wants to be started by root"
        );
        if alone {
            eprintln!("SKIPPED: the part of this test that needs root");
        }
        return test(As::User);
    }
    let name = name_of_test();
    std::thread::scope(|scope| {
        let user = scope.spawn(|| as_user(&name, &[]));
        test(As::Root);
        user.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

/// The name of the test that this thread runs.
fn name_of_test() -> String {
    std::thread::current().name().unwrap().to_owned()
}

/// Runs the test that this thread runs once more, as an ordinary user and with these variables set. Only root can.
pub fn again_as_user(variables: &[(&str, &Path)]) {
    as_user(&name_of_test(), variables);
}

fn as_user(name: &str, variables: &[(&str, &Path)]) {
    if std::fs::metadata("/dev/fuse").unwrap().permissions().mode() & 0o666 != 0o666 {
        // As udev does; machines without it leave the device to root.
        std::fs::set_permissions("/dev/fuse", PermissionsExt::from_mode(0o666)).unwrap();
    }
    let bin = programs_for_users();
    let id = USER.to_string();
    let output = Command::new("setpriv")
        .args(["--reuid", &id, "--regid", &id, "--clear-groups", "--"])
        .arg(bin.join("test"))
        .args(["--exact", name, "--nocapture", "--include-ignored"])
        .env(BIN_VARIABLE, bin)
        .envs(variables.iter().copied())
        .env_remove("XDG_RUNTIME_DIR")
        .env_remove(OVER_ITSELF)
        .current_dir("/")
        .output()
        .unwrap();
    assert!(output.status.success(), "as an ordinary user: {}", text(&output));
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("1 passed"), "as an ordinary user, no test ran: {said}");
    eprint!("{}", String::from_utf8_lossy(&output.stderr));
}

/// The programs, once for this process, where an ordinary user can run them: the build directory may be closed to users.
fn programs_for_users() -> &'static Path {
    static PROGRAMS: OnceLock<TempDir> = OnceLock::new();
    extern "C" fn remove() {
        if let Some(programs) = PROGRAMS.get() {
            let _ = std::fs::remove_dir_all(programs.path());
        }
    }
    let programs = PROGRAMS.get_or_init(|| {
        let programs = tempfile::Builder::new().prefix("dedupfs-bin-").tempdir().unwrap();
        std::fs::set_permissions(programs.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let this = std::env::current_exe().unwrap();
        for (name, from) in
            [("test", this.as_path()), ("dedupfs", DEDUPFS.as_ref()), ("dedupctl", DEDUPCTL.as_ref())]
        {
            let to = programs.path().join(name);
            // Another filesystem does not link.
            std::fs::hard_link(from, &to).or_else(|_| std::fs::copy(from, &to).map(drop)).unwrap();
        }
        // SAFETY: the function takes no argument and does not unwind. What is in a static is never dropped.
        assert_eq!(unsafe { libc::atexit(remove) }, 0);
        programs
    });
    programs.path()
}

/// Set in a process that runs one test alone.
const ALONE_VARIABLE: &str = "DEDUPFS_TEST_ALONE";

/// Runs a test in a process of its own. For a test that changes or measures what all threads of a process share.
pub fn alone(test: impl FnOnce()) {
    if std::env::var_os(ALONE_VARIABLE).is_some() {
        return test();
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &name_of_test(), "--nocapture", "--include-ignored"])
        .env(ALONE_VARIABLE, "1")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output));
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("1 passed"), "no test ran: {said}");
    eprint!("{}", String::from_utf8_lossy(&output.stderr));
}

const DEDUPFS: &str = env!("CARGO_BIN_EXE_dedupfs");
const DEDUPCTL: &str = env!("CARGO_BIN_EXE_dedupctl");

pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Settings without versions.
pub const NO_HISTORY: &str = "[history]\nkeep = \"none\"";

/// As whom a test runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum As {
    /// With passthrough.
    Root,
    /// Through fusermount3, with I/O by the daemon.
    User,
}

/// If set, overlays are mounted over their own directories where a test does not choose. Tests that change the backing
/// directory themselves fail then.
const OVER_ITSELF: &str = "DEDUPFS_TEST_OVER_ITSELF";

/// A backing directory, a mount point, and perhaps a daemon.
pub struct Mount {
    pub root: TempDir,
    pub user: As,
    pub flags: Vec<String>,
    bin: PathBuf,
    pub in_place: bool,
}

impl Mount {
    /// Directories only.
    pub fn prepare(user: As) -> Mount {
        Mount::prepare_in(user, &std::env::temp_dir())
    }

    /// Directories only, below `parent`.
    pub fn prepare_in(user: As, parent: &Path) -> Mount {
        let root = tempfile::Builder::new().prefix("dedupfs-test-").tempdir_in(parent).unwrap();
        for dir in ["dir", "mnt", "home"] {
            std::fs::create_dir(root.path().join(dir)).unwrap();
        }
        let bin = match std::env::var_os(BIN_VARIABLE) {
            Some(dir) => PathBuf::from(dir),
            None => Path::new(DEDUPFS).parent().unwrap().to_owned(),
        };
        let in_place = std::env::var_os(OVER_ITSELF).is_some();
        if in_place && is_root() {
            let below = root.path().join("below");
            std::fs::create_dir(&below).unwrap();
            rustix::mount::mount_bind(root.path().join("dir"), &below).unwrap();
        }
        Mount { root, user, flags: Vec::new(), bin, in_place }
    }

    /// Directories and a running daemon.
    pub fn new(user: As) -> Mount {
        let mount = Mount::prepare(user);
        mount.start();
        mount
    }

    /// As [`Mount::new`], without versions: what no file needs is garbage at once.
    pub fn without_history(user: As) -> Mount {
        let mount = Mount::prepare(user);
        mount.init(NO_HISTORY);
        mount.start();
        mount
    }

    pub fn with_flags(user: As, flags: &[&str]) -> Mount {
        let mut mount = Mount::prepare(user);
        mount.flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
        mount.start();
        mount
    }

    pub fn in_place(user: As) -> Mount {
        Mount::in_place_in(user, &std::env::temp_dir())
    }

    pub fn in_place_in(user: As, parent: &Path) -> Mount {
        let mut mount = Mount::prepare_in(user, parent);
        mount.in_place = true;
        mount.start();
        mount
    }

    /// The backing directory.
    pub fn dir(&self) -> PathBuf {
        self.root.path().join("dir")
    }

    /// The backing directory, also while an overlay is mounted over it.
    pub fn backing(&self) -> PathBuf {
        let below = self.root.path().join("below");
        if below.exists() { below } else { self.dir() }
    }

    /// The mount point.
    pub fn mnt(&self) -> PathBuf {
        if self.in_place { self.dir() } else { self.root.path().join("mnt") }
    }

    /// A path in the mount.
    pub fn at(&self, path: &str) -> PathBuf {
        self.mnt().join(path)
    }

    /// A command with a home of its own.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command.env("HOME", self.root.path().join("home")).env_remove("XDG_RUNTIME_DIR");
        command
    }

    pub fn dedupfs(&self) -> Command {
        self.command(self.bin.join("dedupfs"))
    }

    pub fn dedupctl(&self) -> Command {
        self.command(self.bin.join("dedupctl"))
    }

    /// Makes the store before the first start, with `setting` in its configuration.
    pub fn init(&self, setting: &str) {
        use std::io::Write;
        succeed(self.dedupctl().arg("init").arg(self.dir()));
        let config = self.dir().join(".dedupfs/config.toml");
        let mut config = std::fs::OpenOptions::new().append(true).open(config).unwrap();
        writeln!(config, "{setting}").unwrap();
    }

    /// Starts the daemon in the background; returns when it answers.
    pub fn start(&self) {
        let mut command = self.dedupfs();
        command.arg(self.dir());
        if !self.in_place {
            command.arg(self.mnt());
        }
        succeed(command.args(&self.flags));
    }

    /// Runs `dedupctl COMMAND --json ARGS` on the mount and reads its answer.
    pub fn ctl(&self, args: &[&str]) -> serde_json::Value {
        let output = self.dedupctl().args(args).arg("--json").current_dir(self.mnt()).output().unwrap();
        assert!(output.status.code().is_some_and(|code| code < 2), "{args:?}: {}", text(&output));
        serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{args:?}: {e}: {}", text(&output)))
    }

    /// Waits until nothing is pending. The kernel says a little late that a file was closed.
    pub fn settle(&self) {
        let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while self.ctl(&["settle"])["pending"] != 0 {
            assert!(std::time::Instant::now() < until, "not settled within 60 s");
        }
    }

    pub fn unmount(&self) {
        let daemon = self.daemon();
        let output = self.dedupctl().arg("unmount").arg(self.mnt()).output().unwrap();
        // Another test on this machine has made a mount namespace: the daemon ends with it.
        if output.status.code() == Some(1) && text(&output).contains("other mount namespaces") {
            let runs = || daemon.is_some_and(|pid| Path::new(&format!("/proc/{pid}/root")).exists());
            while runs() {
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
        } else {
            assert!(output.status.success(), "{}", text(&output));
        }
        assert!(!self.is_mounted());
    }

    pub fn remount(&self) {
        self.unmount();
        self.start();
    }

    pub fn is_mounted(&self) -> bool {
        // Other tests mount at paths that are no text.
        let mounts = std::fs::read("/proc/self/mountinfo").unwrap();
        let mounts = String::from_utf8_lossy(&mounts);
        let mnt = self.mnt();
        mounts.lines().any(|line| line.split(' ').nth(4) == mnt.to_str())
    }

    /// The daemon's process.
    pub fn pid(&self) -> i32 {
        self.daemon().expect("the daemon runs")
    }

    fn daemon(&self) -> Option<i32> {
        let mnt = self.mnt();
        let mut found = None;
        for entry in std::fs::read_dir("/proc").unwrap().flatten() {
            let Ok(pid) = entry.file_name().to_string_lossy().parse::<i32>() else {
                continue;
            };
            let Ok(line) = std::fs::read(entry.path().join("cmdline")) else {
                continue;
            };
            let mut words = line.split(|&b| b == 0);
            let is_daemon = words.next().is_some_and(|name| name.ends_with(b"/dedupfs"));
            use std::os::unix::ffi::OsStrExt;
            if is_daemon && line.split(|&b| b == 0).any(|word| word == mnt.as_os_str().as_bytes()) {
                found = Some(pid);
            }
        }
        found
    }

    /// kill -9, and what is left of the mount with it.
    pub fn kill(&self) {
        let pid = rustix::process::Pid::from_raw(self.pid()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        // The lock goes with the process, a little later than the signal.
        while Path::new(&format!("/proc/{}/root", pid.as_raw_nonzero())).exists() {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        // And the connection: who asks just then is told ECONNABORTED once.
        while matches!(rustix::fs::statfs(self.mnt()), Err(rustix::io::Errno::CONNABORTED)) {}
    }

    /// The backing file's own length and blocks.
    pub fn below(&self, path: &str) -> (u64, u64) {
        use std::os::unix::fs::MetadataExt;
        let meta = std::fs::symlink_metadata(self.backing().join(path)).unwrap();
        (meta.len(), meta.blocks())
    }

    pub fn is_stub(&self, path: &str) -> bool {
        self.below(path).0 == 0 && xattr(&self.backing().join(path), "user.dedupfs").is_some()
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if self.is_mounted() {
            let _ = self.dedupctl().arg("unmount").arg(self.mnt()).output();
        }
        // In use still: a daemon that outlives its test would keep whoever waits for the test's output waiting.
        if self.is_mounted() {
            let _ = rustix::mount::unmount(self.mnt(), rustix::mount::UnmountFlags::DETACH);
        }
        if self.is_mounted() {
            let _ = Command::new("fusermount3").args(["-u", "-z"]).arg(self.mnt()).output();
        }
        if self.backing() != self.dir() {
            let _ = rustix::mount::unmount(self.backing(), rustix::mount::UnmountFlags::DETACH);
        }
        if !is_root() && !self.is_mounted() {
            // Tests leave directories that their owner may not look into, and so not remove either.
            let _ = Command::new("chmod").args(["-R", "u+rwX"]).arg(self.root.path()).output();
        }
    }
}

/// Has the kernel forget all names and inodes of a mount that are not in use, and their pages with them: changing
/// the flags of a filesystem, also to what they are, does that. Only root may.
pub fn forget(mnt: &Path) {
    rustix::mount::mount_remount(mnt, rustix::mount::MountFlags::empty(), "").unwrap();
}

pub fn xattr(path: &Path, name: &str) -> Option<Vec<u8>> {
    let mut value = vec![0; 4096];
    let len = rustix::fs::lgetxattr(path, name, &mut value[..]).ok()?;
    value.truncate(len);
    Some(value)
}

pub fn text(output: &Output) -> String {
    format!(
        "{}\nstdout: {}\nstderr: {}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

pub fn succeed(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", text(&output));
    output
}

/// Bytes that do not compress and differ with the seed.
pub fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut out = vec![0; len];
    let mut hasher = blake3::Hasher::new();
    hasher.update(&seed.to_le_bytes());
    hasher.finalize_xof().fill(&mut out);
    out
}

/// Text that looks like text.
pub fn prose(seed: u64, len: usize) -> Vec<u8> {
    let words = [
        "the", "chunk", "store", "of", "a", "recipe", "keeps", "every", "byte", "in", "order", "while", "it",
    ];
    let mut out = Vec::with_capacity(len + 16);
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    while out.len() < len {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        out.extend_from_slice(words[(x % words.len() as u64) as usize].as_bytes());
        out.push(if x.is_multiple_of(11) { b'\n' } else { b' ' });
    }
    out.truncate(len);
    out
}
