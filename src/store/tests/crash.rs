//! Power cuts and collections of garbage against a model: commits, unlinks, collections, regroupings, rebuilds and
//! repairs on a simulated disk.
//!
//! A file of the model is a name with the numbers of its chunks. It exists once `store.sync` returned after its
//! chunks and its recipe were put, as a stub would. A power cut leaves of the packs what `env::sim` says; of
//! the index the state of any earlier moment, or nothing; of files unlinked since the tree was last synced any.
//!
//! Seen to fail with each of these switched off: the `store.sync()` of the commit below; `store.sync()` after
//! copying in `gc::rewrite`; `live.insert` in `Reader::known` (threads); `wait_for_older` in `Store::collect`
//! (threads); `tree.sync()` before `apply`; the second look in `retire_unless_wanted` (at
//! the last moment);
//! `begin_pack_after` in `Collection::apply`; `sync_names` before rows are forgotten; reading the newest pack
//! instead of its footer in `Loader::load`. The rewriting of uncovered frames in `open::take_over` is shown by
//! `a_failed_fsync_stops_writes_until_reopened`.

use super::*;
use std::collections::BTreeSet;

/// What the directory tree holds.
#[derive(Clone, Default)]
struct Tree {
    files: BTreeMap<u64, File>,
    /// Unlinked, but perhaps there again after a power cut.
    unsynced: Vec<(u64, File)>,
    /// Chunks whose bytes have rotted and are not stored again yet.
    rotten: BTreeSet<u64>,
    /// Whether some ever did: a bad frame stays where it is.
    rotted: bool,
}

#[derive(Clone, Debug, PartialEq)]
struct File {
    recipe: RecipeId,
    chunks: Vec<u64>,
}

impl Tree {
    fn unlink(&mut self, name: u64) {
        if let Some(file) = self.files.remove(&name) {
            self.unsynced.push((name, file));
        }
    }

    fn sync(&mut self) {
        self.unsynced.clear();
    }

    fn after_crash(&self, draw: &mut Draw) -> Tree {
        let mut files = self.files.clone();
        for (name, file) in &self.unsynced {
            if draw.one_in(2) {
                files.entry(*name).or_insert_with(|| file.clone());
            }
        }
        Tree { files, unsynced: Vec::new(), rotten: self.rotten.clone(), rotted: self.rotted }
    }

    fn is_whole(&self, store: &Store) -> Result<(), String> {
        for (name, file) in &self.files {
            let recipe = store.recipe(&file.recipe).map_err(|e| format!("file {name}: {e}"))?;
            let mut read = vec![0; recipe.size() as usize + 1];
            let len = match store.read_at(&recipe, 0, &mut read) {
                Err(_) if file.chunks.iter().any(|n| self.rotten.contains(n)) => continue,
                other => other.map_err(|e| format!("file {name}: {e}"))?,
            };
            let expected: Vec<u8> = file.chunks.iter().flat_map(|n| content(*n)).collect();
            if read[..len] != expected {
                return Err(format!("file {name}: other bytes"));
            }
        }
        Ok(())
    }
}

/// Puts the chunks of files and makes them durable, as a round of commits does.
fn commit(store: &Arc<Store>, wanted: &[(u64, Vec<u64>)]) -> Result<Vec<(u64, File)>, StoreError> {
    let mut writer = store.writer();
    let mut files = Vec::new();
    for (name, chunks) in wanted {
        let mut refs = Vec::new();
        for n in chunks {
            let bytes = content(*n);
            let id = ChunkId::of(&bytes);
            writer.put(id, &bytes)?;
            refs.push(ChunkRef { id, len: bytes.len() as u32 });
        }
        let recipe = writer.put_recipe(&Recipe::new(refs))?;
        files.push((*name, File { recipe, chunks: chunks.clone() }));
    }
    writer.flush()?;
    store.sync()?;
    Ok(files)
}

/// Some files of some chunks out of few, so that many are shared.
fn draw_files(draw: &mut Draw) -> Vec<(u64, Vec<u64>)> {
    let file = |draw: &mut Draw| {
        let (first, len) = (draw.below(150), 1 + draw.below(12));
        (draw.below(40), (first..first + len).collect())
    };
    let mut files: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    (0..1 + draw.below(4)).for_each(|_| files.extend([file(draw)]));
    files.into_iter().collect()
}

/// Lets a chunk of some file rot, then does what a repair does: it finds the damage, stores the bytes again from
/// elsewhere, makes them durable and reads them.
fn rot_and_repair(
    disk: &SimDisk,
    store: &Arc<Store>,
    tree: &mut Tree,
    draw: &mut Draw,
) -> Result<(), StoreError> {
    use crate::env::{Access, Disk};
    let chunks: Vec<u64> = tree.files.values().flat_map(|file| file.chunks.iter().copied()).collect();
    let Some(&n) = chunks.get(draw.below(chunks.len().max(1) as u64) as usize) else { return Ok(()) };
    let (pack, at) = offset_of(store, n);
    let failed = |e| StoreError::io("rot", Path::new(SIM_DIR), e);
    let path = store.reader.packs.path(pack);
    // A group takes all its chunks along, and those of its deltas.
    tree.rotten.extend(chunks.into_iter().filter(|m| *m == n || regroup::share_fate(store, n, *m)));
    tree.rotted = true;
    let file = disk.open(&path, Access::Write).map_err(failed)?;
    let mut byte = [0];
    file.read_exact_at(&mut byte, at + 60).map_err(failed)?;
    file.write_all_at(&[byte[0] ^ 1], at + 60).map_err(failed)?;
    file.sync_data().map_err(failed)?;
    repair(store, tree)
}

fn repair(store: &Arc<Store>, tree: &mut Tree) -> Result<(), StoreError> {
    store.verify(false, &mut |_, _| {}, &mut |_| {})?;
    let mut writer = store.writer();
    for n in &tree.rotten {
        writer.put(ChunkId::of(&content(*n)), &content(*n))?;
    }
    writer.flush()?;
    store.sync()?;
    tree.rotten.clear();
    Ok(())
}

fn collect(store: &Arc<Store>, tree: &mut Tree) -> Result<GcDone, StoreError> {
    let collection = store.collect(&mut |_, _| true)?.expect("nobody said no");
    for file in tree.files.values() {
        collection.keep(&file.recipe)?;
    }
    tree.sync();
    let plan = collection.plan(&mut |_, _| true)?.expect("nobody said no");
    collection.apply(&plan, &mut |_, _| true)
}

/// One history: what is drawn depends on the seed alone, not on where it is cut.
fn live_through(disk: &SimDisk, db: &Arc<MemDb>, tree: &mut Tree, seed: u64) -> Result<(), StoreError> {
    let mut draw = Draw::new(seed);
    let mut store = open_sim(disk, db)?;
    for _ in 0..14 {
        match draw.below(9) {
            8 => rot_and_repair(disk, &store, tree, &mut draw)?,
            0..4 => {
                for (name, file) in commit(&store, &draw_files(&mut draw))? {
                    tree.unlink(name);
                    tree.files.insert(name, file);
                }
            }
            4..6 => (0..4).for_each(|_| tree.unlink(draw.below(40))),
            6 if draw.one_in(2) => {
                regroup::regroup_as(&store, seed.is_multiple_of(2))?;
            }
            6 => {
                collect(&store, tree)?;
            }
            _ => match draw.below(3) {
                0 => {
                    drop(store);
                    store = open_sim(disk, db)?;
                }
                1 => {
                    drop(store);
                    db.clear(Table::Meta, &[]).unwrap();
                    store = open_sim(disk, db)?;
                }
                _ => store.persist()?,
            },
        }
    }
    collect(&store, tree)?;
    regroup::regroup_as(&store, seed.is_multiple_of(2)).map(drop)
}

fn steps_of(seed: u64) -> u64 {
    let disk = SimDisk::new();
    live_through(&disk, &new_db(), &mut Tree::default(), seed).unwrap();
    disk.steps()
}

fn cut_and_check(seed: u64, cut: u64) {
    let told = || format!("seed {seed}, cut at step {cut}");
    let (disk, db, mut tree) = (SimDisk::new(), new_db(), Tree::default());
    disk.cut_at(cut);
    assert!(live_through(&disk, &db, &mut tree, seed).is_err(), "{}", told());
    let mut draw = Draw::new(seed ^ cut << 20);
    for index in [db.copy(), MemDb::new()] {
        let lost = index.get(Table::Meta, b"store.position").unwrap().is_none();
        let left = disk.crash(&mut draw);
        let mut tree = tree.after_crash(&mut draw);
        let db = Arc::new(index);
        let store = open_sim(&left, &db).unwrap_or_else(|e| panic!("{}: {e}", told()));
        // Without an index it is not known which bytes were never promised.
        assert!(lost || tree.rotted || store.damage().is_empty(), "{}: {:?}", told(), store.damage());
        tree.is_whole(&store).unwrap_or_else(|e| panic!("{}: {e}", told()));
        let found = verify(&store);
        assert!(lost || tree.rotted || found.is_empty(), "{}: {found:?}", told());
        repair(&store, &mut tree).unwrap();
        // And life goes on.
        for (name, file) in commit(&store, &draw_files(&mut draw)).unwrap() {
            tree.unlink(name);
            tree.files.insert(name, file);
        }
        regroup::regroup_as(&store, seed.is_multiple_of(2)).unwrap();
        collect(&store, &mut tree).unwrap();
        tree.is_whole(&store).unwrap_or_else(|e| panic!("{}, afterwards: {e}", told()));
        drop(store);
        let store = open_sim(&left, &new_db()).unwrap();
        tree.is_whole(&store).unwrap_or_else(|e| panic!("{}, rebuilt: {e}", told()));
    }
}

#[test]
fn power_cuts_at_every_step_lose_nothing_that_was_durable() {
    for seed in 1..=12 {
        (1..=steps_of(seed)).for_each(|cut| cut_and_check(seed, cut));
    }
}

/// By hand, for hours: `DEDUPFS_SEED=1000 cargo test --release --lib power_cuts_of_many -- --ignored`.
#[test]
#[ignore = "takes minutes"]
fn power_cuts_of_many_histories() {
    let first = std::env::var("DEDUPFS_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1000);
    for seed in first..first + 400 {
        (1..=steps_of(seed)).for_each(|cut| cut_and_check(seed, cut));
    }
}

struct OnDrop<'a>(&'a std::sync::atomic::AtomicBool);

impl Drop for OnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Collections beside commits, unlinks and reads on threads of their own.
#[test]
fn collections_beside_commits_take_nothing_that_is_referred_to() {
    let (disk, db) = (SimDisk::new(), new_db());
    let store = open_sim(&disk, &db).unwrap();
    let tree = Mutex::new(Tree::default());
    let stop = std::sync::atomic::AtomicBool::new(false);
    let (mut done, mut grouped) = (GcDone::default(), 0);
    std::thread::scope(|scope| {
        for thread in 0..3u64 {
            let (store, tree, stop) = (&store, &tree, &stop);
            scope.spawn(move || {
                let mut draw = Draw::new(77 + thread);
                while !stop.load(Ordering::SeqCst) {
                    let pin = store.pin();
                    let files = commit(store, &draw_files(&mut draw)).unwrap();
                    if draw.one_in(3) {
                        std::thread::sleep(std::time::Duration::from_millis(draw.below(4)));
                    }
                    {
                        let mut tree = lock(tree);
                        for (name, file) in files {
                            tree.files.insert(name, file);
                        }
                        (0..3).for_each(|_| tree.unlink(draw.below(40)));
                        tree.sync();
                    }
                    drop(pin);
                }
            });
        }
        // Also when a check below fails: the others have to end for the test to end.
        let _ended = OnDrop(&stop);
        let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
        for round in 0.. {
            let enough = round >= 150 && done.packs_removed > 100 && done.forgotten > 500 && grouped > 100;
            if enough || std::time::Instant::now() > end {
                break;
            }
            let collection = store.collect(&mut |_, _| true).unwrap().unwrap();
            let files: BTreeSet<RecipeId> = lock(&tree).files.values().map(|file| file.recipe).collect();
            files.iter().for_each(|recipe| collection.keep(recipe).unwrap());
            let plan = collection.plan(&mut |_, _| true).unwrap().unwrap();
            let one = collection.apply(&plan, &mut |_, _| true).unwrap();
            done.packs_removed += one.packs_removed;
            done.forgotten += one.forgotten;
            drop(collection);
            if round % 4 == 0 {
                grouped += regroup::regroup_as(&store, round % 8 == 0).unwrap().chunks;
            }
            let files = lock(&tree).clone();
            let result = files.is_whole(&store);
            // What was unlinked since may be gone by now.
            if let Err(e) = result {
                let now = lock(&tree).clone();
                now.is_whole(&store).unwrap_or_else(|_| panic!("round {round}: {e}"));
            }
        }
    });
    assert!(done.packs_removed > 50 && done.forgotten > 500 && grouped > 100, "{done:?}, {grouped} grouped");
    lock(&tree).is_whole(&store).unwrap();
    assert!(verify(&store).is_empty());
    let before = store.stats();
    drop(store);
    let store = open_sim(&disk, &db).unwrap();
    assert_eq!(store.stats().chunks, before.chunks);
    lock(&tree).is_whole(&store).unwrap();
}

/// A commit finds a chunk stored between the collector's look at it and the end of its pack.
#[test]
fn what_is_looked_up_at_the_last_moment_is_kept() {
    let (disk, db) = (SimDisk::new(), new_db());
    let store = open_sim(&disk, &db).unwrap();
    let mut tree = Tree::default();
    tree.files.extend(commit(&store, &[(0, (0..10).collect()), (1, (10..20).collect())]).unwrap());
    let wanted = tree.files.remove(&1).unwrap();
    let kept = wanted.clone();
    let collection = store.collect(&mut |_, _| true).unwrap().unwrap();
    tree.files.values().for_each(|file| collection.keep(&file.recipe).unwrap());
    let plan = collection.plan(&mut |_, _| true).unwrap().unwrap();
    // The pack that grows is sealed first, with two syncs; the third is that of the copies.
    let (again, chunks) = (store.clone(), wanted.chunks.clone());
    let look_up = move || {
        let mut writer = again.writer();
        for n in chunks {
            let stored = !writer.put(ChunkId::of(&content(n)), &content(n)).unwrap();
            assert!(stored, "it is still there");
        }
        writer.put_recipe(&recipe_of(&wanted.chunks)).unwrap();
        writer.flush().unwrap();
    };
    let hook = disk.clone();
    disk.on_sync(move || {
        let inner = hook.clone();
        hook.on_sync(move || inner.on_sync(look_up));
    });
    let done = collection.apply(&plan, &mut |_, _| true).unwrap();
    assert_eq!(done.packs_removed, 1);
    drop(collection);
    tree.files.insert(1, kept);
    tree.is_whole(&store).unwrap();
    drop(store);
    tree.is_whole(&open_sim(&disk, &new_db()).unwrap()).unwrap();
}

fn recipe_of(chunks: &[u64]) -> Recipe {
    let one = |n: &u64| ChunkRef { id: ChunkId::of(&content(*n)), len: content(*n).len() as u32 };
    Recipe::new(chunks.iter().map(one).collect())
}

/// Seen to fail when a frame that the index does not know counts as not needed.
#[test]
fn what_the_index_has_lost_is_kept_all_the_same() {
    let (disk, db) = (SimDisk::new(), new_db());
    let store = open_sim(&disk, &db).unwrap();
    let mut tree = Tree::default();
    tree.files.extend(commit(&store, &[(0, (0..10).collect()), (1, (10..20).collect())]).unwrap());
    tree.unlink(1);
    let lost: Vec<Key> = (0..5).map(|n| Key::chunk(&ChunkId::of(&content(n)))).collect();
    store.reader.index.forget(&lost, |_| true).unwrap();
    assert!(!holds(&store, 3) && holds(&store, 7));
    assert_eq!(collect(&store, &mut tree).unwrap().packs_removed, 1);
    drop(store);
    tree.is_whole(&open_sim(&disk, &new_db()).unwrap()).unwrap();
}

#[test]
fn half_of_a_store_is_given_back_and_the_rest_is_counted_right() {
    let dir = tempfile::tempdir().unwrap();
    let db = new_db();
    let store = open(dir.path(), &db);
    let mut tree = Tree::default();
    for name in 0..40 {
        tree.files.extend(commit(&store, &[(name, (name * 20..name * 20 + 20).collect())]).unwrap());
    }
    let before = store.stats();
    (0..40).step_by(2).for_each(|name| tree.unlink(name));
    let plan = {
        let collection = store.collect(&mut |_, _| true).unwrap().unwrap();
        tree.files.values().for_each(|file| collection.keep(&file.recipe).unwrap());
        collection.plan(&mut |_, _| true).unwrap().unwrap()
    };
    let counted = |stats: StoreStats| StoreStats { cache_bytes: 0, ..stats };
    assert_eq!(counted(store.stats()), counted(before), "a plan changes nothing");
    let done = collect(&store, &mut tree).unwrap();
    let after = store.stats();
    assert_eq!(done.reclaimed_bytes, before.stored_bytes - after.stored_bytes);
    let off = done.reclaimed_bytes.abs_diff(plan.reclaim_bytes);
    // Footers are not in the plan, and these packs are small.
    assert!(off * 5 < done.reclaimed_bytes, "planned {} got {}", plan.reclaim_bytes, done.reclaimed_bytes);
    let on_disk: u64 = packs(dir.path()).iter().map(|path| fs::metadata(path).unwrap().len()).sum();
    assert_eq!(on_disk, after.stored_bytes);
    let all_but_little =
        |stats: StoreStats| (400..=412).contains(&stats.chunks) && (20..=21).contains(&stats.recipes);
    assert!(all_but_little(after), "{after:?}");
    tree.is_whole(&store).unwrap();
    assert!(verify(&store).is_empty());
    let again = collect(&store, &mut tree).unwrap();
    assert_eq!(again, GcDone::default(), "nothing is left to do");
    drop(store);
    for db in [db.clone(), new_db()] {
        let store = open(dir.path(), &db);
        assert!(all_but_little(store.stats()), "{:?}", store.stats());
        tree.is_whole(&store).unwrap();
    }
    // Everything: what remains is one blank pack, whose number is not given out again.
    let store = open(dir.path(), &db);
    let newest = packs(dir.path()).last().unwrap().clone();
    (0..40).for_each(|name| tree.unlink(name));
    collect(&store, &mut tree).unwrap();
    assert_eq!((store.stats().chunks, packs(dir.path()).len()), (0, 1));
    assert!(packs(dir.path())[0] > newest);
}

#[test]
fn damaged_packs_stay_and_healed_ones_go() {
    let dir = tempfile::tempdir().unwrap();
    let db = new_db();
    let store = open(dir.path(), &db);
    let mut tree = Tree::default();
    for name in 0..10 {
        tree.files.extend(commit(&store, &[(name, (name * 20..name * 20 + 20).collect())]).unwrap());
    }
    let (pack, at) = offset_of(&store, 5);
    flip(&packs(dir.path())[pack as usize], at + 60);
    (1..10).for_each(|name| tree.unlink(name));
    let done = collect(&store, &mut tree).unwrap();
    assert_eq!(done.packs_damaged, 1);
    assert!(!holds(&store, 5) && (0..5).all(|n| holds(&store, n)), "one bad chunk, and only it");
    assert!(packs(dir.path())[0].ends_with("00000000.pack"));
    put(&store, [5]);
    tree.is_whole(&store).unwrap();
    let done = collect(&store, &mut tree).unwrap();
    assert_eq!((done.packs_damaged, done.packs_removed > 0), (0, true));
    tree.is_whole(&store).unwrap();
    assert!(verify(&store).is_empty());
}
