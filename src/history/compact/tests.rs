use super::*;
use crate::backing::stub::Time;
use crate::db::{Db, MemDb};
use crate::history::event::Version;
use crate::history::{HistoryError, lineage};
use crate::id::{DocumentId, RecipeId, StoreId};
use crate::overlay::Meta;
use crate::store::{DocumentKind, Store, StoreOptions};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

const PATHS: [&str; 7] = ["a", "b", "c", "dir/a", "dir/b", "tmp", "other/a"];

struct World {
    dir: tempfile::TempDir,
    db: Arc<dyn Db>,
    log: Log,
    /// Batches in the order in which they were written.
    written: Vec<DocumentId>,
}

/// What the log says of all paths: the number and content of each version that is kept, and when it ended.
type Told = Vec<(&'static str, u64, u64, Option<i64>)>;

impl World {
    fn new() -> World {
        let dir = tempfile::tempdir().unwrap();
        let db: Arc<dyn Db> = Arc::new(MemDb::new());
        let log = open(dir.path(), &db, &|_| true);
        World { dir, db, log, written: Vec::new() }
    }

    fn add(&mut self, time: i64, what: What) {
        self.log.add(Event { time: Time { sec: time, nsec: 0 }, what });
    }

    fn end(&mut self) -> u64 {
        let end = self.log.write().unwrap();
        for number in 0..end {
            let batch = self.log.batch(number).unwrap().unwrap();
            let id = DocumentId::of(&batch.encode());
            if !self.written.contains(&id) {
                self.written.push(id);
            }
        }
        end
    }

    /// Compacts, with files at `there`; fails instead of the `fail_at`-th writing.
    fn compact(&mut self, there: &[&str], fail_at: usize) -> Result<bool> {
        let end = self.end();
        let (log, written, mut calls) = (&self.log, &mut self.written, 0);
        compact(
            log,
            end,
            &mut |path| Ok(there.iter().any(|name| Path::new(name) == path)),
            &mut |batches| {
                if calls == fail_at {
                    return Err(HistoryError::Interrupted);
                }
                calls += 1;
                written.extend(batches.iter().map(|batch| DocumentId::of(&batch.encode())));
                log.replace(batches)
            },
            &mut || true,
        )
    }

    fn events(&self) -> usize {
        let batches = (0..self.log.write().unwrap()).filter_map(|number| self.log.batch(number).unwrap());
        batches.map(|batch| batch.events.iter().filter(|event| event.what != What::Gone).count()).sum()
    }
}

fn open(dir: &Path, db: &Arc<dyn Db>, is_there: &dyn Fn(&DocumentId) -> bool) -> Log {
    let store = Store::open(dir, StoreId([7; 16]), db.clone(), StoreOptions::default(), &mut |_, _| {});
    let store = Arc::new(store.unwrap());
    let found = store.take_documents_found().into_iter();
    let found: Vec<_> =
        found.filter(|(kind, id)| *kind == DocumentKind::Events && is_there(id)).map(|(_, id)| id).collect();
    Log::open(store, db.clone(), "machine".to_owned(), &found, false).unwrap().0
}

fn told(log: &Log) -> Told {
    let mut told = Told::new();
    for path in PATHS {
        for listed in lineage::versions(log, Path::new(path), &[]).unwrap() {
            if listed.version.kept {
                let ended = log.after(&listed.version.path, listed.event).unwrap();
                told.push((path, listed.n, listed.version.size, ended.map(|row| row.time)));
            }
        }
    }
    told
}

fn version(path: &str, file: u64, content: u64, kept: bool) -> What {
    let (path, file) = (PathBuf::from(path), FileId(file));
    What::Version(match kept {
        true => Version {
            path,
            file,
            recipe: RecipeId([content as u8; 16]),
            size: content,
            meta: Meta::default(),
            kept,
            run: None,
        },
        false => Version::given_up(path, file),
    })
}

fn renamed(from: &str, to: &str, directory: bool) -> What {
    What::Renamed { from: from.into(), to: to.into(), directory, exchanged: false }
}

#[test]
fn of_a_file_written_again_and_again_the_numbers_stay() {
    let mut world = World::new();
    for i in 0..2_000 {
        world.add(i, version("a", 1, 0, false));
    }
    world.add(2_000, version("a", 1, 9, true));
    assert!(world.compact(&["a"], usize::MAX).unwrap());
    assert_eq!(
        world.events(),
        3,
        "the first, which may end another, the last, which counts all, and the one kept"
    );
    assert_eq!(told(&world.log), [("a", 2_001, 9, None)]);
    // Later all but the next is given up too.
    for (i, kept) in [(2_001, false), (2_002, false), (2_003, true)] {
        world.add(i, version("a", 1, 10, kept));
    }
    let numbers = |log: &Log| told(log).into_iter().map(|(_, n, ..)| n).collect::<Vec<_>>();
    assert_eq!(numbers(&world.log), [2_001, 2_004]);
    assert!(world.compact(&["a"], usize::MAX).unwrap());
    assert_eq!(numbers(&world.log), [2_001, 2_004], "one that is kept stands between");
    let writings = world.written.len();
    assert!(world.compact(&["a"], usize::MAX).unwrap());
    assert_eq!(world.written.len(), writings, "there is nothing left to do");
}

#[test]
fn nothing_is_left_of_what_came_and_went() {
    let mut world = World::new();
    for i in 0..300 {
        world.add(i, version("tmp", i as u64, 0, false));
        world.add(i, What::Linked { from: "tmp".into(), to: "b".into() });
        world.add(i, renamed("tmp", "c", false));
        world.add(i, What::Removed { path: "c".into(), directory: false });
        world.add(i, What::Removed { path: "b".into(), directory: false });
        world.add(i, version("other/a", 5_000, 0, false));
    }
    world.add(900, version("a", 9_000, 3, true));
    // A file is there, so it may get versions still; and below a directory that was renamed it is not known what is whose.
    world.compact(&["other/a"], usize::MAX).unwrap();
    assert_eq!(world.events(), 1 + 2);
    assert_eq!(told(&world.log), [("a", 1, 3, None)]);
    assert!(world.log.of_path(Path::new("tmp")).unwrap().is_empty(), "rows go too");
    assert!(world.log.of_file(FileId(7)).unwrap().is_empty());
    let again = open(world.dir.path(), &world.db, &|_| true);
    assert_eq!(told(&again), [("a", 1, 3, None)]);
    assert!(again.of_path(Path::new("tmp")).unwrap().is_empty());
}

#[test]
fn what_something_kept_came_from_stays() {
    let mut world = World::new();
    world.add(1, version("tmp", 1, 0, false));
    world.add(2, renamed("tmp", "a", false));
    world.add(3, version("a", 1, 7, true));
    world.add(4, version("dir/a", 2, 0, false));
    world.add(5, renamed("dir", "other", true));
    world.add(6, version("other/a", 2, 8, true));
    let before = told(&world.log);
    assert_eq!(before, [("a", 2, 7, None), ("other/a", 2, 8, None)]);
    world.compact(&[], usize::MAX).unwrap();
    assert_eq!((told(&world.log), world.events()), (before, 6));
}

/// Versions are found by their file too, where a rename was not seen: those under its other names are counted with them.
#[test]
fn of_a_file_with_several_names_no_run_is_made() {
    let mut world = World::new();
    for i in 0..5 {
        world.add(i, version("a", 1, 0, false));
        world.add(i + 100, version("b", 1, 0, false));
    }
    world.add(900, version("c", 1, 3, true));
    let last = |log: &Log| {
        let others: Vec<_> = log.of_file(FileId(1)).unwrap().into_iter().map(|row| row.event).collect();
        lineage::versions(log, Path::new("c"), &others).unwrap().pop().unwrap().n
    };
    assert_eq!(last(&world.log), 11);
    world.compact(&["a", "b", "c"], usize::MAX).unwrap();
    assert_eq!(last(&world.log), 11);
}

/// Whatever happened, and wherever it is cut: numbers, contents and ends stay, with the index and without.
#[test]
fn random_logs_say_the_same_when_it_is_cut_anywhere() {
    let (mut gone, mut cuts) = (0, 0);
    for seed in 1u64..=12 {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut below = |bound: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 11) % bound
        };
        // One and the same log, compacted with another cut each time.
        let (mut events, mut there) = (Vec::new(), BTreeSet::new());
        let (dirs, mut last) = (below(2) == 0, ("a", 0));
        for i in 0..1_500u64 {
            let (from, to) = (PATHS[below(7) as usize], PATHS[below(7) as usize]);
            events.push(match below(40) {
                0 if dirs => renamed("dir", "other", true),
                0..3 => renamed(from, to, false),
                3 => What::Linked { from: from.into(), to: to.into() },
                4..6 => What::Removed { path: from.into(), directory: false },
                n => {
                    // Mostly the same file again.
                    if n < 10 {
                        last = (from, below(3));
                    }
                    version(last.0, last.1, 1 + i, below(60) == 0 && seed % 3 > 0)
                }
            });
            if below(300) == 0 {
                there.insert(from);
            }
        }
        let there: Vec<&str> = there.into_iter().collect();
        let world = |fail_at: usize| {
            let mut world = World::new();
            for (i, what) in events.iter().enumerate() {
                world.add(i as i64, what.clone());
            }
            world.end();
            let before = (told(&world.log), world.written.len(), world.events());
            let done = world.compact(&there, fail_at);
            assert!(done.is_ok() || fail_at < usize::MAX);
            (world, before)
        };
        let (whole, (before, original, count)) = world(usize::MAX);
        assert_eq!(told(&whole.log), before, "seed {seed}");
        gone += count - whole.events();
        let fresh = || -> Arc<dyn Db> { Arc::new(MemDb::new()) };
        for documents in original..=whole.written.len() {
            let there: BTreeSet<_> = whole.written[..documents].iter().map(|id| id.0).collect();
            let cut = open(whole.dir.path(), &fresh(), &|id| there.contains(&id.0));
            assert_eq!(told(&cut), before, "seed {seed}, {documents} of {} batches", whole.written.len());
            cuts += 1;
        }
        for fail_at in 0..2 {
            let (cut, _) = world(fail_at);
            assert_eq!(told(&cut.log), before, "seed {seed}, cut at writing {fail_at}");
            let mut again = World { log: open(cut.dir.path(), &cut.db, &|_| true), ..cut };
            assert_eq!(told(&again.log), before, "seed {seed}, opened again after writing {fail_at}");
            again.compact(&there, usize::MAX).unwrap();
            assert_eq!((told(&again.log), again.events()), (before.clone(), whole.events()), "seed {seed}");
        }
    }
    assert!(gone > 2_000 && cuts > 60, "{gone} events gone, cut {cuts} times");
}
