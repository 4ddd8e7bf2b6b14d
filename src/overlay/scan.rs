//! Walking the backing tree: to take in what was there before, and to check every stub.

use super::backing;
use super::error::{OverlayError, Result};
use super::inode::{Content, Inode};
use super::stub::Stub;
use super::types::Kind;
use super::{Dedup, Overlay};
use crate::id::ChunkId;
use crate::similarity::Sketch;
use rustix::fs::RawDir;
use std::collections::HashSet;
use std::ffi::OsString;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Files that a scan lets wait for the committers at a time: each holds a descriptor.
const WAITING_MAX: usize = 4096;

/// What a scan did.
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

/// Something wrong with a file.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Finding {
    /// The kind of thing that is wrong: `stub`, `recipe` or `chunk`.
    pub kind: String,
    /// The recipe, chunk or frame.
    pub object: String,
    /// The file below the root; none if the damage affects no file.
    pub path: Option<PathBuf>,
    /// What was found.
    pub reason: String,
}

impl Overlay {
    /// Takes in every file below `path` that is not yet: indexes it and, by the policy, converts it.
    ///
    /// What was done before is passed over, so a scan that was cut short goes on where it was. `progress`
    /// is given files done and all, bytes done and all. O(files) time; memory is bounded.
    pub fn scan(&self, path: &Path, progress: &mut dyn FnMut(u64, u64, u64, u64)) -> Result<ScanReport> {
        if self.read_only {
            return Err(OverlayError::ReadOnly);
        }
        let mut all = (0, 0);
        self.walk(path, &mut |_, found| {
            if let Ok(inode) = found {
                all.0 += 1;
                all.1 += self.attr_of(&inode).map_or(0, |attr| attr.size);
                self.inodes.release(inode);
            }
        })?;
        let waiting_max = WAITING_MAX.min(self.inodes.descriptors_max() / 4).max(1);
        let converted_before = self.converted.load(Ordering::Relaxed);
        let mut report = ScanReport::default();
        self.walk(path, &mut |path, found| {
            let done = found.map_err(OverlayError::from).and_then(|inode| {
                let size = self.attr_of(&inode).map(|attr| attr.size);
                let taken = self.scan_file(&inode);
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
            self.queue.wait_below(waiting_max);
            let waiting = self.queue.pending() as u64;
            progress(report.files.saturating_sub(waiting), all.0, report.bytes, all.1);
        })?;
        self.settle(&mut |waiting| {
            progress(report.files.saturating_sub(waiting as u64), all.0, report.bytes, all.1);
            true
        })?;
        report.converted = self.converted.load(Ordering::Relaxed) - converted_before;
        Ok(report)
    }

    /// Whether there was something to do for a file.
    fn scan_file(&self, inode: &Arc<Inode>) -> Result<bool> {
        let mut state = self.lock_loaded(inode)?;
        match state.content {
            Some(Content::Stub(stub)) => {
                drop(state);
                self.index_stub(inode, &stub)
            }
            Some(Content::Unknown(reason)) => Err(self.bad_stub(inode, reason)),
            _ => {
                let stat = rustix::fs::fstat(&inode.path_fd()?)?;
                let row = self.catalog.file(inode.file_id())?;
                let known = row
                    .is_some_and(|row| row.size == stat.st_size as u64 && row.mtime == backing::mtime(&stat));
                let only_index = self.dedup == Dedup::Off;
                if stat.st_size == 0 || state.opens > 0 || state.queued || (known && only_index) {
                    return Ok(false);
                }
                state.dirty = true;
                self.enqueue_if_due(inode, &mut state);
                Ok(true)
            }
        }
    }

    /// Brings a stub that the index has lost back into it, from its chunks.
    fn index_stub(&self, inode: &Inode, stub: &Stub) -> Result<bool> {
        let known = self.catalog.file(inode.file_id())?.is_some_and(|row| row.recipe == stub.recipe);
        let sketched = self.contents.similarity.has_content(&stub.recipe)?;
        if known && sketched {
            return Ok(false);
        }
        if !sketched {
            let recipe = self.recipe_of(inode, stub)?;
            for chunk in recipe.chunks() {
                if !self.contents.similarity.knows_chunk(&chunk.id)? {
                    self.contents
                        .similarity
                        .add_chunk(chunk.id, Sketch::of_chunk(&self.contents.store.read(&chunk.id)?))?;
                }
            }
            self.contents.similarity.add_content(stub.recipe, &recipe)?;
        }
        let mut stat = rustix::fs::fstat(&inode.path_fd()?)?;
        stat.st_size = stub.size as i64;
        self.record(inode, stub.recipe, &stat)?;
        Ok(true)
    }

    /// Checks every stub below `path`: its record, its recipe, and that each chunk is there and not among
    /// `damaged`. Changes nothing. Returns the number of stubs.
    pub fn check_stubs(
        &self,
        path: &Path,
        damaged: &HashSet<ChunkId>,
        progress: &mut dyn FnMut(u64),
        found: &mut dyn FnMut(Finding),
    ) -> Result<u64> {
        let mut stubs = 0;
        self.walk(path, &mut |path, file| {
            let mut report = |kind: &str, object: String, reason: String| {
                found(Finding { kind: kind.to_owned(), object, path: Some(path.to_owned()), reason });
            };
            let inode = match file {
                Ok(inode) => inode,
                Err(e) => return report("file", path.display().to_string(), e.to_string()),
            };
            let content = self.lock_loaded(&inode).map(|state| state.content);
            match content {
                Ok(Some(Content::Stub(stub))) => {
                    stubs += 1;
                    self.check_stub(&stub, damaged, &mut report);
                }
                Ok(Some(Content::Unknown(reason))) => {
                    report("stub", path.display().to_string(), reason.to_owned())
                }
                Ok(_) => {}
                Err(e) => report("stub", path.display().to_string(), e.to_string()),
            }
            self.inodes.release(inode);
            progress(stubs);
        })?;
        Ok(stubs)
    }

    fn check_stub(
        &self,
        stub: &Stub,
        damaged: &HashSet<ChunkId>,
        report: &mut dyn FnMut(&str, String, String),
    ) {
        let recipe = match self.contents.store.recipe(&stub.recipe) {
            Ok(recipe) => recipe,
            Err(e) => return report("recipe", stub.recipe.to_string(), e.to_string()),
        };
        if recipe.size() != stub.size {
            let reason = format!("the stub says {} bytes, its recipe {}", stub.size, recipe.size());
            report("stub", stub.recipe.to_string(), reason);
        }
        for chunk in recipe.chunks() {
            match self.contents.store.known(&chunk.id) {
                Ok(true) if !damaged.contains(&chunk.id) => {}
                Ok(true) => report("chunk", chunk.id.to_string(), "its frame is damaged".to_owned()),
                Ok(false) => report("chunk", chunk.id.to_string(), "it is not in the store".to_owned()),
                Err(e) => report("chunk", chunk.id.to_string(), e.to_string()),
            }
        }
    }

    /// Calls `visit` with every regular file of this overlay at or below `path` (below the root). The
    /// visitor has to give each inode back to `inodes.release`. Does not cross into other filesystems.
    fn walk(&self, path: &Path, visit: &mut dyn FnMut(&Path, rustix::io::Result<Arc<Inode>>)) -> Result<()> {
        if path.as_os_str().is_empty() {
            let dir = backing::open_dir(self.backing.root())?;
            return self.walk_dir(dir, Path::new(""), visit);
        }
        let fd = backing::open_path(self.backing.root(), path.as_os_str())
            .map_err(|e| OverlayError::io("open", path, e))?;
        self.walk_entry(fd, path, visit)
    }

    fn walk_entry(
        &self,
        fd: OwnedFd,
        path: &Path,
        visit: &mut dyn FnMut(&Path, rustix::io::Result<Arc<Inode>>),
    ) -> Result<()> {
        let stat = rustix::fs::fstat(&fd)?;
        if stat.st_dev != self.backing.identity().dev {
            return Ok(());
        }
        match backing::kind(stat.st_mode) {
            Kind::Directory => match backing::open_dir(&fd) {
                Ok(dir) => {
                    drop(fd);
                    self.walk_dir(dir, path, visit)?;
                }
                Err(e) => visit(path, Err(e)),
            },
            Kind::File => {
                let inode = self.inodes.enter(&self.backing, fd, &stat, 0)?;
                visit(path, Ok(inode));
            }
            _ => {}
        }
        Ok(())
    }

    fn walk_dir(
        &self,
        dir: OwnedFd,
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
            if path.as_os_str().is_empty() && backing::is_hidden(&name) {
                continue;
            }
            match backing::open_path(&dir, &name) {
                Ok(fd) => self.walk_entry(fd, &path.join(&name), visit)?,
                // It went while we walked.
                Err(rustix::io::Errno::NOENT) => {}
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
