use std::path::PathBuf;

/// Returns the user's home directory from the environment.
pub(super) fn home() -> Option<PathBuf> {
    std::env::var_os("HOME").filter(|home| !home.is_empty()).map(PathBuf::from)
}
