//! Heads of sketches in the index: (method, content) with its id, its number of keys, and its head; and how blocks of them
//! are packed.
//!
//! A block has for each row: method 1, the gap of the number within the method or else the number, id 16, keys, length of
//! the head 1, head. Numbers are LEB128.

use crate::db::{Codec, Layout, Runs, Table};
use crate::id::RecipeId;
use crate::recipe::{put_varint, take_varint};

/// The longest head.
pub const HEAD_BYTES_MAX: usize = 192;
/// method 1 | number 4
const KEY_BYTES: usize = 5;
const ID_BYTES: usize = 16;
const LEN_AT: usize = KEY_BYTES + ID_BYTES + 8;
/// method 1 | number 4 | id 16 | keys 8 | length 1 | head, with zeros after it
pub(crate) const HEAD_ROW_BYTES: usize = LEN_AT + 1 + HEAD_BYTES_MAX;

pub(super) static HEADS: Runs<Heads> =
    Runs::new(Layout { table: Table::MethodSketches, row_len: HEAD_ROW_BYTES, key_len: KEY_BYTES });

/// A content of an index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HeadRow {
    pub(super) id: RecipeId,
    /// Number of different keys.
    pub(super) keys: u64,
    /// Encoded; at most [`HEAD_BYTES_MAX`].
    pub(super) head: Vec<u8>,
}

pub(super) fn head_key(method: u8, number: u32) -> [u8; KEY_BYTES] {
    let [a, b, c, d] = number.to_be_bytes();
    [method, a, b, c, d]
}

impl HeadRow {
    pub(super) fn to_row(&self, method: u8, number: u32) -> [u8; HEAD_ROW_BYTES] {
        let mut row = [0; HEAD_ROW_BYTES];
        row[..KEY_BYTES].copy_from_slice(&head_key(method, number));
        row[KEY_BYTES..KEY_BYTES + ID_BYTES].copy_from_slice(&self.id.0);
        row[KEY_BYTES + ID_BYTES..LEN_AT].copy_from_slice(&self.keys.to_be_bytes());
        row[LEN_AT] = self.head.len() as u8;
        row[LEN_AT + 1..][..self.head.len()].copy_from_slice(&self.head);
        row
    }

    /// Decodes a row; also returns the content's number.
    pub(super) fn of_row(row: &[u8]) -> (u32, HeadRow) {
        let mut id = [0; ID_BYTES];
        id.copy_from_slice(&row[KEY_BYTES..KEY_BYTES + ID_BYTES]);
        let keys = number(&row[KEY_BYTES + ID_BYTES..LEN_AT]);
        let head = row[LEN_AT + 1..][..usize::from(row[LEN_AT])].to_vec();
        (number(&row[1..KEY_BYTES]) as u32, HeadRow { id: RecipeId(id), keys, head })
    }
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |number, &byte| number << 8 | u64::from(byte))
}

pub(crate) struct Heads;

impl Codec for Heads {
    fn encode(rows: &[u8], row_len: usize) -> Vec<u8> {
        let mut out = Vec::with_capacity(rows.len() / 4);
        let mut last = None;
        for row in rows.chunks_exact(row_len) {
            let (method, content) = (row[0], number(&row[1..KEY_BYTES]));
            out.push(method);
            put_varint(&mut out, content - last.filter(|(of, _)| *of == method).map_or(0, |(_, last)| last));
            last = Some((method, content));
            out.extend_from_slice(&row[KEY_BYTES..KEY_BYTES + ID_BYTES]);
            put_varint(&mut out, number(&row[KEY_BYTES + ID_BYTES..LEN_AT]));
            out.extend_from_slice(&row[LEN_AT..][..1 + usize::from(row[LEN_AT])]);
        }
        out
    }

    fn decode(mut block: &[u8], row_len: usize, rows: &mut Vec<u8>) -> Option<()> {
        if row_len != HEAD_ROW_BYTES {
            return None;
        }
        let mut last: Option<(u8, u32)> = None;
        while let Some((&method, rest)) = block.split_first() {
            block = rest;
            let gap = take_varint(&mut block)?;
            let content = match last {
                Some((of, _)) if method < of => return None,
                Some((of, last)) if of == method => {
                    let gap = u32::try_from(gap).ok().filter(|gap| *gap > 0)?;
                    last.checked_add(gap)?
                }
                _ => u32::try_from(gap).ok()?,
            };
            last = Some((method, content));
            let (id, rest) = block.split_first_chunk::<ID_BYTES>()?;
            block = rest;
            let keys = take_varint(&mut block)?;
            let (&len, rest) = block.split_first()?;
            let (head, rest) =
                rest.split_at_checked(len.into()).filter(|_| usize::from(len) <= HEAD_BYTES_MAX)?;
            block = rest;
            let row = HeadRow { id: RecipeId(*id), keys, head: head.to_vec() };
            rows.extend_from_slice(&row.to_row(method, content));
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
        fn blocks_keep_their_rows(
            rows in prop::collection::btree_map(
                (0u8..4, any::<u32>()), (any::<[u8; 16]>(), any::<u64>(), prop::collection::vec(any::<u8>(), 0..=HEAD_BYTES_MAX)), 0..40,
            ),
        ) {
            let mut bytes = Vec::new();
            for ((method, content), (id, keys, head)) in rows {
                let row = HeadRow { id: RecipeId(id), keys, head };
                prop_assert_eq!(HeadRow::of_row(&row.to_row(method, content)), (content, row.clone()));
                bytes.extend_from_slice(&row.to_row(method, content));
            }
            let block = Heads::encode(&bytes, HEAD_ROW_BYTES);
            let mut again = Vec::new();
            prop_assert_eq!(Heads::decode(&block, HEAD_ROW_BYTES, &mut again), Some(()));
            prop_assert_eq!(again, bytes);
        }
    }
}
