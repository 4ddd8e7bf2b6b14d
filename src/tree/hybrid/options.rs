//! Which stubs become hybrid.

use std::path::PathBuf;

/// Which stubs become hybrid when they are written to, and the directory of their lists.
#[derive(Clone, Debug)]
pub struct HybridOptions {
    /// The directory; created when it is first needed.
    pub dir: PathBuf,
    /// Smaller stubs are written back instead. `u64::MAX`: no stub becomes hybrid.
    pub bytes_min: u64,
}

/// Default: stubs of this size or more become hybrid.
pub const HYBRID_BYTES_MIN: u64 = 16 << 20;
