//! Result of grouping.

/// Result of grouping. Sizes in bytes on disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Regrouped {
    /// Chunks grouped.
    pub chunks: u64,
    /// Chunks stored as deltas of others.
    pub deltas: u64,
    /// Chunks stored as inflated bytes.
    pub inflated: u64,
    /// Frames made.
    pub groups: u64,
    /// Bytes of the chunks before.
    pub before_bytes: u64,
    /// Bytes of the chunks now.
    pub after_bytes: u64,
    /// Packs removed.
    pub packs_removed: u64,
    /// Packs that stay because of damage.
    pub packs_damaged: u64,
    /// Whether it was stopped early.
    pub stopped: bool,
}
