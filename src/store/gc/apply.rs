//! The application of a plan: rewrites or removes its packs.

use super::plan::{GcPlan, PackPlan};
use super::{Collection, KeepGoing, index_may_fail};
use crate::env::Access;
use crate::store::error::StoreError;
use crate::store::frame::Key;
use crate::store::pack::{GROUPED, PLAIN};
use std::collections::VecDeque;
use std::sync::atomic::Ordering;

/// Removed keys are taken from the index in batches of this size.
const FORGET_KEYS: usize = 64 << 10;

/// Result of a collection. Sizes in bytes on disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GcDone {
    /// Packs removed.
    pub packs_removed: u64,
    /// Bytes by which the packs shrank.
    pub reclaimed_bytes: u64,
    /// Bytes of frames copied.
    pub copied_bytes: u64,
    /// Packs that stay because of damage.
    pub packs_damaged: u64,
    /// Packs that stay because there was no space to copy their needed frames.
    pub packs_no_room: u64,
    /// Chunks and recipes removed from the index.
    pub forgotten: u64,
}

impl Collection<'_> {
    /// Applies a plan, pack by pack; stops cleanly when `keep_going` returns false. On a full disk it uses the
    /// reserve and stores nothing else meanwhile; packs that do not fit come last. Fails if no pack could be
    /// removed.
    pub fn apply(&self, plan: &GcPlan, keep_going: KeepGoing<'_>) -> Result<GcDone, StoreError> {
        if plan.packs.is_empty() {
            return Ok(GcDone::default());
        }
        self.make_room();
        let mut done = GcDone::default();
        let before = self.store.appender.stored_bytes.load(Ordering::Relaxed);
        index_may_fail(self.store.note_removing(plan.packs.iter().map(|one| one.pack)))?;
        let mut waiting: VecDeque<PackPlan> = plan.packs.iter().copied().collect();
        if let Some(newest) = plan.packs.iter().map(|one| one.pack).max() {
            let version = if plan.packs.iter().any(|one| one.grouped) { GROUPED } else { PLAIN };
            match self.store.appender.begin_pack_after(newest, version) {
                Err(StoreError::Full { .. }) => waiting.retain(|one| one.pack != newest),
                begun => begun?,
            }
        }
        let mut forgotten = Vec::new();
        let total: u64 = plan.packs.iter().map(|one| one.live_bytes + one.dead_bytes).sum();
        // Packs without space since the last removal.
        let (mut at, mut in_vain) = (0, 0);
        while in_vain < waiting.len()
            && let Some(one) = waiting.pop_front()
        {
            match self.rewrite(&one, &mut done) {
                Ok(Some(dead)) => {
                    self.remove(one.pack)?;
                    done.packs_removed += 1;
                    in_vain = 0;
                    forgotten.extend(dead);
                }
                Ok(None) => done.packs_damaged += 1,
                Err(StoreError::Full { .. }) => {
                    in_vain = if self.store.reserve.give_up_if_short() { 0 } else { in_vain + 1 };
                    waiting.push_back(one);
                    continue;
                }
                Err(e) => return Err(e),
            }
            if forgotten.len() >= FORGET_KEYS {
                done.forgotten += self.forget(&std::mem::take(&mut forgotten))?;
            }
            at += one.live_bytes + one.dead_bytes;
            if !keep_going(at, total) {
                waiting.clear();
            }
        }
        done.packs_no_room = waiting.len() as u64;
        done.forgotten += self.forget(&forgotten)?;
        index_may_fail(self.store.persist())?;
        plan.packs.iter().for_each(|one| self.close(one.pack));
        done.reclaimed_bytes =
            before.saturating_sub(self.store.appender.stored_bytes.load(Ordering::Relaxed));
        match done.packs_removed {
            0 if done.packs_no_room > 0 => {
                Err(StoreError::Full { path: self.store.reader.packs.dir.clone() })
            }
            _ => Ok(done),
        }
    }

    pub(in crate::store) fn remove(&self, pack: u32) -> Result<(), StoreError> {
        let packs = &self.store.reader.packs;
        let path = packs.path(pack);
        let len = packs.open(pack, Access::Read).and_then(|file| file.len()).unwrap_or(0);
        packs.disk.remove(&path).map_err(|e| StoreError::io("remove", &path, e))?;
        self.store.appender.stored_bytes.fetch_sub(len, Ordering::Relaxed);
        self.close(pack);
        Ok(())
    }

    /// Removes keys from the index. The removal of pack names must be durable first: a pack that came back
    /// after a power cut would hold frames that the index does not know.
    pub(in crate::store) fn forget(&self, keys: &[Key]) -> Result<u64, StoreError> {
        self.store.reader.packs.sync_names()?;
        index_may_fail(self.store.forget(keys))
    }

    pub(in crate::store) fn close(&self, pack: u32) {
        if self.store.reader.packs.is_retired(pack) {
            self.store.reader.packs.close(pack);
        }
    }
}
