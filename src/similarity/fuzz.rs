//! The codecs of the similarity tables, fed with any bytes. For `crate::fuzz` only; see there.

use super::rows::{
    CHUNK_BYTES, CONTAINED_BYTES, CONTENT_BYTES, Chunks, Containments, Contents, POSTING_BYTES, Postings,
};
use crate::db::{Codec, Plain};

/// A block of rows; its first byte says which table it is of.
pub fn block(bytes: &[u8]) {
    let Some((&table, block)) = bytes.split_first() else { return };
    match table % 5 {
        0 => check::<Postings>(block, POSTING_BYTES),
        1 => check::<Chunks>(block, CHUNK_BYTES),
        2 => check::<Containments>(block, CONTAINED_BYTES),
        3 => check::<Contents>(block, CONTENT_BYTES),
        _ => check::<Plain>(block, 49),
    }
}

fn check<C: Codec>(block: &[u8], row_len: usize) {
    let mut rows = Vec::new();
    if C::decode(block, row_len, &mut rows).is_none() {
        return;
    }
    assert!(rows.len().is_multiple_of(row_len), "whole rows");
    let mut again = Vec::new();
    C::decode(&C::encode(&rows, row_len), row_len, &mut again).expect("what was encoded can be decoded");
    assert_eq!(again, rows, "encoding loses nothing");
}
