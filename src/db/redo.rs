use std::collections::VecDeque;

/// Applied batches that may not be written yet, in order.
///
/// Bounded by the database's limit of unwritten changes: a few hundred KiB, plus the batches of one flush.
#[derive(Default)]
pub(super) struct Redo {
    batches: VecDeque<sled::Batch>,
    /// How many were dropped in total.
    forgotten: u64,
    /// Changes for a running compaction's copy, if there is one.
    kept: Option<Kept>,
}

/// Batches that were applied during a compaction, in order, each with its bytes.
#[derive(Default)]
pub(super) struct Kept {
    pub(super) batches: Vec<(sled::Batch, u64)>,
    pub(super) bytes: u64,
}

/// Beyond this nothing is kept: the copy is dropped.
const KEPT_BYTES_MAX: u64 = 16 << 20;

impl Redo {
    /// Adds an applied batch of about `bytes` bytes.
    pub(super) fn push(&mut self, batch: sled::Batch, bytes: u64) {
        if let Some(kept) = &mut self.kept {
            kept.bytes += bytes;
            kept.batches.push((batch.clone(), bytes));
        }
        self.kept.take_if(|kept| kept.bytes > KEPT_BYTES_MAX);
        self.batches.push_back(batch);
    }

    /// Keeps all further batches for a copy too.
    pub(super) fn keep(&mut self) {
        self.kept = Some(Kept::default());
    }

    pub(super) fn keep_no_more(&mut self) {
        self.kept = None;
    }

    /// Returns the batches kept since the last call; `None` if there were too many.
    pub(super) fn take_kept(&mut self) -> Option<Kept> {
        self.kept.as_mut().map(std::mem::take)
    }

    /// Returns a marker for all batches so far: see [`Redo::forget_before`].
    pub(super) fn end(&self) -> u64 {
        self.forgotten + self.batches.len() as u64
    }

    /// Drops the batches that were pushed before [`Redo::end`] returned `end`.
    pub(super) fn forget_before(&mut self, end: u64) {
        let written = end.saturating_sub(self.forgotten).min(self.batches.len() as u64);
        self.batches.drain(..written as usize);
        self.forgotten += written;
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &sled::Batch> {
        self.batches.iter()
    }
}
