//! Progress of a comparison.

/// Rows of a table between two reports of progress.
pub(super) const STEP: u64 = 1 << 16;

/// Phase of the comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Contents and features are read.
    Reading,
    /// Contents are compared.
    Comparing,
}

/// Gets the phase, the amount done and the whole amount (0 if not known); false asks to stop.
pub type Progress<'a> = &'a mut dyn FnMut(Phase, u64, u64) -> bool;
