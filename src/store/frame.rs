//! A frame: one chunk, recipe, footer or group of chunks, framed so that it can be found and checked without
//! an index.
//!
//! ```text
//! offset size
//!      0    4  magic
//!      4    1  kind: 1 chunk, 2 recipe, 3 footer, 4 void, 5 tree node, 6 events, 7 snapshot,
//!              8 group, 9 delta ([`super::group`]), 10 dictionary ([`super::dictionary`])
//!      5    1  codec of the payload: 0 raw, 1 zstd, 2 zstd with a prefix, 3 zstd with a dictionary, 4 LZMA ([`super::lzma`])
//!      6    2  flags of a group: 1 inflated ([`super::inflated`]), 2 without names ([`super::unnamed`]), 4 of recipes; a reader refuses a payload with flags it does not know
//!      8    4  stored length: bytes of payload
//!     12    4  raw length: bytes once decoded
//!     16   32  BLAKE3 of the raw bytes
//!     48    4  CRC-32 of the payload
//!     52    4  CRC-32 of bytes 0 to 52, then the store id, pack number and offset of this frame
//!     56       payload
//! ```
//!
//! Numbers are little-endian. Invariants: a frame verifies only in its own store and at its own location,
//! because both are part of its checksum. So a file that happens to contain frames (a copy of a pack, for
//! example) is never mistaken for frames when a damaged pack is searched. The header has its own checksum so
//! that a scan can skip a damaged payload exactly.

use super::member::TABLE_BYTES_MAX;
use crate::id::{ChunkId, DocumentId, RecipeId, StoreId};
use crate::recipe::CHUNK_BYTES_MAX;
use std::cell::RefCell;
use std::sync::Arc;
use zstd::bulk::Compressor;
use zstd::zstd_safe::{DCtx, SafeResult};

/// Bytes of a frame before its payload.
pub(super) const HEADER_BYTES: usize = 56;
/// First bytes of every frame.
pub(super) const MAGIC: [u8; 4] = [0xd5, b'f', b'r', 0x9e];
/// No encoded recipe may be longer: about 30 million chunks.
pub(super) const RECIPE_BYTES_MAX: u32 = 1 << 30;
/// No document may be longer.
pub(super) const DOCUMENT_BYTES_MAX: u32 = 64 << 20;
/// No frame of a dictionary may claim more.
const DICTIONARY_BYTES_MAX: u32 = 1 << 20;

/// Kind of a frame's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(super) enum Kind {
    /// Bytes of a file.
    Chunk = 1,
    /// An encoded recipe.
    Recipe = 2,
    /// The table of contents of a sealed pack.
    Footer = 3,
    /// Nothing: a range that a power cut left unwritten between written frames.
    Void = 4,
    /// A document: a directory of a snapshot.
    Node = 5,
    /// A document: file events.
    Events = 6,
    /// A document: a snapshot.
    Snapshot = 7,
    /// Several chunks.
    Group = 8,
    /// Several chunks, compressed with the group before it as their prefix.
    Delta = 9,
    /// A dictionary for groups.
    Dictionary = 10,
}

impl Kind {
    pub(super) fn of(byte: u8) -> Option<Kind> {
        use Kind::{Chunk, Delta, Dictionary, Events, Footer, Group, Node, Recipe, Snapshot, Void};
        let all = [Chunk, Recipe, Footer, Void, Node, Events, Snapshot, Group, Delta, Dictionary];
        all.into_iter().find(|kind| *kind as u8 == byte)
    }

    /// Whether frames of this kind are looked up by id. Groups are not; their chunks are.
    pub(super) fn is_indexed(self) -> bool {
        !matches!(self, Kind::Footer | Kind::Void | Kind::Group | Kind::Delta | Kind::Dictionary)
    }

    /// Returns the most raw bytes that a frame of this kind may claim.
    pub(super) fn raw_bytes_max(self) -> u32 {
        match self {
            Kind::Chunk | Kind::Group | Kind::Delta => CHUNK_BYTES_MAX,
            Kind::Recipe | Kind::Footer | Kind::Void => RECIPE_BYTES_MAX,
            Kind::Dictionary => DICTIONARY_BYTES_MAX,
            Kind::Node | Kind::Events | Kind::Snapshot => DOCUMENT_BYTES_MAX,
        }
    }
}

/// Whether frames of a kind hold several chunks.
pub(super) fn is_group(kind: u8) -> bool {
    kind == Kind::Group as u8 || kind == Kind::Delta as u8
}

/// Codecs of a payload: raw.
pub(super) const CODEC_RAW: u8 = 0;
/// One zstd frame.
pub(super) const CODEC_ZSTD: u8 = 1;
/// One zstd frame with other bytes as its prefix.
pub(super) const CODEC_PREFIX: u8 = 2;
/// One zstd frame made with a dictionary.
pub(super) const CODEC_DICTIONARY: u8 = 3;
/// One LZMA stream, for a standalone group.
pub(super) const CODEC_LZMA: u8 = 4;

/// Flag of a group that stores the inflated bytes of its chunks' deflate streams.
pub(super) const FLAG_INFLATED: u16 = 1;
/// Flag of a group whose table has no names.
pub(super) const FLAG_UNNAMED: u16 = 2;
/// Flag of a group of recipes. It has no names either.
pub(super) const FLAG_RECIPES: u16 = 4;

/// A zstd block takes at least 4 bytes and yields at most 128 KiB, so no payload expands by more than this.
const ZSTD_EXPANSION_MAX: u64 = 32 << 10;

/// Key of the index: a 32-byte id and the kind. A chunk and a recipe with the same bytes have different keys.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Key(pub(super) [u8; Key::BYTES]);

impl Key {
    pub(super) const BYTES: usize = 33;

    pub(super) fn new(id: &[u8; 32], kind: u8) -> Key {
        let mut key = [kind; Key::BYTES];
        key[..32].copy_from_slice(id);
        Key(key)
    }

    /// Returns the key for look-ups: all group kinds map to one.
    pub(super) fn looked_up(self) -> Key {
        if is_group(self.kind()) { Key::new(&[0; 32], self.kind()) } else { self }
    }

    pub(super) fn chunk(id: &ChunkId) -> Key {
        Key::new(&id.0, Kind::Chunk as u8)
    }

    pub(super) fn kind(&self) -> u8 {
        self.0[32]
    }

    pub(super) fn id(&self) -> &[u8; 32] {
        self.0.first_chunk().expect("a key starts with 32 bytes of id")
    }

    pub(super) fn chunk_id(&self) -> Option<ChunkId> {
        (self.kind() == Kind::Chunk as u8).then(|| ChunkId(*self.id()))
    }

    pub(super) fn document_id(&self) -> Option<DocumentId> {
        let is_document = matches!(Kind::of(self.kind()), Some(Kind::Node | Kind::Events | Kind::Snapshot));
        is_document.then(|| DocumentId(*self.id()))
    }

    pub(super) fn recipe_id(&self) -> Option<RecipeId> {
        let id = self.0.first_chunk().expect("a key is longer than a recipe id");
        (self.kind() == Kind::Recipe as u8).then_some(RecipeId(*id))
    }
}

/// Location of a frame.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) store: StoreId,
    pub(super) pack: u32,
    pub(super) offset: u32,
}

/// A frame's header. The kind is a plain byte because a newer program may have written others.
#[derive(Clone, Copy, Debug)]
pub(super) struct Header {
    pub(super) kind: u8,
    pub(super) codec: u8,
    pub(super) flags: u16,
    pub(super) stored_len: u32,
    pub(super) raw_len: u32,
    pub(super) id: [u8; 32],
    pub(super) payload_crc: u32,
}

impl Header {
    pub(super) fn encode(&self, place: Place) -> [u8; HEADER_BYTES] {
        let mut out = [0; HEADER_BYTES];
        out[..4].copy_from_slice(&MAGIC);
        out[4] = self.kind;
        out[5] = self.codec;
        out[6..8].copy_from_slice(&self.flags.to_le_bytes());
        out[8..12].copy_from_slice(&self.stored_len.to_le_bytes());
        out[12..16].copy_from_slice(&self.raw_len.to_le_bytes());
        out[16..48].copy_from_slice(&self.id);
        out[48..52].copy_from_slice(&self.payload_crc.to_le_bytes());
        let crc = header_crc(&out, place);
        out[52..].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// Parses a header that must be at `place`.
    pub(super) fn parse(bytes: &[u8], place: Place) -> Result<Header, &'static str> {
        let bytes: &[u8; HEADER_BYTES] = bytes.first_chunk().ok_or("a frame header is cut short")?;
        if bytes[..4] != MAGIC {
            return Err("no frame starts here");
        }
        if u32_at(bytes, 52) != header_crc(bytes, place) {
            return Err("the frame header does not match its checksum");
        }
        let mut id = [0; 32];
        id.copy_from_slice(&bytes[16..48]);
        let header = Header {
            kind: bytes[4],
            codec: bytes[5],
            flags: u16::from_le_bytes([bytes[6], bytes[7]]),
            stored_len: u32_at(bytes, 8),
            raw_len: u32_at(bytes, 12),
            id,
            payload_crc: u32_at(bytes, 48),
        };
        let max = Kind::of(header.kind).map_or(RECIPE_BYTES_MAX, Kind::raw_bytes_max);
        let stored_max = if header.is_group() { max + TABLE_BYTES_MAX } else { max };
        if header.raw_len > max || header.stored_len > stored_max {
            return Err("the frame claims to be longer than any may be");
        }
        Ok(header)
    }

    pub(super) fn key(&self) -> Key {
        Key::new(&self.id, self.kind)
    }

    /// Whether it holds several chunks.
    pub(super) fn is_group(&self) -> bool {
        is_group(self.kind)
    }

    /// Whether it is an inflated group ([`super::inflated`]).
    pub(super) fn is_inflated(&self) -> bool {
        self.is_group() && self.flags & FLAG_INFLATED != 0
    }

    /// Whether it is a group whose table has no names.
    pub(super) fn is_unnamed(&self) -> bool {
        self.is_group() && self.flags & FLAG_UNNAMED != 0
    }

    /// Returns the kind of a group's members.
    pub(super) fn member_kind(&self) -> Kind {
        if self.flags & FLAG_RECIPES != 0 { Kind::Recipe } else { Kind::Chunk }
    }

    /// Bytes of the whole frame.
    pub(super) fn frame_len(&self) -> u64 {
        HEADER_BYTES as u64 + u64::from(self.stored_len)
    }

    /// Checks that a payload belongs to this header.
    pub(super) fn check(&self, payload: &[u8]) -> Result<(), &'static str> {
        match crc32fast::hash(payload) == self.payload_crc {
            true => Ok(()),
            false => Err("the payload does not match its checksum"),
        }
    }

    /// Decodes a payload after checking it.
    pub(super) fn decode(&self, payload: &[u8]) -> Result<Arc<[u8]>, &'static str> {
        self.check(payload)?;
        if self.flags != 0 {
            return Err("the frame has flags that this program does not know");
        }
        if self.is_group() {
            return Err("the frame is a group of chunks");
        }
        match self.codec {
            CODEC_RAW if payload.len() == self.raw_len as usize => Ok(payload.into()),
            CODEC_RAW => Err("the raw payload is not as long as the frame says"),
            CODEC_ZSTD => inflate(payload, self.raw_len),
            _ => Err("the frame has a codec that this program does not know"),
        }
    }
}

/// Decompresses one zstd frame to `raw_len` bytes.
pub(super) fn inflate(payload: &[u8], raw_len: u32) -> Result<Arc<[u8]>, &'static str> {
    inflate_with(payload, raw_len, |context, target| context.decompress(target, payload))
}

/// Fills `raw_len` bytes with `decompress`, which returns how many it wrote. Each thread keeps one context:
/// creating one (about 100 KiB) takes longer than decoding most frames.
pub(super) fn inflate_with(
    payload: &[u8],
    raw_len: u32,
    decompress: impl FnOnce(&mut DCtx<'static>, &mut [u8]) -> SafeResult,
) -> Result<Arc<[u8]>, &'static str> {
    thread_local! {
        static CONTEXT: RefCell<Option<DCtx<'static>>> = const { RefCell::new(None) };
    }
    // Checked before memory is allocated for the claimed length.
    if u64::from(raw_len) > payload.len() as u64 * ZSTD_EXPANSION_MAX {
        return Err("the payload does not decompress to the length the frame says");
    }
    let mut raw: Arc<[u8]> = std::iter::repeat_n(0, raw_len as usize).collect();
    let target = Arc::get_mut(&mut raw).expect("it is not shared yet");
    let len = CONTEXT.with_borrow_mut(|slot| {
        let context = match slot {
            Some(context) => context,
            None => slot.insert(DCtx::try_create().ok_or("zstd could not start")?),
        };
        decompress(context, target).map_err(|_| "the payload does not decompress")
    })?;
    match len == raw.len() {
        true => Ok(raw),
        false => Err("the payload does not decompress to the length the frame says"),
    }
}

/// Appends an empty header and the encoded payload of `raw` to `out`. The appender fills in the header,
/// because its checksum depends on the frame's location.
pub(super) fn build(
    out: &mut Vec<u8>,
    kind: Kind,
    id: [u8; 32],
    raw: &[u8],
    compressor: &mut Compressor<'static>,
) -> Header {
    let start = out.len() + HEADER_BYTES;
    out.resize(start + zstd::zstd_safe::compress_bound(raw.len()), 0);
    let codec = match pack(raw, &mut out[start..], compressor) {
        Some(len) => {
            out.truncate(start + len);
            CODEC_ZSTD
        }
        None => {
            out.truncate(start);
            out.extend_from_slice(raw);
            CODEC_RAW
        }
    };
    let payload = &out[start..];
    Header {
        kind: kind as u8,
        codec,
        flags: 0,
        stored_len: payload.len() as u32,
        raw_len: raw.len() as u32,
        id,
        payload_crc: crc32fast::hash(payload),
    }
}

/// Compresses `raw` into `target`, which must have zstd's worst-case size; returns the length, or `None` if
/// compression does not pay.
fn pack(raw: &[u8], target: &mut [u8], compressor: &mut Compressor<'static>) -> Option<usize> {
    // Less than about 3% saved is not worth the decompression. If zstd fails, raw is always right.
    let packed = compressor.compress_to_buffer(raw, target).ok();
    packed.filter(|len| len + raw.len() / 32 < raw.len())
}

/// Whether [`build`] would compress `raw`.
pub(super) fn compresses(raw: &[u8], compressor: &mut Compressor<'static>) -> bool {
    let mut target = vec![0; zstd::zstd_safe::compress_bound(raw.len())];
    pack(raw, &mut target, compressor).is_some()
}

/// Returns the header of an uncompressed frame.
pub(super) fn raw(kind: Kind, payload: &[u8]) -> Header {
    Header {
        kind: kind as u8,
        codec: CODEC_RAW,
        flags: 0,
        stored_len: payload.len() as u32,
        raw_len: payload.len() as u32,
        id: *blake3::hash(payload).as_bytes(),
        payload_crc: crc32fast::hash(payload),
    }
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn header_crc(bytes: &[u8; HEADER_BYTES], place: Place) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&bytes[..52]);
    crc.update(&place.store.0);
    crc.update(&place.pack.to_le_bytes());
    crc.update(&place.offset.to_le_bytes());
    crc.finalize()
}
