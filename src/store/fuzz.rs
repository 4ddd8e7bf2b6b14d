//! The store's decoders, fed with arbitrary bytes, for `crate::fuzz`.
//!
//! All bytes are at one location: store 7..., pack 3. Frames of the pack target are at their own offsets in
//! it.

use super::compact::Recipes;
use super::dictionary::Dictionary;
use super::entry::Entry;
use super::footer::{encode_footer, parse_entries, parse_footer, read_footer};
use super::frame::{self, CODEC_ZSTD, HEADER_BYTES, Header, Kind, MAGIC, Place, u32_at};
use super::gathered::{Gathered, With};
use super::group::{Base, Group};
use super::group_table::{Table, set_distance, set_distances};
use super::index::{decode_position, encode_position};
use super::pack::{FORMAT, PACK_HEADER_BYTES, PLAIN, PackHeader, Packs, encode_header, read_header};
use super::scan::{Item, Scanner};
use crate::deflate::{Deflater, Level, Stream};
use crate::env::{DiskFile, RealDisk};
use crate::id::{ChunkId, StoreId};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

const STORE: StoreId = StoreId([7; 16]);
const PACK: u32 = 3;
const TRAILER_BYTES: usize = 8;

fn place(offset: u32) -> Place {
    Place { store: STORE, pack: PACK, offset }
}

fn put_u32(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

/// One frame at the beginning of its pack.
pub fn frame(bytes: &[u8]) {
    let at = place(PACK_HEADER_BYTES);
    let Ok(header) = Header::parse(bytes, at) else { return };
    assert_eq!(header.encode(at), bytes[..HEADER_BYTES], "a header has one encoding");
    let payload = bytes[HEADER_BYTES..].get(..header.stored_len as usize);
    if let Some(Ok(raw)) = payload.map(|payload| header.decode(payload)) {
        assert_eq!(raw.len(), header.raw_len as usize);
    }
}

/// A delta or a group at the beginning of its pack. A delta may use `root` as its root.
pub fn group(bytes: &[u8]) {
    let at = place(PACK_HEADER_BYTES);
    let Ok(header) = Header::parse(bytes, at) else { return };
    let Some(payload) = bytes[HEADER_BYTES..].get(..header.stored_len as usize) else { return };
    if !header.is_group() {
        assert!(
            Group::decode(&header, payload, Base::Nothing).is_err(),
            "no other frame is taken for a group"
        );
        return;
    }
    if header.check(payload).is_ok()
        && let Ok(table) = Table::parse(&header, payload)
    {
        let bytes: u64 = table.members.iter().map(|member| u64::from(member.len)).sum();
        let most = if header.is_inflated() { Kind::Chunk.raw_bytes_max() } else { header.raw_len };
        assert!(bytes <= u64::from(most), "chunks lie within their group");
        let (root, dictionary) = (root(), dictionary());
        let base = match header.kind == Kind::Delta as u8 {
            true => Base::Root(&root),
            false => Base::Dictionary(&dictionary),
        };
        if let Ok(group) = Group::decode(&header, payload, base) {
            for (id, len) in group.named() {
                let chunk = group.chunk(&id.0, len);
                // The first of two members with one name is found. Deflated content has its name, or is not
                // returned.
                assert!(chunk.is_ok_and(|chunk| chunk.len() == len as usize) || header.is_inflated());
            }
        }
    }
}

/// Some group.
fn root() -> Group {
    let mut gathered = Gathered::default();
    gathered.push(&ChunkId([1; 32]), &[b'r'; 300]);
    let mut frame = Vec::new();
    let header = gathered.build(&mut frame, With::Nothing(1));
    Group::decode(&header, &frame[HEADER_BYTES..], Base::Nothing).expect("it was just made")
}

/// Some dictionary: one without tables of its own.
fn dictionary() -> Dictionary {
    Dictionary::new(&[b'd'; 300]).expect("zstd takes any bytes but its own magic")
}

/// Fixes the checksums of a mutant of [`group`], and makes it refer to `root` or the dictionary.
pub fn repair_group(bytes: &mut [u8]) {
    if bytes.get(4) == Some(&(Kind::Delta as u8)) && bytes.len() >= HEADER_BYTES + 16 {
        bytes[HEADER_BYTES + 8..HEADER_BYTES + 16].copy_from_slice(&root().id()[..8]);
    } else if bytes.len() >= HEADER_BYTES + 16 {
        bytes[HEADER_BYTES + 12..HEADER_BYTES + 16].copy_from_slice(&dictionary().id()[..4]);
    }
    repair_frame(bytes);
}

/// Valid seed frames: a raw group, a compressed one, a delta, one with a dictionary, an inflated one, some
/// without names (chunks and recipes), and one of LZMA.
pub fn groups() -> Vec<Vec<u8>> {
    let make = |mut gathered: Gathered, text: &[u8], with: With<'_>| {
        gathered.push(&ChunkId([2; 32]), text);
        gathered.push(&ChunkId([3; 32]), &text[..text.len() / 2]);
        let mut frame = Vec::new();
        let mut header = gathered.build(&mut frame, with);
        let payload = &mut frame[HEADER_BYTES..];
        match with {
            With::Nothing(_) | With::Lzma => {}
            With::Root(..) => set_distance(&mut header, payload, HEADER_BYTES as u32),
            With::Dictionary(_) => set_distances(&mut header, payload, [HEADER_BYTES as u32; 2]),
        }
        let head = header.encode(place(PACK_HEADER_BYTES));
        frame[..HEADER_BYTES].copy_from_slice(&head);
        frame
    };
    let mut root = Gathered::default();
    root.push(&ChunkId([1; 32]), &[b'r'; 300]);
    let named = Gathered::default;
    let untold = || Gathered::unnamed(Kind::Chunk);
    let encoder = dictionary().encoder(1);
    vec![
        make(named(), b"q4", With::Nothing(1)),
        make(named(), &[b'z'; 200], With::Nothing(1)),
        make(named(), &[b'r'; 290], With::Root(&root, 1)),
        make(named(), &[b'd'; 290], With::Dictionary(&encoder)),
        make(untold(), &[b'r'; 290], With::Root(&root, 1)),
        make(untold(), &[b'd'; 290], With::Dictionary(&encoder)),
        inflated(),
        unnamed(Kind::Chunk),
        unnamed(Kind::Recipe),
        make(untold(), b"some bytes, the same bytes once more, and other bytes", With::Lzma),
    ]
}

/// A group that tells no names.
fn unnamed(kind: Kind) -> Vec<u8> {
    let mut gathered = Gathered::unnamed(kind);
    for bytes in [&[b'u'; 200][..], b"another", &[b'u'; 150]] {
        gathered.push(&ChunkId::of(bytes), bytes);
    }
    let mut frame = Vec::new();
    let header = gathered.build(&mut frame, With::Nothing(1));
    frame[..HEADER_BYTES].copy_from_slice(&header.encode(place(PACK_HEADER_BYTES)));
    frame
}

/// A group of one chunk: the end of a stream, and bytes behind it.
fn inflated() -> Vec<u8> {
    let plain = [b'p'; 300];
    let mut bytes = b"head".to_vec();
    let mut give = |part: &[u8]| {
        bytes.extend_from_slice(part);
        Ok::<_, std::convert::Infallible>(())
    };
    let Ok(()) = Deflater::default().deflate(&plain, Level::DEFAULT, &mut give);
    let stream = Stream { deflated: 4..bytes.len(), len: plain.len(), level: Level::DEFAULT };
    bytes.extend_from_slice(b"tail");
    let decoded = super::inflated::inflate(&bytes, &[stream], 6).expect("it was just deflated");
    let chunk = (ChunkId::of(&bytes[6..]), bytes.len() as u32 - 6);
    let mut frame = Vec::new();
    let header = Gathered::inflated(std::iter::once(chunk), decoded).build(&mut frame, With::Nothing(1));
    frame[..HEADER_BYTES].copy_from_slice(&header.encode(place(PACK_HEADER_BYTES)));
    frame
}

/// Makes a frame at `offset` verify; cuts its payload to the available bytes.
fn repair_frame_at(frame: &mut [u8], offset: u32) {
    if frame.len() < HEADER_BYTES {
        return;
    }
    frame[..4].copy_from_slice(&MAGIC);
    let room = (frame.len() - HEADER_BYTES) as u32;
    let stored = u32_at(frame, 8).min(room);
    let payload_crc = crc32fast::hash(&frame[HEADER_BYTES..][..stored as usize]);
    let mut id = [0; 32];
    id.copy_from_slice(&frame[16..48]);
    let header = Header {
        kind: frame[4],
        codec: frame[5],
        flags: u16::from_le_bytes([frame[6], frame[7]]),
        stored_len: stored,
        raw_len: u32_at(frame, 12),
        id,
        payload_crc,
    };
    frame[..HEADER_BYTES].copy_from_slice(&header.encode(place(offset)));
}

/// Fixes the checksums of a mutant of `frame`.
pub fn repair_frame(bytes: &mut [u8]) {
    repair_frame_at(bytes, PACK_HEADER_BYTES);
}

/// The payload of a footer, which stands where its trailer says.
pub fn footer(bytes: &[u8]) {
    let Some(at) = bytes.len().checked_sub(TRAILER_BYTES) else { return };
    let offset = u32_at(bytes, at);
    let Some(entries) = parse_entries(bytes, PACK, offset) else { return };
    let count = entries.len();
    assert!(entries.iter().all(|entry| entry.address.pack == PACK && entry.address.offset < offset));
    let sorted = entries.is_sorted_by_key(|entry| (entry.key, entry.address.offset));
    let again = encode_footer(entries, place(offset), PLAIN, None);
    // The trailer's reader checks the end magic; the row parser does not.
    let (rows, payload) = (&bytes[..at], &again[HEADER_BYTES..]);
    assert!(!sorted || payload[..at] == *rows, "sorted rows have one encoding");
    assert_eq!(parse_entries(payload, PACK, offset).map_or(0, |entries| entries.len()), count);
}

/// Length of the rows, then the payload of a compact footer, without its end, of a pack with one group of recipes.
pub fn compact_footer(bytes: &[u8]) {
    let Some((raw_len, payload)) = bytes.split_first_chunk::<4>() else { return };
    let pack = [&[0; PACK_HEADER_BYTES as usize], &unnamed(Kind::Recipe)[..]].concat();
    let at = place(pack.len() as u32);
    let payload = [payload, &at.offset.to_le_bytes(), b"end."].concat();
    let header = frame::raw(Kind::Footer, &payload);
    let header = Header { codec: CODEC_ZSTD, raw_len: u32::from_le_bytes(*raw_len), ..header };
    let Some(entries) = parse_footer(&header, &payload, &Memory(&pack), at) else { return };
    assert!(entries.iter().all(|entry| entry.address.pack == PACK && entry.address.offset < at.offset));
}

/// Seeds for [`compact_footer`]: without and with the group.
pub fn compact_footers() -> [Vec<u8>; 2] {
    let frame = unnamed(Kind::Recipe);
    let header = Header::parse(&frame, place(PACK_HEADER_BYTES)).expect("it was just made");
    let group = Group::decode(&header, &frame[HEADER_BYTES..], Base::Nothing).expect("it was just made");
    let entries = Entry::all_of(&header, group.named(), PACK, PACK_HEADER_BYTES);
    let pack = [&[0; PACK_HEADER_BYTES as usize], &frame[..]].concat();
    let at = place(pack.len() as u32);
    [Recipes::default(), Recipes::among(&entries, &Memory(&pack), at)].map(|recipes| {
        let footer = encode_footer(entries.clone(), at, FORMAT, Some(&recipes));
        let payload = &footer[HEADER_BYTES..footer.len() - TRAILER_BYTES];
        [&footer[12..16], payload].concat()
    })
}

/// Moves the footer behind every row of a mutant of [`footer`].
pub fn repair_footer(bytes: &mut [u8]) {
    let Some(at) = bytes.len().checked_sub(TRAILER_BYTES) else { return };
    put_u32(bytes, at, u32::MAX);
}

/// A file that can only be read.
pub(super) struct Memory<'a>(pub(super) &'a [u8]);

impl DiskFile for Memory<'_> {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let rest = self.0.get(offset as usize..).unwrap_or_default();
        let len = rest.len().min(buffer.len());
        buffer[..len].copy_from_slice(&rest[..len]);
        Ok(len)
    }

    fn write_all_at(&self, _: &[u8], _: u64) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn set_len(&self, _: u64) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.0.len() as u64)
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }
}

/// A whole pack file: its header, its footer, and the walk over its frames.
pub fn pack(bytes: &[u8]) {
    let file = Memory(bytes);
    let header = read_header(&file).expect("memory can be read");
    if let PackHeader::Whole { version: version @ 1..=FORMAT, store, pack } = header {
        assert!(
            u32_at(bytes, 32) != 0
                || encode_header(store, pack, version) == bytes[..PACK_HEADER_BYTES as usize]
        );
    }
    let len = bytes.len() as u64;
    if let Some((offset, entries)) = read_footer(&file, STORE, PACK, len).expect("memory can be read") {
        assert!(u64::from(offset) < len && entries.iter().all(|entry| entry.address.offset < offset));
    }
    let packs = Packs::new(Arc::new(RealDisk), PathBuf::new(), STORE);
    let mut scanner = Scanner::new(&packs, PACK, &file, u64::from(PACK_HEADER_BYTES), len);
    let mut at = u64::from(PACK_HEADER_BYTES);
    while let Some(item) = scanner.next() {
        let start = match item {
            Item::Frame { offset, header } => {
                let address = Entry::of(&header, PACK, offset).address;
                let payload = &bytes[offset as usize + HEADER_BYTES..][..address.stored_len as usize];
                assert_eq!(crc32fast::hash(payload), header.payload_crc);
                assert_eq!(scanner.at(), u64::from(offset) + header.frame_len());
                offset
            }
            Item::Bad { offset, end, .. } => {
                assert_eq!(scanner.at(), end);
                offset
            }
        };
        assert_eq!(u64::from(start), at, "every byte is covered by exactly one item");
        assert!(scanner.at() > at, "the walk goes on");
        at = scanner.at();
    }
    assert!(at >= len, "and comes to the end");
}

/// Makes header, frames and footer of a mutant of [`pack`] verify, at each frame magic.
pub fn repair_pack(bytes: &mut [u8]) {
    let len = bytes.len();
    if len < PACK_HEADER_BYTES as usize + TRAILER_BYTES {
        return;
    }
    bytes[..PACK_HEADER_BYTES as usize].copy_from_slice(&encode_header(STORE, PACK, FORMAT));
    let found = |bytes: &[u8], from: usize| {
        bytes.get(from..)?.windows(MAGIC.len()).position(|window| window == MAGIC).map(|skip| from + skip)
    };
    let mut at = PACK_HEADER_BYTES as usize;
    let mut last = None;
    while let Some(next) = found(bytes, at) {
        last = Some(next);
        at = next + HEADER_BYTES;
    }
    // The last frame counts as the footer: it gives its own location.
    if let Some(last) = last.filter(|last| len - last >= HEADER_BYTES + TRAILER_BYTES) {
        put_u32(bytes, len - TRAILER_BYTES, last as u32);
        put_u32(bytes, last + 8, (len - last - HEADER_BYTES) as u32);
    }
    at = PACK_HEADER_BYTES as usize;
    while let Some(next) = found(bytes, at) {
        repair_frame_at(&mut bytes[next..], next as u32);
        at = next + HEADER_BYTES;
    }
}

/// The index row that holds the position.
pub fn position(bytes: &[u8]) {
    if let Some((at, counters)) = decode_position(bytes, STORE) {
        assert_eq!(encode_position(STORE, at, counters), bytes, "a position has one encoding");
    }
}

/// Fixes the checksum of a mutant of [`position`].
pub fn repair_position(bytes: &mut [u8]) {
    if let Some(at) = bytes.len().checked_sub(4) {
        let crc = crc32fast::hash(&bytes[..at]);
        put_u32(bytes, at, crc);
    }
}
