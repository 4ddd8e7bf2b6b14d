//! Open files: the state machine of an inode's I/O, and reading and writing through this process.
//!
//! | the file is | open | how its I/O goes |
//! | --- | --- | --- |
//! | plain, closed | any | passthrough if the caller can register it, else cached |
//! | plain, open | any | as it does already |
//! | stub | to read | cached, from the store |
//! | stub | to write | written back first, then as plain; cached if a reader has it open |
//! | large stub, hybrid | to write | cached; hybrid from the first write on |
//! | stub | to truncate | emptied, then as plain |
//! | being converted | any | the conversion is given up |
//! | being written back | to read | cached, from the store |
//! | being written back | to write | waits |
//!
//! Page cache:
//! - The kernel keeps pages from one cached open to the next.
//! - After a write that bypassed them, this process drops the pages before it answers the next cached open, and only
//!   while no program has the file open. A page holds the bytes of a write before this process gets them: if it were
//!   dropped just then, the old bytes would come back and stay.
//! - So the kernel drops no pages itself: not at an open, which would come after the answer (`FOPEN_KEEP_CACHE` is always
//!   given), and not at another mtime (`FUSE_AUTO_INVAL_DATA` is not asked for).

use crate::backing;
use crate::backing::io::{read_full, write_full};
use crate::backing::stub::Time;
use crate::backing::types::{Attr, Caller, NodeId};
use crate::contents::error::{OverlayError, Result};
use crate::recipe::Recipe;
use crate::tree::Tree;
use crate::tree::event::Event;
use crate::tree::handle::{ALL, DropPages, Handle, Io, OpenFlags, Opened, Register};
use crate::tree::hybrid::Hybrid;
use crate::tree::inode::{Content, Inode, Mode, OpenFile, State as InodeState};
use rustix::fs::{FallocateFlags, OFlags, Stat};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::File;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, MutexGuard};
use std::time::Instant;

/// How many chunks are decoded ahead of a sequential reader, and how many are asked for at a time.
const AHEAD_CHUNKS: usize = 192;
const AHEAD_STEP: usize = 64;

impl Tree {
    /// Opens the regular file `node`.
    pub fn open(&self, node: NodeId, flags: OpenFlags, register: &Register) -> Result<Opened> {
        let inode = self.inodes.get(node)?;
        if self.read_only && flags.write {
            return Err(OverlayError::ReadOnly);
        }
        let _changing = (flags.write || flags.truncate).then(|| self.changes.changing());
        if flags.write || flags.truncate {
            self.touched(&inode);
        }
        let mut state = self.lock_loaded(&inode)?;
        state.interrupt_conversion();
        if let Some(Content::Unknown(reason)) = state.content {
            return Err(self.bad_stub(&inode, reason));
        }
        if flags.unless_running {
            state = inode.wait_until_not_running(state)?;
        }
        let stored = matches!(state.content, Some(Content::Stub(_))) || state.hot.is_some();
        if flags.write && state.writers == 0 && !stored {
            state.overwritten_since = Some(Instant::now());
        }
        match state.content {
            _ if flags.write || flags.truncate => self.cool(&inode, &mut state),
            // The kernel maps a program, so its pages are in memory in any case.
            Some(Content::Stub(stub)) if !flags.execute => {
                self.heat.opened(inode.file_id(), stub.size, Instant::now());
            }
            _ => {}
        }
        if flags.truncate {
            state = self.empty(&inode, state)?;
        } else if flags.write {
            state = self.make_writable(&inode, state)?;
        }
        self.open_locked(&inode, state, flags, None, register)
    }

    /// Creates and opens a regular file.
    pub fn create(
        &self,
        parent: NodeId,
        name: &OsStr,
        mode: u32,
        caller: Caller,
        flags: OpenFlags,
        register: &Register,
    ) -> Result<(Attr, Opened)> {
        self.check_writable(parent, name)?;
        let changing = self.changes.changing();
        let parent_inode = self.inode(parent)?;
        let dir = parent_inode.path_fd()?;
        let how = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let made = self.backing.create(&dir, mode, caller, |mode| rustix::fs::openat(&dir, name, how, mode));
        let file = match made {
            Ok(fd) => File::from(fd),
            // Another thread made it first: open that file.
            Err(Errno::EXIST) if !flags.exclusive => {
                drop(changing);
                let attr = self.lookup(parent, name)?;
                let opened = self.open(attr.node, flags, register);
                return opened.map(|opened| (attr, opened)).inspect_err(|_| self.forget(attr.node, 1));
            }
            Err(e) => return Err(e.into()),
        };
        let inode = self.inodes.enter(&self.backing, parent_inode.created(name, &file)?, 1)?;
        self.touched(&parent_inode);
        self.moved(inode.file_id());
        self.heat.forget(inode.file_id());
        self.tell(Event::Created(inode.file_id()));
        parent_inode.has(name, &inode);
        let mut state = inode.lock();
        state.content = Some(Content::Plain(None));
        let opened =
            self.open_locked(&inode, state, OpenFlags { write: true, ..flags }, Some(file), register)?;
        Ok((self.attr_of(&inode)?, opened))
    }

    fn open_locked(
        &self,
        inode: &Arc<Inode>,
        mut state: MutexGuard<'_, InodeState>,
        flags: OpenFlags,
        file: Option<File>,
        register: &Register,
    ) -> Result<Opened> {
        let (stub, needs_file) = match state.content {
            Some(Content::Stub(stub)) => (Some(stub), flags.write),
            Some(Content::Hybrid(stub)) => (Some(stub), true),
            _ => (None, true),
        };
        let recipe = match stub {
            Some(stub) if state.recipe.is_none() => Some(self.recipe_of(inode, &stub)?),
            _ => state.recipe.take(),
        };
        if needs_file {
            self.open_backing(inode, &mut state, flags.write, file)?;
        }
        state.recipe = recipe;
        let io = match (&state.mode, stub, &state.io) {
            (Mode::Pass(token), ..) => Io::Pass(token.clone()),
            (Mode::None, None, Some(OpenFile { file, writable: true, .. })) => {
                let token = register(file);
                if inode.on_root_fs {
                    self.set_passes(token.is_some());
                }
                match token {
                    Some(token) => Io::Pass(token),
                    None => self.io_cached(inode, &mut state)?,
                }
            }
            _ => self.io_cached(inode, &mut state)?,
        };
        // Only the pin keeps an open stub when its last name is removed.
        inode.pin()?;
        state.mode = match &io {
            Io::Pass(token) => {
                state.passed_to_writer = flags.write || state.passed && state.passed_to_writer;
                (state.pages_stale, state.passed) = (true, true);
                Mode::Pass(token.clone())
            }
            Io::Cached { .. } => Mode::Cached,
        };
        state.opens += 1;
        state.writers += u32::from(flags.write);
        if flags.write {
            self.ticks.begin_writing();
            self.changes.news.opened();
        }
        state.running += u32::from(flags.execute);
        let handle = Handle {
            inode: inode.clone(),
            write: flags.write,
            execute: flags.execute,
            accessed: AtomicBool::new(flags.no_atime || self.read_only),
            write_errors: state.write_errors.clone(),
            seen_errors: state.write_errors.open(),
            next_offset: AtomicU64::new(0),
            ahead: AtomicUsize::new(0),
        };
        Ok(Opened { handle: Arc::new(handle), io })
    }

    /// Returns how I/O through the page cache works, for an open that is about to be answered.
    fn io_cached(&self, inode: &Inode, state: &mut InodeState) -> Result<Io> {
        if state.opens > 0 {
            return Ok(Io::Cached { keep_pages: true });
        }
        if let (Some(Content::Plain(_)), Some(of)) = (state.content, state.pages_of) {
            // Another process may have written to it through the backing directory.
            state.pages_stale |= of != version(&rustix::fs::fstat(&inode.path_fd()?)?);
        }
        let stale = std::mem::take(&mut state.pages_stale);
        Ok(Io::Cached {
            keep_pages: !stale || self.drop_pages.get().is_some_and(|drop| drop(inode.node, ALL)),
        })
    }

    /// Sets the callback that drops the kernel's pages.
    pub fn drop_pages_by(&self, drop: Box<DropPages>) {
        // An overlay serves one kernel: a second callback is ignored.
        let _ = self.drop_pages.set(drop);
    }

    /// Drops pages of a file that is read and written past them.
    pub fn drop_pages(&self, node: NodeId, range: Range<u64>) {
        self.drop_pages.get().map(|drop| drop(node, range));
    }

    /// Makes sure that an inode about to be open has its backing file open, writable if needed.
    fn open_backing(
        &self,
        inode: &Inode,
        state: &mut InodeState,
        write: bool,
        file: Option<File>,
    ) -> Result<()> {
        if let Some(file) = file {
            let file = Arc::new(file);
            state.io = Some(OpenFile { reader: Some(file.clone()), file, writable: true });
        }
        if state.io.as_ref().is_some_and(|io| if write { io.writable } else { io.reader.is_some() }) {
            return Ok(());
        }
        let wanted = if self.read_only { OFlags::RDONLY } else { OFlags::RDWR };
        let before = state.io.take();
        let io = match inode.open_io(wanted) {
            Ok(file) => {
                let file = Arc::new(file);
                Ok(OpenFile { reader: Some(file.clone()), file, writable: !self.read_only })
            }
            // A file that may only be read, or a running program. Others may write through their descriptors.
            Err(Errno::ACCESS | Errno::PERM | Errno::ROFS | Errno::TXTBSY) if !write => {
                inode.open_io(OFlags::RDONLY).map(|file| {
                    let (reader, before) = (Arc::new(file), before.as_ref());
                    let file = before.map_or(&reader, |io| &io.file).clone();
                    OpenFile { file, writable: before.is_some_and(|io| io.writable), reader: Some(reader) }
                })
            }
            // A file that may only be written. Others may read through their descriptors.
            Err(Errno::ACCESS) => inode.open_io(OFlags::WRONLY).map(|file| {
                let reader = before.as_ref().and_then(|io| io.reader.clone());
                OpenFile { file: Arc::new(file), writable: true, reader }
            }),
            Err(e) => Err(e),
        };
        match io {
            Ok(io) => state.io = Some(io),
            Err(e) => {
                state.io = before;
                return Err(e.into());
            }
        }
        Ok(())
    }

    /// Ends an open. The last one to end lets the file be committed.
    pub fn release(&self, handle: &Handle) {
        let inode = &handle.inode;
        let mut state = inode.lock();
        state.opens = state.opens.saturating_sub(1);
        inode.unpin();
        if handle.write {
            self.ticks.end_writing();
            state.writers = state.writers.saturating_sub(1);
            if state.writers == 0 {
                state.overwritten_since = None;
            }
        }
        if handle.execute {
            state.running = state.running.saturating_sub(1);
            inode.notify();
        }
        if state.opens == 0 {
            if let (Mode::Cached, Some(Content::Plain(_))) = (&state.mode, state.content) {
                let stat = inode.path_fd().and_then(rustix::fs::fstat);
                state.pages_of = stat.ok().as_ref().map(version);
            }
            state.mode = Mode::None;
            state.io = None;
            // The next descriptor gets the errors that this one did not.
            state.write_errors = Arc::default();
            state.recipe = None;
            state.closed = Instant::now();
            if let Some(hybrid) = &state.hybrid {
                hybrid.rest();
                self.forget_hybrid(inode, &mut state);
            }
        }
        if state.opens == 0 {
            self.tell(Event::Released(inode, &mut state));
        }
        // A large stub that was not written to is still a stub.
        match handle.write && !matches!(state.content, Some(Content::Stub(_))) {
            true => self.enqueue_changed(inode, &mut state),
            false => self.enqueue_if_due(inode, &mut state),
        }
    }

    /// Reads up to `size` bytes at `offset`; fewer only at the end of the file.
    pub fn read(&self, handle: &Handle, offset: u64, size: usize) -> Result<Vec<u8>> {
        enum From {
            Recipe(Arc<Recipe>),
            Hybrid(Arc<Hybrid>, Arc<Recipe>, Arc<File>),
            File(Arc<File>),
        }
        let from = {
            let inode = &handle.inode;
            let mut state = self.lock_loaded(inode)?;
            match (&state.content, &state.recipe) {
                (Some(Content::Stub(_)), Some(recipe)) => From::Recipe(recipe.clone()),
                (Some(Content::Hybrid(_)), Some(recipe)) => {
                    let (recipe, hybrid) = (recipe.clone(), state.hybrid.clone().ok_or(Errno::IO)?);
                    From::Hybrid(hybrid, recipe, self.file_to_read(inode, &mut state)?)
                }
                _ => From::File(self.file_to_read(inode, &mut state)?),
            }
        };
        let mut buffer = vec![0; size];
        let len = match from {
            From::Recipe(recipe) => {
                if !handle.accessed.swap(true, Ordering::Relaxed) {
                    backing::access(&handle.inode.path_fd()?);
                }
                self.read_ahead(handle, &recipe, offset, size);
                self.contents.store.read_at(&recipe, offset, &mut buffer).inspect_err(|e| {
                    tracing::error!("{}: {e}", self.name_of(&handle.inode));
                })?
            }
            From::Hybrid(hybrid, recipe, file) => {
                self.read_ahead(handle, &recipe, offset, size);
                hybrid.read(&self.base(&recipe), &file, offset, &mut buffer).inspect_err(|e| {
                    tracing::error!("{}: {e}", self.name_of(&handle.inode));
                })?
            }
            From::File(file) => read_full(&file, &mut buffer, offset)?,
        };
        buffer.truncate(len);
        Ok(buffer)
    }

    /// Returns the backing file of an open inode. A stub opened to read has none until it is written to.
    fn file_to_read(&self, inode: &Inode, state: &mut InodeState) -> Result<Arc<File>> {
        if !matches!(state.content, Some(Content::Plain(_) | Content::Hybrid(_))) {
            return Err(Errno::IO.into());
        }
        self.open_backing(inode, state, false, None)?;
        state.io.as_ref().and_then(|io| io.reader.clone()).ok_or(Errno::IO.into())
    }

    /// Lets chunks be decoded before they are asked for, as long as a reader goes straight on.
    fn read_ahead(&self, handle: &Handle, recipe: &Recipe, offset: u64, size: usize) {
        let sequential = handle.next_offset.swap(offset + size as u64, Ordering::Relaxed) == offset;
        let Some(here) = recipe.chunk_at(offset + size as u64) else {
            return;
        };
        if !sequential {
            handle.ahead.store(here, Ordering::Relaxed);
            return;
        }
        let until = (here + AHEAD_CHUNKS).min(recipe.chunks().len());
        // Many at a time, so that many are read at once.
        if until < handle.ahead.load(Ordering::Relaxed) + AHEAD_STEP && until < recipe.chunks().len() {
            return;
        }
        let from = handle.ahead.fetch_max(until, Ordering::Relaxed).max(here);
        if from < until {
            self.contents.store.prefetch(&recipe.chunks()[from..until]);
        }
    }

    /// Writes `data` at `offset`; returns how many bytes were written: fewer than all if there was no room for the rest.
    pub fn write(&self, handle: &Handle, offset: u64, data: &[u8]) -> Result<usize> {
        let _changing = self.changes.changing_content();
        // A hybrid file's writes also sync, by the descriptor of all handles.
        let keep_error = |e: &OverlayError| handle.write_errors.keep_lost(e.number());
        if handle.write && self.write_hybrid(handle, offset, data).inspect_err(keep_error)? {
            return Ok(data.len());
        }
        write_full(&*self.plain_file(handle)?, data, offset)
    }

    /// Makes a file's content and size durable, and with `data_only` false its attributes too. Fails once for each
    /// write-back error since the handle was opened.
    pub fn fsync(&self, handle: &Handle, data_only: bool) -> Result<()> {
        let _changing = self.changes.changing_content();
        let (io, hybrid) = {
            let state = handle.inode.lock();
            (state.io.clone(), state.hybrid.clone())
        };
        let file = match io {
            Some(io) => io.file,
            // A stub's bytes are durable, but the record that says so may not be yet.
            None => Arc::new(handle.inode.open_io(OFlags::RDONLY)?),
        };
        handle.write_errors.sync(&handle.seen_errors, || {
            if let Some(hybrid) = hybrid.filter(|_| !self.read_only) {
                hybrid.sync(&file, data_only)?
            } else if data_only {
                rustix::fs::fdatasync(&*file)?
            } else {
                rustix::fs::fsync(&*file)?
            }
            Ok(())
        })
    }

    /// Allocates, punches or zeroes a range, as fallocate(2) does.
    pub fn fallocate(&self, handle: &Handle, mode: i32, offset: u64, len: u64) -> Result<()> {
        let _changing = self.changes.changing_content();
        let flags = FallocateFlags::from_bits(mode as u32).ok_or(Errno::OPNOTSUPP)?;
        if handle.write && self.allocate_hybrid(handle, flags, offset, len)? {
            return Ok(());
        }
        Ok(rustix::fs::fallocate(&*self.plain_file(handle)?, flags, offset, len)?)
    }

    /// Finds data (`hole` false) or a hole at or after `offset`. A stub is data from end to end.
    pub fn seek(&self, handle: &Handle, offset: u64, hole: bool) -> Result<u64> {
        let file = {
            let mut state = handle.inode.lock();
            if let (Some(Content::Hybrid(_)), Some(hybrid)) = (state.content, &state.hybrid) {
                return hybrid.seek(offset, hole);
            }
            if let Some(Content::Stub(stub)) = state.content {
                let within = offset < stub.size;
                return if within {
                    Ok(if hole { stub.size } else { offset })
                } else {
                    Err(Errno::NXIO.into())
                };
            }
            match &state.io {
                // `SEEK_DATA` also works on write-only descriptors.
                Some(io) => io.reader.as_ref().unwrap_or(&io.file).clone(),
                None => self.file_to_read(&handle.inode, &mut state)?,
            }
        };
        let from = if hole { rustix::fs::SeekFrom::Hole(offset) } else { rustix::fs::SeekFrom::Data(offset) };
        Ok(rustix::fs::seek(&*file, from)?)
    }

    fn plain_file(&self, handle: &Handle) -> Result<Arc<File>> {
        let state = handle.inode.lock();
        match &state.io {
            Some(OpenFile { file, writable: true, .. }) if handle.write => Ok(file.clone()),
            _ => Err(Errno::BADF.into()),
        }
    }
}

/// Returns mtime and length, which tell versions of a plain file apart.
fn version(stat: &Stat) -> (Time, u64) {
    (backing::mtime(stat), stat.st_size as u64)
}
