//! Contents of a side's tree that it does not have, and how a side that has a part of its tree is announced.

use super::super::batch::Ranks;
use super::super::error::SyncError;
use super::super::replica::Replica;
use super::super::tree::{ContentId, Tree};
use std::collections::HashSet;

/// Feature of a side that knows about parts of trees.
pub(super) const KNOWN: &str = "parts";
/// Feature of a side that has a part of its tree, and does not lack anything of that part.
pub(super) const AT_REST: &str = "part";
/// Maximum number of runs in a frame, and in all of them.
pub(super) const RUNS_IN_FRAME: usize = 256 << 10;
const RUNS_MAX: usize = 64 << 20;

/// Returns the features of a side.
pub(super) fn features(replica: &dyn Replica) -> Vec<String> {
    let at_rest = is_at_rest(replica).then_some(AT_REST);
    [KNOWN].into_iter().chain(at_rest).map(str::to_owned).collect()
}

/// Returns whether a side has a part of its tree, and nothing of it is missing or staged.
pub(super) fn is_at_rest(replica: &dyn Replica) -> bool {
    replica.is_partial() && !replica.lacks() && !replica.has_staged()
}

/// Contents of the peer's tree that it does not have.
#[derive(Default)]
pub(super) struct Lacking {
    runs: Vec<(u32, u32)>,
    contents: HashSet<ContentId>,
}

impl Lacking {
    /// Takes a frame.
    pub(super) fn hear(&mut self, runs: Vec<(u32, u32)>) -> Result<(), SyncError> {
        self.runs.extend(runs);
        match self.runs.len() > RUNS_MAX {
            true => Err(SyncError::peer("lacks more contents than a tree has")),
            false => Ok(()),
        }
    }

    /// Looks up the contents in the peer's tree.
    pub(super) fn find(&mut self, tree: &Tree) -> Result<(), SyncError> {
        if self.runs.is_empty() {
            return Ok(());
        }
        let ranks = Ranks::of(tree);
        let wrong = || SyncError::peer("lacks a content that its tree does not have");
        let mut at = 0_usize;
        for (skip, len) in std::mem::take(&mut self.runs) {
            let from = at.checked_add(skip as usize).ok_or_else(wrong)?;
            at = from.checked_add(len as usize).ok_or_else(wrong)?;
            self.contents.extend(ranks.contents().get(from..at).ok_or_else(wrong)?);
        }
        Ok(())
    }

    /// Returns whether there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.contents.is_empty()
    }

    /// Returns whether the peer does not have a content.
    pub(super) fn has(&self, content: ContentId) -> bool {
        self.contents.contains(&content)
    }
}

/// Returns the ranks at which `lacks` is true as runs.
pub(super) fn runs(lacks: impl Iterator<Item = bool>) -> Vec<(u32, u32)> {
    let (mut runs, mut skip) = (Vec::<(u32, u32)>::new(), 0);
    for lacks in lacks {
        match (lacks, runs.last_mut()) {
            (true, Some((_, len))) if skip == 0 => *len += 1,
            (true, _) => runs.push((std::mem::take(&mut skip), 1)),
            (false, _) => skip += 1,
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::merge::tests::{file, tree};

    #[test]
    fn what_a_side_lacks_comes_back_by_rank() {
        let all = tree(&[
            ("a", file(1, "a", "a")),
            ("b", file(2, "a", "b")),
            ("c", file(3, "a", "c")),
            ("d", file(4, "a", "a")),
            ("e", file(5, "a", "e")),
        ]);
        let lacks = [true, false, true, true];
        let found = runs(lacks.into_iter());
        assert_eq!(found, [(0, 1), (1, 2)]);
        let mut lacking = Lacking::default();
        lacking.hear(found).unwrap();
        lacking.find(&all).unwrap();
        let has = |text: &str| lacking.has(ContentId::of(text.as_bytes()));
        assert_eq!(["a", "b", "c", "e"].map(has), lacks);
        for wrong in [vec![(0, 5)], vec![(u32::MAX, u32::MAX), (u32::MAX, 1)]] {
            let mut lacking = Lacking::default();
            lacking.hear(wrong).unwrap();
            assert!(lacking.find(&all).is_err());
        }
    }
}
