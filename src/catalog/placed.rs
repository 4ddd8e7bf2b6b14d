//! Numbers of directories that were recorded a moment ago.
//!
//! Invariants: nothing is remembered longer than [`PLACED_TIME`], because another process may put another directory there
//! below the mount. The catalog forgets all of it when a name is removed through the mount.

use crate::id::FileId;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const PLACED_TIME: Duration = Duration::from_secs(1);
const PLACED_DIRS_MAX: usize = 256;

/// Directories that were recorded a moment ago, by path: files are mostly committed directory by directory, by several
/// committers at once.
#[derive(Default)]
pub(super) struct PlacedDirs {
    ids: HashMap<PathBuf, FileId>,
    since: Option<Instant>,
}

impl PlacedDirs {
    pub(super) fn get(&mut self, dir: &Path) -> Option<FileId> {
        // Another directory may come there without this process.
        if self.since.is_some_and(|since| since.elapsed() > PLACED_TIME) {
            self.clear();
        }
        self.ids.get(dir).copied()
    }

    pub(super) fn insert(&mut self, dir: &Path, id: FileId) {
        if self.ids.len() >= PLACED_DIRS_MAX {
            self.clear();
        }
        self.since.get_or_insert_with(Instant::now);
        self.ids.insert(dir.to_owned(), id);
    }

    pub(super) fn clear(&mut self) {
        *self = PlacedDirs::default();
    }
}

#[cfg(test)]
mod tests {
    use crate::catalog::placed::*;

    /// Another process replaces a directory below the mount: remembered for a second at most.
    #[test]
    fn a_directory_is_not_remembered_for_long() {
        let mut dirs = PlacedDirs::default();
        dirs.insert(Path::new("a"), FileId(7));
        assert_eq!(dirs.get(Path::new("a")), Some(FileId(7)));
        dirs.since = Instant::now().checked_sub(2 * PLACED_TIME);
        assert_eq!(dirs.get(Path::new("a")), None);
        for n in 0..2 * PLACED_DIRS_MAX {
            dirs.insert(Path::new(&n.to_string()), FileId(n as u64));
        }
        assert!(dirs.ids.len() <= PLACED_DIRS_MAX);
    }
}
