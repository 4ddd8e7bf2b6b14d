//! Walks of the backing tree: to commit existing files, and to check every stub.

use crate::backing;
use crate::backing::stub::Stub;
use crate::catalog::{FileRow, Finder, NAMED_DIRS_MAX};
use crate::contents::Indexing;
use crate::contents::error::{OverlayError, Result};
use crate::contents::throttle::Priority;
use crate::env::Refusal;
use crate::id::{ChunkId, RecipeId};
use crate::maintain::Maintenance;
use crate::tree::inode::{Content, Inode};
use rustix::fs::Stat;
use std::collections::HashSet;
use std::path::{Path, PathBuf};
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

/// A defect of a file, found by [`Maintenance::check_stubs`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The file, below the root.
    pub path: PathBuf,
    /// The defect.
    pub trouble: Trouble,
}

/// Defects of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// It could not be checked, because the system refused. It may well be intact.
    Unchecked(Refusal),
    /// It cannot be read.
    Unreadable(String),
    /// Its record is not valid or is gone, so its content is not known.
    Record(String),
    /// Its recipe is damaged or missing. The text is empty if the store knew that before.
    Recipe(RecipeId, String),
    /// Its recipe has another length than its record, in bytes.
    Length {
        /// The recipe.
        recipe: RecipeId,
        /// Length in the record.
        stub_bytes: u64,
        /// Length of the recipe.
        recipe_bytes: u64,
    },
    /// These chunks of it are damaged or missing, each named once.
    Chunks(Vec<ChunkId>),
}

impl Trouble {
    /// Returns the defect that `error` shows when a file is read.
    fn of(error: &OverlayError) -> Trouble {
        error.refusal().map_or_else(|| Trouble::Unreadable(error.to_string()), Trouble::Unchecked)
    }
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
                let taken = self.scan_file(&inode, &mut self.catalog.finder(&self.tree.backing), &mut names);
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

    /// Checks every stub below `path`, and every file that the catalog knows as a stub: its record, its recipe, and that the
    /// store knows each chunk. Does not read chunks: a verification or a read finds damaged ones. Changes nothing. Returns
    /// the number of stubs. `progress` gets that number, and ends the check by returning false.
    ///
    /// O(chunks of all stubs) look-ups; memory for one recipe.
    pub fn check_stubs(
        &self,
        path: &Path,
        progress: &mut dyn FnMut(u64) -> bool,
        found: &mut dyn FnMut(Finding),
    ) -> Result<u64> {
        let (mut stubs, mut goes_on) = (0, true);
        self.tree.walk(path, &mut |path, file| {
            let mut report = |trouble| found(Finding { path: path.to_owned(), trouble });
            let inode = match file {
                Ok(inode) => inode,
                Err(e) => return report(Trouble::of(&e.into())),
            };
            if goes_on {
                match self.tree.look_at(&inode) {
                    Ok(Content::Stub(stub) | Content::Hybrid(stub)) => {
                        stubs += 1;
                        self.check_stub(&stub, &mut report);
                    }
                    Ok(Content::Unknown(reason)) => report(Trouble::Record(reason.to_owned())),
                    Ok(Content::Plain(Some(_))) => {}
                    Ok(Content::Plain(None)) => match self.tree.lost_record(&inode, path) {
                        Ok(None) => {}
                        Ok(Some(reason)) => report(Trouble::Record(reason)),
                        Err(e) => report(Trouble::of(&e)),
                    },
                    Err(e) => report(Trouble::of(&e)),
                }
                goes_on = progress(stubs);
            }
            self.tree.inodes.release(inode);
        })?;
        Ok(stubs)
    }

    fn check_stub(&self, stub: &Stub, report: &mut dyn FnMut(Trouble)) {
        let store = &self.contents.store;
        // The cache may still have a recipe that is damaged on disk.
        let known = store.knows_recipe(&stub.recipe);
        let recipe = match known.and_then(|known| known.then(|| store.recipe(&stub.recipe)).transpose()) {
            Ok(Some(recipe)) => recipe,
            Ok(None) => return report(Trouble::Recipe(stub.recipe, String::new())),
            Err(e) => {
                let damaged = || Trouble::Recipe(stub.recipe, e.to_string());
                return report(e.refusal().map_or_else(damaged, Trouble::Unchecked));
            }
        };
        if recipe.size() != stub.size {
            let (stub_bytes, recipe_bytes) = (stub.size, recipe.size());
            report(Trouble::Length { recipe: stub.recipe, stub_bytes, recipe_bytes });
        }
        let mut lost = Vec::new();
        for chunk in recipe.chunks() {
            match store.known(&chunk.id) {
                Ok(true) => {}
                Ok(false) => lost.push(chunk.id),
                Err(e) => match e.refusal() {
                    Some(refusal) => return report(Trouble::Unchecked(refusal)),
                    // An index that fails does not show that the chunk exists.
                    None => lost.push(chunk.id),
                },
            }
        }
        if !lost.is_empty() {
            let mut once = HashSet::new();
            lost.retain(|id| once.insert(*id));
            report(Trouble::Chunks(lost));
        }
    }
}
