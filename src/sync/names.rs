//! Names with a meaning for a sync.

/// The file with patterns of paths that are not synced.
pub const IGNORE: &str = ".dedupfsignore";
