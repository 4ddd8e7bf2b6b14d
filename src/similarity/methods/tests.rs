//! The shared index, with a method whose keys tolerate a difference, against looking at everything.
//!
//! Seen to fail with: the cap off; parameters not compared.

use super::laws::{laws, noise};
use super::*;
use crate::db::{Db, MemDb, SledDb, Table};
use crate::id::RecipeId;
use crate::similarity::SimilarityError;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Files are alike if their lengths, or the numbers of their zero bytes, are nearly the same.
#[derive(Clone, Copy, Debug)]
struct Lengths {
    tolerance: u64,
}

struct LengthsBuilder([u64; 2]);

impl Builder for LengthsBuilder {
    type Sketch = [u64; 2];

    fn add(&mut self, bytes: &[u8]) {
        self.0[0] += bytes.len() as u64;
        self.0[1] += bytes.iter().filter(|byte| **byte == 0).count() as u64;
    }

    fn finish(self) -> [u64; 2] {
        self.0
    }
}

impl Method for Lengths {
    type Sketch = [u64; 2];
    type Builder = LengthsBuilder;

    const NAME: &'static str = "lengths";

    fn parameters(&self) -> String {
        format!("within {}", self.tolerance)
    }

    fn builder(&self, _name: Option<&OsStr>) -> LengthsBuilder {
        LengthsBuilder([0, 0])
    }

    fn encode(&self, sketch: &[u64; 2]) -> Vec<u8> {
        sketch.iter().flat_map(|number| number.to_be_bytes()).collect()
    }

    fn decode(&self, bytes: &[u8]) -> Result<[u64; 2], Damaged> {
        let (numbers, rest) = bytes.as_chunks::<8>();
        match (numbers, rest) {
            ([a, b], []) => Ok([u64::from_be_bytes(*a), u64::from_be_bytes(*b)]),
            _ => Err(Damaged { method: Self::NAME, expected: "16 bytes" }),
        }
    }

    fn keys(&self, sketch: &[u64; 2]) -> Vec<u64> {
        let mut keys = vec![sketch[0], u64::MAX - sketch[1]];
        keys.sort_unstable();
        keys.dedup();
        keys
    }

    fn look_up(&self, sketch: &[u64; 2]) -> Vec<RangeInclusive<u64>> {
        let around = |key: u64| key.saturating_sub(self.tolerance)..=key.saturating_add(self.tolerance);
        self.keys(sketch).into_iter().map(around).collect()
    }

    fn compare(&self, a: &[u64; 2], b: &[u64; 2]) -> Likeness {
        let near = |at: usize| a[at].abs_diff(b[at]) <= self.tolerance;
        let distance = (near(0) || near(1)).then(|| (a[0].abs_diff(b[0]) + a[1].abs_diff(b[1])) as f64);
        Likeness { distance, ..Likeness::default() }
    }
}

laws!(lengths, Lengths { tolerance: 100 });

fn open(db: &Arc<dyn Db>, tolerance: u64, buffer_bytes: usize) -> super::index::Index {
    let options = IndexOptions { buffer_bytes, ..IndexOptions::default() };
    Index::open(db.clone(), Arc::new(Lengths { tolerance }), options).unwrap()
}

fn id(at: u64) -> RecipeId {
    RecipeId::of(&at.to_le_bytes())
}

type Model = BTreeMap<RecipeId, (u32, [u64; 2])>;

fn found_by_looking(model: &Model, method: &Lengths, query: &[u64; 2]) -> Vec<(RecipeId, Likeness)> {
    let all = model.iter().map(|(id, (_, sketch))| (*id, method.compare(query, sketch)));
    let mut found: Vec<_> = all.filter(|(_, likeness)| likeness.score() > 0.0).collect();
    found.sort_by(|a, b| b.1.score().total_cmp(&a.1.score()).then(a.0.cmp(&b.0)));
    found
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// Adding, forgetting, asking and opening again, with a buffer for a few contents and for all.
    #[test]
    fn answers_as_looking_at_everything(
        steps in prop::collection::vec((0u8..10, 0u64..40, 1000u64..1400, 0u64..200), 1..80), tolerance in 0u64..20, small: bool
    ) {
        let db: Arc<dyn Db> = Arc::new(MemDb::new());
        let method = Lengths { tolerance };
        let buffer = if small { 200 } else { 1 << 20 };
        let mut index = open(&db, tolerance, buffer);
        let (mut model, mut next) = (Model::new(), 0);
        for (step, which, len, zeros) in steps {
            let (which, sketch) = (id(which), [len, zeros]);
            match step {
                0..6 => {
                    index.add(which, method.encode(&sketch)).unwrap();
                    model.entry(which).or_insert_with(|| { next += 1; (next, sketch) });
                }
                6 => {
                    let gone = [which, id(len % 40), which];
                    index.forget_all(&gone).unwrap();
                    model.retain(|id, _| !gone.contains(id));
                }
                7 => {
                    index.flush().unwrap();
                    index = open(&db, tolerance, buffer);
                }
                _ => {
                    let found = index.query(&method.encode(&sketch), 0.0, usize::MAX).unwrap();
                    let found: Vec<_> = found.into_iter().map(|found| (found.id, found.likeness)).collect();
                    prop_assert_eq!(found, found_by_looking(&model, &method, &sketch));
                }
            }
            prop_assert_eq!(index.has(&which).unwrap(), model.contains_key(&which));
            let known = model.get(&which).map(|(_, sketch)| method.encode(sketch));
            prop_assert_eq!(index.sketch(&which).unwrap(), known);
            prop_assert_eq!(index.stats().contents, model.len() as u64);
        }
        let mut asked: Vec<_> = (0..50).map(id).collect();
        asked.sort_unstable();
        let (mut missing, mut none) = (Vec::new(), asked.clone());
        index.each_missing(&asked, &mut |at| missing.push(asked[at])).unwrap();
        none.retain(|id| !model.contains_key(id));
        prop_assert_eq!(missing, none);
        let mut pairs = Vec::new();
        index.pairs(0.1, &mut |pair| { pairs.push((pair.a, pair.b)); Ok(true) }).unwrap();
        let mut by_number: Vec<_> = model.iter().map(|(id, (number, sketch))| (*number, *id, *sketch)).collect();
        by_number.sort_unstable();
        let mut expected = Vec::new();
        for (at, (_, a, of_a)) in by_number.iter().enumerate() {
            let alike = by_number[at + 1..].iter().filter(|(_, _, of_b)| method.compare(of_a, of_b).score() >= 0.1);
            expected.extend(alike.map(|(_, b, _)| (*a, *b)));
        }
        prop_assert_eq!(pairs, expected);
        let (mut keys, mut last) = (0, None);
        index.keys(&mut |key, contents| {
            assert!(last < Some(key) && contents.is_sorted());
            last = Some(key);
            keys += contents.len();
            true
        }).unwrap();
        prop_assert_eq!(keys, by_number.len() * 2);
        prop_assert_eq!(index.stats().postings, keys as u64);
    }
}

#[test]
fn methods_share_a_database_and_do_not_meet() {
    let dir = tempfile::tempdir().unwrap();
    let db: Arc<dyn Db> = Arc::new(SledDb::open(&dir.path().join("index"), 4 << 20).unwrap());
    let sif = sif::Sif::default();
    let by_sif = Index::open(db.clone(), Arc::new(sif.clone()), IndexOptions::default()).unwrap();
    let by_length = open(&db, 5, 1 << 20);
    for seed in 0..5 {
        let bytes = noise(30_000 + 1000 * seed as usize, seed);
        by_sif.add(id(seed), sif.encode(&sketch_of(&sif, None, &bytes))).unwrap();
        by_length.add(id(seed), Lengths { tolerance: 5 }.encode(&[bytes.len() as u64, 0])).unwrap();
    }
    let query = noise(32_000, 2);
    let found = by_sif.query(&sif.encode(&sketch_of(&sif, None, &query)), 0.5, 9).unwrap();
    assert_eq!(found.iter().map(|found| found.id).collect::<Vec<_>>(), [id(2)]);
    Index::remove(&*db, "sif").unwrap();
    Index::remove(&*db, "never-made").unwrap();
    let sif_anew = Index::open(db.clone(), Arc::new(sif), IndexOptions::default()).unwrap();
    assert_eq!(sif_anew.stats(), IndexStats::default());
    sif_anew.keys(&mut |key, _| panic!("{key} is left")).unwrap();
    assert_eq!(by_length.query(&[0; 16], 0.0, 9).unwrap().len(), 5, "no zeros in any");
    Index::remove(&*db, "lengths").unwrap();
    for table in [Table::MethodKeys, Table::MethodSketches, Table::MethodNumbered] {
        let mut bytes = 0;
        db.scan(table, &[], &mut |_, value| {
            bytes += value.len();
            true
        })
        .unwrap();
        assert_eq!(bytes, 0, "{table:?}");
    }
}

#[test]
fn an_index_answers_only_for_its_parameters() {
    let db: Arc<dyn Db> = Arc::new(MemDb::new());
    drop(open(&db, 5, 1 << 20));
    let other = Index::open(db.clone(), Arc::new(Lengths { tolerance: 6 }), IndexOptions::default());
    let error = other.err().expect("other parameters");
    assert!(
        matches!(&error, SimilarityError::Parameters { has, wanted, .. } if has == "within 5" && wanted == "within 6")
    );
    assert!(error.to_string().contains("rebuild"), "{error}");
    db.put(Table::Meta, b"method.lengths", b"\x09").unwrap();
    let other = Index::open(db, Arc::new(Lengths { tolerance: 6 }), IndexOptions::default());
    assert!(matches!(other.err(), Some(SimilarityError::Format)));
}

#[test]
fn a_damaged_sketch_is_an_error_that_names_the_method() {
    let db: Arc<dyn Db> = Arc::new(MemDb::new());
    let index = open(&db, 5, 1 << 20);
    assert!(matches!(index.add(id(1), vec![1, 2]), Err(SimilarityError::Sketch(_))));
    index.add(id(1), vec![0; 16]).unwrap();
    index.flush().unwrap();
    let mut batch = crate::db::Batch::new();
    db.scan(Table::MethodSketches, &[], &mut |key, value| {
        batch.put(Table::MethodSketches, key, value[..20].to_vec());
        true
    })
    .unwrap();
    db.apply(batch).unwrap();
    let error = index.query(&[0; 16], 0.0, 9).unwrap_err();
    assert!(error.to_string().contains("method lengths"), "{error}");
}

#[test]
fn a_key_beyond_the_cap_is_not_followed() {
    let options = IndexOptions { frequency_cap: 3, ..IndexOptions::default() };
    let index = Index::open(Arc::new(MemDb::new()), Arc::new(Lengths { tolerance: 0 }), options).unwrap();
    let sketch = |len: u64, zeros: u64| Lengths { tolerance: 0 }.encode(&[len, zeros]);
    for at in 0..4 {
        index.add(id(at), sketch(1000, at)).unwrap();
    }
    assert_eq!(index.query(&sketch(1000, 2), 0.0, 9).unwrap().len(), 1, "by the zeros alone");
    assert_eq!(index.sharing(&[1000], 0, usize::MAX).unwrap().len(), 4);
    assert_eq!(index.sharing(&[1000], 0, 3).unwrap(), []);
}
