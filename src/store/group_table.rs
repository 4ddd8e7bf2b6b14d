//! The table of a group: its members and its base. [`super::group`] shows the layout.

use super::dictionary::Copies;
use super::frame::{
    CODEC_DICTIONARY, CODEC_LZMA, CODEC_PREFIX, CODEC_RAW, CODEC_ZSTD, FLAG_INFLATED, FLAG_RECIPES,
    FLAG_UNNAMED, HEADER_BYTES, Header, Key, Kind, u32_at,
};
use super::member::{HEAD_BYTES, MEMBER_BYTES, MEMBERS_MAX, Member, Name, Named};
use super::unnamed;
use crate::id::ChunkId;
use crate::recipe::CHUNK_BYTES_MAX;

/// The id of an unneeded member.
const NOBODY: [u8; 32] = [0; 32];

/// The bytes before the members' bytes.
#[derive(Clone, Debug)]
pub(super) struct Table {
    pub(super) needs: Needs,
    pub(super) members: Vec<Member>,
    /// Its length.
    pub(super) bytes: usize,
}

/// The base of a group, by its distance before the group.
#[derive(Clone, Copy, Debug)]
pub(super) enum Needs {
    Nothing,
    Root { distance: u32, begins: [u8; 8] },
    Dictionary { distances: [u32; 2], begins: [u8; 4] },
}

impl Table {
    /// Parses the table of a payload with a valid checksum.
    pub(super) fn parse(header: &Header, payload: &[u8]) -> Result<Table, &'static str> {
        if !header.is_group() {
            return Err("the frame is no group");
        }
        let is_delta = header.kind == Kind::Delta as u8;
        if ![0, FLAG_INFLATED, FLAG_UNNAMED, FLAG_UNNAMED | FLAG_RECIPES].contains(&header.flags) {
            return Err("the frame has flags that this program does not know");
        }
        match (is_delta, header.codec) {
            (false, CODEC_RAW | CODEC_ZSTD | CODEC_DICTIONARY | CODEC_LZMA) | (true, CODEC_PREFIX) => {}
            _ => return Err("the frame has a codec that this program does not know"),
        }
        let Some((head, rest)) = payload.split_at_checked(HEAD_BYTES) else {
            return Err("the table of a group is cut short");
        };
        let count = u32_at(head, 0) as usize;
        if count == 0 || count > MEMBERS_MAX {
            return Err("a group has none or too many chunks");
        }
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
        let told = if header.is_unnamed() { unnamed::parse(rest, count) } else { parse_named(rest, count) };
        let (told, rows_len) = told.ok_or("the table of a group is cut short")?;
        let bytes_max = if header.is_inflated() { CHUNK_BYTES_MAX } else { header.raw_len };
        let mut members = Vec::with_capacity(count);
        let mut start = 0u32;
        for (name, len) in told {
            members.push(Member { name, start, len });
            let end = start.checked_add(len).filter(|end| len > 0 && *end <= bytes_max);
            start = end.ok_or("the chunks of a group are not as long as it says")?;
        }
        if start != header.raw_len && !header.is_inflated() {
            return Err("the chunks of a group are not as long as it says");
        }
        // A single member has the hash of the group.
        if let [Member { name: name @ Name::Untold, .. }] = &mut members[..] {
            *name = Name::Told(ChunkId(header.id));
        }
        Ok(Table { needs, members, bytes: HEAD_BYTES + rows_len })
    }

    /// Whether the table has the names of all chunks that may be needed.
    pub(super) fn is_named(&self) -> bool {
        !self.members.iter().any(|member| member.name == Name::Untold)
    }

    /// Fills in missing names from the decoded group.
    pub(super) fn named_by(mut self, id_of: impl Fn(usize) -> Option<ChunkId>) -> Table {
        for (at, member) in self.members.iter_mut().enumerate() {
            member.name = id_of(at).map_or(Name::Nobody, Name::Told);
        }
        self
    }

    /// Returns the chunks that may be needed and whose names are known.
    pub(super) fn named(&self) -> impl Iterator<Item = Named> {
        self.members.iter().filter_map(|member| match member.name {
            Name::Told(id) => Some((id, member.len)),
            Name::Untold | Name::Nobody => None,
        })
    }

    /// Returns the offset of the root's frame and the first bytes of its id; `None` if this group, at
    /// `offset`, is not a delta.
    pub(super) fn root(&self, offset: u32) -> Result<Option<(u32, [u8; 8])>, &'static str> {
        match self.needs {
            Needs::Root { distance, begins } => Ok(Some((before(offset, distance)?, begins))),
            Needs::Nothing | Needs::Dictionary { .. } => Ok(None),
        }
    }

    /// Returns the dictionary of a group at `offset`.
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

/// Parses name and length of `count` members; returns the bytes used.
fn parse_named(bytes: &[u8], count: usize) -> Option<(Vec<(Name, u32)>, usize)> {
    let rows = bytes.get(..count * MEMBER_BYTES)?;
    let members = rows.chunks_exact(MEMBER_BYTES).map(|row| {
        let id: [u8; 32] = *row.first_chunk().expect("a row is longer than an id");
        let name = if id == NOBODY { Name::Nobody } else { Name::Told(ChunkId(id)) };
        (name, u32_at(row, 32))
    });
    Some((members.collect(), rows.len()))
}

/// Appends a member to a table.
pub(super) fn put_named(table: &mut Vec<u8>, (id, len): Named) {
    table.extend_from_slice(&id.0);
    table.extend_from_slice(&len.to_le_bytes());
}

fn before(offset: u32, distance: u32) -> Result<u32, &'static str> {
    offset.checked_sub(distance).ok_or("a group says that what it needs stands before the pack")
}

/// Whether an id begins with these bytes from a delta.
pub(super) fn is_root(id: &[u8; 32], begins: &[u8; 8]) -> bool {
    id.starts_with(begins)
}

/// Returns the payload bytes before those of the members.
pub(super) fn table_bytes(members: usize) -> usize {
    HEAD_BYTES + members * MEMBER_BYTES
}

/// Sets the distance to the root in a delta's payload.
pub(super) fn set_distance(header: &mut Header, payload: &mut [u8], distance: u32) {
    payload[4..8].copy_from_slice(&distance.to_le_bytes());
    header.payload_crc = crc32fast::hash(payload);
}

/// Sets the distances to the dictionary's copies in a group's payload.
pub(super) fn set_distances(header: &mut Header, payload: &mut [u8], distances: [u32; 2]) {
    payload[4..8].copy_from_slice(&distances[0].to_le_bytes());
    payload[8..12].copy_from_slice(&distances[1].to_le_bytes());
    header.payload_crc = crc32fast::hash(payload);
}

/// Returns the first bytes of the dictionary's id in a group's payload.
pub(super) fn dictionary_of(header: &Header, payload: &[u8]) -> Option<[u8; 4]> {
    (header.codec == CODEC_DICTIONARY).then(|| payload.get(12..)?.first_chunk().copied())?
}

/// Removes names of members from a payload, so that they are no longer found; their bytes stay. The table
/// must be named.
pub(super) fn drop_names(
    header: &mut Header,
    payload: &mut [u8],
    table: &Table,
    gone: impl Fn(&Key) -> bool,
) {
    let kind = header.member_kind() as u8;
    let is_gone = |i: usize| match table.members.get(i).map(|member| member.name) {
        Some(Name::Told(id)) => gone(&Key::new(&id.0, kind)),
        _ => false,
    };
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
