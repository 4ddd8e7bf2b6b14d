//! Identical files, apart from similar ones; only the first of each set is compared with other files (section 2.4).

use super::graph::number;
use super::{Collection, FileNode, GraphError, Templates};
use crate::similarity::methods::sorter::Sorter;
use std::path::Path;

const CONTENT_BYTES: usize = 16;

/// Files with the same bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdenticalSet {
    /// Their numbers.
    pub files: Vec<u32>,
    /// Bytes of one of them.
    pub size: u64,
}

impl IdenticalSet {
    /// Returns the bytes of all but one.
    pub fn overhead_bytes(&self) -> u64 {
        (self.files.len() as u64 - 1) * self.size
    }
}

/// Reads the files of a collection and returns the identical ones; the set with the largest possible saving comes first.
pub(super) fn read(
    collection: &Collection,
    templates: &Templates,
    memory: usize,
    dir: &Path,
) -> Result<(Vec<FileNode>, Vec<IdenticalSet>), GraphError> {
    let mut files = Vec::with_capacity(collection.files().min(1 << 20) as usize);
    let mut by_content = Sorter::<{ CONTENT_BYTES + 4 }>::new(dir, memory);
    collection.each(&mut |file, _, list| {
        let payload = list.payload(templates).iter().map(|chunk| u64::from(chunk.len)).sum();
        files.push(FileNode { size: list.size(), payload, copy: false });
        let mut record = [0; CONTENT_BYTES + 4];
        record[..CONTENT_BYTES].copy_from_slice(&list.content());
        record[CONTENT_BYTES..].copy_from_slice(&file.to_be_bytes());
        Ok(by_content.add(record)?)
    })?;
    let by_content = by_content.finish()?;
    let (mut merge, mut sets) = (by_content.all()?, Vec::new());
    let mut next = merge.next()?;
    while let Some(first) = next {
        let mut same = Vec::new();
        while let Some(record) = next.filter(|record| record[..CONTENT_BYTES] == first[..CONTENT_BYTES]) {
            same.push(number(&record[CONTENT_BYTES..]));
            next = merge.next()?;
        }
        same[1..].iter().for_each(|&copy| files[copy as usize].copy = true);
        let size = files[same[0] as usize].size;
        if same.len() > 1 {
            sets.push(IdenticalSet { files: same, size });
        }
    }
    sets.sort_by_key(|set| (std::cmp::Reverse(set.overhead_bytes()), set.files[0]));
    Ok((files, sets))
}
