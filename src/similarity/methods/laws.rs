//! Laws that every method obeys. `laws!(name, method)` makes the tests of one.

use super::{AnySketch, Builder, Entry, HEAD_BYTES_MAX, Likeness, Method, Sketcher, sketch_of};
use std::ffi::OsStr;
use std::ops::RangeInclusive;
use std::sync::Arc;

/// Tests of a method under a name: `laws!(sif, Sif::default())`.
macro_rules! laws {
    ($name:ident, $method:expr) => {
        mod $name {
            use super::*;
            use $crate::similarity::methods::laws;

            #[test]
            fn splits_do_not_matter() {
                laws::splits_do_not_matter(&$method);
            }

            #[test]
            fn what_is_given_away_on_the_way_is_the_same() {
                laws::what_is_given_away_on_the_way_is_the_same(&$method);
            }

            #[test]
            fn heads_survive_encoding() {
                laws::heads_survive_encoding(&$method);
            }

            #[test]
            fn damaged_heads_are_errors() {
                laws::damaged_heads_are_errors(&$method);
            }

            #[test]
            fn comparing_goes_both_ways() {
                laws::comparing_goes_both_ways(&$method);
            }

            #[test]
            fn a_file_is_like_itself() {
                laws::a_file_is_like_itself(&$method);
            }

            #[test]
            fn names_take_likeness_away() {
                laws::names_take_likeness_away(&$method);
            }

            #[test]
            fn like_files_find_each_other() {
                laws::like_files_find_each_other(&$method);
            }
        }
    };
}
pub(crate) use laws;

/// Bytes without order, the same for the same seed (xorshift64*).
pub(crate) fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        (x.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 56) as u8
    };
    (0..len).map(|_| next()).collect()
}

/// Words out of a few, as text has them.
pub(crate) fn text(words: usize, seed: u64) -> Vec<u8> {
    const WORDS: [&str; 16] = [
        "the ", "file ", "of ", "a ", "store ", "is ", "kept\n", "chunk ", "and ", "index ", "it ",
        "finds, ", "what ", "was ", "said. ", "similar ",
    ];
    noise(words, seed).iter().flat_map(|&at| WORDS[usize::from(at >> 4)].bytes()).collect()
}

/// Contents of many kinds: none, tiny, noise, text, runs, an edit of another, a part of another.
pub(crate) fn samples() -> Vec<Vec<u8>> {
    let (base, words) = (noise(20_000, 1), text(6000, 2));
    let mut edited = base.clone();
    edited.splice(9000..9100, *b"other");
    vec![
        Vec::new(),
        b"x".to_vec(),
        noise(49, 3),
        noise(700, 4),
        vec![0; 5000],
        b"abba".repeat(2000),
        base[4000..12_000].to_vec(),
        [&base[..10_000], &words[..10_000]].concat(),
        base.repeat(2),
        words[2000..9000].to_vec(),
        b"%!PS-Adobe-3.0
prolog
%%EndProlog
body of the document, long enough to be seen
%%EOF
"
        .to_vec(),
        edited,
        base,
        words,
    ]
}

fn names() -> [Option<&'static OsStr>; 3] {
    [None, Some(OsStr::new("letter.txt")), Some(OsStr::new("no-extension"))]
}

fn sketches<M: Method>(method: &M) -> Vec<M::Sketch> {
    let samples = samples();
    names().iter().flat_map(|name| samples.iter().map(|bytes| sketch_of(method, *name, bytes))).collect()
}

pub(crate) fn splits_do_not_matter<M: Method>(method: &M) {
    for (at, bytes) in samples().iter().enumerate() {
        for name in names() {
            let whole = sketch_of(method, name, bytes);
            for piece in [1, 7, 49, 50, 51, 4096, 65_536] {
                let mut builder = method.builder(name);
                bytes.chunks(piece).for_each(|piece| builder.add(piece));
                builder.add(&[]);
                assert_eq!(builder.finish(), whole, "sample {at} in pieces of {piece}");
            }
        }
    }
}

/// The entries of a sketch that never was in memory, with room for a few and for all, are those of one that was.
pub(crate) fn what_is_given_away_on_the_way_is_the_same<M: Method>(method: &M) {
    let dir = tempfile::tempdir().unwrap();
    let read = |sketch: &AnySketch| {
        let mut entries = Vec::new();
        sketch
            .each(&mut |entry| {
                entries.push(entry);
                Ok(())
            })
            .unwrap();
        entries
    };
    for (at, bytes) in samples().iter().enumerate() {
        for name in names() {
            let whole = sketch_of(method, name, bytes);
            for (piece, memory) in [(1000, 100), (4096, 1 << 20), (1 << 20, 100)] {
                let mut sketcher = Sketcher::new(Arc::new(method.clone()), name, dir.path(), memory);
                bytes.chunks(piece).for_each(|piece| sketcher.add(piece).unwrap());
                let streamed = sketcher.finish().unwrap();
                assert_eq!(read(&streamed), method.entries(&whole), "sample {at} in pieces of {piece}");
                assert_eq!(streamed.head(), method.encode(&method.head(&whole)), "sample {at}");
                assert_eq!(streamed.keys(), method.entries(&whole).len() as u64, "sample {at}");
                let itself = streamed.with_itself().unwrap();
                assert_eq!(itself, method.compare(&whole, &whole), "sample {at}");
            }
            assert_eq!(read(&AnySketch::of(method, &whole).unwrap()), method.entries(&whole));
        }
    }
}

pub(crate) fn heads_survive_encoding<M: Method>(method: &M) {
    for (at, sketch) in sketches(method).iter().enumerate() {
        let head = method.head(sketch);
        let bytes = method.encode(&head);
        assert!(bytes.len() <= HEAD_BYTES_MAX, "sketch {at}: {} bytes", bytes.len());
        assert_eq!(method.decode(&bytes), Ok(head.clone()), "sketch {at}");
        let entries = method.entries(sketch);
        assert!(entries.is_sorted_by(|a, b| a.key < b.key), "sketch {at}: keys are sorted, each once");
        let ranges = method.near(&head);
        assert!(M::BY_RANGE || ranges.is_empty(), "sketch {at}");
        let apart =
            |a: &RangeInclusive<u64>, b: &RangeInclusive<u64>| a.start() <= a.end() && a.end() < b.start();
        assert!(ranges.is_sorted_by(apart), "sketch {at}: ranges are sorted and do not overlap");
    }
}

/// Any prefix, any byte changed, anything appended: an error, or another head with this as its one encoding.
pub(crate) fn damaged_heads_are_errors<M: Method>(method: &M) {
    let check = |bytes: &[u8]| {
        if let Ok(head) = method.decode(bytes) {
            assert_eq!(method.encode(&head), bytes, "a decoded head has one encoding");
            method.near(&head);
        }
    };
    for sketch in sketches(method) {
        let bytes = method.encode(&method.head(&sketch));
        for at in 0..bytes.len() {
            assert!(method.decode(&bytes[..at]).is_err(), "{at} bytes of {} are no head", bytes.len());
            for value in [bytes[at] ^ 1, bytes[at] ^ 0x80, 0, 0xff] {
                let mut damaged = bytes.clone();
                damaged[at] = value;
                check(&damaged);
            }
        }
        assert!(method.decode(&[&bytes[..], &[0]].concat()).is_err(), "a byte too many is no head");
    }
    (0..300).for_each(|seed| check(&noise(seed as usize % 90, seed)));
}

pub(crate) fn comparing_goes_both_ways<M: Method>(method: &M) {
    let sketches = sketches(method);
    for a in &sketches {
        for b in &sketches {
            let there = method.compare(a, b);
            assert_eq!(there.swapped(), method.compare(b, a), "{a:?} and {b:?}");
            let Likeness { containment, contained_in, resemblance, distance } = there;
            let all = [containment, contained_in, resemblance, distance];
            assert!(all.into_iter().flatten().all(|value| value.is_finite() && value >= 0.0), "{there:?}");
            assert!(resemblance.is_none_or(|share| share <= 1.0), "{there:?}");
        }
    }
}

pub(crate) fn a_file_is_like_itself<M: Method>(method: &M) {
    let mut with_keys = 0;
    for sketch in sketches(method).iter().filter(|sketch| !method.entries(sketch).is_empty()) {
        let Likeness { containment, contained_in, resemblance, distance } = method.compare(sketch, sketch);
        let shares = [containment, contained_in, resemblance];
        assert!(shares.into_iter().flatten().all(|share| share == 1.0), "{shares:?}: {sketch:?}");
        assert!(distance.is_none_or(|distance| distance == 0.0), "{distance:?}: {sketch:?}");
        assert!(shares.iter().any(Option::is_some) || distance.is_some(), "{sketch:?}");
        with_keys += 1;
    }
    assert!(with_keys >= 12, "{with_keys} samples have keys");
}

/// The answers of an index without names include every answer with names, with the same figures.
pub(crate) fn names_take_likeness_away<M: Method>(method: &M) {
    let samples = samples();
    let nameless: Vec<_> = samples.iter().map(|bytes| sketch_of(method, None, bytes)).collect();
    let names =
        [Some(OsStr::new("letter.txt")), Some(OsStr::new("page.ps")), Some(OsStr::new("no-extension"))];
    let named = |at: usize, name| sketch_of(method, name, &samples[at]);
    let mut changed = false;
    for (at, a) in nameless.iter().enumerate() {
        for name in names {
            let of_a = named(at, name);
            assert_eq!(
                name.map(|name| method.called(method.head(a), name)),
                Some(method.head(&of_a)),
                "sample {at}, {name:?}"
            );
            changed |= of_a != *a;
            for (other, b) in nameless.iter().enumerate() {
                for other_name in names {
                    let likeness = method.compare(&of_a, &named(other, other_name));
                    let without = method.compare(a, b);
                    let holds = likeness.score() == 0.0 || likeness == without;
                    assert!(
                        holds,
                        "{at} {name:?}, {other} {other_name:?}: {likeness:?}, without {without:?}"
                    );
                }
            }
        }
    }
    assert_eq!(changed, M::BY_NAME);
}

/// A file finds itself, and an edit of one, under the same name, finds the other.
pub(crate) fn like_files_find_each_other<M: Method>(method: &M) {
    let finds = |a: &M::Sketch, b: &M::Sketch| {
        let keys: Vec<u64> = method.entries(b).iter().map(|entry| entry.key).collect();
        let exact = method.entries(a).into_iter().map(|Entry { key, .. }| key..=key);
        let ranges: Vec<_> = if M::BY_RANGE { method.near(&method.head(a)) } else { exact.collect() };
        ranges.iter().any(|range| keys.iter().any(|key| range.contains(key)))
    };
    for sketch in sketches(method).iter().filter(|sketch| !method.entries(sketch).is_empty()) {
        assert!(finds(sketch, sketch), "{sketch:?}");
    }
    let mut found = 0;
    for seed in 0..20 {
        let base = noise(30_000, 100 + seed);
        let mut edited = base.clone();
        edited.splice(15_000..15_020, noise(20, 200 + seed));
        let (a, b) = (sketch_of(method, None, &base), sketch_of(method, None, &edited));
        if finds(&a, &b) && finds(&b, &a) {
            assert!(method.compare(&a, &b).score() > 0.0, "seed {seed}");
            found += 1;
        }
    }
    assert!(found >= 18, "{found} of 20 edits found");
}
