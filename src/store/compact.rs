//! Footers of packs of version 4 and later: rows sorted by offset, stored column by column, compressed with
//! the pack's recipes.
//!
//! ```text
//! payload = number of groups of recipes 4 | where each stands 4 | one zstd frame, made with what these groups decode to, one
//!           behind the other, as what comes before it | offset of the footer frame u32 | end magic (4)
//! frame   = ids, 32 bytes each | for each of the 13 other bytes of a row: this byte of all rows
//!           in the order of places; an offset is counted from the row before, and the stored length of a row that stands
//!           where the one before it does is 0
//! ```
//!
//! The recipes in these groups have no rows: their hash names them. Most chunk ids also occur in recipes, so
//! a chunk takes only a few bytes in the footer.
//!
//! Invariants: reading the rows needs only these groups in addition, at most 16 MiB decoded. If one of them
//! is damaged, there is no footer, and the pack is searched as any pack without a footer.

use super::entry::Entry;
use super::frame::{Header, Kind, Place};
use super::gathered::compress as compress_behind;
use super::group::{Base, Group, inflate_behind, read_frame};
use super::group_table::Table;
use crate::env::DiskFile;

const ID_BYTES: usize = 32;
const ROW_BYTES: usize = 45;
const OFFSET: usize = 33;
const STORED: usize = 37;
const LEVEL: i32 = 9;
/// A row takes at least two bytes.
const EXPANSION_MAX: u64 = 24;
/// Groups of recipes beyond this many bytes have rows.
const RECIPES_BYTES_MAX: usize = 16 << 20;

/// The groups of recipes in a pack.
#[derive(Default)]
pub(super) struct Recipes {
    offsets: Vec<u32>,
    /// Their decoded bytes.
    bytes: Vec<u8>,
    /// The entries that a footer would have for their content.
    entries: Vec<Entry>,
}

impl Recipes {
    /// Finds them among the entries of a growing pack, as far as they can be read.
    pub(super) fn among(entries: &[Entry], file: &dyn DiskFile, pack_place: Place) -> Recipes {
        let mut found = Recipes::default();
        for pair in entries.windows(2) {
            // The entries of a group's content follow the group.
            let offset = pair[0].address.offset;
            if pair[0].key.kind() == Kind::Group as u8
                && pair[1].key.recipe_id().is_some()
                && pair[1].address.offset == offset
                && found.add(file, Place { offset, ..pack_place }).is_none()
            {
                break;
            }
        }
        found
    }

    fn add(&mut self, file: &dyn DiskFile, place: Place) -> Option<()> {
        let (header, payload) = read_frame(file, place).ok()?;
        if header.member_kind() != Kind::Recipe
            || self.bytes.len() + header.raw_len as usize > RECIPES_BYTES_MAX
        {
            return None;
        }
        let table = Table::parse(&header, &payload).ok()?;
        let group = Group::decode_with(&header, &payload, table, Base::Nothing).ok()?;
        let entries = Entry::all_of(&header, group.named(), place.pack, place.offset);
        self.bytes.extend_from_slice(group.raw());
        self.entries.extend_from_slice(&entries[1..]);
        self.offsets.push(place.offset);
        Some(())
    }

    /// Whether a footer with these groups omits this entry.
    pub(super) fn tell(&self, entry: &Entry) -> bool {
        entry.key.recipe_id().is_some() && self.offsets.contains(&entry.address.offset)
    }
}

fn number(row: &[u8], at: usize) -> u32 {
    super::frame::u32_at(row, at)
}

fn set(row: &mut [u8], at: usize, number: u32) {
    row[at..at + 4].copy_from_slice(&number.to_le_bytes());
}

/// Compresses rows that are sorted by offset; returns a payload without its end.
pub(super) fn compress(rows: &[u8], recipes: &Recipes) -> Vec<u8> {
    let count = rows.len() / ROW_BYTES;
    let mut columns = Vec::with_capacity(rows.len());
    let mut told = rows.to_vec();
    for (i, row) in told.chunks_exact_mut(ROW_BYTES).enumerate() {
        columns.extend_from_slice(&row[..ID_BYTES]);
        let before = if i == 0 { 0 } else { number(&rows[(i - 1) * ROW_BYTES..], OFFSET) };
        let step = number(row, OFFSET) - before;
        set(row, OFFSET, step);
        if step == 0 {
            set(row, STORED, 0);
        }
    }
    for column in ID_BYTES..ROW_BYTES {
        columns.extend((0..count).map(|i| told[i * ROW_BYTES + column]));
    }
    let mut out = (recipes.offsets.len() as u32).to_le_bytes().to_vec();
    recipes.offsets.iter().for_each(|offset| out.extend_from_slice(&offset.to_le_bytes()));
    out.extend_from_slice(&compress_behind(&columns, LEVEL, Some(&recipes.bytes)));
    out
}

/// Returns the rows that [`compress`] got, plus the entries from the recipes, for the footer at `place`;
/// `None` if the payload is invalid.
pub(super) fn expand(
    header: &Header,
    payload: &[u8],
    file: &dyn DiskFile,
    place: Place,
) -> Option<(Vec<u8>, Vec<Entry>)> {
    let (count, rest) = payload.split_first_chunk::<4>()?;
    let (offsets, packed) = rest.split_at_checked((u32::from_le_bytes(*count) as usize).checked_mul(4)?)?;
    let len = header.raw_len as usize;
    if !len.is_multiple_of(ROW_BYTES) || u64::from(header.raw_len) > packed.len() as u64 * EXPANSION_MAX {
        return None;
    }
    let mut recipes = Recipes::default();
    for offset in offsets.chunks_exact(4).map(|offset| number(offset, 0)) {
        let follows = recipes.offsets.last().is_none_or(|last| *last < offset) && offset < place.offset;
        follows.then(|| recipes.add(file, Place { offset, ..place }))??;
    }
    let columns = inflate_behind(packed, header.raw_len, &recipes.bytes).ok()?;
    let count = len / ROW_BYTES;
    let (ids, columns) = columns.split_at(count * ID_BYTES);
    let mut rows = Vec::with_capacity(len);
    let (mut offset, mut stored) = (0u32, 0);
    for i in 0..count {
        let start = rows.len();
        rows.extend_from_slice(&ids[i * ID_BYTES..][..ID_BYTES]);
        rows.extend((0..ROW_BYTES - ID_BYTES).map(|column| columns[column * count + i]));
        let row = &mut rows[start..];
        let step = number(row, OFFSET);
        offset = offset.checked_add(step)?;
        stored = if step == 0 { stored } else { number(row, STORED) };
        set(row, OFFSET, offset);
        set(row, STORED, stored);
    }
    Some((rows, recipes.entries))
}

#[cfg(test)]
mod tests {
    use super::super::frame::{CODEC_ZSTD, raw};
    use super::super::fuzz::Memory;
    use super::*;
    use crate::id::StoreId;

    const PLACE: Place = Place { store: StoreId([7; 16]), pack: 3, offset: u32::MAX };

    fn expand(header: &Header, payload: &[u8]) -> Option<Vec<u8>> {
        super::expand(header, payload, &Memory(&[]), PLACE).map(|(rows, _)| rows)
    }

    fn compress(rows: &[u8]) -> Vec<u8> {
        super::compress(rows, &Recipes::default())
    }

    /// What a footer is of these columns.
    fn of(columns: &[u8]) -> Vec<u8> {
        [&[0; 4], &compress_behind(columns, LEVEL, None)[..]].concat()
    }

    /// So many rows, three at each place, and their header.
    fn rows(count: u32) -> (Header, Vec<u8>) {
        let mut rows = Vec::new();
        for i in 0..count {
            rows.extend_from_slice(blake3::hash(&i.to_le_bytes()).as_bytes());
            rows.push(1 + (i % 2) as u8);
            for number in [40 + i / 3 * 70_000, 69_000 + i / 3, i * 97] {
                rows.extend_from_slice(&number.to_le_bytes());
            }
        }
        let header = Header { raw_len: rows.len() as u32, codec: CODEC_ZSTD, ..raw(Kind::Footer, &[]) };
        (header, rows)
    }

    #[test]
    fn what_is_compressed_is_expanded_again() {
        for count in [0, 1, 2, 3, 1000] {
            let (header, rows) = rows(count);
            let packed = compress(&rows);
            assert_eq!(expand(&header, &packed).unwrap(), rows, "{count} rows");
            assert!(count < 1000 || packed.len() < 36 * count as usize, "{} bytes", packed.len());
        }
    }

    /// Seen to fail: without a bound on what a footer expands by, then without one on offsets.
    #[test]
    fn what_lies_is_refused() {
        let (header, rows) = rows(1000);
        let packed = compress(&rows);
        for raw_len in
            [0, 45, header.raw_len - 45, header.raw_len + 45, header.raw_len - 1, u32::MAX / 45 * 45]
        {
            assert_eq!(expand(&Header { raw_len, ..header }, &packed), None, "{raw_len}");
        }
        for cut in [0, 1, packed.len() / 2, packed.len() - 1] {
            assert_eq!(expand(&header, &packed[..cut]), None, "{cut}");
        }
        // Zeros, of which zstd needs next to nothing.
        let zeros = of(&vec![0; 45 * 100_000]);
        assert_eq!(expand(&Header { raw_len: 45 * 100_000, ..header }, &zeros), None);
        // Groups that are not there.
        assert_eq!(expand(&header, &[&[1, 0, 0, 0, 40, 0, 0, 0], &packed[4..]].concat()), None);
        // Steps that leave 32 bits.
        let far = [&rows[..32], &rows[45..77], &[0xff; 26]].concat();
        let far = of(&far);
        assert_eq!(expand(&Header { raw_len: 90, ..header }, &far), None);
    }
}
