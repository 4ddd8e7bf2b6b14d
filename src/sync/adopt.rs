//! Adoption of an agreed tree despite failures: shared by the simulator and the real directory.
//!
//! Some steps of a plan may be impossible: a file changed after it was examined, or the machine stopped half-way. Then
//! the directory holds a third tree, which descends from the previous one, as the agreed one does. So the directory is
//! examined again, and its tree is merged with the agreed one, with the previous one as base. Finished steps are the
//! same on both sides, and a user's change in between counts like any other.

use super::error::SyncError;
use super::group::Groups;
use super::ignored::Ignored;
use super::merge::Conflict;
use super::plan::Op;
use super::tree::{Tree, TreePath};

/// A step that was not done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    /// The path of the step.
    pub path: TreePath,
    /// The reason, and a remedy.
    pub why: String,
    /// Whether the step found another entry than was examined. Then another examination may help.
    pub again: bool,
}

/// The present state of a directory.
pub struct Now {
    /// The tree of the device.
    pub tree: Tree,
    /// The entries on the disk, if these are others: see [`super::presence`].
    pub here: Option<Tree>,
}

/// A directory that can execute steps.
pub trait Steps {
    /// Does `ops`. Each step examines its target right before. A step that finds something else leaves it and is
    /// returned.
    fn run(&mut self, ops: &[Op]) -> Result<Vec<Skipped>, SyncError>;
    /// Returns the current tree of the directory, with idents as in `before`. Stages contents from it that steps may
    /// need.
    fn look_again(&mut self, before: &Tree, agreed: &Tree) -> Result<Now, SyncError>;
    /// Returns the tree that the disk is to have of `target`, on the way to `agreed`.
    fn goal(&self, now: &Now, target: &Tree, agreed: &Tree) -> Result<Tree, SyncError>;
    /// Returns the entries that are left out once the directory has `agreed`.
    fn ignored(&mut self, agreed: &Tree) -> Result<Ignored, SyncError>;
    /// Reports files that a user changed meanwhile: both versions are kept.
    fn keep_twice(&mut self, conflicts: &[Conflict]);
    /// Returns the atomic groups: directories and databases that are replaced as a whole.
    fn groups(&self) -> Groups;
    /// Stages the contents that `ops` need and only this directory has. Skips those that are known to be missing.
    fn stage_for(&mut self, ops: &[Op]) -> Result<(), SyncError>;
}

/// Number of attempts to do the steps that were skipped.
const ATTEMPTS: u32 = 4;

/// Does the steps until the directory has taken `agreed`. Returns the steps that could not be done.
pub fn adopt(
    steps: &mut dyn Steps,
    before: &Tree,
    agreed: &Tree,
    ops: &[Op],
) -> Result<Vec<Skipped>, SyncError> {
    let skipped = steps.run(ops)?;
    if may_go(&skipped) { resume(steps, before, agreed) } else { Ok(skipped) }
}

/// Returns whether one of these steps may succeed after another examination.
fn may_go(skipped: &[Skipped]) -> bool {
    skipped.iter().any(|step| step.again)
}

/// Continues an interrupted adoption, whatever state the directory is in.
pub fn resume(steps: &mut dyn Steps, before: &Tree, agreed: &Tree) -> Result<Vec<Skipped>, SyncError> {
    let (groups, ignored, mut skipped) = (steps.groups(), steps.ignored(agreed)?, Vec::new());
    for _ in 1..ATTEMPTS {
        let now = steps.look_again(before, agreed)?;
        let as_before = ignored.as_before(before, &now.tree);
        let merged = groups.merge_on_the_way(before, &as_before, agreed);
        steps.keep_twice(&merged.conflicts);
        let goal = steps.goal(&now, &merged.tree, agreed)?;
        let here = now.here.as_ref().unwrap_or(&now.tree);
        let ops = ignored.plan(here, &goal, |from, to| groups.plan(from, to));
        steps.stage_for(&ops)?;
        skipped = steps.run(&ops)?;
        if !may_go(&skipped) {
            break;
        }
    }
    Ok(skipped)
}
