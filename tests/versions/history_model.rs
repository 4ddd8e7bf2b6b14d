//! Random histories against a plain model in memory: every version and every snapshot is what it was.
//!
//! The model knows the tree (paths to files, files to bytes) and, of each file, the contents that it had when everything was
//! settled. After every settling each path's last version is its content, and all contents that the file had are among its
//! versions, in order; every version that is listed reads back as a content that was once there; every snapshot has the tree
//! of its moment. Crashes here lose what is in memory.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test stops at the first error, and tells how much it did"
)]

use crate::common::session::{Session, fast_dir};
use dedupfs::admin::{self, Context, Request, Response, RestoreRequest, SnapshotRequest, To};
use dedupfs::history::{Node, short_id};
use dedupfs::id::DocumentId;
use dedupfs::overlay::{Caller, NodeId, OpenFlags, Overlay, ROOT, SetAttr};
use dedupfs::repo::{InitOptions, Repo};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

const CALLER: Caller = Caller { uid: 0, gid: 0, umask: 0o022 };
/// Snapshots checked in full after each collection.
const NAMES: u64 = 8;

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }
}

#[derive(Clone, Debug, PartialEq)]
enum Thing {
    Dir,
    File(usize),
}

#[derive(Default)]
struct Model {
    tree: BTreeMap<PathBuf, Thing>,
    bytes: Vec<Vec<u8>>,
    /// Of each file: what it was when all was settled.
    settled: Vec<Vec<Vec<u8>>>,
}

type Image = BTreeMap<PathBuf, Option<Vec<u8>>>;

impl Model {
    fn image(&self) -> Image {
        let image = self.tree.iter().map(|(path, thing)| match thing {
            Thing::Dir => (path.clone(), None),
            Thing::File(file) => (path.clone(), Some(self.bytes[*file].clone())),
        });
        image.collect()
    }

    fn dirs(&self) -> Vec<PathBuf> {
        let inner = self.tree.iter().filter(|(_, thing)| **thing == Thing::Dir).map(|(path, _)| path.clone());
        std::iter::once(PathBuf::new()).chain(inner).collect()
    }

    fn files(&self) -> Vec<(PathBuf, usize)> {
        let files = self.tree.iter().filter_map(|(path, thing)| match thing {
            Thing::File(file) => Some((path.clone(), *file)),
            Thing::Dir => None,
        });
        files.collect()
    }

    /// Moves what is at and below `from`.
    fn rename(&mut self, from: &Path, to: &Path) {
        let moved: Vec<_> = self.tree.keys().filter(|path| path.starts_with(from)).cloned().collect();
        for path in moved {
            let thing = self.tree.remove(&path).unwrap();
            let rest = path.strip_prefix(from).unwrap();
            let target = if rest.as_os_str().is_empty() { to.to_owned() } else { to.join(rest) };
            self.tree.insert(target, thing);
        }
    }
}

struct World {
    dir: tempfile::TempDir,
    session: Option<Session>,
    model: Model,
    snapshots: Vec<(String, DocumentId, Image)>,
    random: Random,
    out: u64,
    /// Whether a file was restored, which without a mount is done in the bare directory.
    bare: bool,
}

fn node_of(overlay: &Overlay, path: &Path) -> NodeId {
    let mut at = ROOT;
    for part in path.components() {
        at = overlay.tree.lookup(at, part.as_os_str()).unwrap().node;
    }
    at
}

fn place(overlay: &Overlay, path: &Path) -> (NodeId, PathBuf) {
    (node_of(overlay, path.parent().unwrap()), PathBuf::from(path.file_name().unwrap()))
}

impl World {
    fn new(seed: u64) -> World {
        let dir = fast_dir();
        Repo::init(dir.path(), None, &InitOptions::default()).unwrap();
        let session = Some(Session::open(dir.path()).unwrap());
        let random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        World { dir, session, model: Model::default(), snapshots: Vec::new(), random, out: 0, bare: false }
    }

    fn session(&self) -> &Session {
        self.session.as_ref().unwrap()
    }

    fn content(&mut self) -> Vec<u8> {
        let seed = self.random.below(40);
        let len = [0, 1, 700, 5_000, 40_000, 90_000][self.random.below(6) as usize]
            + self.random.below(50) as usize;
        if seed.is_multiple_of(2) { crate::common::prose(seed, len) } else { crate::common::noise(seed, len) }
    }

    fn pick<T: Clone>(&mut self, from: &[T]) -> Option<T> {
        (!from.is_empty()).then(|| from[self.random.below(from.len() as u64) as usize].clone())
    }

    fn new_path(&mut self) -> PathBuf {
        let dir = self.pick(&self.model.dirs()).unwrap();
        dir.join(format!("n{}", self.random.below(NAMES)))
    }

    fn write(&mut self, path: &Path, bytes: Vec<u8>) {
        let file = match self.model.tree.get(path) {
            Some(Thing::Dir) => return,
            Some(Thing::File(file)) => *file,
            None => {
                self.model.bytes.push(Vec::new());
                self.model.settled.push(Vec::new());
                self.model.tree.insert(path.to_owned(), Thing::File(self.model.bytes.len() - 1));
                self.model.bytes.len() - 1
            }
        };
        let overlay = self.session().overlay();
        let (parent, name) = place(overlay, path);
        let flags = OpenFlags { write: true, truncate: true, ..OpenFlags::default() };
        let opened = match overlay.tree.lookup(parent, name.as_os_str()) {
            Ok(attr) => overlay.tree.open(attr.node, flags, &|_| None).unwrap(),
            Err(_) => {
                overlay.tree.create(parent, name.as_os_str(), 0o644, CALLER, flags, &|_| None).unwrap().1
            }
        };
        overlay.tree.write(&opened.handle, 0, &bytes).unwrap();
        overlay.tree.release(&opened.handle);
        self.model.bytes[file] = bytes;
    }

    fn append(&mut self, path: &Path, file: usize, more: &[u8]) {
        let overlay = self.session().overlay();
        let at = self.model.bytes[file].len() as u64;
        let opened = overlay.tree.open(node_of(overlay, path), OpenFlags::WRITE, &|_| None).unwrap();
        overlay.tree.write(&opened.handle, at, more).unwrap();
        overlay.tree.release(&opened.handle);
        self.model.bytes[file].extend_from_slice(more);
    }

    fn truncate(&mut self, path: &Path, file: usize, len: u64) {
        // What is nothing but a hole takes no room as it is: it stays plain, and gets no version.
        if self.model.bytes[file].is_empty() {
            return;
        }
        let overlay = self.session().overlay();
        overlay
            .tree
            .setattr(node_of(overlay, path), SetAttr { size: Some(len), ..SetAttr::default() })
            .unwrap();
        self.model.bytes[file].resize(len as usize, 0);
    }

    fn rename(&mut self, from: &Path, to: &Path) {
        let overlay = self.session().overlay();
        if to.starts_with(from) || from.starts_with(to) {
            return;
        }
        let allowed = match (&self.model.tree[from], self.model.tree.get(to)) {
            (_, None) => true,
            (Thing::File(a), Some(Thing::File(b))) => a != b,
            _ => false,
        };
        if !allowed {
            return;
        }
        let (source, target) = (place(overlay, from), place(overlay, to));
        overlay
            .tree
            .rename((source.0, source.1.as_os_str()), (target.0, target.1.as_os_str()), 0, CALLER)
            .unwrap();
        self.model.tree.remove(to);
        self.model.rename(from, to);
    }

    fn settle(&mut self) {
        assert!(self.session().settle().unwrap(), "it settles");
        for (_, file) in self.model.files() {
            let bytes = self.model.bytes[file].clone();
            if !bytes.is_empty() && self.model.settled[file].last() != Some(&bytes) {
                self.model.settled[file].push(bytes);
            }
        }
    }

    fn ask(&self, request: Request) -> Response {
        let context = Context { repo: self.session().repo(), mountpoint: None };
        admin::run(context, request, &mut |_| true).unwrap()
    }

    fn snapshot(&mut self) {
        self.settle();
        // Without a mount it is not known that nobody else changes anything; here it is.
        let alone = self.random.below(4) > 0 && !std::mem::take(&mut self.bare);
        self.out += 1;
        let (repo, history) = (self.session().repo(), self.session().repo().history());
        let name = if self.random_name() { format!("name-{}", self.out) } else { String::new() };
        let taken = history.snapshot(&name, repo.id(), alone, &mut |_| true).unwrap();
        let files = self.model.files();
        assert_eq!(taken.snapshot.files, files.len() as u64, "walked: {}", taken.walked);
        let bytes: usize = files.iter().map(|(_, file)| self.model.bytes[*file].len()).sum();
        assert_eq!(taken.snapshot.bytes, bytes as u64, "walked: {}", taken.walked);
        self.snapshots.push((short_id(&taken.id), taken.id, self.model.image()));
        self.check_snapshot(self.snapshots.len() - 1);
    }

    fn random_name(&self) -> bool {
        self.snapshots.len().is_multiple_of(2)
    }

    /// Restores a version of some path in place.
    fn restore(&mut self) {
        self.settle();
        let Some((path, _)) = self.pick(&self.model.files()) else { return };
        let listed = self.session().repo().history().versions(&path).unwrap();
        let listed: Vec<_> = listed.into_iter().filter(|listed| listed.version.kept).collect();
        let Some(chosen) = self.pick(&listed) else { return };
        let bytes = self.read_recipe(&chosen.version.recipe);
        self.ask(Request::Restore(RestoreRequest { path: path.clone(), n: Some(chosen.n), to: None }));
        self.bare = true;
        // Another file in its place.
        self.model.bytes.push(bytes.clone());
        self.model.settled.push(vec![bytes]);
        self.model.tree.insert(path, Thing::File(self.model.bytes.len() - 1));
        self.settle();
    }

    /// Brings back a file of a snapshot, or all of one to another place.
    fn restore_snapshot(&mut self) {
        self.settle();
        let snapshots = self.snapshots.clone();
        let Some((id, _, image)) = self.pick(&snapshots) else { return };
        self.out += 1;
        let to = self.dir.path().with_extension(format!("out{}", self.out));
        let request =
            SnapshotRequest::Restore { id, path: PathBuf::new(), to: Some(To(to.clone())), delete: false };
        let Response::Snapshot(report) = self.ask(Request::Snapshot(request)) else { panic!() };
        assert_eq!(report.restored.unwrap().errors, [""; 0]);
        let mut found = Image::new();
        let mut left = vec![to.clone()];
        while let Some(dir) = left.pop() {
            for entry in std::fs::read_dir(&dir).unwrap() {
                let path = entry.unwrap().path();
                let below = path.strip_prefix(&to).unwrap().to_owned();
                if path.is_dir() {
                    found.insert(below, None);
                    left.push(path);
                } else {
                    found.insert(below, Some(std::fs::read(&path).unwrap()));
                }
            }
        }
        std::fs::remove_dir_all(&to).unwrap();
        assert!(found == image, "restored: {:?}, taken: {:?}", found.keys(), image.keys());
    }

    fn remove_snapshot(&mut self) {
        if self.snapshots.is_empty() {
            return;
        }
        let at = self.random.below(self.snapshots.len() as u64) as usize;
        let (_, id, _) = self.snapshots.remove(at);
        self.session().repo().history().remove_snapshot(&id).unwrap();
    }

    fn collect(&mut self) {
        let Response::Gc(report) = self.ask(Request::Gc { dry_run: false }) else { panic!() };
        assert_eq!((report.packs_damaged, report.snapshots), (0, self.snapshots.len() as u64));
        (0..self.snapshots.len()).for_each(|at| self.check_snapshot(at));
    }

    fn reopen(&mut self, crash: bool) {
        let session = self.session.take().unwrap();
        match crash {
            true => drop(session),
            false => session.close().unwrap(),
        }
        self.session = Some(Session::open(self.dir.path()).unwrap());
        let context = Context { repo: self.session().repo(), mountpoint: None };
        admin::catch_up(context.repo, &mut |_| true).unwrap();
    }

    fn read_recipe(&self, recipe: &dedupfs::id::RecipeId) -> Vec<u8> {
        let store = self.session().overlay().store();
        let recipe = store.recipe(recipe).unwrap();
        let mut bytes = vec![0; recipe.size() as usize];
        assert_eq!(store.read_at(&recipe, 0, &mut bytes).unwrap(), bytes.len());
        bytes
    }

    fn check_snapshot(&self, at: usize) {
        let (_, id, image) = &self.snapshots[at];
        let history = self.session().repo().history();
        let (_, snapshot) =
            history.snapshots().into_iter().find(|(found, _)| found == id).expect("it is listed");
        let (mut found, mut left) = (Image::new(), vec![(PathBuf::new(), snapshot.root_node())]);
        while let Some((path, directory)) = left.pop() {
            for entry in history.entries_of(&directory).unwrap() {
                let path = path.join(&entry.name);
                let bytes = match entry.node {
                    Node::Directory(id) => {
                        left.push((path.clone(), id));
                        None
                    }
                    Node::File { recipe, .. } => {
                        Some(recipe.map_or(Vec::new(), |recipe| self.read_recipe(&recipe)))
                    }
                    other => panic!("{other:?}"),
                };
                found.insert(path, bytes);
            }
        }
        let names = |image: &Image| image.keys().cloned().collect::<Vec<_>>();
        assert_eq!(names(&found), names(image), "snapshot {at}");
        for (path, bytes) in image {
            assert!(found[path] == *bytes, "snapshot {at}: {} differs", path.display());
        }
    }

    /// What must be true when everything is settled.
    fn check(&mut self) {
        self.settle();
        let history = self.session().repo().history();
        for (path, file) in self.model.files() {
            let bytes = &self.model.bytes[file];
            let overlay = self.session().overlay();
            let node = node_of(overlay, &path);
            let opened = overlay.tree.open(node, OpenFlags::READ, &|_| None).unwrap();
            let found = overlay.tree.read(&opened.handle, 0, bytes.len() + 9).unwrap();
            overlay.tree.release(&opened.handle);
            assert!(found == *bytes, "{} differs", path.display());
            let listed = history.versions(&path).unwrap();
            assert!(listed.iter().all(|listed| listed.version.kept), "all are young");
            let versions: Vec<Vec<u8>> =
                listed.iter().map(|listed| self.read_recipe(&listed.version.recipe)).collect();
            if !bytes.is_empty() {
                assert!(versions.last() == Some(bytes), "{}: its last version is another", path.display());
            }
            let mut rest = versions.iter();
            for (i, was) in self.model.settled[file].iter().enumerate() {
                assert!(rest.any(|version| version == was), "{}: content {i} is no version", path.display());
            }
        }
        (0..self.snapshots.len()).for_each(|at| self.check_snapshot(at));
    }

    fn step(&mut self) -> &'static str {
        let files = self.model.files();
        match self.random.below(100) {
            0..25 => {
                let (path, bytes) = (self.new_path(), self.content());
                self.write(&path, bytes);
                "write"
            }
            25..35 => {
                if let Some((path, file)) = self.pick(&files) {
                    let more = self.content();
                    self.append(&path, file, &more);
                }
                "append"
            }
            35..40 => {
                if let Some((path, file)) = self.pick(&files) {
                    let len = self.random.below(60_000);
                    self.truncate(&path, file, len);
                }
                "truncate"
            }
            40..52 => {
                let all: Vec<PathBuf> = self.model.tree.keys().cloned().collect();
                if let Some(from) = self.pick(&all) {
                    let to = self.new_path();
                    self.rename(&from, &to);
                }
                "rename"
            }
            52..55 => {
                if let Some((path, file)) = self.pick(&files) {
                    let to = self.new_path();
                    if !self.model.tree.contains_key(&to) {
                        let overlay = self.session().overlay();
                        let (parent, name) = place(overlay, &to);
                        overlay.tree.link(node_of(overlay, &path), parent, name.as_os_str()).unwrap();
                        self.model.tree.insert(to, Thing::File(file));
                    }
                }
                "link"
            }
            55..62 => {
                if let Some((path, _)) = self.pick(&files) {
                    let overlay = self.session().overlay();
                    let (parent, name) = place(overlay, &path);
                    overlay.tree.unlink(parent, name.as_os_str()).unwrap();
                    self.model.tree.remove(&path);
                }
                "unlink"
            }
            62..68 => {
                let path = self.new_path();
                if !self.model.tree.contains_key(&path) {
                    let overlay = self.session().overlay();
                    let (parent, name) = place(overlay, &path);
                    overlay.tree.mkdir(parent, name.as_os_str(), 0o755, CALLER).unwrap();
                    self.model.tree.insert(path, Thing::Dir);
                }
                "mkdir"
            }
            68..78 => {
                self.snapshot();
                "snapshot"
            }
            78..83 => {
                self.restore();
                "restore"
            }
            83..85 => {
                self.restore_snapshot();
                "restore a snapshot"
            }
            85..87 => {
                self.remove_snapshot();
                "remove a snapshot"
            }
            87..92 => {
                self.collect();
                "collect"
            }
            92..95 => {
                self.check();
                self.reopen(false);
                "reopen"
            }
            95..97 => {
                // What was not settled need not have been told of.
                self.settle();
                self.reopen(true);
                "crash"
            }
            _ => {
                self.settle();
                "settle"
            }
        }
    }
}

fn history(seed: u64, steps: usize) {
    let mut world = World::new(seed);
    let mut done = Vec::new();
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        for _ in 0..steps {
            done.push(world.step());
        }
        world.check();
        world.collect();
        world.check();
        world.reopen(false);
        world.check();
    }));
    if let Err(e) = result {
        println!("seed {seed}, after {done:?}");
        std::panic::resume_unwind(e);
    }
}

#[test]
fn every_version_and_snapshot_is_what_it_was() {
    for seed in 1..=6 {
        history(seed, 60);
    }
}

/// By hand: `cargo test --test versions -- --ignored --nocapture history_model::`; `SEED` is the first, `COUNT` how many.
#[test]
#[ignore = "takes minutes"]
fn many_histories() {
    let number =
        |name, default| std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default);
    let (first, count) = (number("SEED", 1000), number("COUNT", 200));
    let mut failed = Vec::new();
    for seed in first..first + count {
        // All of them are run, so that one run shows every kind of failure.
        if std::panic::catch_unwind(|| history(seed, 150)).is_err() {
            failed.push(seed);
        }
        if (seed + 1 - first).is_multiple_of(20) {
            println!("{} histories of 150 steps, from seed {first} on; failed: {failed:?}", seed + 1 - first);
        }
    }
    assert_eq!(failed, [0u64; 0]);
}
