//! Grouping of stored chunks, so that similar ones compress together.

use super::Overlay;
use crate::contents::error::{OverlayError, Result};
use crate::contents::throttle::Priority;
use crate::db::Table;
use crate::store::{RegroupOptions, RegroupPlan, Regrouped};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The daemon groups chunks by itself when this many bytes of new chunks were stored since the last time,
const NEW_BYTES_MIN: u64 = 16 << 20;
/// and one in this many of all bytes is new.
const NEW_SHARE: u64 = 16;
/// Row of `Table::Meta`: unique bytes when the daemon last grouped chunks by itself, 8.
const GROUPED: &[u8] = b"overlay.grouped";

/// How long the store has not changed.
#[derive(Default)]
pub(super) struct Idle {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// How long the store must rest before chunks are grouped; `None` for never.
    rest: Option<Duration>,
    /// Unique bytes, and since when their number has not changed.
    since: Option<(u64, Instant)>,
}

/// How far grouping has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OptimizeStep {
    /// Bytes of packs examined, and in all.
    Planning(u64, u64),
    /// Decoded bytes of chunks, each counted twice: done, and to be done.
    Grouping(u64, u64),
}

/// The plan of a grouping, and its result.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OptimizeOutcome {
    /// The plan.
    pub plan: RegroupPlan,
    /// The result, real or expected.
    pub regrouped: Regrouped,
}

impl Overlay {
    /// Lets the daemon group chunks by itself after a rest this long, or not.
    pub fn set_auto_optimize(&self, rest: Option<Duration>) {
        self.idle.state.lock().unwrap_or_else(PoisonError::into_inner).rest = rest;
    }

    /// Groups chunks if many are new and the store has rested; ends when new ones come.
    pub(super) fn optimize_if_due(&self) {
        let unique_bytes = self.contents.store.stats().unique_bytes;
        {
            let mut state = self.idle.state.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(rest) = state.rest else { return };
            match state.since {
                Some((bytes, since)) if bytes == unique_bytes && self.pending() == 0 => {
                    if since.elapsed() < rest {
                        return;
                    }
                }
                _ => {
                    state.since = Some((unique_bytes, Instant::now()));
                    return;
                }
            }
        }
        let last = self.db.get(Table::Meta, GROUPED).ok().flatten();
        let last = last.and_then(|row| <[u8; 8]>::try_from(&row[..]).ok()).map_or(0, u64::from_be_bytes);
        // If bytes were removed meanwhile, the new ones are not known: all of them count as new.
        let come = unique_bytes.checked_sub(last).unwrap_or(unique_bytes);
        if come < NEW_BYTES_MIN.max(unique_bytes / NEW_SHARE) {
            return;
        }
        let mut keep_going = |_| !self.ticks.stopped() && self.pending() == 0;
        match self.optimize(&RegroupOptions::default(), false, &mut keep_going) {
            Ok(Some(OptimizeOutcome { regrouped, .. })) => tracing::info!(
                "{} chunks grouped: {} bytes instead of {}",
                regrouped.chunks,
                regrouped.after_bytes,
                regrouped.before_bytes
            ),
            // Programs write again.
            Ok(None) => return,
            Err(e) => tracing::error!("chunks were not grouped: {e}"),
        }
        if let Err(e) = self.db.put(Table::Meta, GROUPED, &unique_bytes.to_be_bytes()) {
            tracing::warn!("that chunks were grouped was not noted: {e}");
        }
    }

    /// Moves chunks into groups, or with `dry_run` estimates the result from a sample. Returns `None` if `progress`
    /// returned false; the work done until then is complete, and another call continues from there.
    ///
    /// Files can be read and written meanwhile, and this thread has low priority. Memory and time: [`crate::store`]'s
    /// `regroup`.
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
        if let Some(pack) = self.observer().map(|observer| observer.left_until()).transpose()?.flatten() {
            store.leave_until(pack);
        }
        let plan =
            store.plan_regroup(options, &mut |done, all| progress(OptimizeStep::Planning(done, all)))?;
        let Some(plan) = plan else { return Ok(None) };
        let mut step = |done, all| progress(OptimizeStep::Grouping(done, all));
        let regrouped = match dry_run {
            true => store.predict_regroup(&plan, options, &mut step)?,
            false => Some(store.regroup(&plan, options, &mut step)?).filter(|done| !done.stopped),
        };
        Ok(regrouped.map(|regrouped| OptimizeOutcome { plan, regrouped }))
    }
}
