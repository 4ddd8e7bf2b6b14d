//! A daemon touches nothing outside its overlay, whatever the control socket asks of it.
//!
//! Around the overlay lies a canary: files, reached by absolute paths, `..`, symlinks, bind mounts and `/proc/self/root`. After
//! every request they are as they were: bytes, attributes and times. The long run wants a machine on which only one
//! directory can be written: it is meant to find a way out.
#![allow(clippy::unwrap_used, reason = "a test stops at the first error")]

use crate::common::{As, Mount, as_both, noise, prose, root_and_fuse_available, succeed};
use dedupfs::admin::Request;
use dedupfs::control::{Client, ControlError, DaemonInfo, daemon_at};
use rustix::mount::{MountFlags, UnmountFlags};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, symlink};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Fields of requests that hold a path below the root.
const PATH: &str = "PATH";

/// Every request that takes a path below the root, and some more, with [`PATH`] in its place.
fn requests(outside: &Path) -> Vec<Value> {
    let file = json!({"path": PATH, "outside": false});
    let side = json!({"path": PATH, "outside": false, "n": null});
    let to = json!(outside.to_str());
    let similar = serde_json::to_value(dedupfs::overlay::SimilarOptions::default()).unwrap();
    let groups = serde_json::to_value(dedupfs::overlay::GroupOptions::default()).unwrap();
    vec![
        json!({"do": "scan", "path": PATH}),
        json!({"do": "similar", "path": PATH, "outside": false, "options": similar}),
        json!({"do": "groups", "path": PATH, "options": groups}),
        json!({"do": "contained", "tree": file, "holder": null, "budget_bytes": 1 << 20}),
        json!({"do": "contained", "tree": {"path": "", "outside": false}, "holder": file, "budget_bytes": 1 << 20}),
        json!({"do": "template", "template": "add", "name": "t", "path": PATH, "outside": false, "range": null}),
        json!({"do": "template", "template": "add", "name": PATH, "path": "own/a", "outside": false, "range": null}),
        json!({"do": "template", "template": "remove", "name": PATH}),
        json!({"do": "check", "path": PATH, "deep": false}),
        json!({"do": "repair", "path": PATH, "deep": false, "apply": true, "from": []}),
        json!({"do": "log", "path": PATH}),
        json!({"do": "restore", "path": PATH, "n": null, "to": null}),
        json!({"do": "restore", "path": PATH, "n": 1, "to": null}),
        json!({"do": "restore", "path": "own/a", "n": null, "to": to}),
        json!({"do": "snapshot", "snapshot": "show", "id": "first", "path": PATH}),
        json!({"do": "snapshot", "snapshot": "restore", "id": "first", "path": PATH, "to": null, "delete": true}),
        json!({"do": "snapshot", "snapshot": "restore", "id": "first", "path": "own/a", "to": to, "delete": true}),
        json!({"do": "snapshot", "snapshot": "create", "name": "", "walk": true}),
        json!({"do": "diff", "a": side, "b": side, "limit": 10}),
        json!({"do": "would-free", "path": PATH}),
        json!({"do": "export", "path": PATH, "verify": false, "force": true, "remove_store": true}),
        json!({"do": "past", "recipes": [PATH], "write": true}),
        json!({"do": "moment", "path": PATH, "beside": ["-wal", "/../../canary/file"], "since": [0, 0]}),
        json!({"do": "settle"}),
        json!({"do": "gc", "dry_run": false}),
    ]
}

/// `request` with `path` where [`PATH`] stands.
fn with_path(request: &Value, path: &OsStr) -> Value {
    match request {
        Value::String(text) if text == PATH => match path.to_str() {
            Some(text) => json!(text),
            None => json!(path.as_bytes()),
        },
        Value::Array(all) => all.iter().map(|one| with_path(one, path)).collect(),
        Value::Object(all) => all.iter().map(|(key, one)| (key.clone(), with_path(one, path))).collect(),
        other => other.clone(),
    }
}

/// An overlay with things in it that lead out, and the canary around it.
struct World {
    mount: Mount,
    canary: PathBuf,
    before: BTreeMap<PathBuf, String>,
    mounted: Below,
    info: DaemonInfo,
}

impl World {
    fn new(user: As, in_place: bool) -> World {
        let mut mount = Mount::prepare(user);
        mount.in_place = in_place;
        let (dir, canary) = (mount.dir(), mount.root.path().join("canary"));
        for below in ["own", "bind", "other", "own/inner"] {
            fs::create_dir_all(dir.join(below)).unwrap();
        }
        fs::create_dir_all(canary.join("sub")).unwrap();
        for (i, name) in ["file", "sub/file", "own"].into_iter().enumerate() {
            fs::write(canary.join(name), prose(i as u64, 40_000)).unwrap();
        }
        fs::write(dir.join("own/a"), prose(7, 60_000)).unwrap();
        fs::write(dir.join("own/inner/b"), noise(8, 60_000)).unwrap();
        symlink(&canary, dir.join("out")).unwrap();
        symlink(canary.join("file"), dir.join("file-out")).unwrap();
        symlink("/proc/self/root", dir.join("magic")).unwrap();
        symlink("own", dir.join("within")).unwrap();
        // Before the mounts, below which no store is made unasked.
        mount.init("");
        let mut mounted = Below(Vec::new());
        if user == As::Root {
            rustix::mount::mount_bind(&canary, dir.join("bind")).unwrap();
            mounted.0.push(dir.join("bind"));
            rustix::mount::mount(
                "none",
                dir.join("other"),
                "tmpfs",
                MountFlags::empty(),
                None::<&std::ffi::CStr>,
            )
            .unwrap();
            mounted.0.push(dir.join("other"));
            fs::write(dir.join("other/file"), prose(9, 40_000)).unwrap();
        }
        mount.start();
        succeed(mount.dedupctl().arg("scan").arg(mount.mnt()));
        succeed(mount.dedupctl().args(["snapshot", "create", "--name", "first"]).current_dir(mount.mnt()));
        let info = daemon_at(&mount.mnt()).unwrap().unwrap();
        let before = manifest(&canary);
        World { mount, canary, before, mounted, info }
    }

    fn ask(&self, request: &Value) -> Result<(), ControlError> {
        let Ok(request) = serde_json::from_value::<Request>(request.clone()) else { return Ok(()) };
        Client::connect(&self.info)?.expect("the daemon listens").ask(&request, &mut |_| {}).map(|_| ())
    }

    /// Paths that lead out, or that nothing good can be meant by.
    fn paths(&self) -> Vec<Vec<u8>> {
        let canary = self.canary.as_os_str().as_bytes();
        let root = self.mount.dir();
        let mut paths: Vec<Vec<u8>> = vec![
            canary.to_vec(),
            [canary, b"/file"].concat(),
            [b"/proc/self/root".as_slice(), canary].concat(),
            [b"magic".as_slice(), canary].concat(),
            root.as_os_str().as_bytes().to_vec(),
            vec![b'n'; 4096],
            [&b"own/"[..], &vec![b'n'; 4096]].concat(),
            b"d/".repeat(4096),
            b"own/../".repeat(700),
            b"\xff\xfe/..".to_vec(),
            b"own\0/a".to_vec(),
        ];
        let texts = [
            "",
            "/",
            ".",
            "..",
            "../canary",
            "../canary/file",
            "own/../../canary/file",
            "out",
            "out/file",
            "out/sub",
            "file-out",
            "bind",
            "bind/file",
            "bind/sub",
            "other",
            "other/file",
            "magic",
            "magic/etc",
            "within/a",
            "/etc/hostname",
            ".dedupfs",
            ".dedupfs/packs",
            "./.dedupfs/config.toml",
            "own/../.dedupfs",
            "own//a",
            "own/./a",
            "DEDUPFS-README.txt",
            ".snapshots/first/own/a",
            "own/a/",
            "own/a/..",
        ];
        paths.extend(texts.iter().map(|text| text.as_bytes().to_vec()));
        paths
    }

    #[track_caller]
    fn assert_unharmed(&self, by: &dyn std::fmt::Debug) {
        assert_eq!(manifest(&self.canary), self.before, "changed by {by:?}");
    }

    /// The canary, the overlay's own files, and the store.
    fn finish(self) {
        self.mount.settle();
        self.assert_unharmed(&"all of it");
        assert_eq!(fs::read(self.mount.at("own/a")).unwrap(), prose(7, 60_000));
        assert_eq!(fs::read(self.mount.at("own/inner/b")).unwrap(), noise(8, 60_000));
        succeed(self.mount.dedupctl().args(["check", "--deep"]).current_dir(self.mount.mnt()));
        self.mount.unmount();
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if self.mount.is_mounted() {
            let _ = self.mount.dedupctl().arg("unmount").arg(self.mount.mnt()).output();
        }
        self.mounted.unmount();
    }
}

/// What is mounted in the backing directory.
struct Below(Vec<PathBuf>);

impl Below {
    fn unmount(&mut self) {
        for at in self.0.drain(..).rev() {
            let _ = rustix::mount::unmount(at, UnmountFlags::DETACH);
        }
    }
}

impl Drop for Below {
    fn drop(&mut self) {
        self.unmount();
    }
}

/// Every file of a tree with its attributes, times and content.
fn manifest(dir: &Path) -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let meta = path.symlink_metadata().unwrap();
        let hash =
            if meta.is_file() { blake3::hash(&fs::read(&path).unwrap()).to_string() } else { String::new() };
        let times = (meta.mtime(), meta.mtime_nsec(), meta.ctime(), meta.ctime_nsec());
        found.insert(path.clone(), format!("{:o} {} {times:?} {hash}", meta.mode(), meta.len()));
        if meta.is_dir() {
            found.extend(manifest(&path));
        }
    }
    found
}

fn every_request_with_every_path(user: As, in_place: bool) {
    let world = World::new(user, in_place);
    for path in world.paths() {
        for request in requests(&world.canary.join("file")) {
            let request = with_path(&request, OsStr::from_bytes(&path));
            let answer = world.ask(&request);
            let lost = matches!(answer, Err(ControlError::Ended | ControlError::Protocol(_)));
            assert!(!lost, "{request}: {answer:?}");
        }
        world.assert_unharmed(&String::from_utf8_lossy(&path));
    }
    world.finish();
}

#[test]
fn no_request_touches_what_lies_outside() {
    as_both(|user| every_request_with_every_path(user, false));
}

#[test]
fn no_request_touches_what_lies_outside_a_mount_over_itself() {
    as_both(|user| every_request_with_every_path(user, true));
}

/// A file that programs use through the mount although it lies in another mount is never converted.
#[test]
fn what_is_mounted_below_the_root_stays_plain() {
    if !root_and_fuse_available() {
        return;
    }
    for in_place in [false, true] {
        let world = World::new(As::Root, in_place);
        // Over itself, mounts below are hidden by the mount.
        if let Ok(mut file) = fs::OpenOptions::new().append(true).open(world.mount.at("bind/sub/file")) {
            file.write_all(b"one line more\n").unwrap();
            drop(file);
            world.mount.settle();
            let len = fs::metadata(world.canary.join("sub/file")).unwrap().len();
            assert_eq!(len, 40_014, "converted outside the overlay");
        }
    }
}

/// A cheap random number; the seed is in the message of a failure.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n as u64) as usize
    }

    fn of<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len())]
    }
}

fn random_path(world: &World, random: &mut Random) -> Vec<u8> {
    let whole = world.paths();
    if random.below(3) == 0 {
        return random.of(&whole).clone();
    }
    let parts: [&[u8]; 14] = [
        b"own", b"inner", b"a", b"b", b"..", b".", b"out", b"bind", b"other", b"magic", b"within", b"file",
        b"canary", b"sub",
    ];
    let mut path = if random.below(5) == 0 { b"/".to_vec() } else { Vec::new() };
    for _ in 0..random.below(7) {
        path.extend_from_slice(parts[random.below(parts.len())]);
        path.push(b'/');
    }
    path.extend_from_slice(parts[random.below(parts.len())]);
    path
}

/// Sends bytes as they are, and waits for the end of the answer.
fn send_raw(socket: &Path, bytes: &[u8]) {
    let Ok(mut stream) = UnixStream::connect(socket) else { return };
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let _ = stream.read_to_end(&mut Vec::new());
}

#[expect(clippy::print_stdout, reason = "what a long run came to")]
fn fuzz_for(seconds: u64, seed: u64) {
    let (mut random, end) = (Random(seed), Instant::now() + Duration::from_secs(seconds));
    let (mut asked, mut answered, mut worlds) = (0u64, 0u64, 0u64);
    while Instant::now() < end {
        worlds += 1;
        let world = World::new(As::Root, random.below(2) == 0);
        let requests = requests(&world.canary.join("file"));
        for round in 0..400 {
            let path = random_path(&world, &mut random);
            let request = with_path(random.of(&requests), OsStr::from_bytes(&path));
            asked += 1;
            // Garbled, a path to write to would be another, which the client then named.
            let writes_out = request.get("to").is_some_and(|to| !to.is_null());
            if random.below(4) == 0 && !writes_out {
                let mut bytes = serde_json::to_vec(&request).unwrap();
                for _ in 0..1 + random.below(4) {
                    let at = random.below(bytes.len());
                    match random.below(3) {
                        0 => bytes[at] = random.below(256) as u8,
                        1 => bytes.insert(at, *random.of(b"/.\"\\{}[],:0")),
                        _ => drop(bytes.remove(at)),
                    }
                }
                bytes.push(b'\n');
                send_raw(&world.info.socket, &bytes);
            } else {
                answered += u64::from(world.ask(&request).is_ok());
            }
            if round % 20 == 19 {
                world.assert_unharmed(&format!("a request up to {request} (seed {seed})"));
            }
            if Instant::now() > end {
                break;
            }
        }
        world.assert_unharmed(&format!("seed {seed}"));
        let alive =
            Client::connect(&world.info).unwrap().map(|mut client| client.ask(&Request::Status, &mut |_| {}));
        assert!(alive.is_some_and(|answer| answer.is_ok()), "the daemon serves on (seed {seed})");
    }
    println!(
        "{asked} requests to {worlds} daemons, {answered} of them carried out, seed {seed}: the canary is as it was"
    );
}

/// `DEDUPFS_FUZZ_SECONDS`, an hour if it is not set; `DEDUPFS_FUZZ_SEED`.
#[test]
#[ignore = "an hour; in a sandbox"]
fn no_random_request_touches_what_lies_outside() {
    if !root_and_fuse_available() {
        return;
    }
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let seed = number("DEDUPFS_FUZZ_SEED").unwrap_or_else(|| u64::from(std::process::id()) << 20 | 1);
    fuzz_for(number("DEDUPFS_FUZZ_SECONDS").unwrap_or(3600), seed);
}
