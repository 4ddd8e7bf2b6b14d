//! Walks of the backing tree to commit existing files.

use crate::backing;
use crate::catalog::{FileRow, Finder, NAMED_DIRS_MAX};
use crate::contents::Indexing;
use crate::contents::error::{OverlayError, Result};
use crate::contents::throttle::Priority;
use crate::maintain::Maintenance;
use crate::tree::inode::{Content, Inode};
use rustix::fs::Stat;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Files that a scan lets wait for the committers at a time: each holds a descriptor.
const WAITING_MAX: usize = 4096;
/// A catch-up lets this many times as many files rest.
pub(crate) const RESTING_FACTOR: usize = 8;

/// Result of a scan.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ScanReport {
    /// Regular files met.
    pub files: u64,
    /// Bytes in them.
    pub bytes: u64,
    /// Files that became stubs.
    pub converted: u64,
    /// Files that were indexed already, are empty, or are open in some program.
    pub skipped: u64,
    /// Files that could not be read; the log names them.
    pub errors: u64,
}

impl Maintenance {
    /// Indexes every file below `path` that is not indexed yet and, by the policy, converts it. The caller waits for
    /// that: files need not have rested, and the scan runs at full speed.
    ///
    /// Skips files that were done before, so a scan that was interrupted continues. A scan of the whole tree also removes
    /// index rows of files that are gone. `progress` gets files done and all, bytes done and all. O(files) time; memory is
    /// bounded, except for 8 bytes a file.
    pub fn scan(&self, path: &Path, progress: &mut dyn FnMut(u64, u64, u64, u64)) -> Result<ScanReport> {
        if self.tree.read_only {
            return Err(OverlayError::ReadOnly);
        }
        let _hurry = self.converter.hurry();
        let mut all = (0, 0);
        let mut count = |bytes| all = (all.0 + 1, all.1 + bytes);
        match self.tree.policies().rules() {
            // Only for `progress`.
            0 => self.tree.count_files(path, &mut count)?,
            _ => self.meet(path, &mut count)?,
        }
        let converted_before = self.converter.converted.load(Ordering::Relaxed);
        let mut report = self.take_in(path, 0, &mut |report| {
            let waiting = self.converter.queue.pending() as u64;
            progress(report.files.saturating_sub(waiting), all.0, report.bytes, all.1);
        })?;
        self.wait_for_queue(&mut |waiting| {
            progress(report.files.saturating_sub(waiting as u64), all.0, report.bytes, all.1);
            true
        })?;
        report.converted = self.converter.converted.load(Ordering::Relaxed) - converted_before;
        Ok(report)
    }

    /// Indexes every file below `path` that is not indexed yet, as if it had been closed at its last change: files
    /// rest, other work goes first, and the rate limit holds. Returns when all files were visited; some still wait then.
    ///
    /// `progress` gets files done. O(files) time; memory is bounded, except for 8 bytes a file.
    pub fn catch_up(&self, path: &Path, progress: &mut dyn FnMut(u64)) -> Result<()> {
        if self.tree.policies().rules() > 0 {
            self.meet(path, &mut |_| {})?;
        }
        let mut priority = Priority::default();
        self.take_in(path, RESTING_FACTOR, &mut |report| {
            priority.set_low(self.indexes.throttle.is_background());
            progress(report.files);
        })?;
        Ok(())
    }

    /// Visits every file below `path` first, and gives `met` its length: any name of a file may have a rule that keeps it
    /// plain, so all names must be known before files are converted.
    fn meet(&self, path: &Path, met: &mut dyn FnMut(u64)) -> Result<()> {
        self.tree.walk(path, &mut |path, found| {
            let Ok(inode) = found else { return };
            let attr = self.tree.attr_of(&inode).ok();
            met(attr.map_or(0, |attr| attr.size));
            if attr.is_some_and(|attr| attr.nlink > 1)
                && let Err(e) = self.catalog.place(&self.tree.backing, inode.file_id(), path)
            {
                tracing::warn!("{}: its name did not reach the index: {e}", path.display());
            }
            self.tree.inodes.release(inode);
        })
    }

    /// Queues every file below `path` that is not indexed yet. Lets some wait for the committers, and `resting_factor` times
    /// as many rest.
    fn take_in(
        &self,
        path: &Path,
        resting_factor: usize,
        progress: &mut dyn FnMut(&ScanReport),
    ) -> Result<ScanReport> {
        let (mut report, mut met) = (ScanReport::default(), Vec::new());
        let mut names = self.catalog.finder(&self.tree.backing);
        self.tree.walk(path, &mut |path, found| {
            let done = found.map_err(OverlayError::from).and_then(|inode| {
                met.push(inode.file_id());
                names.shed(NAMED_DIRS_MAX);
                let taken = match backing::is_staged(path) {
                    true => Ok((0, false)),
                    false => self.scan_file(&inode, &mut self.catalog.finder(&self.tree.backing), &mut names),
                };
                self.tree.inodes.release(inode);
                taken
            });
            match done {
                Ok((size, taken)) => {
                    report.files += 1;
                    report.bytes += size;
                    report.skipped += u64::from(!taken);
                }
                Err(e) => {
                    tracing::warn!("{}: not scanned: {e}", path.display());
                    report.errors += 1;
                }
            }
            self.wait_for_room(resting_factor);
            progress(&report);
        })?;
        // A file that could not be read may be any of those that the index has.
        if path.as_os_str().is_empty() && report.errors == 0 {
            self.indexes.drop_stale(met)?;
            self.indexes.leave_out()?;
        }
        Ok(report)
    }

    /// Waits until not too many files wait for the committers, and `resting_factor` times as many rest.
    pub(crate) fn wait_for_room(&self, resting_factor: usize) {
        let waiting_max =
            WAITING_MAX.min(self.tree.inodes.descriptors_max() / (4 * (1 + resting_factor))).max(1);
        self.converter.queue.wait_below(waiting_max, resting_factor * waiting_max);
    }

    /// Handles a file; returns its length, and whether there was something to do. `names` finds its names for the history, and
    /// may have read them before.
    pub(crate) fn scan_file(
        &self,
        inode: &Arc<Inode>,
        finder: &mut Finder<'_>,
        names: &mut Finder<'_>,
    ) -> Result<(u64, bool)> {
        let (attr, stat) = self.tree.attr_and_stat_of_file(inode)?;
        Ok((attr.size, self.scan_found(inode, &stat, finder, names)?))
    }

    fn scan_found(
        &self,
        inode: &Arc<Inode>,
        stat: &Stat,
        finder: &mut Finder<'_>,
        names: &mut Finder<'_>,
    ) -> Result<bool> {
        let mut state = self.tree.lock_loaded(inode)?;
        match state.content {
            Some(Content::Stub(stub)) => {
                drop(state);
                self.tree.tell_met(inode, &stub, stat, names);
                let indexing = self.indexes.indexing_of(inode, stat.st_nlink, finder)?;
                let indexed = self.indexes.index_stub(inode, &stub, indexing)?;
                Ok(self.indexes.keep_stored(stub.recipe)? || indexed)
            }
            Some(Content::Unknown(reason)) => Err(self.tree.bad_stub(inode, reason)),
            _ => {
                let row = self.catalog.file(inode.file_id())?;
                let known = row
                    .is_some_and(|row| row.size == stat.st_size as u64 && row.mtime == backing::mtime(stat));
                let empty = stat.st_size == 0 && !matches!(state.content, Some(Content::Hybrid(_)));
                if empty || state.queued {
                    return Ok(false);
                }
                let policy = self.tree.policy_of(inode, stat.st_nlink, finder)?;
                let indexing = policy.unwrap_or(self.tree.policies().fallback()).similarity;
                let only_index = !policy.is_some_and(|policy| policy.converts(stat.st_size as u64));
                // The catalog may have been written while other rows of the same time were lost.
                let sketched = |row: &FileRow| match indexing {
                    Indexing::Off => Ok(true),
                    _ => self.contents.similarity.has_content(&row.recipe),
                };
                let known = known && row.as_ref().map_or(Ok(false), sketched)?;
                if let Some(row) = row.filter(|_| known && only_index) {
                    drop(state);
                    let viewed = indexing == Indexing::Full
                        && self
                            .indexes
                            .catch_up_view(inode, row.recipe, false, || self.tree.plain_source(inode))?;
                    return Ok(self.indexes.keep_plain(inode, &row)? || viewed);
                }
                // An open file is queued at its close, even if the program only reads it.
                state.dirty = true;
                self.tree.enqueue_if_due(inode, &mut state);
                Ok(state.queued)
            }
        }
    }
}
