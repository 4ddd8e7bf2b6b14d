//! The laws of deltas: what is encoded is decoded, always as the same bytes; what is damaged is refused.

use super::*;
use proptest::prelude::*;
use std::io;

#[derive(Default)]
struct Kept {
    hints: Vec<Option<BaseId>>,
    targets: Vec<Vec<u8>>,
    sizes: Vec<u64>,
    hashes: Vec<[u8; 32]>,
}

impl Receiver for Kept {
    fn hint(&mut self, target: u64) -> Option<BaseId> {
        self.hints.get(target as usize).copied().flatten()
    }

    fn begin(&mut self, target: u64, size: u64) -> io::Result<()> {
        assert_eq!(target, self.targets.len() as u64);
        self.targets.push(Vec::new());
        self.sizes.push(size);
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.targets.last_mut().unwrap().extend_from_slice(bytes);
        Ok(())
    }

    fn end(&mut self, target: u64, hash: [u8; 32]) -> io::Result<()> {
        assert_eq!(target, self.hashes.len() as u64);
        self.hashes.push(hash);
        Ok(())
    }
}

const LIMITS: Limits = Limits { targets_max: 1 << 20, bytes_max: 1 << 34 };

struct Asked {
    content: Vec<u8>,
    hint: Option<u64>,
    bases: Vec<u64>,
}

fn encode(bases: &[Vec<u8>], targets: &[Asked], options: Options) -> (Encoded, Vec<u8>) {
    let mut encoder = Encoder::new(&bases, options, Vec::new()).unwrap();
    for target in targets {
        let ids: Vec<_> = target.bases.iter().copied().map(BaseId).collect();
        encoder.add(&target.content, target.hint.map(BaseId), &ids).unwrap();
    }
    encoder.finish().unwrap()
}

fn decoded(bases: &[Vec<u8>], targets: &[Asked], stream: &[u8]) -> Result<Kept, DeltaError> {
    let mut kept =
        Kept { hints: targets.iter().map(|target| target.hint.map(BaseId)).collect(), ..Kept::default() };
    let mut rest = stream;
    let summary = decode(&bases, &mut rest, LIMITS, &mut kept)?;
    assert!(rest.is_empty(), "it is read to its end");
    assert_eq!(summary.targets, targets.len() as u64);
    Ok(kept)
}

/// Encodes, decodes and compares. Returns the stream.
fn round_trip(bases: &[Vec<u8>], targets: &[Asked], options: Options) -> (Encoded, Vec<u8>) {
    let (summary, stream) = encode(bases, targets, options);
    assert_eq!(summary.stream_bytes, stream.len() as u64);
    let kept = decoded(bases, targets, &stream).unwrap();
    for (number, target) in targets.iter().enumerate() {
        assert!(kept.targets[number] == target.content, "target {number}");
        assert_eq!(kept.sizes[number], target.content.len() as u64);
        assert_eq!(&kept.hashes[number], blake3::hash(&target.content).as_bytes());
    }
    assert!(encode(bases, targets, options).1 == stream, "the same bytes each time");
    (summary, stream)
}

fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        (x >> 24) as u8
    };
    (0..len).map(|_| next()).collect()
}

fn text(lines: usize, seed: u64) -> Vec<u8> {
    let words =
        ["the", "delta", "of", "a", "content", "and", "its", "base", "copies", "from", "where", "it", "was"];
    noise(lines * 8, seed)
        .chunks(8)
        .flat_map(|bytes| {
            let line: Vec<_> = bytes.iter().map(|&byte| words[usize::from(byte) % words.len()]).collect();
            (line.join(" ") + "\n").into_bytes()
        })
        .collect()
}

#[derive(Clone, Debug)]
enum Edit {
    Insert(Vec<u8>),
    Delete(usize),
    Replace(Vec<u8>),
    Move(usize, usize),
    Duplicate(usize),
    Truncate,
    Prepend(usize),
    Zeros(usize),
}

fn edits() -> impl Strategy<Value = Vec<(usize, Edit)>> {
    let bytes = || prop::collection::vec(any::<u8>(), 0..300);
    let edit = prop_oneof![
        4 => bytes().prop_map(Edit::Insert),
        4 => (0usize..5000).prop_map(Edit::Delete),
        4 => bytes().prop_map(Edit::Replace),
        3 => (0usize..9000, any::<usize>()).prop_map(|(len, to)| Edit::Move(len, to)),
        3 => (0usize..9000).prop_map(Edit::Duplicate),
        1 => Just(Edit::Truncate),
        1 => (0usize..3000).prop_map(Edit::Prepend),
        1 => (0usize..9000).prop_map(Edit::Zeros),
    ];
    prop::collection::vec((any::<usize>(), edit), 0..12)
}

fn apply(bytes: &mut Vec<u8>, edits: &[(usize, Edit)]) {
    for (at, edit) in edits {
        let at = at % (bytes.len() + 1);
        let end = |len: usize| (at + len).min(bytes.len());
        match edit {
            Edit::Insert(new) => drop(bytes.splice(at..at, new.iter().copied())),
            Edit::Delete(len) => drop(bytes.drain(at..end(*len))),
            Edit::Replace(new) => drop(bytes.splice(at..end(new.len()), new.iter().copied())),
            Edit::Move(len, to) => {
                let moved: Vec<u8> = bytes.drain(at..end(*len)).collect();
                let to = to % (bytes.len() + 1);
                bytes.splice(to..to, moved);
            }
            Edit::Duplicate(len) => {
                let copy = bytes[at..end(*len)].to_vec();
                bytes.extend(copy);
            }
            Edit::Truncate => bytes.truncate(at),
            Edit::Prepend(len) => drop(bytes.splice(0..0, noise(*len, at as u64))),
            Edit::Zeros(len) => drop(bytes.splice(at..at, vec![0; *len])),
        }
    }
}

/// A content to begin with: text, noise, a repeated block, zeros, or nothing.
fn content() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        4 => (0usize..900, any::<u64>()).prop_map(|(lines, seed)| text(lines, seed)),
        3 => (0usize..60_000, any::<u64>()).prop_map(|(len, seed)| noise(len, seed)),
        1 => (1usize..300, 0usize..60_000).prop_map(|(period, len)| noise(period, 5).into_iter().cycle().take(len).collect()),
        1 => (0usize..60_000).prop_map(|len| vec![0; len]),
        1 => Just(Vec::new()),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Of one base, of two, of others that have nothing to do with it, and of none.
    #[test]
    fn what_is_encoded_is_decoded(
        first in content(),
        second in content(),
        edits in prop::collection::vec((edits(), any::<bool>(), 0usize..4, 0u64..3), 0..5),
        archives: bool,
    ) {
        let bases = vec![first.clone(), second.clone(), [first.clone(), second.clone()].concat()];
        let targets: Vec<_> = edits.iter().map(|(edits, of_second, count, hint)| {
            let mut content = if *of_second { second.clone() } else { first.clone() };
            apply(&mut content, edits);
            let bases = (0..*count as u64).map(|n| (n + hint) % 3).collect();
            Asked { content, hint: (*hint < 2).then_some(*hint), bases }
        }).collect();
        round_trip(&bases, &targets, Options { level: Level::Normal, archives });
    }

    /// A damaged stream is refused: never other bytes.
    #[test]
    fn damage_is_refused(edits in edits(), at: prop::sample::Index, bit in 0u8..8, cut: bool) {
        let base = text(300, 1);
        let mut content = base.clone();
        apply(&mut content, &edits);
        content.extend(text(20, 2));
        let bases = [base];
        let targets = [Asked { content, hint: Some(0), bases: vec![0] }];
        let (_, mut stream) = encode(&bases, &targets, Options::default());
        let at = at.index(stream.len());
        if cut {
            stream.truncate(at);
        } else {
            stream[at] ^= 1 << bit;
        }
        let result = decoded(&bases, &targets, &stream);
        // zstd has some bits that do not matter.
        prop_assert!(result.is_err() || result.is_ok_and(|kept| !cut && kept.targets[0] == targets[0].content));
    }

    /// Archives, with their members edited.
    #[test]
    fn archives_round_trip(edits in prop::collection::vec(edits(), 1..4), trailing in edits(), level in 0u32..10) {
        let members: Vec<_> = (0..4).map(|n| text(100 * (n + 1), n as u64)).collect();
        let base = zip_of(&members, 6);
        let mut edited = members.clone();
        edits.iter().zip(&mut edited).for_each(|(edits, member)| apply(member, edits));
        let mut damaged = zip_of(&edited, level);
        apply(&mut damaged, &trailing);
        let targets: Vec<_> = [zip_of(&edited, level), damaged]
            .into_iter()
            .map(|content| Asked { content, hint: Some(0), bases: vec![0] })
            .collect();
        round_trip(&[base], &targets, Options::default());
    }
}

fn zip_of(members: &[Vec<u8>], level: u32) -> Vec<u8> {
    use std::io::Write;
    let mut writer = ::zip::ZipWriter::new(io::Cursor::new(Vec::new()));
    let options = ::zip::write::SimpleFileOptions::default()
        .compression_method(::zip::CompressionMethod::Deflated)
        .compression_level(Some(i64::from(level.clamp(1, 9))))
        .last_modified_time(::zip::DateTime::default());
    for (number, member) in members.iter().enumerate() {
        writer.start_file(format!("word/part{number}.xml"), options).unwrap();
        writer.write_all(member).unwrap();
    }
    writer.finish().unwrap().into_inner()
}

/// Seen to fail: as it was first written, which took what one header claims for passed by.
#[test]
fn a_header_that_claims_to_reach_beyond_the_next_hides_no_member() {
    let members: Vec<_> = (0..3).map(|n| text(300, n)).collect();
    let whole = zip_of(&members, 6);
    let headers: Vec<_> = (0..whole.len() - 4).filter(|at| zip::looks_like(&whole[*at..])).collect();
    assert_eq!(headers.len(), 3);
    let mut lies = whole.clone();
    // The length of an extra field: the data would begin within the second member.
    let len = (headers[1] - headers[0] + 40) as u16;
    lies[headers[0] + 28..][..2].copy_from_slice(&len.to_le_bytes());
    assert_eq!(zip::target(&whole).unwrap().members.len(), 3);
    assert_eq!(zip::target(&lies).unwrap().members.len(), 2);
    round_trip(&[whole], &one(lies), Options::default());
}

fn one(content: Vec<u8>) -> [Asked; 1] {
    [Asked { content, hint: Some(0), bases: vec![0] }]
}

#[test]
fn nothing_takes_little() {
    let (_, stream) = round_trip(&[], &[], Options::default());
    assert_eq!(stream.len(), 34);
    let (_, stream) = round_trip(&[text(5000, 1)], &one(text(5000, 1)), Options::default());
    assert!(stream.len() < 80, "{}", stream.len());
}

#[test]
fn a_small_edit_takes_little() {
    let base = text(20_000, 1);
    let mut content = base.clone();
    content.splice(300_000..300_010, *b"thirteen more");
    content.drain(500_000..500_100);
    let (summary, stream) = round_trip(&[base], &one(content), Options::default());
    assert!(stream.len() < 200, "{}", stream.len());
    assert_eq!(summary.copies, 3);
}

#[test]
fn what_moved_is_copied() {
    let base = noise(200_000, 1);
    let content = [&base[120_000..], &base[..50_000], &base[40_000..70_000]].concat();
    let (summary, stream) = round_trip(&[base], &one(content), Options::default());
    assert!(stream.len() < 120 && summary.literal_bytes == 0, "{summary:?}");
}

/// Members are compared by what they inflate to, if zlib gives their very bytes back.
#[test]
fn archives_are_looked_into() {
    let members: Vec<_> = (0..6).map(|n| text(2000, n)).collect();
    let base = zip_of(&members, 6);
    let mut edited = members.clone();
    edited[2].splice(1000..1004, *b"changed it");
    for level in [1, 6, 9] {
        let content = zip_of(&edited, level);
        let size = content.len();
        let (_, with) = round_trip(std::slice::from_ref(&base), &one(content), Options::default());
        assert!(with.len() < 500 && with.len() * 100 < size, "level {level}: {} of {size}", with.len());
    }
    let content = zip_of(&edited, 6);
    let (_, without) = round_trip(&[base], &one(content), Options { archives: false, ..Options::default() });
    assert!(without.len() > 5000, "{}", without.len());
}

/// A member that something else deflated stays as it is, and is found where the base has it so.
#[test]
fn members_of_other_programs_stay() {
    let members: Vec<_> = (0..3).map(|n| text(3000, n)).collect();
    let own = zip_of(&members, 6);
    let foreign = stored_blocks(&text(1000, 9));
    let base = [&own[..], &foreign].concat();
    let mut edited = members.clone();
    edited[0].truncate(70_000);
    let content = [&zip_of(&edited, 6)[..], &foreign].concat();
    assert!(zip::target(&content).unwrap().others);
    let (summary, stream) = round_trip(&[base], &one(content), Options::default());
    assert!(stream.len() < 1000, "{summary:?}");
}

/// A local header, and deflate's stored blocks of one byte each: no program writes those.
fn stored_blocks(bytes: &[u8]) -> Vec<u8> {
    let mut member = b"PK\x03\x04\x14\0\0\0\x08\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x01\0\0\0x".to_vec();
    for (n, &byte) in bytes.iter().enumerate() {
        member.extend([u8::from(n + 1 == bytes.len()), 1, 0, 0xfe, 0xff, byte]);
    }
    member
}

/// Anchors, gaps in large views, and several pieces.
#[test]
fn large_contents() {
    let mut base = noise(20 << 20, 1);
    base.extend(text(100_000, 3));
    base.extend(noise(25 << 20, 2));
    let mut content = base.clone();
    for n in 0..200 {
        let at = n * 200_000 + 77;
        content[at..at + 500].copy_from_slice(&noise(500, n as u64));
    }
    content.splice(10_000_000..10_000_000, noise(3_000_000, 7));
    let moved: Vec<u8> = content.drain(30_000_000..34_000_000).collect();
    content.extend(moved);
    let (summary, stream) = round_trip(&[base], &one(content), Options::default());
    assert!(summary.literal_bytes < 3_000_000 + 200 * 600, "{summary:?}");
    assert!(stream.len() < 3_000_000 + 200 * 700, "{summary:?}");
}

/// What a segment may have is more than what a stream of empty targets would need.
#[test]
fn many_targets() {
    let bases: &[Vec<u8>] = &[];
    let mut encoder = Encoder::new(&bases, Options::default(), Vec::new()).unwrap();
    let count = SEGMENT_ITEMS + 1000;
    for _ in 0..count {
        encoder.add(&Vec::new(), None, &[]).unwrap();
    }
    let (_, stream) = encoder.finish().unwrap();
    let mut kept = Kept::default();
    let decoded = decode(&bases, &mut &stream[..], LIMITS, &mut kept).unwrap();
    assert_eq!((decoded.targets, kept.targets.len() as u64), (count, count));
}

#[test]
fn limits_hold() {
    let bases = [text(100, 1)];
    let targets: Vec<_> = (0..3).flat_map(|n| one(text(100 + n, 1))).collect();
    let (_, stream) = encode(&bases, &targets, Options::default());
    for limits in [Limits { targets_max: 2, ..LIMITS }, Limits { bytes_max: 9000, ..LIMITS }] {
        let mut kept = Kept { hints: vec![Some(BaseId(0)); 3], ..Kept::default() };
        let error = decode(&&bases[..], &mut &stream[..], limits, &mut kept).err().unwrap();
        assert!(matches!(error, DeltaError::TooMuch { .. }), "{error}");
        assert!(kept.targets.is_empty(), "refused before anything is written");
    }
}

#[test]
fn other_bases_are_noticed() {
    let (base, mut content) = (text(400, 1), text(400, 1));
    content.splice(100..100, *b"inserted");
    let (_, stream) = encode(std::slice::from_ref(&base), &one(content.clone()), Options::default());
    let mut other = base.clone();
    other[9000] ^= 1;
    let error = decoded(&[other], &one(content.clone()), &stream).err().unwrap();
    assert!(matches!(error, DeltaError::Mismatch), "{error}");
    let error = decoded(&[base[..5000].to_vec()], &one(content.clone()), &stream).err().unwrap();
    assert!(matches!(error, DeltaError::Damaged { .. } | DeltaError::Mismatch), "{error}");
    let error = decoded(&[], &one(content), &stream).err().unwrap();
    assert!(matches!(error, DeltaError::UnknownBase { base: BaseId(0) }), "{error}");
}

/// A target that shrinks while it is read, and one that cannot be.
#[test]
fn targets_that_change_are_refused() {
    struct Shrinking;
    impl ReadAt for Shrinking {
        fn size(&self) -> u64 {
            5000
        }
        fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
            let len = 3000usize.saturating_sub(offset as usize).min(buf.len());
            buf[..len].fill(1);
            Ok(len)
        }
    }
    let bases: &[Vec<u8>] = &[];
    let mut encoder = Encoder::new(&bases, Options::default(), Vec::new()).unwrap();
    let error = encoder.add(&Shrinking, None, &[]).unwrap_err();
    assert!(matches!(error, DeltaError::Changed { target: 0, expected: 5000, found: 3000 }), "{error}");
}
