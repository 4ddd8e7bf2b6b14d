//! Seen to fail with: headers of PostScript kept; checksum and size not compared; the suffix rule off (figure 3); equal sets
//! not collated (little memory, bounded search); the checksum of what is saved not looked at; sets that are part of
//! others kept (maximal); directories that prefer similar to equal. Of the laws: fingerprints not passed over (splits).
//! The others were not seen to fail but with wrong figures in them.

use super::directories::Alike;
use super::interesting::{InterestOptions, Interesting};
use super::report::Rules;
use super::*;
use crate::db::MemDb;
use crate::id::RecipeId;
use crate::similarity::methods::laws::{laws, noise, text};
use crate::similarity::methods::{AnySketch, Index, IndexOptions, sketch_of};
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::sync::Arc;

fn anchored() -> Sif {
    let samples: Vec<Vec<u8>> = (0..8).map(|seed| text(3000, seed)).collect();
    let samples: Vec<&[u8]> = samples.iter().map(Vec::as_slice).collect();
    let mut anchors = learn(&samples, 200).unwrap().strings().to_vec();
    // Noise has them too, and so have runs.
    anchors.extend((0..=255).step_by(2).map(|byte| vec![byte]));
    Sif { selection: Selection::Anchored(Anchors::new(anchors).unwrap()), bits: 32 }
}

laws!(hashed, Sif { selection: Selection::Hashed { low_zeros: 4 }, bits: 30 });
laws!(by_anchors, anchored());

fn any(sif: &Sif, bytes: &[u8]) -> AnySketch {
    AnySketch::of(sif, &sketch_of(sif, None, bytes)).unwrap()
}

fn dense() -> Sif {
    Sif { selection: Selection::Hashed { low_zeros: 3 }, bits: 32 }
}

fn compared(a: &[u8], b: &[u8]) -> Likeness {
    let sif = dense();
    sif.compare(&sketch_of(&sif, None, a), &sketch_of(&sif, None, b))
}

/// Section 3: it happened to the author, with a call for papers that another file contained twice.
#[test]
fn a_file_that_is_twice_in_another_is_more_than_all_in_it() {
    let (call, mail) = (noise(5000, 1), noise(3000, 2));
    let file = [&call[..], &mail, &call].concat();
    let likeness = compared(&call, &file);
    assert!((1.8..2.1).contains(&likeness.containment.unwrap()), "{likeness:?}");
    assert!((0.35..0.42).contains(&likeness.contained_in.unwrap()), "{likeness:?}");
}

/// Too short for a fingerprint: checksum and size still tell.
#[test]
fn equal_files_are_equal_without_fingerprints() {
    assert_eq!(compared(b"short", b"short").containment, Some(1.0));
    assert_eq!(compared(b"short", b"other").containment, None);
}

/// The random test of section 5, smaller: 300 substitutions of 50 bytes in 30 KB, against 200 other files.
#[test]
fn finds_the_file_with_half_of_it_replaced() {
    let sif = Sif::default();
    let index = Index::open(Arc::new(MemDb::new()), Arc::new(sif.clone()), IndexOptions::default()).unwrap();
    let files: Vec<_> = (0..200).map(|seed| noise(30_000, seed)).collect();
    for (at, file) in files.iter().enumerate() {
        index.add(RecipeId([at as u8; 16]), &any(&sif, file)).unwrap();
    }
    let mut sum = 0.0;
    for run in 0..20u64 {
        let mut file = files[run as usize * 7].clone();
        let places = noise(2400, 1000 + run);
        for (place, with) in places.chunks_exact(8).zip(noise(300 * 50, 2000 + run).chunks_exact(50)) {
            let at = u64::from_le_bytes(place.try_into().unwrap()) as usize % (file.len() - 50);
            file[at..at + 50].copy_from_slice(with);
        }
        let found = index.query(&any(&sif, &file), 0.05, 10).unwrap();
        assert_eq!(found.len(), 1, "run {run}: the right file and only it");
        assert_eq!(found[0].id, RecipeId([run as u8 * 7; 16]), "run {run}");
        sum += found[0].likeness.contained_in.unwrap();
    }
    // Of 30,000 starts of 50 bytes e^-(300*99/30000) = 37% are untouched.
    assert!((0.30..0.45).contains(&(sum / 20.0)), "{}", sum / 20.0);
}

#[test]
fn postscript_headers_do_not_count() {
    let page =
        |seed| [&b"%!PS-Adobe-3.0\n"[..], &noise(9000, 1), b"\n%%EndProlog\n", &noise(500, seed)].concat();
    assert_eq!(compared(&page(2), &page(3)).containment, Some(0.0));
    let text =
        |seed| [&b"no PostScript\n"[..], &noise(9000, 1), b"\n%%EndProlog\n", &noise(500, seed)].concat();
    assert!(compared(&text(2), &text(3)).containment.unwrap() > 0.9);
}

#[test]
fn anchors_are_checked_and_learned() {
    assert!(Anchors::new(vec![]).unwrap_err().contains("no anchors"));
    assert!(Anchors::new(vec![vec![b'x'; 51]]).unwrap_err().contains("1 to 50"));
    assert!(learn(&[b"abcdefg", b"hijklmn"], 200).is_err());
    let samples: Vec<Vec<u8>> =
        (0..8).map(|seed| noise(20_000, seed).iter().map(|byte| b'a' + byte % 16).collect()).collect();
    let samples: Vec<&[u8]> = samples.iter().map(Vec::as_slice).collect();
    let sif = Sif { selection: Selection::Anchored(learn(&samples, 200).unwrap()), bits: 30 };
    // "On the average, one fingerprint was generated for about every 200 bytes of text."
    let all: u64 = samples.iter().map(|sample| sketch_of(&sif, None, sample).count()).sum();
    let spacing = 160_000.0 / all as f64;
    assert!((150.0..300.0).contains(&spacing), "{spacing}");
    assert_ne!(sif.parameters(), anchored().parameters());
}

/// Of contents with names. Names are as given; contents are told apart by their bytes.
fn saved(files: &[(&str, Vec<u8>)], memory_bytes: usize) -> Saved {
    let sif = dense();
    let index = Index::open(Arc::new(MemDb::new()), Arc::new(sif.clone()), IndexOptions::default()).unwrap();
    for (_, bytes) in files {
        index.add(RecipeId::of(bytes), &any(&sif, bytes)).unwrap();
    }
    let mut names = |id: &RecipeId| {
        files
            .iter()
            .filter(|(_, bytes)| RecipeId::of(bytes) == *id)
            .map(|(name, _)| name.as_bytes().to_vec())
            .collect()
    };
    let options = CollateOptions { memory_bytes, ..CollateOptions::default() };
    Saved::collate(&index, &sif, &mut names, &options, &std::env::temp_dir()).unwrap()
}

fn sources() -> Vec<(&'static str, Vec<u8>)> {
    let foo = noise(10_763, 1);
    let bar = [&foo[..8500], &noise(2479, 2)].concat();
    let foobar = [&noise(1400, 3), &foo[2000..], &noise(200, 4)].concat();
    vec![
        ("/u1/xyz/foo.c", foo.clone()),
        ("/u1/copy/foo.c", foo),
        ("/u1/qwe/bar.c", bar),
        ("/u1/uuu/foobar.h", foobar),
        ("/u1/else.c", noise(9000, 9)),
    ]
}

/// The whole report, as figure 3 has it, and the same with other thresholds and rules out of what was saved.
#[test]
fn reports_as_figure_3_at_any_threshold() {
    let saved = saved(&sources(), 1 << 20);
    assert_eq!(Saved::decode(&saved.encode()).as_ref(), Some(&saved));
    let report = |rules: &Rules| saved.report(&saved.groups(rules), rules.share_min);
    let rules = Rules { share_min: 0.25, ..Rules::default() };
    assert_eq!(
        report(&rules),
        "The following groups of files are similar. Minimum similarity = 25%\n\
        \nR100 /u1/copy/foo.c 10763\n   100 /u1/xyz/foo.c 10763\n    79 /u1/qwe/bar.c 10979\n    79 /u1/uuu/foobar.h 10363\n"
    );
    let strict = report(&Rules { share_min: 0.8, ..rules.clone() });
    assert!(strict.contains("R100 /u1/copy/foo.c 10763\n   100 /u1/xyz/foo.c 10763\n"), "{strict}");
    let suffix = report(&Rules { same_suffix: true, ..rules.clone() });
    assert!(suffix.contains("bar.c") && !suffix.contains("foobar.h"), "{suffix}");
    let sizes = report(&Rules { size_ratio: 0.97, ..rules });
    assert!(sizes.contains("bar.c") && !sizes.contains("foobar.h"), "{sizes}");
}

#[test]
fn what_is_saved_is_believed_only_whole() {
    let bytes = saved(&sources(), 1 << 20).encode();
    for at in (0..bytes.len()).step_by(7) {
        assert_eq!(Saved::decode(&bytes[..at]), None);
        let mut damaged = bytes.clone();
        damaged[at] ^= 4;
        assert_eq!(Saved::decode(&damaged), None);
    }
}

#[test]
fn sets_are_the_same_with_little_memory() {
    let files: Vec<_> = ["a", "b", "c", "d", "e", "f"]
        .into_iter()
        .zip(0..)
        .map(|(name, seed)| {
            (name, [noise(4000, seed % 3), noise(3000, 10 + seed % 2), noise(500, 20 + seed)].concat())
        })
        .collect();
    let all = saved(&files, 1 << 20);
    assert_eq!(saved(&files, 500), all);
    let large = all.sets.iter().filter(|set| set.count > 40).count();
    assert_eq!(large, 5, "{:?}", all.sets);
}

#[test]
fn directories_are_compared_by_content() {
    let mut files = sources();
    files.push(("/u2/foo.c", files[0].1.clone()));
    files.push(("/u2/moved.c", [&files[2].1[..9000], b"changed"].concat()));
    files.push(("/u2/new", noise(800, 30)));
    let compared = saved(&files, 1 << 20).directories(b"/u1/xyz", b"/u2/", 0.5);
    let alike = |a: &str, b: &str| Alike { a: a.into(), b: b.into(), share: 1.0, equal: true };
    assert_eq!(compared.alike, [alike("foo.c", "foo.c")]);
    assert_eq!(compared.only_b, [&b"moved.c"[..], b"new"]);
    let compared = saved(&files, 1 << 20).directories(b"/u1/qwe", b"/u2", 0.5);
    assert!(compared.alike[0].b == b"moved.c" && !compared.alike[0].equal, "{compared:?}");
    let compared = saved(&files, 1 << 20).directories(b"/u1", b"/u2", 0.5);
    assert_eq!(compared.only_a, [b"else.c"]);
}

/// Section 6: names count. A file is compared with the one of its path, though another resembles it more.
#[test]
fn directories_are_compared_by_name_first() {
    let (whole, other) = (noise(9000, 1), noise(9000, 2));
    let with = |own: usize| [&whole[..own], &other[own..]].concat();
    let files = [
        ("a/foo.c", whole.clone()),
        ("b/foo.c", with(6000)),
        ("b/backup.c", with(8000)),
        ("b/x", noise(99, 3)),
    ];
    let compared = saved(&files, 1 << 20).directories(b"a", b"b", 0.5);
    assert_eq!((&compared.alike[0].b[..], compared.alike.len()), (&b"foo.c"[..], 1), "{compared:?}");
    assert!((0.55..0.75).contains(&compared.alike[0].share), "{compared:?}");
    assert_eq!(compared.only_b, [&b"backup.c"[..], b"x"]);
    // The one of its path is not similar enough.
    let compared = saved(&files, 1 << 20).directories(b"a", b"b", 0.8);
    assert_eq!((&compared.alike[0].b[..], &compared.only_b[0][..]), (&b"backup.c"[..], &b"foo.c"[..]));
}

fn brute_force(saved: &Saved, options: &InterestOptions) -> BTreeSet<(Vec<u32>, u64)> {
    let common = |files: &[u32]| -> u64 {
        let has_all = |set: &&SharedBy| files.iter().all(|file| set.files.contains(file));
        saved.sets.iter().filter(has_all).map(|set| set.count).sum()
    };
    let enough = |files: &[u32]| {
        let need =
            |&file: &u32| (options.share_min * saved.files[file as usize].fingers as f64).ceil() as u64;
        common(files) >= files.iter().map(need).max().unwrap().max(options.common_min)
    };
    let subsets = (0u32..1 << saved.files.len())
        .map(|bits| (0..saved.files.len() as u32).filter(|file| bits & 1 << file != 0).collect::<Vec<_>>());
    let all: Vec<_> = subsets.filter(|files| files.len() > 1 && enough(files)).collect();
    let is_part = |files: &Vec<u32>| {
        all.iter().any(|other| other.len() > files.len() && files.iter().all(|file| other.contains(file)))
    };
    all.iter().filter(|files| !is_part(files)).map(|files| (files.clone(), common(files))).collect()
}

proptest! {
    /// Every set that is interesting and part of no other, and none besides, against all subsets of nine files.
    #[test]
    fn interesting_sets_are_the_maximal_ones(
        sets in prop::collection::btree_map(1u32..512, 1u64..6, 0..25), own in prop::collection::vec(0u64..4, 9), share in 0.0f64..0.7
    ) {
        let in_set = |bits: u32| (0..9u32).filter(|file| bits & 1 << file != 0).collect::<Vec<_>>();
        let mut saved = Saved::default();
        for (file, own) in own.iter().enumerate() {
            let shared: u64 = sets.iter().filter(|(bits, _)| **bits & 1 << file != 0).map(|(_, count)| count).sum();
            saved.files.push(File { names: vec![vec![b'a' + file as u8]], bytes: 1, checksum: 0, fingers: shared + own });
        }
        let shared = sets.iter().map(|(bits, count)| SharedBy { files: in_set(*bits), count: *count });
        saved.sets = shared.filter(|set| set.files.len() > 1).collect();
        let options = InterestOptions { share_min: share, common_min: 2, steps_max: u64::MAX };
        let found = saved.interesting(&options);
        prop_assert!(!found.cut);
        let found: Vec<_> = found.sets.into_iter().map(|Interesting { files, common }| (files, common)).collect();
        let as_set: BTreeSet<_> = found.iter().cloned().collect();
        prop_assert_eq!(as_set.len(), found.len());
        prop_assert_eq!(as_set, brute_force(&saved, &options));
    }
}

/// Near-copies are one step each and not one for each subset of them; a bound that cuts is told.
#[test]
fn the_search_for_interesting_sets_is_bounded() {
    let files: Vec<_> = (0..60u64).map(|seed| [noise(4000, 1), noise(400, 100 + seed)].concat()).collect();
    let names: Vec<String> = (0..60).map(|at| format!("{at:02}")).collect();
    let files: Vec<_> = names.iter().map(String::as_str).zip(files).collect();
    let saved = saved(&files, 1 << 20);
    let found = saved.interesting(&InterestOptions { steps_max: 100_000, ..InterestOptions::default() });
    assert_eq!((found.sets.len(), found.cut), (1, false));
    assert_eq!(found.sets[0].files.len(), 60);
    assert!(saved.interesting(&InterestOptions { steps_max: 10, ..InterestOptions::default() }).cut);
}
