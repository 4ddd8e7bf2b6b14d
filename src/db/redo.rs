use std::collections::VecDeque;

/// Batches that were applied and may not be written yet, in their order.
///
/// At most what the database lets be outstanding: a few hundred KiB, and the batches of one flush.
#[derive(Default)]
pub(super) struct Redo {
    batches: VecDeque<sled::Batch>,
    /// How many were forgotten, in all.
    forgotten: u64,
    /// What a copy that is being made has to be told, if one is.
    kept: Option<Kept>,
}

/// Batches that were applied while a copy was made, in their order, each with its bytes.
#[derive(Default)]
pub(super) struct Kept {
    pub(super) batches: Vec<(sled::Batch, u64)>,
    pub(super) bytes: u64,
}

/// Of more than this nothing is kept: the copy is given up.
const KEPT_BYTES_MAX: u64 = 16 << 20;

impl Redo {
    /// Adds a batch of about so many bytes that was applied.
    pub(super) fn push(&mut self, batch: sled::Batch, bytes: u64) {
        if let Some(kept) = &mut self.kept {
            kept.bytes += bytes;
            kept.batches.push((batch.clone(), bytes));
        }
        self.kept.take_if(|kept| kept.bytes > KEPT_BYTES_MAX);
        self.batches.push_back(batch);
    }

    /// From now on all batches are kept for a copy too.
    pub(super) fn keep(&mut self) {
        self.kept = Some(Kept::default());
    }

    pub(super) fn keep_no_more(&mut self) {
        self.kept = None;
    }

    /// What was kept since this was last called; `None` if that was too much.
    pub(super) fn take_kept(&mut self) -> Option<Kept> {
        self.kept.as_mut().map(std::mem::take)
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
