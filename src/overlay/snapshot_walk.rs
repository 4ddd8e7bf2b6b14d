//! Reads a directory for a snapshot: names, attributes, and the location of contents. Changes nothing in the
//! tree.

use super::inode::{Content, Inode, State as InodeState};
use super::observe::Meta;
use super::scan::names_in;
use super::sparse::FileBytes;
use super::{Overlay, file};
use crate::backing;
use crate::backing::resolved::Resolved;
use crate::backing::stub::Time;
use crate::backing::types::Kind;
use crate::contents::collection::Stored;
use crate::contents::error::{OverlayError, Result};
use crate::contents::ingest::Round;
use crate::id::{FileId, RecipeId};
use crate::recipe::Recipe;
use crate::similarity::exact::Source;
use rustix::fs::{OFlags, Stat};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// All xattrs of a file that a snapshot takes, in bytes: Linux allows 64 KiB for each value.
const XATTR_BYTES_MAX: usize = 1 << 20;

/// A file that is open for writing for longer is not being saved: it is a log or a database.
const SAVE_MAX: Duration = Duration::from_secs(2);

/// State of a regular file's content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Held {
    /// It has none.
    Empty,
    /// In the store.
    Stored {
        /// The content.
        recipe: RecipeId,
        /// Its length in bytes.
        size: u64,
    },
    /// In the file, and no process has it open for writing.
    Plain,
    /// A process has it open for writing, or mapped.
    Open {
        /// Whether that is a save: it was opened a moment ago, and its former content is not in the store.
        save: bool,
    },
    /// Could not be determined; the text says why.
    Unknown(String),
}

/// An entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Met {
    /// Its name.
    pub name: OsString,
    /// Its type.
    pub kind: Kind,
    /// Its inode.
    pub file: FileId,
    /// Number of names.
    pub nlink: u64,
    /// Device number, for devices.
    pub rdev: u64,
    /// Length of the backing file; for a plain file, of the content.
    pub bytes: u64,
    /// When the backing file was last changed in any way. No program can set it.
    pub ctime: Time,
    /// The content, for a regular file.
    pub held: Held,
    /// The target, for a symlink.
    pub target: Vec<u8>,
    /// Owner, mode, xattrs and times.
    pub meta: Meta,
}

impl Overlay {
    /// Returns the entry at `path` below the root, if there is one.
    pub fn snapshot_at(&self, path: &Path) -> Result<Option<Met>> {
        let name = path.file_name().unwrap_or_default();
        match self.backing.resolve_if_any("open", path)? {
            Some(found) => self.snapshot_entry(found, name),
            None => Ok(None),
        }
    }

    /// Returns the names in the directory at `path` below the root, sorted; `None` if there is no such directory. Leaves
    /// out hidden names and names on other filesystems.
    pub fn snapshot_names(&self, path: &Path) -> Result<Option<Vec<OsString>>> {
        let failed = |e| OverlayError::io("read", path, e);
        let found = self.backing.resolve_if_any("read", path)?;
        let Some(found) = found.filter(|found| found.kind() == Kind::Directory) else { return Ok(None) };
        let mut names = names_in(found.open_dir().map_err(failed)?).map_err(failed)?;
        if path.as_os_str().is_empty() {
            names.retain(|name| !backing::is_hidden(name));
        }
        Ok(Some(names))
    }

    /// Describes `found`; `None` if its last name was removed since.
    fn snapshot_entry(&self, found: Resolved, name: &OsStr) -> Result<Option<Met>> {
        let kind = found.kind();
        let target = match kind {
            Kind::Symlink => rustix::fs::readlinkat(&found, "", Vec::new())?.into_bytes(),
            _ => Vec::new(),
        };
        let inode = self.inodes.enter(&self.backing, found, 0)?;
        let met = self.snapshot_inode(&inode, name, kind, target);
        self.inodes.release(inode);
        unless_removed(met)
    }

    fn snapshot_inode(
        &self,
        inode: &Inode,
        name: &OsStr,
        kind: Kind,
        target: Vec<u8>,
    ) -> Result<Option<Met>> {
        let (held, stat) = match kind {
            Kind::File => self.held(inode)?,
            _ => (Held::Empty, rustix::fs::fstat(&inode.path_fd()?)?),
        };
        let meta = match kind {
            // Symlinks have no xattrs that users may set, and no path in /proc to ask for them.
            Kind::Symlink => Meta {
                mode: stat.st_mode & 0o7777,
                uid: stat.st_uid,
                gid: stat.st_gid,
                mtime: backing::mtime(&stat),
                xattrs: Some(Vec::new()),
            },
            _ => self.meta_of(inode, &stat, XATTR_BYTES_MAX)?,
        };
        Ok(Some(Met {
            name: name.to_owned(),
            kind,
            file: inode.file_id(),
            nlink: stat.st_nlink,
            rdev: stat.st_rdev,
            bytes: stat.st_size as u64,
            ctime: backing::ctime(&stat),
            held,
            target,
            meta,
        }))
    }

    fn held(&self, inode: &Inode) -> Result<(Held, Stat)> {
        let mut state = self.lock_loaded(inode)?;
        let mut stat = rustix::fs::fstat(&inode.path_fd()?)?;
        let content = state.content;
        let save = state.overwritten_since.is_some_and(|since| since.elapsed() < SAVE_MAX);
        let held = match content {
            Some(Content::Stub(stub)) => {
                if state.is_hydrating() {
                    (stat.st_mtime, stat.st_mtime_nsec) = (stub.mtime.sec, stub.mtime.nsec.into());
                }
                Held::Stored { recipe: stub.recipe, size: stub.size }
            }
            Some(Content::Unknown(reason)) => Held::Unknown(reason.to_owned()),
            Some(Content::Hybrid(_)) => Held::Open { save },
            _ if let Some((recipe, size)) = self.held_hot(&state, &stat) => Held::Stored { recipe, size },
            _ if state.writers > 0 || file::may_be_mapped(inode, &mut state) => Held::Open { save },
            _ if stat.st_size == 0 => Held::Empty,
            _ => Held::Plain,
        };
        Ok((held, stat))
    }

    /// Returns the content of an unchanged hot file, which a collection keeps.
    fn held_hot(&self, state: &InodeState, stat: &Stat) -> Option<(RecipeId, u64)> {
        let record = state.hot_record().filter(|_| state.writers == 0)?;
        let unchanged = record.is_of(backing::mtime(stat), stat.st_size as u64);
        let stored = unchanged && self.contents.store.knows_recipe(&record.recipe).unwrap_or(false);
        stored.then_some((record.recipe, record.size))
    }

    /// As [`Overlay::store_all_plain`], of one file.
    pub fn store_plain(&self, path: &Path) -> Result<Option<(RecipeId, u64)>> {
        Ok(self.store_all_plain(&[path])?.pop().flatten())
    }

    /// Stores the contents of plain files, which stay plain. Returns recipe and length of each; `None` for a file that
    /// another process has open or that was removed. The caller holds a pin of the store until a collection can find the recipes.
    ///
    /// The files share the fixed cost of a round. Each has a descriptor meanwhile, so `paths` should have a few hundred at most.
    pub fn store_all_plain(&self, paths: &[&Path]) -> Result<Vec<Option<(RecipeId, u64)>>> {
        let mut round = self.contents.ingest.round(true);
        let mut begun = Vec::with_capacity(paths.len());
        for path in paths {
            begun.push(
                unless_removed(self.read_plain(path, &mut round).map(Some))?.unwrap_or(Begun::Known(None)),
            );
        }
        let chunks = round.finish()?;
        let mut writer = self.contents.store.writer();
        let mut recipes = Vec::with_capacity(begun.len());
        for one in &begun {
            recipes.push(match one {
                Begun::Read(read) => {
                    let recipe = Recipe::new(chunks[read.slots.clone()].to_vec());
                    Some((writer.put_recipe(&recipe)?, recipe.size()))
                }
                Begun::Known(known) => *known,
            });
        }
        writer.flush()?;
        let end = |(one, stored): (Begun, Option<(RecipeId, u64)>)| match one {
            Begun::Read(read) => self.still_plain(read, stored),
            Begun::Known(known) => Ok(known),
        };
        begun.into_iter().zip(recipes).map(end).collect()
    }

    /// Reads a plain file into a round.
    fn read_plain(&self, path: &Path, round: &mut Round<'_>) -> Result<Begun<'_>> {
        let Some(found) = self.backing.resolve_if_any("open", path)? else { return Ok(Begun::Known(None)) };
        let inode = Entered { overlay: self, inode: self.inodes.enter(&self.backing, found, 0)? };
        let file = {
            let mut state = self.lock_loaded(&inode.inode)?;
            if let Some(Content::Stub(stub)) = state.content {
                return Ok(Begun::Known(Some((stub.recipe, stub.size))));
            }
            // Its lease would block our open; the conversion is tried again.
            state.interrupt_conversion();
            if state.writers > 0 || !matches!(state.content, Some(Content::Plain(_))) {
                return Ok(Begun::Known(None));
            }
            match backing::open_quietly(&inode.inode.path_fd()?, OFlags::RDONLY) {
                // A process has a lease on it through the backing directory.
                Err(Errno::AGAIN) => return Ok(Begun::Known(None)),
                opened => opened?,
            }
        };
        let stat = rustix::fs::fstat(&file)?;
        let before = version(&stat);
        round.set_indexing(self.policies().of(path).similarity);
        let read = round.add_from(true, &mut FileBytes::new(&file, &stat, 0));
        let slots = read.map_err(|e| OverlayError::io("read", path, e))?;
        Ok(Begun::Read(PlainRead { inode, file, before, slots }))
    }

    /// Returns the stored content if the file has not changed since it was read.
    fn still_plain(
        &self,
        read: PlainRead<'_>,
        stored: Option<(RecipeId, u64)>,
    ) -> Result<Option<(RecipeId, u64)>> {
        let PlainRead { inode, file, before, .. } = read;
        // A file that became a stub meanwhile is empty, so the bytes read may be too few.
        let state = self.lock_loaded(&inode.inode)?;
        if let Some(Content::Stub(stub)) = state.content {
            return Ok(Some((stub.recipe, stub.size)));
        }
        let same = version(&rustix::fs::fstat(&file)?) == before && state.writers == 0;
        Ok(stored.filter(|(_, size)| same && *size == before.2))
    }

    /// The content of a recipe, to be compared.
    pub fn stored_source(&self, recipe: &RecipeId) -> Result<Box<dyn Source>> {
        Ok(Box::new(Stored::of(&self.contents.store, self.contents.store.recipe(recipe)?)))
    }

    /// Returns whether nothing may be changed.
    pub fn read_only(&self) -> bool {
        self.read_only
    }
}

/// Turns ESTALE into `None`: the last name was removed, and a file that waits to be committed has no descriptor then.
fn unless_removed<T>(found: Result<Option<T>>) -> Result<Option<T>> {
    match found {
        Err(OverlayError::Os(Errno::STALE)) => Ok(None),
        found => found,
    }
}

/// A file that is being stored.
enum Begun<'a> {
    /// Nothing left to read.
    Known(Option<(RecipeId, u64)>),
    Read(PlainRead<'a>),
}

struct PlainRead<'a> {
    inode: Entered<'a>,
    file: File,
    before: (Time, Time, u64),
    /// Its chunks in the round.
    slots: Range<usize>,
}

/// Releases an inode when dropped.
struct Entered<'a> {
    overlay: &'a Overlay,
    inode: Arc<Inode>,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        self.overlay.inodes.release(self.inode.clone());
    }
}

fn version(stat: &Stat) -> (Time, Time, u64) {
    (backing::mtime(stat), backing::ctime(stat), stat.st_size as u64)
}

#[cfg(test)]
mod tests {
    use super::super::testing::World;
    use super::*;

    /// A program saves a file by renaming over it, and a snapshot meets the old one in between.
    #[test]
    fn a_file_removed_since_it_was_found_is_left_out() {
        let world = World::new();
        let path = world.temp.path().join("root/file");
        std::fs::write(&path, "content").unwrap();
        let inode = world.inode("file");
        inode.lock().queued = true;
        let found = world.overlay.backing.resolve(Path::new("file")).unwrap();
        std::fs::remove_file(&path).unwrap();
        world.overlay.inodes.forget(inode.node, 1);
        world.overlay.inodes.lost_last_name(&inode);
        let met = world.overlay.snapshot_entry(found, OsStr::new("file"));
        assert_eq!(inode.path_fd().err(), Some(Errno::STALE), "it has a descriptor");
        assert_eq!(met.unwrap(), None);
    }
}
