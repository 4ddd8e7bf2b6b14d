//! Partitioning (section 2.5 of the paper): files that no chain of shared chunks connects need not be in memory
//! together.
//!
//! Edges are sorted by chunk on disk, and files of one chunk are united. The components are packed into parts that fit in
//! memory, best fit, the largest first, and the edges are sorted by part. Chunks of one file and files without others are
//! dropped before.

use super::clusters::UnionFind;
use super::graph::{PART_EDGE_BYTES, hash, number, part_edge};
use super::large::{LARGE_EDGE_BYTES, large_edge};
use super::{Chunk, Work};
use crate::similarity::SimilarityError;
use crate::similarity::methods::sorter::{Sorted, Sorter};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// An edge by chunk: hash, file, length of the chunk.
pub(super) const CHUNK_EDGE_BYTES: usize = 8 + 4 + 4;
const NO_PART: u32 = u32::MAX;

pub(super) fn chunk_edge(file: u32, chunk: Chunk) -> [u8; CHUNK_EDGE_BYTES] {
    let mut edge = [0; CHUNK_EDGE_BYTES];
    edge[..8].copy_from_slice(&chunk.hash.to_be_bytes());
    edge[8..12].copy_from_slice(&file.to_be_bytes());
    edge[12..].copy_from_slice(&chunk.len.to_be_bytes());
    edge
}

/// Which chunks count.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kept {
    /// A chunk in fewer files than this does not count.
    pub(super) files_min: u64,
    /// A chunk in more files than this is ubiquitous, and connects no files.
    pub(super) files_max: u64,
}

/// Edges by part: sorted by file in parts that fit in memory, by chunk in others.
pub(super) struct Parts {
    pub(super) edges: Sorted<PART_EDGE_BYTES>,
    pub(super) large_edges: Sorted<LARGE_EDGE_BYTES>,
    /// For each part whether it is too large.
    pub(super) large: Vec<bool>,
    /// Hashes of the ubiquitous chunks, sorted. No edge is of them.
    pub(super) ubiquitous: Vec<u64>,
}

struct PartSorter {
    edges: Sorter<PART_EDGE_BYTES>,
    large_edges: Sorter<LARGE_EDGE_BYTES>,
    large: Vec<bool>,
}

impl PartSorter {
    fn new(dir: &Path, memory: usize, large: Vec<bool>) -> PartSorter {
        // Two sorts share the memory of one.
        let share = if large.contains(&true) && large.contains(&false) { memory / 2 } else { memory };
        PartSorter { edges: Sorter::new(dir, share), large_edges: Sorter::new(dir, share), large }
    }

    fn add(&mut self, part: u32, file: u32, chunk: Chunk) -> Result<(), SimilarityError> {
        match self.large[part as usize] {
            true => self.large_edges.add(large_edge(part, file, chunk)),
            false => self.edges.add(part_edge(part, file, chunk)),
        }
    }

    fn finish(self, ubiquitous: Vec<u64>) -> Result<Parts, SimilarityError> {
        let (edges, large_edges) = (self.edges.finish()?, self.large_edges.finish()?);
        Ok(Parts { edges, large_edges, large: self.large, ubiquitous })
    }
}

/// Puts everything into one part.
pub(super) fn one_part(
    edges: &Sorted<CHUNK_EDGE_BYTES>,
    kept: Kept,
    part_edges: u64,
    memory: usize,
    dir: &Path,
    work: &mut Work,
) -> Result<Parts, SimilarityError> {
    let mut count = 0;
    let ubiquitous = each_chunk(edges, kept, work, &mut |_, _| {
        count += 1;
        Ok(())
    })?;
    let mut sorter = PartSorter::new(dir, memory, vec![count > part_edges]);
    each_chunk(edges, kept, &mut Work::default(), &mut |chunk, file| sorter.add(0, file, chunk))?;
    sorter.finish(ubiquitous)
}

/// Makes parts of at most `part_edges` edges, except for components that are larger: a component is never split.
pub(super) fn partition(
    edges: &Sorted<CHUNK_EDGE_BYTES>,
    files: usize,
    kept: Kept,
    part_edges: u64,
    memory: usize,
    dir: &Path,
    work: &mut Work,
) -> Result<Parts, SimilarityError> {
    let mut components = UnionFind::new(files);
    let mut counts = vec![0u32; files];
    let mut last: Option<(u64, u32)> = None;
    let ubiquitous = each_chunk(edges, kept, work, &mut |chunk, file| {
        if let Some((_, other)) = last.filter(|(hash, _)| *hash == chunk.hash) {
            components.union(other, file);
        }
        last = Some((chunk.hash, file));
        counts[file as usize] += 1;
        Ok(())
    })?;
    let (parts, large) = pack(&mut components, &counts, part_edges, work);
    let mut sorter = PartSorter::new(dir, memory, large);
    each_chunk(edges, kept, &mut Work::default(), &mut |chunk, file| {
        sorter.add(parts[file as usize], file, chunk)
    })?;
    sorter.finish(ubiquitous)
}

/// Returns the part of each file, and for each part whether it is one component that is too large.
fn pack(
    components: &mut UnionFind,
    counts: &[u32],
    part_edges: u64,
    work: &mut Work,
) -> (Vec<u32>, Vec<bool>) {
    let files = 0..counts.len() as u32;
    let mut sizes: BTreeMap<u32, u64> = BTreeMap::new();
    for file in files.clone().filter(|file| counts[*file as usize] > 0) {
        *sizes.entry(components.find(file)).or_default() += u64::from(counts[file as usize]);
    }
    work.components = sizes.len() as u64;
    let mut by_size: Vec<(u64, u32)> = sizes.into_iter().map(|(root, size)| (size, root)).collect();
    by_size.sort_unstable_by_key(|&(size, root)| (std::cmp::Reverse(size), root));
    let (mut parts, mut large, mut room) = (vec![NO_PART; counts.len()], Vec::new(), BTreeSet::new());
    for (size, root) in by_size {
        let fitting: Option<(u64, u32)> = room.range((size, 0)..).next().copied();
        let (left, part) = match fitting {
            Some((free, part)) => {
                room.remove(&(free, part));
                (free - size, part)
            }
            None => {
                large.push(size > part_edges);
                (part_edges.saturating_sub(size), large.len() as u32 - 1)
            }
        };
        room.insert((left, part));
        parts[root as usize] = part;
    }
    for file in files.filter(|file| counts[*file as usize] > 0) {
        parts[file as usize] = parts[components.find(file) as usize];
    }
    (parts, large)
}

/// Calls `visit` with each edge of the chunks that are kept, by chunk and file. Returns the hashes of ubiquitous chunks.
fn each_chunk(
    edges: &Sorted<CHUNK_EDGE_BYTES>,
    kept: Kept,
    work: &mut Work,
    visit: &mut dyn FnMut(Chunk, u32) -> Result<(), SimilarityError>,
) -> Result<Vec<u64>, SimilarityError> {
    let mut merge = edges.all()?;
    let mut next = merge.next()?;
    let (mut held, mut ubiquitous): (Vec<(Chunk, u32)>, Vec<u64>) = Default::default();
    while let Some(first) = next {
        let own = hash(&first);
        let (mut files, mut last) = (0, None);
        held.clear();
        while let Some(edge) = next.filter(|edge| hash(edge) == own) {
            let file = number(&edge[8..]);
            files += u64::from(last != Some(file));
            last = Some(file);
            work.edges += 1;
            if files <= kept.files_max {
                held.push((Chunk { hash: own, len: number(&edge[12..]) }, file));
            }
            next = merge.next()?;
        }
        work.chunks += 1;
        work.shared_chunks += u64::from(files > 1);
        if files > kept.files_max {
            work.ubiquitous_chunks += 1;
            ubiquitous.push(own);
        } else if files >= kept.files_min {
            held.iter().try_for_each(|&(chunk, file)| visit(chunk, file))?;
        }
    }
    Ok(ubiquitous)
}
