//! Snapshots of plain files: what the last one has is not read again, also after a restart, and nothing else is believed.
#![allow(clippy::unwrap_used, reason = "a test stops at the first error")]

use crate::common::session::Session;
use dedupfs::admin::{self, Context, Request, Response, SnapshotRequest};
use dedupfs::config::Config;
use dedupfs::history::{Node, Taken};
use dedupfs::overlay::Dedup;
use dedupfs::repo::{InitOptions, Layout, Repo};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use tempfile::TempDir;

/// Files that are younger are read again.
const SETTLED: Duration = Duration::from_millis(4_100);

/// A tree in which nothing is converted.
struct Tree(TempDir);

impl Tree {
    fn new(files: &[(&str, &[u8])]) -> Tree {
        let dir = crate::common::session::fast_dir();
        let config = Config { dedup: Some(Dedup::Off), ..Config::default() };
        Repo::init(dir.path(), None, &InitOptions { config, ..InitOptions::default() }).unwrap();
        let tree = Tree(dir);
        files.iter().for_each(|(name, bytes)| tree.put(name, bytes));
        tree
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Writes a file whose mtime is the same for all.
    fn put(&self, name: &str, bytes: &[u8]) {
        fs::create_dir_all(self.at(name).parent().unwrap()).unwrap();
        fs::write(self.at(name), bytes).unwrap();
        let time = SystemTime::UNIX_EPOCH + Duration::new(1_000_000_000, 123_456_789);
        File::options().write(true).open(self.at(name)).unwrap().set_modified(time).unwrap();
    }

    fn open(&self) -> Session {
        Session::open(self.0.path()).unwrap()
    }

    /// Takes a snapshot by a walk, in a session of its own, and reads back all that is in it.
    fn snapshot(&self) -> Taken {
        let session = self.open();
        let taken = take(&session);
        session.close().unwrap();
        self.check(&taken);
        taken
    }

    /// The snapshot has what is there.
    fn check(&self, taken: &Taken) {
        let session = self.open();
        let history = session.repo().history();
        let mut left = vec![(PathBuf::new(), taken.snapshot.root_node())];
        while let Some((path, directory)) = left.pop() {
            for entry in history.entries_of(&directory).unwrap() {
                let path = path.join(&entry.name);
                match entry.node {
                    Node::Directory(id) => left.push((path, id)),
                    Node::File { recipe: Some(recipe), size, .. } => {
                        let store = session.overlay().store();
                        let (recipe, mut bytes) = (store.recipe(&recipe).unwrap(), vec![0; size as usize]);
                        assert_eq!(store.read_at(&recipe, 0, &mut bytes).unwrap(), bytes.len());
                        assert!(bytes == fs::read(self.0.path().join(&path)).unwrap(), "{path:?} differs");
                    }
                    other => panic!("{path:?}: {other:?}"),
                }
            }
        }
        session.close().unwrap();
    }
}

fn take(session: &Session) -> Taken {
    session.repo().history().snapshot("", session.repo().id(), false, &mut |_| true).unwrap()
}

fn ask(session: &Session, request: Request) -> Response {
    admin::run(Context { repo: session.repo(), mountpoint: None }, request, &mut |_| true).unwrap()
}

#[test]
fn what_the_last_snapshot_has_is_not_read_again_after_a_restart() {
    let mut files: Vec<(String, Vec<u8>)> =
        (0..48).map(|i| (format!("d{}/f{i}", i % 3), crate::common::noise(i, 5_000))).collect();
    files.extend(
        ["left/file", "right/file"]
            .map(|name| (name.to_owned(), crate::common::noise(name.len() as u64, 5_000))),
    );
    let files: Vec<(&str, &[u8])> = files.iter().map(|(name, bytes)| (&**name, &**bytes)).collect();
    let tree = Tree::new(&files);
    let young = tree.snapshot();
    assert_eq!((young.read, young.snapshot.files), (50, 50));
    assert_eq!(tree.snapshot().read, 50, "within a tick of the clock they may have been changed since");
    std::thread::sleep(SETTLED);
    assert_eq!(tree.snapshot().read, 50);
    let again = tree.snapshot();
    assert_eq!((again.read, again.walked, again.snapshot.files), (0, true, 50));
    assert_eq!(again.snapshot.root, young.snapshot.root);

    // Another content of the same length and with the same mtime.
    tree.put("d0/f0", &crate::common::noise(99, 5_000));
    // Directories that change places: the files in them, of one length and one mtime, do not know.
    fs::rename(tree.at("left"), tree.at("other")).unwrap();
    fs::rename(tree.at("right"), tree.at("left")).unwrap();
    fs::rename(tree.at("other"), tree.at("right")).unwrap();
    // A file by another name.
    fs::rename(tree.at("d1/f1"), tree.at("d1/g")).unwrap();
    let changed = tree.snapshot();
    assert_eq!(changed.read, 4, "no more than may have changed");
    assert_ne!(changed.snapshot.root, again.snapshot.root);

    // Without the index everything is read once, and the tree is the same.
    std::thread::sleep(SETTLED);
    fs::remove_dir_all(tree.at(".dedupfs/index")).unwrap();
    let rebuilt = tree.snapshot();
    assert_eq!((rebuilt.read, &rebuilt.snapshot.root.node), (50, &changed.snapshot.root.node));
    assert_eq!(tree.snapshot().read, 0);
}

/// What was read once and is in no snapshot any more may be gone.
#[test]
fn what_no_snapshot_has_any_more_is_read() {
    let tree =
        Tree::new(&[("one", &crate::common::noise(1, 300_000)), ("two", &crate::common::noise(2, 300_000))]);
    std::thread::sleep(SETTLED);
    let first = tree.snapshot();
    assert_eq!(tree.snapshot().read, 0);
    let session = tree.open();
    for (id, _) in session.repo().history().snapshots() {
        ask(&session, Request::Snapshot(SnapshotRequest::Remove { id: id.to_string() }));
    }
    let Response::Gc(report) = ask(&session, Request::Gc { dry_run: false }) else { panic!() };
    assert!(report.reclaimed_bytes > 500_000, "{report:?}");
    session.close().unwrap();
    let again = tree.snapshot();
    assert_eq!((again.read, again.snapshot.root_node()), (2, first.snapshot.root_node()));
}

/// Bytes that are whole in the file and damaged in the store are stored again.
#[test]
fn damage_that_is_known_is_not_believed() {
    let content = crate::common::noise(1, 40_000);
    let tree = Tree::new(&[("file", &content)]);
    std::thread::sleep(SETTLED);
    tree.snapshot();
    assert_eq!(tree.snapshot().read, 0);
    let layout = Layout::of(tree.0.path()).unwrap().unwrap();
    flip(&layout.file("packs"), &content[1_000..1_100]);
    let session = tree.open();
    let Response::Check(report) = ask(&session, Request::Check { path: PathBuf::new(), deep: true }) else {
        panic!()
    };
    assert!(!report.damaged.is_empty());
    let taken = take(&session);
    assert_eq!(taken.read, 1);
    session.close().unwrap();
    tree.check(&taken);
}

/// Inverts a byte of the place in which a pack has these bytes.
fn flip(packs: &Path, bytes: &[u8]) {
    for entry in fs::read_dir(packs).unwrap() {
        let path = entry.unwrap().path();
        let mut all = fs::read(&path).unwrap();
        if let Some(at) = all.windows(bytes.len()).position(|window| window == bytes) {
            all[at] ^= 0xff;
            return fs::write(&path, all).unwrap();
        }
    }
    panic!("no pack has these bytes");
}
