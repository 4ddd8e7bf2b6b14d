//! The rows of the index: (method, key, content), and how blocks of them are packed.
//!
//! In a block follow each other, for each method in it: method 1, number of rows, and for each row the gap of its key
//! and its content, or, under the same key, the gap of its content. Numbers are LEB128.

use crate::db::{Codec, Layout, Runs, Table};
use crate::recipe::{put_varint, take_varint};

/// method 1 | key 8 | content 4, big-endian
pub(crate) const POSTING_BYTES: usize = 13;
const PREFIX_BYTES: usize = 9;

pub(super) static POSTINGS: Runs<Postings> =
    Runs::new(Layout { table: Table::MethodKeys, row_len: POSTING_BYTES, key_len: POSTING_BYTES });

pub(super) fn key_prefix(method: u8, key: u64) -> [u8; PREFIX_BYTES] {
    let mut prefix = [method; PREFIX_BYTES];
    prefix[1..].copy_from_slice(&key.to_be_bytes());
    prefix
}

pub(super) fn posting(method: u8, key: u64, content: u32) -> [u8; POSTING_BYTES] {
    let mut row = [0; POSTING_BYTES];
    row[..PREFIX_BYTES].copy_from_slice(&key_prefix(method, key));
    row[PREFIX_BYTES..].copy_from_slice(&content.to_be_bytes());
    row
}

/// Key and content of a whole row.
pub(super) fn key_and_content(row: &[u8]) -> (u64, u32) {
    let number = |bytes: &[u8]| bytes.iter().fold(0, |number, &byte| number << 8 | u64::from(byte));
    (number(&row[1..PREFIX_BYTES]), number(&row[PREFIX_BYTES..POSTING_BYTES]) as u32)
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
                let (key, content) = key_and_content(row);
                put_varint(&mut out, key - last_key);
                let under_same = at > 0 && key == last_key;
                put_varint(&mut out, u64::from(if under_same { content - last_content } else { content }));
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
                let number = u32::try_from(take_varint(&mut block)?).ok()?;
                key = key.checked_add(gap)?;
                content = match (at, gap, number) {
                    (1.., 0, 0) => return None,
                    (1.., 0, _) => content.checked_add(number)?,
                    _ => number,
                };
                rows.extend_from_slice(&posting(method, key, content));
            }
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn blocks_survive(rows in prop::collection::btree_set((0u8..3, any::<u64>(), 0u32..9), 0..200), small: bool) {
            let rows: std::collections::BTreeSet<_> =
                rows.into_iter().map(|(method, key, content)| posting(method, if small { key % 20 } else { key }, content)).collect();
            let rows: Vec<u8> = rows.into_iter().flatten().collect();
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
