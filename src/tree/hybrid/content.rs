//! The content of hybrid files: loading their extents, and writing all of it back.

use super::extents::Place;
use super::file::{Base, Hybrid, Merged};
use super::list::{self, Header};
use crate::backing;
use crate::backing::stub::{State, Stub};
use crate::backing::types::SetTime;
use crate::contents::error::{OverlayError, Result};
use crate::id::RecipeId;
use crate::recipe::Recipe;
use crate::tree::Tree;
use crate::tree::inode::Inode;
use rustix::fs::{FallocateFlags, OFlags};
use std::collections::HashSet;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

impl Tree {
    /// Reads the parts of a hybrid file; the inner error is the reason why its content is not known. Changes nothing.
    pub(crate) fn load_hybrid(
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

    /// Finishes a piece that a crash or an error interrupted after its record was written.
    pub(crate) fn settle_again(&self, inode: &Inode, stub: &Stub, hybrid: &Hybrid) {
        let settle = || {
            let file = backing::open_io(&inode.path_fd()?, OFlags::RDWR)?;
            let inside = self.not_outside(inode, &file)?;
            hybrid.settle(&inside, &file, stub.mtime)
        };
        if hybrid.is_unsettled()
            && let Err(e) = settle()
        {
            tracing::error!(
                "{}: the part that was stored still takes space in the file too: {e}",
                self.name_of(inode)
            );
        }
    }

    /// Removes the list of a file whose content no longer needs it, durably.
    pub(crate) fn remove_list(&self, inode: &Inode, number: u64) {
        self.steps.step();
        if let Err(e) = list::remove(&self.hybrid.dir, number) {
            tracing::warn!("{}: its extent list stays until garbage is collected: {e}", self.name_of(inode));
        }
        self.steps.step();
    }

    /// Writes the whole content of a hybrid file into it, and makes it plain. Threads that want to change it wait meanwhile.
    ///
    /// Order: bytes where no local ones are -> fdatasync -> times -> record PLAIN -> fsync -> remove the list. Bytes
    /// written before the record do not count yet, so a failure loses nothing.
    pub(crate) fn fill_hybrid(&self, inode: &Inode, stub: Stub, hybrid: &Hybrid) -> Result<Stub> {
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
    pub(crate) fn empty_hybrid(&self, inode: &Inode, hybrid: &Hybrid, file: &File) -> Result<()> {
        hybrid.resize(file, 0)?;
        file.sync_all().map_err(|e| OverlayError::io("fsync", self.name_of(inode), e))
    }

    /// The content of a hybrid file as it is now.
    pub(crate) fn merged(&self, inode: &Inode, stub: &Stub, hybrid: &Hybrid) -> Result<Merged> {
        let recipe = self.recipe_of(inode, stub)?;
        let file = backing::open_io(&inode.path_fd()?, OFlags::RDONLY)?;
        Ok(Merged::new(&self.contents.store, recipe, Arc::new(file), hybrid.extents()))
    }

    /// Returns the source of bytes that are not in the file.
    pub(crate) fn base<'a>(&'a self, recipe: &'a Recipe) -> Base<'a> {
        Base { store: &self.contents.store, recipe }
    }

    /// Returns the numbers of all extent lists.
    pub(crate) fn lists(&self) -> Result<Vec<u64>> {
        list::numbers(&self.hybrid.dir).map_err(|e| OverlayError::io("read", &self.hybrid.dir, e))
    }

    /// Removes those of `lists` that no file needs: neither in `needed` nor in use.
    pub(crate) fn remove_orphaned_lists(&self, lists: &[u64], needed: &HashSet<u64>) {
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
