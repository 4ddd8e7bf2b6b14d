//! Footers of packs of version 4: the rows by place, column by column, compressed.
//!
//! ```text
//! rows  = ids, 32 bytes each | for each of the 13 other bytes of a row: this byte of all rows
//!         in the order of places; an offset is counted from the row before, and the stored length of a row that stands
//!         where the one before it does is 0
//! ```
//!
//! Nothing is left out: it is the list that other footers have, in another order.

use super::frame::{Header, inflate};

const ID_BYTES: usize = 32;
const ROW_BYTES: usize = 45;
const OFFSET: usize = 33;
const STORED: usize = 37;
const LEVEL: i32 = 9;
/// Ids do not compress, so no footer expands by more than this.
const EXPANSION_MAX: u64 = 4;

fn number(row: &[u8], at: usize) -> u32 {
    super::frame::u32_at(row, at)
}

fn set(row: &mut [u8], at: usize, number: u32) {
    row[at..at + 4].copy_from_slice(&number.to_le_bytes());
}

/// Compresses rows that are sorted by offset.
pub(super) fn compress(rows: &[u8]) -> Vec<u8> {
    let count = rows.len() / ROW_BYTES;
    let mut out = Vec::with_capacity(rows.len());
    let mut told = rows.to_vec();
    for (i, row) in told.chunks_exact_mut(ROW_BYTES).enumerate() {
        out.extend_from_slice(&row[..ID_BYTES]);
        let before = if i == 0 { 0 } else { number(&rows[(i - 1) * ROW_BYTES..], OFFSET) };
        let step = number(row, OFFSET) - before;
        set(row, OFFSET, step);
        if step == 0 {
            set(row, STORED, 0);
        }
    }
    for column in ID_BYTES..ROW_BYTES {
        out.extend((0..count).map(|i| told[i * ROW_BYTES + column]));
    }
    super::group::compress(&out, LEVEL, None)
}

/// The rows that [`compress`] was given; `None` if these are none.
pub(super) fn expand(header: &Header, packed: &[u8]) -> Option<Vec<u8>> {
    let len = header.raw_len as usize;
    if !len.is_multiple_of(ROW_BYTES) || u64::from(header.raw_len) > packed.len() as u64 * EXPANSION_MAX {
        return None;
    }
    let columns = inflate(packed, header.raw_len).ok()?;
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
    Some(rows)
}

#[cfg(test)]
mod tests {
    use super::super::frame::{CODEC_ZSTD, Kind, raw};
    use super::*;

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
        let zeros = super::super::group::compress(&[0; 45 * 100_000], LEVEL, None);
        assert_eq!(expand(&Header { raw_len: 45 * 100_000, ..header }, &zeros), None);
        // Steps that leave 32 bits.
        let far = [&rows[..32], &rows[45..77], &[0xff; 26]].concat();
        let far = super::super::group::compress(&far, LEVEL, None);
        assert_eq!(expand(&Header { raw_len: 90, ..header }, &far), None);
    }
}
