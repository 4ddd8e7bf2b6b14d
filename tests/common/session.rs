//! An overlay driven as a library, without FUSE, and `dedupctl` beside it.

use dedupfs::chunk::ChunkParams;
use dedupfs::db::MemDb;
use dedupfs::id::StoreId;
use dedupfs::overlay::stub::GuardKey;
use dedupfs::overlay::{
    Background, Backing, Caller, Dedup, HybridOptions, OpenFlags, Overlay, OverlayError, Parts, ROOT,
};
use dedupfs::repo::{Layout, OpenOptions, Repo, RepoError};
use dedupfs::similarity::{Similarity, SimilarityOptions};
use dedupfs::store::{Store, StoreOptions};
use rustix::fs::{FlockOperation, XattrFlags, flock};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Name of the xattr that makes a file a stub.
pub const RECORD: &str = "user.dedupfs";
/// No command on these small stores takes longer, however busy the machine is.
const TIME_MAX: Duration = Duration::from_secs(60);
/// A process just forked by another thread holds copies of our locks until it becomes another program.
const LOCK_WAIT: Duration = Duration::from_secs(10);
/// Address space of a command: a claim of damaged bytes that is believed goes far beyond it.
const ADDRESS_BYTES_MAX: u64 = 4 << 30;

/// A directory on a filesystem in memory where there is one that keeps user xattrs, else on disk.
pub fn fast_dir() -> TempDir {
    let memory = tempfile::Builder::new().prefix("dedupfs-test-").tempdir_in("/dev/shm");
    let usable = memory.ok().filter(|dir| {
        rustix::fs::setxattr(dir.path(), "user.dedupfs.probe", b"1", XattrFlags::empty()).is_ok()
    });
    usable.unwrap_or_else(|| tempfile::tempdir().unwrap())
}

/// Copies a tree with its records and mtimes.
pub fn copy_tree(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let (path, meta) = (entry.as_ref().unwrap().path(), entry.unwrap().metadata().unwrap());
        let copy = to.join(path.file_name().unwrap());
        if meta.is_dir() {
            copy_tree(&path, &copy);
            continue;
        }
        fs::copy(&path, &copy).unwrap();
        if let Some(record) = super::xattr(&path, RECORD) {
            rustix::fs::setxattr(&copy, RECORD, &record, XattrFlags::empty()).unwrap();
        }
        fs::File::options().write(true).open(&copy).unwrap().set_modified(meta.modified().unwrap()).unwrap();
    }
}

/// An open store with its overlay and threads.
pub struct Session {
    repo: Option<Repo>,
    background: Option<Background>,
    state: PathBuf,
}

impl Drop for Session {
    fn drop(&mut self) {
        drop(self.repo.take());
        drop(self.background.take());
        wait_for_lock(&self.state);
    }
}

/// Waits until this process's lock of a store is gone: a process just forked by another thread has a copy of it.
pub fn wait_for_lock(state: &Path) {
    let end = Instant::now() + LOCK_WAIT;
    while let Ok(lock) = fs::File::open(state.join("lock")) {
        match flock(&lock, FlockOperation::NonBlockingLockShared) {
            Err(Errno::WOULDBLOCK) if Instant::now() < end => std::thread::sleep(Duration::from_millis(1)),
            // Released by name: a process forked just now has a copy of this one too.
            _ => return flock(&lock, FlockOperation::Unlock).unwrap(),
        }
    }
}

impl Session {
    /// Opens the store of `root`; none is an error as of the programs.
    pub fn open(root: &Path) -> Result<Session, RepoError> {
        let layout = Layout::of(root)?.ok_or_else(|| RepoError::NoStore { path: root.to_owned() })?;
        let end = Instant::now() + LOCK_WAIT;
        let repo = loop {
            match Repo::open(&layout, &OpenOptions { convert: true, ..OpenOptions::default() }, &mut |_| {}) {
                Err(RepoError::Locked { .. }) if Instant::now() < end => {
                    std::thread::sleep(Duration::from_millis(2))
                }
                other => break other?,
            }
        };
        let background = Some(repo.overlay().start());
        Ok(Session { repo: Some(repo), background, state: layout.state })
    }

    pub fn repo(&self) -> &Repo {
        self.repo.as_ref().unwrap()
    }

    pub fn overlay(&self) -> &Overlay {
        self.repo.as_ref().unwrap().overlay()
    }

    /// The whole content of a file in the root.
    pub fn read(&self, name: &str) -> Result<Vec<u8>, OverlayError> {
        let overlay = self.overlay();
        let attr = overlay.tree.lookup(ROOT, OsStr::new(name))?;
        let read = overlay.tree.open(attr.node, OpenFlags::default(), &|_| None).and_then(|opened| {
            let read = overlay.tree.read(&opened.handle, 0, attr.size as usize + 10);
            overlay.tree.release(&opened.handle);
            read
        });
        overlay.tree.forget(attr.node, 1);
        read
    }

    /// Reads a file in small steps, on after errors: all its chunks are asked for.
    pub fn touch(&self, name: &str) {
        let overlay = self.overlay();
        let Ok(attr) = overlay.tree.lookup(ROOT, OsStr::new(name)) else { return };
        if let Ok(opened) = overlay.tree.open(attr.node, OpenFlags::default(), &|_| None) {
            (0..attr.size).step_by(512).for_each(|at| drop(overlay.tree.read(&opened.handle, at, 512)));
            overlay.tree.release(&opened.handle);
        }
        overlay.tree.forget(attr.node, 1);
    }

    /// Makes a file with that content; it is committed some time later.
    pub fn write(&self, name: &str, bytes: &[u8]) -> Result<(), OverlayError> {
        let caller = Caller { uid: 0, gid: 0, umask: 0o022 };
        let flags = OpenFlags { write: true, truncate: true, ..OpenFlags::default() };
        let overlay = self.overlay();
        let (attr, opened) = overlay.tree.create(ROOT, OsStr::new(name), 0o644, caller, flags, &|_| None)?;
        let written = overlay.tree.write(&opened.handle, 0, bytes);
        overlay.tree.release(&opened.handle);
        overlay.tree.forget(attr.node, 1);
        written.map(drop)
    }

    /// Waits for all commits; false if there are some after 20 seconds, as when the store refuses writes.
    pub fn settle(&self) -> Result<bool, OverlayError> {
        let end = Instant::now() + Duration::from_secs(20);
        self.overlay().maintenance.settle(&mut |_| Instant::now() < end)
    }

    /// Closes in good order.
    pub fn close(mut self) -> Result<(), RepoError> {
        let left = self.background.take().unwrap().stop();
        self.repo.take().unwrap().close(left)
    }
}

/// Runs `dedupctl`, which has to end by itself, within bounds of time and memory and without a panic of ours.
pub fn dedupctl(args: &[&str], dir: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dedupctl"));
    command.args(args).current_dir(dir).env("HOME", dir).env_remove("XDG_RUNTIME_DIR");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let limit = libc::rlimit { rlim_cur: ADDRESS_BYTES_MAX, rlim_max: ADDRESS_BYTES_MAX };
    // SAFETY: between fork and exec only setrlimit is called, which is safe to call there.
    unsafe {
        command.pre_exec(move || {
            libc::setrlimit(libc::RLIMIT_AS, &limit);
            Ok(())
        });
    }
    let mut child = command.spawn().unwrap();
    let end = Instant::now() + TIME_MAX;
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > end {
            child.kill().unwrap();
            panic!("{args:?} hangs");
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!said.contains("panicked at src/"), "{args:?}: {said}");
    output
}

/// What `dedupctl check --json` says.
#[derive(Debug)]
pub struct Check {
    /// kind, object, path, reason of each finding
    pub found: Vec<(String, String, Option<String>, String)>,
    pub healed: usize,
}

impl Check {
    /// Runs it; `Err` is its message where it fails.
    pub fn run(args: &[&str], dir: &Path) -> Result<Check, String> {
        let output = dedupctl(&[&["check", "--json"], args].concat(), dir);
        let code = output.status.code();
        if code == Some(2) {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned());
        }
        let json: serde_json::Value = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|e| panic!("{e}: {}", super::text(&output)));
        let text = |value: &serde_json::Value| value.as_str().map(str::to_owned);
        let found: Vec<_> = json["damaged"]
            .as_array()
            .unwrap()
            .iter()
            .map(|one| {
                let field = |name: &str| text(&one[name]).unwrap_or_default();
                (field("kind"), field("object"), text(&one["path"]), field("reason"))
            })
            .collect();
        assert_eq!(code, Some(i32::from(!found.is_empty())), "{}", super::text(&output));
        Ok(Check { found, healed: json["healed"].as_array().unwrap().len() })
    }

    /// The objects named for each file.
    pub fn by_path(&self) -> BTreeMap<String, Vec<String>> {
        let mut files = BTreeMap::<String, Vec<String>>::new();
        for (_, object, path, _) in &self.found {
            if let Some(path) = path {
                files.entry(path.clone()).or_default().push(object.clone());
            }
        }
        files
    }
}

/// Every regular file below `dir`, by its path from there.
pub fn files_below(dir: &Path) -> Vec<PathBuf> {
    let (mut found, mut left) = (Vec::new(), vec![dir.to_owned()]);
    while let Some(dir) = left.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { left.push(path) } else { found.push(path) }
        }
    }
    found.sort();
    found
}

/// Makes stubs of files whose chunks are in packs of at most so many bytes, one file after the other. Only the
/// store itself can be asked for such packs. The index is not kept.
pub fn fill_small_packs(layout: &Layout, params: ChunkParams, pack_bytes_max: u32, files: &[(&str, &[u8])]) {
    let format = fs::read_to_string(layout.file("format.toml")).unwrap();
    let id: StoreId = format.split("store = \"").nth(1).unwrap()[..32].parse().unwrap();
    let db = Arc::new(MemDb::new());
    let options = StoreOptions { pack_bytes_max, ..StoreOptions::default() };
    let store = Store::open(&layout.state, id, db.clone(), options, &mut |_, _| {}).unwrap();
    let similarity = Similarity::open(db.clone(), SimilarityOptions::default()).unwrap();
    let key = fs::read(layout.file("key")).unwrap();
    let parts = Parts {
        backing: Backing::open(&layout.root).unwrap(),
        store: Arc::new(store),
        similarity: Arc::new(similarity),
        db,
        key: GuardKey(key.try_into().unwrap()),
        params,
        dedup: Dedup::OnClose,
        read_only: false,
        threads: 1,
        hybrid: HybridOptions { dir: layout.file("extents"), bytes_min: u64::MAX },
    };
    let overlay = Arc::new(Overlay::new(parts).unwrap());
    let _background = overlay.start();
    for (name, bytes) in files {
        fs::write(layout.root.join(name), bytes).unwrap();
        overlay.maintenance.scan(Path::new(""), &mut |_, _, _, _| {}).unwrap();
        assert_eq!(fs::metadata(layout.root.join(name)).unwrap().len(), 0, "{name} is a stub");
    }
}
