//! What the index keeps in the database: the rows of its five tables, and how blocks of them are packed.
//!
//! What must always be true: every codec gives back exactly the sorted rows that it was given, and anything
//! else that it is given is `None`, never a panic or a huge allocation. Numbers in rows are big-endian, so
//! that rows sort as numbers do.

use super::bits::{BitReader, BitWriter};
use super::gram::{FEATURE_BITS, LEVEL_MAX, LEVELS};
use crate::db::{Codec, Layout, Runs, Table};
use crate::id::{ChunkId, RecipeId};
use crate::recipe::{put_varint, take_varint};

/// Bytes of an id that the index tells chunks and contents apart by.
pub(super) const KEY_BYTES: usize = 12;
pub(super) type IdKey = [u8; KEY_BYTES];
const FEATURE_BYTES: usize = FEATURE_BITS as usize / 8;
pub(super) const POSTING_BYTES: usize = FEATURE_BYTES + 4;
pub(super) const CHUNK_BYTES: usize = KEY_BYTES + 4 + 1 + 4 * LEVELS;
pub(super) const CONTAINED_BYTES: usize = 4 + 4 + 1;
pub(super) const CONTENT_BYTES: usize = 4 + 16 + 8 + 1 + 4 * LEVELS;
const NUMBERED_BYTES: usize = KEY_BYTES + 4;

/// (feature, chunk number)
pub(super) static FEATURES: Runs<Postings> =
    Runs::new(Layout { table: Table::Features, row_len: POSTING_BYTES, key_len: POSTING_BYTES });
/// chunk id -> [`ChunkRow`]
pub(super) static SKETCHED: Runs<Chunks> =
    Runs::new(Layout { table: Table::Sketched, row_len: CHUNK_BYTES, key_len: KEY_BYTES });
/// (chunk number, content number) -> level of the chunk
pub(super) static CONTAINED: Runs<Containments> =
    Runs::new(Layout { table: Table::Contained, row_len: CONTAINED_BYTES, key_len: 8 });
/// content number -> [`ContentRow`]
pub(super) static CONTENTS: Runs<Contents> =
    Runs::new(Layout { table: Table::Contents, row_len: CONTENT_BYTES, key_len: 4 });
/// recipe id -> content number
pub(super) static NUMBERED: Runs =
    Runs::new(Layout { table: Table::Numbered, row_len: NUMBERED_BYTES, key_len: KEY_BYTES });

pub(super) fn chunk_key(id: &ChunkId) -> IdKey {
    head(&id.0)
}

pub(super) fn recipe_key(id: &RecipeId) -> IdKey {
    head(&id.0)
}

/// The first `N` bytes; the caller's row is long enough.
pub(super) fn head<const N: usize>(bytes: &[u8]) -> [u8; N] {
    *bytes.first_chunk().expect("rows and ids are longer than their fields")
}

fn u32_at(row: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(head(&row[at..]))
}

pub(super) fn feature_prefix(feature: u64) -> [u8; FEATURE_BYTES] {
    head(&(feature << (64 - FEATURE_BITS)).to_be_bytes())
}

pub(super) fn posting(feature: u64, chunk: u32) -> [u8; POSTING_BYTES] {
    let mut row = [0; POSTING_BYTES];
    row[..FEATURE_BYTES].copy_from_slice(&feature_prefix(feature));
    row[FEATURE_BYTES..].copy_from_slice(&chunk.to_be_bytes());
    row
}

pub(super) fn posting_chunk(row: &[u8]) -> u32 {
    u32_at(row, FEATURE_BYTES)
}

pub(super) fn posting_feature(row: &[u8]) -> u64 {
    let mut wide = [0; 8];
    wide[8 - FEATURE_BYTES..].copy_from_slice(&row[..FEATURE_BYTES]);
    u64::from_be_bytes(wide)
}

pub(super) fn containment(chunk: u32, content: u32, level: u8) -> [u8; CONTAINED_BYTES] {
    let mut row = [0; CONTAINED_BYTES];
    row[..4].copy_from_slice(&chunk.to_be_bytes());
    row[4..8].copy_from_slice(&content.to_be_bytes());
    row[8] = level;
    row
}

/// Chunk number, content number, level of the chunk.
pub(super) fn containment_of(row: &[u8]) -> (u32, u32, u8) {
    (u32_at(row, 0), u32_at(row, 4), row[8])
}

pub(super) fn numbered(key: &IdKey, number: u32) -> [u8; NUMBERED_BYTES] {
    let mut row = [0; NUMBERED_BYTES];
    row[..KEY_BYTES].copy_from_slice(key);
    row[KEY_BYTES..].copy_from_slice(&number.to_be_bytes());
    row
}

pub(super) fn numbered_number(row: &[u8]) -> u32 {
    u32_at(row, KEY_BYTES)
}

/// How many features each level selects, from a coarsest level of its own on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) level: u8,
    /// Zero below `level`.
    pub(super) at: [u32; LEVELS],
}

impl Counts {
    fn put(&self, row: &mut Vec<u8>) {
        row.push(self.level);
        self.at.iter().for_each(|n| row.extend_from_slice(&n.to_be_bytes()));
    }

    fn of_row(row: &[u8]) -> Counts {
        let mut at = [0; LEVELS];
        at.iter_mut().enumerate().for_each(|(i, n)| *n = u32_at(row, 1 + 4 * i));
        Counts { level: row[0], at }
    }

    fn encode(&self, out: &mut Vec<u8>) {
        out.push(self.level);
        self.at[usize::from(self.level)..].iter().for_each(|&n| put_varint(out, n.into()));
    }

    fn decode(block: &mut &[u8]) -> Option<Counts> {
        let (&level, rest) = block.split_first().filter(|(level, _)| **level <= LEVEL_MAX)?;
        *block = rest;
        let mut at = [0; LEVELS];
        for n in &mut at[usize::from(level)..] {
            *n = u32::try_from(take_varint(block)?).ok()?;
        }
        Some(Counts { level, at })
    }
}

/// What is known of a sketched chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ChunkRow {
    pub(super) number: u32,
    pub(super) counts: Counts,
}

impl ChunkRow {
    pub(super) fn to_row(self, key: &IdKey) -> Vec<u8> {
        let mut row = key.to_vec();
        row.extend_from_slice(&self.number.to_be_bytes());
        self.counts.put(&mut row);
        row
    }

    pub(super) fn of_row(row: &[u8]) -> ChunkRow {
        ChunkRow { number: u32_at(row, KEY_BYTES), counts: Counts::of_row(&row[KEY_BYTES + 4..]) }
    }
}

/// What is known of a content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ContentRow {
    pub(super) recipe: RecipeId,
    pub(super) size: u64,
    pub(super) counts: Counts,
}

impl ContentRow {
    pub(super) fn to_row(self, number: u32) -> Vec<u8> {
        let mut row = number.to_be_bytes().to_vec();
        row.extend_from_slice(&self.recipe.0);
        row.extend_from_slice(&self.size.to_be_bytes());
        self.counts.put(&mut row);
        row
    }

    pub(super) fn of_row(row: &[u8]) -> (u32, ContentRow) {
        let content = ContentRow {
            recipe: RecipeId(head(&row[4..])),
            size: u64::from_be_bytes(head(&row[20..])),
            counts: Counts::of_row(&row[28..]),
        };
        (u32_at(row, 0), content)
    }
}

/// Postings: Rice-coded gaps between the distinct features of a block, and for each its chunk numbers in as
/// many bits as the block's largest needs, with a bit that says whether another follows.
#[derive(Debug)]
pub(super) struct Postings;

impl Codec for Postings {
    fn encode(rows: &[u8], row_len: usize) -> Vec<u8> {
        let mut distinct = 0u64;
        let (mut chunk_max, mut last) = (0, None);
        for row in rows.chunks_exact(row_len) {
            chunk_max = chunk_max.max(posting_chunk(row));
            let feature = posting_feature(row);
            distinct += u64::from(last != Some(feature));
            last = Some(feature);
        }
        let first = rows.get(..row_len).map_or(0, posting_feature);
        let gap = (last.unwrap_or(0) - first) / distinct.max(1);
        let rice = gap.checked_ilog2().unwrap_or(0);
        let width = 32 - chunk_max.leading_zeros();
        let mut out = Vec::with_capacity(rows.len() / 2 + 16);
        put_varint(&mut out, (rows.len() / row_len) as u64);
        put_varint(&mut out, first);
        out.extend_from_slice(&[rice as u8, width as u8]);
        let mut bits = BitWriter::new(out);
        let mut before = first;
        let mut rows = rows.chunks_exact(row_len).peekable();
        while let Some(row) = rows.next() {
            let feature = posting_feature(row);
            bits.put_rice(feature - before, rice);
            bits.put(posting_chunk(row).into(), width);
            before = feature;
            while let Some(row) = rows.next_if(|row| posting_feature(row) == feature) {
                bits.put(1, 1);
                bits.put(posting_chunk(row).into(), width);
            }
            bits.put(0, 1);
        }
        bits.finish()
    }

    fn decode(mut block: &[u8], _row_len: usize, rows: &mut Vec<u8>) -> Option<()> {
        // A row takes a bit or more.
        let count = take_varint(&mut block).filter(|&n| n <= 8 * block.len() as u64)?;
        let mut feature = take_varint(&mut block)?;
        let (&[rice, width], block) = block.split_first_chunk::<2>()?;
        if u32::from(rice) > FEATURE_BITS || width > 32 {
            return None;
        }
        rows.reserve(count as usize * POSTING_BYTES);
        let mut bits = BitReader::new(block);
        let mut more = false;
        for _ in 0..count {
            if !more {
                feature = feature.checked_add(bits.take_rice(rice.into())?)?;
                if feature >> FEATURE_BITS != 0 {
                    return None;
                }
            }
            rows.extend_from_slice(&posting(feature, bits.take(width.into())? as u32));
            more = bits.take(1)? == 1;
        }
        (!more).then_some(())
    }
}

/// Sketched chunks: the key as it is, numbers as varints, counts from the chunk's own level on.
#[derive(Debug)]
pub(super) struct Chunks;

impl Codec for Chunks {
    fn encode(rows: &[u8], row_len: usize) -> Vec<u8> {
        let mut out = Vec::with_capacity(rows.len() / 2);
        for row in rows.chunks_exact(row_len) {
            let chunk = ChunkRow::of_row(row);
            out.extend_from_slice(&row[..KEY_BYTES]);
            put_varint(&mut out, chunk.number.into());
            chunk.counts.encode(&mut out);
        }
        out
    }

    fn decode(mut block: &[u8], _row_len: usize, rows: &mut Vec<u8>) -> Option<()> {
        while !block.is_empty() {
            let (key, rest) = block.split_first_chunk::<KEY_BYTES>()?;
            block = rest;
            let number = u32::try_from(take_varint(&mut block)?).ok()?;
            let counts = Counts::decode(&mut block)?;
            rows.extend_from_slice(&ChunkRow { number, counts }.to_row(key));
        }
        Some(())
    }
}

/// Containments: gap to the chunk before, over its level; then the gap between contents of one chunk, or
/// the distance from the content of the row before.
#[derive(Debug)]
pub(super) struct Containments;

impl Codec for Containments {
    fn encode(rows: &[u8], row_len: usize) -> Vec<u8> {
        let mut out = Vec::with_capacity(rows.len() / 3);
        let (mut chunk_before, mut content_before) = (0, 0);
        for row in rows.chunks_exact(row_len) {
            let (chunk, content, level) = containment_of(row);
            put_varint(&mut out, u64::from(chunk - chunk_before) << 3 | u64::from(level));
            let step = i64::from(content) - i64::from(content_before);
            put_varint(&mut out, (step << 1 ^ step >> 63) as u64);
            (chunk_before, content_before) = (chunk, content);
        }
        out
    }

    fn decode(mut block: &[u8], _row_len: usize, rows: &mut Vec<u8>) -> Option<()> {
        let (mut chunk, mut content) = (0u64, 0i64);
        while !block.is_empty() {
            let gap = take_varint(&mut block)?;
            let step = take_varint(&mut block)?;
            chunk = chunk.checked_add(gap >> 3)?;
            content = content.checked_add((step >> 1) as i64 ^ -((step & 1) as i64))?;
            let (chunk, content) = (u32::try_from(chunk).ok()?, u32::try_from(content).ok()?);
            rows.extend_from_slice(&containment(chunk, content, gap as u8 & 7));
        }
        Some(())
    }
}

/// Contents: gap between numbers, the recipe id, size and counts as varints.
#[derive(Debug)]
pub(super) struct Contents;

impl Codec for Contents {
    fn encode(rows: &[u8], row_len: usize) -> Vec<u8> {
        let mut out = Vec::with_capacity(rows.len() / 2);
        let mut before = 0;
        for row in rows.chunks_exact(row_len) {
            let (number, content) = ContentRow::of_row(row);
            put_varint(&mut out, u64::from(number - before));
            out.extend_from_slice(&content.recipe.0);
            put_varint(&mut out, content.size);
            content.counts.encode(&mut out);
            before = number;
        }
        out
    }

    fn decode(mut block: &[u8], _row_len: usize, rows: &mut Vec<u8>) -> Option<()> {
        let mut number = 0u64;
        while !block.is_empty() {
            number = number.checked_add(take_varint(&mut block)?)?;
            let (recipe, rest) = block.split_first_chunk::<16>()?;
            block = rest;
            let content = ContentRow {
                recipe: RecipeId(*recipe),
                size: take_varint(&mut block)?,
                counts: Counts::decode(&mut block)?,
            };
            rows.extend_from_slice(&content.to_row(u32::try_from(number).ok()?));
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn round_trips<C: Codec>(mut rows: Vec<Vec<u8>>, row_len: usize) {
        rows.sort();
        rows.dedup();
        let flat = rows.concat();
        let mut back = Vec::new();
        C::decode(&C::encode(&flat, row_len), row_len, &mut back).unwrap();
        assert_eq!(back, flat);
    }

    fn counts() -> impl Strategy<Value = Counts> {
        (0..=LEVEL_MAX, any::<[u32; LEVELS]>()).prop_map(|(level, mut at)| {
            at[..usize::from(level)].fill(0);
            Counts { level, at }
        })
    }

    proptest! {
        #[test]
        fn codecs_round_trip(
            postings in prop::collection::vec((prop_oneof![0u64..50, 0u64..1 << 40], prop_oneof![0u32..9, any::<u32>()]), 0..300),
            chunks in prop::collection::btree_map(any::<IdKey>(), (any::<u32>(), counts()), 0..50),
            contained in prop::collection::btree_map((0u32..99, any::<u32>()), 0u8..8, 0..50),
            contents in prop::collection::btree_map(any::<u32>(), (any::<[u8; 16]>(), any::<u64>(), counts()), 0..50),
        ) {
            round_trips::<Postings>(postings.iter().map(|&(f, c)| posting(f, c).to_vec()).collect(), POSTING_BYTES);
            round_trips::<Chunks>(
                chunks.iter().map(|(key, &(number, counts))| ChunkRow { number, counts }.to_row(key)).collect(), CHUNK_BYTES);
            round_trips::<Containments>(contained.iter().map(|(&(a, b), &l)| containment(a, b, l).to_vec()).collect(), CONTAINED_BYTES);
            round_trips::<Contents>(contents.iter().map(|(&n, &(recipe, size, counts))| {
                ContentRow { recipe: RecipeId(recipe), size, counts }.to_row(n)
            }).collect(), CONTENT_BYTES);
        }

        #[test]
        fn damage_does_not_panic(block in prop::collection::vec(any::<u8>(), 0..300)) {
            let mut rows = Vec::new();
            let _ = Postings::decode(&block, POSTING_BYTES, &mut rows);
            let _ = Chunks::decode(&block, CHUNK_BYTES, &mut rows);
            let _ = Containments::decode(&block, CONTAINED_BYTES, &mut rows);
            let _ = Contents::decode(&block, CONTENT_BYTES, &mut rows);
        }
    }
}
