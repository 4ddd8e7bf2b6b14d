//! Export: makes stubs and hybrid files plain, many at a time.
//!
//! A batch goes through the steps of `hydrate` together, so that its files share two syncs of the filesystem:
//! record HYDRATING and bytes of each -> sync -> times and record PLAIN of each -> sync -> waiting programs
//! continue. Until the second sync the recipe is authoritative or both are equal, so a crash costs only work:
//! a file with HYDRATING is a stub again at its next use.
//!
//! Invariants: no file with stored content is called plain before that content, hashed, is durable in it. A
//! file that cannot be exported stays as it was, and does not stop others. A batch never waits for a program,
//! because programs may wait for a file of the batch.
//!
//! Memory: one batch (about 300 bytes a file), and 8 bytes for each file with several names.

use super::Overlay;
use super::hydrate::as_shown;
use super::hydrating::Hydrating;
use super::inode::{Content, Inode, Phase};
use crate::backing;
use crate::backing::stub::Stub;
use crate::backing::types::{Kind, NodeId};
use crate::contents::error::{OverlayError, Result};
use crate::store::StoreError;
use rustix::fs::{Advice, OFlags};
use rustix::io::Errno;
use std::collections::HashSet;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// Filesystems allocate space in blocks of this size.
const BLOCK: u64 = 4096;
/// Batches of at most this many files are synced file by file.
const FEW: usize = 2;
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

/// Size of a batch.
#[derive(Clone, Copy, Debug)]
pub struct ExportOptions {
    /// Files in a batch: programs that want to write to one of them wait for all.
    pub batch_files: usize,
    /// Bytes in a batch; a longer file is one by itself.
    pub batch_bytes: u64,
}

/// Amount of data to export.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExportNeeds {
    /// Stubs and hybrid files.
    pub files: u64,
    /// Bytes of their contents.
    pub bytes: u64,
    /// Files that are plain already.
    pub plain: u64,
    /// Bytes of the filesystem that they will take, about.
    pub room_bytes: u64,
    /// Bytes of the filesystem that are free.
    pub free_bytes: u64,
}

/// Result of an export.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Exported {
    /// Files that became plain.
    pub files: u64,
    /// Bytes of their contents.
    pub bytes: u64,
    /// Files that were plain before.
    pub plain: u64,
    /// Files that could not be exported.
    pub failed: u64,
}

/// Gets each file that could not be exported, and the error.
type Failed<'a> = &'a mut dyn FnMut(PathBuf, OverlayError);
/// Gets bytes done; false ends the work.
type Step<'a> = &'a mut dyn FnMut(u64) -> bool;

/// A stub of a batch.
struct Leaving<'a> {
    inode: Arc<Inode>,
    path: PathBuf,
    stub: Stub,
    /// While the batch is under way.
    hydrating: Option<Hydrating<'a, Arc<Inode>>>,
    /// The backing file, once the bytes are written to it.
    file: Option<File>,
}

/// How a file is exported.
enum Met {
    Plain,
    Stub(Stub),
    /// Hybrid, or being written back by another thread: the export may have to wait for it.
    Alone,
}

impl Overlay {
    /// Returns how much there is to export at and below `path`. Changes nothing; does not count files that cannot be read.
    pub fn export_needs(&self, path: &Path) -> Result<ExportNeeds> {
        let mut needs = ExportNeeds::default();
        let mut linked = HashSet::new();
        self.walk(path, &mut |_, found| {
            let Ok(inode) = found else { return };
            let stat = inode.path_fd().and_then(rustix::fs::fstat);
            if stat.is_ok_and(|stat| stat.st_nlink == 1 || linked.insert(stat.st_ino)) {
                match self.look_at(&inode) {
                    Ok(Content::Stub(stub)) => {
                        let sparse = stub.blocks * 512 < stub.size;
                        let room = if sparse { stub.blocks * 512 } else { stub.size };
                        needs.files += 1;
                        needs.bytes += stub.size;
                        needs.room_bytes += room.next_multiple_of(BLOCK);
                    }
                    Ok(Content::Hybrid(stub)) => {
                        let local = stat.map_or(0, |stat| stat.st_blocks as u64 * 512);
                        let size = self.attr_of(&inode).map_or(stub.size, |attr| attr.size);
                        needs.files += 1;
                        needs.bytes += size;
                        needs.room_bytes += size.next_multiple_of(BLOCK).saturating_sub(local);
                    }
                    Ok(Content::Plain(_)) => needs.plain += 1,
                    Ok(Content::Unknown(_)) | Err(_) => {}
                }
            }
            self.inodes.release(inode);
        })?;
        let space = rustix::fs::fstatvfs(self.backing.root())?;
        let free = if self.backing.privileged() { space.f_bfree } else { space.f_bavail };
        needs.free_bytes = free * space.f_frsize;
        Ok(needs)
    }

    /// Whether `path` is a directory.
    pub fn is_directory(&self, path: &Path) -> Result<bool> {
        Ok(self.backing.resolve_named("look at", path)?.kind() == Kind::Directory)
    }

    /// Makes every file at and below `path` plain. The caller has set policies that keep them plain. Ends early with
    /// ECANCELED if `step` returns false; files done until then stay plain. O(files and bytes) time.
    pub fn export(
        &self,
        path: &Path,
        options: ExportOptions,
        step: Step<'_>,
        failed: Failed<'_>,
    ) -> Result<Exported> {
        if self.read_only {
            return Err(OverlayError::ReadOnly);
        }
        // The kernel reports a write-back error once to each descriptor that was open before it.
        let root = backing::open_dir(self.backing.root())?;
        let mut export = Export {
            overlay: self,
            options,
            root,
            batch: Vec::new(),
            in_batch: HashSet::new(),
            alone: Vec::new(),
            batch_bytes: 0,
            done: Exported::default(),
            step,
            failed,
            stopped: false,
        };
        self.walk(path, &mut |path, found| match found {
            Ok(inode) => export.meet(inode, path),
            Err(e) => export.fail(path, e.into()),
        })?;
        export.flush();
        if export.stopped {
            return Err(Errno::CANCELED.into());
        }
        Ok(export.done)
    }

    /// Reads plain files at and below `path` back from the disk, and compares them with the content that their records
    /// remember. Files changed since, and those whose content the store no longer has, are passed over. Returns how many
    /// were the same, and their bytes.
    pub fn read_back(&self, path: &Path, step: Step<'_>, failed: Failed<'_>) -> Result<(u64, u64)> {
        let (mut files, mut bytes, mut goes_on) = (0, 0, true);
        let mut linked = HashSet::new();
        self.walk(path, &mut |path, found| {
            let Ok(inode) = found else { return };
            if goes_on {
                match self.compare_with_record(&inode, &mut linked, &mut |read| {
                    bytes += read;
                    goes_on = step(bytes);
                    goes_on
                }) {
                    Ok(same) => files += u64::from(same),
                    Err(_) if !goes_on => {}
                    Err(e) => failed(path.to_owned(), e),
                }
            }
            self.inodes.release(inode);
        })?;
        if goes_on { Ok((files, bytes)) } else { Err(Errno::CANCELED.into()) }
    }

    /// Whether a plain file has the content that its record remembers; false too if there is nothing to compare.
    fn compare_with_record(
        &self,
        inode: &Inode,
        linked: &mut HashSet<u64>,
        step: &mut dyn FnMut(u64) -> bool,
    ) -> Result<bool> {
        let record = {
            let state = self.lock_loaded(inode)?;
            match state.content {
                Some(Content::Plain(Some(record))) if state.writers == 0 => record,
                _ => return Ok(false),
            }
        };
        let file = backing::open_quietly(&inode.path_fd()?, OFlags::RDONLY)?;
        let stat = rustix::fs::fstat(&file)?;
        let unchanged = |stat: &rustix::fs::Stat| {
            backing::mtime(stat) == record.mtime && stat.st_size as u64 == record.size
        };
        if !unchanged(&stat) || stat.st_nlink > 1 && !linked.insert(stat.st_ino) {
            return Ok(false);
        }
        let recipe = match self.contents.store.recipe(&record.recipe) {
            Ok(recipe) => recipe,
            Err(StoreError::Missing { .. }) => return Ok(false),
            Err(e) => return Err(e.into()),
        };
        // Otherwise the read would come from the page cache, not from the disk.
        let _ = rustix::fs::fadvise(&file, 0, None, Advice::DontNeed);
        let mut buffer = Vec::new();
        for (i, chunk) in recipe.chunks().iter().enumerate() {
            buffer.resize(chunk.len as usize, 0);
            let read = super::file::read_full(&file, &mut buffer, recipe.start_of(i))?;
            if let Err(e) = self.check_chunk(inode, chunk, &buffer[..read]) {
                // Unless a program has just changed it.
                return if unchanged(&rustix::fs::fstat(&file)?) {
                    Err(differs(e, recipe.start_of(i)))
                } else {
                    Ok(false)
                };
            }
            if !step(read as u64) {
                return Err(Errno::CANCELED.into());
            }
        }
        Ok(true)
    }
}

/// As an error about the file, not about the store.
fn differs(error: OverlayError, offset: u64) -> OverlayError {
    match error {
        OverlayError::Unreadable { path, .. } => {
            let reason = format!("read back, it differs from the stored content from byte {offset} on");
            OverlayError::Unreadable { path, reason }
        }
        other => other,
    }
}

/// An export under way.
struct Export<'a> {
    overlay: &'a Overlay,
    options: ExportOptions,
    root: OwnedFd,
    batch: Vec<Leaving<'a>>,
    in_batch: HashSet<NodeId>,
    alone: Vec<Leaving<'a>>,
    batch_bytes: u64,
    done: Exported,
    step: Step<'a>,
    failed: Failed<'a>,
    stopped: bool,
}

impl<'a> Export<'a> {
    fn fail(&mut self, path: &Path, error: OverlayError) {
        self.done.failed += 1;
        (self.failed)(path.to_owned(), error);
    }

    fn meet(&mut self, inode: Arc<Inode>, path: &Path) {
        // A second name of a file in this batch.
        if self.stopped || self.in_batch.contains(&inode.node) {
            return self.overlay.inodes.release(inode);
        }
        match self.look(&inode, path) {
            Ok(Met::Stub(stub)) => {
                self.batch_bytes += stub.size;
                self.in_batch.insert(inode.node);
                let path = path.to_owned();
                self.batch.push(Leaving { inode, path, stub, hydrating: None, file: None });
                let files = self.options.batch_files.min(self.overlay.inodes.descriptors_max() / 4).max(1);
                if self.batch.len() >= files || self.batch_bytes >= self.options.batch_bytes {
                    self.flush();
                }
                return;
            }
            Ok(Met::Plain) => self.done.plain += 1,
            Ok(Met::Alone) => self.export_alone(&inode, path),
            Err(e) => self.fail(path, e),
        }
        self.overlay.inodes.release(inode);
    }

    /// Exports one file while no batch is under way, so that the thread that it waits for does not wait for this one.
    fn export_alone(&mut self, inode: &Arc<Inode>, path: &Path) {
        let state = self.overlay.lock_loaded(inode);
        match state.and_then(|state| self.overlay.make_plain(inode, state).map(drop)) {
            Ok(()) => {
                self.done.files += 1;
                self.done.bytes += self.overlay.attr_of(inode).map_or(0, |attr| attr.size);
                self.stopped |= !(self.step)(self.done.bytes);
                // Changed bytes are not in the index yet.
                self.overlay.enqueue_if_due(inode, &mut inode.lock());
            }
            Err(e) => self.fail(path, e),
        }
    }

    fn look(&self, inode: &Inode, path: &Path) -> Result<Met> {
        let mut state = self.overlay.lock_loaded(inode)?;
        // A conversion that began before the policy was changed.
        state.interrupt_conversion();
        match state.content {
            _ if state.is_hydrating() => Ok(Met::Alone),
            Some(Content::Unknown(reason)) => Err(self.overlay.bad_stub(inode, reason)),
            Some(Content::Hybrid(_)) => Ok(Met::Alone),
            Some(Content::Stub(stub)) => Ok(Met::Stub(stub)),
            Some(Content::Plain(None)) => {
                drop(state);
                match self.overlay.lost_record(inode, path)? {
                    None => Ok(Met::Plain),
                    Some(reason) => Err(OverlayError::Unreadable { path: path.to_owned(), reason }),
                }
            }
            _ => Ok(Met::Plain),
        }
    }

    /// Makes the files of the batch plain.
    fn flush(&mut self) {
        self.batch_bytes = 0;
        self.in_batch.clear();
        let mut batch = Vec::with_capacity(self.batch.len());
        for mut one in std::mem::take(&mut self.batch) {
            let claimed = {
                let mut state = one.inode.lock();
                match state.content {
                    Some(Content::Stub(stub)) if matches!(state.phase, Phase::Idle) => {
                        let shown = as_shown(&one.inode, stub);
                        if let Ok(stub) = &shown {
                            one.stub = *stub;
                            let inode = one.inode.clone();
                            one.hydrating = Some(Hydrating::begin(self.overlay, inode, &mut state, *stub));
                        }
                        shown.is_ok()
                    }
                    _ => false,
                }
            };
            match claimed {
                true => batch.push(one),
                // Another thread has taken it since it was visited.
                false => self.alone.push(one),
            }
        }
        if !batch.is_empty() {
            self.export_batch(batch);
        }
        for one in std::mem::take(&mut self.alone) {
            self.export_alone(&one.inode, &one.path);
            self.overlay.inodes.release(one.inode);
        }
    }

    fn export_batch(&mut self, mut batch: Vec<Leaving<'a>>) {
        let mut errors: Vec<Option<OverlayError>> = batch.iter().map(|_| None).collect();
        self.fill(&mut batch, &mut errors);
        self.sync(&mut batch, &mut errors);
        for (one, error) in batch.iter_mut().zip(&mut errors) {
            if error.is_none() {
                match self.overlay.write_plain_record(&one.inode, one.stub) {
                    Ok(plain) => one.stub = plain,
                    Err(e) => self.take_back(one, e, error),
                }
            }
        }
        self.sync(&mut batch, &mut errors);
        for (mut one, error) in batch.into_iter().zip(errors) {
            {
                let mut state = one.inode.lock();
                if let Some(hydrating) = one.hydrating.take() {
                    hydrating.end(&mut state);
                }
                if error.is_none() {
                    state.content = Some(Content::Plain(Some(one.stub)));
                    (state.recipe, state.hybrid, state.growing) = (None, None, None);
                    state.committed = true;
                }
            }
            self.overlay.inodes.release(one.inode);
            match error {
                None => {
                    self.done.files += 1;
                    self.done.bytes += one.stub.size;
                }
                Some(OverlayError::Os(Errno::CANCELED)) => self.stopped = true,
                Some(e) => self.fail(&one.path, e),
            }
        }
        self.stopped |= !(self.step)(self.done.bytes);
    }

    /// Writes the bytes of all files of the batch, by several threads.
    fn fill(&mut self, batch: &mut [Leaving<'_>], errors: &mut [Option<OverlayError>]) {
        let (overlay, before) = (self.overlay, self.done.bytes);
        let (next, bytes, stopped) = (AtomicUsize::new(0), AtomicU64::new(0), AtomicBool::new(false));
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(batch.len());
        let (filled, results) = crossbeam::channel::unbounded();
        let stubs: Vec<(&Inode, Stub)> = batch.iter().map(|one| (&*one.inode, one.stub)).collect();
        let mut files: Vec<Option<File>> = stubs.iter().map(|_| None).collect();
        std::thread::scope(|scope| {
            for _ in 0..threads {
                let (next, bytes, stopped, stubs, filled) = (&next, &bytes, &stopped, &stubs, filled.clone());
                scope.spawn(move || {
                    loop {
                        let index = next.fetch_add(1, Ordering::Relaxed);
                        let Some((inode, stub)) = stubs.get(index) else { return };
                        let file = overlay.fill_stub(inode, stub, &|written| {
                            bytes.fetch_add(written, Ordering::Relaxed);
                            !stopped.load(Ordering::Relaxed)
                        });
                        if filled.send((index, file)).is_err() {
                            return;
                        }
                    }
                });
            }
            drop(filled);
            loop {
                match results.recv_timeout(PROGRESS_INTERVAL) {
                    Ok((index, Ok(file))) => files[index] = Some(file),
                    Ok((index, Err(e))) => errors[index] = Some(e),
                    Err(crossbeam::channel::RecvTimeoutError::Timeout) => {}
                    Err(crossbeam::channel::RecvTimeoutError::Disconnected) => break,
                }
                if !(self.step)(before + bytes.load(Ordering::Relaxed)) {
                    stopped.store(true, Ordering::Relaxed);
                }
            }
        });
        for (index, (one, file)) in batch.iter_mut().zip(files).enumerate() {
            one.file = file;
            if one.file.is_none() && errors[index].is_none() {
                errors[index] = Some(OverlayError::WorkerGone);
            }
        }
    }

    /// Makes the changes of the batch durable.
    fn sync(&self, batch: &mut [Leaving<'_>], errors: &mut [Option<OverlayError>]) {
        if batch.len() > FEW && rustix::fs::syncfs(&self.root).is_ok() {
            return;
        }
        for (one, error) in batch.iter_mut().zip(errors) {
            let synced = match (&one.file, &error) {
                (Some(file), None) => self.overlay.steps.io(|| file.sync_all()),
                _ => continue,
            };
            if let Err(e) = synced {
                let e = OverlayError::io("fsync", &one.path, e);
                self.take_back(one, e, error);
            }
        }
    }

    fn take_back(&self, one: &mut Leaving<'_>, reason: OverlayError, error: &mut Option<OverlayError>) {
        if let Some(file) = &one.file {
            self.overlay.take_back(&one.inode, file, one.stub);
        }
        *error = Some(reason);
    }
}
