//! Rows on disk: the keys and values of the similarity index's five tables, and how blocks of them are packed.
//!
//! Invariants:
//! - Every codec returns exactly the sorted rows that it was given. Decoding any other bytes returns `None`, never panics
//!   and never allocates much.
//! - Numbers in rows are big-endian, so that rows sort as numbers do. Decoded rows ascend strictly, so they can be encoded again.
//!
//! Ids are shortened as far as an error costs little. A chunk has a key of 48 bits: one in 2^24 of 2^24 chunks is taken for
//! another one, and a content with it is estimated by the other's features. A content's name is found by 32 bits; its row
//! has the whole id, which tells it from others.
//!
//! A **bare** chunk has no grams in the index, because it does not compress: only its id is known. Its counts are those that
//! grams of such a length have on average, and each containment of it repeats their number.

use super::bits::{BitReader, BitWriter, rice_bits};
use super::gram::LEVELS;
use super::prefix::{PrefixCode, PrefixReader, SYMBOLS};
use crate::db::{Codec, Layout, Runs, Table};
use crate::id::{ChunkId, RecipeId};
use crate::recipe::{put_varint, take_varint};

/// Bytes of an id that distinguish chunks in the index.
pub(super) const KEY_BYTES: usize = 6;
pub(super) type ChunkKey = [u8; KEY_BYTES];
/// Bits of the hash in a posting, and in a name.
const HASH_BITS: u32 = 40;
pub(super) const HASH_BYTES: usize = HASH_BITS as usize / 8;
pub(super) const POSTING_BYTES: usize = HASH_BYTES + 4;
pub(super) const CHUNK_BYTES: usize = KEY_BYTES + 4 + 1 + 1 + 4 * LEVELS;
pub(super) const CONTAINED_BYTES: usize = 4 + 4 + 1 + 4;
pub(super) const CONTENT_BYTES: usize = 4 + 16 + 8 + 1 + 4 * LEVELS;

/// Largest block of rows that are looked up one by one.
const POINT_BLOCK_BYTES_MAX: usize = 1024;

/// (chunk number, content number) -> [`Sampled`]
pub(super) static CONTAINED: Runs<Containments> =
    Runs::new(Layout { table: Table::Contained, row_len: CONTAINED_BYTES, key_len: 8 });
/// content number -> [`ContentRow`]
pub(super) static CONTENTS: Runs<Contents> =
    Runs::new(Layout { table: Table::Contents, row_len: CONTENT_BYTES, key_len: 4 });

pub(super) fn chunk_key(id: &ChunkId) -> ChunkKey {
    head(&id.0)
}

/// Returns the first `N` bytes; the caller's row is long enough.
pub(super) fn head<const N: usize>(bytes: &[u8]) -> [u8; N] {
    *bytes.first_chunk().expect("rows and ids are longer than their fields")
}

fn u32_at(row: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(head(&row[at..]))
}

/// Returns the leading bytes of all rows with this hash.
pub(super) fn hash_prefix(hash: u64) -> [u8; HASH_BYTES] {
    head(&(hash << (64 - HASH_BITS)).to_be_bytes())
}

pub(super) fn posting(hash: u64, number: u32) -> [u8; POSTING_BYTES] {
    let mut row = [0; POSTING_BYTES];
    row[..HASH_BYTES].copy_from_slice(&hash_prefix(hash));
    row[HASH_BYTES..].copy_from_slice(&number.to_be_bytes());
    row
}

/// Returns the number of a chunk that has a feature, or of a content that may have a name.
pub(super) fn posting_number(row: &[u8]) -> u32 {
    u32_at(row, HASH_BYTES)
}

pub(super) fn posting_hash(row: &[u8]) -> u64 {
    let mut wide = [0; 8];
    wide[8 - HASH_BYTES..].copy_from_slice(&row[..HASH_BYTES]);
    u64::from_be_bytes(wide)
}

/// Returns the key that finds a content's name.
pub(super) fn name_hash(id: &RecipeId) -> u64 {
    u32_at(&id.0, 0).into()
}

pub(super) fn name(id: &RecipeId, number: u32) -> [u8; POSTING_BYTES] {
    posting(name_hash(id), number)
}

/// Facts about the chunk in a containment row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sampled {
    /// The level of its sketch.
    pub(super) level: u8,
    /// Features that a bare chunk would have at that level; 0 if the chunk has its grams in the index.
    pub(super) bare: u32,
}

pub(super) fn containment(chunk: u32, content: u32, sampled: Sampled) -> [u8; CONTAINED_BYTES] {
    let mut row = [0; CONTAINED_BYTES];
    row[..4].copy_from_slice(&chunk.to_be_bytes());
    row[4..8].copy_from_slice(&content.to_be_bytes());
    row[8] = sampled.level;
    row[9..].copy_from_slice(&sampled.bare.to_be_bytes());
    row
}

/// Returns chunk number, content number, and the facts about the chunk.
pub(super) fn containment_of(row: &[u8]) -> (u32, u32, Sampled) {
    (u32_at(row, 0), u32_at(row, 4), Sampled { level: row[8], bare: u32_at(row, 9) })
}

const LEVEL_BITS: u32 = 3;
/// Bits for the length of a count, 0 to 32 bits, and for that of a size, 0 to 64.
const COUNT_BITS: u32 = 6;
const SIZE_BITS: u32 = 7;

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

    /// Each level selects about half as many as the one below, so only the difference from that is written.
    fn encode(&self, out: &mut BitWriter) {
        out.put(self.level.into(), LEVEL_BITS);
        let mut above = self.at[usize::from(self.level)];
        out.put_number(above.into(), COUNT_BITS);
        for &n in &self.at[usize::from(self.level) + 1..] {
            let step = i64::from(n) - i64::from(above / 2);
            out.put_rice((step << 1 ^ step >> 63) as u64, half_spread(above));
            above = n;
        }
    }

    fn decode(bits: &mut BitReader<'_>) -> Option<Counts> {
        let level = bits.take(LEVEL_BITS)? as u8;
        let mut above = u32::try_from(bits.take_number(COUNT_BITS)?).ok()?;
        let mut at = [0; LEVELS];
        at[usize::from(level)] = above;
        for n in &mut at[usize::from(level) + 1..] {
            let step = bits.take_rice(half_spread(above))?;
            let step = (step >> 1) as i64 ^ -((step & 1) as i64);
            *n = u32::try_from(i64::from(above / 2) + step).ok()?;
            above = *n;
        }
        Some(Counts { level, at })
    }
}

/// Returns bits for the Rice code of the distance of half of `n` random things from `n / 2`: about the square root.
fn half_spread(n: u32) -> u32 {
    (n.checked_ilog2().unwrap_or(0) / 2).saturating_sub(1)
}

/// Row of a sketched chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ChunkRow {
    pub(super) number: u32,
    /// Whether only its id is known.
    pub(super) is_bare: bool,
    pub(super) counts: Counts,
}

impl ChunkRow {
    pub(super) fn to_row(self, key: &ChunkKey) -> Vec<u8> {
        let mut row = key.to_vec();
        self.put(&mut row);
        row
    }

    /// Writes the value, which follows the key.
    fn put(self, row: &mut Vec<u8>) {
        row.extend_from_slice(&self.number.to_be_bytes());
        row.push(self.is_bare.into());
        self.counts.put(row);
    }

    pub(super) fn of_row(row: &[u8]) -> ChunkRow {
        ChunkRow {
            number: u32_at(row, KEY_BYTES),
            is_bare: row[KEY_BYTES + 4] != 0,
            counts: Counts::of_row(&row[KEY_BYTES + 5..]),
        }
    }

    pub(super) fn sampled(self) -> Sampled {
        let Counts { level, at } = self.counts;
        Sampled { level, bare: if self.is_bare { at[usize::from(level)] } else { 0 } }
    }
}

/// Row of a content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ContentRow {
    pub(super) recipe: RecipeId,
    pub(super) size: u64,
    pub(super) counts: Counts,
}

impl ContentRow {
    pub(super) fn to_row(self, number: u32) -> Vec<u8> {
        let mut row = Vec::with_capacity(CONTENT_BYTES);
        self.put(number, &mut row);
        row
    }

    fn put(self, number: u32, rows: &mut Vec<u8>) {
        rows.extend_from_slice(&number.to_be_bytes());
        rows.extend_from_slice(&self.recipe.0);
        rows.extend_from_slice(&self.size.to_be_bytes());
        self.counts.put(rows);
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

/// Postings: Rice-coded gaps between the distinct hashes of a block. For each hash its first number, in as many bits as the
/// block's largest of those needs; then the gaps to the others. A gap is its length in a prefix code and the bits after its
/// leading one. Numbers of similar chunks lie near each other (`order`), others far apart, so no single Rice code suits both.
#[derive(Debug)]
pub(super) struct Postings;

/// The symbols are lengths of gaps, 0 to 32 bits, and after the last of them:
const END: usize = 33;

fn gap_len(gap: u32) -> u32 {
    32 - gap.leading_zeros()
}

/// Returns how many bits follow a length: those below the leading one.
fn gap_rest(len: u32) -> u32 {
    len.saturating_sub(1)
}

impl Codec for Postings {
    fn encode(rows: &[u8], row_len: usize) -> Vec<u8> {
        let parts = || rows.chunks_exact(row_len).map(|row| (posting_hash(row), posting_number(row)));
        let (mut hash_gaps, mut counts, mut first_max) = (Gaps::default(), [0; SYMBOLS], 0);
        let mut before = None::<(u64, u32)>;
        for (hash, number) in parts() {
            match before {
                Some((last, number_before)) if last == hash => {
                    counts[gap_len(number - number_before - 1) as usize] += 1;
                }
                _ => {
                    before.into_iter().for_each(|(last, _)| hash_gaps.add(hash - last - 1));
                    counts[END] += 1;
                    first_max = first_max.max(number);
                }
            }
            before = Some((hash, number));
        }
        let (hash_rice, width) = (hash_gaps.rice(), 32 - first_max.leading_zeros());
        let code = PrefixCode::of(counts);
        let mut out = Vec::with_capacity(rows.len() / 2 + 32);
        put_varint(&mut out, (rows.len() / row_len) as u64);
        put_varint(&mut out, parts().next().map_or(0, |(hash, _)| hash));
        out.extend_from_slice(&[hash_rice as u8, width as u8]);
        let mut bits = BitWriter::new(out);
        code.put_lens(&mut bits);
        let mut before = None::<(u64, u32)>;
        for (hash, number) in parts() {
            match before {
                Some((last, number_before)) if last == hash => {
                    let gap = number - number_before - 1;
                    let len = gap_len(gap);
                    code.put(len as usize, &mut bits);
                    bits.put(u64::from(gap) & ((1 << gap_rest(len)) - 1), gap_rest(len));
                }
                _ => {
                    if let Some((last, _)) = before {
                        code.put(END, &mut bits);
                        bits.put_rice(hash - last - 1, hash_rice);
                    }
                    bits.put(number.into(), width);
                }
            }
            before = Some((hash, number));
        }
        bits.finish()
    }

    fn decode(mut block: &[u8], _row_len: usize, rows: &mut Vec<u8>) -> Option<()> {
        // Every row after the first takes a bit or more.
        let count = take_varint(&mut block).filter(|&n| n <= 1 + 8 * block.len() as u64)?;
        let mut hash = take_varint(&mut block)?;
        let (&[hash_rice, width], block) = block.split_first_chunk::<2>()?;
        if u32::from(hash_rice) > HASH_BITS || width > 32 {
            return None;
        }
        rows.reserve(count as usize * POSTING_BYTES);
        let mut bits = BitReader::new(block);
        let code = PrefixReader::take(&mut bits)?;
        let (mut number, mut row) = (0u32, posting(hash, 0));
        for at in 0..count {
            match if at == 0 { END } else { code.symbol(&mut bits)? } {
                END => {
                    if at > 0 {
                        hash = hash.checked_add(bits.take_rice(hash_rice.into())?)?.checked_add(1)?;
                    }
                    if hash >> HASH_BITS != 0 {
                        return None;
                    }
                    number = bits.take(width.into())? as u32;
                    row = posting(hash, number);
                }
                len => {
                    let rest = gap_rest(len as u32);
                    let gap = bits.take(rest)? | u64::from(len > 0) << rest;
                    number = number.checked_add(gap as u32)?.checked_add(1)?;
                    row[HASH_BYTES..].copy_from_slice(&number.to_be_bytes());
                }
            }
            rows.extend_from_slice(&row);
        }
        Some(())
    }
}

/// Postings in small blocks: names of contents are looked up one by one.
#[derive(Debug)]
pub(super) struct Names;

impl Codec for Names {
    const BLOCK_BYTES_MAX: usize = POINT_BLOCK_BYTES_MAX;

    fn encode(rows: &[u8], row_len: usize) -> Vec<u8> {
        Postings::encode(rows, row_len)
    }

    fn decode(block: &[u8], row_len: usize, rows: &mut Vec<u8>) -> Option<()> {
        Postings::decode(block, row_len, rows)
    }
}

/// Numbers to be Rice-coded.
#[derive(Default)]
pub(super) struct Gaps(Vec<u64>);

impl Gaps {
    pub(super) fn add(&mut self, gap: u64) {
        self.0.push(gap);
    }

    /// Returns the code that takes the fewest bits: for evenly spread numbers it splits at the mean, else below.
    pub(super) fn rice(&self) -> u32 {
        let mean = self.0.iter().sum::<u64>() / self.0.len().max(1) as u64;
        let at_mean = mean.checked_ilog2().unwrap_or(0);
        let bits = |&k: &u32| self.0.iter().map(|&gap| rice_bits(gap, k)).sum::<u64>();
        (at_mean.saturating_sub(4)..=at_mean).min_by_key(bits).unwrap_or(0)
    }
}

fn key_number(key: &[u8]) -> u64 {
    key[..KEY_BYTES].iter().fold(0, |number, &byte| number << 8 | u64::from(byte))
}

/// Sketched chunks: Rice-coded gaps between keys, numbers in as many bits as the block's largest needs, a bit for bare
/// chunks, counts from the chunk's own level on.
#[derive(Debug)]
pub(super) struct Chunks;

impl Codec for Chunks {
    const BLOCK_BYTES_MAX: usize = POINT_BLOCK_BYTES_MAX;

    fn encode(rows: &[u8], row_len: usize) -> Vec<u8> {
        let parts = || rows.chunks_exact(row_len).map(|row| (key_number(row), ChunkRow::of_row(row)));
        let (mut gaps, mut number_max, mut before) = (Gaps::default(), 0, None);
        for (key, chunk) in parts() {
            before.into_iter().for_each(|before: u64| gaps.add(key - before - 1));
            number_max = number_max.max(chunk.number);
            before = Some(key);
        }
        let (rice, width) = (gaps.rice(), 32 - number_max.leading_zeros());
        let mut out = Vec::with_capacity(rows.len() / 3 + 16);
        put_varint(&mut out, (rows.len() / row_len) as u64);
        out.extend_from_slice(&[rice as u8, width as u8]);
        let mut bits = BitWriter::new(out);
        let mut before = None::<u64>;
        for (key, chunk) in parts() {
            match before {
                None => bits.put(key, 8 * KEY_BYTES as u32),
                Some(before) => bits.put_rice(key - before - 1, rice),
            }
            bits.put(chunk.number.into(), width);
            bits.put(chunk.is_bare.into(), 1);
            chunk.counts.encode(&mut bits);
            before = Some(key);
        }
        bits.finish()
    }

    fn decode(mut block: &[u8], _row_len: usize, rows: &mut Vec<u8>) -> Option<()> {
        let count = take_varint(&mut block).filter(|&n| n <= 8 * block.len() as u64)?;
        let (&[rice, width], block) = block.split_first_chunk::<2>()?;
        if u32::from(rice) > 8 * KEY_BYTES as u32 || width > 32 {
            return None;
        }
        rows.reserve(count as usize * CHUNK_BYTES);
        let mut bits = BitReader::new(block);
        let mut key = 0u64;
        for row in 0..count {
            key = match row {
                0 => bits.take(8 * KEY_BYTES as u32)?,
                _ => key.checked_add(bits.take_rice(rice.into())?)?.checked_add(1)?,
            };
            if key >> (8 * KEY_BYTES) != 0 {
                return None;
            }
            let number = bits.take(width.into())? as u32;
            let is_bare = bits.take(1)? == 1;
            let counts = Counts::decode(&mut bits)?;
            rows.extend_from_slice(&key.to_be_bytes()[8 - KEY_BYTES..]);
            ChunkRow { number, is_bare, counts }.put(rows);
        }
        Some(())
    }
}

/// Containments: gap to the chunk before, over whether the chunk is bare and its level. Then the gap between contents of one
/// chunk, or the distance from the content of the row before. A bare chunk also has the number of features it would have.
#[derive(Debug)]
pub(super) struct Containments;

impl Codec for Containments {
    fn encode(rows: &[u8], row_len: usize) -> Vec<u8> {
        let mut out = Vec::with_capacity(rows.len() / 3);
        let (mut chunk_before, mut content_before) = (0, 0);
        for row in rows.chunks_exact(row_len) {
            let (chunk, content, Sampled { level, bare }) = containment_of(row);
            let gap = u64::from(chunk - chunk_before) << 4;
            put_varint(&mut out, gap | u64::from(bare > 0) << 3 | u64::from(level));
            let step = i64::from(content) - i64::from(content_before);
            put_varint(&mut out, (step << 1 ^ step >> 63) as u64);
            if bare > 0 {
                put_varint(&mut out, bare.into());
            }
            (chunk_before, content_before) = (chunk, content);
        }
        out
    }

    fn decode(mut block: &[u8], _row_len: usize, rows: &mut Vec<u8>) -> Option<()> {
        let (mut chunk, mut content) = (0u64, 0i64);
        while !block.is_empty() {
            let gap = take_varint(&mut block)?;
            let step = take_varint(&mut block)?;
            let bare = if gap & 8 == 0 { 0 } else { take_varint(&mut block)?.try_into().ok()? };
            chunk = chunk.checked_add(gap >> 4)?;
            content = content.checked_add((step >> 1) as i64 ^ -((step & 1) as i64))?;
            let (chunk, content) = (u32::try_from(chunk).ok()?, u32::try_from(content).ok()?);
            let sampled = Sampled { level: gap as u8 & 7, bare };
            rows.extend_from_slice(&containment(chunk, content, sampled));
        }
        Some(())
    }
}

/// Contents: Rice-coded gaps between numbers, the recipe id, size and counts.
#[derive(Debug)]
pub(super) struct Contents;

impl Codec for Contents {
    const BLOCK_BYTES_MAX: usize = POINT_BLOCK_BYTES_MAX;

    fn encode(rows: &[u8], row_len: usize) -> Vec<u8> {
        let (mut gaps, mut before) = (Gaps::default(), None);
        for (number, _) in rows.chunks_exact(row_len).map(ContentRow::of_row) {
            before.into_iter().for_each(|before: u32| gaps.add((number - before - 1).into()));
            before = Some(number);
        }
        let rice = gaps.rice();
        let mut out = Vec::with_capacity(rows.len() / 2 + 16);
        put_varint(&mut out, (rows.len() / row_len) as u64);
        out.push(rice as u8);
        let mut bits = BitWriter::new(out);
        let mut before = None::<u32>;
        for (number, content) in rows.chunks_exact(row_len).map(ContentRow::of_row) {
            match before {
                None => bits.put(number.into(), 32),
                Some(before) => bits.put_rice((number - before - 1).into(), rice),
            }
            content.recipe.0.chunks_exact(4).for_each(|part| bits.put(u32_at(part, 0).into(), 32));
            bits.put_number(content.size, SIZE_BITS);
            content.counts.encode(&mut bits);
            before = Some(number);
        }
        bits.finish()
    }

    fn decode(mut block: &[u8], _row_len: usize, rows: &mut Vec<u8>) -> Option<()> {
        let count = take_varint(&mut block).filter(|&n| n <= block.len() as u64)?;
        let (&rice, block) = block.split_first().filter(|(rice, _)| **rice <= 32)?;
        rows.reserve(count as usize * CONTENT_BYTES);
        let mut bits = BitReader::new(block);
        let mut number = 0u32;
        for row in 0..count {
            number = match row {
                0 => bits.take(32)? as u32,
                _ => number.checked_add(bits.take_rice(rice.into())?.try_into().ok()?)?.checked_add(1)?,
            };
            let mut recipe = [0; 16];
            for part in recipe.chunks_exact_mut(4) {
                part.copy_from_slice(&(bits.take(32)? as u32).to_be_bytes());
            }
            let size = bits.take_number(SIZE_BITS)?;
            let content = ContentRow { recipe: RecipeId(recipe), size, counts: Counts::decode(&mut bits)? };
            content.put(number, rows);
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::similarity::gram::LEVEL_MAX;
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
            chunks in prop::collection::btree_map(any::<ChunkKey>(), (any::<u32>(), any::<bool>(), counts()), 0..50),
            contained in prop::collection::btree_map((0u32..99, any::<u32>()), (0u8..8, prop_oneof![Just(0), any::<u32>()]), 0..50),
            contents in prop::collection::btree_map(any::<u32>(), (any::<[u8; 16]>(), any::<u64>(), counts()), 0..50),
        ) {
            round_trips::<Postings>(postings.iter().map(|&(f, c)| posting(f, c).to_vec()).collect(), POSTING_BYTES);
            round_trips::<Chunks>(
                chunks.iter().map(|(key, &(number, is_bare, counts))| ChunkRow { number, is_bare, counts }.to_row(key)).collect(), CHUNK_BYTES);
            round_trips::<Containments>(contained.iter().map(|(&(a, b), &(level, bare))| containment(a, b, Sampled { level, bare }).to_vec()).collect(), CONTAINED_BYTES);
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
