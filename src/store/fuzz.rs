//! The store's decoders, fed with any bytes. For `crate::fuzz` only; see there.
//!
//! Everything stands in one place: store 7..., pack 3. Frames of the pack target stand where they are in it.

use super::frame::{HEADER_BYTES, Header, MAGIC, Place, u32_at};
use super::index::{decode_position, encode_position};
use super::pack::{
    Entry, FORMAT, PACK_HEADER_BYTES, PackHeader, Packs, encode_footer, encode_header, parse_entries,
    read_footer, read_header,
};
use super::scan::{Item, Scanner};
use crate::env::{DiskFile, RealDisk};
use crate::id::StoreId;
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

/// Makes a frame that stands at `offset` verify, with its payload cut to what there is.
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

/// Makes the checksums of a mutant of [`frame`] right.
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
    let again = encode_footer(entries, place(offset));
    // The end magic is looked at by who reads the trailer, not by who reads the rows.
    let (rows, payload) = (&bytes[..at], &again[HEADER_BYTES..]);
    assert!(!sorted || payload[..at] == *rows, "sorted rows have one encoding");
    assert_eq!(parse_entries(payload, PACK, offset).map_or(0, |entries| entries.len()), count);
}

/// Moves the footer to where every row of a mutant of [`footer`] lies before it.
pub fn repair_footer(bytes: &mut [u8]) {
    let Some(at) = bytes.len().checked_sub(TRAILER_BYTES) else { return };
    put_u32(bytes, at, u32::MAX);
}

/// A file that can only be read.
struct Memory<'a>(&'a [u8]);

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
    if let PackHeader::Whole { version: FORMAT, store, pack } = header {
        assert!(u32_at(bytes, 32) != 0 || encode_header(store, pack) == bytes[..PACK_HEADER_BYTES as usize]);
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

/// Makes header, frames and footer of a mutant of [`pack`] verify, wherever a frame's magic stands.
pub fn repair_pack(bytes: &mut [u8]) {
    let len = bytes.len();
    if len < PACK_HEADER_BYTES as usize + TRAILER_BYTES {
        return;
    }
    bytes[..PACK_HEADER_BYTES as usize].copy_from_slice(&encode_header(STORE, PACK));
    let found = |bytes: &[u8], from: usize| {
        bytes.get(from..)?.windows(MAGIC.len()).position(|window| window == MAGIC).map(|skip| from + skip)
    };
    let mut at = PACK_HEADER_BYTES as usize;
    let mut last = None;
    while let Some(next) = found(bytes, at) {
        last = Some(next);
        at = next + HEADER_BYTES;
    }
    // The last frame is taken for the footer: it says itself where it stands.
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

/// The row of the index that says how far it reaches.
pub fn position(bytes: &[u8]) {
    if let Some((at, counters)) = decode_position(bytes, STORE) {
        assert_eq!(encode_position(STORE, at, counters), bytes, "a position has one encoding");
    }
}

/// Makes the checksum of a mutant of [`position`] right.
pub fn repair_position(bytes: &mut [u8]) {
    if let Some(at) = bytes.len().checked_sub(4) {
        let crc = crc32fast::hash(&bytes[..at]);
        put_u32(bytes, at, crc);
    }
}
