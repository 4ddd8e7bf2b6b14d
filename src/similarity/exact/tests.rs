use super::*;
use proptest::prelude::*;

/// By the definition, in O(n * m).
fn reference(a: &[u8], b: &[u8]) -> u64 {
    if a == b {
        return a.len() as u64;
    }
    let mut covered = vec![false; a.len()];
    for (i, window) in a.windows(MATCH_BYTES_MIN).enumerate() {
        if b.windows(MATCH_BYTES_MIN).any(|other| other == window) {
            covered[i..i + MATCH_BYTES_MIN].fill(true);
        }
    }
    covered.iter().filter(|&&c| c).count() as u64
}

fn check(a: &[u8], b: &[u8], memory: usize) -> Common {
    let common = compare(&a, &b, memory).unwrap();
    assert_eq!(common.a_bytes, reference(a, b));
    assert_eq!(common.b_bytes, reference(b, a));
    assert_eq!(common.identical, a == b);
    common
}

/// Goes through segments of 64 bytes, which `compare` would not make so small.
fn check_segmented(a: &[u8], b: &[u8]) {
    if a.len().min(b.len()) >= MATCH_BYTES_MIN && a != b {
        let none = Known { prefix: 0, suffix: 0 };
        for segment in [64, 128, 320] {
            assert_eq!(covered(&a, &b, none, segment).unwrap(), reference(a, b), "segment {segment}");
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
