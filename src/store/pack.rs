//! Pack files: names, headers, footers, and the open files for reading.
//!
//! ```text
//! pack   = header frame* [footer frame]
//! header = magic (8) | format version u32 | pack number u32 | store id (16) | 0 u32 | CRC-32 of the 36 bytes
//! footer = a frame of kind 3; payload = entry* | offset of the footer frame u32 | end magic (4)
//!          of version 4 the entries are compressed ([`super::compact`]); its id is the hash of the payload as it stands
//! entry  = id (32) | kind u8 | offset u32 | stored length u32 | raw length u32, sorted by id and kind
//!          a chunk in a group: where the group's frame stands and how long it is stored, the chunk's raw length
//! ```
//!
//! Invariants: a pack that ends in a footer is sealed and never changes again. The header has the same layout
//! in every format version, so that an older program can name a version that it cannot read.

use super::compact::{self, Recipes};
use super::error::StoreError;
use super::frame::{self, CODEC_RAW, CODEC_ZSTD, HEADER_BYTES, Header, Key, Kind, Place, u32_at};
use super::group_table::Named;
use crate::env::{Access, Disk, DiskFile};
use crate::id::{PackId, StoreId};
use std::collections::HashSet;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Bytes of a pack file before its first frame.
pub(super) const PACK_HEADER_BYTES: u32 = 40;
/// The newest format version that this program reads.
pub(super) const FORMAT: u32 = GROUPED;
/// The version of packs without groups: programs that do not know groups can read them.
pub(super) const PLAIN: u32 = 1;
/// From this version on footers are compressed. Earlier programs wrote version 2 and 3 (groups with names; 3
/// may have inflated ones), 4 (groups with a base also have names), and 5 (without LZMA).
pub(super) const COMPACT: u32 = 4;
/// The version of packs that may have groups. Their footers have no group ids, because nothing looks up
/// groups.
pub(super) const GROUPED: u32 = 6;
const PACK_MAGIC: [u8; 8] = *b"dedupfs\x1a";
const END_MAGIC: [u8; 4] = [0xd5, b'e', b'n', b'd'];
const TRAILER_BYTES: usize = 8;
const ENTRY_BYTES: usize = 45;
/// Pack files kept open for reading.
const OPEN_FILES: usize = 256;

/// Location and length of a frame; the target of an index row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Address {
    pub(super) pack: u32,
    pub(super) offset: u32,
    pub(super) stored_len: u32,
    pub(super) raw_len: u32,
}

/// A frame in a pack, or a chunk in such a frame, by id.
#[derive(Clone, Copy)]
pub(super) struct Entry {
    pub(super) key: Key,
    pub(super) address: Address,
}

impl Entry {
    pub(super) fn of(header: &Header, pack: u32, offset: u32) -> Entry {
        Entry {
            key: header.key(),
            address: Address { pack, offset, stored_len: header.stored_len, raw_len: header.raw_len },
        }
    }

    /// Returns the footer entries of a frame: itself, and its chunks if it is a group.
    pub(super) fn all_of(
        header: &Header,
        chunks: impl IntoIterator<Item = Named>,
        pack: u32,
        offset: u32,
    ) -> Vec<Entry> {
        let frame = Entry::of(header, pack, offset);
        let entry = |(id, raw_len): Named| Entry {
            key: Key::new(&id.0, header.member_kind() as u8),
            address: Address { raw_len, ..frame.address },
        };
        std::iter::once(frame).chain(chunks.into_iter().map(entry)).collect()
    }

    /// Whether the index has a row for it.
    pub(super) fn is_row(&self) -> bool {
        Kind::of(self.key.kind()).is_some_and(Kind::is_indexed)
    }
}

/// The header of a pack file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PackHeader {
    Whole { version: u32, store: StoreId, pack: u32 },
    Damaged,
}

pub(super) fn encode_header(store: StoreId, pack: u32, version: u32) -> [u8; PACK_HEADER_BYTES as usize] {
    let mut out = [0; PACK_HEADER_BYTES as usize];
    out[..8].copy_from_slice(&PACK_MAGIC);
    out[8..12].copy_from_slice(&version.to_le_bytes());
    out[12..16].copy_from_slice(&pack.to_le_bytes());
    out[16..32].copy_from_slice(&store.0);
    let crc = crc32fast::hash(&out[..36]);
    out[36..].copy_from_slice(&crc.to_le_bytes());
    out
}

pub(super) fn read_header(file: &dyn DiskFile) -> io::Result<PackHeader> {
    let mut bytes = [0; PACK_HEADER_BYTES as usize];
    match file.read_exact_at(&mut bytes, 0) {
        Ok(()) => {}
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(PackHeader::Damaged),
        Err(e) => return Err(e),
    }
    if bytes[..8] != PACK_MAGIC || u32_at(&bytes, 36) != crc32fast::hash(&bytes[..36]) {
        return Ok(PackHeader::Damaged);
    }
    let mut store = [0; 16];
    store.copy_from_slice(&bytes[16..32]);
    Ok(PackHeader::Whole { version: u32_at(&bytes, 8), store: StoreId(store), pack: u32_at(&bytes, 12) })
}

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

/// The directory of packs, and a bounded number of open pack files.
pub(super) struct Packs {
    pub(super) dir: PathBuf,
    pub(super) store: StoreId,
    pub(super) disk: Arc<dyn Disk>,
    open: quick_cache::sync::Cache<u32, Arc<dyn DiskFile>>,
    present: RwLock<Present>,
}

/// The existing packs.
#[derive(Default)]
struct Present {
    packs: HashSet<u32>,
    /// Removed on purpose: their absence is not damage.
    retired: HashSet<u32>,
}

impl Packs {
    pub(super) fn new(disk: Arc<dyn Disk>, dir: PathBuf, store: StoreId) -> Packs {
        Packs {
            dir,
            store,
            disk,
            open: quick_cache::sync::Cache::new(OPEN_FILES),
            present: RwLock::default(),
        }
    }

    pub(super) fn path(&self, pack: u32) -> PathBuf {
        self.dir.join(format!("{}.pack", PackId(pack)))
    }

    pub(super) fn place(&self, pack: u32, offset: u32) -> Place {
        Place { store: self.store, pack, offset }
    }

    fn present(&self) -> RwLockReadGuard<'_, Present> {
        self.present.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn present_mut(&self) -> RwLockWriteGuard<'_, Present> {
        self.present.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this pack exists; rows that point to other packs are worthless.
    pub(super) fn has(&self, pack: u32) -> bool {
        self.present().packs.contains(&pack)
    }

    pub(super) fn count(&self) -> u64 {
        self.present().packs.len() as u64
    }

    pub(super) fn add(&self, pack: u32) {
        self.present_mut().packs.insert(pack);
    }

    /// Stops look-ups from finding this pack, and marks its future absence as intended.
    pub(super) fn retire(&self, pack: u32) {
        let mut present = self.present_mut();
        present.packs.remove(&pack);
        present.retired.insert(pack);
    }

    pub(super) fn retired(&self) -> Vec<u32> {
        self.present().retired.iter().copied().collect()
    }

    pub(super) fn is_retired(&self, pack: u32) -> bool {
        self.present().retired.contains(&pack)
    }

    /// Closes a removed pack, so that the disk space is freed.
    pub(super) fn close(&self, pack: u32) {
        self.open.remove(&pack);
    }

    /// Returns a pack for reading, and keeps it open.
    pub(super) fn file(&self, pack: u32) -> io::Result<Arc<dyn DiskFile>> {
        self.open.get_or_insert_with(&pack, || self.open(pack, Access::Read))
    }

    pub(super) fn open(&self, pack: u32, access: Access) -> io::Result<Arc<dyn DiskFile>> {
        self.disk.open(&self.path(pack), access)
    }

    /// Makes the names of packs durable.
    pub(super) fn sync_names(&self) -> Result<(), StoreError> {
        self.disk.sync_dir(&self.dir).map_err(|e| StoreError::io("fsync", &self.dir, e))
    }

    /// Returns the numbers of all pack files, ascending. Ignores other names.
    pub(super) fn list(&self) -> Result<Vec<u32>, StoreError> {
        let failed = |e| StoreError::io("list", &self.dir, e);
        let mut packs = Vec::new();
        for name in self.disk.list(&self.dir).map_err(failed)? {
            let digits = name.to_str().and_then(|name| name.strip_suffix(".pack"));
            packs.extend(digits.and_then(pack_number));
        }
        packs.sort_unstable();
        Ok(packs)
    }
}

fn pack_number(digits: &str) -> Option<u32> {
    let number = u32::from_str_radix(digits, 16).ok()?;
    (PackId(number).to_string() == digits).then_some(number)
}
