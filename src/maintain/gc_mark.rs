//! The mark phase of gc: finds every stub of a tree that changes meanwhile, so that nothing that a file needs
//! is collected.
//!
//! One walk would miss a file that moves from an unread directory into one that was already read. But every
//! added or removed name changes the directory's ctime. So the walk repeats, and reads each directory again
//! whose ctime changed since, until a round finds none. A ctime that is too young to distinguish a later
//! change counts as changed. If a tree never rests, the catalog supplies the rest: it follows inodes,
//! wherever their names are.
//!
//! Invariants: after [`Maintenance::mark`], `keep` has received every stub that had a name throughout, every open
//! stub without a name, and every stub that is being hydrated. Threads that find further ones later report
//! them to the store ([`crate::store::Collection`]).
//!
//! Memory: the names of all directories and about 100 bytes for each; 65,536 paths of files.

use crate::backing;
use crate::backing::CTIME_TICK_MS;
use crate::backing::resolved::{Directory, Resolved};
use crate::backing::stub::{RECORD_LEN, State, Stub, Time, XATTR};
use crate::backing::types::Kind;
use crate::contents::error::{OverlayError, Result};
use crate::id::RecipeId;
use crate::maintain::Maintenance;
use crate::store::{RecipePlace, StoreError};
use crate::tree::inode::Content;
use crate::tree::walk::names_in;
use rustix::io::Errno;
use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Rounds over a tree that does not rest.
const ROUNDS_MAX: usize = 8;

/// Stubs whose recipes are looked up together: about 10 MB with their paths.
const MET_MAX: usize = 1 << 16;

/// Result of marking.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Marked {
    /// Stubs met; some more than once if their directories changed.
    pub stubs: u64,
    /// Files whose record is not valid: their contents are kept as far as they can be determined.
    pub unknown: u64,
    /// Numbers of the extent lists of hybrid files met.
    pub lists: HashSet<u64>,
    /// Whether the last round found nothing new, so that all files were met.
    pub all: bool,
}

/// Gets a recipe that is needed, with its place if that is known.
pub(crate) type Keep<'a> =
    &'a mut dyn FnMut(&RecipeId, Option<RecipePlace>) -> std::result::Result<(), StoreError>;

/// A directory as it was read.
struct Dir {
    ctime: Time,
    /// Whether any later change shows in its ctime.
    settled: bool,
    dirs: Vec<OsString>,
}

struct Marker<'a> {
    overlay: &'a Maintenance,
    keep: Keep<'a>,
    keep_going: &'a mut dyn FnMut(u64) -> bool,
    dirs: HashMap<u64, Dir>,
    changed: bool,
    stopped: bool,
    marked: Marked,
    /// Everything at and below this path is left out.
    except: Option<&'a Path>,
    /// Recipes of stubs that were met and are not kept yet, with a path of the stub.
    met: Vec<(RecipeId, Box<Path>)>,
}

impl Maintenance {
    /// Calls `keep` with each recipe that a file needs. Returns `None` if `keep_going`, which gets the stubs met, returned
    /// false. A file or directory that cannot be read is an error, because its recipes are not known then.
    pub(crate) fn mark(
        &self,
        keep: Keep<'_>,
        keep_going: &mut dyn FnMut(u64) -> bool,
    ) -> Result<Option<Marked>> {
        self.mark_except(None, keep, keep_going)
    }

    /// As [`Maintenance::mark`], but leaves out files with names only at and below `except`; then open files are not marked
    /// separately either.
    pub(crate) fn mark_except(
        &self,
        except: Option<&Path>,
        keep: Keep<'_>,
        keep_going: &mut dyn FnMut(u64) -> bool,
    ) -> Result<Option<Marked>> {
        if except.is_none() {
            self.mark_open(keep)?;
        }
        let mut marker = Marker {
            overlay: self,
            keep,
            keep_going,
            dirs: HashMap::new(),
            changed: true,
            stopped: false,
            marked: Marked::default(),
            except,
            met: Vec::new(),
        };
        for round in 0.. {
            marker.changed = false;
            let root = self.tree.backing.directory()?;
            marker.dir(root, &mut PathBuf::new())?;
            if marker.stopped {
                return Ok(None);
            }
            marker.keep_met()?;
            if marker.stopped {
                return Ok(None);
            }
            if !marker.changed {
                marker.marked.all = true;
                break;
            }
            if round + 1 == ROUNDS_MAX {
                tracing::info!("the tree keeps changing: all contents in the catalog are kept too");
                self.mark_catalog(marker.keep)?;
                break;
            }
            std::thread::sleep(Duration::from_millis(2 * CTIME_TICK_MS as u64));
        }
        Ok(Some(marker.marked))
    }

    /// Marks files that are open, with or without a name, or being written back. Marks hybrid files too: the catalog may know
    /// them as plain.
    fn mark_open(&self, keep: Keep<'_>) -> Result<()> {
        let in_use = self.tree.inodes.collect(|_, state| {
            let in_use = state.opens > 0 || state.is_hydrating();
            match state.content {
                Some(Content::Stub(_)) => in_use,
                Some(Content::Hybrid(_)) => true,
                _ => false,
            }
        });
        for inode in in_use {
            let stub = match inode.lock().content {
                Some(Content::Stub(stub) | Content::Hybrid(stub)) => Some(stub),
                _ => None,
            };
            let kept = stub.map_or(Ok(()), |stub| {
                self.keep_stub(keep, &stub.recipe, || self.tree.name_of(&inode).into())
            });
            self.tree.inodes.release(inode);
            kept?;
        }
        Ok(())
    }

    fn mark_catalog(&self, keep: Keep<'_>) -> Result<()> {
        let mut failed = None;
        self.catalog.for_each(|_, row| {
            match keep(&row.recipe, None) {
                // The content of a plain file need not be stored.
                Ok(()) | Err(StoreError::Missing { .. }) => {}
                Err(e) => failed = Some(e),
            }
            failed.is_none()
        })?;
        failed.map_or(Ok(()), |e| Err(e.into()))
    }

    fn keep_stub(&self, keep: Keep<'_>, recipe: &RecipeId, path: impl FnOnce() -> PathBuf) -> Result<()> {
        keep(recipe, None).map_err(|source| OverlayError::Unsure { path: path(), source })
    }
}

impl Marker<'_> {
    fn dir(&mut self, dir: Directory, path: &mut PathBuf) -> Result<()> {
        let stat = rustix::fs::fstat(&dir)?;
        let (ctime, now) = (backing::ctime(&stat), Time::now().millis());
        let known = self.dirs.get(&stat.st_ino);
        let unchanged = known.is_some_and(|known| known.settled && known.ctime == ctime);
        if !unchanged {
            self.changed = true;
            let settled = ctime.millis() < now - CTIME_TICK_MS;
            // Remembered before it is read: a change during the read moves its ctime on.
            let dirs = self.read(&dir, path)?;
            self.dirs.insert(stat.st_ino, Dir { ctime, settled, dirs });
        }
        let dirs = self.dirs.get(&stat.st_ino).map(|known| known.dirs.clone()).unwrap_or_default();
        for name in dirs {
            if self.stopped {
                break;
            }
            path.push(&name);
            let inner = dir.child(&name).and_then(|found| match found.kind() {
                Kind::Directory => found.open_dir().map(Some),
                _ => Ok(None),
            });
            match inner {
                Ok(Some(inner)) => self.dir(inner, path)?,
                Ok(None) | Err(Errno::XDEV) => {}
                Err(Errno::NOENT) => self.changed = true,
                Err(e) => return Err(OverlayError::io("read", path.clone(), e)),
            }
            path.pop();
        }
        Ok(())
    }

    /// Marks the files of a directory; returns the names of those in it.
    fn read(&mut self, dir: &Directory, path: &Path) -> Result<Vec<OsString>> {
        let failed = |name: &OsString, e: Errno| OverlayError::io("read", path.join(name), e);
        let names = names_in(dir).map_err(|e| OverlayError::io("read", path, e))?;
        let mut dirs = Vec::new();
        for name in names {
            if path.as_os_str().is_empty() && backing::is_hidden(&name) {
                continue;
            }
            let found = match dir.child(&name) {
                Ok(found) => found,
                Err(Errno::NOENT | Errno::XDEV) => continue,
                Err(e) => return Err(failed(&name, e)),
            };
            if self.except.is_some_and(|except| path.join(&name) == except) {
                continue;
            }
            match found.kind() {
                Kind::Directory => dirs.push(name),
                // A stub is empty; but one that is being written back is not.
                Kind::File => self.file(found, &path.join(&name))?,
                _ => {}
            }
            if self.stopped {
                break;
            }
        }
        Ok(dirs)
    }

    fn file(&mut self, found: Resolved, path: &Path) -> Result<()> {
        let overlay = self.overlay;
        let inode = overlay.tree.inodes.enter(&overlay.tree.backing, found, 0)?;
        let found = overlay.tree.lock_loaded(&inode).map(|state| (state.content, state.hot_record()));
        if let Ok((_, Some(record))) = found {
            self.hot(&record)?;
        }
        let done = match found.map(|(content, _)| content) {
            Ok(Some(Content::Stub(stub) | Content::Hybrid(stub))) => {
                self.marked.stubs += 1;
                self.list(&stub);
                self.stopped |= !(self.keep_going)(self.marked.stubs);
                self.met.push((stub.recipe, path.into()));
                if self.met.len() >= MET_MAX { self.keep_met() } else { Ok(()) }
            }
            Ok(Some(Content::Unknown(reason))) => {
                tracing::warn!(
                    "{}: {reason}: its contents are kept as far as they are known",
                    path.display()
                );
                self.marked.unknown += 1;
                self.unknown(&inode, path)
            }
            Ok(_) => Ok(()),
            Err(e) => Err(OverlayError::Unreadable { path: path.to_owned(), reason: e.to_string() }),
        };
        overlay.tree.inodes.release(inode);
        done
    }

    /// Keeps the recipes that were met: looked up in the order of the index, read in that of the packs.
    fn keep_met(&mut self) -> Result<()> {
        let mut met = std::mem::take(&mut self.met);
        met.sort_unstable_by_key(|(id, _)| *id);
        met.dedup_by_key(|(id, _)| *id);
        let ids: Vec<_> = met.iter().map(|(id, _)| *id).collect();
        // If the index fails, a look-up of each says which file it is.
        let places = self.overlay.contents.store.find_recipes(&ids).unwrap_or_else(|_| vec![None; ids.len()]);
        let mut met: Vec<_> = met.into_iter().zip(places).collect();
        met.sort_by_key(|(_, place)| place.map(|place| place.order()));
        for (done, ((id, path), place)) in met.into_iter().enumerate() {
            if done % 1024 == 0 && !(self.keep_going)(self.marked.stubs & !255) {
                self.stopped = true;
                return Ok(());
            }
            (self.keep)(&id, place)
                .map_err(|source| OverlayError::Unsure { path: path.into_path_buf(), source })?;
        }
        Ok(())
    }

    /// Marks the content of a hot file: it becomes a stub again, and snapshots treat it as one.
    fn hot(&mut self, record: &Stub) -> Result<()> {
        match (self.keep)(&record.recipe, None) {
            Ok(()) | Err(StoreError::Missing { .. } | StoreError::Damaged { .. }) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    fn list(&mut self, record: &Stub) {
        if let State::Hybrid { list } = record.state {
            self.marked.lists.insert(list);
        }
    }

    /// Marks for a record that is not valid: it may still name the right recipe, and the catalog may know it.
    fn unknown(&mut self, inode: &crate::tree::Inode, path: &Path) -> Result<()> {
        let mut record = [0; RECORD_LEN];
        let read = rustix::fs::getxattr(backing::proc_path(&inode.path_fd()?), XATTR, &mut record[..]);
        if read.is_ok() && crate::backing::stub::is_newer(&record) {
            // A newer format may name its contents in a way that this program does not know.
            let reason = "its record was written by a newer version of dedupfs".to_owned();
            return Err(OverlayError::Unreadable { path: path.to_owned(), reason });
        }
        // The extent list is kept, even if it is not valid itself.
        if let Ok(record) = Stub::decode(&record, &self.overlay.tree.key) {
            self.list(&record);
        }
        let named = (read == Ok(RECORD_LEN)).then(|| crate::backing::stub::claimed_recipe(&record));
        let known = self.overlay.catalog.file(inode.file_id())?.map(|row| row.recipe);
        for recipe in named.into_iter().chain(known) {
            match (self.keep)(&recipe, None) {
                Ok(()) | Err(StoreError::Missing { .. } | StoreError::Damaged { .. }) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::maintain::gc_mark::*;
    use crate::overlay::testing::World;

    /// The catalog knows a hybrid file as plain, so a tree that never rests finds it here.
    #[test]
    fn a_hybrid_file_is_marked_while_nobody_has_it_open() {
        let world = World::new();
        let inode = world.stub("file", &vec![7; 50_000]);
        let marked = || {
            let mut marked = Vec::new();
            let mut keep = |recipe: &RecipeId, _| {
                marked.push(*recipe);
                Ok(())
            };
            world.overlay.maintenance.mark_open(&mut keep).unwrap();
            marked
        };
        assert_eq!(marked(), [], "a stub that nobody has open");
        let content = inode.lock().content;
        let Some(Content::Stub(stub)) = content else { panic!("a stub") };
        inode.lock().content = Some(Content::Hybrid(stub));
        assert_eq!(marked(), [stub.recipe]);
        world.overlay.tree.inodes.release(inode);
    }
}
