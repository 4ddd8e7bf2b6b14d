//! Archives stored as what they inflate to: read as they were, smaller, lost only together with their group, and left
//! alone where zlib does not make them again.
//!
//! Seen to fail: without the look at the hash in `Group::chunk` (wrong bytes), without `read_back` in `regroup` (the
//! packs go that what is garbled was made from), and without deltas (size).

use super::super::gathered::{Gathered, With};
use super::super::group_table::Table;
use super::super::pack::{GROUPED, PackHeader, read_header};
use super::super::scan::{Item, Scanner};
use super::*;
use crate::env::Access;
use std::collections::BTreeSet;
use std::io::Write;

const OPTIONS: RegroupOptions =
    RegroupOptions { level: 3, group_bytes: 4096, archive_bytes: 256 << 10, solid: false };
const CHUNK_BYTES: usize = 3000;

fn open_at(disk: &SimDisk, db: &Arc<MemDb>) -> Result<Arc<Store>, StoreError> {
    let options = StoreOptions { pack_bytes_max: 60_000, prefetch_threads: 0, ..options() };
    let db: Arc<dyn Db> = Arc::clone(db) as _;
    Store::open_on(Arc::new(disk.clone()), Path::new(SIM_DIR), ID, db, options, &mut |_, _| {}).map(Arc::new)
}

fn text(seed: u64, len: usize) -> Vec<u8> {
    let mut x = seed | 1;
    let mut bytes = Vec::new();
    while bytes.len() < len {
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        write!(bytes, "<w:t>{:x}</w:t> ", x >> 40).unwrap();
    }
    bytes.truncate(len);
    bytes
}

/// A document of five parts, one of which is stored; a paragraph of two of them is that of its version.
fn document(version: u64) -> Vec<u8> {
    let mut writer = ::zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    for part in 0..5u64 {
        let options = ::zip::write::SimpleFileOptions::default()
            .last_modified_time(::zip::DateTime::default())
            .compression_level(Some([6, 6, 9, 1, 6][part as usize]))
            .compression_method(::zip::CompressionMethod::Deflated);
        let options = match part {
            4 => options.compression_level(None).compression_method(::zip::CompressionMethod::Stored),
            _ => options,
        };
        let mut content = text(part, 9000);
        if part == 0 || part == 2 {
            let at = 1000 + 70 * version as usize;
            content.splice(at..at, text(1000 + version, 200));
        }
        writer.start_file(format!("word/part{part}.xml"), options).unwrap();
        writer.write_all(&content).unwrap();
    }
    // As wheels have many.
    let options = ::zip::write::SimpleFileOptions::default().last_modified_time(::zip::DateTime::default());
    writer.start_file("word/__init__.py", options).unwrap();
    writer.finish().unwrap().into_inner()
}

fn put_file(store: &Arc<Store>, bytes: &[u8]) -> RecipeId {
    let mut writer = store.writer();
    let chunks = bytes.chunks(CHUNK_BYTES).map(|chunk| {
        let id = ChunkId::of(chunk);
        writer.put(id, chunk).unwrap();
        ChunkRef { id, len: chunk.len() as u32 }
    });
    let recipe = Recipe::new(chunks.collect());
    let id = writer.put_recipe(&recipe).unwrap();
    writer.flush().unwrap();
    id
}

fn put_documents(store: &Arc<Store>, versions: std::ops::Range<u64>) -> Vec<RecipeId> {
    versions.map(|version| put_file(store, &document(version))).collect()
}

/// The file if it can be read; never other bytes.
fn has_file(store: &Store, bytes: &[u8]) -> bool {
    bytes.chunks(CHUNK_BYTES).all(|chunk| match store.read(&ChunkId::of(chunk)) {
        Ok(read) => {
            assert_eq!(read[..], *chunk);
            true
        }
        Err(StoreError::Missing { .. } | StoreError::Damaged { .. }) => false,
        Err(e) => panic!("{e}"),
    })
}

fn lost(store: &Store, versions: std::ops::Range<u64>) -> Vec<u64> {
    versions.filter(|version| !has_file(store, &document(*version))).collect()
}

fn regroup_with(store: &Arc<Store>, options: &RegroupOptions) -> Result<Regrouped, StoreError> {
    let plan = store.plan_regroup(options, &mut |_, _| true)?.expect("nobody said no");
    store.regroup(&plan, options, &mut |_, _| true)
}

fn regroup(store: &Arc<Store>) -> Result<Regrouped, StoreError> {
    regroup_with(store, &OPTIONS)
}

fn collect(store: &Arc<Store>, kept: &[RecipeId]) -> GcDone {
    let collection = store.collect(&mut |_, _| true).unwrap().unwrap();
    kept.iter().for_each(|recipe| collection.keep(recipe).unwrap());
    let plan = collection.plan(&mut |_, _| true).unwrap().unwrap();
    collection.apply(&plan, &mut |_, _| true).unwrap()
}

/// Of each inflated group its pack and offset, and the chunks in it; of each pack its version.
type Groups = Vec<((u32, u64), Option<u64>, Vec<ChunkId>)>;

fn look(store: &Store) -> (Groups, BTreeSet<(u32, bool)>) {
    let (mut groups, mut versions) = (Vec::new(), BTreeSet::new());
    let packs = &store.reader.packs;
    for pack in packs.list().unwrap() {
        let file = packs.open(pack, Access::Read).unwrap();
        let len = file.len().unwrap();
        let mut scanner = Scanner::new(packs, pack, &*file, u64::from(PACK_HEADER_BYTES), len);
        let mut any = false;
        while let Some(item) = scanner.next() {
            let Item::Frame { offset, header } = item else { panic!("pack {pack}") };
            if header.is_inflated() {
                let table: &Table = scanner.table().unwrap();
                let root = table.root(offset).unwrap().map(|(at, _)| u64::from(at));
                let chunks = table.named().map(|(id, _)| id).collect();
                groups.push(((pack, u64::from(offset)), root, chunks));
                any = true;
            }
        }
        match read_header(&*file).unwrap() {
            PackHeader::Whole { version, .. } => versions.insert((version, any)),
            PackHeader::Damaged => panic!("pack {pack}"),
        };
    }
    (groups, versions)
}

#[test]
fn versions_of_a_document_share_and_read_as_before() {
    let (disk, db) = (SimDisk::new(), new_db());
    let store = open_at(&disk, &db).unwrap();
    let recipes = put_documents(&store, 0..12);
    let before = store.stats();
    let plan = store.plan_regroup(&OPTIONS, &mut |_, _| true).unwrap().unwrap();
    let predicted = store.predict_regroup(&plan, &OPTIONS, &mut |_, _| true).unwrap().unwrap();
    let plain = {
        let (disk, db) = (disk.copy(), new_db());
        let store = open_at(&disk, &db).unwrap();
        assert_eq!(
            regroup_with(&store, &RegroupOptions { archive_bytes: 0, ..OPTIONS }).unwrap().inflated,
            0
        );
        assert!(look(&store).0.is_empty());
        store.stats().stored_bytes
    };
    let done = store.regroup(&plan, &OPTIONS, &mut |_, _| true).unwrap();
    assert!(done.inflated > 12 && done.deltas > 8, "{done:?}");
    assert_eq!((predicted.inflated, predicted.deltas), (done.inflated, done.deltas));
    assert_eq!(predicted.after_bytes, done.after_bytes);
    let after = store.stats();
    assert!(after.stored_bytes * 2 < plain, "{} of {plain}", after.stored_bytes);
    assert_eq!(
        (after.chunks, after.recipes, after.unique_bytes),
        (before.chunks, before.recipes, before.unique_bytes)
    );
    let (groups, versions) = look(&store);
    assert!(groups.iter().any(|(_, root, _)| root.is_some()));
    assert!(versions.contains(&(GROUPED, true)) && !versions.contains(&(PLAIN, true)), "{versions:?}");
    assert_eq!(lost(&store, 0..12), [0; 0]);
    assert!(verify(&store).is_empty());
    // There is nothing left to do, and nothing is stored twice.
    assert!(store.plan_regroup(&OPTIONS, &mut |_, _| true).unwrap().unwrap().is_empty());
    assert_eq!(collect(&store, &recipes), GcDone::default());
    let mut writer = store.writer();
    assert!(document(3).chunks(CHUNK_BYTES).all(|chunk| !writer.put(ChunkId::of(chunk), chunk).unwrap()));
    drop((writer, store));
    for db in [db, new_db()] {
        let store = open_at(&disk, &db).unwrap();
        assert_eq!(lost(&store, 0..12), [0; 0]);
        assert!(verify(&store).is_empty());
        kill(store);
    }
    // What is needed of them stays when the rest is collected, also in other packs; and they can be stored again.
    let store = open_at(&disk, &new_db()).unwrap();
    collect(&store, &recipes[7..9]);
    for store in [store.clone(), open_at(&disk, &new_db()).unwrap()] {
        assert_eq!(lost(&store, 7..9), [0; 0]);
        assert!(verify(&store).is_empty());
        kill(store);
    }
    drop(store);
    let store = open_at(&disk, &new_db()).unwrap();
    let again = put_documents(&store, 0..4);
    regroup(&store).unwrap();
    assert_eq!(lost(&store, 0..4), [0; 0]);
    collect(&store, &again);
    assert_eq!(lost(&store, 0..4), [0; 0]);
    collect(&store, &[]);
    assert_eq!(store.stats().chunks, 0);
}

/// A later version of which most chunks are stored already: what is new is cut out of its streams.
#[test]
fn a_part_of_an_archive_is_inflated_with_the_streams_that_reach_into_it() {
    let (disk, db) = (SimDisk::new(), new_db());
    let store = open_at(&disk, &db).unwrap();
    put_documents(&store, 0..1);
    regroup(&store).unwrap();
    let mut other = document(0);
    let len = other.len();
    // The stored part is the last: another byte in it leaves all streams as they are. So does another name of a part.
    other[len - 4000] ^= 1;
    other[32] = b'W';
    put_file(&store, &other);
    let done = regroup(&store).unwrap();
    assert!(done.inflated > 0 && done.inflated <= 3, "{done:?}");
    assert!(has_file(&store, &other) && has_file(&store, &document(0)));
    assert!(verify(&store).is_empty());
}

#[test]
fn what_zlib_does_not_make_again_is_left_alone() {
    let (disk, db) = (SimDisk::new(), new_db());
    let store = open_at(&disk, &db).unwrap();
    // Streams that are cut in two by a flush, as no single call gives them.
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::new(6));
    encoder.write_all(&text(5, 40_000)).unwrap();
    encoder.flush().unwrap();
    encoder.write_all(&text(6, 40_000)).unwrap();
    let foreign = encoder.finish().unwrap();
    put_file(&store, &foreign);
    // One byte of a stream is another: it may inflate still, to something else.
    let mut damaged = document(1);
    damaged[3000] ^= 1;
    put_file(&store, &damaged);
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::new(9));
    encoder.write_all(&text(7, 300 << 10)).unwrap();
    let long = encoder.finish().unwrap();
    put_file(&store, &long);
    let done = regroup(&store).unwrap();
    assert!(has_file(&store, &foreign) && has_file(&store, &damaged) && has_file(&store, &long));
    assert!(verify(&store).is_empty());
    let (groups, _) = look(&store);
    let ids = |bytes: &[u8]| bytes.chunks(CHUNK_BYTES).map(ChunkId::of).collect::<BTreeSet<_>>();
    let inflated: BTreeSet<ChunkId> = groups.into_iter().flat_map(|(.., chunks)| chunks).collect();
    assert!(inflated.is_disjoint(&ids(&foreign)) && inflated.is_disjoint(&ids(&long)), "{done:?}");
    assert!(store.plan_regroup(&OPTIONS, &mut |_, _| true).unwrap().unwrap().is_empty());
}

/// Another deflater than the one that the group was made with: no wrong bytes, but an error.
#[test]
fn other_bytes_than_were_deflated_are_damage() {
    let (disk, db) = (SimDisk::new(), new_db());
    let store = open_at(&disk, &db).unwrap();
    let archive = document(0);
    put_file(&store, &archive);
    regroup(&store).unwrap();
    let (groups, _) = look(&store);
    let ((pack, offset), _, _) = groups[0];
    let file = store.reader.packs.file(pack).unwrap();
    let group = super::super::group::Group::read(
        &store.reader.packs,
        &*file,
        pack,
        offset as u32,
        &store.reader.dictionaries,
    );
    let group = group.unwrap_or_else(|reason| panic!("{reason}"));
    let (chunks, mut decoded) = group.parts();
    assert_eq!(decoded[16], 6, "the level of the first stream");
    decoded[16] = 1;
    let mut frames = Frames::default();
    frames.group(&Gathered::inflated(chunks.into_iter(), decoded), With::Nothing(1));
    store.append_moved(&mut frames).unwrap();
    drop((file, store));
    let store = open_at(&disk, &db).unwrap();
    assert!(!has_file(&store, &archive));
    let mut found = Vec::new();
    store.verify(true, &mut |_, _| {}, &mut |damage| found.push(damage)).unwrap();
    assert!(!found.is_empty());
    // What comes again is stored again.
    put_file(&store, &archive);
    assert!(has_file(&store, &archive));
}

#[test]
fn a_damaged_group_takes_its_pieces_along_and_can_be_healed() {
    for (inside, of_root) in [(58, true), (80, true), (900, true), (80, false), (150, false)] {
        let (disk, db) = (SimDisk::new(), new_db());
        let store = open_at(&disk, &db).unwrap();
        let recipes = put_documents(&store, 0..6);
        regroup(&store).unwrap();
        let (groups, _) = look(&store);
        let (delta_place, root, _) = groups.iter().find(|(_, root, _)| root.is_some()).unwrap();
        let place = if of_root { (delta_place.0, root.unwrap()) } else { *delta_place };
        let hit = |(at, root, _): &&((u32, u64), Option<u64>, Vec<ChunkId>)| {
            *at == place || (at.0 == place.0 && *root == Some(place.1))
        };
        let taken: BTreeSet<ChunkId> =
            groups.iter().filter(hit).flat_map(|(.., chunks)| chunks.clone()).collect();
        assert!(!taken.is_empty());
        drop(store);
        let path = Path::new(SIM_DIR).join("packs").join(format!("{:08x}.pack", place.0));
        let file = disk.open(&path, Access::Write).unwrap();
        let mut byte = [0];
        file.read_exact_at(&mut byte, place.1 + inside).unwrap();
        file.write_all_at(&[byte[0] ^ 0x10], place.1 + inside).unwrap();
        let store = open_at(&disk, &db).unwrap();
        let told: BTreeSet<ChunkId> = verify(&store).iter().filter_map(|damage| damage.chunk).collect();
        assert_eq!(told, taken, "{inside}");
        for version in 0..6 {
            let of_version = document(version);
            let whole = of_version.chunks(CHUNK_BYTES).all(|chunk| !taken.contains(&ChunkId::of(chunk)));
            assert_eq!(has_file(&store, &of_version), whole, "{inside}");
        }
        put_documents(&store, 0..6);
        assert_eq!(lost(&store, 0..6), [0; 0]);
        collect(&store, &recipes);
        drop(store);
        assert_eq!(lost(&open_at(&disk, &new_db()).unwrap(), 0..6), [0; 0]);
    }
}

/// At every step: what was durable before is there.
#[test]
fn power_cuts_while_archives_are_inflated_lose_nothing() {
    let (disk, db) = (SimDisk::new(), new_db());
    let store = open_at(&disk, &db).unwrap();
    put_documents(&store, 0..5);
    put(&store, 0..40);
    drop(store);
    let steps = {
        let disk = disk.copy();
        let before = disk.steps();
        regroup(&open_at(&disk, &Arc::new(db.copy())).unwrap()).unwrap();
        disk.steps() - before
    };
    let mut left_inflated = 0;
    for cut in 1..=steps {
        let (disk, db) = (disk.copy(), Arc::new(db.copy()));
        disk.cut_at(disk.steps() + cut);
        let _ = open_at(&disk, &db).and_then(|store| regroup(&store));
        let left = disk.crash(&mut Draw::new(cut));
        for db in [Arc::new(db.copy()), new_db()] {
            let store = open_at(&left, &db).unwrap();
            assert_eq!(lost(&store, 0..5), [0; 0], "cut at {cut} of {steps}");
            assert!((0..40).all(|n| holds(&store, n)), "cut at {cut} of {steps}");
            left_inflated += look(&store).0.len();
            // The next run goes on.
            regroup(&store).unwrap();
            assert_eq!(lost(&store, 0..5), [0; 0], "cut at {cut} of {steps}, and on");
        }
    }
    assert!(left_inflated > 0);
}

#[test]
fn stopping_anywhere_loses_nothing() {
    let (mut stop, mut stopped) = (0, 0);
    loop {
        let (disk, db) = (SimDisk::new(), new_db());
        let store = open_at(&disk, &db).unwrap();
        let recipes = put_documents(&store, 0..4);
        let plan = store.plan_regroup(&OPTIONS, &mut |_, _| true).unwrap().unwrap();
        let mut asked = 0;
        let done = store.regroup(&plan, &OPTIONS, &mut |_, _| {
            asked += 1;
            asked <= stop
        });
        assert_eq!(lost(&store, 0..4), [0; 0]);
        assert!(verify(&store).is_empty());
        if !done.unwrap().stopped {
            break;
        }
        stopped += 1;
        stop += 1;
        collect(&store, &recipes);
        regroup(&store).unwrap();
        assert_eq!(lost(&store, 0..4), [0; 0]);
    }
    assert!(stopped > 5, "{stopped}");
}

/// The disk garbles an inflated group just when it becomes durable.
#[test]
fn what_does_not_deflate_again_keeps_the_old_packs() {
    let (disk, db) = (SimDisk::new(), new_db());
    let store = open_at(&disk, &db).unwrap();
    put_documents(&store, 0..2);
    store.sync().unwrap();
    let old = store.reader.packs.list().unwrap();
    let garble = {
        let (disk, store) = (disk.clone(), store.clone());
        move || {
            for ((pack, offset), ..) in look(&store).0 {
                let file = disk.open(&store.reader.packs.path(pack), Access::Write).unwrap();
                let mut byte = [0];
                file.read_exact_at(&mut byte, offset + 200).unwrap();
                file.write_all_at(&[byte[0] ^ 4], offset + 200).unwrap();
            }
        }
    };
    // Once there are groups.
    fn at_each_sync(disk: &SimDisk, store: Arc<Store>, garble: impl FnOnce() + Send + 'static) {
        let again = disk.clone();
        disk.on_sync(move || match look(&store).0.is_empty() {
            true => at_each_sync(&again, store, garble),
            false => garble(),
        });
    }
    at_each_sync(&disk, store.clone(), garble);
    assert!(matches!(regroup(&store), Err(StoreError::Damaged { .. })));
    let now = store.reader.packs.list().unwrap();
    assert!(old.iter().all(|pack| now.contains(pack)), "{old:?}, {now:?}");
    drop(store);
    assert_eq!(lost(&open_at(&disk, &new_db()).unwrap(), 0..2), [0; 0]);
}
