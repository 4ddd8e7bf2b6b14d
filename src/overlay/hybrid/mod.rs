//! Hybrid files: large stubs that were written to. Changes are in the file, the rest is still in the store.
//!
//! A large stub that is opened for writing stays a stub until the first write. Then, before the write is
//! answered: extent list created and durable -> record HYBRID, durable -> the file gets its length. From then
//! on the content is the base recipe plus the list (`list`, `extents`, `file`), until the file is committed
//! as a stub (`commit`), or completely hydrated (`Overlay::make_plain`). A large plain file that does not fit
//! on the disk together with its chunks becomes hybrid too, with its beginning as the base (`beginning`). The
//! list is removed only when a durable record does without it. Reasons: `docs/decisions/0011-hybrid.md`.

mod beginning;
pub(super) mod commit;
mod extents;
mod file;
mod list;
mod steps;

pub(super) use extents::Place;
pub(super) use file::{Base, Hybrid, Merged};
pub(super) use steps::Steps;

use super::inode::{Content, Inode, State as InodeState};
use super::{Handle, Overlay};
use crate::backing;
use crate::backing::stub::{State, Stub};
use crate::backing::types::SetTime;
use crate::contents::error::{OverlayError, Result};
use crate::id::RecipeId;
use crate::recipe::Recipe;
use list::Header;
use rustix::fs::{FallocateFlags, OFlags};
use std::collections::HashSet;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::{Arc, MutexGuard};

/// Which stubs become hybrid when they are written to, and the directory of their lists.
#[derive(Clone, Debug)]
pub struct HybridOptions {
    /// The directory; created when it is first needed.
    pub dir: PathBuf,
    /// Smaller stubs are written back instead. `u64::MAX`: no stub becomes hybrid.
    pub bytes_min: u64,
}

/// Returns the header of a new list. Its number is random, so another file that gets the inode number has another one.
fn header(inode: &Inode, base_size: u64, base: RecipeId) -> Result<Header> {
    let mut number = [0; 8];
    rustix::rand::getrandom(&mut number, rustix::rand::GetRandomFlags::empty())?;
    Ok(Header { number: u64::from_be_bytes(number), inode: inode.identity.ino, base_size, base })
}

/// Default: stubs of this size or more become hybrid.
pub const HYBRID_BYTES_MIN: u64 = 16 << 20;

/// Parts of a hybrid file's content while it is open.
pub(super) struct HybridIo {
    hybrid: Arc<Hybrid>,
    recipe: Arc<Recipe>,
    file: Arc<File>,
}

impl HybridIo {
    /// Cuts the file off, or makes it longer.
    pub(super) fn resize(&self, size: u64) -> Result<()> {
        self.hybrid.resize(&self.file, size)
    }
}

/// For tests of crashes and failing disks.
#[cfg(any(test, feature = "testing"))]
impl Overlay {
    /// Aborts the process at the `count`th step of work on hybrid files or of writing stubs back: for tests of crashes.
    #[doc(hidden)]
    pub fn abort_at_step(&self, count: u64) {
        self.steps.abort_at(count);
    }

    /// Panics at the `count`th such step: for tests of the state after a panic.
    #[doc(hidden)]
    pub fn panic_at_step(&self, count: u64) {
        self.steps.panic_at(count);
    }

    /// Makes the `count`th write or fsync of a write-back fail with EIO: for tests of failing disks.
    #[doc(hidden)]
    pub fn fail_at_call(&self, count: u64) {
        self.steps.fail_at(count);
    }
}

impl Overlay {
    /// Whether a stub that is written to becomes hybrid instead of plain.
    fn is_large(&self, inode: &Inode, stub: &Stub) -> bool {
        !self.read_only && stub.size >= self.hybrid.bytes_min && self.may_convert(inode, stub.size)
    }

    /// Makes sure that a file that is about to be written to need not wait for its content: writes small stubs back; large
    /// ones can become hybrid.
    pub(super) fn make_writable<'a>(
        &self,
        inode: &'a Inode,
        mut state: MutexGuard<'a, InodeState>,
    ) -> Result<MutexGuard<'a, InodeState>> {
        if state.cancel.is_some() {
            // If the write-back was given up, a large stub need not be written back at all.
            state = inode.wait_written_back(state);
        }
        match state.content {
            Some(Content::Stub(stub)) if self.is_large(inode, &stub) && !state.is_hydrating() => Ok(state),
            Some(Content::Hybrid(_))
                if let Some(hybrid) = &state.hybrid
                    && self.may_convert(inode, hybrid.size())
                    && !state.is_hydrating() =>
            {
                Ok(state)
            }
            _ => self.make_plain(inode, state),
        }
    }

    /// Makes a large stub hybrid, before it is changed.
    fn make_hybrid(&self, inode: &Inode, state: &mut InodeState, stub: &Stub) -> Result<Arc<Hybrid>> {
        let header = header(inode, stub.size, stub.recipe)?;
        let number = header.number;
        let dir = &self.hybrid.dir;
        let made = Hybrid::create(dir, header, &self.key, self.steps.clone());
        let hybrid = made.map_err(|e| OverlayError::io("make an extent list in", dir, e))?;
        self.steps.step();
        let record = Stub { ctime: None, ..stub.stamped(State::Hybrid { list: number }) };
        if let Err(e) = self.write_record(inode, &record) {
            self.remove_list(inode, number);
            return Err(e.into());
        }
        self.steps.step();
        let hybrid = Arc::new(hybrid);
        state.content = Some(Content::Hybrid(record));
        state.hybrid = Some(hybrid.clone());
        state.dirty = true;
        // The conversion to a stub was in vain.
        state.committed = true;
        Ok(hybrid)
    }

    /// Reads the parts of a hybrid file; the inner error is the reason why its content is not known. Changes nothing.
    pub(super) fn load_hybrid(
        &self,
        inode: &Inode,
        record: &Stub,
        list: u64,
    ) -> Result<std::result::Result<Arc<Hybrid>, &'static str>> {
        let header =
            Header { number: list, inode: inode.identity.ino, base_size: record.size, base: record.recipe };
        let file = backing::open_io(&inode.path_fd()?, OFlags::RDONLY)?;
        let loaded = Hybrid::load(&self.hybrid.dir, header, &self.key, &file, self.steps.clone());
        let loaded = loaded.map_err(|e| OverlayError::io("read an extent list in", &self.hybrid.dir, e))?;
        Ok(loaded.map(Arc::new))
    }

    /// Returns the way to change an open file: `None` if its bytes are its own. A large stub becomes hybrid here.
    pub(super) fn hybrid_to_change<'a>(
        &self,
        inode: &'a Inode,
        state: MutexGuard<'a, InodeState>,
    ) -> Result<(MutexGuard<'a, InodeState>, Option<HybridIo>)> {
        let mut state = inode.wait_written_back(state);
        let (hybrid, stub) = match (state.content, &state.hybrid) {
            (Some(Content::Stub(stub)), _) => (None, stub),
            (Some(Content::Hybrid(stub)), Some(hybrid)) => (Some(hybrid.clone()), stub),
            (Some(Content::Unknown(reason)), _) => return Err(self.bad_stub(inode, reason)),
            _ => return Ok((state, None)),
        };
        let file = match &state.io {
            Some(io) if io.writable => io.file.clone(),
            _ => Arc::new(backing::open_io(&inode.path_fd()?, OFlags::RDWR)?),
        };
        let recipe = match &state.recipe {
            Some(recipe) => recipe.clone(),
            None => self.recipe_of(inode, &stub)?,
        };
        let hybrid = match hybrid {
            Some(hybrid) => hybrid,
            None => self.make_hybrid(inode, &mut state, &stub)?,
        };
        Ok((state, Some(HybridIo { hybrid, recipe, file })))
    }

    /// Writes to an open hybrid file, or large stub; false if its bytes are its own.
    pub(super) fn write_hybrid(&self, handle: &Handle, offset: u64, data: &[u8]) -> Result<bool> {
        let (_state, io) = self.hybrid_to_change(handle.inode(), self.lock_loaded(handle.inode())?)?;
        let Some(HybridIo { hybrid, recipe, file }) = io else { return Ok(false) };
        hybrid.write(&self.base(&recipe), &file, offset, data)?;
        Ok(true)
    }

    /// Allocates, punches or zeroes a range of an open hybrid file, or large stub; false if its bytes are its own.
    pub(super) fn allocate_hybrid(
        &self,
        handle: &Handle,
        flags: FallocateFlags,
        offset: u64,
        len: u64,
    ) -> Result<bool> {
        let (_state, io) = self.hybrid_to_change(handle.inode(), self.lock_loaded(handle.inode())?)?;
        let Some(HybridIo { hybrid, recipe, file }) = io else { return Ok(false) };
        let end = offset.checked_add(len).filter(|end| *end < 1 << 63 && len > 0);
        let range = offset..end.ok_or(rustix::io::Errno::INVAL)?;
        let grow = !flags.contains(FallocateFlags::KEEP_SIZE);
        match flags - FallocateFlags::KEEP_SIZE {
            kind if kind.is_empty() => hybrid.allocate(&file, range, grow)?,
            FallocateFlags::PUNCH_HOLE if !grow => hybrid.zero(&self.base(&recipe), &file, range, false)?,
            FallocateFlags::ZERO_RANGE => hybrid.zero(&self.base(&recipe), &file, range, grow)?,
            _ => return Err(rustix::io::Errno::OPNOTSUPP.into()),
        }
        Ok(true)
    }

    /// Returns the source of bytes that are not in the file.
    pub(super) fn base<'a>(&'a self, recipe: &'a Recipe) -> Base<'a> {
        Base { store: &self.contents.store, recipe }
    }

    /// The content of a hybrid file as it is now.
    pub(super) fn merged(&self, inode: &Inode, stub: &Stub, hybrid: &Hybrid) -> Result<Merged> {
        let recipe = self.recipe_of(inode, stub)?;
        let file = backing::open_io(&inode.path_fd()?, OFlags::RDONLY)?;
        Ok(Merged::new(&self.contents.store, recipe, Arc::new(file), hybrid.extents()))
    }

    /// Writes the whole content of a hybrid file into it, and makes it plain. Threads that want to change it wait meanwhile.
    ///
    /// Order: bytes where no local ones are -> fdatasync -> times -> record PLAIN -> fsync -> remove the list. Bytes
    /// written before the record do not count yet, so a failure loses nothing.
    pub(super) fn fill_hybrid(&self, inode: &Inode, stub: Stub, hybrid: &Hybrid) -> Result<Stub> {
        if self.read_only {
            return Err(OverlayError::ReadOnly);
        }
        let merged = self.merged(inode, &stub, hybrid)?;
        let file = backing::open_io(&inode.path_fd()?, OFlags::RDWR)?;
        self.not_outside(inode, &file)?;
        let io = |e| OverlayError::io("write", self.name_of(inode), e);
        let extents = hybrid.extents();
        // Before the bytes, so that they are not beyond the end.
        rustix::fs::ftruncate(&file, extents.size())?;
        let mut buffer = vec![0; 1 << 20];
        for (range, place) in extents.pieces(0..extents.size()) {
            let (mut at, len) = (range.start, range.end - range.start);
            match place {
                Place::Local => {}
                Place::Zero => {
                    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                    rustix::fs::fallocate(&file, punch, at, len)?;
                }
                Place::Base => {
                    while at < range.end {
                        let part = &mut buffer[..(range.end - at).min(1 << 20) as usize];
                        merged.read(at, part)?;
                        self.steps.io(|| file.write_all_at(part, at)).map_err(io)?;
                        at += part.len() as u64;
                    }
                }
            }
        }
        self.steps.step();
        let fsync = |e| OverlayError::io("fsync", self.name_of(inode), e);
        self.steps.io(|| file.sync_data()).map_err(fsync)?;
        backing::set_times(&inode.path_fd()?, None, Some(SetTime::At(stub.mtime)))?;
        // No recipe has its content.
        let recipe = RecipeId([0; 16]);
        let plain = Stub { size: extents.size(), ctime: None, recipe, ..stub.stamped(State::Plain) };
        self.write_record(inode, &plain)?;
        self.steps.step();
        if let Err(e) = self.steps.io(|| file.sync_all()) {
            // Later writes go by the list again.
            self.write_record(inode, &stub)?;
            return Err(fsync(e));
        }
        self.remove_list(inode, hybrid.header().number);
        Ok(plain)
    }

    /// Cuts a hybrid file off to nothing, durably, so that its record can be removed.
    pub(super) fn empty_hybrid(&self, inode: &Inode, hybrid: &Hybrid, file: &File) -> Result<()> {
        hybrid.resize(file, 0)?;
        file.sync_all().map_err(|e| OverlayError::io("fsync", self.name_of(inode), e))
    }

    /// Removes the list of a file whose content no longer needs it, durably.
    pub(super) fn remove_list(&self, inode: &Inode, number: u64) {
        self.steps.step();
        if let Err(e) = list::remove(&self.hybrid.dir, number) {
            tracing::warn!("{}: its extent list stays until garbage is collected: {e}", self.name_of(inode));
        }
        self.steps.step();
    }

    /// Removes the list of a hybrid file without a name, if no process has the file open.
    pub(super) fn forget_hybrid(&self, inode: &Inode, state: &mut InodeState) {
        let Some(hybrid) = state.hybrid.clone().filter(|_| state.opens == 0 && !state.is_hydrating()) else {
            return;
        };
        state.interrupt_conversion();
        let gone = inode.path_fd().and_then(|fd| {
            if rustix::fs::fstat(&fd)?.st_nlink > 0 {
                return Ok(false);
            }
            // The name must not come back after a power cut without the list.
            rustix::fs::fsync(backing::open_io(&fd, OFlags::RDONLY)?)?;
            Ok(true)
        });
        if gone == Ok(true) {
            // A thread that still holds the inode and opens it must not take the local bytes for the whole content.
            let gone = Content::Unknown("its last name was removed, and its extent list with it");
            (state.content, state.hybrid) = (Some(gone), None);
            self.remove_list(inode, hybrid.header().number);
        }
    }

    /// Returns the numbers of all extent lists.
    pub(super) fn lists(&self) -> Result<Vec<u64>> {
        list::numbers(&self.hybrid.dir).map_err(|e| OverlayError::io("read", &self.hybrid.dir, e))
    }

    /// Removes those of `lists` that no file needs: neither in `needed` nor in use.
    pub(super) fn remove_orphaned_lists(&self, lists: &[u64], needed: &HashSet<u64>) {
        let mut in_use = HashSet::new();
        for inode in self.inodes.collect(|_, state| state.hybrid.is_some()) {
            in_use.extend(inode.lock().hybrid.as_ref().map(|hybrid| hybrid.header().number));
            self.inodes.release(inode);
        }
        for &number in lists.iter().filter(|number| !needed.contains(number) && !in_use.contains(number)) {
            match list::remove(&self.hybrid.dir, number) {
                Ok(()) => tracing::info!("extent list {number:016x}: no file needs it, so it was removed"),
                Err(e) => tracing::warn!("extent list {number:016x}: no file needs it, and it stays: {e}"),
            }
        }
    }
}
