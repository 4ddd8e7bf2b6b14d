//! Trust in a store that was found above a path.
//!
//! Any user can put a `.dedupfs` into a shared directory like `/tmp`. It must not decide about other users'
//! files below. So a store found on the way up from a path counts only if it belongs to root, to the owner of
//! its directory, or to the caller. A store that the user names always counts.

use super::error::RepoError;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Whether `entry` in `dir` counts. Warns if it does not. A missing entry is harmless.
pub(super) fn counts(dir: &Path, entry: &Path) -> Result<bool, RepoError> {
    if cfg!(test) && is_around_tests(dir) {
        return Ok(false);
    }
    let owner = match entry.symlink_metadata() {
        Ok(meta) => meta.uid(),
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Ok(true),
        Err(e) => return Err(RepoError::io("look at", entry, e)),
    };
    let dir_owner = dir.metadata().map_err(|e| RepoError::io("look at", dir, e))?.uid();
    let counts = is_trusted(owner, dir_owner, rustix::process::geteuid().as_raw());
    if !counts {
        tracing::warn!(
            "{}: passed over: it belongs to user {owner}, and its directory to user {dir_owner}; if you mean that store, name it \
             with --store",
            entry.display()
        );
    }
    Ok(counts)
}

fn is_trusted(owner: u32, dir_owner: u32, user: u32) -> bool {
    owner == 0 || owner == dir_owner || owner == user
}

/// Whether the temporary directory is `dir` or below it. Tests create their directories there; a foreign
/// store in `dir` must not affect them.
fn is_around_tests(dir: &Path) -> bool {
    std::env::temp_dir().canonicalize().is_ok_and(|temp| temp.starts_with(dir))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_around_the_temporary_directory_does_not_count_in_tests() {
        let temp = std::env::temp_dir().canonicalize().unwrap();
        let own = tempfile::tempdir().unwrap();
        assert!(temp.ancestors().all(|dir| !counts(dir, dir).unwrap()));
        let own = own.path().canonicalize().unwrap();
        assert!(counts(&own, &own).unwrap());
    }

    #[test]
    fn a_store_counts_if_root_the_owner_of_the_directory_or_the_user_made_it() {
        assert!(is_trusted(0, 1000, 1001) && is_trusted(1000, 1000, 0) && is_trusted(1000, 0, 1000));
        assert!(!is_trusted(1001, 0, 0) && !is_trusted(1001, 1000, 1000) && !is_trusted(1001, 0, 1000));
    }
}
