//! Ubiquitous chunks: a header or a licence that most files have (section 2.5 of the paper).
//!
//! The paper ignores them only in step 3 of partitioning, where they would connect all files. So a pair of files is not
//! compared because of them, but if it is compared they count.

use super::{Chunk, Collection, FileNode, GraphError, Templates, common_bytes};
use std::collections::HashMap;

/// The ubiquitous chunks of each file. Files of one template have the same ones, so each different list is kept once.
#[derive(Default)]
pub(super) struct Ubiquitous {
    lists: Vec<Vec<Chunk>>,
    /// For each file its place in `lists`; empty if no chunk is ubiquitous.
    of: Vec<u32>,
}

impl Ubiquitous {
    /// Reads them from a collection. `hashes` are those of the ubiquitous chunks, sorted.
    pub(super) fn read(
        collection: &Collection,
        files: &[FileNode],
        templates: &Templates,
        hashes: &[u64],
    ) -> Result<Ubiquitous, GraphError> {
        if hashes.is_empty() {
            return Ok(Ubiquitous::default());
        }
        let (mut places, mut of): (HashMap<Vec<Chunk>, u32>, Vec<u32>) = Default::default();
        collection.each(&mut |file, _, list| {
            let mut own = Vec::new();
            if !files[file as usize].copy {
                let payload = list.payload(templates);
                own.extend(payload.iter().filter(|chunk| hashes.binary_search(&chunk.hash).is_ok()));
            }
            let next = places.len() as u32;
            of.push(*places.entry(own).or_insert(next));
            Ok(())
        })?;
        let mut lists = vec![Vec::new(); places.len()];
        places.into_iter().for_each(|(list, place)| lists[place as usize] = list);
        Ok(Ubiquitous { lists, of })
    }

    /// Returns the bytes that two files have in common by ubiquitous chunks.
    pub(super) fn common_bytes(&self, a: u32, b: u32) -> u64 {
        let list = |file: u32| self.of.get(file as usize).map_or(&[][..], |&at| &self.lists[at as usize]);
        common_bytes(list(a), list(b))
    }
}
