//! The codecs of the similarity tables, and of the published methods' saved data, fed with arbitrary bytes,
//! for `crate::fuzz`.

use super::filter_block;
use super::methods::chunk_graph::{ChunkGraph, ChunkList, common_bytes};
use super::methods::sif::interesting::InterestOptions;
use super::methods::sif::report::Rules;
use super::methods::sif::{Saved, Sif};
use super::methods::simhash::SimHash;
use super::methods::winnow::Winnow;
use super::methods::{self, Method, Sums, Whole};
use super::rows::{
    CHUNK_BYTES, CONTAINED_BYTES, CONTENT_BYTES, Chunks, Containments, Contents, POSTING_BYTES, Postings,
};
use crate::db::{Codec, Plain};
use std::ffi::OsStr;

/// A block of rows; its first byte says which table it is of.
pub fn block(bytes: &[u8]) {
    let Some((&table, block)) = bytes.split_first() else { return };
    match table % 8 {
        0 => check::<Postings>(block, POSTING_BYTES),
        1 => check::<Chunks>(block, CHUNK_BYTES),
        2 => check::<Containments>(block, CONTAINED_BYTES),
        3 => check::<Contents>(block, CONTENT_BYTES),
        5 => check::<methods::Postings>(block, methods::POSTING_BYTES),
        6 => check::<methods::Heads>(block, methods::HEAD_ROW_BYTES),
        7 => filters(block),
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
    C::decode(&C::encode(&rows, row_len), row_len, &mut again).expect("encoded rows can be decoded");
    assert_eq!(again, rows, "encoding loses nothing");
}

fn filters(block: &[u8]) {
    let Some(filters) = filter_block::decode(block) else { return };
    let again =
        filter_block::encode(&filters.iter().map(|(chunk, filter)| (*chunk, filter)).collect::<Vec<_>>());
    assert_eq!(filter_block::decode(&again), Some(filters), "encoding loses nothing");
}

/// The head of a sketch; its first byte selects the method.
pub fn head(bytes: &[u8]) {
    let Some((&method, head)) = bytes.split_first() else { return };
    match method % 5 {
        0 => check_head(&Sif::default(), head),
        1 => check_head(&Winnow::default(), head),
        2 => check_head(&ChunkGraph::default(), head),
        3 => check_head(&SimHash::default(), head),
        _ => packed_keys(head),
    }
}

fn check_head<M: Method>(method: &M, bytes: &[u8]) {
    let Ok(head) = method.decode(bytes) else { return };
    assert_eq!(method.encode(&head), bytes, "a head has one encoding");
    method.near(&head);
    let whole = Whole { head: head.clone(), keys: 7 };
    // Sums that no two files have: whatever an index says, comparing ends.
    for sums in [Sums::default(), Sums { shared: 7, a: u64::MAX, b: 3 }] {
        method.likeness(&whole, &whole, &sums);
    }
    method.called(head, OsStr::new("a.ps"));
}

/// Keys as one program sends them to the other.
fn packed_keys(bytes: &[u8]) {
    let (mut last, mut rows) = (None, 0);
    let ended = methods::unpack_keys(bytes, &mut |key, list| {
        assert!(last < Some(key) && list.is_sorted_by(|a, b| a.0 < b.0), "keys and files ascend");
        last = Some(key);
        rows += list.len();
        rows < 1000
    });
    assert!(ended != Some(false) || rows >= 1000);
}

/// A saved result of sif.
pub fn sif_saved(bytes: &[u8]) {
    let Some(saved) = Saved::decode(bytes) else { return };
    let encoded = saved.encode();
    assert_eq!(Saved::decode(&encoded).as_ref(), Some(&saved), "decoding returns the encoded result");
    if saved.files.len() > 200 {
        // Quadratic.
        return;
    }
    let groups = saved.groups(&Rules { share_min: 0.1, ..Rules::default() });
    saved.report(&groups, 0.1);
    saved.interesting(&InterestOptions { steps_max: 1000, ..InterestOptions::default() });
    saved.directories(b"a", b"b", 0.5);
}

/// With the checksum that belongs to it.
pub fn repair_sif_saved(bytes: &mut [u8]) {
    if let Some((body, crc)) = bytes.split_last_chunk_mut::<4>() {
        *crc = crc32fast::hash(body).to_le_bytes();
    }
}

/// The chunks of one file in a saved collection.
pub fn chunk_list(bytes: &[u8]) {
    let Ok(list) = ChunkList::decode(bytes) else { return };
    assert_eq!(ChunkList::decode(&list.encode()).as_ref(), Ok(&list), "encoding loses nothing");
    assert_eq!(common_bytes(list.chunks(), list.chunks()), list.size(), "all is common to itself");
    let method = ChunkGraph::default();
    method.compare(&list, &list);
}
