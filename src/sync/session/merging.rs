//! The merge in a session.

use super::super::bases;
use super::super::error::SyncError;
use super::super::ignored::{self, Ignored};
use super::super::merge::Merged;
use super::super::plan::{Summary, summary};
use super::super::tree::Tree;
use super::super::version::{Dag, Snapshot, SnapshotId};
use super::{Replica, Session};

/// Maximum depth of merged virtual ancestors; beyond it, nothing counts as deleted.
const DEPTH_MAX: u32 = 16;

impl Session {
    /// Merges both trees. The result is the same on both sides.
    pub(super) fn merge(&mut self, replica: &dyn Replica) -> Result<(), SyncError> {
        self.bases.clear();
        let patterns = replica.patterns();
        let (a, b) = (replica.head(), self.theirs.as_ref().expect("came before").head);
        let (merged, snapshot) = if self.dag.descends(a, b) {
            (Merged { tree: self.mine.clone(), ..Merged::default() }, self.dag.get(a).expect("ours").clone())
        } else if self.dag.descends(b, a) {
            (
                Merged { tree: self.their_tree.clone(), ..Merged::default() },
                self.dag.get(b).expect("was checked").clone(),
            )
        } else {
            let base = self.base(replica, &self.dag, &self.dag.common(a, b), 0)?;
            self.outcome.without_base = base.is_none();
            let base = base.unwrap_or_default();
            let merged = self.merge_sides(&base, &patterns);
            self.bases = bases::common(&base, &self.mine, &self.their_tree, &merged);
            let snapshot = Snapshot::merged(merged.tree.root(), a, b);
            (merged, snapshot)
        };
        merged.tree.check()?;
        let ignored = self.ignored(&merged.tree, &patterns);
        ignored.text().clone_into(&mut self.left_out);
        self.goal = self.goal_of(&merged.tree, replica);
        self.ops = ignored.plan(self.on_disk(), &self.goal.tree, |from, to| self.groups.plan(from, to));
        self.note_part(&merged.tree, replica);
        self.outcome.here = if self.is_changed() { summary(&self.ops) } else { Summary::default() };
        self.outcome.conflicts.clone_from(&merged.conflicts);
        self.outcome.kept.clone_from(&merged.kept);
        self.merged = merged;
        self.snapshot = Some(snapshot);
        Ok(())
    }

    /// Returns the patterns that exclude paths on both sides once they have `agreed`; `patterns` is this side's text.
    fn ignored(&self, agreed: &Tree, patterns: &str) -> Ignored {
        let mine = (&self.mine, ignored::tellable(patterns));
        Ignored::agreed(agreed, mine, (&self.their_tree, ignored::told(&self.features)))
    }

    fn merge_sides(&self, base: &Tree, patterns: &str) -> Merged {
        let merged = self.groups.merge(base, &self.mine, &self.their_tree);
        let ignored = self.ignored(&merged.tree, patterns);
        let [mine, theirs] = [&self.mine, &self.their_tree].map(|tree| ignored.as_before(base, tree));
        match mine == self.mine && theirs == self.their_tree {
            true => merged,
            false => self.groups.merge(base, &mine, &theirs),
        }
    }

    /// Returns the tree of the `common` ancestor. Merges them if there are several, against their own common
    /// ancestors. Returns `None` if neither side has the trees any more.
    pub(super) fn base(
        &self,
        replica: &dyn Replica,
        dag: &Dag,
        common: &[SnapshotId],
        depth: u32,
    ) -> Result<Option<Tree>, SyncError> {
        let Some((first, others)) = common.split_first() else { return Ok(None) };
        if depth > DEPTH_MAX || !common.iter().all(|id| self.shared.contains(id)) {
            return Ok(None);
        }
        let tree_of = |id| {
            let missing = || SyncError::peer("did not send a former tree that it has to send");
            self.ancestor(replica, id)?.ok_or_else(missing)
        };
        let mut dag = dag.clone();
        let (mut at, mut tree) = (*first, tree_of(*first)?);
        for other in others {
            let base = self.base(replica, &dag, &dag.common(at, *other), depth + 1)?;
            tree = self.groups.merge(&base.unwrap_or_default(), &tree, &tree_of(*other)?).tree;
            at = dag.add(Snapshot::merged(tree.root(), at, *other))?;
        }
        Ok(Some(tree))
    }
}
