//! Groups: several chunks in one frame, so that what they have in common is stored once.
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
//!        then the members' bytes, one after the other: as they are, or one zstd frame. With flag 1 the members' bytes
//!        are made of what is decoded ([`super::inflated`]). Members are chunks, with flag 4 recipes
//! ```
//!
//! A group stands by itself, or with a dictionary. A delta is compressed with the decoded bytes of its **root**, the last group before it in
//! the same pack, as what came before its own; nothing is compressed against a delta. So a read decodes two frames at
//! most, and a damaged group takes its own chunks along and those of its deltas, which follow it at once.
//!
//! What must always be true: a delta follows its root or another delta of that root, in one append. Bytes leave here
//! only if the frame's checksum and, for a delta, those of its root fit; the id of the root in the delta's
//! payload says that it is that one.

use super::Bytes;
use super::dictionary::{Copies, Dictionaries, Dictionary, Encoder};
use super::frame::{
    CODEC_DICTIONARY, CODEC_PREFIX, CODEC_RAW, CODEC_ZSTD, FLAG_INFLATED, FLAG_RECIPES, FLAG_UNNAMED,
    HEADER_BYTES, Header, Key, Kind, Place, inflate, inflate_with, u32_at,
};
use super::pack::Packs;
use super::{inflated, unnamed};
use crate::env::DiskFile;
use crate::id::ChunkId;
use crate::recipe::CHUNK_BYTES_MAX;
use std::sync::{Arc, OnceLock};
use zstd::zstd_safe::{CCtx, CParameter, DCtx, compress_bound};

const HEAD_BYTES: usize = 16;
const MEMBER_BYTES: usize = 36;
/// No group has more members.
pub(super) const MEMBERS_MAX: usize = 4096;
/// So much of a payload may come before the members' bytes.
pub(super) const TABLE_BYTES_MAX: u32 = (HEAD_BYTES + MEMBERS_MAX * MEMBER_BYTES) as u32;
/// The id of a member that nobody needs any more.
const NOBODY: [u8; 32] = [0; 32];
/// Deltas with their roots longer than this are compressed with matches as far away as there are.
const LONG_BYTES_MIN: usize = 256 << 10;
/// Bytes that begin so are a dictionary with tables to zstd (RFC 8878, section 5).
const DICTIONARY_MAGIC: [u8; 4] = [0x37, 0xa4, 0x30, 0xec];
/// Of a root so much is read at first: mostly all of it.
const READ_BYTES: usize = 4 << 10;
const NOT_AS_NAMED: &str = "the content does not have the hash that names it";

/// A chunk in a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Member {
    pub(super) id: ChunkId,
    /// Where it begins in the decoded bytes.
    start: u32,
    pub(super) len: u32,
}

/// What stands before the members' bytes.
#[derive(Clone, Debug)]
pub(super) struct Table {
    needs: Needs,
    members: Vec<Member>,
    /// How long it is.
    bytes: usize,
    /// What the group decodes to, if that had to be known.
    raw: Option<Bytes>,
}

/// What a group is decoded with, by how far before it that stands.
#[derive(Clone, Copy, Debug)]
enum Needs {
    Nothing,
    Root { distance: u32, begins: [u8; 8] },
    Dictionary { distances: [u32; 2], begins: [u8; 4] },
}

/// What a group was compressed with.
#[derive(Clone, Copy)]
pub(super) enum Base<'a> {
    Nothing,
    Root(&'a Group),
    Dictionary(&'a Dictionary),
}

impl Table {
    /// Reads the table of a payload whose checksum fits.
    pub(super) fn parse(header: &Header, payload: &[u8]) -> Result<Table, &'static str> {
        if !header.is_group() {
            return Err("the frame is no group");
        }
        let is_delta = header.kind == Kind::Delta as u8;
        if ![0, FLAG_INFLATED, FLAG_UNNAMED, FLAG_UNNAMED | FLAG_RECIPES].contains(&header.flags) {
            return Err("the frame has flags that this program does not know");
        }
        match (is_delta, header.codec) {
            (false, CODEC_RAW | CODEC_ZSTD | CODEC_DICTIONARY) | (true, CODEC_PREFIX) => {}
            _ => return Err("the frame has a codec that this program does not know"),
        }
        let Some((head, rest)) = payload.split_at_checked(HEAD_BYTES) else {
            return Err("the table of a group is cut short");
        };
        let count = u32_at(head, 0) as usize;
        if count == 0 || count > MEMBERS_MAX {
            return Err("a group has none or too many chunks");
        }
        if header.is_unnamed() {
            return match head[4..] == [0; 12] && !is_delta && header.codec != CODEC_DICTIONARY {
                true => Table::of_unnamed(header, rest, count),
                false => Err("a group without names says that it needs another"),
            };
        }
        let Some(rows) = rest.get(..count * MEMBER_BYTES) else {
            return Err("the table of a group is cut short");
        };
        let needs = match header.codec {
            CODEC_PREFIX => {
                let begins = *head[8..].first_chunk().expect("the head has 16 bytes");
                Needs::Root { distance: u32_at(head, 4), begins }
            }
            CODEC_DICTIONARY => {
                let begins = *head[12..].first_chunk().expect("the head has 16 bytes");
                Needs::Dictionary { distances: [u32_at(head, 4), u32_at(head, 8)], begins }
            }
            _ if head[4..] == [0; 12] => Needs::Nothing,
            _ => return Err("a group that stands by itself says that it needs another"),
        };
        if needs.distances().any(|distance| distance < HEADER_BYTES as u32) {
            return Err("a group says that what it needs stands within it");
        }
        let bytes_max = if header.is_inflated() { CHUNK_BYTES_MAX } else { header.raw_len };
        let mut members = Vec::with_capacity(count);
        let mut start = 0u32;
        for row in rows.chunks_exact(MEMBER_BYTES) {
            let len = u32_at(row, 32);
            let id = ChunkId(*row.first_chunk().expect("a row is longer than an id"));
            members.push(Member { id, start, len });
            let end = start.checked_add(len).filter(|end| len > 0 && *end <= bytes_max);
            start = end.ok_or("the chunks of a group are not as long as it says")?;
        }
        if start != header.raw_len && !header.is_inflated() {
            return Err("the chunks of a group are not as long as it says");
        }
        Ok(Table { needs, members, bytes: table_bytes(count), raw: None })
    }

    /// The table of a group that says how long its members are, but not their names: it is decoded, and they are hashed.
    fn of_unnamed(header: &Header, rest: &[u8], count: usize) -> Result<Table, &'static str> {
        let lies = "the chunks of a group are not as long as it says";
        let (told, table_len) = unnamed::parse(rest, count).ok_or("the table of a group is cut short")?;
        let sum = told.iter().try_fold(0u32, |sum, (len, _)| sum.checked_add(*len));
        if sum != Some(header.raw_len) || told.iter().any(|(len, _)| *len == 0) {
            return Err(lies);
        }
        let raw = decode_plain(header, &rest[table_len..])?;
        let mut start = 0;
        let member = |(len, needed): (u32, bool)| {
            let bytes = &raw[start as usize..][..len as usize];
            let id = if needed { ChunkId::of(bytes) } else { ChunkId(NOBODY) };
            let member = Member { id, start, len };
            start += len;
            member
        };
        let members = told.into_iter().map(member).collect();
        Ok(Table { needs: Needs::Nothing, members, bytes: HEAD_BYTES + table_len, raw: Some(raw) })
    }

    /// What the group decodes to, if it tells no names.
    pub(super) fn raw(&self) -> Option<&Bytes> {
        self.raw.as_ref()
    }

    /// The chunks in the group that somebody may need.
    pub(super) fn chunks(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().filter(|member| member.id.0 != NOBODY)
    }

    /// Where the root's frame begins, and the first bytes of its id; none if this stands at `offset` and is no delta.
    pub(super) fn root(&self, offset: u32) -> Result<Option<(u32, [u8; 8])>, &'static str> {
        match self.needs {
            Needs::Root { distance, begins } => Ok(Some((before(offset, distance)?, begins))),
            Needs::Nothing | Needs::Dictionary { .. } => Ok(None),
        }
    }

    /// The dictionary that the group needs, if it stands at `offset`.
    pub(super) fn dictionary(&self, offset: u32) -> Result<Option<Copies>, &'static str> {
        match self.needs {
            Needs::Dictionary { distances: [one, other], begins } => {
                let at = [before(offset, one)?, before(offset, other)?];
                Ok(Some(Copies { at, begins }))
            }
            Needs::Nothing | Needs::Root { .. } => Ok(None),
        }
    }
}

/// The bytes of a group that needs no other.
fn decode_plain(header: &Header, stored: &[u8]) -> Result<Bytes, &'static str> {
    match header.codec {
        CODEC_ZSTD => inflate(stored, header.raw_len),
        _ if stored.len() == header.raw_len as usize => Ok(stored.into()),
        _ => Err("the raw payload is not as long as the frame says"),
    }
}

impl Needs {
    fn distances(&self) -> impl Iterator<Item = u32> + use<> {
        let (first, second) = match self {
            Needs::Nothing => (None, None),
            Needs::Root { distance, .. } => (Some(*distance), None),
            Needs::Dictionary { distances: [one, other], .. } => (Some(*one), Some(*other)),
        };
        first.into_iter().chain(second)
    }
}

fn before(offset: u32, distance: u32) -> Result<u32, &'static str> {
    offset.checked_sub(distance).ok_or("a group says that what it needs stands before the pack")
}

/// Whether an id begins with what a delta says of its root's.
pub(super) fn is_root(id: &[u8; 32], begins: &[u8; 8]) -> bool {
    id.starts_with(begins)
}

/// A group, decoded.
pub(super) struct Group {
    id: [u8; 32],
    /// Of the payload, if it needs no other group.
    alone_crc: Option<u32>,
    members: Vec<Member>,
    raw: Bytes,
    /// The members' bytes, if they are others: made when they are first asked for.
    deflated: Option<OnceLock<Result<Bytes, &'static str>>>,
}

impl Group {
    /// Decodes a payload, which must fit its checksum; `base` is the decoded root of a delta, or the dictionary.
    pub(super) fn decode(header: &Header, payload: &[u8], base: Base<'_>) -> Result<Group, &'static str> {
        header.check(payload)?;
        Group::decode_with(header, payload, Table::parse(header, payload)?, base)
    }

    /// As [`Group::decode`], of a payload that was found to fit its checksum and that this is the table of.
    pub(super) fn decode_with(
        header: &Header,
        payload: &[u8],
        table: Table,
        base: Base<'_>,
    ) -> Result<Group, &'static str> {
        let stored = &payload[table.bytes..];
        let raw: Bytes = match (table.raw, header.codec) {
            (Some(raw), _) => raw,
            (None, CODEC_RAW | CODEC_ZSTD) => decode_plain(header, stored)?,
            _ => match (table.needs, base) {
                (Needs::Dictionary { begins, .. }, Base::Dictionary(dictionary))
                    if dictionary.is(&begins) =>
                {
                    dictionary.inflate(stored, header.raw_len)?
                }
                (Needs::Root { begins, .. }, Base::Root(root)) if is_root(&root.id, &begins) => {
                    inflate_behind(stored, header.raw_len, &root.raw)?
                }
                _ => return Err("what the group needs is not what it was made with"),
            },
        };
        let deflated = header.is_inflated().then(OnceLock::new);
        let alone_crc = matches!(table.needs, Needs::Nothing).then_some(header.payload_crc);
        Ok(Group { id: header.id, alone_crc, members: table.members, raw, deflated })
    }

    /// As [`Group::chunk`], to be kept: not copied if it is all that there is.
    pub(super) fn shared_chunk(&self, id: &[u8; 32], len: u32) -> Result<Bytes, &'static str> {
        let bytes = self.chunk(id, len)?;
        let is_all = self.deflated.is_none() && bytes.len() == self.raw.len();
        Ok(if is_all { Arc::clone(&self.raw) } else { bytes.into() })
    }

    /// Whether it is what a payload that fits this header decodes to, whatever stands around it.
    pub(super) fn is_made_of(&self, header: &Header) -> bool {
        self.alone_crc == Some(header.payload_crc) && self.id == header.id
    }

    /// Chunks that stand behind one, as long as they come to no more than `bytes_max`; none of what is deflated first.
    pub(super) fn chunks_behind(
        &self,
        id: &[u8; 32],
        bytes_max: usize,
    ) -> impl Iterator<Item = (ChunkId, &[u8])> {
        let members = if self.deflated.is_none() { &self.members[..] } else { &[] };
        let at = members.iter().position(|member| member.id.0 == *id).map_or(members.len(), |at| at + 1);
        let behind = &members[at..];
        let end = behind.first().map_or(0, |first| first.start as usize) + bytes_max;
        let near = behind.iter().take_while(move |member| (member.start + member.len) as usize <= end);
        let named = near.filter(|member| member.id.0 != NOBODY);
        named.map(|member| (member.id, &self.raw[member.start as usize..][..member.len as usize]))
    }

    /// Whether it has more chunks than one.
    pub(super) fn has_several(&self) -> bool {
        self.members.len() > 1
    }

    /// The bytes of a chunk that must be `len` bytes long.
    pub(super) fn chunk(&self, id: &[u8; 32], len: u32) -> Result<&[u8], &'static str> {
        let found = self.members.iter().find(|member| member.id.0 == *id && *id != NOBODY);
        let member = found.ok_or("the group where the index leads does not have the chunk")?;
        if member.len != len {
            return Err("the chunk in the group is not as long as the index says");
        }
        let bytes = self.bytes_of(member)?;
        // What deflated it first may have been another deflater after all.
        match self.deflated.is_some() && ChunkId::of(bytes) != member.id {
            true => Err(NOT_AS_NAMED),
            false => Ok(bytes),
        }
    }

    fn bytes_of(&self, member: &Member) -> Result<&[u8], &'static str> {
        let bytes = match &self.deflated {
            None => &self.raw,
            Some(deflated) => {
                let deflate = || inflated::deflate(&self.raw, self.chunk_bytes()).map(Bytes::from);
                deflated.get_or_init(deflate).as_ref().map_err(|reason| *reason)?
            }
        };
        Ok(&bytes[member.start as usize..][..member.len as usize])
    }

    /// Names and lengths of its chunks, and what it decodes to.
    #[cfg(test)]
    pub(super) fn parts(&self) -> (Vec<(ChunkId, u32)>, Vec<u8>) {
        (self.members.iter().map(|member| (member.id, member.len)).collect(), self.raw.to_vec())
    }

    /// Bytes of all members.
    fn chunk_bytes(&self) -> usize {
        self.members.last().map_or(0, |last| (last.start + last.len) as usize)
    }

    /// The hash of its decoded bytes.
    pub(super) fn id(&self) -> &[u8; 32] {
        &self.id
    }

    /// Memory that it takes, about.
    pub(super) fn weight(&self) -> u64 {
        let deflated = self.deflated.as_ref().map_or(0, |_| self.chunk_bytes());
        (self.raw.len() + deflated + self.members.len() * size_of::<Member>()) as u64
    }

    /// Whether every chunk, and all of it, has the hash that names it.
    pub(super) fn check_hashes(&self) -> Result<(), &'static str> {
        if *blake3::hash(&self.raw).as_bytes() != self.id {
            return Err(NOT_AS_NAMED);
        }
        for member in self.members.iter().filter(|member| member.id.0 != NOBODY) {
            if ChunkId::of(self.bytes_of(member)?) != member.id {
                return Err(NOT_AS_NAMED);
            }
        }
        Ok(())
    }

    /// Reads the group that stands at `offset`, with what it needs.
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

/// A frame of a group and its payload, whose checksum fits.
pub(super) fn read_frame(file: &dyn DiskFile, place: Place) -> Result<(Header, Vec<u8>), String> {
    let offset = place.offset;
    let failed = |e| format!("it cannot be read: {e}");
    let mut frame = vec![0; READ_BYTES];
    // What comes behind it may be unreadable, or the end.
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

/// Whether a group that begins its id so, and that a delta may need, stands whole at `offset`.
pub(super) fn stands(packs: &Packs, file: &dyn DiskFile, pack: u32, offset: u32, begins: &[u8; 8]) -> bool {
    read_frame(file, packs.place(pack, offset))
        .is_ok_and(|(header, _)| header.kind == Kind::Group as u8 && is_root(&header.id, begins))
}

/// Bytes of a payload that come before those of so many members.
pub(super) fn table_bytes(members: usize) -> usize {
    HEAD_BYTES + members * MEMBER_BYTES
}

/// Chunks that are to be a group, gathered.
#[derive(Clone, Default)]
pub(super) struct Gathered {
    table: Vec<u8>,
    raw: Vec<u8>,
    members: usize,
    flags: u16,
}

impl Gathered {
    /// Chunks of these names and lengths that are stored as `inflated` ([`inflated::inflate`]).
    pub(super) fn inflated(chunks: impl Iterator<Item = (ChunkId, u32)>, inflated: Vec<u8>) -> Gathered {
        let mut gathered = Gathered { raw: inflated, flags: FLAG_INFLATED, ..Gathered::default() };
        for (id, len) in chunks {
            gathered.name(&id, len);
        }
        gathered
    }

    /// Members of this kind, whose names are not told.
    pub(super) fn unnamed(kind: Kind) -> Gathered {
        let flags = FLAG_UNNAMED | if kind == Kind::Recipe { FLAG_RECIPES } else { 0 };
        Gathered { flags, ..Gathered::default() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.members == 0
    }

    /// Whether another chunk of `len` bytes may join in a group that is to have at most `bytes_max`.
    pub(super) fn has_room(&self, len: usize, bytes_max: usize) -> bool {
        let bytes = self.raw.len() + len;
        self.is_empty()
            || (bytes <= bytes_max && bytes <= CHUNK_BYTES_MAX as usize && self.members < MEMBERS_MAX)
    }

    pub(super) fn push(&mut self, id: &ChunkId, bytes: &[u8]) {
        debug_assert!(!bytes.is_empty() && self.has_room(bytes.len(), CHUNK_BYTES_MAX as usize));
        self.name(id, bytes.len() as u32);
        self.raw.extend_from_slice(bytes);
    }

    fn name(&mut self, id: &ChunkId, len: u32) {
        if self.flags & FLAG_UNNAMED != 0 {
            unnamed::put(&mut self.table, len);
        } else {
            self.table.extend_from_slice(&id.0);
            self.table.extend_from_slice(&len.to_le_bytes());
        }
        self.members += 1;
    }

    pub(super) fn clear(&mut self) {
        self.table.clear();
        self.raw.clear();
        self.members = 0;
    }

    /// Appends room for a header and the payload to `out`. How far what it is compressed with is, is for the appender to
    /// fill in ([`set_distance`], [`set_distances`]).
    pub(super) fn build(&self, out: &mut Vec<u8>, with: With<'_>) -> Header {
        let start = out.len() + HEADER_BYTES;
        out.resize(start, 0);
        out.extend_from_slice(&(self.members as u32).to_le_bytes());
        out.extend_from_slice(&[0; HEAD_BYTES - 4]);
        out.extend_from_slice(&self.table);
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

/// What a group is compressed with: a level of zstd, a root too, or a dictionary.
#[derive(Clone, Copy)]
pub(super) enum With<'a> {
    Nothing(i32),
    Root(&'a Gathered, i32),
    Dictionary(&'a Encoder),
}

impl With<'_> {
    fn compress(&self, raw: &[u8]) -> Vec<u8> {
        match self {
            With::Nothing(level) => compress(raw, *level, None),
            With::Root(root, level) => compress(raw, *level, Some(&root.raw)),
            With::Dictionary(encoder) => encoder.compress(raw),
        }
    }
}

/// One zstd frame of `raw`, with `prefix` as what comes before it.
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
            // Else the lower levels forget the beginning of a long prefix before they have come to its end.
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

/// One zstd frame's `raw_len` bytes that was made with `prefix` as what comes before it.
pub(super) fn inflate_behind(packed: &[u8], raw_len: u32, prefix: &[u8]) -> Result<Bytes, &'static str> {
    inflate_with(packed, raw_len, |context, target| decompress(context, target, packed, prefix))
}

/// Decodes one zstd frame that was made with `prefix` as what comes before it; how many bytes it had.
fn decompress(
    context: &mut DCtx<'static>,
    target: &mut [u8],
    packed: &[u8],
    prefix: &[u8],
) -> zstd::zstd_safe::SafeResult {
    if prefix.starts_with(&DICTIONARY_MAGIC) {
        // A context of its own: zstd keeps the reference for as long as the context lives.
        let mut context = DCtx::create();
        context.ref_prefix(prefix)?;
        return context.decompress(target, packed);
    }
    // What any other bytes are as a dictionary, they are as a prefix; and it is forgotten again.
    context.decompress_using_dict(target, packed, prefix)
}

/// Says in a delta's payload how far before it its root stands.
pub(super) fn set_distance(header: &mut Header, payload: &mut [u8], distance: u32) {
    payload[4..8].copy_from_slice(&distance.to_le_bytes());
    header.payload_crc = crc32fast::hash(payload);
}

/// Says in a group's payload how far before it the copies of its dictionary stand.
pub(super) fn set_distances(header: &mut Header, payload: &mut [u8], distances: [u32; 2]) {
    payload[4..8].copy_from_slice(&distances[0].to_le_bytes());
    payload[8..12].copy_from_slice(&distances[1].to_le_bytes());
    header.payload_crc = crc32fast::hash(payload);
}

/// How the id of the dictionary begins that a group's payload names.
pub(super) fn dictionary_of(header: &Header, payload: &[u8]) -> Option<[u8; 4]> {
    (header.codec == CODEC_DICTIONARY).then(|| payload.get(12..)?.first_chunk().copied())?
}

/// Takes the names of members out of a table, so that nobody is led to them; their bytes stay.
pub(super) fn drop_names(
    header: &mut Header,
    payload: &mut [u8],
    table: &Table,
    gone: impl Fn(&Key) -> bool,
) {
    let kind = header.member_kind() as u8;
    let is_gone = |i: usize| table.members.get(i).is_some_and(|member| gone(&Key::new(&member.id.0, kind)));
    let rows = &mut payload[HEAD_BYTES..table.bytes];
    if header.is_unnamed() {
        unnamed::drop(rows, is_gone);
    } else {
        for (_, row) in rows.chunks_exact_mut(MEMBER_BYTES).enumerate().filter(|(i, _)| is_gone(*i)) {
            row[..32].copy_from_slice(&NOBODY);
        }
    }
    header.payload_crc = crc32fast::hash(payload);
}
