use std::collections::VecDeque;

/// Batches that were applied and may not be written yet, in their order.
///
/// At most what the database lets be outstanding: a few hundred KiB, and the batches of one flush.
#[derive(Default)]
pub(super) struct Redo {
    batches: VecDeque<sled::Batch>,
    /// How many were forgotten, in all.
    forgotten: u64,
}

impl Redo {
    pub(super) fn push(&mut self, batch: sled::Batch) {
        self.batches.push_back(batch);
    }

    /// Stands for all batches so far: see [`Redo::forget_before`].
    pub(super) fn end(&self) -> u64 {
        self.forgotten + self.batches.len() as u64
    }

    /// Forgets the batches that were pushed before [`Redo::end`] was `end`.
    pub(super) fn forget_before(&mut self, end: u64) {
        let written = end.saturating_sub(self.forgotten).min(self.batches.len() as u64);
        self.batches.drain(..written as usize);
        self.forgotten += written;
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &sled::Batch> {
        self.batches.iter()
    }
}
