use super::cover::Known;
use super::*;
use proptest::prelude::*;

/// By the definition, in O(n * m).
fn reference(a: &[u8], b: &[u8]) -> u64 {
    count(&reference_map(a, b))
}

fn count(map: &[bool]) -> u64 {
    map.iter().filter(|&&covered| covered).count() as u64
}

fn reference_map(a: &[u8], b: &[u8]) -> Vec<bool> {
    if a == b {
        return vec![true; a.len()];
    }
    let mut covered = vec![false; a.len()];
    for (i, window) in a.windows(MATCH_BYTES_MIN).enumerate() {
        if b.windows(MATCH_BYTES_MIN).any(|other| other == window) {
            covered[i..i + MATCH_BYTES_MIN].fill(true);
        }
    }
    covered
}

/// They are in order, do not overlap, are true, and cover what is covered.
fn check_regions(a: &[u8], b: &[u8], regions: &[Region]) {
    let mut map = vec![false; a.len()];
    let mut end = 0;
    for region in regions {
        let (at, there, len) = (region.a as usize, region.b as usize, region.len as usize);
        assert!(region.a >= end && len > 0, "{regions:?}");
        end = region.a + region.len;
        assert_eq!(a[at..at + len], b[there..there + len]);
        map[at..at + len].fill(true);
    }
    assert!(map == reference_map(a, b), "{regions:?}");
}

/// Against the definition: what is in common, less what a pattern covers, less what that leaves of under 32 bytes.
fn check_beside(a: &[u8], b: &[u8], patterns: &[&[u8]]) {
    let bytes = patterns.concat();
    let mut ends = Vec::new();
    patterns.iter().for_each(|pattern| ends.push(ends.last().unwrap_or(&0usize) + <[u8]>::len(pattern)));
    let index = Patterns::new(&bytes, &ends);
    let pattern_map = |of: &[u8]| {
        let maps = patterns.iter().map(|pattern| match of == *pattern && of.len() < MATCH_BYTES_MIN {
            true => vec![false; of.len()],
            false => reference_map(of, pattern),
        });
        maps.fold(padding::tests::reference(of), |all, map| {
            all.iter().zip(map).map(|(x, y)| *x || y).collect()
        })
    };
    let left = |of: &[u8], other: &[u8]| {
        let map = reference_map(of, other);
        let mut map: Vec<_> =
            map.iter().zip(pattern_map(of)).map(|(common, pattern)| *common && !pattern).collect();
        for run in map.chunk_by_mut(|x, y| x == y) {
            let stays = run[0] && run.len() >= MATCH_BYTES_MIN;
            run.fill(stays);
        }
        count(&map)
    };
    let of_a = index.covered(&a, 1 << 20).unwrap();
    assert_eq!(of_a.bytes(), count(&pattern_map(a)));
    let found = compare_excluding(&a, &of_a, &b, &index, 1 << 20).unwrap();
    assert_eq!((found.a_patterns, found.b_patterns), (count(&pattern_map(a)), count(&pattern_map(b))));
    if a == b {
        assert_eq!(found.common, compare(&a, &b, 1 << 20).unwrap(), "the identical stays so");
        return;
    }
    assert_eq!(found.common, Common { a_bytes: left(a, b), b_bytes: left(b, a), identical: false });
    assert_eq!(found.suppressed, reference(a, b) - found.common.a_bytes);
    let all = compare_excluding(&a, &Ranges::default(), &b, &Patterns::none(), 1 << 20).unwrap();
    assert_eq!(all.common, compare(&a, &b, 1 << 20).unwrap(), "where everything counts");
}

fn check(a: &[u8], b: &[u8], memory: usize) -> Common {
    let common = compare(&a, &b, memory).unwrap();
    assert_eq!(common.a_bytes, reference(a, b));
    assert_eq!(common.b_bytes, reference(b, a));
    assert_eq!(common.identical, a == b);
    let all = compare_regions(&a, &b, memory, usize::MAX).unwrap();
    assert_eq!((all.common, all.omitted), (common, 0));
    check_regions(a, b, &all.regions);
    common
}

/// Goes through segments of 64 bytes, which `compare` would not make so small.
fn check_segmented(a: &[u8], b: &[u8]) {
    if a.len().min(b.len()) >= MATCH_BYTES_MIN && a != b {
        for segment in [64, 128, 320] {
            let mut total = 0;
            let none = Known::default();
            let mut regions = Vec::new();
            let mut tell = |region| regions.push(region);
            cover(&a, &b, none, segment, Some(&mut tell), &mut |run| total += run.end - run.start).unwrap();
            assert_eq!(total, reference(a, b), "segment {segment}");
            check_regions(a, b, &regions);
        }
    }
}

#[derive(Clone, Debug)]
enum Edit {
    Insert(usize, Vec<u8>),
    Delete(usize, usize),
    Move(usize, usize, usize),
    Repeat(usize, usize, usize),
}

fn edited(bytes: &[u8], edits: &[Edit]) -> Vec<u8> {
    let mut out = bytes.to_vec();
    for edit in edits {
        let place = |at: usize| at % (out.len() + 1);
        match edit {
            Edit::Insert(at, new) => {
                let at = place(*at);
                out.splice(at..at, new.iter().copied());
            }
            Edit::Delete(at, len) => {
                let at = place(*at);
                out.drain(at..(at + len).min(out.len()));
            }
            Edit::Move(at, len, to) => {
                let at = place(*at);
                let part: Vec<u8> = out.drain(at..(at + len).min(out.len())).collect();
                let to = to % (out.len() + 1);
                out.splice(to..to, part);
            }
            Edit::Repeat(at, len, times) => {
                let at = place(*at);
                let part = out[at..(at + len).min(out.len())].repeat(*times);
                out.splice(at..at, part);
            }
        }
    }
    out
}

fn edit() -> impl Strategy<Value = Edit> {
    prop_oneof![
        (any::<usize>(), prop::collection::vec(any::<u8>(), 1..80))
            .prop_map(|(at, new)| Edit::Insert(at, new)),
        (any::<usize>(), 1usize..120).prop_map(|(at, len)| Edit::Delete(at, len)),
        (any::<usize>(), 1usize..300, any::<usize>()).prop_map(|(at, len, to)| Edit::Move(at, len, to)),
        (any::<usize>(), 1usize..90, 1usize..6).prop_map(|(at, len, times)| Edit::Repeat(at, len, times)),
    ]
}

proptest! {
    /// Few symbols and pieces repeated make matches of every length and alignment.
    #[test]
    fn small_alphabets(
        a in prop::collection::vec(0u8..2, 0..300),
        b in prop::collection::vec(0u8..2, 0..300),
        pieces in prop::collection::vec((0usize..300, 0usize..100), 0..4),
    ) {
        let mut mixed = b.clone();
        for (at, len) in pieces {
            let at = at % (a.len() + 1);
            mixed.extend_from_slice(&a[at..(at + len).min(a.len())]);
        }
        check(&a, &mixed, 1 << 20);
        check_segmented(&a, &mixed);
    }

    /// Patterns are parts of both, in pieces that do and do not fit, and runs.
    #[test]
    fn patterns_do_not_count(
        a in prop::collection::vec(0u8..2, 0..300),
        b in prop::collection::vec(any::<u8>(), 0..400),
        pieces in prop::collection::vec((any::<bool>(), 0usize..300, 0usize..120), 0..5),
        shared in (0usize..300, 0usize..300, 0usize..400),
        zeros in 0usize..90,
    ) {
        let piece = |of: &[u8], at: usize, len: usize| {
            let at = at % (of.len() + 1);
            of[at..(at + len).min(of.len())].to_vec()
        };
        let mut mixed = b.clone();
        let at = shared.2 % (mixed.len() + 1);
        mixed.splice(at..at, piece(&a, shared.0, shared.1));
        let a = [piece(&b, shared.2, shared.1), a, vec![0; zeros]].concat();
        let mut patterns: Vec<Vec<u8>> =
            pieces.iter().map(|&(first, at, len)| piece(if first { &a } else { &mixed }, at, len)).collect();
        patterns.retain(|pattern| !pattern.is_empty());
        patterns.extend([vec![0; zeros % 50 + 1], vec![0; zeros + 1]]);
        let patterns: Vec<&[u8]> = patterns.iter().map(Vec::as_slice).collect();
        check_beside(&a, &mixed, &patterns);
        check_beside(&mixed, &a, &[]);
        check_beside(&a, &a, &patterns);
    }

    #[test]
    fn edits(bytes in prop::collection::vec(any::<u8>(), 0..1500), edits in prop::collection::vec(edit(), 0..6)) {
        let other = edited(&bytes, &edits);
        check(&bytes, &other, 1 << 20);
        check_segmented(&bytes, &other);
    }

    /// Zeros, periods and their edges.
    #[test]
    fn runs(parts in prop::collection::vec((0u8..3, 1usize..150), 1..7), other in prop::collection::vec((0u8..3, 1usize..150), 1..7)) {
        let build = |parts: &[(u8, usize)]| -> Vec<u8> {
            parts.iter().flat_map(|&(kind, len)| (0..len).map(move |i| match kind {
                0 => 0,
                1 => b"ab"[i % 2],
                _ => (i * i) as u8,
            })).collect()
        };
        let (a, b) = (build(&parts), build(&other));
        check(&a, &b, 1 << 20);
        check_segmented(&a, &b);
    }
}

#[test]
fn the_short_and_the_empty() {
    let bytes: Vec<u8> = (0..100).collect();
    assert!(check(&[], &[], 0).identical);
    assert!(check(&bytes[..31], &bytes[..31], 0).identical);
    assert_eq!(check(&bytes[..31], &bytes, 0), Common::default());
    assert_eq!(check(&[], &bytes, 0), Common::default());
    assert_eq!(check(&bytes[40..72], &bytes, 0).a_bytes, 32);
}

#[test]
fn regions_are_bounded_and_the_longest_stay() {
    let part = |seed: u64, len: usize| super::super::tests::noise(len, seed);
    let a = [part(1, 500), part(10, 7), part(2, 90), part(11, 7), part(3, 4000)].concat();
    let b = [part(3, 4000), part(12, 9), part(2, 90), part(13, 9), part(1, 500)].concat();
    let all = compare_regions(&&a[..], &&b[..], 1 << 20, 10).unwrap();
    let places = |found: &Regions| found.regions.iter().map(|r| (r.a, r.b, r.len)).collect::<Vec<_>>();
    assert_eq!(places(&all), [(0, 4108, 500), (507, 4009, 90), (604, 0, 4000)]);
    let two = compare_regions(&&a[..], &&b[..], 1 << 20, 2).unwrap();
    assert_eq!((places(&two), two.omitted), (vec![(0, 4108, 500), (604, 0, 4000)], 1));
    assert_eq!(two.common, all.common);
}

/// Minutes would pass if any of these were quadratic.
#[test]
fn repeats_are_linear() {
    let zeros = vec![0u8; 8 << 20];
    let mut longer = zeros.clone();
    longer.extend_from_slice(b"x");
    longer.extend_from_slice(&zeros[..1000]);
    let common = compare(&&zeros[..], &&longer[..], 1 << 20).unwrap();
    assert_eq!((common.a_bytes, common.b_bytes), (8 << 20, (8 << 20) + 1000));
    let lines = b"the same line again and again, of no round length\n".repeat(40_000);
    let mut other = lines.clone();
    other.insert(1_000_000, b'!');
    other.splice(0..0, *b"start");
    let common = compare(&&lines[..], &&other[..], 64 << 20).unwrap();
    assert_eq!((common.a_bytes, common.b_bytes), (2_000_000, 2_000_000));
    let common = compare(&&lines[..1000], &&other[..], 64 << 20).unwrap();
    assert_eq!(common.a_bytes, 1000);
    let regions = compare_regions(&&lines[..], &&other[..], 64 << 20, 100).unwrap();
    assert_eq!((regions.common.a_bytes, regions.omitted), (2_000_000, 0));
    let regions = compare_regions(&&zeros[..], &&longer[..], 64 << 20, 100).unwrap();
    assert_eq!(regions.common.a_bytes, 8 << 20);
}

#[test]
fn a_source_that_shrinks_is_an_error() {
    struct Liar;
    impl Source for Liar {
        fn len(&self) -> u64 {
            1000
        }
        fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
            let count = (500u64.saturating_sub(offset) as usize).min(buf.len());
            buf[..count].fill(1);
            Ok(count)
        }
    }
    assert!(compare(&Liar, &&[1u8; 1000][..], 1 << 20).is_err());
}

/// Prints how fast large files go: `cargo test --release -- --ignored --nocapture speed`.
#[test]
#[ignore = "a measurement, not a check"]
#[expect(clippy::print_stderr, reason = "it is for reading")]
fn speed() {
    let noise = |seed| super::super::tests::noise(32 << 20, seed);
    let bytes = noise(1);
    let mut edited = bytes.clone();
    (0..30usize).for_each(|i| edited.insert(1000 + i * 1_000_003, b'!'));
    let other = noise(2);
    for (name, b) in [("the same", &bytes), ("30 edits", &edited), ("unrelated", &other)] {
        let start = std::time::Instant::now();
        compare(&&bytes[..], &&b[..], 512 << 20).unwrap();
        let rate = 64.0 * 1.048576 / start.elapsed().as_secs_f64();
        eprintln!("32 MiB with {name}: {rate:.0} MB/s of both");
    }
}
