//! Against a naive count of all pairs, and stars against what makes them stars.
//!
//! Seen to fail with: a file of pairs believed whatever frequency cap it was made with
//! (`what_too_many_have_is_left_out_of_the_sizes_too`), the checksum not looked at (`a_damaged_file_is_made_anew`), some
//! old pairs left out (`only_what_is_new_is_compared`), half of a range that does not fit left out
//! (`memory_changes_nothing`), a representative that does not cover what resembles it (`stars_are_no_chains`,
//! `stars_are_stars`, `an_index_is_compared`).

use super::facts::LEFT_OUT_SHARE;
use super::pairs::PairsWriter;
use super::*;
use crate::chunk::ChunkParams;
use crate::db::MemDb;
use crate::id::ChunkId;
use crate::id::RecipeId;
use crate::recipe::{ChunkRef, Recipe};
use crate::similarity::estimate::shares_of_bytes;
use crate::similarity::tests::noise;
use crate::similarity::{Similarity, SimilarityOptions, Sketch};
use proptest::prelude::*;
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tempfile::TempDir;

const PLENTY: usize = 64 << 20;

/// Contents of one chunk each: number, level, features.
#[derive(Clone, Debug, Default)]
struct Fake {
    contents: BTreeMap<u32, (u8, BTreeSet<u64>)>,
    salt: u8,
    read: Cell<u32>,
}

impl Input for Fake {
    fn contents(&self, visit: &mut dyn FnMut(Fact) -> bool) -> Result<()> {
        for (&number, (level, features)) in &self.contents {
            let counts = std::array::from_fn(|at| match at >= usize::from(*level) {
                true => features.len() as u32 >> (at - usize::from(*level)),
                false => 0,
            });
            let recipe = RecipeId([number as u8 ^ self.salt; 16]);
            visit(Fact { number, recipe, size: 100 * features.len() as u64, level: *level, counts });
        }
        Ok(())
    }

    fn contained(&self, visit: &mut dyn FnMut(u32, u32, u8) -> bool) -> Result<()> {
        self.contents.iter().all(|(&number, (level, _))| visit(number, number, *level));
        Ok(())
    }

    fn features(&self, visit: &mut dyn FnMut(u64, u32) -> bool) -> Result<()> {
        self.read.set(self.read.get() + 1);
        let mut rows: Vec<(u64, u32)> = Vec::new();
        for (&number, (_, features)) in &self.contents {
            rows.extend(features.iter().map(|&feature| (feature, number)));
        }
        rows.sort_unstable();
        rows.into_iter().all(|(feature, chunk)| visit(feature, chunk));
        Ok(())
    }
}

fn compare(input: &dyn Input, memory_bytes: usize, cap: u32, dir: &Path) -> Pairs {
    let options = PairOptions { memory_bytes, frequency_cap: cap, anew: false };
    pairs(input, &options, dir, &mut |_, _, _| true).unwrap()
}

fn all(pairs: &Pairs) -> Vec<Pair> {
    pairs.iter().map(Result::unwrap).collect()
}

/// Every pair by itself; shares as estimated from sets, without what more than `cap` contents have. Who has nearly nothing
/// else is compared by that with the first such content that has it.
fn naive(input: &Fake, cap: usize) -> Vec<(u32, u32, f64, f64)> {
    let mut frequency: BTreeMap<u64, usize> = BTreeMap::new();
    for (_, features) in input.contents.values() {
        features.iter().for_each(|feature| *frequency.entry(*feature).or_default() += 1);
    }
    let list: Vec<_> = input.contents.values().collect();
    let frequent =
        |features: &BTreeSet<u64>| features.iter().filter(|feature| frequency[feature] > cap).count();
    let gone: Vec<_> = list.iter().map(|(_, features)| frequent(features) as f64).collect();
    let left_out: Vec<_> =
        list.iter().zip(&gone).map(|((_, f), gone)| *gone >= LEFT_OUT_SHARE * f.len() as f64).collect();
    let mut first: BTreeMap<u64, usize> = BTreeMap::new();
    for (place, (_, features)) in list.iter().enumerate().filter(|(place, _)| left_out[*place]) {
        features.iter().for_each(|feature| _ = first.entry(*feature).or_insert(place));
    }
    let count = |i: usize, at: u8| {
        let (level, features) = list[i];
        let all = f64::from(features.len() as u32 >> at.saturating_sub(*level))
            * f64::from(1u32 << level.saturating_sub(at));
        let gone = if left_out[i] { 0.0 } else { gone[i] };
        (all - gone / f64::from(1u32 << (7 - level)) * f64::from(1u32 << (7 - at))).max(1.0)
    };
    let mut found = Vec::new();
    for a in 0..list.len() {
        for b in a + 1..list.len() {
            let (few, many) = if list[a].1.len() < list[b].1.len() { (a, b) } else { (b, a) };
            let counts = |f: &u64| frequency[f] <= cap || (left_out[b] && first.get(f) == Some(&a));
            let common = list[few].1.iter().filter(|f| counts(f) && list[many].1.contains(f)).count();
            let level = list[a].0.max(list[b].0);
            let share = |of| (common as f64 / count(of, level)).min(1.0);
            let (a_in_b, b_in_a) = shares_of_bytes(share(a), share(b));
            if common > 0 && a_in_b.max(b_in_a) >= SHARE_MIN {
                found.push((a as u32, b as u32, a_in_b, b_in_a));
            }
        }
    }
    found
}

fn contents(max: u32, features: u64) -> impl Strategy<Value = Fake> {
    let content = (2u8..8, prop::collection::btree_set(0..features, 1..60));
    prop::collection::btree_map(0..max, content, 2..80)
        .prop_map(|contents| Fake { contents, ..Fake::default() })
}

fn assert_as_naive(found: &Pairs, expected: &[(u32, u32, f64, f64)]) {
    let found = all(found);
    let places = |found: &[Pair]| found.iter().map(|pair| (pair.a, pair.b)).collect::<Vec<_>>();
    assert_eq!(places(&found), expected.iter().map(|&(a, b, ..)| (a, b)).collect::<Vec<_>>());
    for (pair, (.., a_in_b, b_in_a)) in found.iter().zip(expected) {
        assert!((pair.a_in_b - a_in_b).abs() < 1e-4 && (pair.b_in_a - b_in_a).abs() < 1e-4, "{pair:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn all_pairs_are_counted(input in contents(200, 300), cap in 2u32..30) {
        let dir = TempDir::new().unwrap();
        let found = compare(&input, PLENTY, cap, dir.path());
        assert_as_naive(&found, &naive(&input, cap as usize));
    }

    /// Reps are strangers, members are theirs, nobody is left alone; and memory changes nothing.
    #[test]
    fn stars_are_stars(edges in prop::collection::btree_map((0u32..60, 0u32..60), (0.0f64..1.0, 0.0f64..1.0), 0..200),
                       sizes in prop::collection::vec(1u64..1000, 60), min in 0.1f64..0.9) {
        let dir = TempDir::new().unwrap();
        let edges: Vec<_> = edges.into_iter().filter(|((a, b), _)| a < b).collect();
        let given: Vec<_> = edges.iter().map(|&((a, b), (a_in_b, b_in_a))| Pair { a, b, a_in_b, b_in_a }).collect();
        let pairs = made(&sizes, &given, dir.path());
        let stars = Stars::of(&pairs, min, None, PLENTY, &mut |_, _, _| true).unwrap();
        let few = Stars::of(&pairs, min, None, 0, &mut |_, _, _| true).unwrap();
        prop_assert_eq!(&stars.stars, &few.stars);
        let members = stars.members(&stars.stars);
        prop_assert_eq!(&members, &few.members(&few.stars));
        let linked: BTreeMap<_, _> = all(&pairs).into_iter()
            .filter(|pair| pair.a_in_b.max(pair.b_in_a) >= min)
            .flat_map(|pair| [((pair.a, pair.b), pair), ((pair.b, pair.a), pair)])
            .collect();
        let mut placed = BTreeSet::new();
        for (star, members) in stars.stars.iter().zip(&members) {
            prop_assert_eq!(star.members as usize, members.len());
            prop_assert!(!members.is_empty());
            for member in members {
                prop_assert!(linked.contains_key(&(member.content, star.representative)));
                prop_assert!(placed.insert(member.content));
                let best = stars.stars.iter()
                    .filter_map(|other| linked.get(&(member.content, other.representative)))
                    .map(Pair::resemblance).fold(0.0, f64::max);
                let own = linked[&(member.content, star.representative)].resemblance();
                prop_assert!((own - best).abs() < 1e-9, "{own} {best}");
            }
        }
        for star in &stars.stars {
            prop_assert!(!placed.contains(&star.representative));
            for other in &stars.stars {
                prop_assert!(!linked.contains_key(&(star.representative, other.representative)));
            }
        }
        for (a, _) in linked.keys() {
            let represents = stars.stars.iter().any(|star| star.representative == *a);
            // A representative all of whose others went to better ones is left out.
            let lost = linked.keys().filter(|(from, _)| from == a).all(|(_, to)| placed.contains(to));
            prop_assert!(placed.contains(a) || represents || lost, "{a}");
        }
    }
}

/// A file of given pairs.
fn made(sizes: &[u64], given: &[Pair], dir: &Path) -> Pairs {
    let mut writer = PairsWriter::create(dir, 1).unwrap();
    for (number, &size) in (0..).zip(sizes) {
        writer.content(&Content { number, recipe: RecipeId([0; 16]), size }).unwrap();
    }
    let mut sink = writer.pairs(None, 0).unwrap();
    given.iter().for_each(|pair| sink.put(*pair).unwrap());
    sink.finish().unwrap()
}

/// Families of contents that share most of their features, enough for many ranges and batches at the least memory.
fn families(from: u32, to: u32) -> Fake {
    families_of(97, from, to)
}

fn families_of(count: u32, from: u32, to: u32) -> Fake {
    let mut input = Fake::default();
    for number in from + 1..=to {
        let family = u64::from(number % count);
        let features = (0..60u64).map(|i| match (i + u64::from(number)) % 4 {
            0 => 1_000_000 + u64::from(number) * 100 + i,
            _ => family * 100 + i,
        });
        input.contents.insert(number, ((number % 3 + 5) as u8, features.collect()));
    }
    // The first has more in its row than fits in memory: it shares features with all.
    input.contents.insert(from, (2, (0..9700).collect()));
    input
}

/// With few relatives each, and with so many that what a range has does not fit.
#[test]
fn memory_changes_nothing() {
    for count in [97, 5] {
        let (dir, other) = (TempDir::new().unwrap(), TempDir::new().unwrap());
        let input = families_of(count, 0, 300);
        let few = compare(&input, 0, 500, dir.path());
        assert!(few.len() > 500, "{}", few.len());
        assert_eq!(all(&few), all(&compare(&input, PLENTY, 500, other.path())));
        assert_as_naive(&few, &naive(&input, 500));
        let left: Vec<_> =
            std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["pairs"], "no file of work is left");
    }
}

/// More versions of one file than a feature is followed for: each is compared with the first. What is half a template is
/// compared by its other half alone.
#[test]
fn versions_of_which_there_are_too_many_are_found() {
    let dir = TempDir::new().unwrap();
    let mut input = Fake::default();
    for number in 0..700u32 {
        let own = (0..3).map(|i| 1_000_000 + 10 * u64::from(number) + i);
        input.contents.insert(number, (5, (0..60).chain(own).collect()));
    }
    for number in 700..1400u32 {
        let own = (0..30).map(|i| 2_000_000 + 100 * u64::from(number) + i);
        input.contents.insert(number, (5, (100..130).chain(own).collect()));
    }
    for memory in [0, PLENTY] {
        let options = PairOptions { memory_bytes: memory, frequency_cap: 500, anew: true };
        let found = pairs(&input, &options, dir.path(), &mut |_, _, _| true).unwrap();
        assert_eq!(found.suppressed_features(), 90);
        assert_eq!(
            all(&found).iter().map(|pair| (pair.a, pair.b)).collect::<Vec<_>>(),
            (1..700).map(|b| (0, b)).collect::<Vec<_>>()
        );
        assert!(all(&found).iter().all(|pair| pair.a_in_b > 0.9));
        let stars = Stars::of(&found, 0.5, None, memory, &mut |_, _, _| true).unwrap();
        assert_eq!(stars.stars.iter().map(|star| star.members).collect::<Vec<_>>(), [699]);
    }
}

#[test]
fn what_was_compared_is_not_read_again() {
    let dir = TempDir::new().unwrap();
    let mut input = families(0, 50);
    let first = all(&compare(&input, PLENTY, 500, dir.path()));
    assert_eq!(input.read.get(), 1);
    assert_eq!(all(&compare(&input, PLENTY, 500, dir.path())), first);
    assert_eq!(input.read.get(), 1, "the pairs are still there");
    input.contents.remove(&3);
    assert_ne!(all(&compare(&input, PLENTY, 500, dir.path())), first);
    assert_eq!(input.read.get(), 2);
    assert_eq!(compare(&input, PLENTY, 400, dir.path()).reused(), 0, "another cap gives other pairs");
    assert_eq!(input.read.get(), 3);
}

#[test]
fn only_what_is_new_is_compared() {
    let (dir, other) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let mut input = families(0, 400);
    let before = compare(&input, PLENTY, 500, dir.path());
    assert_eq!(before.reused(), 0);
    input.contents.extend(families(401, 440).contents);
    (7..30).for_each(|number| drop(input.contents.remove(&number)));
    let now = compare(&input, PLENTY, 500, dir.path());
    assert_eq!(now.reused(), 401 - 23);
    assert_eq!(all(&now), all(&compare(&input, PLENTY, 500, other.path())));
    // Numbers that mean something else now: an index made anew.
    let anew = Fake { salt: 1, ..input };
    assert_eq!(compare(&anew, PLENTY, 500, dir.path()).reused(), 0);
}

#[test]
fn a_damaged_file_is_made_anew() {
    let dir = TempDir::new().unwrap();
    let input = families(0, 50);
    let first = all(&compare(&input, PLENTY, 500, dir.path()));
    let path = dir.path().join("pairs");
    let whole = std::fs::read(&path).unwrap();
    for at in [0, 10, 45, 60, 75, 83, 100, whole.len() - 1] {
        let mut damaged = whole.clone();
        damaged[at] ^= 0x10;
        std::fs::write(&path, damaged).unwrap();
        assert_eq!(all(&compare(&input, PLENTY, 500, dir.path())), first, "byte {at}");
        assert_eq!(std::fs::read(&path).unwrap(), whole);
    }
    for len in [0, 5, 84, whole.len() - 1] {
        std::fs::write(&path, &whole[..len]).unwrap();
        assert_eq!(all(&compare(&input, PLENTY, 500, dir.path())), first, "{len} bytes");
    }
}

#[test]
fn who_asked_may_stop() {
    let dir = TempDir::new().unwrap();
    let options = PairOptions { memory_bytes: PLENTY, frequency_cap: 500, anew: false };
    let stopped = pairs(&families(0, 50), &options, dir.path(), &mut |_, _, _| false);
    assert!(matches!(stopped, Err(SimilarityError::Interrupted)));
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is left");
}

fn star(stars: &Stars) -> Vec<(u32, Vec<u32>)> {
    let members = stars.members(&stars.stars);
    let ids = |members: &Vec<Member>| members.iter().map(|member| member.content).collect();
    stars.stars.iter().map(|star| star.representative).zip(members.iter().map(ids)).collect()
}

#[test]
fn stars_are_no_chains() {
    let dir = TempDir::new().unwrap();
    let pair = |a, b, share| Pair { a, b, a_in_b: share, b_in_a: share };
    // 0-1-2-3-4: each resembles its neighbours alone.
    let chain = [pair(0, 1, 0.5), pair(1, 2, 0.4), pair(2, 3, 0.4), pair(3, 4, 0.6)];
    let pairs = made(&[100, 1000, 100, 1000, 100], &chain, dir.path());
    let of = |min, choice: Option<&Choice>| {
        star(&Stars::of(&pairs, min, choice, PLENTY, &mut |_, _, _| true).unwrap())
    };
    // 2 would gain most and covers 1 and 3; so 0 and 4 are free to represent, and 1 and 3 resemble those more.
    assert_eq!(of(0.25, None), [(4, vec![3]), (0, vec![1])]);
    assert_eq!(of(0.55, None), [(4, vec![3])]);
    assert_eq!(of(0.25, Some(&Choice::of([0, 1, 2].into_iter()))), [(0, vec![1])]);
    assert_eq!(of(0.25, Some(&Choice::of([1, 2, 3].into_iter()))), [(2, vec![1, 3])]);
}

fn add(index: &Similarity, bytes: &[u8]) -> RecipeId {
    add_as(index, bytes, Sketch::of_chunk)
}

fn add_as(index: &Similarity, bytes: &[u8], sketch: impl Fn(&[u8]) -> Sketch) -> RecipeId {
    let (mut rest, mut chunks) = (bytes, Vec::new());
    for len in ChunkParams::default().cut(bytes, true) {
        let (chunk, tail) = rest.split_at(len as usize);
        index.add_chunk(ChunkId::of(chunk), sketch(chunk)).unwrap();
        chunks.push(ChunkRef { id: ChunkId::of(chunk), len });
        rest = tail;
    }
    let recipe = Recipe::new(chunks);
    index.add_content(recipe.id(), &recipe).unwrap();
    recipe.id()
}

/// Through the real index: whole chunks in common, parts of chunks, a small one in a large one, a removed one.
#[test]
fn an_index_is_compared() {
    let dir = TempDir::new().unwrap();
    let index = Similarity::open(Arc::new(MemDb::new()), SimilarityOptions::default()).unwrap();
    let large = noise(200_000, 1);
    let half = [&large[..100_000], &noise(100_000, 2)[..]].concat();
    let (part, edited) = (large[50_000..53_000].to_vec(), [&large[..99], b"!", &large[99..]].concat());
    let [large_id, half_id, part_id, edited_id] =
        [&large, &half, &part, &edited].map(|bytes| add(&index, bytes));
    let stranger = add(&index, &noise(50_000, 3));
    let gone = add(&index, &[&large[..], b"gone"].concat());
    index.remove_content(&gone).unwrap();
    index.flush().unwrap();
    let found = compare(&index, 0, 500, dir.path());
    let ids: Vec<_> = found.contents().map(|content| content.unwrap().recipe).collect();
    assert_eq!(ids, [large_id, half_id, part_id, edited_id, stranger]);
    let pairs: BTreeMap<_, _> = all(&found).into_iter().map(|pair| ((pair.a, pair.b), pair)).collect();
    let near = |(a, b): (u32, u32), a_in_b: f64, b_in_a: f64| {
        let pair = pairs[&(a, b)];
        assert!((pair.a_in_b - a_in_b).abs() < 0.1 && (pair.b_in_a - b_in_a).abs() < 0.15, "{pair:?}");
    };
    // Half of each, in one block: where features stand is not known here, so it is taken as partly scattered.
    near((0, 1), 0.6, 0.6);
    near((0, 2), 0.015, 1.0);
    near((0, 3), 1.0, 1.0);
    near((1, 2), 0.015, 1.0);
    assert!(pairs.keys().all(|(_, b)| *b != 4), "{pairs:?}");
    let stars = Stars::of(&found, 0.25, None, PLENTY, &mut |_, _, _| true).unwrap();
    assert_eq!(star(&stars).len(), 1, "{:?}", star(&stars));
    assert_eq!(stars.stars[0].members, 3);
}

/// Chunks without grams are in common whole. Seen to fail without a look at them.
#[test]
fn bare_chunks_are_compared_by_their_ids() {
    let dir = TempDir::new().unwrap();
    let index = Similarity::open(Arc::new(MemDb::new()), SimilarityOptions::default()).unwrap();
    let large = noise(400_000, 1);
    let half = [&noise(200_000, 2)[..], &large[..200_000]].concat();
    for bytes in [&large, &half, &noise(100_000, 3)] {
        add_as(&index, bytes, |chunk| Sketch::bare(chunk.len()));
    }
    index.flush().unwrap();
    for memory in [0, PLENTY] {
        let found = compare(&index, memory, 500, dir.path());
        let pairs = all(&found);
        assert_eq!(pairs.len(), 1, "{pairs:?}");
        let Pair { a, b, a_in_b, b_in_a } = pairs[0];
        assert_eq!((a, b), (0, 1));
        assert!((a_in_b - 0.5).abs() < 0.15 && (b_in_a - 0.5).abs() < 0.15, "{pairs:?}");
    }
}

#[test]
fn what_too_many_have_is_left_out_of_the_sizes_too() {
    let dir = TempDir::new().unwrap();
    let mut input = Fake::default();
    // Twenty pages of one template, two of which have the same text besides.
    for number in 0..20 {
        let text = if number < 2 { 0 } else { u64::from(number) };
        let features = (0..40).chain((0..10).map(|i| 1000 + 100 * text + i)).collect();
        input.contents.insert(number, (7, features));
    }
    let found = compare(&input, PLENTY, 10, dir.path());
    assert_eq!(found.suppressed_features(), 40);
    assert_eq!(all(&found), [Pair { a: 0, b: 1, a_in_b: 1.0, b_in_a: 1.0 }]);
    assert_eq!(all(&compare(&input, PLENTY, 20, dir.path())).len(), 190);
}
