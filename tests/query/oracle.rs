//! Each published method on small random collections, next to the definition of its paper written down naively: each file
//! with each other, without an index. A saved index gives the same answers (`kept_methods`).
//!
//! Seen to fail with: the first name of a content taken for all; groups told apart without names; repeats of a fingerprint counted
//! once; fingerprints of the base left in totals; identical files no pair.
#![allow(clippy::unwrap_used, reason = "a test stops at the first error")]

use crate::common::noise;
use dedupfs::overlay::methods::Tree;
use dedupfs::similarity::methods::chunk_graph::ChunkGraph;
use dedupfs::similarity::methods::sif::Sif;
use dedupfs::similarity::methods::simhash::SimHash;
use dedupfs::similarity::methods::winnow::{Base, PairOptions, Winnow, WinnowSketch};
use dedupfs::similarity::methods::{Chosen, Likeness, Method, sketch_of};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

type Collection = BTreeMap<String, Vec<u8>>;

/// Files made of passages that several have, of zeros, and of bytes of their own; some are identical.
fn collection() -> impl Strategy<Value = Collection> {
    let piece = (0u64..12, 0usize..1500, 60usize..1500).prop_map(|(seed, from, len)| match seed {
        0 => vec![0; len],
        1 => b"a row of a table, ".repeat(len / 18 + 1),
        2..6 => noise(seed, 3000)[from..from + len].to_vec(),
        _ => noise(seed << 20 | (from as u64) << 8 | len as u64 & 0xff, len),
    });
    let file = prop::collection::vec(piece, 1..5).prop_map(|pieces| pieces.concat());
    let extension = prop::sample::select(vec!["txt", "md", "ps"]);
    let copies =
        prop::collection::vec((any::<prop::sample::Index>(), extension.clone(), any::<bool>()), 0..4);
    (prop::collection::vec((file, extension), 2..8), copies).prop_map(|(files, copies)| {
        let mut all = Collection::new();
        for (at, (bytes, extension)) in files.iter().enumerate() {
            all.insert(format!("{at}.{extension}"), bytes.clone());
        }
        for (at, (of, extension, edited)) in copies.into_iter().enumerate() {
            let mut bytes = of.get(&files).0.clone();
            if edited {
                let middle = bytes.len() / 2;
                bytes[middle] ^= 1;
            }
            all.insert(format!("copy{at}.{extension}"), bytes);
        }
        all
    })
}

fn write(files: &Collection) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    files.iter().for_each(|(name, bytes)| fs::write(dir.path().join(name), bytes).unwrap());
    dir
}

/// How two files compare by definition.
fn likeness<M: Method>(method: &M, files: &Collection, a: &str, b: &str) -> Likeness {
    let sketch = |name: &str| sketch_of(method, Some(OsStr::new(name)), &files[name]);
    method.compare(&sketch(a), &sketch(b))
}

fn check<M: Method>(chosen: &str, method: &M, files: &Collection, min: f64) {
    let dir = write(files);
    let chosen: Chosen = chosen.parse().unwrap();
    let tree = Tree::read(dir.path(), chosen.any(), &mut |_, _| true).unwrap();
    let mut alike: BTreeSet<(String, String)> = BTreeSet::new();
    for a in files.keys() {
        let mut expected = BTreeMap::new();
        for b in files.keys().filter(|b| *b != a) {
            if files[a] == files[b] {
                expected.insert(PathBuf::from(b), None);
                continue;
            }
            let likeness = likeness(method, files, a, b);
            if likeness.score() > 0.0 && likeness.score() >= min {
                expected.insert(PathBuf::from(b), Some(likeness));
                alike.insert((a.clone(), b.clone()));
            }
        }
        let found = tree.similar(&dir.path().join(a), min, 100).unwrap().files.into_iter();
        let found: BTreeMap<_, _> =
            found.map(|found| (found.path, (!found.identical).then_some(found.likeness))).collect();
        assert_eq!(found, expected, "like {a}");
    }
    // Each group has what is like its reference, and each two files that are alike are in one group.
    let groups = tree.groups(min).unwrap().groups;
    let names = |paths: &[PathBuf]| paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>();
    let mut sets: Vec<BTreeSet<String>> = Vec::new();
    for group in &groups {
        let references = names(&group.reference.paths);
        let mut set: BTreeSet<String> = references.iter().cloned().collect();
        for (_, member) in &group.members {
            for member in names(&member.paths) {
                let is_alike = |reference: &String| alike.contains(&(reference.clone(), member.clone()));
                assert!(references.iter().any(is_alike), "{member} with {references:?}");
                set.insert(member);
            }
        }
        sets.push(set);
    }
    for (a, b) in &alike {
        assert!(sets.iter().any(|set| set.contains(a) && set.contains(b)), "{a} and {b} in {sets:?}");
    }
    for (a, b) in files.keys().flat_map(|a| files.keys().map(move |b| (a, b))).filter(|(a, b)| a < b) {
        if files[a] == files[b] {
            assert!(sets.iter().any(|set| set.contains(a) && set.contains(b)), "{a} equals {b}: {sets:?}");
        }
    }
}

/// The pairs of winnowing by definition: those with a common fingerprint that is not of the base.
fn check_pairs(winnow: &Winnow, files: &Collection, base: &[u8]) {
    let dir = write(files);
    let chosen: Chosen = "winnow:k=20,w=20".parse().unwrap();
    let tree = Tree::read(dir.path(), chosen.any(), &mut |_, _| true).unwrap();
    let of_base = sketch_of(winnow, None, base);
    let mut known = Base::default();
    known.add(&of_base);
    let prints = |bytes: &[u8]| -> WinnowSketch {
        let mut sketch = sketch_of(winnow, None, bytes);
        sketch.prints.retain(|print| of_base.prints.iter().all(|other| other.hash != print.hash));
        sketch
    };
    let mut contents: BTreeMap<&[u8], Vec<&str>> = BTreeMap::new();
    files.iter().for_each(|(name, bytes)| contents.entry(bytes).or_default().push(name));
    let mut by_name: Vec<_> =
        contents.iter().map(|(bytes, names)| (names[0], names, prints(bytes))).collect();
    by_name.sort_by_key(|(name, ..)| *name);
    let mut expected = BTreeMap::new();
    for (at, (a, names, of_a)) in by_name.iter().enumerate() {
        let distinct = of_a.hashes();
        if names.len() > 1 && !distinct.is_empty() {
            expected.insert((a.to_string(), names[1].to_owned()), (distinct.len() as u32, 1.0, 1.0));
        }
        for (b, _, of_b) in &by_name[at + 1..] {
            let others = of_b.hashes();
            let common: Vec<u64> = distinct.iter().copied().filter(|hash| others.contains(hash)).collect();
            let count = |sketch: &WinnowSketch, hash: u64| {
                sketch.prints.iter().filter(|print| print.hash == hash).count()
            };
            let both: usize = common.iter().map(|&hash| count(of_a, hash).min(count(of_b, hash))).sum();
            if !common.is_empty() {
                let share = |of: &WinnowSketch| both as f64 / of.prints.len() as f64;
                expected
                    .insert((a.to_string(), b.to_string()), (common.len() as u32, share(of_a), share(of_b)));
            }
        }
    }
    let found = tree.pairs(&known, &PairOptions::default()).unwrap();
    assert_eq!((found.found, found.below_min), (expected.len() as u64, 0));
    let name = |path: &Path| path.display().to_string();
    let found = found.pairs.iter().map(|pair| {
        ((name(&pair.a.paths[0]), name(&pair.b.paths[0])), (pair.common, pair.a_in_b, pair.b_in_a))
    });
    assert_eq!(found.collect::<BTreeMap<_, _>>(), expected);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn answers_are_those_of_the_definition(files in collection(), min in 0.0f64..0.6) {
        let of = |text: &str| text.parse::<Chosen>().unwrap();
        let (sif, winnow) = ("sif:zeros=3", "winnow:k=20,w=20");
        let (graph, simhash) = ("chunk-graph:target=100", "simhash:tolerance=0.05,size=0.2,tolerance.ps=0.01");
        check(sif, &of(sif).of::<Sif>().unwrap(), &files, min);
        check(winnow, &of(winnow).of::<Winnow>().unwrap(), &files, min);
        check(graph, &of(graph).of::<ChunkGraph>().unwrap(), &files, min);
        check(simhash, &of(simhash).of::<SimHash>().unwrap(), &files, 0.0);
        let winnow = of(winnow).of::<Winnow>().unwrap();
        check_pairs(&winnow, &files, b"");
        check_pairs(&winnow, &files, &noise(3, 3000));
    }
}
