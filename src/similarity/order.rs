//! Numbering of chunks that were added together: similar chunks get successive numbers.
//!
//! A feature's chunks then mostly have numbers near each other, and similar filters are near each other, so both take fewer
//! bits. This is the reordering of documents of inverted files (Silvestri 2007, "Sorting out the document identifier
//! assignment problem"). The parent of a chunk is the one added before it with which it has most features in common; the
//! trees are walked one after the other.

use super::gram::FEATURE_BITS;

/// One feature in `2^SAMPLED` is used, those with the least bits: enough to find a similar chunk.
const SAMPLED: u32 = 1;
/// How many chunks before a chunk in the list of a feature may become its parent.
const BACK: usize = 4;
/// A chunk has no parent with which it shares less than one in this many of its features.
const SHARE: u32 = 4;

/// Returns the order of `count` chunks, numbered from `first` on. `postings` are their (feature, number), sorted.
///
/// O(n log n) for n postings, and up to 32 bytes of memory for half of them.
pub(super) fn order(first: u32, count: usize, postings: &[(u32, u32)]) -> Vec<u32> {
    let sampled = postings.partition_point(|(feature, _)| feature >> (FEATURE_BITS - SAMPLED) == 0);
    let parents = parents(first, count, &postings[..sampled]);
    walked(&parents).into_iter().map(|chunk| first + chunk).collect()
}

/// Returns the parent of each chunk, if it has one.
fn parents(first: u32, count: usize, postings: &[(u32, u32)]) -> Vec<Option<u32>> {
    let mut features = vec![0u32; count];
    // Both in one number, which sorts faster than two.
    let mut links: Vec<u64> = Vec::with_capacity(postings.len());
    for (at, &(feature, chunk)) in postings.iter().enumerate() {
        features[(chunk - first) as usize] += 1;
        let before = postings[at.saturating_sub(BACK)..at].iter().filter(|(other, _)| *other == feature);
        links.extend(before.map(|(_, other)| u64::from(chunk - first) << 32 | u64::from(other - first)));
    }
    links.sort_unstable();
    let (mut parents, mut most) = (vec![None; count], 0);
    for same in links.chunk_by(|a, b| a == b) {
        let (chunk, other, common) = ((same[0] >> 32) as usize, same[0] as u32, same.len() as u32);
        let parent = &mut parents[chunk];
        // The nearest of several equals.
        if common * SHARE >= features[chunk] && (parent.is_none() || common >= most) {
            (*parent, most) = (Some(other), common);
        }
    }
    parents
}

/// Returns the chunks of the trees, one tree after the other, each parent before its children. A parent has a smaller number.
fn walked(parents: &[Option<u32>]) -> Vec<u32> {
    let (mut child, mut sibling) = (vec![None; parents.len()], vec![None; parents.len()]);
    for (chunk, parent) in parents.iter().enumerate().rev() {
        if let Some(parent) = parent {
            sibling[chunk] = child[*parent as usize].replace(chunk);
        }
    }
    let mut order = Vec::with_capacity(parents.len());
    for (root, _) in parents.iter().enumerate().filter(|(_, parent)| parent.is_none()) {
        let mut next = vec![root];
        while let Some(chunk) = next.pop() {
            order.push(chunk as u32);
            next.extend(sibling[chunk]);
            next.extend(child[chunk]);
        }
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Versions of three files that came in turns, and a chunk without features.
    #[test]
    fn what_is_alike_is_in_a_row() {
        let mut postings = Vec::new();
        for version in 0..5u32 {
            for file in 0..3u32 {
                for feature in 0..20u32 {
                    // Each version has one more of its own, and all have two in common.
                    let name = if feature < 2 { feature } else { 100 * (file + 1) + feature };
                    let name = if feature == 19 - version { name + 1000 } else { name };
                    postings.push((name, 7 + 3 * version + file));
                }
            }
        }
        postings.sort_unstable();
        let found = order(7, 16, &postings);
        let files: Vec<_> = found[..15].iter().map(|number| (number - 7) % 3).collect();
        assert_eq!(files, [0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2]);
        assert_eq!(found[15], 22);
    }

    proptest! {
        #[test]
        fn each_is_there_once(postings in prop::collection::btree_set((0u32..20, 0u32..30), 0..200), first in 0u32..9) {
            let postings: Vec<_> = postings.into_iter().map(|(feature, chunk)| (feature, first + chunk)).collect();
            let mut order = order(first, 30, &postings);
            order.sort_unstable();
            prop_assert!(order.into_iter().eq(first..first + 30));
        }
    }
}
