//! Changes of hybrid files, and of large stubs, which become hybrid.

use super::list::Header;
use crate::backing;
use crate::backing::stub::{State, Stub};
use crate::contents::error::{OverlayError, Result};
use crate::id::RecipeId;
use crate::recipe::Recipe;
use crate::tree::hybrid::Hybrid;
use crate::tree::inode::{Content, Inode, State as InodeState};
use crate::tree::{Handle, Tree};
use rustix::fs::{FallocateFlags, OFlags};
use std::fs::File;
use std::sync::{Arc, MutexGuard};

/// Returns the header of a new list. Its number is random, so another file that gets the inode number has another one.
pub(crate) fn header(inode: &Inode, base_size: u64, base: RecipeId) -> Result<Header> {
    let mut number = [0; 8];
    rustix::rand::getrandom(&mut number, rustix::rand::GetRandomFlags::empty())?;
    Ok(Header { number: u64::from_be_bytes(number), inode: inode.identity.ino, base_size, base })
}

/// Parts of a hybrid file's content while it is open.
pub(crate) struct HybridIo {
    hybrid: Arc<Hybrid>,
    recipe: Arc<Recipe>,
    file: Arc<File>,
}

impl HybridIo {
    /// Cuts the file off, or makes it longer.
    pub(crate) fn resize(&self, size: u64) -> Result<()> {
        self.hybrid.resize(&self.file, size)
    }
}

/// For tests of crashes and failing disks.
#[cfg(any(test, feature = "testing"))]
impl Tree {
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

impl Tree {
    /// Whether a stub that is written to becomes hybrid instead of plain.
    fn is_large(&self, inode: &Inode, stub: &Stub) -> bool {
        !self.read_only && stub.size >= self.hybrid.bytes_min && self.may_convert(inode, stub.size)
    }

    /// Makes sure that a file that is about to be written to need not wait for its content: writes small stubs back; large
    /// ones can become hybrid.
    pub(crate) fn make_writable<'a>(
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

    /// Returns the way to change an open file: `None` if its bytes are its own. A large stub becomes hybrid here.
    pub(crate) fn hybrid_to_change<'a>(
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
    pub(crate) fn write_hybrid(&self, handle: &Handle, offset: u64, data: &[u8]) -> Result<bool> {
        let (_state, io) = self.hybrid_to_change(handle.inode(), self.lock_loaded(handle.inode())?)?;
        let Some(HybridIo { hybrid, recipe, file }) = io else { return Ok(false) };
        hybrid.write(&self.base(&recipe), &file, offset, data)?;
        Ok(true)
    }

    /// Allocates, punches or zeroes a range of an open hybrid file, or large stub; false if its bytes are its own.
    pub(crate) fn allocate_hybrid(
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

    /// Removes the list of a hybrid file without a name, if no process has the file open.
    pub(crate) fn forget_hybrid(&self, inode: &Inode, state: &mut InodeState) {
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
}
