//! The index against a naive model, and the estimates against exact comparison.

use super::*;
use crate::chunk::ChunkParams;
use crate::db::{Batch, Db, DbResult, MemDb, SledDb, Table, Value};
use crate::id::{ChunkId, RecipeId};
use crate::recipe::{ChunkRef, Recipe};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;

pub(crate) fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        (x >> 24) as u8
    };
    (0..len).map(|_| next()).collect()
}

fn chunks(bytes: &[u8]) -> Vec<&[u8]> {
    let mut rest = bytes;
    let mut chunks = Vec::new();
    for len in ChunkParams::default().cut(bytes, true) {
        let (chunk, tail) = rest.split_at(len as usize);
        chunks.push(chunk);
        rest = tail;
    }
    chunks
}

fn recipe_of(bytes: &[u8]) -> Recipe {
    let chunk = |chunk: &&[u8]| ChunkRef { id: ChunkId::of(chunk), len: chunk.len() as u32 };
    Recipe::new(chunks(bytes).iter().map(chunk).collect())
}

fn add(index: &Similarity, bytes: &[u8]) -> RecipeId {
    for chunk in chunks(bytes) {
        let id = ChunkId::of(chunk);
        if !index.knows_chunk(&id).unwrap() {
            index.add_chunk(id, Sketch::of_chunk(chunk)).unwrap();
        }
    }
    let recipe = recipe_of(bytes);
    index.add_content(recipe.id(), &recipe).unwrap();
    recipe.id()
}

fn sketch(bytes: &[u8]) -> QuerySketch {
    let mut sketch = QuerySketch::new();
    chunks(bytes).iter().for_each(|chunk| sketch.add_chunk(chunk));
    sketch
}

fn ask(index: &Similarity, bytes: &[u8], min: f64) -> Vec<Candidate> {
    index.query(&sketch(bytes), min, usize::MAX).unwrap().candidates
}

fn open(db: &Arc<MemDb>) -> Similarity {
    Similarity::open(db.clone(), SimilarityOptions::default()).unwrap()
}

#[test]
fn finds_what_it_should() {
    let index = open(&Arc::new(MemDb::new()));
    let (large, other, tiny) = (noise(300_000, 1), noise(200_000, 2), noise(40, 3));
    let (large_id, other_id) = (add(&index, &large), add(&index, &other));
    let (tiny_id, empty_id) = (add(&index, &tiny), add(&index, &[]));
    assert!(index.has_content(&empty_id).unwrap());
    assert_eq!(ask(&index, &[], 0.0), []);

    let itself = ask(&index, &large, 0.25);
    assert_eq!(itself.len(), 1);
    assert_eq!((itself[0].recipe, itself[0].size), (large_id, 300_000));
    assert_eq!(itself[0].containment, 1.0);
    assert!(itself[0].resemblance > 0.99);
    assert_eq!(itself[0].bytes_common, 300_000);

    let small_in_large = ask(&index, &large[100_000..120_000], 0.25);
    assert_eq!(small_in_large[0].recipe, large_id);
    assert!(small_in_large[0].containment > 0.8);
    assert!((0.04..0.1).contains(&small_in_large[0].contained_in));

    let both = [&other[..100_000], &large[..60_000]].concat();
    let found = ask(&index, &both, 0.15);
    let of = |id| found.iter().find(|c| c.recipe == id).unwrap();
    assert!((of(other_id).containment - 0.625).abs() < 0.1, "{found:?}");
    assert!((of(other_id).contained_in - 0.5).abs() < 0.1);
    assert!((of(large_id).contained_in - 0.2).abs() < 0.1);
    assert_eq!(ask(&index, &noise(50_000, 9), 0.01), []);

    let tiny_edited = [&tiny[..39], b"?"].concat();
    assert_eq!(ask(&index, &tiny_edited, 0.5)[0].recipe, tiny_id);
}

/// Markup, which is there over and over, is most of some documents, and few of their distinct grams.
#[test]
fn what_is_there_more_than_once_counts_as_often() {
    let index = open(&Arc::new(MemDb::new()));
    let (markup, frame) = (noise(3000, 1).repeat(12), noise(3000, 2));
    let of = |own: u64| [&markup[..], &noise(24_000, own), &frame].concat();
    add(&index, &of(10));
    let found = ask(&index, &of(11), 0.25);
    // 39,000 bytes of 63,000, but 6,000 of 30,000 distinct ones.
    assert!((found[0].containment - 0.62).abs() < 0.15, "{found:?}");
    // Zeros do not count, however many: 20,000 of 44,000.
    let zeros = vec![0; 100_000];
    let part = [&noise(20_000, 20)[..], &zeros, &noise(24_000, 21)].concat();
    add(&index, &part);
    let asked = [&noise(20_000, 20)[..], &zeros, &noise(24_000, 22)].concat();
    let found = ask(&index, &asked, 0.25);
    assert!((found[0].containment - 0.45).abs() < 0.12, "{found:?}");
}

#[test]
fn names_and_copies_cost_nothing() {
    let index = open(&Arc::new(MemDb::new()));
    let bytes = noise(100_000, 1);
    add(&index, &bytes);
    let stats = index.stats();
    add(&index, &bytes);
    index.flush().unwrap();
    add(&index, &bytes);
    assert_eq!(index.stats(), stats);
    assert_eq!(stats.contents, 1);
    assert_eq!(stats.chunks as usize, recipe_of(&bytes).chunks().len());
}

#[test]
fn a_missing_chunk_is_an_error() {
    let index = open(&Arc::new(MemDb::new()));
    let recipe = recipe_of(b"never sketched");
    let error = index.add_content(recipe.id(), &recipe).unwrap_err();
    assert!(matches!(error, SimilarityError::UnknownChunk(id) if id == recipe.chunks()[0].id));
    assert!(!index.has_content(&recipe.id()).unwrap());
}

#[test]
fn frequent_features_are_suppressed_and_counted() {
    let options = SimilarityOptions { frequency_cap: 5, ..SimilarityOptions::default() };
    let index = Similarity::open(Arc::new(MemDb::new()), options).unwrap();
    let template = noise(2000, 1);
    let pages: Vec<_> = (2..10).map(|seed| [&template[..], &noise(4000, seed)].concat()).collect();
    pages.iter().for_each(|page| {
        add(&index, page);
    });
    let answer = index.query(&sketch(&pages[0]), 0.1, 100).unwrap();
    assert_eq!(answer.candidates.len(), 1, "only itself: {answer:?}");
    assert!(answer.candidates[0].containment > 0.99);
    assert!(answer.suppressed_features > 5);
    index.flush().unwrap();
    assert_eq!(index.query(&sketch(&pages[0]), 0.1, 100).unwrap(), answer);
}

/// A query of a size that is thinned is found, and finds what it contains, by as many features as a smaller one has.
#[test]
fn a_very_large_query_is_thinned() {
    let index = open(&Arc::new(MemDb::new()));
    let parts: Vec<Vec<u8>> = (0..20).map(|seed| noise(1 << 20, 1000 + seed)).collect();
    let ids: Vec<RecipeId> = parts.iter().map(|part| add(&index, part)).collect();
    let mut query = QuerySketch::new();
    for i in 0..140 {
        let part = if i % 7 == 0 { parts[i / 7].clone() } else { noise(1 << 20, i as u64) };
        chunks(&part).iter().for_each(|chunk| query.add_chunk(chunk));
    }
    let features = query.features().len();
    assert!((1 << 17..1 << 19).contains(&features), "{features}");
    assert!(query.thinning() >= 2.0, "{}", query.thinning());
    let found = index.query(&query, 0.5, 100).unwrap().candidates;
    assert_eq!(found.len(), 20);
    for candidate in &found {
        assert!(ids.contains(&candidate.recipe));
        assert!(candidate.contained_in > 0.9, "{candidate:?}");
        assert!((0.5..2.0).contains(&(candidate.bytes_common as f64 / (1 << 20) as f64)), "{candidate:?}");
    }
}

/// Where little else is left, a sample of what is above the cap is followed, with a cap of its own.
#[test]
fn what_is_mostly_frequent_is_looked_for_all_the_same() {
    let options = SimilarityOptions { frequency_cap: 5, ..SimilarityOptions::default() };
    let index = Similarity::open(Arc::new(MemDb::new()), options).unwrap();
    let template = noise(4000, 1);
    let query = [&template[..], &noise(300, 999)].concat();
    let mut added = 0;
    for (contents, is_found) in [(5, true), (6, true), (40, true), (41, false)] {
        while added < contents {
            added += 1;
            add(&index, &[&template[..], &noise(2000, 100 + added)].concat());
        }
        let answer = index.query(&sketch(&query), 0.25, usize::MAX).unwrap();
        let expected = if is_found { contents as usize } else { 0 };
        assert_eq!(answer.candidates.len(), expected, "{contents}");
        assert_eq!(
            answer.suppressed_features > 0,
            contents > 5,
            "{contents}: {}",
            answer.suppressed_features
        );
    }
}

/// Of more contents with something in common than can be looked at, those that have most of the query are.
#[test]
fn of_too_many_contents_the_likeliest_are_looked_at() {
    let index = open(&Arc::new(MemDb::new()));
    let query = noise(3000, 1);
    for i in 0..4500 {
        let at = i % 3 * 400;
        add(&index, &[&query[at..at + 150], &noise(100, 10_000 + i as u64)].concat());
    }
    let near: Vec<_> =
        (0..5).map(|i| add(&index, &[&query[..1500], &noise(1500, 100 + i)].concat())).collect();
    let candidates = |limit| index.query(&sketch(&query), 0.25, limit).unwrap().candidates;
    assert!(candidates(usize::MAX).len() > 4096);
    let found = candidates(100);
    assert_eq!(found.len(), 100);
    assert!(near.iter().all(|near| found[..5].iter().any(|found| found.recipe == *near)));
}

/// Boilerplate is out of the estimates; frequent features and their passages are found from the index.
#[test]
fn boilerplate_does_not_count_and_can_be_learned() {
    let index = Similarity::open(Arc::new(MemDb::new()), SimilarityOptions::default()).unwrap();
    let template = noise(2000, 1);
    let pages: Vec<_> = (0..30).map(|seed| [&template[..], &noise(1500, 100 + seed)].concat()).collect();
    let ids: Vec<RecipeId> = pages.iter().map(|page| add(&index, page)).collect();
    assert_eq!(index.query(&sketch(&pages[0]), 0.25, 100).unwrap().candidates.len(), 30);
    let frequent = index.frequent(20, 100, 8).unwrap();
    assert!(frequent.iter().all(|one| one.contents == 30 && (2..=8).contains(&one.examples.len())));
    let one = &frequent[0];
    let files: Vec<&[u8]> =
        one.examples.iter().map(|id| &pages[ids.iter().position(|other| other == id).unwrap()][..]).collect();
    let (passage, count) = one.passage(&files, files.len()).unwrap();
    assert_eq!((&passage, count), (&template, files.len()));
    let boilerplate = Boilerplate::new([&passage[..]]);
    assert!(frequent.iter().all(|one| one.is_of(&boilerplate)));
    let answer = index.query_excluding(&sketch(&pages[0]), &boilerplate, 0.25, 100).unwrap();
    assert_eq!(answer.candidates.len(), 1, "only itself: {answer:?}");
    assert!(answer.boilerplate_features > 10 && answer.candidates[0].bytes_common < 2200, "{answer:?}");
}

#[test]
fn another_version_is_refused() {
    let db = Arc::new(MemDb::new());
    let index = open(&db);
    add(&index, &noise(100, 1));
    index.flush().unwrap();
    db.put(crate::db::Table::Meta, b"similarity", &[99, 1, 2]).unwrap();
    let error = Similarity::open(db.clone(), SimilarityOptions::default()).err().unwrap();
    assert!(matches!(error, SimilarityError::Format));
}

#[test]
fn clear_and_rebuild() {
    let db = Arc::new(MemDb::new());
    let index = open(&db);
    let bytes = noise(50_000, 1);
    add(&index, &bytes);
    index.flush().unwrap();
    index.clear().unwrap();
    assert_eq!(index.stats(), SimilarityStats::default());
    assert_eq!(ask(&index, &bytes, 0.1), []);
    add(&index, &bytes);
    assert_eq!(ask(&index, &bytes, 0.1).len(), 1);
}

#[test]
fn a_sweep_leaves_what_is_shared() {
    let db = Arc::new(MemDb::new());
    let index = open(&db);
    let shared = noise(100_000, 0);
    let files: Vec<_> = (1..9).map(|seed| [&shared[..], &noise(50_000, seed)].concat()).collect();
    let ids: Vec<_> = files.iter().map(|file| add(&index, file)).collect();
    index.flush().unwrap();
    // A chunk counts as settled, and may be swept, from the next merge on.
    let kept = add(&index, &noise(100, 77));
    index.flush().unwrap();
    let full = index.stats();
    ids[1..].iter().for_each(|id| index.remove_content(id).unwrap());
    assert_eq!(ask(&index, &files[1], 0.1).len(), 1);
    index.flush().unwrap();
    let swept = index.stats();
    assert_eq!(swept.contents, 2);
    assert!(swept.postings * 2 < full.postings, "{swept:?} of {full:?}");
    let index = open(&db);
    assert_eq!(index.stats(), swept);
    assert!(index.has_content(&kept).unwrap());
    let found = ask(&index, &files[0], 0.1);
    assert_eq!((found.len(), found[0].recipe, found[0].containment), (1, ids[0], 1.0));
    // What was swept can come back.
    add(&index, &files[3]);
    assert_eq!(ask(&index, &files[3], 0.9)[0].recipe, ids[3]);
}

#[test]
fn threads_add_while_others_ask() {
    let dir = tempfile::tempdir().unwrap();
    let db = Arc::new(SledDb::open(&dir.path().join("index"), 16 << 20).unwrap());
    let options = SimilarityOptions { buffer_bytes: 200_000, ..SimilarityOptions::default() };
    let index = Similarity::open(db, options).unwrap();
    let common = noise(40_000, 99);
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let (index, common) = (&index, &common);
            scope.spawn(move || {
                for i in 0..25 {
                    let bytes = [&common[..], &noise(30_000, 100 + thread * 25 + i)].concat();
                    let id = add(index, &bytes);
                    let found = ask(index, &bytes, 0.9);
                    assert_eq!((found[0].recipe, found[0].containment), (id, 1.0));
                }
            });
        }
    });
    assert_eq!(index.stats().contents, 100);
    assert_eq!(ask(&index, &common, 0.5).len(), 100);
    index.flush().unwrap();
    assert_eq!(ask(&index, &common, 0.5).len(), 100);
}

/// Versions of files come in turns. Seen to fail if chunks keep their numbers (35,171 and
/// 94,709; 20,587 and 27,280).
#[test]
fn what_is_alike_takes_little_room() {
    let db = Arc::new(MemDb::new());
    let index = open(&db);
    for version in 0..40 {
        for file in 0..20 {
            add(&index, &[noise(1800, file), noise(200, 1000 + 100 * file + version)].concat());
        }
    }
    index.flush().unwrap();
    let (features, filters) = (bytes_of(&*db, Table::Features), bytes_of(&*db, Table::Filters));
    assert!(features < 24_000 && filters < 32_000, "{features} {filters}, {:?}", index.stats());
}

/// While a buffer is merged its chunks get other numbers, and what came since says their contents under the older ones.
/// Seen to fail if only one of the two is changed.
#[test]
fn contents_of_chunks_that_are_renumbered_are_found() {
    let index = open(&Arc::new(MemDb::new()));
    let of = |i: u64| [noise(1800, i % 3), noise(200, 100 + i)].concat();
    let all: Vec<_> = (0..9).map(of).collect();
    for bytes in &all {
        index.add_chunk(ChunkId::of(bytes), Sketch::of_chunk(bytes)).unwrap();
    }
    let merging = {
        let mut state = index.write();
        let buffer = Arc::new(std::mem::take(&mut state.buffer));
        state.merging.insert(buffer).clone()
    };
    let ids: Vec<_> = all.iter().map(|bytes| add(&index, bytes)).collect();
    let before: Vec<_> = all.iter().map(|bytes| ask(&index, bytes, 0.25)).collect();
    drop(index.ordered(merging));
    for step in ["renumbered", "merged"] {
        for (i, bytes) in all.iter().enumerate() {
            let found = ask(&index, bytes, 0.25);
            assert_eq!((found.len(), found[0].recipe), (3, ids[i]), "{step}");
            assert_eq!(found, before[i], "{step}");
        }
        index.flush().unwrap();
    }
}

/// A database that counts the bytes of what is put into it.
struct Counting(MemDb, std::sync::atomic::AtomicUsize);

impl Db for Counting {
    fn get(&self, table: Table, key: &[u8]) -> DbResult<Option<Value>> {
        self.0.get(table, key)
    }

    fn at_or_below(&self, table: Table, key: &[u8]) -> DbResult<Option<(Vec<u8>, Value)>> {
        self.0.at_or_below(table, key)
    }

    fn scan(&self, table: Table, from: &[u8], visit: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> DbResult<()> {
        self.0.scan(table, from, visit)
    }

    fn apply(&self, batch: Batch) -> DbResult<()> {
        let bytes = batch.bytes();
        self.1.fetch_add(bytes, std::sync::atomic::Ordering::Relaxed);
        self.0.apply(batch)
    }

    fn flush(&self) -> DbResult<()> {
        self.0.flush()
    }

    fn bytes_on_disk(&self) -> u64 {
        0
    }
}

/// Rows are rewritten a few times, however many bulks come: seen to fail if each bulk is merged with all that is there.
#[test]
fn an_index_that_grows_costs_the_same() {
    let db = Arc::new(Counting(MemDb::new(), Default::default()));
    let options = SimilarityOptions { buffer_bytes: 4 << 20, ..SimilarityOptions::default() };
    let index = Similarity::open(db.clone(), options).unwrap();
    for n in 0..400 {
        add(&index, &noise(200_000, n));
    }
    index.flush().unwrap();
    let written = db.1.load(std::sync::atomic::Ordering::Relaxed);
    let kept: usize = Table::ALL.into_iter().map(|table| bytes_of(&*db, table)).sum();
    assert!(written < 3 * kept, "{written} bytes for {kept}");
}

fn bytes_of(db: &dyn Db, table: Table) -> usize {
    let mut bytes = 0;
    db.scan(table, &[], &mut |_, block| {
        bytes += block.len();
        true
    })
    .unwrap();
    bytes
}

/// Of a chunk of a KiB three dozen features are looked up, and as many as four times are known. Seen to fail without filters
/// (0.047), and with none kept.
#[test]
fn small_contents_are_estimated_by_filters() {
    let db = Arc::new(MemDb::new());
    let index = open(&db);
    let mut pairs = Vec::new();
    for seed in 0..60 {
        let whole = noise(600 + 40 * seed as usize, seed);
        let mut edited = noise(whole.len(), seed + 1000);
        for (i, piece) in whole.chunks(70).enumerate() {
            let is_kept = edited[i] % 10 < 4 + seed as u8 / 15;
            if is_kept {
                edited[i * 70..][..piece.len()].copy_from_slice(piece);
            }
        }
        let truth = exact::compare(&&edited[..], &&whole[..], 1 << 20).unwrap().a_bytes;
        pairs.push((add(&index, &whole), truth as f64 / whole.len() as f64, edited));
    }
    for is_merged in [false, true] {
        if is_merged {
            index.flush().unwrap();
        }
        let errors = pairs.iter().map(|(id, truth, edited)| {
            let found = ask(&index, edited, 0.05);
            assert_eq!(found[0].recipe, *id, "{truth}");
            (found[0].containment - truth).abs()
        });
        let mean = errors.sum::<f64>() / pairs.len() as f64;

        assert!(mean < 0.03, "{mean}, merged: {is_merged}");
    }
    // What goes takes its filter with it.
    let before = bytes_of(&*db, Table::Filters);
    index.flush().unwrap();
    pairs[1..].iter().for_each(|(id, ..)| index.remove_content(id).unwrap());
    add(&index, &noise(100_000, 7));
    index.flush().unwrap();
    let after = bytes_of(&*db, Table::Filters);
    assert!(after > 0 && after * 10 < before, "{after} bytes of {before}");
    index.clear().unwrap();
    assert_eq!(bytes_of(&*db, Table::Filters), 0);
}

fn add_bare(index: &Similarity, bytes: &[u8]) -> RecipeId {
    for chunk in chunks(bytes) {
        index.add_chunk(ChunkId::of(chunk), Sketch::bare(chunk.len())).unwrap();
    }
    let recipe = recipe_of(bytes);
    index.add_content(recipe.id(), &recipe).unwrap();
    recipe.id()
}

/// Retagged, concatenated, truncated. Seen to fail if features of a query are not looked for in bare chunks, and if contents do not
/// count what those would have.
#[test]
fn bare_chunks_are_found_and_estimated_by_their_ids() {
    let (db, original) = (Arc::new(MemDb::new()), noise(400_000, 1));
    let index = open(&db);
    let id = add_bare(&index, &original);
    for seed in 2..6 {
        add_bare(&index, &noise(200_000, seed));
    }
    let retagged = [&noise(3500, 10), &original[2000..]].concat();
    let concatenated = [&noise(300_000, 11), &original[..]].concat();
    // A part that has its grams, and more of it than its first chunk is another.
    let mixed = [&noise(50_000, 12)[..], &original[100_000..], &noise(50_000, 13)].concat();
    for is_merged in [false, true] {
        if is_merged {
            index.flush().unwrap();
        }
        for query in [&original, &retagged, &concatenated, &original[..250_000].to_vec(), &mixed] {
            let found = ask(&index, query, 0.1);
            assert_eq!((found.len(), found[0].recipe), (1, id), "{found:?}, merged: {is_merged}");
            let truth = exact::compare(&&query[..], &&original[..], 1 << 22).unwrap();
            let share = |bytes: u64, of: usize| bytes as f64 / of as f64;
            let off = |estimate: f64, truth: f64| (estimate - truth).abs() > 0.12;
            let [in_it, of_it] = [share(truth.a_bytes, query.len()), share(truth.b_bytes, original.len())];
            let Candidate { containment, contained_in, .. } = found[0];
            assert!(!off(containment, in_it) && !off(contained_in, of_it), "{found:?}: {in_it}, {of_it}");
        }
    }
    assert_eq!(index.stats().postings, 0);
    assert_eq!(bytes_of(&*db, Table::Features) + bytes_of(&*db, Table::Filters), 0);
    // One that has its grams, of chunks that are bare already, and one of them in another.
    add(&index, &original[..250_000]);
    let found = ask(&index, &original, 0.1);
    assert_eq!(found.len(), 2, "{found:?}");
    index.remove_content(&id).unwrap();
    assert_eq!(ask(&index, &retagged, 0.1).len(), 1);
}

#[derive(Clone, Debug)]
enum Step {
    Add(usize),
    Remove(usize),
    Flush,
    Reopen,
}

/// Files that share parts with each other.
fn library() -> Vec<Vec<u8>> {
    let parts: Vec<_> = (0..6).map(|seed| noise(2000 + seed as usize * 7000, seed)).collect();
    (0..12usize)
        .map(|i| [&parts[i % 6][..], &parts[(i / 2) % 6], &noise(i * 300, 50 + i as u64)].concat())
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// Against an index that is built afresh, in one go, from what should be in it.
    #[test]
    fn any_history_answers_as_a_fresh_index(steps in prop::collection::vec(prop_oneof![
        5 => (0usize..12).prop_map(Step::Add),
        3 => (0usize..12).prop_map(Step::Remove),
        1 => Just(Step::Flush),
        1 => Just(Step::Reopen),
    ], 1..40)) {
        let library = library();
        let ids: Vec<_> = library.iter().map(|bytes| recipe_of(bytes).id()).collect();
        let db = Arc::new(MemDb::new());
        let mut index = open(&db);
        let mut model = BTreeMap::new();
        for step in steps {
            match step {
                Step::Add(i) => { add(&index, &library[i]); model.insert(i, ()); }
                Step::Remove(i) => { index.remove_content(&ids[i]).unwrap(); model.remove(&i); }
                Step::Flush => index.flush().unwrap(),
                Step::Reopen => { index.flush().unwrap(); index = open(&db); }
            }
        }
        let fresh = open(&Arc::new(MemDb::new()));
        model.keys().for_each(|&i| { add(&fresh, &library[i]); });
        for round in 0..2 {
            prop_assert_eq!(index.stats().contents as usize, model.len());
            for (i, bytes) in library.iter().enumerate() {
                prop_assert_eq!(index.has_content(&ids[i]).unwrap(), model.contains_key(&i));
                prop_assert_eq!(ask(&index, bytes, 0.05), ask(&fresh, bytes, 0.05), "file {} round {}", i, round);
            }
            index.flush().unwrap();
        }
    }

    /// Estimates lie near the exact shares, on files with an edited half.
    #[test]
    fn estimates_are_near_the_truth(seed: u64, len in 20_000usize..200_000, share in 0.1f64..0.9) {
        let whole = noise(len, seed);
        let kept = (len as f64 * share) as usize;
        let edited = [&whole[..kept], &noise(len - kept, seed ^ 1)].concat();
        let index = open(&Arc::new(MemDb::new()));
        add(&index, &whole);
        let found = ask(&index, &edited, 0.05);
        let truth = exact::compare(&&edited[..], &&whole[..], 1 << 22).unwrap();
        let truth = truth.a_bytes as f64 / len as f64;
        let slack = 4.0 * (1.0 / (len as f64 / 128.0)).sqrt();
        prop_assert!((found[0].containment - truth).abs() < slack, "{} for {truth}", found[0].containment);
        prop_assert!((found[0].contained_in - truth).abs() < slack);
    }
}
