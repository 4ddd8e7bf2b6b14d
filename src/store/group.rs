//! Groups: several chunks in one frame, so that their common content is stored once.
//!
//! ```text
//! payload of a group (kind 8) or delta (kind 9)
//!  0  4  number of members
//!  4  4  delta: bytes from the beginning of its root's frame to that of its own; group: 0, or with a dictionary
//!        bytes from the beginning of one copy of that
//!  8  8  delta: first bytes of its root's id; group: 0, or bytes from the beginning of the other copy 4,
//!        first bytes of the dictionary's id 4
//! 16     for each member: id 32 (zeros: bytes that nobody needs any more) | length 4
//!        with flag 2 [`super::unnamed`] instead
//!        then the members' bytes, one after the other: as they are, one zstd frame, or one stream of LZMA. With flag 1 the members' bytes
//!        are made of what is decoded ([`super::inflated`]). Members are chunks, with flag 4 recipes
//! ```
//!
//! A group stands alone, or uses a dictionary. A delta is compressed with the decoded bytes of its **root**
//! as a prefix. The root is the last group before it in the same pack; nothing is compressed against a delta.
//! So a read decodes at most two frames. A damaged group loses its own chunks and those of its deltas, which
//! follow it directly.
//!
//! Invariants: a delta follows its root or another delta of that root, in one append. Bytes are returned only
//! if the frame's checksum fits and, for a delta, its root's too; the delta's payload contains the root's id.

use super::bytes::Bytes;
use super::dictionary::{Dictionaries, Dictionary};
use super::frame::{
    CODEC_LZMA, CODEC_RAW, CODEC_ZSTD, HEADER_BYTES, Header, Kind, Place, inflate, inflate_with,
};
use super::group_table::{Needs, Table, is_root};
use super::member::{Member, Name, Named};
use super::pack::Packs;
use super::{inflated, lzma};
use crate::env::DiskFile;
use crate::id::ChunkId;
use std::sync::{Arc, OnceLock};
use zstd::zstd_safe::DCtx;

/// zstd takes bytes that begin like this for a dictionary with tables (RFC 8878, section 5).
const DICTIONARY_MAGIC: [u8; 4] = [0x37, 0xa4, 0x30, 0xec];
/// First read of a root: usually all of it.
const READ_BYTES: usize = 4 << 10;
const NOT_AS_NAMED: &str = "the content does not have the hash that names it";

/// The base of a group's compression.
#[derive(Clone, Copy)]
pub(super) enum Base<'a> {
    Nothing,
    Root(&'a Group),
    Dictionary(&'a Dictionary),
}

/// Decodes a group that needs no other.
fn decode_plain(header: &Header, stored: &[u8]) -> Result<Bytes, &'static str> {
    match header.codec {
        CODEC_ZSTD => inflate(stored, header.raw_len),
        CODEC_LZMA => lzma::inflate(stored, header.raw_len),
        _ if stored.len() == header.raw_len as usize => Ok(stored.into()),
        _ => Err("the raw payload is not as long as the frame says"),
    }
}

/// A group, decoded.
pub(super) struct Group {
    id: [u8; 32],
    /// CRC of the payload, if it needs no other group.
    alone_crc: Option<u32>,
    members: Vec<Member>,
    /// The hash of each member, computed on first use; empty for groups with names.
    hashes: Box<[OnceLock<ChunkId>]>,
    raw: Bytes,
    /// The members' bytes of an inflated group, deflated on first use.
    deflated: Option<OnceLock<Result<Bytes, &'static str>>>,
}

impl Group {
    /// Decodes a payload that fits its checksum. `base` is the decoded root of a delta, or the dictionary.
    pub(super) fn decode(header: &Header, payload: &[u8], base: Base<'_>) -> Result<Group, &'static str> {
        header.check(payload)?;
        Group::decode_with(header, payload, Table::parse(header, payload)?, base)
    }

    /// Like [`Group::decode`], for a payload with a verified checksum and this table.
    pub(super) fn decode_with(
        header: &Header,
        payload: &[u8],
        table: Table,
        base: Base<'_>,
    ) -> Result<Group, &'static str> {
        let stored = &payload[table.bytes..];
        let raw: Bytes = match header.codec {
            CODEC_RAW | CODEC_ZSTD | CODEC_LZMA => decode_plain(header, stored)?,
            _ => match (table.needs, base) {
                (Needs::Dictionary { begins, .. }, Base::Dictionary(dictionary))
                    if dictionary.is(&begins) =>
                {
                    dictionary.inflate(stored, header.raw_len)?
                }
                (Needs::Root { begins, .. }, Base::Root(root)) if is_root(&root.id, &begins) => {
                    inflate_behind(stored, header.raw_len, &root.raw)?
                }
                _ => return Err("the root or dictionary is not the one that the group was made with"),
            },
        };
        let deflated = header.is_inflated().then(OnceLock::new);
        let alone_crc = matches!(table.needs, Needs::Nothing).then_some(header.payload_crc);
        let untold = if header.is_unnamed() { table.members.len() } else { 0 };
        let hashes = std::iter::repeat_with(OnceLock::new).take(untold).collect();
        Ok(Group { id: header.id, alone_crc, members: table.members, hashes, raw, deflated })
    }

    /// Like [`Group::chunk`], but shared: not copied if the group has only this chunk.
    pub(super) fn shared_chunk(&self, id: &[u8; 32], len: u32) -> Result<Bytes, &'static str> {
        let bytes = self.chunk(id, len)?;
        let is_all = self.deflated.is_none() && bytes.len() == self.raw.len();
        Ok(if is_all { Arc::clone(&self.raw) } else { bytes.into() })
    }

    /// Whether it is the decoded form of a payload with this header, at any location.
    pub(super) fn is_made_of(&self, header: &Header) -> bool {
        self.alone_crc == Some(header.payload_crc) && self.id == header.id
    }

    /// Returns chunks behind one, up to `bytes_max` bytes; none for inflated groups.
    pub(super) fn chunks_behind(
        &self,
        id: &[u8; 32],
        len: u32,
        bytes_max: usize,
    ) -> impl Iterator<Item = (ChunkId, &[u8])> {
        let all = if self.deflated.is_none() { self.members.len() } else { 0 };
        let first = self.find(id, len).map_or(all, |at| at + 1).min(all);
        let end =
            self.members[..first].last().map_or(0, |before| (before.start + before.len) as usize) + bytes_max;
        let is_near = move |member: &Member| (member.start + member.len) as usize <= end;
        let near = (first..all).take_while(move |at| is_near(&self.members[*at]));
        near.filter_map(|at| Some((self.id_of(at)?, self.bytes_at(&self.members[at]))))
    }

    /// Returns a member's id, unless the member is unneeded.
    pub(super) fn id_of(&self, at: usize) -> Option<ChunkId> {
        let member = &self.members[at];
        match member.name {
            Name::Told(id) => Some(id),
            Name::Untold => Some(*self.hashes[at].get_or_init(|| ChunkId::of(self.bytes_at(member)))),
            Name::Nobody => None,
        }
    }

    /// Returns the chunks that may be needed.
    pub(super) fn named(&self) -> impl Iterator<Item = Named> {
        (0..self.members.len()).filter_map(|at| Some((self.id_of(at)?, self.members[at].len)))
    }

    /// Finds the member with this id and length. Hashes only members of that length.
    fn find(&self, id: &[u8; 32], len: u32) -> Result<usize, &'static str> {
        let is_it = |at: &usize| self.id_of(*at).is_some_and(|found| found.0 == *id);
        let as_long = |at: &usize| self.members[*at].len == len;
        if let Some(found) = (0..self.members.len()).filter(as_long).find(is_it) {
            return Ok(found);
        }
        match (0..self.members.len()).any(|at| is_it(&at)) {
            true => Err("the chunk in the group is not as long as the index says"),
            false => Err("the group where the index leads does not have the chunk"),
        }
    }

    /// Returns a member's decoded bytes.
    fn bytes_at(&self, member: &Member) -> &[u8] {
        &self.raw[member.start as usize..][..member.len as usize]
    }

    /// Whether it has more than one chunk.
    pub(super) fn has_several(&self) -> bool {
        self.members.len() > 1
    }

    /// Returns the bytes of a chunk that must be `len` bytes long.
    pub(super) fn chunk(&self, id: &[u8; 32], len: u32) -> Result<&[u8], &'static str> {
        let bytes = self.bytes_of(&self.members[self.find(id, len)?])?;
        // Another deflater may have produced other bytes.
        match self.deflated.is_some() && ChunkId::of(bytes).0 != *id {
            true => Err(NOT_AS_NAMED),
            false => Ok(bytes),
        }
    }

    fn bytes_of(&self, member: &Member) -> Result<&[u8], &'static str> {
        let Some(deflated) = &self.deflated else { return Ok(self.bytes_at(member)) };
        let deflate = || inflated::deflate(&self.raw, self.chunk_bytes()).map(Bytes::from);
        let bytes = deflated.get_or_init(deflate).as_ref().map_err(|reason| *reason)?;
        Ok(&bytes[member.start as usize..][..member.len as usize])
    }

    /// Returns names and lengths of its chunks, and its decoded bytes.
    #[cfg(test)]
    pub(super) fn parts(&self) -> (Vec<(ChunkId, u32)>, Vec<u8>) {
        (self.named().collect(), self.raw.to_vec())
    }

    /// Bytes of all members.
    fn chunk_bytes(&self) -> usize {
        self.members.last().map_or(0, |last| (last.start + last.len) as usize)
    }

    /// Returns the hash of its decoded bytes.
    #[cfg(any(test, feature = "testing"))]
    pub(super) fn id(&self) -> &[u8; 32] {
        &self.id
    }

    /// Returns its decoded bytes.
    pub(super) fn raw(&self) -> &[u8] {
        &self.raw
    }

    /// Returns its approximate size in memory.
    pub(super) fn weight(&self) -> u64 {
        let deflated = self.deflated.as_ref().map_or(0, |_| self.chunk_bytes());
        let members = size_of_val(&*self.members) + size_of_val(&*self.hashes);
        (self.raw.len() + deflated + members) as u64
    }

    /// Checks the hash of every chunk and of the whole group.
    pub(super) fn check_hashes(&self) -> Result<(), &'static str> {
        if *blake3::hash(&self.raw).as_bytes() != self.id {
            return Err(NOT_AS_NAMED);
        }
        for member in &self.members {
            if let Name::Told(id) = member.name
                && ChunkId::of(self.bytes_of(member)?) != id
            {
                return Err(NOT_AS_NAMED);
            }
        }
        Ok(())
    }

    /// Reads the group at `offset`, with its root or dictionary.
    pub(super) fn read(
        packs: &Packs,
        file: &dyn DiskFile,
        pack: u32,
        offset: u32,
        dictionaries: &Dictionaries,
    ) -> Result<Group, String> {
        let (header, payload) = read_frame(file, packs.place(pack, offset))?;
        Group::decode_at(packs, file, pack, offset, (&header, &payload), dictionaries)
    }

    fn decode_at(
        packs: &Packs,
        file: &dyn DiskFile,
        pack: u32,
        offset: u32,
        (header, payload): (&Header, &[u8]),
        dictionaries: &Dictionaries,
    ) -> Result<Group, String> {
        let table = Table::parse(header, payload)?;
        if let Some((at, _)) = table.root(offset)? {
            let root = Group::read_root(packs, file, pack, at, dictionaries)?;
            return Ok(Group::decode_with(header, payload, table, Base::Root(&root))?);
        }
        let dictionary = match table.dictionary(offset)? {
            Some(copies) => Some(dictionaries.get(packs, file, pack, &copies)?),
            None => None,
        };
        let base = dictionary.as_deref().map_or(Base::Nothing, Base::Dictionary);
        Ok(Group::decode_with(header, payload, table, base)?)
    }

    /// Reads the group at `offset` that a delta needs.
    pub(super) fn read_root(
        packs: &Packs,
        file: &dyn DiskFile,
        pack: u32,
        offset: u32,
        dictionaries: &Dictionaries,
    ) -> Result<Group, String> {
        let told = |reason: String| format!("the group at offset {offset} that it needs: {reason}");
        let (header, payload) = read_frame(file, packs.place(pack, offset)).map_err(told)?;
        if header.kind != Kind::Group as u8 {
            return Err(told("another frame stands there".to_owned()));
        }
        Group::decode_at(packs, file, pack, offset, (&header, &payload), dictionaries).map_err(told)
    }
}

/// Reads a group's frame, and its payload if the checksum fits.
pub(super) fn read_frame(file: &dyn DiskFile, place: Place) -> Result<(Header, Vec<u8>), String> {
    let offset = place.offset;
    let failed = |e| format!("it cannot be read: {e}");
    let mut frame = vec![0; READ_BYTES];
    // Bytes behind it may be unreadable, or missing.
    let mut len = file.read_at(&mut frame, u64::from(offset)).unwrap_or(0);
    frame.truncate(len.max(HEADER_BYTES));
    if len < HEADER_BYTES {
        file.read_exact_at(&mut frame, u64::from(offset)).map_err(failed)?;
        len = HEADER_BYTES;
    }
    let header = Header::parse(&frame, place)?;
    if !header.is_group() {
        return Err("another frame stands there".to_owned());
    }
    frame.resize(HEADER_BYTES + header.stored_len as usize, 0);
    if let Some(rest @ [_, ..]) = frame.get_mut(len..) {
        file.read_exact_at(rest, u64::from(offset) + len as u64).map_err(failed)?;
    }
    let payload = frame.split_off(HEADER_BYTES);
    header.check(&payload)?;
    Ok((header, payload))
}

/// Whether an intact group whose id begins like this, and that a delta may use, is at `offset`.
pub(super) fn stands(packs: &Packs, file: &dyn DiskFile, pack: u32, offset: u32, begins: &[u8; 8]) -> bool {
    read_frame(file, packs.place(pack, offset))
        .is_ok_and(|(header, _)| header.kind == Kind::Group as u8 && is_root(&header.id, begins))
}

/// Decompresses one zstd frame to `raw_len` bytes, with `prefix` as the preceding bytes.
pub(super) fn inflate_behind(packed: &[u8], raw_len: u32, prefix: &[u8]) -> Result<Bytes, &'static str> {
    inflate_with(packed, raw_len, |context, target| decompress(context, target, packed, prefix))
}

/// Decompresses one zstd frame with `prefix` as the preceding bytes; returns the length.
fn decompress(
    context: &mut DCtx<'static>,
    target: &mut [u8],
    packed: &[u8],
    prefix: &[u8],
) -> zstd::zstd_safe::SafeResult {
    if prefix.starts_with(&DICTIONARY_MAGIC) {
        // A fresh context: zstd keeps the reference as long as the context lives.
        let mut context = DCtx::create();
        context.ref_prefix(prefix)?;
        return context.decompress(target, packed);
    }
    // Other bytes work as a dictionary just as they do as a prefix, and zstd then forgets them.
    context.decompress_using_dict(target, packed, prefix)
}
