//! Times of directories, which every step in them alters.

use super::super::error::{self, SyncError};
use super::super::print::{ino, print};
use super::super::tree::{Ident, Time, Tree, TreePath, shown};
use super::Local;
use rustix::fs::{FileType, Mode, OFlags, Timespec, Timestamps};
use rustix::io::Errno;
use std::collections::BTreeMap;

impl Local<'_> {
    /// Returns the times for directories of `target`, as the peer sent them. A directory that is in the tree `before` keeps its own
    /// time if that is later.
    pub(super) fn times_to_set(&mut self, before: &Tree, target: &Tree) -> BTreeMap<TreePath, (Time, bool)> {
        let times = std::mem::take(&mut self.their_times);
        if times.is_empty() {
            return BTreeMap::new();
        }
        let dirs = before.entries.iter().filter(|(_, entry)| entry.kind.is_dir());
        let dirs: BTreeMap<Ident, &TreePath> = dirs.map(|(path, entry)| (entry.ident, path)).collect();
        let time = |(path, time): (TreePath, Time)| {
            let was = dirs.get(&target.entries.get(&path)?.ident);
            let own = was.and_then(|was| self.memory.cache.get(*was)).map(|print| print.mtime);
            Some((path, (own.map_or(time, |own| own.max(time)), was.is_none())))
        };
        times.into_iter().filter_map(time).collect()
    }

    /// Sets the times of directories that are new, or in which steps changed names. A failure leaves a time as it is. Then notes
    /// the state of these directories.
    pub(super) fn set_times(&mut self, times: &BTreeMap<TreePath, (Time, bool)>) -> Result<(), SyncError> {
        let mut touched = std::mem::take(&mut self.touched);
        touched.extend(times.iter().filter(|(_, (_, new))| *new).map(|(path, _)| path.clone()));
        for path in touched {
            if let Some((time, _)) = times.get(&path)
                && let Err(e) = self.set_time(&path, *time)
            {
                tracing::debug!("{}: the time could not be set: {e}", shown(&path));
            }
            if let Some(known) = self.memory.cache.get_mut(&path)
                && let Some(stat) = self.root.stat(&path).map_err(|e| error::on("look at", &path, e))?
                && ino(&stat) == known.ino
                && FileType::from_raw_mode(stat.st_mode) == FileType::Directory
            {
                *known = print(&stat, None);
            }
        }
        Ok(())
    }

    fn set_time(&self, path: &TreePath, time: Time) -> Result<(), Errno> {
        let omit = Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT };
        let time = Timespec { tv_sec: time.0, tv_nsec: time.1.into() };
        let times = Timestamps { last_access: omit, last_modification: time };
        let dir = self.root.open_at(path, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
        rustix::fs::futimens(dir, &times)
    }
}
