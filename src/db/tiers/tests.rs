//! Seen to fail with the mechanism switched off: the model test without the removal mark in `find`; the one for
//! strays without the deletion in `delete_strays`. Not yet tried: the one for scans, with garbage deleted at once.
use super::merging::{CLASS_ROWS, runs_due, runs_of_class};
use super::*;
use crate::db::{Batch, MemDb, Table, Value};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::ops::ControlFlow;

const LAYOUT: Layout = Layout { table: Table::Chunks, row_len: 18, key_len: 16 };
const REMOVED: u16 = u16::MAX;

fn key(n: u16) -> [u8; 16] {
    *blake3::hash(&n.to_be_bytes()).as_bytes().first_chunk().unwrap()
}

fn add(tiers: &Tiers, db: &dyn Db, rows: &BTreeMap<[u8; 16], u16>) {
    let rows: Vec<Vec<u8>> = rows.iter().map(|(k, v)| [&k[..], &v.to_be_bytes()].concat()).collect();
    tiers.add(db, rows.len() as u64, rows.iter().map(Vec::as_slice)).unwrap();
}

fn all(tiers: &Tiers, db: &dyn Db, prefix: &[u8]) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    tiers
        .scan(db, prefix, |row| {
            all.push(row.to_vec());
            ControlFlow::Continue(())
        })
        .unwrap();
    all
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// Against a plain map: bulks with removals, merges, look-ups, scans, reopening; with and without filters.
    #[test]
    fn behaves_as_a_map(
        rounds in prop::collection::vec(prop::collection::vec((0u16..4000, 0u16..4), 0..700), 1..14),
        filters in prop::sample::select(vec![0u64, 1 << 20]),
    ) {
        let db = MemDb::new();
        let mut tiers = Tiers::new(LAYOUT, Merging::Doubling, filters);
        let mut model = BTreeMap::new();
        for (n, changes) in rounds.iter().enumerate() {
            let bulk: BTreeMap<_, _> =
                changes.iter().map(|&(k, v)| (key(k), if v == 0 { REMOVED } else { v })).collect();
            add(&tiers, &db, &bulk);
            model.extend(bulk);
            match n % 4 {
                1 => tiers.merge_due(&db).unwrap(),
                3 => {
                    tiers = Tiers::new(LAYOUT, Merging::Doubling, filters);
                    tiers.load(&db).unwrap();
                }
                _ => {}
            }
        }
        let expected: BTreeMap<_, _> = model.into_iter().filter(|&(_, v)| v != REMOVED).collect();
        let rows: Vec<Vec<u8>> = expected.iter().map(|(k, v)| [&k[..], &v.to_be_bytes()].concat()).collect();
        for last in [false, true] {
            for n in (0..4000).step_by(7) {
                let found = tiers.find(&db, &key(n)).unwrap();
                let found = found.map(|row| u16::from_be_bytes([row[16], row[17]]));
                prop_assert_eq!(found, expected.get(&key(n)).copied());
                prop_assert_eq!(all(&tiers, &db, &key(n)).len(), usize::from(found.is_some()));
            }
            prop_assert_eq!(all(&tiers, &db, &[]), rows.clone());
            let part: Vec<_> = rows.iter().filter(|row| row[0] == 7).cloned().collect();
            prop_assert_eq!(all(&tiers, &db, &[7]), part);
            if !last {
                let mut seen = 0;
                tiers.merge_all(&db, &mut |_| seen += 1).unwrap();
                prop_assert_eq!(seen, expected.len());
                prop_assert!(tiers.snapshot().len() <= 1, "merged into one");
            }
        }
        let mut stray = 0;
        let listed = tiers.snapshot().first().map_or(0, |run| run.number);
        db.scan(Table::Chunks, b"f", &mut |key, _| { stray += usize::from(key.len() > 1 && key[1..5] != listed.to_be_bytes()); true }).unwrap();
        prop_assert_eq!(stray, 0, "nothing is left of merged runs");
    }
}

/// A run that a crash kept from being named, or from being deleted, is gone after opening, and its number unused.
#[test]
fn strays_are_deleted_on_open() {
    let db = MemDb::new();
    let tiers = Tiers::new(LAYOUT, Merging::Doubling, 1 << 20);
    add(&tiers, &db, &(0..50).map(|n| (key(n), 1)).collect());
    for part in [b'r', b'f'] {
        for i in 0..1500u32 {
            let rest = [&i.to_be_bytes()[..], &[0; 12]].concat();
            db.put(Table::Chunks, &run_key(part, 9, &rest), &[1; 18]).unwrap();
        }
    }
    let tiers = Tiers::new(LAYOUT, Merging::Doubling, 1 << 20);
    tiers.load(&db).unwrap();
    assert_eq!(tiers.next_run(&db, b'r', 2).unwrap(), None);
    assert_eq!(tiers.next_run(&db, b'f', 2).unwrap(), None);
    assert_eq!(tiers.next_number.load(Ordering::Relaxed), 10);
    assert_eq!(all(&tiers, &db, &[]).len(), 50);
}

/// A database that counts look-ups of blocks, and stops after some batches, as in a crash.
struct Watched<'a> {
    db: &'a MemDb,
    batches_left: AtomicU32,
    look_ups: AtomicU32,
}

impl<'a> Watched<'a> {
    fn new(db: &'a MemDb, batches: u32) -> Self {
        Watched { db, batches_left: AtomicU32::new(batches), look_ups: AtomicU32::new(0) }
    }
}

impl Db for Watched<'_> {
    fn get(&self, table: Table, key: &[u8]) -> DbResult<Option<Value>> {
        self.db.get(table, key)
    }

    fn at_or_below(&self, table: Table, key: &[u8]) -> DbResult<Option<(Vec<u8>, Value)>> {
        self.look_ups.fetch_add(1, Ordering::Relaxed);
        self.db.at_or_below(table, key)
    }

    fn scan(&self, table: Table, from: &[u8], visit: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> DbResult<()> {
        self.db.scan(table, from, visit)
    }

    fn apply(&self, batch: Batch) -> DbResult<()> {
        if self.batches_left.load(Ordering::Relaxed) == 0 {
            return Err(DbError::Full { path: std::path::PathBuf::new() });
        }
        self.batches_left.fetch_sub(1, Ordering::Relaxed);
        self.db.apply(batch)
    }

    fn flush(&self) -> DbResult<()> {
        self.db.flush()
    }

    fn bytes_on_disk(&self) -> u64 {
        self.db.bytes_on_disk()
    }
}

/// Seen to fail (an unreadable list of runs) with the rows removed in the order of their keys.
#[test]
fn a_table_that_was_being_cleared_is_whole_or_empty() {
    for batches in 0.. {
        let db = MemDb::new();
        let tiers = Tiers::new(LAYOUT, Merging::Doubling, 1 << 20);
        (0..4).for_each(|n| add(&tiers, &db, &(n * 8_000..(n + 1) * 8_000).map(|n| (key(n), n)).collect()));
        let done = tiers.clear(&Watched::new(&db, batches)).is_ok();
        let tiers: Tiers = Tiers::new(LAYOUT, Merging::Doubling, 1 << 20);
        tiers.load(&db).unwrap();
        let found = (0..32_000).step_by(37).filter(|n| tiers.find(&db, &key(*n)).unwrap().is_some()).count();
        assert!(found == 0 && batches > 0 || found == 865 && batches == 0, "{found} after {batches}");
        if done {
            assert!(batches > 4, "{batches}");
            break;
        }
    }
}

/// Rows that somebody is reading stay until he is done, though they were merged away.
#[test]
fn a_scan_sees_its_rows_while_they_are_merged() {
    let db = MemDb::new();
    let tiers = Tiers::new(LAYOUT, Merging::Doubling, 1 << 20);
    // More blocks a run than are read ahead.
    (0..4).for_each(|n| add(&tiers, &db, &(n * 16_000..(n + 1) * 16_000).map(|n| (key(n), n)).collect()));
    let mut seen = 0;
    tiers
        .scan(&db, &[], |_| {
            if seen == 10 {
                tiers.merge_due(&db).unwrap();
                assert_eq!(tiers.snapshot().len(), 1);
            }
            seen += 1;
            ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!(seen, 64_000);
}

/// A table of another form is an error, and usable after it is cleared.
#[test]
fn another_form_is_refused() {
    let db = MemDb::new();
    db.put(Table::Chunks, b"", &[1; 36]).unwrap();
    let tiers = Tiers::new(LAYOUT, Merging::Doubling, 0);
    assert!(matches!(tiers.load(&db), Err(DbError::Row { .. })));
    tiers.clear(&db).unwrap();
    add(&tiers, &db, &[(key(1), 1)].into());
    db.put(Table::Chunks, &run_key(b'r', 1, &key(0)), &[1; 17]).unwrap();
    let bad = (0..100).any(|n| tiers.find(&db, &key(n)).is_err());
    assert!(bad || tiers.find(&db, &key(1)).is_ok());
}

#[test]
fn runs_are_merged_when_the_newer_are_as_large() {
    for (rows, due) in [
        (&[1u64, 1, 1, 1][..], 4),
        (&[1, 1, 1, 4], 3),
        (&[1, 1, 1, 1, 4, 8, 17], 6),
        (&[5, 1, 1, 1, 9], 4),
        (&[1, 9, 1, 1, 1], 1),
        (&[], 0),
    ] {
        assert_eq!(runs_due(rows), due, "{rows:?}");
    }
}

/// Rows that are all key, and short keys with filters: the tables of similarity.
const SET: Layout = Layout { table: Table::Features, row_len: 4, key_len: 4 };
const SHORT: Layout = Layout { table: Table::Sketched, row_len: 6, key_len: 4 };

fn short(n: u16) -> [u8; 4] {
    *blake3::hash(&n.to_be_bytes()).as_bytes().first_chunk().unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// Against a set and a map: bulks, merges by class, look-ups of many prefixes, rows that go, reopening. Seen to fail if rows that go
    /// on in the next block are left out, if a filter is asked by another hash than it was filled by, and if the rows of an older
    /// run count.
    #[test]
    fn hashed_tables_behave_as_maps(
        rounds in prop::collection::vec(prop::collection::vec((0u16..6000, any::<u16>()), 0..2500), 1..12),
        factor in 2u64..5,
    ) {
        let db = MemDb::new();
        let open = || {
            let set = Tiers::<Plain>::new(SET, Merging::Classes(factor), 0);
            let map = Tiers::<Plain>::new(SHORT, Merging::Classes(factor), 1 << 20);
            set.load(&db).unwrap();
            map.load(&db).unwrap();
            (set, map)
        };
        let (mut set, mut map) = open();
        let mut model: BTreeMap<[u8; 4], u16> = BTreeMap::new();
        for (n, rows) in rounds.iter().enumerate() {
            let bulk: BTreeMap<_, _> = rows.iter().map(|&(k, v)| (short(k), v & 0x7fff)).collect();
            set.add(&db, bulk.len() as u64, bulk.keys()).unwrap();
            let rows = bulk.iter().map(|(k, v)| [&k[..], &v.to_be_bytes()].concat());
            map.add(&db, bulk.len() as u64, rows).unwrap();
            model.extend(bulk);
            set.merge_due(&db).unwrap();
            map.merge_due(&db).unwrap();
            prop_assert!(set.snapshot().len() < factor as usize && map.snapshot().len() < factor as usize);
            match n % 4 {
                2 => {
                    let stays = |row: &[u8]| row[0] % 8 != n as u8 % 8;
                    let before = model.len();
                    model.retain(|key, _| stays(key));
                    prop_assert_eq!(map.retain(&db, stays).unwrap(), (before - model.len()) as u64);
                    set.retain(&db, stays).unwrap();
                }
                3 => (set, map) = open(),
                _ => {}
            }
        }
        for n in 0..6000 {
            let found = map.find(&db, &short(n)).unwrap().map(|row| u16::from_be_bytes([row[4], row[5]]));
            prop_assert_eq!(found, model.get(&short(n)).copied());
        }
        let keys: Vec<_> = model.keys().copied().collect();
        for len in 1..=4 {
            let mut prefixes: Vec<_> = (0..300).map(|n| short(n)[..len].to_vec()).collect();
            prefixes.extend([vec![0; len], vec![255; len]]);
            prefixes.sort_unstable();
            let mut found = vec![Vec::new(); prefixes.len()];
            set.scan_each(&db, &prefixes, usize::MAX, |i, row| found[i].push(row.to_vec())).unwrap();
            let mut values = Vec::new();
            map.scan_each(&db, &prefixes, usize::MAX, |i, row| values.push((i, row.to_vec()))).unwrap();
            let mut expected = Vec::new();
            for (i, prefix) in prefixes.iter().enumerate() {
                let with: Vec<_> = keys.iter().filter(|key| key.starts_with(prefix)).collect();
                prop_assert!(found[i].iter().eq(with.iter().copied()), "{:?}", prefix);
                expected.extend(with.iter().map(|key| (i, [&key[..], &model[*key].to_be_bytes()].concat())));
            }
            prop_assert_eq!(values, expected);
        }
    }
}

#[test]
fn runs_of_one_class_are_merged() {
    let class = |n: u64| CLASS_ROWS << (2 * n);
    for (rows, due) in [
        (&[1u64, 2, 3, 4][..], 4),
        (&[class(1), 3], 2),
        (&[1, 1, class(1), 1], 2),
        (&[class(2), class(1), 1, class(2) + 5, class(3)], 4),
        (&[], 0),
    ] {
        assert_eq!(runs_of_class(rows, 4), due, "{rows:?}");
    }
}

/// Filters know the first five bytes of keys of nine: without that each run costs a look-up
/// (seen to fail: ten look-ups each).
#[test]
fn a_search_by_the_start_of_keys_asks_filters() {
    let layout = Layout { table: Table::Numbered, row_len: 9, key_len: 9 };
    let open = || Tiers::<Plain>::new(layout, Merging::Classes(16), 1 << 20).with_filter_key(5);
    let (db, mut tiers) = (MemDb::new(), open());
    let hash = |n: u32| *blake3::hash(&n.to_be_bytes()).as_bytes().first_chunk::<5>().unwrap();
    for run in 0..10 {
        let mut rows: Vec<Vec<u8>> =
            (run * 300..run * 300 + 300).map(|n| [&hash(n)[..], &n.to_be_bytes()].concat()).collect();
        rows.sort();
        tiers.add(&db, 300, rows.iter()).unwrap();
    }
    for _ in 0..2 {
        let watched = Watched::new(&db, 0);
        for n in 0..3000 {
            let mut found = Vec::new();
            tiers.scan_each(&watched, &[hash(n)], usize::MAX, |_, row| found.push(row.to_vec())).unwrap();
            assert_eq!(found, [[&hash(n)[..], &n.to_be_bytes()].concat()]);
        }
        let each = f64::from(watched.look_ups.load(Ordering::Relaxed)) / 3000.0;
        assert!(each < 2.0, "{each} look-ups");
        tiers = open();
        tiers.load(&db).unwrap();
    }
}
