//! The index after any history of the files: whatever was written, cut, renamed, linked, removed, remounted or killed, it
//! answers as one that is built anew from the files.
#![allow(clippy::unwrap_used, reason = "a test stops at the first error")]

use dedupfs::chunk::ChunkParams;
use dedupfs::db::{Batch, Db, DbResult, MemDb, Table, Value};
use dedupfs::id::StoreId;
use dedupfs::overlay::stub::GuardKey;
use dedupfs::overlay::{
    Background, Backing, Caller, Dedup, HybridOptions, NodeId, OpenFlags, Overlay, Parts, ROOT, SetAttr,
    SimilarOptions,
};
use dedupfs::similarity::{Similarity, SimilarityOptions};
use dedupfs::store::{Store, StoreOptions};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::path::Path;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tempfile::TempDir;

const CALLER: Caller = Caller { uid: 0, gid: 0, umask: 0 };

/// What is done while a look-up is under way.
type Meanwhile = Box<dyn FnOnce() + Send>;

/// A database in memory that knows what it was at each change since it was last durable: what a kill may leave.
#[derive(Default)]
struct Volatile {
    now: MemDb,
    since_flush: Mutex<Vec<MemDb>>,
    /// Is done when the files of a content have been looked up so many times more, before the answer is given.
    meanwhile: Mutex<Option<(usize, Meanwhile)>>,
}

fn copy(from: &dyn Db) -> MemDb {
    let to = MemDb::new();
    for table in Table::ALL {
        from.scan(table, &[], &mut |key, value| to.put(table, key, value).is_ok()).unwrap();
    }
    to
}

impl Db for Volatile {
    fn get(&self, table: Table, key: &[u8]) -> DbResult<Option<Value>> {
        self.now.get(table, key)
    }
    fn at_or_below(&self, table: Table, key: &[u8]) -> DbResult<Option<(Vec<u8>, Value)>> {
        self.now.at_or_below(table, key)
    }
    fn scan(&self, table: Table, from: &[u8], visit: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> DbResult<()> {
        self.now.scan(table, from, visit)?;
        let mut meanwhile = self.meanwhile.lock().unwrap();
        let due = match &mut *meanwhile {
            Some((0, _)) if table == Table::Holders => meanwhile.take(),
            Some((left, _)) if table == Table::Holders => {
                *left -= 1;
                None
            }
            _ => None,
        };
        drop(meanwhile);
        due.into_iter().for_each(|(_, work)| work());
        Ok(())
    }
    fn apply(&self, batch: Batch) -> DbResult<()> {
        let mut since_flush = self.since_flush.lock().unwrap();
        self.now.apply(batch)?;
        since_flush.push(copy(&self.now));
        Ok(())
    }
    fn flush(&self) -> DbResult<()> {
        *self.since_flush.lock().unwrap() = vec![copy(&self.now)];
        Ok(())
    }
    fn bytes_on_disk(&self) -> u64 {
        0
    }
}

struct World {
    overlay: Arc<Overlay>,
    background: Option<Background>,
    db: Arc<Volatile>,
    dedup: Dedup,
    dir: TempDir,
}

fn open(dir: &Path, db: Arc<Volatile>, dedup: Dedup) -> (Arc<Overlay>, Option<Background>) {
    let state = dir.join(".dedupfs");
    let options = StoreOptions { pack_bytes_max: 1 << 20, ..StoreOptions::default() };
    let store = Store::open(&state, StoreId([1; 16]), db.clone(), options, &mut |_, _| {}).unwrap();
    let similarity = Similarity::open(db.clone(), SimilarityOptions::default()).unwrap();
    let parts = Parts {
        backing: Backing::open(dir).unwrap(),
        store: Arc::new(store),
        similarity: Arc::new(similarity),
        db,
        key: GuardKey([3; 32]),
        params: ChunkParams::with_average(1024).unwrap(),
        dedup,
        read_only: false,
        threads: 1,
        hybrid: HybridOptions { dir: state.join("extents"), bytes_min: u64::MAX },
    };
    let overlay = Arc::new(Overlay::new(parts).unwrap());
    let background = overlay.start();
    (overlay, Some(background))
}

fn write(overlay: &Overlay, name: &str, bytes: &[u8]) {
    let flags = OpenFlags { write: true, truncate: true, ..OpenFlags::default() };
    let made = overlay.tree.create(ROOT, OsStr::new(name), 0o644, CALLER, flags, &|_| None).unwrap();
    overlay.tree.write(&made.1.handle, 0, bytes).unwrap();
    overlay.tree.release(&made.1.handle);
    overlay.tree.forget(made.0.node, 1);
}

impl World {
    fn new(dedup: Dedup) -> World {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join(".dedupfs")).unwrap();
        let db = Arc::new(Volatile::default());
        let (overlay, background) = open(dir.path(), db.clone(), dedup);
        World { overlay, background, db, dedup, dir }
    }

    fn reopen(&mut self, db: MemDb) {
        self.background = None;
        self.db = Arc::new(Volatile { now: db, ..Volatile::default() });
        self.db.flush().unwrap();
        (self.overlay, self.background) = open(self.dir.path(), self.db.clone(), self.dedup);
    }

    fn remount(&mut self) {
        self.settle();
        let db = copy(&self.db.now);
        self.reopen(db);
    }

    /// What was durable, and of what was changed since a first part.
    fn kill(&mut self, part: usize) {
        let db = {
            let since_flush = self.db.since_flush.lock().unwrap();
            since_flush.get(part % since_flush.len().max(1)).map_or(MemDb::new(), |db| copy(db))
        };
        self.reopen(db);
        self.scan();
    }

    fn scan(&self) {
        let report = self.overlay.maintenance.scan(Path::new(""), &mut |_, _, _, _| {}).unwrap();
        assert_eq!(report.errors, 0);
    }

    fn settle(&self) {
        assert!(self.overlay.maintenance.settle(&mut |_| true).unwrap());
    }

    fn write(&self, name: &str, bytes: &[u8]) {
        write(&self.overlay, name, bytes);
    }

    fn with_node<T>(&self, name: &str, work: impl FnOnce(NodeId) -> T) -> T {
        let node = self.overlay.tree.lookup(ROOT, OsStr::new(name)).unwrap().node;
        let result = work(node);
        self.overlay.tree.forget(node, 1);
        result
    }

    fn patch(&self, name: &str, offset: u64, bytes: &[u8]) {
        self.with_node(name, |node| {
            let flags = OpenFlags { write: true, ..OpenFlags::default() };
            let opened = self.overlay.tree.open(node, flags, &|_| None).unwrap();
            self.overlay.tree.write(&opened.handle, offset, bytes).unwrap();
            self.overlay.tree.release(&opened.handle);
        });
    }

    /// Of each file the files that are found for it, by content, with what the index estimates.
    fn answers(&self, files: &Files) -> BTreeMap<String, BTreeSet<(usize, String)>> {
        let options = SimilarOptions {
            min: 0.1,
            limit: 1000,
            estimate: true,
            common_min: 0,
            ..SimilarOptions::default()
        };
        let ask = |name: &String| {
            let found = self.overlay.queries.similar_inside(Path::new(name), &options).unwrap();
            let told = found.matches.iter().map(|one| {
                let inode = files.names[one.path.to_str().unwrap()];
                (inode, format!("{} {:?}", one.size, one.shares))
            });
            (name.clone(), told.collect())
        };
        files.names.keys().map(ask).collect()
    }
}

/// What the files should be: names of inodes, and their bytes.
#[derive(Default)]
struct Files {
    names: BTreeMap<String, usize>,
    bytes: Vec<Vec<u8>>,
}

/// Text of few lines, so that files have parts in common.
fn lines(seed: u64, len: usize) -> Vec<u8> {
    let mut x = seed;
    let mut out = Vec::new();
    while out.len() < len {
        let mut line = [0; 40];
        blake3::Hasher::new().update(&(x % 97).to_le_bytes()).finalize_xof().fill(&mut line);
        out.extend_from_slice(&line);
        // Runs of a hundred lines or so that other seeds have too.
        x = if x.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 57 == 0 { x.wrapping_mul(31) + seed } else { x + 1 };
    }
    out.truncate(len);
    out
}

#[derive(Clone, Debug)]
enum Op {
    Write(u8, u64, usize),
    Append(u8, u64, usize),
    Patch(u8, usize, usize),
    Truncate(u8, usize),
    Remove(u8),
    Rename(u8, u8),
    Link(u8, u8),
    Settle,
    Remount,
    Kill(usize),
}

fn op() -> impl Strategy<Value = Op> {
    let file = 0u8..6;
    prop_oneof![
        5 => (file.clone(), 0u64..60, 0usize..30_000).prop_map(|(f, s, l)| Op::Write(f, s, l)),
        2 => (file.clone(), 0u64..60, 1usize..9_000).prop_map(|(f, s, l)| Op::Append(f, s, l)),
        2 => (file.clone(), 0usize..30_000, 1usize..3_000).prop_map(|(f, o, l)| Op::Patch(f, o, l)),
        1 => (file.clone(), 0usize..30_000).prop_map(|(f, l)| Op::Truncate(f, l)),
        2 => file.clone().prop_map(Op::Remove),
        2 => (file.clone(), file.clone()).prop_map(|(a, b)| Op::Rename(a, b)),
        1 => (file.clone(), file).prop_map(|(a, b)| Op::Link(a, b)),
        3 => Just(Op::Settle),
        1 => Just(Op::Remount),
        2 => (0usize..1000).prop_map(Op::Kill),
    ]
}

fn name(file: u8) -> String {
    format!("f{file}")
}

fn step(world: &mut World, files: &mut Files, op: Op) {
    let inode = |files: &Files, file: u8| files.names.get(&name(file)).copied();
    match op {
        Op::Write(file, seed, len) => {
            world.write(&name(file), &lines(seed, len));
            let inode = inode(files, file).unwrap_or_else(|| {
                files.bytes.push(Vec::new());
                files.bytes.len() - 1
            });
            files.names.insert(name(file), inode);
            files.bytes[inode] = lines(seed, len);
        }
        Op::Append(file, seed, len) => {
            if let Some(inode) = inode(files, file) {
                let more = lines(seed, len);
                world.patch(&name(file), files.bytes[inode].len() as u64, &more);
                files.bytes[inode].extend(more);
            }
        }
        Op::Patch(file, offset, len) => {
            if let Some(inode) = inode(files, file) {
                let (patch, bytes) = (lines(offset as u64, len), &mut files.bytes[inode]);
                world.patch(&name(file), offset as u64, &patch);
                bytes.resize(bytes.len().max(offset + len), 0);
                bytes[offset..offset + len].copy_from_slice(&patch);
            }
        }
        Op::Truncate(file, len) => {
            if let Some(inode) = inode(files, file) {
                let size = SetAttr { size: Some(len as u64), ..SetAttr::default() };
                world
                    .with_node(&name(file), |node| world.overlay.tree.setattr(node, size).map(drop).unwrap());
                files.bytes[inode].resize(len, 0);
            }
        }
        Op::Remove(file) => {
            if files.names.remove(&name(file)).is_some() {
                world.overlay.tree.unlink(ROOT, OsStr::new(&name(file))).unwrap();
            }
        }
        Op::Rename(from, to) => {
            if let Some(inode) = inode(files, from) {
                let (a, b) = (name(from), name(to));
                world.overlay.tree.rename((ROOT, OsStr::new(&a)), (ROOT, OsStr::new(&b)), 0, CALLER).unwrap();
                // Between two names of one inode it does nothing.
                if files.names.get(&b) != Some(&inode) {
                    files.names.remove(&a);
                    files.names.insert(b, inode);
                }
            }
        }
        Op::Link(from, to) => {
            if let (Some(inode), false) = (inode(files, from), files.names.contains_key(&name(to))) {
                world.with_node(&name(from), |node| {
                    let attr = world.overlay.tree.link(node, ROOT, OsStr::new(&name(to))).unwrap();
                    world.overlay.tree.forget(attr.node, 1);
                });
                files.names.insert(name(to), inode);
            }
        }
        Op::Settle => world.settle(),
        Op::Remount => world.remount(),
        Op::Kill(part) => world.kill(part),
    }
}

/// An index that is built in one go from files with these bytes.
fn fresh(files: &Files) -> World {
    let world = World::new(Dedup::Off);
    let mut first: BTreeMap<usize, &String> = BTreeMap::new();
    for (name, inode) in &files.names {
        let path = world.dir.path().join(name);
        match first.get(inode) {
            Some(other) => std::fs::hard_link(world.dir.path().join(other), path).unwrap(),
            None => std::fs::write(path, &files.bytes[*inode]).unwrap(),
        }
        first.entry(*inode).or_insert(name);
    }
    world.scan();
    world
}

/// Carries out a history, and compares the index with one that is built anew from the files.
fn ends_in_the_index_of_the_files(ops: Vec<Op>, convert: bool) -> Result<(), TestCaseError> {
    let mut world = World::new(if convert { Dedup::OnClose } else { Dedup::Off });
    let mut files = Files::default();
    for op in ops {
        step(&mut world, &mut files, op);
    }
    world.settle();
    let expected = fresh(&files);
    prop_assert_eq!(world.answers(&files), expected.answers(&files));
    let contents = |world: &World| world.overlay.similarity().stats().contents;
    prop_assert_eq!(contents(&world), contents(&expected));
    world.remount();
    prop_assert_eq!(world.answers(&files), expected.answers(&files), "after a remount");
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn any_history_ends_in_the_index_of_the_files(
        ops in prop::collection::vec(op(), 1..40), convert in any::<bool>(),
    ) {
        ends_in_the_index_of_the_files(ops, convert)?;
    }
}

/// Which of two chunks with the same lines has the lower number depends on when they came: no estimate may depend on it.
#[test]
fn a_file_that_comes_later_is_estimated_like_one_that_comes_at_once() {
    let ops = vec![Op::Write(0, 2, 8838), Op::Settle, Op::Write(5, 17, 11_051)];
    ends_in_the_index_of_the_files(ops, false).unwrap();
}

/// A content whose last file goes just when another file gets it stays: whether that file is committed before it is asked
/// for, or while it is forgotten.
#[test]
fn a_content_that_gets_a_file_while_it_is_forgotten_stays() {
    for look_up in 0..2 {
        let world = World::new(Dedup::Off);
        world.write("first", &lines(1, 20_000));
        world.write("like", &lines(1, 15_000));
        world.settle();
        world.overlay.maintenance.persist().unwrap();
        world.overlay.tree.unlink(ROOT, OsStr::new("first")).unwrap();
        let overlay = world.overlay.clone();
        let (committed, is_committed) = channel();
        let commit_another = move || {
            let (tell, told) = channel();
            std::thread::spawn(move || {
                write(&overlay, "second", &lines(1, 20_000));
                overlay.maintenance.settle(&mut |_| true).unwrap();
                let _ = tell.send(());
                committed.send(())
            });
            // It may have to wait for what is going on.
            let _ = told.recv_timeout(Duration::from_millis(500));
        };
        *world.db.meanwhile.lock().unwrap() = Some((look_up, Box::new(commit_another)));
        world.overlay.maintenance.persist().unwrap();
        assert!(world.db.meanwhile.lock().unwrap().is_none(), "it was asked for");
        is_committed.recv().unwrap();
        let options = SimilarOptions { estimate: true, ..SimilarOptions::default() };
        let found = world.overlay.queries.similar_inside(Path::new("like"), &options).unwrap().matches;
        let found: Vec<_> = found.iter().map(|one| &one.path).collect();
        assert_eq!(found, [Path::new("second")], "look-up {look_up}");
    }
}

/// Entries of the database that are not the same in both, by table.
fn changes(before: &dyn Db, after: &dyn Db) -> BTreeMap<Table, usize> {
    let all = |db: &dyn Db, table| {
        let mut entries = BTreeSet::new();
        db.scan(table, &[], &mut |key, value| entries.insert((key.to_vec(), value.to_vec()))).unwrap();
        entries
    };
    let count = |table| all(before, table).symmetric_difference(&all(after, table)).count();
    Table::ALL.into_iter().map(|table| (table, count(table))).filter(|(_, count)| *count > 0).collect()
}

/// A rename changes nothing that similarity has, nor which file has which content; where a file is changes only if it is
/// another directory.
#[test]
fn a_rename_writes_nothing_to_the_index() {
    for dedup in [Dedup::OnClose, Dedup::Off] {
        let world = World::new(dedup);
        (0..20).for_each(|i| world.write(&format!("f{i}"), &lines(i, 20_000)));
        let dir = world.overlay.tree.mkdir(ROOT, OsStr::new("dir"), 0o755, CALLER).unwrap().node;
        world.settle();
        let (before, stats) = (copy(&world.db.now), world.overlay.similarity().stats());
        for i in 0..20 {
            let (from, to) = (format!("f{i}"), format!("g{i}"));
            world.overlay.tree.rename((ROOT, OsStr::new(&from)), (ROOT, OsStr::new(&to)), 0, CALLER).unwrap();
        }
        world.settle();
        let changed = changes(&before, &world.db.now);
        assert!(changed.is_empty(), "{dedup:?}, within a directory: {changed:?}");
        for i in 0..20 {
            let name = format!("g{i}");
            world
                .overlay
                .tree
                .rename((ROOT, OsStr::new(&name)), (dir, OsStr::new(&name)), 0, CALLER)
                .unwrap();
        }
        world.settle();
        let changed = changes(&before, &world.db.now);
        assert!(changed.keys().eq([&Table::Parents]), "{dedup:?}, to another: {changed:?}");
        assert_eq!(world.overlay.similarity().stats(), stats);
        let found = world
            .overlay
            .queries
            .similar_inside(Path::new("dir/g3"), &SimilarOptions::default())
            .unwrap()
            .matches;
        assert!(found.iter().all(|one| one.path.starts_with("dir")) && !found.is_empty());
    }
}
