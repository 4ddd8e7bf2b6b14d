//! A collection of files whose chunks are sorted by chunk, as in an index.

use super::{Chunk, ChunkList, Collection, CollectionWriter, GraphError, len_and_count};
use crate::similarity::methods::EachKey;
use crate::similarity::methods::sorter::Sorter;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::path::Path;

/// place of the file 4 | hash 8 | value 8
const RECORD_BYTES: usize = 4 + 8 + 8;

/// A file for a new collection.
#[derive(Clone, Copy, Debug)]
pub struct Gathered<'a> {
    /// Its name.
    pub name: &'a OsStr,
    /// A hash that is equal only for files with equal bytes.
    pub content: [u8; 16],
    /// The number of its content in the index.
    pub number: u32,
}

/// Fills a collection with files in this order. Sorts chunks by file, in about `memory` bytes and a temporary file in
/// `dir`; additional memory is 16 bytes for each file, and the chunks of one.
pub fn gather(
    mut writer: CollectionWriter,
    files: &[Gathered<'_>],
    each_key: EachKey<'_>,
    memory: usize,
    dir: &Path,
) -> Result<Collection, GraphError> {
    let mut places: HashMap<u32, Vec<u32>> = HashMap::new();
    for (place, file) in files.iter().enumerate() {
        let place = u32::try_from(place).map_err(|_| GraphError::TooMany)?;
        places.entry(file.number).or_default().push(place);
    }
    let (mut sorter, mut failed) = (Sorter::<RECORD_BYTES>::new(dir, memory), Ok(()));
    each_key(&mut |hash, list| {
        for (number, value) in list {
            for place in places.get(number).into_iter().flatten() {
                let mut record = [0; RECORD_BYTES];
                record[..4].copy_from_slice(&place.to_be_bytes());
                record[4..12].copy_from_slice(&hash.to_be_bytes());
                record[12..].copy_from_slice(&value.to_be_bytes());
                failed = sorter.add(record);
                if failed.is_err() {
                    return false;
                }
            }
        }
        true
    })?;
    failed?;
    let sorted = sorter.finish()?;
    let mut merge = sorted.all()?;
    let mut next = merge.next()?;
    for (place, file) in files.iter().enumerate() {
        let mut chunks = Vec::new();
        while let Some(record) = next.filter(|record| number(&record[..4]) == place as u64) {
            let (len, count) = len_and_count(number(&record[12..]));
            let chunk = Chunk { hash: number(&record[4..12]), len };
            chunks.extend(std::iter::repeat_n(chunk, usize::try_from(count).unwrap_or(usize::MAX)));
            next = merge.next()?;
        }
        writer.add(file.name, &ChunkList::new(file.content, chunks))?;
    }
    writer.finish()
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |number, &byte| number << 8 | u64::from(byte))
}
