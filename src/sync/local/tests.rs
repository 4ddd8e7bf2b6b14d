//! Directories, without a mount: what a mount shows is a directory too. Each sync has its two sides in two threads, with
//! pipes between them.

use super::super::adopt::Steps;
use super::super::content::Source;
use super::super::delta::Encoder;
use super::super::known::{Known, Told};
use super::super::link;
use super::super::merge::tests::{file, tree};
use super::super::old_contents::{Row, RowKind};
use super::super::plan::plan;
use super::super::print::print;
use super::super::proto::{self, Direction, Hello, Message, Options, PROTOCOL, TreePart};
use super::super::session::{Outcome, Session};
use super::super::tree::{Entry, Kind, Time, join, shown};
use super::super::{diff, tree};
use super::*;
use crate::beneath::Root;
use std::fs;
use std::io::{Read, Seek, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use tempfile::TempDir;

mod deltas;
mod groups;
mod lies;
mod links;
mod owners;
mod selective;
mod since;
mod times;
mod troubles;

struct Copy {
    dir: TempDir,
    /// What a store would still have.
    past: Mutex<BTreeMap<RecipeId, Vec<u8>>>,
    /// Programs are held up by who has it.
    held: Mutex<()>,
    /// What a daemon saw; it has a mount only if this is set. Every moment is the same to it.
    changed: Mutex<Option<Vec<(TreePath, bool)>>>,
    /// Whether the directory below its mount is in reach.
    direct: bool,
    rules: Mutex<Rules>,
}

/// A store that keeps every content for which it was ever asked.
struct Kept<'a>(&'a Copy);

impl OldContents for Kept<'_> {
    fn recipe(&mut self, path: &TreePath) -> Option<super::super::old_contents::Known> {
        let bytes = fs::read(self.0.at(&shown(path))).ok()?;
        let id = RecipeId(*blake3::hash(&bytes).as_bytes().first_chunk().unwrap());
        self.0.past.lock().unwrap().insert(id, bytes);
        Some(super::super::old_contents::Known::Now(id))
    }

    fn has(&mut self, recipes: &[RecipeId]) -> Result<Vec<bool>, SyncError> {
        let past = self.0.past.lock().unwrap();
        Ok(recipes.iter().map(|recipe| past.contains_key(recipe)).collect())
    }

    fn read(&mut self, recipe: RecipeId) -> Result<Option<File>, SyncError> {
        let past = self.0.past.lock().unwrap();
        let Some(bytes) = past.get(&recipe) else { return Ok(None) };
        let mut file = super::super::content::nameless()?;
        file.write_all(bytes).unwrap();
        Ok(Some(file))
    }

    /// Some of them are wrong, and some missing.
    fn read_together(&mut self, recipes: &[RecipeId]) -> Result<Vec<Option<Vec<u8>>>, SyncError> {
        let past = self.0.past.lock().unwrap();
        let content = |recipe: &RecipeId| match (past.get(recipe), recipe.0[0] % 4) {
            (_, 0) => Some(b"of another file".to_vec()),
            (found, 1 | 2) => found.cloned(),
            _ => None,
        };
        Ok(recipes.iter().map(content).collect())
    }

    fn changes(&mut self, since: Option<&str>) -> Option<super::super::old_contents::Changes> {
        let changed = self.0.changed.lock().unwrap().clone()?;
        let changed = since.filter(|since| *since == "now").map(|_| changed);
        Some(super::super::old_contents::Changes { moment: "now".to_owned(), changed })
    }

    /// Each second copy has a directory of its own below its mount.
    fn below_mount(&self) -> Option<Root> {
        self.0.direct.then(|| Root::open(&self.0.at("")).unwrap())
    }

    fn sync_all(&mut self) -> Result<(), SyncError> {
        Ok(())
    }

    fn resembling(&mut self, _: &TreePath) -> Vec<(TreePath, f64)> {
        fs::read_dir(self.0.at("alike"))
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| (format!("alike/{}", entry.file_name().display()).into_bytes(), 0.9))
            .collect()
    }

    fn at_barrier(&mut self, path: &TreePath, beside: &[&[u8]], since: Time) -> Option<Vec<Row>> {
        let _held = self.0.held.lock().unwrap();
        let root = Root::open(&self.0.at("")).unwrap();
        let mut left: Vec<TreePath> = beside.iter().map(|suffix| [&path[..], suffix].concat()).collect();
        left.push(path.clone());
        let mut rows = Vec::new();
        while let Some(path) = left.pop() {
            let Some(stat) = root.stat(&path).unwrap() else { continue };
            let print = print(&stat, None);
            let at = self.0.at(&shown(&path));
            let kind = if at.is_dir() {
                let names = fs::read_dir(&at).unwrap().map(|entry| entry.unwrap().file_name());
                left.extend(names.map(|name| join(&path, name.as_bytes())));
                RowKind::Dir
            } else {
                RowKind::File((print.ctime >= since).then(|| {
                    let mut copy = super::super::content::nameless().unwrap();
                    copy.write_all(&fs::read(&at).unwrap()).unwrap();
                    copy.rewind().unwrap();
                    copy
                }))
            };
            rows.push(Row { path, kind, mode: 0o644, print, owner: None, xattrs: Default::default() });
        }
        Some(rows)
    }

    fn settle(&mut self, _: Option<u64>) -> Result<(), SyncError> {
        Ok(())
    }
}

impl Copy {
    fn new() -> Copy {
        let dir = tempfile::tempdir().unwrap();
        for name in ["tree", "state"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        static COPIES: AtomicUsize = AtomicUsize::new(0);
        let direct = COPIES.fetch_add(1, Ordering::Relaxed).is_multiple_of(2);
        let (past, held, changed) = Default::default();
        // Tests run side by side, so that each copy of a test is of either kind, from one run to the next.
        Copy { dir, past, held, changed, direct, rules: Mutex::default() }
    }

    fn at(&self, path: &str) -> PathBuf {
        self.dir.path().join("tree").join(path)
    }

    fn write(&self, path: &str, text: impl AsRef<[u8]>) {
        fs::create_dir_all(self.at(path).parent().unwrap()).unwrap();
        fs::write(self.at(path), text).unwrap();
    }

    fn read(&self, path: &str) -> Vec<u8> {
        fs::read(self.at(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
    }

    fn open(&self, force: bool) -> Result<Local<'_>, SyncError> {
        let state = self.dir.path().join("state");
        Local::open(
            &self.at(""),
            &state,
            "store",
            &self.rules.lock().unwrap().clone(),
            force,
            Some(Box::new(Kept(self))),
            Box::new(|_, _| {}),
        )
    }

    fn tree(&self) -> Tree {
        let mut local = self.open(true).unwrap();
        local.load_tree().unwrap();
        local.tree.clone()
    }

    fn names(&self) -> Vec<String> {
        self.tree().entries.keys().map(|path| shown(path)).collect()
    }
}

/// Writes that end after so many frames, in the middle of the last one.
struct Cut<W> {
    /// Closed by the cut.
    to: Option<W>,
    frames: u32,
}

impl<W: Write> Write for Cut<W> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let left = self.frames.checked_sub(1);
        match (left, &mut self.to) {
            (Some(left), Some(to)) => {
                self.frames = left;
                to.write_all(bytes)?;
                Ok(bytes.len())
            }
            (_, to) => {
                if let Some(mut to) = to.take() {
                    let _ = to.write_all(&bytes[..bytes.len() / 2]);
                }
                Err(std::io::ErrorKind::BrokenPipe.into())
            }
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

type Sides = (Result<(Outcome, link::Traffic), SyncError>, Result<Outcome, SyncError>);

fn sync_cut(a: &Copy, b: &Copy, options: Options, cuts: (u32, u32)) -> Sides {
    let (mut from_b, to_a) = std::io::pipe().unwrap();
    let (mut from_a, to_b) = std::io::pipe().unwrap();
    std::thread::scope(|scope| {
        let called = scope.spawn(move || {
            let mut local = b.open(options.force)?;
            let mut session = Session::answer();
            let mut to = Cut { to: Some(to_a), frames: cuts.1 };
            link::run(&mut session, &mut local, &mut from_a, &mut to, &mut |_, _| {})?;
            Ok(session.outcome().clone())
        });
        let caller = (|| {
            let mut local = a.open(options.force)?;
            let mut session = Session::call(&local, options);
            let mut to = Cut { to: Some(to_b), frames: cuts.0 };
            let traffic = link::run(&mut session, &mut local, &mut from_b, &mut to, &mut |_, _| {})?;
            Ok((session.outcome().clone(), traffic))
        })();
        drop(from_b);
        (caller, called.join().unwrap())
    })
}

#[track_caller]
fn sync(a: &Copy, b: &Copy) -> (Outcome, link::Traffic) {
    let (caller, called) = sync_cut(a, b, Options::default(), (u32::MAX, u32::MAX));
    let (Ok(done), Ok(_)) = (&caller, &called) else { panic!("{caller:?}, {called:?}") };
    let done = done.clone();
    assert_eq!(a.tree(), b.tree(), "both hold the same");
    assert!(!a.at(tree::STAGING).exists() && !b.at(tree::STAGING).exists());
    done
}

fn noise(len: usize, mut x: u64) -> Vec<u8> {
    let mut next = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x as u8
    };
    (0..len).map(|_| next()).collect()
}

#[test]
fn all_kinds_of_files_arrive_and_the_next_sync_has_nothing_to_do() {
    let (a, b) = (Copy::new(), Copy::new());
    a.write("d/e/f.txt", "text");
    a.write("empty file", "");
    a.write("big", noise(3 << 20, 5));
    fs::create_dir(a.at("empty")).unwrap();
    fs::hard_link(a.at("d/e/f.txt"), a.at("hard")).unwrap();
    symlink("../nowhere", a.at("d/link")).unwrap();
    symlink("/etc/passwd", a.at("absolute")).unwrap();
    fs::set_permissions(a.at("big"), PermissionsExt::from_mode(0o4711)).unwrap();
    fs::set_permissions(a.at("empty"), PermissionsExt::from_mode(0o500)).unwrap();
    let odd = std::os::unix::ffi::OsStrExt::as_bytes(std::ffi::OsStr::new("x")).to_vec();
    let odd = [&odd[..], &[0xff, b'\n', 0x80]].concat();
    fs::write(a.at("").join(<std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(&odd)), "odd")
        .unwrap();
    b.write("of b/g", "g");
    let xattr =
        |path: PathBuf| rustix::fs::setxattr(path, "user.note", b"value", rustix::fs::XattrFlags::empty());
    let xattrs = xattr(a.at("big")).is_ok();
    let (outcome, _) = sync(&a, &b);
    assert_eq!((outcome.there.created, outcome.here.created, outcome.conflicts.len()), (10, 2, 0));
    assert_eq!(b.read("big"), a.read("big"));
    let meta = |copy: &Copy, path: &str| copy.at(path).symlink_metadata().unwrap();
    assert_eq!(meta(&b, "d/e/f.txt").ino(), meta(&b, "hard").ino());
    assert_eq!(meta(&b, "big").mode() & 0o7777, 0o711, "no set-user-id bit");
    assert_eq!(meta(&a, "big").mode() & 0o7777, 0o4711);
    assert_eq!(
        (meta(&b, "big").mtime(), meta(&b, "big").mtime_nsec()),
        (meta(&a, "big").mtime(), meta(&a, "big").mtime_nsec())
    );
    assert_eq!(fs::read_link(b.at("absolute")).unwrap(), PathBuf::from("/etc/passwd"));
    if xattrs {
        let mut value = [0; 9];
        assert_eq!(rustix::fs::getxattr(b.at("big"), "user.note", &mut value[..]).unwrap(), 5);
    }
    let (outcome, traffic) = sync(&b, &a);
    assert_eq!((outcome.here, outcome.there), Default::default());
    assert!(traffic.sent + traffic.received < 4000, "{traffic:?}");
}

#[test]
fn changes_go_both_ways_and_nothing_is_lost_where_both_changed() {
    let (a, b) = (Copy::new(), Copy::new());
    let old = noise(1 << 20, 9);
    for (path, text) in [
        ("one", &b"1"[..]),
        ("two", b"2"),
        ("both.txt", b"old"),
        ("gone", b"x"),
        ("kept", b"y"),
        ("big", &old),
    ] {
        a.write(path, text);
    }
    a.write("dir/f", "f");
    sync(&a, &b);
    a.write("one", "1a");
    b.write("two", "2b");
    a.write("both.txt", "of a");
    b.write("both.txt", "of b");
    fs::remove_file(a.at("gone")).unwrap();
    fs::remove_file(a.at("kept")).unwrap();
    b.write("kept", "edited");
    fs::rename(a.at("dir"), a.at("renamed")).unwrap();
    b.write("dir/new", "n");
    let mut new = old.clone();
    new[500_000] ^= 1;
    b.write("big", &new);
    let (outcome, traffic) = sync(&a, &b);
    assert_eq!((outcome.conflicts.len(), outcome.kept.len()), (1, 1));
    let conflict = &outcome.conflicts[0];
    let mut texts = [a.read("both.txt"), a.read(&shown(&conflict.copy))];
    texts.sort();
    assert_eq!(texts, [b"of a".to_vec(), b"of b".to_vec()]);
    assert_eq!(
        (a.read("one"), a.read("two"), a.read("kept")),
        (b"1a".to_vec(), b"2b".to_vec(), b"edited".to_vec())
    );
    assert_eq!((a.read("renamed/new"), b.read("renamed/f")), (b"n".to_vec(), b"f".to_vec()));
    assert!(!b.at("gone").exists() && !b.at("dir").exists());
    assert_eq!(a.read("big"), new);
    assert!(traffic.received < 100_000, "known chunks are not sent: {traffic:?}");
}

/// Push and pull change one side; what the other has is taken up by the next sync.
#[test]
fn one_side_only_and_nothing_at_all() {
    let (a, b) = (Copy::new(), Copy::new());
    a.write("a", "a");
    b.write("b", "b");
    let run = |options| sync_cut(&a, &b, options, (u32::MAX, u32::MAX)).0.unwrap().0;
    let outcome = run(Options { dry_run: true, ..Options::default() });
    assert_eq!((outcome.here.created, outcome.there.created), (1, 1));
    assert_eq!((a.names(), b.names()), (vec!["a".to_owned()], vec!["b".to_owned()]));
    run(Options { direction: Direction::Push, ..Options::default() });
    assert_eq!((a.names().len(), b.names().len()), (1, 2));
    a.write("c", "c");
    b.write("a", "changed");
    run(Options { direction: Direction::Pull, ..Options::default() });
    assert_eq!((a.names().len(), b.names().len()), (3, 2));
    assert_eq!(a.read("a"), b"changed");
    let (outcome, _) = sync(&a, &b);
    assert_eq!((outcome.conflicts.len(), outcome.there.created, outcome.here), (0, 1, Default::default()));
}

/// Cut in the middle of every frame of either side: each file is old or new on both sides, and the next sync ends it
/// without sending what had arrived.
#[test]
fn cut_at_every_frame_and_resumed() {
    let big = noise(2 << 20, 77);
    let mut resumed = 0;
    for frame in 0..40 {
        for caller in [true, false] {
            let (a, b) = (Copy::new(), Copy::new());
            a.write("f", "old");
            sync(&a, &b);
            a.write("big", &big);
            b.write("other", noise(600_000, 78));
            b.write("f", "new");
            let cuts = if caller { (frame, u32::MAX) } else { (u32::MAX, frame) };
            let (first, second) = sync_cut(&a, &b, Options::default(), cuts);
            let whole = first.is_ok() && second.is_ok();
            for copy in [&a, &b] {
                assert!([&b"old"[..], b"new"].contains(&&copy.read("f")[..]));
            }
            let staged = |copy: &Copy, dir| match fs::read_dir(copy.at(dir)) {
                Ok(list) => list.flatten().map(|entry| entry.metadata().unwrap().len()).sum::<u64>(),
                Err(_) => 0,
            };
            let had = staged(&a, tree::STAGING) + staged(&b, tree::STAGING);
            let (outcome, traffic) = sync(&a, &b);
            assert!(outcome.conflicts.is_empty(), "invented after a cut at {frame}: {:?}", outcome.conflicts);
            assert_eq!((a.read("other"), b.read("big")), (noise(600_000, 78), big.clone()));
            let all = traffic.sent + traffic.received;
            if had > 200_000 {
                resumed += 1;
                assert!(all + had < 2_900_000, "{had} bytes had arrived, {all} were sent again");
            }
            if whole {
                assert!(resumed > 0 || frame < 15, "no cut left anything to resume from");
                if frame > 20 {
                    return;
                }
            }
        }
    }
}

#[test]
fn guards_speak_up() {
    let (a, b) = (Copy::new(), Copy::new());
    (0..20).for_each(|n| a.write(&format!("{n}"), format!("{n}")));
    sync(&a, &b);
    (0..12).for_each(|n| fs::remove_file(a.at(&n.to_string())).unwrap());
    let (caller, called) = sync_cut(&a, &b, Options::default(), (u32::MAX, u32::MAX));
    assert!(matches!(&caller, Err(SyncError::Guard(text)) if text.contains("12 of 20")), "{caller:?}");
    assert!(called.is_err() || b.names().len() == 20);
    assert_eq!(b.names().len(), 20);
    // Also told from the other side.
    assert!(matches!(sync_cut(&b, &a, Options::default(), (u32::MAX, u32::MAX)).0, Err(SyncError::Guard(_))));
    assert_eq!(b.names().len(), 20);
    let force = Options { force: true, ..Options::default() };
    sync_cut(&a, &b, force, (u32::MAX, u32::MAX)).0.unwrap();
    assert_eq!(b.names().len(), 8);
    (12..20).for_each(|n| fs::remove_file(a.at(&n.to_string())).unwrap());
    assert!(matches!(a.open(false), Err(SyncError::Guard(text)) if text.contains("empty")));
}

#[test]
fn what_is_ignored_is_neither_synced_nor_deleted() {
    let (a, b) = (Copy::new(), Copy::new());
    a.write("keep.o", "x");
    a.write("d/f", "f");
    sync(&a, &b);
    a.write(".dedupfsignore", "*.o\n/target\n");
    a.write("new.o", "x");
    a.write("target/big", "x");
    a.write("d/x.o", "x");
    sync(&a, &b);
    assert!(b.at("keep.o").exists() && !b.at("new.o").exists() && !b.at("target").exists());
    // A directory goes on one side and holds something ignored on the other: that stays.
    fs::remove_dir_all(b.at("d")).unwrap();
    let (caller, _) = sync_cut(&b, &a, Options::default(), (u32::MAX, u32::MAX));
    caller.unwrap();
    assert!(a.at("d/x.o").exists() && !a.at("d/f").exists());
}

/// The replica says what the tree is; then somebody writes; then the steps are done.
#[test]
fn a_change_after_the_look_is_not_overwritten() {
    for (name, change) in [("replaced", "f"), ("removed", "gone"), ("made", "fresh")] {
        let a = Copy::new();
        a.write("f", "old");
        a.write("gone", "old");
        let mut local = a.open(true).unwrap();
        let from = local.tree.clone();
        let mut to = from.clone();
        to.entries.remove(&b"gone"[..]);
        let new = file(7, "peer", "new");
        to.entries.insert(b"fresh".to_vec(), new.clone());
        to.entries.insert(b"f".to_vec(), Entry { ident: from.entries[&b"f"[..]].ident, ..new });
        local.begin(ContentId::of(b"new")).unwrap();
        local.write(b"new").unwrap();
        local.finish(ContentId::of(b"new")).unwrap();
        // The same length, and the time put back.
        let time = a.at("f").metadata().unwrap().modified().unwrap();
        a.write(change, "OLD");
        fs::File::options().write(true).open(a.at(change)).unwrap().set_modified(time).unwrap();
        let skipped = local.run(&plan(&from, &to)).unwrap();
        assert!(skipped.iter().any(|step| step.path == change.as_bytes()), "{name}: {skipped:?}");
        assert_eq!(a.read(change), b"OLD", "{name}: an unseen change was overwritten");
    }
}

/// As before, but between the last look and the step; and within one tick of the clock, so that nothing but the bytes shows it.
#[test]
fn a_change_under_the_step_is_put_back() {
    for (name, same_tick) in [("f", false), ("gone", false), ("f", true)] {
        let a = Copy::new();
        a.write("f", "old");
        a.write("gone", "old");
        let mut local = a.open(true).unwrap();
        let from = local.tree.clone();
        let mut to = from.clone();
        to.entries.remove(&b"gone"[..]);
        let new = file(7, "peer", "new");
        to.entries.insert(b"f".to_vec(), Entry { ident: from.entries[&b"f"[..]].ident, ..new });
        local.begin(ContentId::of(b"new")).unwrap();
        local.write(b"new").unwrap();
        local.finish(ContentId::of(b"new")).unwrap();
        if same_tick {
            a.write(name, "OLD");
            let now = local.root.stat(name.as_bytes()).unwrap().unwrap();
            let known = local.memory.cache.get_mut(name.as_bytes()).unwrap();
            *known = super::super::print::Print {
                fresh: true,
                content: known.content,
                ..super::super::print::print(&now, None)
            };
        }
        let mut executor = local.executor().unwrap();
        executor.between = Some(Box::new(|path: &[u8]| {
            if path == name.as_bytes() && !same_tick {
                a.write(name, "written");
            }
        }));
        let skipped = executor.run(&plan(&from, &to)).unwrap();
        assert!(skipped.iter().any(|step| step.path == name.as_bytes()), "{name}: {skipped:?}");
        let text = if same_tick { "OLD" } else { "written" };
        assert_eq!(a.read(name), text.as_bytes(), "{name}: an unseen change was overwritten");
    }
}

/// The machine stopped between taking a file out of its place and seeing that somebody had written to it.
#[test]
fn what_nobody_has_seen_is_kept_when_a_sync_was_stopped() {
    let a = Copy::new();
    a.write("f", "seen");
    a.tree();
    for (n, text) in ["seen", "unseen"].iter().enumerate() {
        a.write(&format!("{}/swap-{n}", tree::STAGING), text);
    }
    let names = a.names();
    let recovered =
        names.iter().find(|name| name.starts_with("recovered-")).expect("the unseen content is gone");
    assert_eq!((names.len(), a.read(recovered)), (2, b"unseen".to_vec()));
}

#[test]
fn holes_stay_holes() {
    let (a, b) = (Copy::new(), Copy::new());
    let sparse = |path: &str, end: &[u8]| {
        let file = File::create(a.at(path)).unwrap();
        file.set_len(64 << 20).unwrap();
        file.write_all_at(&noise(5000, 1), 0).unwrap();
        file.write_all_at(end, 40 << 20).unwrap();
    };
    let same = |path: &str| {
        assert!(a.read(path) == b.read(path), "{path}");
        let blocks = fs::metadata(b.at(path)).unwrap().blocks();
        assert!(blocks * 512 < 2 << 20, "{path} takes {blocks} blocks");
    };
    sparse("one", b"one");
    sync(&a, &b);
    same("one");
    // As a change of it; and of a content that is there, which is copied.
    sparse("one", b"another");
    sparse("two", b"one");
    fs::copy(a.at("two"), a.at("three")).unwrap();
    sync(&a, &b);
    ["one", "two", "three"].into_iter().for_each(same);
}

/// Between the look and the steps a directory becomes a symlink that leads out.
#[test]
fn a_symlink_leads_nobody_out() {
    let (a, outside) = (Copy::new(), tempfile::tempdir().unwrap());
    a.write("d/old", "old");
    fs::write(outside.path().join("old"), "old").unwrap();
    let mut local = a.open(true).unwrap();
    let from = local.tree.clone();
    let mut to = from.clone();
    to.entries.remove(&b"d/old"[..]);
    to.entries.insert(b"d/new".to_vec(), file(7, "peer", "new"));
    to.entries.insert(
        b"d/link".to_vec(),
        Entry { kind: Kind::Symlink(b"x".to_vec()), mode: 0o777, ..file(8, "peer", "") },
    );
    local.begin(ContentId::of(b"new")).unwrap();
    local.write(b"new").unwrap();
    local.finish(ContentId::of(b"new")).unwrap();
    fs::rename(a.at("d"), a.at("moved")).unwrap();
    symlink(outside.path(), a.at("d")).unwrap();
    let skipped = local.run(&plan(&from, &to)).unwrap();
    assert_eq!(skipped.len(), 3, "{skipped:?}");
    let names: Vec<_> =
        fs::read_dir(outside.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["old"], "something was done outside");
    // Nor does reading.
    symlink("/etc", a.at("etc")).unwrap();
    assert!(local.root.open_at(b"etc/passwd", OFlags::RDONLY, Mode::empty()).is_err());
    assert!(local.root.open_at(b"../state/state", OFlags::RDONLY, Mode::empty()).is_err());
    assert!(local.root.open_at(b"/etc/passwd", OFlags::RDONLY, Mode::empty()).is_err());
}
