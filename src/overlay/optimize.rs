//! Grouping what is stored, so that chunks that resemble each other compress together.

use super::Overlay;
use super::error::{OverlayError, Result};
use super::pace::Priority;
use crate::store::{RegroupOptions, RegroupPlan, Regrouped};

/// How far grouping has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OptimizeStep {
    /// Bytes of packs looked at, and in all.
    Planning(u64, u64),
    /// Decoded bytes of chunks, each counted twice: done, and to be done.
    Grouping(u64, u64),
}

/// What there was to group, and what came of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OptimizeOutcome {
    /// What there was to do.
    pub plan: RegroupPlan,
    /// What was done, or would be.
    pub regrouped: Regrouped,
}

impl Overlay {
    /// Moves chunks into groups, or with `dry_run` tells from a sample what that would come to. `None` if `progress`
    /// said no on the way: whatever was done until then is whole, and another call goes on from there.
    ///
    /// Files read and are written to meanwhile as ever; this thread lets others go first. Memory and time:
    /// [`crate::store`]'s `regroup.rs`.
    pub fn optimize(
        &self,
        options: &RegroupOptions,
        dry_run: bool,
        progress: &mut dyn FnMut(OptimizeStep) -> bool,
    ) -> Result<Option<OptimizeOutcome>> {
        if self.read_only {
            return Err(OverlayError::ReadOnly);
        }
        let mut priority = Priority::default();
        priority.set_low(true);
        let outcome = self.regroup(options, dry_run, progress);
        priority.set_low(false);
        outcome
    }

    fn regroup(
        &self,
        options: &RegroupOptions,
        dry_run: bool,
        progress: &mut dyn FnMut(OptimizeStep) -> bool,
    ) -> Result<Option<OptimizeOutcome>> {
        let store = &self.contents.store;
        let plan = store.plan_regroup(&mut |done, all| progress(OptimizeStep::Planning(done, all)))?;
        let Some(plan) = plan else { return Ok(None) };
        let mut step = |done, all| progress(OptimizeStep::Grouping(done, all));
        let regrouped = match dry_run {
            true => store.predict_regroup(&plan, options, &mut step)?,
            false => Some(store.regroup(&plan, options, &mut step)?).filter(|done| !done.stopped),
        };
        Ok(regrouped.map(|regrouped| OptimizeOutcome { plan, regrouped }))
    }
}
