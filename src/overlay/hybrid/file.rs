//! One hybrid file: its bytes, and the operations on them.
//!
//! Local bytes are in the backing file, at their own offsets; its length is that of the content. The order of
//! changes to the file and to the list keeps it right through a crash:
//!
//! - Write: whole blocks to the file -> record. A record without its bytes is pending, and lost if the file
//!   has a hole there. Bytes without a record do not count, and are punched out before the next daemon writes
//!   anything.
//! - Sync: fdatasync of the file -> record *synced* -> fdatasync of the list. So synced blocks are never
//!   judged by holes.
//! - Shrink: record -> fdatasync of the list, if local bytes are lost -> truncate.
//! - Zeros: written over local bytes; elsewhere a record.
//! - Base bytes that are still in the file (`begin`): removed in `settle`.

use super::extents::{BLOCK, Change, Extents, Place};
use super::list::{Header, List};
use super::steps::Steps;
use crate::backing;
use crate::backing::stub::{GuardKey, Time};
use crate::backing::types::SetTime;
use crate::contents::error::{OverlayError, Result};
use crate::overlay::file::read_full;
use crate::overlay::proof::Inside;
use crate::recipe::Recipe;
use crate::similarity::exact::Source;
use crate::store::Store;
use rustix::fs::{FallocateFlags, SeekFrom};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A list is rewritten when it has this many records more than it needs, and several times as many.
const RECORDS_SPARE: u64 = 64 << 10;
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// A hybrid file. A thread that changes it holds its inode's mutex; a thread that only syncs it need not.
pub struct Hybrid {
    header: Header,
    /// Held by each thread that changes the file or syncs it. Lock order: this, then `extents`.
    list: Mutex<Log>,
    extents: Mutex<Extents>,
    steps: Arc<Steps>,
}

struct Log {
    list: List,
    /// Whether leftovers of an earlier process were tidied up.
    ready: bool,
    /// Whether pending bytes were lost, so that the list is wrong.
    stale: bool,
    /// Whether the list ends with [`Change::Unsettled`].
    unsettled: bool,
}

/// Source of the bytes that are not local.
pub struct Base<'a> {
    /// The store that has them.
    pub store: &'a Store,
    /// The recipe.
    pub recipe: &'a Recipe,
}

impl Hybrid {
    /// Makes the list of a stub that is about to become hybrid, durably.
    pub fn create(dir: &Path, header: Header, key: &GuardKey, steps: Arc<Steps>) -> io::Result<Hybrid> {
        let list = List::create(dir, &header, key)?;
        let log = Log { list, ready: false, stale: false, unsettled: false };
        let extents = Mutex::new(Extents::new(header.base_size));
        Ok(Hybrid { header, list: Mutex::new(log), extents, steps })
    }

    /// Makes the list of a file of `size` bytes whose beginning will be the base alone, durably. The whole file must be durable.
    pub fn begin(
        dir: &Path,
        header: Header,
        key: &GuardKey,
        size: u64,
        steps: Arc<Steps>,
    ) -> io::Result<Hybrid> {
        let extents = Extents::beginning(header.base_size, size);
        let mut list = List::create(dir, &header, key)?;
        steps.step();
        let mut changes = extents.changes();
        changes.push(Change::Unsettled);
        list.rewrite(&changes)?;
        let log = Log { list, ready: false, stale: false, unsettled: true };
        Ok(Hybrid { header, list: Mutex::new(log), extents: Mutex::new(extents), steps })
    }

    /// Reads the list of a hybrid file; the inner error is the reason why its content is not known. Changes nothing.
    pub fn load(
        dir: &Path,
        header: Header,
        key: &GuardKey,
        file: &File,
        steps: Arc<Steps>,
    ) -> io::Result<std::result::Result<Hybrid, &'static str>> {
        let (mut extents, mut unsettled) = (Extents::new(header.base_size), false);
        let take = |change: &Change| {
            extents.apply(change);
            unsettled = *change == Change::Unsettled;
        };
        let list = match List::read(dir, &header, key, take)? {
            Ok(list) => list,
            Err(reason) => return Ok(Err(reason)),
        };
        let pending: Vec<_> = extents.pending().collect();
        let mut stale = false;
        for hole in pending.into_iter().flat_map(|range| holes(file, range)) {
            extents.lose(hole?);
            stale = true;
        }
        let log = Log { list, ready: false, stale, unsettled };
        Ok(Ok(Hybrid { header, list: Mutex::new(log), extents: Mutex::new(extents), steps }))
    }

    /// Returns whether [`Hybrid::settle`] was not done, or was interrupted.
    pub fn is_unsettled(&self) -> bool {
        self.log().unsettled
    }

    /// Removes the base bytes from the file, durably, which gives their space back. The file has the mtime `mtime` then.
    ///
    /// Order: the record durable -> bytes out -> mtime -> fsync -> the list without *unsettled*. A process that finds
    /// *unsettled* repeats all of this.
    pub(in crate::overlay) fn settle(&self, _inside: &Inside<'_>, file: &File, mtime: Time) -> Result<()> {
        let mut log = self.log();
        self.tidy_up(&mut log, file, Some(mtime))
    }

    /// Returns the header of its list.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Returns its present extents.
    pub fn extents(&self) -> Extents {
        self.map().clone()
    }

    /// Length of the content in bytes.
    pub fn size(&self) -> u64 {
        self.map().size()
    }

    /// 512-byte blocks to show, if the base showed `base_blocks`.
    pub fn blocks(&self, base_blocks: u64) -> u64 {
        let extents = self.map();
        let sum = |wanted| {
            let pieces = extents.pieces(0..extents.size());
            pieces
                .iter()
                .filter(|(_, place)| *place == wanted)
                .map(|(range, _)| range.end - range.start)
                .sum()
        };
        let (base, local): (u64, u64) = (sum(Place::Base), sum(Place::Local));
        (base.div_ceil(512).min(base_blocks) + local.div_ceil(512)).next_multiple_of(8)
    }

    fn map(&self) -> MutexGuard<'_, Extents> {
        self.extents.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes the list's descriptor; to be called when no process has the file open.
    pub fn rest(&self) {
        self.log().list.close();
    }

    /// Reads at `offset`; less than the whole buffer only at the end.
    pub fn read(&self, base: &Base<'_>, file: &File, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        let pieces = {
            let extents = self.map();
            let end = extents.size().min(offset.saturating_add(buffer.len() as u64));
            if offset < end { extents.pieces(offset..end) } else { Vec::new() }
        };
        read_pieces(base, file, &pieces, buffer)
    }

    /// Writes `data` at `offset`, all of it or an error.
    pub fn write(&self, base: &Base<'_>, file: &File, offset: u64, data: &[u8]) -> Result<()> {
        let mut log = self.ready(file)?;
        self.write_blocks(&mut log, base, file, offset, data)?;
        self.tidy(&mut log, file)
    }

    fn write_blocks(
        &self,
        log: &mut Log,
        base: &Base<'_>,
        file: &File,
        offset: u64,
        data: &[u8],
    ) -> Result<()> {
        let end = offset.checked_add(data.len() as u64).filter(|end| *end < 1 << 63).ok_or(Errno::FBIG)?;
        if data.is_empty() {
            return Ok(());
        }
        let (first, last) = (offset - offset % BLOCK, (end - 1) - (end - 1) % BLOCK);
        let (head, tail, size) = {
            let extents = self.map();
            let size = extents.size().max(end);
            if end <= extents.size() && extents.is_local(first..last + BLOCK) {
                drop(extents);
                return write_all(file, data, offset);
            }
            let missing = |block: u64| !extents.is_local(block..block + BLOCK);
            let head = if missing(first) { extents.pieces(first..offset) } else { Vec::new() };
            let to = if missing(last) { (last + BLOCK).min(size) } else { end };
            (head, extents.pieces(end..to), size)
        };
        let len = |pieces: &[(Range<u64>, Place)]| match pieces {
            [(from, _), .., (to, _)] => (to.end - from.start) as usize,
            [(only, _)] => (only.end - only.start) as usize,
            [] => 0,
        };
        let (before, after) = (len(&head), len(&tail));
        if before + after == 0 {
            write_all(file, data, offset)?;
        } else {
            // Whole blocks in one write, so that the disk never has a part of a block.
            let mut whole = vec![0; before + data.len() + after];
            read_pieces(base, file, &head, &mut whole[..before])?;
            whole[before..before + data.len()].copy_from_slice(data);
            read_pieces(base, file, &tail, &mut whole[before + data.len()..])?;
            write_all(file, &whole, offset - before as u64)?;
        }
        self.steps.step();
        self.note(log, Change::Local(first..(last + BLOCK).min(size)))
    }

    /// Makes a range zeros, and the file longer if it ends before and `grow`.
    pub fn zero(&self, base: &Base<'_>, file: &File, range: Range<u64>, grow: bool) -> Result<()> {
        let mut log = self.ready(file)?;
        if grow && range.end > self.size() {
            self.set_size(&mut log, file, range.end)?;
        }
        let size = self.size();
        let (start, end) = (range.start, range.end.min(size));
        // A block at the end of the file counts as a whole one.
        let inner = start.next_multiple_of(BLOCK)..if end == size { end } else { end - end % BLOCK };
        if start >= end || inner.is_empty() {
            let zeros = end.saturating_sub(start) as usize;
            self.write_blocks(&mut log, base, file, start, &ZEROS[..zeros.min(2 * BLOCK as usize)])?;
        } else {
            self.write_blocks(&mut log, base, file, start, &ZEROS[..(inner.start - start) as usize])?;
            let pieces = self.map().pieces(inner.clone());
            for (range, place) in pieces {
                match place {
                    Place::Zero => {}
                    Place::Base => self.note(&mut log, Change::Zero(range))?,
                    Place::Local => {
                        let mut at = range.start;
                        while at < range.end {
                            let len = (range.end - at).min(ZEROS.len() as u64) as usize;
                            write_all(file, &ZEROS[..len], at)?;
                            at += len as u64;
                        }
                    }
                }
            }
            self.write_blocks(&mut log, base, file, inner.end, &ZEROS[..(end - inner.end) as usize])?;
        }
        // As after a write of zeros.
        backing::set_times(file, None, Some(SetTime::Now))?;
        self.tidy(&mut log, file)
    }

    /// Reserves space where the file has no bytes yet, and makes it longer if it ends before and `grow`. Bytes in the
    /// store need no space in the file.
    pub fn allocate(&self, file: &File, range: Range<u64>, grow: bool) -> Result<()> {
        let mut log = self.ready(file)?;
        let pieces = self.map().pieces(range.clone());
        for (part, _) in pieces.into_iter().filter(|(_, place)| *place == Place::Zero) {
            let len = part.end - part.start;
            rustix::fs::fallocate(file, FallocateFlags::KEEP_SIZE, part.start, len)?;
        }
        if grow && range.end > self.size() {
            self.set_size(&mut log, file, range.end)?;
        }
        Ok(())
    }

    /// Cuts the file off, or makes it longer.
    pub fn resize(&self, file: &File, size: u64) -> Result<()> {
        let mut log = self.ready(file)?;
        self.set_size(&mut log, file, size)?;
        self.tidy(&mut log, file)
    }

    fn set_size(&self, log: &mut Log, file: &File, size: u64) -> Result<()> {
        if size >= 1 << 63 {
            return Err(Errno::FBIG.into());
        }
        let (old, loses) = {
            let extents = self.map();
            let gone = extents.pieces(size - size % BLOCK..extents.size().max(size));
            (extents.size(), gone.iter().any(|(_, place)| *place == Place::Local))
        };
        if size != old {
            self.note(log, Change::Size(size))?;
        }
        if size < old && loses {
            // Otherwise a power cut could keep the old length without its bytes.
            self.sync_list(log)?;
        }
        self.steps.step();
        Ok(rustix::fs::ftruncate(file, size)?)
    }

    /// Finds data (`hole` false) or a hole at or after `offset`.
    pub fn seek(&self, offset: u64, hole: bool) -> Result<u64> {
        let extents = self.map();
        if offset >= extents.size() {
            return Err(Errno::NXIO.into());
        }
        let pieces = extents.pieces(offset..extents.size());
        match pieces.iter().find(|(_, place)| (*place == Place::Zero) == hole) {
            Some((range, _)) => Ok(range.start),
            None if hole => Ok(extents.size()),
            None => Err(Errno::NXIO.into()),
        }
    }

    /// Makes the content durable, and with `data_only` false the attributes too.
    pub fn sync(&self, file: &File, data_only: bool) -> Result<()> {
        let mut log = self.log();
        if data_only {
            rustix::fs::fdatasync(file)?
        } else {
            rustix::fs::fsync(file)?
        }
        self.steps.step();
        if !log.ready {
            // This process has not changed the file; the list is as durable as an earlier one left it.
            return self.sync_list(&mut log);
        }
        let pending = self.map().pending().next().is_some();
        if pending {
            self.note(&mut log, Change::Synced)?;
        }
        self.sync_list(&mut log)?;
        self.steps.step();
        Ok(())
    }

    fn sync_list(&self, log: &mut Log) -> Result<()> {
        let list = &mut log.list;
        let path = list.path();
        list.sync(|| self.map().changes()).map_err(|e| OverlayError::io("fsync", path, e))
    }

    /// Appends a change to the list, and applies it to the map.
    fn note(&self, log: &mut Log, change: Change) -> Result<()> {
        log.list.append(&change).map_err(|e| OverlayError::io("write", log.list.path(), e))?;
        self.map().apply(&change);
        self.steps.step();
        Ok(())
    }

    /// Prepares the first change by this process. Makes the record durable, since recovery would take a stub with bytes
    /// in it for one changed below the mount. Then removes leftovers of an earlier process that do not count, so that they
    /// are never taken for bytes that are written from now on.
    fn ready(&self, file: &File) -> Result<MutexGuard<'_, Log>> {
        let mut log = self.log();
        if !log.ready {
            self.tidy_up(&mut log, file, None)?;
        }
        Ok(log)
    }

    /// Tidies up; sets the file's mtime to `mtime`, if given.
    fn tidy_up(&self, log: &mut Log, file: &File, mtime: Option<Time>) -> Result<()> {
        rustix::fs::fsync(file)?;
        self.steps.step();
        let extents = self.map().clone();
        let stat = rustix::fs::fstat(file)?;
        let mut changed = mtime.is_some_and(|mtime| mtime != backing::mtime(&stat));
        if stat.st_size as u64 != extents.size() {
            rustix::fs::ftruncate(file, extents.size())?;
            changed = true;
        }
        let mut lost = stat.st_size as u64 > extents.size();
        let end = extents.size().next_multiple_of(BLOCK);
        for (range, _) in extents.pieces(0..end).into_iter().filter(|(_, place)| *place != Place::Local) {
            if has_data(file, &range)? {
                let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                rustix::fs::fallocate(file, punch, range.start, range.end - range.start)?;
                (changed, lost) = (true, true);
            }
        }
        self.steps.step();
        if changed {
            let mtime = mtime.unwrap_or_else(|| backing::mtime(&stat));
            backing::set_times(file, None, Some(SetTime::At(mtime)))?;
        }
        if lost || log.unsettled {
            rustix::fs::fsync(file)?;
        }
        if log.stale || log.unsettled {
            self.steps.step();
            let path = log.list.path();
            log.list.rewrite(&extents.changes()).map_err(|e| OverlayError::io("write", path, e))?;
        }
        (log.ready, log.stale, log.unsettled) = (true, false, false);
        Ok(())
    }

    /// Rewrites the list when it has grown far beyond what it needs.
    fn tidy(&self, log: &mut Log, file: &File) -> Result<()> {
        let needed = 2 * self.map().len() as u64;
        if log.list.records() < 4 * needed + RECORDS_SPARE {
            return Ok(());
        }
        // Then everything is durable, and the list needs only the places.
        rustix::fs::fdatasync(file)?;
        self.map().apply(&Change::Synced);
        let (path, changes) = (log.list.path(), self.map().changes());
        log.list.rewrite(&changes).map_err(|e| OverlayError::io("write", path, e))
    }
}

/// The content of a hybrid file as it was at one moment.
pub struct Merged {
    store: Arc<Store>,
    recipe: Arc<Recipe>,
    file: Arc<File>,
    extents: Extents,
}

impl Merged {
    /// Reads a file with the extents `extents`.
    pub fn new(store: &Arc<Store>, recipe: Arc<Recipe>, file: Arc<File>, extents: Extents) -> Merged {
        Merged { store: store.clone(), recipe, file, extents }
    }

    /// Reads at `offset`; less than the whole buffer only at the end.
    pub fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        let end = self.extents.size().min(offset.saturating_add(buffer.len() as u64));
        let pieces = if offset < end { self.extents.pieces(offset..end) } else { Vec::new() };
        read_pieces(&Base { store: &self.store, recipe: &self.recipe }, &self.file, &pieces, buffer)
    }
}

impl Source for Merged {
    fn len(&self) -> u64 {
        self.extents.size()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        self.read(offset, buffer).map_err(io::Error::other)
    }
}

/// Fills the buffer with the bytes of some successive pieces; returns how many bytes those are.
fn read_pieces(
    base: &Base<'_>,
    file: &File,
    pieces: &[(Range<u64>, Place)],
    buffer: &mut [u8],
) -> Result<usize> {
    let mut done = 0;
    for (range, place) in pieces {
        let part = &mut buffer[done..done + (range.end - range.start) as usize];
        done += part.len();
        match place {
            Place::Zero => part.fill(0),
            Place::Local => {
                // The file may have been cut off since; a cut never shows other bytes.
                let len = read_full(file, part, range.start)?;
                part[len..].fill(0);
            }
            Place::Base => {
                if base.store.read_at(base.recipe, range.start, part)? != part.len() {
                    return Err(Errno::IO.into());
                }
            }
        }
    }
    Ok(done)
}

fn write_all(file: &File, data: &[u8], offset: u64) -> Result<()> {
    let written = file.write_all_at(data, offset);
    written.map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO).into())
}

fn has_data(file: &File, range: &Range<u64>) -> rustix::io::Result<bool> {
    Ok(backing::next_data(file, range.start)?.is_some_and(|at| at < range.end))
}

/// Returns the holes of a file within `range`.
fn holes(file: &File, range: Range<u64>) -> impl Iterator<Item = io::Result<Range<u64>>> + '_ {
    let mut at = range.start;
    std::iter::from_fn(move || {
        let mut next = || -> rustix::io::Result<Option<Range<u64>>> {
            if at >= range.end {
                return Ok(None);
            }
            let hole = match rustix::fs::seek(file, SeekFrom::Hole(at)) {
                // Beyond the end there is only the rest of the last block, which is in the same place as that block.
                Err(Errno::NXIO) if at - at % BLOCK < rustix::fs::fstat(file)?.st_size as u64 => {
                    at.next_multiple_of(BLOCK)
                }
                Err(Errno::NXIO) => at,
                // The last block exists although it is not full.
                Ok(hole) if hole == rustix::fs::fstat(file)?.st_size as u64 => hole.next_multiple_of(BLOCK),
                hole => hole?,
            };
            let end = backing::next_data(file, hole.max(at))?.unwrap_or(u64::MAX).min(range.end);
            at = end;
            Ok((hole < end).then_some(hole..end))
        };
        next().map_err(io::Error::from).transpose()
    })
}
