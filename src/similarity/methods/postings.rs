//! The rows of the index: (method, key, content) with a value, and how blocks of them are packed.
//!
//! A block has for each method in it: method 1, number of rows. Then for each row the gap of its key, then its content, or,
//! under the same key, the gap of its content, doubled, plus one if a value other than 1 follows it. Numbers are
//! LEB128.

use super::{Entry, KeyVisitor};
use crate::db::{Codec, Layout, Runs, Table};
use crate::recipe::{put_varint, take_varint};

/// method 1 | key 8 | content 4 | value 8, big-endian
pub(crate) const POSTING_BYTES: usize = KEY_BYTES + 8;
/// Bytes before the content.
pub(super) const KEY_BYTES: usize = PREFIX_BYTES + 4;
const PREFIX_BYTES: usize = 9;

pub(super) static POSTINGS: Runs<Postings> =
    Runs::new(Layout { table: Table::MethodKeys, row_len: POSTING_BYTES, key_len: KEY_BYTES });

pub(super) fn key_prefix(method: u8, key: u64) -> [u8; PREFIX_BYTES] {
    let mut prefix = [method; PREFIX_BYTES];
    prefix[1..].copy_from_slice(&key.to_be_bytes());
    prefix
}

pub(super) fn posting(method: u8, entry: Entry, content: u32) -> [u8; POSTING_BYTES] {
    let mut row = [0; POSTING_BYTES];
    row[..PREFIX_BYTES].copy_from_slice(&key_prefix(method, entry.key));
    row[PREFIX_BYTES..KEY_BYTES].copy_from_slice(&content.to_be_bytes());
    row[KEY_BYTES..].copy_from_slice(&entry.value.to_be_bytes());
    row
}

/// Returns the entry of a whole row, and its content's number.
pub(super) fn of_posting(row: &[u8]) -> (Entry, u32) {
    let number = |bytes: &[u8]| bytes.iter().fold(0, |number, &byte| number << 8 | u64::from(byte));
    let entry = Entry { key: number(&row[1..PREFIX_BYTES]), value: number(&row[KEY_BYTES..POSTING_BYTES]) };
    (entry, number(&row[PREFIX_BYTES..KEY_BYTES]) as u32)
}

pub(crate) struct Postings;

impl Codec for Postings {
    fn encode(rows: &[u8], row_len: usize) -> Vec<u8> {
        let mut out = Vec::with_capacity(rows.len() / 2);
        let rows: Vec<&[u8]> = rows.chunks_exact(row_len).collect();
        for of_method in rows.chunk_by(|a, b| a[0] == b[0]) {
            out.push(of_method[0][0]);
            put_varint(&mut out, of_method.len() as u64);
            let (mut last_key, mut last_content) = (0, 0);
            for (at, row) in of_method.iter().enumerate() {
                let (Entry { key, value }, content) = of_posting(row);
                put_varint(&mut out, key - last_key);
                let under_same = at > 0 && key == last_key;
                let number = u64::from(if under_same { content - last_content } else { content });
                put_varint(&mut out, number << 1 | u64::from(value != 1));
                if value != 1 {
                    put_varint(&mut out, value);
                }
                (last_key, last_content) = (key, content);
            }
        }
        out
    }

    fn decode(mut block: &[u8], row_len: usize, rows: &mut Vec<u8>) -> Option<()> {
        if row_len != POSTING_BYTES {
            return None;
        }
        let mut last_method = None;
        while let Some((&method, rest)) = block.split_first() {
            if last_method.is_some_and(|last| method <= last) {
                return None;
            }
            last_method = Some(method);
            block = rest;
            let count = take_varint(&mut block)?;
            if count == 0 {
                return None;
            }
            let (mut key, mut content) = (0u64, 0u32);
            for at in 0..count {
                let gap = take_varint(&mut block)?;
                let number = take_varint(&mut block)?;
                let value =
                    if number & 1 == 0 { 1 } else { take_varint(&mut block).filter(|value| *value != 1)? };
                let number = u32::try_from(number >> 1).ok()?;
                key = key.checked_add(gap)?;
                content = match (at, gap, number) {
                    (1.., 0, 0) => return None,
                    (1.., 0, _) => content.checked_add(number)?,
                    _ => number,
                };
                rows.extend_from_slice(&posting(method, Entry { key, value }, content));
            }
        }
        Some(())
    }
}

/// Calls `visit` with each key, its contents and values, packed by [`super::Index::packed_keys`], until it returns false;
/// returns whether it did. `None` if the bytes are not such.
pub fn unpack_keys(packed: &[u8], visit: KeyVisitor<'_>) -> Option<bool> {
    let mut rows = Vec::new();
    Postings::decode(packed, POSTING_BYTES, &mut rows)?;
    // All rows must be of one method.
    if rows.chunks_exact(POSTING_BYTES).any(|row| row[0] != rows[0]) {
        return None;
    }
    let rows: Vec<(Entry, u32)> = rows.chunks_exact(POSTING_BYTES).map(of_posting).collect();
    let mut list = Vec::new();
    for same in rows.chunk_by(|a, b| a.0.key == b.0.key) {
        list.clear();
        list.extend(same.iter().map(|(entry, content)| (*content, entry.value)));
        if !visit(same[0].0.key, &list) {
            return Some(false);
        }
    }
    Some(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn blocks_survive(
            rows in prop::collection::btree_map((0u8..3, any::<u64>(), 0u32..9), prop_oneof![Just(1u64), any::<u64>()], 0..200),
            small: bool,
        ) {
            let rows: std::collections::BTreeMap<_, _> = rows
                .into_iter()
                .map(|((method, key, content), value)| ((method, if small { key % 20 } else { key }, content), value))
                .collect();
            let row = |((method, key, content), value)| posting(method, Entry { key, value }, content);
            let rows: Vec<u8> = rows.into_iter().flat_map(row).collect();
            let block = Postings::encode(&rows, POSTING_BYTES);
            let mut again = Vec::new();
            prop_assert_eq!(Postings::decode(&block, POSTING_BYTES, &mut again), Some(()));
            prop_assert_eq!(&again, &rows);
            for end in 1..block.len() {
                // A block may end where a method does.
                let mut part = Vec::new();
                if Postings::decode(&block[..end], POSTING_BYTES, &mut part).is_some() {
                    prop_assert_eq!(&part[..], &rows[..part.len()]);
                }
            }
        }
    }
}
