//! Dictionaries: groups that need one are read, moved and checked with it, and one of its two copies is enough.
//!
//! Seen to fail: without the second place in `Dictionary::read` and in `dictionary::stands` (a copy is damaged); without
//! `Copier::need` (moved); without `check_dictionary` in the scanner (both are damaged, power cuts).

use super::super::dictionary::Copies;
use super::super::frame::Kind;
use super::super::scan::{Item, Scanner};
use super::*;
use crate::env::{Access, Disk};
use std::collections::BTreeSet;

const OPTIONS: RegroupOptions =
    RegroupOptions { level: 1, group_bytes: 4096, archive_bytes: 0, solid: false };
const CHUNKS: u64 = 1100;

/// Chunk number `n` of a text: words from one list, in no two alike.
fn words(n: u64) -> Vec<u8> {
    let mut draw = Draw::new(n + 1);
    let mut bytes = Vec::new();
    while bytes.len() < 1200 {
        let word = draw.below(500);
        bytes.extend_from_slice(blake3::hash(&word.to_le_bytes()).to_hex()[..12].as_bytes());
    }
    bytes
}

fn open_at(disk: &SimDisk, db: &Arc<MemDb>, pack_bytes_max: u32) -> Result<Arc<Store>, StoreError> {
    let db: Arc<dyn Db> = Arc::clone(db) as _;
    let options = StoreOptions { pack_bytes_max, ..options() };
    Store::open_on(Arc::new(disk.clone()), Path::new("/store"), ID, db, options, &mut |_, _| {}).map(Arc::new)
}

fn put_words(store: &Arc<Store>, numbers: impl IntoIterator<Item = u64>) -> RecipeId {
    let mut writer = store.writer();
    let mut chunks = Vec::new();
    for n in numbers {
        let bytes = words(n);
        let id = ChunkId::of(&bytes);
        writer.put(id, &bytes).unwrap();
        chunks.push(ChunkRef { id, len: bytes.len() as u32 });
    }
    let id = writer.put_recipe(&Recipe::new(chunks)).unwrap();
    writer.flush().unwrap();
    store.sync().unwrap();
    id
}

fn regroup(store: &Arc<Store>) -> Result<Regrouped, StoreError> {
    let plan = store.plan_regroup(&OPTIONS, &mut |_, _| true)?.expect("nobody said no");
    store.regroup(&plan, &OPTIONS, &mut |_, _| true)
}

fn has_words(store: &Store, n: u64) -> bool {
    let bytes = words(n);
    store.read(&ChunkId::of(&bytes)).is_ok_and(|read| read[..] == bytes[..])
}

fn lost(store: &Store) -> Vec<u64> {
    (0..CHUNKS).filter(|n| !has_words(store, *n)).collect()
}

/// Of each pack the places of dictionaries, and those that its groups name.
fn look(store: &Store) -> Vec<(u32, BTreeSet<u32>, BTreeSet<u32>)> {
    let packs = &store.reader.packs;
    let look_at = |pack: u32| {
        let file = packs.open(pack, Access::Read).unwrap();
        let end = file.len().unwrap();
        let mut scanner = Scanner::new(packs, pack, &*file, u64::from(PACK_HEADER_BYTES), end);
        let (mut stand, mut named) = (BTreeSet::new(), BTreeSet::new());
        while let Some(item) = scanner.next() {
            let Item::Frame { offset, header } = item else { continue };
            if header.kind == Kind::Dictionary as u8 {
                stand.insert(offset);
            }
            let copies: Option<Copies> = scanner.table().and_then(|table| table.dictionary(offset).unwrap());
            named.extend(copies.into_iter().flat_map(|copies| copies.at));
        }
        (pack, stand, named)
    };
    packs.list().unwrap().into_iter().map(look_at).collect()
}

/// A grouped store on a disk, and its recipe.
fn grouped(pack_bytes_max: u32) -> (SimDisk, Arc<MemDb>, RecipeId) {
    let (disk, db) = (SimDisk::new(), new_db());
    let store = open_at(&disk, &db, pack_bytes_max).unwrap();
    let recipe = put_words(&store, 0..CHUNKS);
    let done = regroup(&store).unwrap();
    assert_eq!(done.chunks, CHUNKS);
    assert!(verify(&store).is_empty());
    (disk, db, recipe)
}

fn damage_at(disk: &SimDisk, store: &Store, pack: u32, at: u32) {
    let file = disk.open(&store.reader.packs.path(pack), Access::Write).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, u64::from(at)).unwrap();
    file.write_all_at(&[byte[0] ^ 4], u64::from(at)).unwrap();
}

#[test]
fn groups_of_a_text_share_a_dictionary_that_stands_twice_in_each_pack() {
    let (disk, db) = (SimDisk::new(), new_db());
    // So small that several are needed.
    let store = open_at(&disk, &db, 200_000).unwrap();
    put_words(&store, 0..CHUNKS);
    let before = store.stats().stored_bytes;
    let plan = store.plan_regroup(&OPTIONS, &mut |_, _| true).unwrap().unwrap();
    let predicted = store.predict_regroup(&plan, &OPTIONS, &mut |_, _| true).unwrap().unwrap();
    let done = regroup(&store).unwrap();
    // Each pack has copies of its own.
    assert!(predicted.after_bytes <= done.after_bytes + 1);
    assert!(done.after_bytes * 10 < done.before_bytes * 7, "{done:?}");
    assert!(store.stats().stored_bytes < before);
    let packs = look(&store);
    assert!(packs.iter().filter(|(_, stand, _)| !stand.is_empty()).count() > 1, "{packs:?}");
    for (pack, stand, named) in packs {
        assert_eq!(stand, named, "{pack}");
        assert!(stand.len() == 2 || stand.is_empty(), "{pack}");
    }
    assert!(lost(&store).is_empty() && verify(&store).is_empty());
    assert_eq!(regroup(&store).unwrap(), Regrouped::default());
    drop(store);
    // The packs alone say all of it.
    let store = open_at(&disk, &new_db(), 200_000).unwrap();
    assert!(lost(&store).is_empty() && verify(&store).is_empty());
}

#[test]
fn one_copy_of_a_dictionary_is_enough() {
    let (disk, db, _) = grouped(4 << 20);
    let store = open_at(&disk, &db, 4 << 20).unwrap();
    let packs = look(&store);
    let (pack, stand, _) = packs.iter().find(|(_, stand, _)| !stand.is_empty()).unwrap();
    let places: Vec<u32> = stand.iter().copied().collect();
    drop(store);
    // In the header, and in the payload.
    for inside in [20, 600] {
        for broken in 0..2 {
            let disk = disk.copy();
            let store = open_at(&disk, &Arc::new(db.copy()), 4 << 20).unwrap();
            damage_at(&disk, &store, *pack, places[broken] + inside);
            assert_eq!(lost(&store), [0; 0]);
            let found = verify(&store);
            assert!(!found.is_empty() && found.iter().all(|damage| damage.chunk.is_none()), "{found:?}");
            damage_at(&disk, &store, *pack, places[1 - broken] + inside);
            drop(store);
            let store = open_at(&disk, &Arc::new(db.copy()), 4 << 20).unwrap();
            assert_eq!(lost(&store).len() as u64, CHUNKS);
            let named = verify(&store).iter().filter(|damage| damage.chunk.is_some()).count() as u64;
            assert_eq!(named, CHUNKS, "each is told");
            assert_eq!(regroup(&store).unwrap().packs_removed, 0);
        }
    }
}

#[test]
fn groups_that_move_take_their_dictionary_along() {
    let (disk, db) = (SimDisk::new(), new_db());
    let store = open_at(&disk, &db, 4 << 20).unwrap();
    let kept = put_words(&store, (0..CHUNKS).step_by(2));
    put_words(&store, (1..CHUNKS).step_by(2));
    regroup(&store).unwrap();
    let before = look(&store);
    let collection = store.collect(&mut |_, _| true).unwrap().unwrap();
    collection.keep(&kept).unwrap();
    let plan = collection.plan(&mut |_, _| true).unwrap().unwrap();
    let done = collection.apply(&plan, &mut |_, _| true).unwrap();
    drop(collection);
    assert!(done.packs_removed > 0, "{done:?}");
    let after = look(&store);
    assert_ne!(before, after);
    assert!(after.iter().all(|(_, stand, named)| stand == named), "{after:?}");
    for store in [store, open_at(&disk, &new_db(), 4 << 20).unwrap()] {
        assert!((0..CHUNKS).step_by(2).all(|n| has_words(&store, n)));
        assert!(verify(&store).is_empty());
        drop(store);
    }
}

/// At every step: what was durable before is there, whatever is left of dictionaries and groups.
#[test]
fn power_cuts_while_dictionaries_are_written_lose_nothing() {
    let (disk, db) = (SimDisk::new(), new_db());
    let store = open_at(&disk, &db, 150_000).unwrap();
    put_words(&store, 0..CHUNKS);
    drop(store);
    let steps = {
        let disk = disk.copy();
        let before = disk.steps();
        regroup(&open_at(&disk, &Arc::new(db.copy()), 150_000).unwrap()).unwrap();
        disk.steps() - before
    };
    let mut groups_left = 0;
    for cut in 1..=steps {
        let (disk, db) = (disk.copy(), Arc::new(db.copy()));
        disk.cut_at(disk.steps() + cut);
        let _ = open_at(&disk, &db, 150_000).and_then(|store| regroup(&store));
        let left = disk.crash(&mut Draw::new(cut));
        for db in [Arc::new(db.copy()), new_db()] {
            let store = open_at(&left, &db, 150_000).unwrap();
            assert_eq!(lost(&store), [0; 0], "cut at {cut} of {steps}");
            groups_left += look(&store).iter().filter(|(_, stand, _)| !stand.is_empty()).count();
            drop(store);
        }
    }
    assert!(groups_left > 0);
}
