//! Features that more contents have than the cap, put aside on disk: which of them are followed all the same depends on how
//! many there are.

use super::Result;
use super::facts::Facts;
use super::ranges::{RangeFile, Ranges};
use std::collections::BTreeMap;
use std::path::Path;

/// Lists of places are being put aside.
pub(super) struct Frequent {
    lists: Ranges,
    /// How many lists there are of each length.
    lengths: BTreeMap<usize, u64>,
}

/// All have been.
pub(super) struct PutAside {
    lists: Vec<RangeFile>,
    /// Lists up to this length are followed.
    cap: usize,
    suppressed: u64,
}

impl Frequent {
    pub(super) fn create(dir: &Path, facts: &Facts) -> Result<Frequent> {
        Ok(Frequent { lists: Ranges::whole(dir, facts)?, lengths: BTreeMap::new() })
    }

    pub(super) fn add(&mut self, places: &[u32]) -> Result<()> {
        *self.lengths.entry(places.len()).or_default() += 1;
        self.lists.add(places)
    }

    /// Follows the shortest lists, as long as they make no more than so many comparisons.
    pub(super) fn finish(self, comparisons: u64) -> Result<PutAside> {
        let (mut cap, mut left, mut suppressed) = (0, comparisons, 0);
        for (&len, &count) in &self.lengths {
            let each = len as u64 * (len as u64 - 1) / 2;
            match left.checked_sub(each.saturating_mul(count)).filter(|_| suppressed == 0) {
                Some(rest) => (cap, left) = (len, rest),
                None => suppressed += count,
            }
        }
        Ok(PutAside { lists: self.lists.finish()?, cap, suppressed })
    }
}

impl PutAside {
    /// How many features are not followed.
    pub(super) fn suppressed(&self) -> u64 {
        self.suppressed
    }

    /// Calls `visit` with the list of each feature that is followed.
    pub(super) fn followed(&self, visit: &mut dyn FnMut(&[u32]) -> Result<()>) -> Result<()> {
        self.lists(|len| len <= self.cap, visit)
    }

    /// With the list of each of the others.
    pub(super) fn others(&self, visit: &mut dyn FnMut(&[u32]) -> Result<()>) -> Result<()> {
        self.lists(|len| len > self.cap, visit)
    }

    fn lists(
        &self,
        is_wanted: impl Fn(usize) -> bool,
        visit: &mut dyn FnMut(&[u32]) -> Result<()>,
    ) -> Result<()> {
        let mut failed = Ok(());
        for lists in &self.lists {
            lists.lists(&mut |list| {
                if is_wanted(list.len()) {
                    failed = visit(list);
                }
                failed.is_ok()
            })?;
        }
        failed
    }
}
