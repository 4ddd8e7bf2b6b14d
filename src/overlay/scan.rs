//! Walks of the backing tree: to commit existing files, and to check every stub.

use super::Overlay;
use super::inode::{Content, Inode};
use crate::backing;
use crate::backing::resolved::{Directory, Resolved};
use crate::backing::stub::Stub;
use crate::backing::types::{Attr, Kind, ROOT};
use crate::catalog::{FileRow, Finder};
use crate::contents::Indexing;
use crate::contents::collection::Stored;
use crate::contents::error::{OverlayError, Result};
use crate::contents::ingest::{is_small, sketch_of};
use crate::contents::throttle::Priority;
use crate::env::Refusal;
use crate::id::{ChunkId, RecipeId};
use crate::similarity::exact::Source;
use rustix::fs::RawDir;
use rustix::io::Errno;
use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Files that a scan lets wait for the committers at a time: each holds a descriptor.
const WAITING_MAX: usize = 4096;
/// Directories whose names are remembered while their files are visited.
pub(super) const NAMED_DIRS_MAX: usize = 64;
/// A catch-up lets this many times as many files rest.
pub(super) const RESTING_FACTOR: usize = 8;

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

/// A defect of a file, found by [`Overlay::check_stubs`].
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

impl Overlay {
    /// Indexes every file below `path` that is not indexed yet and, by the policy, converts it. The caller waits for
    /// that: files need not have rested, and the scan runs at full speed.
    ///
    /// Skips files that were done before, so a scan that was interrupted continues. A scan of the whole tree also removes
    /// index rows of files that are gone. `progress` gets files done and all, bytes done and all. O(files) time; memory is
    /// bounded, except for 8 bytes a file.
    pub fn scan(&self, path: &Path, progress: &mut dyn FnMut(u64, u64, u64, u64)) -> Result<ScanReport> {
        if self.read_only {
            return Err(OverlayError::ReadOnly);
        }
        let _hurry = self.hurry();
        let mut all = (0, 0);
        self.meet(path, &mut |attr| {
            all.0 += 1;
            all.1 += attr.map_or(0, |attr| attr.size);
        })?;
        let converted_before = self.converted.load(Ordering::Relaxed);
        let mut report = self.take_in(path, 0, &mut |report| {
            let waiting = self.queue.pending() as u64;
            progress(report.files.saturating_sub(waiting), all.0, report.bytes, all.1);
        })?;
        self.wait_for_queue(&mut |waiting| {
            progress(report.files.saturating_sub(waiting as u64), all.0, report.bytes, all.1);
            true
        })?;
        report.converted = self.converted.load(Ordering::Relaxed) - converted_before;
        Ok(report)
    }

    /// Indexes every file below `path` that is not indexed yet, as if it had been closed at its last change: files
    /// rest, other work goes first, and the rate limit holds. Returns when all files were visited; some still wait then.
    ///
    /// `progress` gets files done. O(files) time; memory is bounded, except for 8 bytes a file.
    pub fn catch_up(&self, path: &Path, progress: &mut dyn FnMut(u64)) -> Result<()> {
        if self.policies().rules() > 0 {
            self.meet(path, &mut |_| {})?;
        }
        let mut priority = Priority::default();
        self.take_in(path, RESTING_FACTOR, &mut |report| {
            priority.set_low(self.throttle.is_background());
            progress(report.files);
        })?;
        Ok(())
    }

    /// Visits every file below `path` first: any of its names may have a rule that keeps a file plain, so all names must be
    /// known before files are converted.
    fn meet(&self, path: &Path, met: &mut dyn FnMut(Option<Attr>)) -> Result<()> {
        self.walk(path, &mut |path, found| {
            let Ok(inode) = found else { return };
            let attr = self.attr_of(&inode).ok();
            met(attr);
            if self.policies().rules() > 0
                && attr.is_some_and(|attr| attr.nlink > 1)
                && let Err(e) = self.catalog.place(&self.backing, inode.file_id(), path)
            {
                tracing::warn!("{}: its name did not reach the index: {e}", path.display());
            }
            self.inodes.release(inode);
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
        let mut names = self.catalog.finder(&self.backing);
        self.walk(path, &mut |path, found| {
            let done = found.map_err(OverlayError::from).and_then(|inode| {
                met.push(inode.file_id());
                let size = self.attr_of(&inode).map(|attr| attr.size);
                names.shed(NAMED_DIRS_MAX);
                let taken = self.scan_file(&inode, &mut self.catalog.finder(&self.backing), &mut names);
                self.inodes.release(inode);
                Ok((size?, taken?))
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
            self.drop_stale(met)?;
            self.leave_out()?;
        }
        Ok(report)
    }

    /// Waits until not too many files wait for the committers, and `resting_factor` times as many rest.
    pub(super) fn wait_for_room(&self, resting_factor: usize) {
        let waiting_max = WAITING_MAX.min(self.inodes.descriptors_max() / (4 * (1 + resting_factor))).max(1);
        self.queue.wait_below(waiting_max, resting_factor * waiting_max);
    }

    /// Handles a file; returns whether there was something to do. `names` finds its names for the history, and may have
    /// read them before.
    pub(super) fn scan_file(
        &self,
        inode: &Arc<Inode>,
        finder: &mut Finder<'_>,
        names: &mut Finder<'_>,
    ) -> Result<bool> {
        let mut state = self.lock_loaded(inode)?;
        match state.content {
            Some(Content::Stub(stub)) => {
                drop(state);
                self.tell_met(inode, &stub, names);
                let links = rustix::fs::fstat(&inode.path_fd()?)?.st_nlink;
                let indexing = self.indexing_of(inode, links, finder)?;
                let indexed = self.index_stub(inode, &stub, indexing)?;
                Ok(self.keep_stored(stub.recipe)? || indexed)
            }
            Some(Content::Unknown(reason)) => Err(self.bad_stub(inode, reason)),
            _ => {
                let stat = rustix::fs::fstat(&inode.path_fd()?)?;
                let row = self.catalog.file(inode.file_id())?;
                let known = row
                    .is_some_and(|row| row.size == stat.st_size as u64 && row.mtime == backing::mtime(&stat));
                let empty = stat.st_size == 0 && !matches!(state.content, Some(Content::Hybrid(_)));
                if empty || state.queued {
                    return Ok(false);
                }
                let policy = self.policy_of(inode, stat.st_nlink, finder)?;
                let indexing = policy.unwrap_or(self.policies().fallback()).similarity;
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
                        && self.catch_up_view(inode, row.recipe, false, || self.plain_source(inode))?;
                    return Ok(self.keep_plain(inode, &row)? || viewed);
                }
                // An open file is queued at its close, even if the program only reads it.
                state.dirty = true;
                self.enqueue_if_due(inode, &mut state);
                Ok(state.queued)
            }
        }
    }

    /// Adds a stub that the index does not know to it, from its chunks, as far as `indexing` says.
    pub(super) fn index_stub(&self, inode: &Inode, stub: &Stub, indexing: Indexing) -> Result<bool> {
        let known = self.catalog.file(inode.file_id())?.is_some_and(|row| row.recipe == stub.recipe);
        if !known {
            let mut stat = rustix::fs::fstat(&inode.path_fd()?)?;
            stat.st_size = stub.size as i64;
            self.record(inode, stub.recipe, &stat)?;
        }
        if indexing == Indexing::Off {
            return Ok(!known);
        }
        let sketched = {
            let _adding = self.forgetting.adding();
            self.contents.similarity.has_content(&stub.recipe)?
        };
        let open = || {
            let recipe = self.recipe_of(inode, stub)?;
            Ok(Box::new(Stored::of(&self.contents.store, recipe)) as Box<dyn Source>)
        };
        let viewed = indexing == Indexing::Full && self.catch_up_view(inode, stub.recipe, !sketched, open)?;
        if known && sketched {
            return Ok(viewed);
        }
        if !sketched {
            let recipe = self.recipe_of(inode, stub)?;
            let (mut writer, small) = (self.contents.store.writer(), is_small(recipe.size()));
            for chunk in recipe.chunks() {
                if !self.contents.similarity.knows_chunk(&chunk.id)? {
                    let bytes = self.contents.store.read(&chunk.id)?;
                    let sketch = sketch_of(&mut writer, indexing, small, &chunk.id, &bytes)?;
                    self.contents.similarity.add_chunk(chunk.id, sketch)?;
                    self.throttle.spend(u64::from(chunk.len));
                }
            }
            let stored = recipe.clone();
            self.index_content(stub.recipe, &recipe, indexing, || {
                Ok(Box::new(Stored::of(&self.contents.store, stored)))
            })?;
        }
        Ok(true)
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
        self.walk(path, &mut |path, file| {
            let mut report = |trouble| found(Finding { path: path.to_owned(), trouble });
            let inode = match file {
                Ok(inode) => inode,
                Err(e) => return report(Trouble::of(&e.into())),
            };
            if goes_on {
                match self.look_at(&inode) {
                    Ok(Content::Stub(stub) | Content::Hybrid(stub)) => {
                        stubs += 1;
                        self.check_stub(&stub, &mut report);
                    }
                    Ok(Content::Unknown(reason)) => report(Trouble::Record(reason.to_owned())),
                    Ok(Content::Plain(Some(_))) => {}
                    Ok(Content::Plain(None)) => match self.lost_record(&inode, path) {
                        Ok(None) => {}
                        Ok(Some(reason)) => report(Trouble::Record(reason)),
                        Err(e) => report(Trouble::of(&e)),
                    },
                    Err(e) => report(Trouble::of(&e)),
                }
                goes_on = progress(stubs);
            }
            self.inodes.release(inode);
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

    /// Calls `visit` with every regular file of this overlay at or below `path` (below the root). The visitor must pass each
    /// inode to `inodes.release`. Does not enter other mounts. Fails with ECANCELED if the overlay is stopped meanwhile.
    pub(super) fn walk(
        &self,
        path: &Path,
        visit: &mut dyn FnMut(&Path, rustix::io::Result<Arc<Inode>>),
    ) -> Result<()> {
        let root = self.inode(ROOT)?;
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return self.walk_dir(self.backing.directory()?, &root, path, visit);
        };
        let mut dir = root;
        for above in parent.ancestors().collect::<Vec<_>>().into_iter().rev() {
            let Some(name) = above.file_name() else { continue };
            let found = self.inodes.enter(&self.backing, self.backing.resolve_named("open", above)?, 0)?;
            dir.has(name, &found);
            self.inodes.release(std::mem::replace(&mut dir, found));
        }
        let walked = self.walk_entry(self.backing.resolve_named("open", path)?, (&dir, name), path, visit);
        self.inodes.release(dir);
        walked
    }

    /// Visits `found`, which has `name` in `parent`. A process that may not open by handle reopens the file by these two.
    fn walk_entry(
        &self,
        found: Resolved,
        (parent, name): (&Inode, &OsStr),
        path: &Path,
        visit: &mut dyn FnMut(&Path, rustix::io::Result<Arc<Inode>>),
    ) -> Result<()> {
        match found.kind() {
            Kind::Directory => match found.open_dir() {
                Ok(dir) => {
                    let inode = self.inodes.enter(&self.backing, found, 0)?;
                    parent.has(name, &inode);
                    let walked = self.walk_dir(dir, &inode, path, visit);
                    self.inodes.release(inode);
                    walked?;
                }
                Err(e) => visit(path, Err(e)),
            },
            Kind::File => {
                let inode = self.inodes.enter(&self.backing, found, 0)?;
                parent.has(name, &inode);
                visit(path, Ok(inode));
            }
            _ => {}
        }
        Ok(())
    }

    fn walk_dir(
        &self,
        dir: Directory,
        inode: &Inode,
        path: &Path,
        visit: &mut dyn FnMut(&Path, rustix::io::Result<Arc<Inode>>),
    ) -> Result<()> {
        let names = match names_in(&dir) {
            Ok(names) => names,
            Err(e) => {
                visit(path, Err(e));
                return Ok(());
            }
        };
        for name in names {
            if self.ticks.stopped() {
                return Err(Errno::CANCELED.into());
            }
            if path.as_os_str().is_empty() && backing::is_hidden(&name) {
                continue;
            }
            match dir.child(&name) {
                Ok(found) => self.walk_entry(found, (inode, &name), &path.join(&name), visit)?,
                // Removed since the directory was read, or another filesystem is mounted there.
                Err(Errno::NOENT | Errno::XDEV) => {}
                Err(e) => visit(&path.join(&name), Err(e)),
            }
        }
        Ok(())
    }
}

pub(super) fn names_in(dir: impl AsFd) -> rustix::io::Result<Vec<OsString>> {
    let mut names = Vec::new();
    let mut buffer = Vec::with_capacity(32 << 10);
    let mut entries = RawDir::new(dir, buffer.spare_capacity_mut());
    while let Some(entry) = entries.next() {
        let name = entry?.file_name().to_bytes().to_vec();
        if name != b"." && name != b".." {
            names.push(OsString::from_vec(name));
        }
    }
    names.sort();
    Ok(names)
}
