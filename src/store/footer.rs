//! Footers of packs: the entries of all frames.
//!
//! [`super::pack`] shows the layout.

use super::compact::{self, Recipes};
use super::entry::{Address, Entry};
use super::frame::{self, CODEC_RAW, CODEC_ZSTD, HEADER_BYTES, Header, Key, Kind, Place, u32_at};
use super::pack::{GROUPED, PACK_HEADER_BYTES};
use crate::env::DiskFile;
use crate::id::StoreId;
use std::io;

const END_MAGIC: [u8; 4] = [0xd5, b'e', b'n', b'd'];

const TRAILER_BYTES: usize = 8;

const ENTRY_BYTES: usize = 45;

/// Encodes a complete footer frame for a pack of this version whose next frame would be at `place`; a compact
/// one uses the pack's recipes.
pub(super) fn encode_footer(
    mut entries: Vec<Entry>,
    place: Place,
    version: u32,
    recipes: Option<&Recipes>,
) -> Vec<u8> {
    if version >= GROUPED {
        entries.iter_mut().for_each(|entry| entry.key = entry.key.looked_up());
    }
    match recipes {
        Some(recipes) => {
            entries.retain(|entry| !recipes.tell(entry));
            entries.sort_unstable_by_key(|entry| (entry.address.offset, entry.key));
        }
        None => entries.sort_unstable_by_key(|entry| (entry.key, entry.address.offset)),
    }
    let mut out = vec![0; HEADER_BYTES];
    for entry in &entries {
        out.extend_from_slice(&entry.key.0);
        out.extend_from_slice(&entry.address.offset.to_le_bytes());
        out.extend_from_slice(&entry.address.stored_len.to_le_bytes());
        out.extend_from_slice(&entry.address.raw_len.to_le_bytes());
    }
    let rows_len = out.len() - HEADER_BYTES;
    if let Some(recipes) = recipes {
        let packed = compact::compress(&out[HEADER_BYTES..], recipes);
        out.truncate(HEADER_BYTES);
        out.extend_from_slice(&packed);
    }
    out.extend_from_slice(&place.offset.to_le_bytes());
    out.extend_from_slice(&END_MAGIC);
    let payload = &out[HEADER_BYTES..];
    let mut header = frame::raw(Kind::Footer, payload);
    if recipes.is_some() {
        (header.codec, header.raw_len) = (CODEC_ZSTD, rows_len as u32);
    }
    out[..HEADER_BYTES].copy_from_slice(&header.encode(place));
    out
}

/// Returns the entries of a sealed pack of `len` bytes, and the offset of its footer; `None` if it is not
/// sealed or its footer does not fully verify.
pub(super) fn read_footer(
    file: &dyn DiskFile,
    store: StoreId,
    pack: u32,
    len: u64,
) -> io::Result<Option<(u32, Vec<Entry>)>> {
    if len < u64::from(PACK_HEADER_BYTES) + (HEADER_BYTES + TRAILER_BYTES) as u64 || len > u64::from(u32::MAX)
    {
        return Ok(None);
    }
    let mut trailer = [0; TRAILER_BYTES];
    file.read_exact_at(&mut trailer, len - TRAILER_BYTES as u64)?;
    let offset = u32_at(&trailer, 0);
    let frame_len = len.saturating_sub(u64::from(offset));
    if trailer[4..] != END_MAGIC
        || offset < PACK_HEADER_BYTES
        || frame_len < (HEADER_BYTES + TRAILER_BYTES) as u64
    {
        return Ok(None);
    }
    let mut head = [0; HEADER_BYTES];
    file.read_exact_at(&mut head, u64::from(offset))?;
    let Ok(header) = Header::parse(&head, Place { store, pack, offset }) else {
        return Ok(None);
    };
    if header.kind != Kind::Footer as u8 || header.frame_len() != frame_len {
        return Ok(None);
    }
    let mut payload = vec![0; header.stored_len as usize];
    file.read_exact_at(&mut payload, u64::from(offset) + HEADER_BYTES as u64)?;
    if header.check(&payload).is_err() {
        return Ok(None);
    }
    let place = Place { store, pack, offset };
    Ok(parse_footer(&header, &payload, file, place).map(|entries| (offset, entries)))
}

/// Returns the entries of a footer at `place` with a valid checksum; `None` if it is not a footer.
pub(super) fn parse_footer(
    header: &Header,
    payload: &[u8],
    file: &dyn DiskFile,
    place: Place,
) -> Option<Vec<Entry>> {
    match (header.codec, header.flags) {
        (CODEC_RAW, 0) if header.raw_len == header.stored_len => {
            parse_entries(payload, place.pack, place.offset)
        }
        (CODEC_ZSTD, 0) => {
            let (packed, trailer) = payload.split_last_chunk::<TRAILER_BYTES>()?;
            let (rows, told) = compact::expand(header, packed, file, place)?;
            let mut entries = parse_entries(&[&rows, &trailer[..]].concat(), place.pack, place.offset)?;
            entries.extend(told);
            Some(entries)
        }
        _ => None,
    }
}

/// Whether the last bytes of a pack point to a footer at `offset`.
pub(super) fn claims_footer_at(file: &dyn DiskFile, len: u64, offset: u32) -> bool {
    let mut trailer = [0; TRAILER_BYTES];
    let at = len.saturating_sub(TRAILER_BYTES as u64);
    file.read_exact_at(&mut trailer, at).is_ok() && trailer[4..] == END_MAGIC && u32_at(&trailer, 0) == offset
}

/// Returns the entries of a footer payload at `footer_offset`; `None` if it is invalid.
pub(super) fn parse_entries(payload: &[u8], pack: u32, footer_offset: u32) -> Option<Vec<Entry>> {
    let (rows, trailer) = payload.split_last_chunk::<TRAILER_BYTES>()?;
    if !rows.len().is_multiple_of(ENTRY_BYTES) || u32_at(trailer, 0) != footer_offset {
        return None;
    }
    let entry = |row: &[u8]| {
        let address =
            Address { pack, offset: u32_at(row, 33), stored_len: u32_at(row, 37), raw_len: u32_at(row, 41) };
        let end = u64::from(address.offset) + HEADER_BYTES as u64 + u64::from(address.stored_len);
        let key = Key(*row.first_chunk()?);
        let max = Kind::of(key.kind()).map_or(frame::RECIPE_BYTES_MAX, Kind::raw_bytes_max);
        let sane =
            address.offset >= PACK_HEADER_BYTES && end <= u64::from(footer_offset) && address.raw_len <= max;
        sane.then_some(Entry { key, address })
    };
    rows.chunks_exact(ENTRY_BYTES).map(entry).collect()
}
