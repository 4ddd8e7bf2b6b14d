//! The bipartite graph of a part that fits in memory: its files with their chunks, and for each chunk the files that have
//! it. Files that share a chunk are compared by merging their sorted chunks. For a part that does not fit, `large` counts the
//! pairs chunk by chunk, with the same answer.

use super::{Chunk, common_bytes};
use crate::similarity::SimilarityError;
use crate::similarity::methods::sorter::{Merge, Sorted};

/// An edge by part: part, file, hash and length of the chunk.
pub(super) const PART_EDGE_BYTES: usize = 4 + 4 + 8 + 4;
/// Bytes of an edge in a graph: the file's chunk, its entry in the chunk's list, and both once more while sorting.
pub(super) const EDGE_BYTES_IN_MEMORY: usize = 64;

type Edges = Sorted<PART_EDGE_BYTES>;

pub(super) fn part_edge(part: u32, file: u32, chunk: Chunk) -> [u8; PART_EDGE_BYTES] {
    let mut edge = [0; PART_EDGE_BYTES];
    edge[..4].copy_from_slice(&part.to_be_bytes());
    edge[4..8].copy_from_slice(&file.to_be_bytes());
    edge[8..16].copy_from_slice(&chunk.hash.to_be_bytes());
    edge[16..].copy_from_slice(&chunk.len.to_be_bytes());
    edge
}

pub(super) fn number(bytes: &[u8]) -> u32 {
    u32::from_be_bytes(*bytes.first_chunk().expect("a record has 4 bytes there"))
}

pub(super) fn hash(bytes: &[u8]) -> u64 {
    u64::from_be_bytes(*bytes.first_chunk().expect("a record has 8 bytes there"))
}

/// Amount of work of comparing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Effort {
    /// Graphs that were in memory, one after another, and passes over parts that were too large.
    pub(super) blocks: u64,
    /// Pairs of files that share a chunk.
    pub(super) comparisons: u64,
}

/// Gets two files, the lower number first, and their bytes in common.
pub(super) type Found<'a> = &'a mut dyn FnMut(u32, u32, u64) -> Result<(), SimilarityError>;

/// Finds all pairs of files of a part that share a chunk (step 4 of the paper's algorithm). Holds the whole part.
pub(super) fn links(
    edges: &Edges,
    part: u32,
    effort: &mut Effort,
    found: Found<'_>,
) -> Result<(), SimilarityError> {
    let mut files = Files::read(edges, part)?;
    let mut graph = Graph::default();
    while let Some(file) = files.next(&mut graph.chunks)? {
        graph.files.push((file, graph.chunks.len()));
    }
    graph.index();
    effort.blocks += 1;
    for at in 0..graph.files.len() {
        graph.neighbours_of(at, effort, found)?;
    }
    Ok(())
}

/// The files of a part with their chunks, in order.
struct Files<'a> {
    merge: Merge<'a, PART_EDGE_BYTES>,
    part: u32,
    held: Option<[u8; PART_EDGE_BYTES]>,
}

impl<'a> Files<'a> {
    fn read(edges: &'a Edges, part: u32) -> Result<Files<'a>, SimilarityError> {
        let mut merge = edges.from(&part_edge(part, 0, Chunk { hash: 0, len: 0 }))?;
        let held = merge.next()?;
        Ok(Files { merge, part, held })
    }

    fn peek(&self) -> Option<u32> {
        self.held.filter(|edge| number(edge) == self.part).map(|edge| number(&edge[4..]))
    }

    /// Returns the next file; appends its chunks.
    fn next(&mut self, chunks: &mut Vec<Chunk>) -> Result<Option<u32>, SimilarityError> {
        let Some(file) = self.peek() else { return Ok(None) };
        while self.peek() == Some(file) {
            let edge = self.held.take().expect("it was just looked at");
            chunks.push(Chunk { hash: hash(&edge[8..]), len: number(&edge[16..]) });
            self.held = self.merge.next()?;
        }
        Ok(Some(file))
    }
}

#[derive(Default)]
struct Graph {
    /// Number of each file, and the end of its chunks.
    files: Vec<(u32, usize)>,
    chunks: Vec<Chunk>,
    /// The distinct hashes, sorted, and the end of the files of each in `having`.
    hashes: Vec<u64>,
    ends: Vec<u32>,
    /// Places in `files`.
    having: Vec<u32>,
    /// For each file the last round in which it was found, so that it is found once in each.
    seen: Vec<u32>,
    round: u32,
    near: Vec<u32>,
}

impl Graph {
    fn chunks_of(&self, at: usize) -> &[Chunk] {
        let start = at.checked_sub(1).map_or(0, |before| self.files[before].1);
        &self.chunks[start..self.files[at].1]
    }

    fn index(&mut self) {
        let mut edges: Vec<(u64, u32)> = Vec::with_capacity(self.chunks.len());
        for at in 0..self.files.len() {
            edges.extend(self.chunks_of(at).iter().map(|chunk| (chunk.hash, at as u32)));
        }
        edges.sort_unstable();
        edges.dedup();
        for same in edges.chunk_by(|a, b| a.0 == b.0) {
            self.having.extend(same.iter().map(|(_, at)| at));
            self.hashes.push(same[0].0);
            self.ends.push(self.having.len() as u32);
        }
        self.seen = vec![0; self.files.len()];
    }

    /// Gathers the files from `from` on that have any of the chunks.
    fn gather(&mut self, chunks: &[Chunk], from: u32) {
        self.round += 1;
        self.near.clear();
        for same in chunks.chunk_by(|a, b| a.hash == b.hash) {
            let Ok(at) = self.hashes.binary_search(&same[0].hash) else { continue };
            let start = at.checked_sub(1).map_or(0, |before| self.ends[before]) as usize;
            let having = &self.having[start..self.ends[at] as usize];
            for &file in &having[having.partition_point(|file| *file < from)..] {
                let seen = &mut self.seen[file as usize];
                if *seen != self.round {
                    *seen = self.round;
                    self.near.push(file);
                }
            }
        }
        self.near.sort_unstable();
    }

    /// Finds the files that share a chunk with a file of the graph and come after it.
    fn neighbours_of(
        &mut self,
        at: usize,
        effort: &mut Effort,
        found: Found<'_>,
    ) -> Result<(), SimilarityError> {
        let chunks = self.chunks_of(at).to_vec();
        self.gather(&chunks, at as u32 + 1);
        effort.comparisons += self.near.len() as u64;
        for &other in &self.near {
            let bytes = common_bytes(&chunks, self.chunks_of(other as usize));
            found(self.files[at].0, self.files[other as usize].0, bytes)?;
        }
        Ok(())
    }
}
