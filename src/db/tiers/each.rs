//! Look-up of many prefixes at once in all runs of a table.

use super::super::{Codec, Db, DbResult};
use super::Tiers;
use super::run::{Run, lower_bound};
use std::sync::Arc;

impl<C: Codec> Tiers<C> {
    /// Calls `visit` with the index of a prefix in `prefixes` and each row that starts with it, in order and
    /// no key twice: the newest run wins. At most `most` rows of each prefix are examined, those of newer
    /// runs first.
    ///
    /// `prefixes` must be sorted. A block is decoded once for all prefixes inside it. Memory: the found rows.
    pub fn scan_each<P: AsRef<[u8]>>(
        &self,
        db: &dyn Db,
        prefixes: &[P],
        most: usize,
        mut visit: impl FnMut(usize, &[u8]),
    ) -> DbResult<()> {
        let row_len = self.layout.row_len;
        // Position of the prefix, and the row; newer runs first.
        let (mut found, mut rows) = (Vec::new(), Vec::new());
        let mut left = vec![most; prefixes.len()];
        for run in self.snapshot().iter() {
            self.scan_run(db, run, prefixes, &mut left, &mut |i, row| {
                found.push((i, rows.len() / row_len));
                rows.extend_from_slice(row);
            })?;
        }
        let row = |at: usize| &rows[at * row_len..(at + 1) * row_len];
        let key = |at: usize| &row(at)[..self.layout.key_len];
        found.sort_by(|a, b| a.0.cmp(&b.0).then_with(|| key(a.1).cmp(key(b.1))));
        found.dedup_by(|later, first| later.0 == first.0 && key(later.1) == key(first.1));
        for (i, at) in found {
            if !self.is_removal(row(at)) {
                visit(i, row(at));
            }
        }
        Ok(())
    }

    fn scan_run<P: AsRef<[u8]>>(
        &self,
        db: &dyn Db,
        run: &Arc<Run>,
        prefixes: &[P],
        left: &mut [usize],
        visit: &mut dyn FnMut(usize, &[u8]),
    ) -> DbResult<()> {
        let row_len = self.layout.row_len;
        let mut block: Vec<u8> = Vec::new();
        for (i, prefix) in prefixes.iter().enumerate() {
            let (prefix, most) = (prefix.as_ref(), left[i]);
            if most == 0 {
                continue;
            }
            let is_key = prefix.len() >= self.layout.key_len;
            if !self.may_start_with(run, prefix) {
                continue;
            }
            let covers = |block: &[u8]| {
                let last = block.len().checked_sub(row_len).map(|at| &block[at..]);
                block.get(..row_len).is_some_and(|first| first <= prefix)
                    && last.is_some_and(|last| last > prefix && !last.starts_with(prefix))
            };
            if !covers(&block) {
                match self.block_at(db, run.number, prefix)? {
                    Some(at) => block = at,
                    // It comes before all rows of the run, except those that begin with it.
                    None => block.clear(),
                }
            }
            let at = lower_bound(&block, row_len, prefix) * row_len;
            let rows = block[at..].chunks_exact(row_len).take_while(|row| row.starts_with(prefix));
            let count = rows.take(most).map(|row| visit(i, row)).count();
            left[i] -= count;
            if is_key || covers(&block) || count == most {
                continue;
            }
            // Its rows may continue in the following blocks.
            let mut merge = super::merge::Merge::new(self, db, std::iter::once(run), prefix)?;
            let mut passed = 0;
            while let Some(row) = merge.next()?.filter(|row| row.starts_with(prefix)) {
                passed += 1;
                if passed > count {
                    visit(i, row);
                    left[i] -= 1;
                }
                if passed == most {
                    break;
                }
            }
        }
        Ok(())
    }
}
