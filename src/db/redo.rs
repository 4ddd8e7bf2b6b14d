use std::collections::VecDeque;

/// Applied batches that may not be written yet, in order.
///
/// Bounded by the database's limit of unwritten log bytes.
#[derive(Default)]
pub(super) struct Redo {
    /// Each with the bytes that sled may write for it.
    batches: VecDeque<(sled::Batch, u64)>,
    /// Sum of these bytes.
    log_bytes: u64,
    /// How many were dropped in total.
    forgotten: u64,
    /// Changes for a running compaction's copy, if there is one.
    kept: Option<Kept>,
}

/// The size of a batch, in bytes.
#[derive(Clone, Copy)]
pub(super) struct Cost {
    /// Its keys and values.
    pub(super) bytes: u64,
    /// The most that sled should write to its log for it.
    pub(super) log_bytes: u64,
}

/// Batches that were applied during a compaction, in order.
#[derive(Default)]
pub(super) struct Kept {
    pub(super) batches: Vec<(sled::Batch, Cost)>,
    /// Bytes of keys and values.
    pub(super) bytes: u64,
}

/// Beyond this nothing is kept: the copy is dropped.
const KEPT_BYTES_MAX: u64 = 16 << 20;

impl Redo {
    /// Adds an applied batch.
    pub(super) fn push(&mut self, batch: sled::Batch, cost: Cost) {
        if let Some(kept) = &mut self.kept {
            kept.bytes += cost.bytes;
            kept.batches.push((batch.clone(), cost));
        }
        self.kept.take_if(|kept| kept.bytes > KEPT_BYTES_MAX);
        self.batches.push_back((batch, cost.log_bytes));
        self.log_bytes += cost.log_bytes;
    }

    /// Returns how many bytes sled may have to write for the batches.
    pub(super) fn log_bytes(&self) -> u64 {
        self.log_bytes
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
        self.log_bytes -= self.batches.drain(..written as usize).map(|(_, log_bytes)| log_bytes).sum::<u64>();
        self.forgotten += written;
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &sled::Batch> {
        self.batches.iter().map(|(batch, _)| batch)
    }
}
