//! A part that does not fit in memory: bytes in common are counted for all pairs, chunk by chunk, in linear passes over its
//! edges in order. The number of passes is the size of the counters of all pairs by the memory.

use super::graph::{Effort, Found, hash, number};
use super::{Chunk, common_of};
use crate::similarity::SimilarityError;
use crate::similarity::methods::Sums;
use crate::similarity::methods::counting::{Visit, each_pair};
use crate::similarity::methods::sorter::Sorted;

/// An edge by part and chunk: part, hash, file, length of the chunk.
pub(super) const LARGE_EDGE_BYTES: usize = 4 + 8 + 4 + 4;

pub(super) fn large_edge(part: u32, file: u32, chunk: Chunk) -> [u8; LARGE_EDGE_BYTES] {
    let mut edge = [0; LARGE_EDGE_BYTES];
    edge[..4].copy_from_slice(&part.to_be_bytes());
    edge[4..12].copy_from_slice(&chunk.hash.to_be_bytes());
    edge[12..16].copy_from_slice(&file.to_be_bytes());
    edge[16..].copy_from_slice(&chunk.len.to_be_bytes());
    edge
}

/// Finds all pairs of files of a part that share a chunk, with counters in about `memory` bytes.
pub(super) fn links(
    edges: &Sorted<LARGE_EDGE_BYTES>,
    part: u32,
    memory: usize,
    effort: &mut Effort,
    found: Found<'_>,
) -> Result<(), SimilarityError> {
    let meet = |sums: &mut Sums, a: u64, b: u64| sums.a += common_of(a, b);
    let mut lists = |visit: &mut Visit<'_>| -> Result<(), SimilarityError> {
        let mut merge = edges.from(&large_edge(part, 0, Chunk { hash: 0, len: 0 }))?;
        let mut next = merge.next()?;
        let mut list: Vec<(u32, u64)> = Vec::new();
        while let Some(first) = next.filter(|edge| number(edge) == part) {
            let same =
                |edge: &[u8; LARGE_EDGE_BYTES]| number(edge) == part && hash(&edge[4..]) == hash(&first[4..]);
            list.clear();
            while let Some(edge) = next.filter(same) {
                let (file, len) = (number(&edge[12..]), u64::from(number(&edge[16..])));
                match list.last_mut().filter(|(last, _)| *last == file) {
                    // The file has the chunk once more.
                    Some((_, value)) => *value += 1 << 32,
                    None => list.push((file, len)),
                }
                next = merge.next()?;
            }
            visit(&list);
        }
        Ok(())
    };
    let mut pairs = 0;
    effort.blocks += each_pair(memory, &meet, &mut lists, &mut |file, others| {
        pairs += others.len() as u64;
        others.iter().try_for_each(|(other, sums)| found(file, *other, sums.a))?;
        Ok(true)
    })?;
    effort.comparisons += pairs;
    Ok(())
}
