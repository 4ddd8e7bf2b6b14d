//! Members of a future group, and how the group is compressed.

use super::dictionary::Encoder;
use super::frame::{
    CODEC_DICTIONARY, CODEC_LZMA, CODEC_PREFIX, CODEC_RAW, CODEC_ZSTD, FLAG_INFLATED, FLAG_RECIPES,
    FLAG_UNNAMED, HEADER_BYTES, Header, Kind,
};
use super::group_table::put_named;
use super::member::{HEAD_BYTES, MEMBERS_MAX, Named};
use super::{lzma, unnamed};
use crate::id::ChunkId;
use crate::recipe::CHUNK_BYTES_MAX;
use zstd::zstd_safe::{CCtx, CParameter, compress_bound};

/// Deltas that, with their roots, are longer than this search for matches at any distance.
const LONG_BYTES_MIN: usize = 256 << 10;

/// Chunks that are to be a group, gathered.
#[derive(Clone, Default)]
pub(super) struct Gathered {
    members: Vec<Named>,
    raw: Vec<u8>,
    flags: u16,
}

impl Gathered {
    /// Creates a group of these chunks, stored as `inflated` ([`super::inflated::inflate`]).
    pub(super) fn inflated(chunks: impl Iterator<Item = Named>, inflated: Vec<u8>) -> Gathered {
        Gathered { members: chunks.collect(), raw: inflated, flags: FLAG_INFLATED }
    }

    /// Creates a group of members of this kind, without names.
    pub(super) fn unnamed(kind: Kind) -> Gathered {
        let flags = FLAG_UNNAMED | if kind == Kind::Recipe { FLAG_RECIPES } else { 0 };
        Gathered { flags, ..Gathered::default() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Whether another chunk of `len` bytes may join. `are_one` decides from the group's new length and the
    /// length of its shortest chunk.
    pub(super) fn has_room(&self, len: usize, are_one: impl Fn(u64, u64) -> bool) -> bool {
        let bytes = self.raw.len() + len;
        let shortest = self.members.iter().fold(len as u64, |shortest, member| shortest.min(member.1.into()));
        self.is_empty()
            || (bytes <= CHUNK_BYTES_MAX as usize
                && self.members.len() < MEMBERS_MAX
                && are_one(bytes as u64, shortest))
    }

    pub(super) fn push(&mut self, id: &ChunkId, bytes: &[u8]) {
        debug_assert!(!bytes.is_empty() && self.has_room(bytes.len(), |_, _| true));
        self.members.push((*id, bytes.len() as u32));
        self.raw.extend_from_slice(bytes);
    }

    pub(super) fn clear(&mut self) {
        self.members.clear();
        self.raw.clear();
    }

    pub(super) fn members(&self) -> &[Named] {
        &self.members
    }

    /// Appends an empty header and the payload to `out`. The appender sets the distances to the root or the
    /// dictionary ([`super::group_table::set_distance`], [`super::group_table::set_distances`]).
    pub(super) fn build(&self, out: &mut Vec<u8>, with: With<'_>) -> Header {
        let start = out.len() + HEADER_BYTES;
        out.resize(start, 0);
        out.extend_from_slice(&(self.members.len() as u32).to_le_bytes());
        out.extend_from_slice(&[0; HEAD_BYTES - 4]);
        for member in &self.members {
            match self.flags & FLAG_UNNAMED {
                0 => put_named(out, *member),
                _ => unnamed::put(out, member.1),
            }
        }
        let packed = with.compress(&self.raw);
        let (kind, codec) = match with {
            With::Root(root, _) => {
                out[start + 8..start + HEAD_BYTES].copy_from_slice(&root.id()[..8]);
                (Kind::Delta, CODEC_PREFIX)
            }
            _ if packed.len() + self.raw.len() / 32 >= self.raw.len() => (Kind::Group, CODEC_RAW),
            With::Dictionary(encoder) => {
                out[start + 12..start + HEAD_BYTES].copy_from_slice(&encoder.begins);
                (Kind::Group, CODEC_DICTIONARY)
            }
            With::Nothing(_) => (Kind::Group, CODEC_ZSTD),
            With::Lzma => (Kind::Group, CODEC_LZMA),
        };
        out.extend_from_slice(if codec == CODEC_RAW { &self.raw } else { &packed });
        let payload = &out[start..];
        Header {
            kind: kind as u8,
            codec,
            flags: self.flags,
            stored_len: payload.len() as u32,
            raw_len: self.raw.len() as u32,
            id: self.id(),
            payload_crc: crc32fast::hash(payload),
        }
    }

    fn id(&self) -> [u8; 32] {
        *blake3::hash(&self.raw).as_bytes()
    }
}

/// Compression of a group: a zstd level, with or without a root or a dictionary; or LZMA.
#[derive(Clone, Copy)]
pub(super) enum With<'a> {
    Nothing(i32),
    Lzma,
    Root(&'a Gathered, i32),
    Dictionary(&'a Encoder),
}

impl With<'_> {
    fn compress(&self, raw: &[u8]) -> Vec<u8> {
        match self {
            With::Nothing(level) => compress(raw, *level, None),
            With::Lzma => lzma::compress(raw),
            With::Root(root, level) => compress(raw, *level, Some(&root.raw)),
            With::Dictionary(encoder) => encoder.compress(raw),
        }
    }
}

/// Compresses `raw` to one zstd frame, with `prefix` as the preceding bytes.
pub(super) fn compress(raw: &[u8], level: i32, prefix: Option<&[u8]>) -> Vec<u8> {
    let mut context = CCtx::create();
    let mut packed = Vec::with_capacity(compress_bound(raw.len()));
    context.set_parameter(CParameter::CompressionLevel(level)).expect("zstd takes any level");
    if prefix.is_none() && raw.len() > LONG_BYTES_MIN {
        // Level 19 looks back 8 MiB, lower ones less.
        let window_log = usize::BITS - (raw.len() - 1).leading_zeros();
        context.set_parameter(CParameter::WindowLog(window_log)).expect("a group is within zstd's bounds");
    }
    if let Some(prefix) = prefix {
        let bytes = prefix.len() + raw.len();
        if bytes > LONG_BYTES_MIN {
            // Otherwise the lower levels forget the beginning of a long prefix before they reach its end.
            let window_log = usize::BITS - bytes.leading_zeros();
            context
                .set_parameter(CParameter::WindowLog(window_log))
                .expect("two groups are within zstd's bounds");
            context.set_parameter(CParameter::EnableLongDistanceMatching(true)).expect("zstd has it");
        }
        context.ref_prefix(prefix).expect("a new context takes a prefix");
    }
    context.compress2(&mut packed, raw).expect("there is room for the worst case");
    packed
}
