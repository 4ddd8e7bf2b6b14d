//! Records of stubs that are damaged or gone, found again in the catalog or the history.
//!
//! A record is written only to an empty file whose own record is invalid or gone; only if the catalog knew this inode with
//! exactly this mtime in this directory (so that no reused number, and no other user's file, gets another's content); and
//! only after the old record was saved.
//!
//! Without a record, nothing shows that the file was a stub: empty files unpacked with the times of an archive, and with
//! reused numbers, can look the same. So the file must then also have been created no later than its mtime, and no program
//! may have it open.
//!
//! A whole tree that was copied without xattrs has other inodes, which the catalog does not know: for those the history gives
//! the last contents at their paths (`former_by_history`).

use super::Tree;
use super::inode::{Content, Inode, State as InodeState};
use super::observer::Committed;
use crate::backing;
use crate::backing::stub::{State, Stub, StubError, Time, XATTR};
use crate::backing::types::Kind;
use crate::catalog::FileRow;
use crate::contents::error::{OverlayError, Result};
use crate::id::RecipeId;
use rustix::io::Errno;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A file whose record is not valid or is gone, with that record and the last known content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FormerRecord {
    /// The file, below the root.
    pub path: PathBuf,
    /// Its inode number.
    pub inode: u64,
    /// The invalid value of the record; `None` if there is none.
    pub old: Option<Vec<u8>>,
    /// The recipe of its content, in the catalog.
    pub recipe: RecipeId,
    /// Length of that content in bytes.
    pub size: u64,
    /// Source of this knowledge.
    pub known_by: &'static str,
    mtime: Time,
}

/// The catalog's row of a file, and whether it can only be this file.
struct Found {
    former: FormerRecord,
    certain: bool,
}

impl Tree {
    /// Returns the former record of the file at `path` if its record is not valid and the catalog remembers the file, under
    /// the conditions in the header of this module.
    pub fn former_record(&self, path: &Path) -> Result<Option<FormerRecord>> {
        let inode = self.inode_at(path)?;
        let former = self.former_record_of(&inode, &inode.lock(), path);
        self.inodes.release(inode);
        Ok(former?.filter(|found| found.certain).map(|found| found.former))
    }

    /// Returns why an empty plain file without a record is taken for a stub that lost it, if it is.
    pub(crate) fn lost_record(&self, inode: &Inode, path: &Path) -> Result<Option<String>> {
        let found = self.former_record_of(inode, &inode.lock(), path)?;
        Ok(found.filter(|found| found.former.old.is_none()).map(|Found { former, certain }| {
            let doubt = match certain {
                true => "",
                false => ", or this is a new file that was given the number and time of one that is gone: then `touch` it",
            };
            format!(
                "its record is gone: it had {} bytes (recipe {}), and it was not changed since{doubt}",
                former.size, former.recipe
            )
        }))
    }

    /// Writes a new record for a file, after `keep` has saved the old one durably. Returns false if the file has
    /// changed since [`Tree::former_record`] read it.
    pub fn restore_record(
        &self,
        former: &FormerRecord,
        keep: &mut dyn FnMut(&FormerRecord) -> Result<()>,
    ) -> Result<bool> {
        if self.read_only {
            return Err(OverlayError::ReadOnly);
        }
        let inode = self.inode_at(&former.path)?;
        let done = self.restore_record_of(&inode, former, keep);
        self.inodes.release(inode);
        done
    }

    fn restore_record_of(
        &self,
        inode: &Inode,
        former: &FormerRecord,
        keep: &mut dyn FnMut(&FormerRecord) -> Result<()>,
    ) -> Result<bool> {
        let mut state = inode.lock();
        let found = self.former_record_of(inode, &state, &former.path)?;
        if found.is_none_or(|found| found.former != *former || !found.certain) {
            return Ok(false);
        }
        let mut finder = self.catalog.finder(&self.backing);
        let fd = inode.path_fd()?;
        self.prove_inside(inode, &*fd, &mut finder).map_err(|doubt| self.refused(inode, doubt))?;
        keep(former)?;
        let stub = Stub {
            state: State::Settled,
            size: former.size,
            mtime: former.mtime,
            ctime: None,
            stamp_ms: Time::now().millis(),
            blocks: former.size.div_ceil(512),
            recipe: former.recipe,
        };
        self.write_record(inode, &stub)?;
        state.content = Some(Content::Stub(stub));
        state.pages_stale = true;
        Ok(true)
    }

    fn former_record_of(&self, inode: &Inode, state: &InodeState, path: &Path) -> Result<Option<Found>> {
        let fd = inode.path_fd()?;
        let stat = rustix::fs::fstat(&fd)?;
        if stat.st_size != 0 || inode.kind != Kind::File {
            return Ok(None);
        }
        let old = match backing::get_xattr(&fd, OsStr::new(XATTR)) {
            // The file cannot have a record, or its record cannot be read.
            Err(Errno::NOTSUP | Errno::ACCESS) => return Ok(None),
            old => old?,
        };
        match old.as_ref().map(|old| Stub::decode(old, &self.key)) {
            // A program has it open or has changed it: the catalog does not have its present content yet.
            None if state.opens > 0 || state.dirty || state.queued => return Ok(None),
            None | Some(Err(StubError::Guard | StubError::Length | StubError::Field)) => {}
            Some(Ok(_) | Err(StubError::Newer)) => return Ok(None),
        }
        let file = inode.file_id();
        let Some(FileRow { recipe, size, mtime }) = self.catalog.file(file)? else {
            return self.former_by_history(inode, path, &stat, old);
        };
        let dir = path.parent().unwrap_or(Path::new(""));
        let here = self.catalog.is_in(file, crate::id::FileId(self.backing.stat(dir)?.st_ino))?;
        let fits = Stub::fits(size, mtime, mtime) && size > 0;
        if mtime != backing::mtime(&stat) || !here || !fits {
            return self.former_by_history(inode, path, &stat, old);
        }
        // A recipe may be missing only for now: it can come back, and then has to be known as this file's.
        let length = self.contents.store.recipe(&recipe).ok().map(|recipe| recipe.size());
        if length.is_some_and(|length| length != size) {
            return Ok(None);
        }
        // An empty file is better than one that cannot be read.
        let certain =
            old.is_some() || (length.is_some() && backing::birth(&fd)?.is_some_and(|birth| birth <= mtime));
        let (path, inode, known_by) = (path.to_owned(), inode.identity.ino, "the catalog");
        let former = FormerRecord { path, inode, old, recipe, size, known_by, mtime };
        Ok(Some(Found { former, certain }))
    }

    /// Returns the last version of an empty file's path, for a tree that was copied without xattrs and so has other inodes. The
    /// version must be the last event of that path, and the file must have its mtime, or that without fractions of a second,
    /// as archives keep it. A file that was emptied since has another mtime, or a later version.
    fn former_by_history(
        &self,
        inode: &Inode,
        path: &Path,
        stat: &rustix::fs::Stat,
        old: Option<Vec<u8>>,
    ) -> Result<Option<Found>> {
        let last = self.observer().map_or(Ok(None), |observer| observer.last_at(path))?;
        let Some(Committed { recipe, size, meta, .. }) = last else { return Ok(None) };
        let mtime = backing::mtime(stat);
        let same = mtime == meta.mtime || (mtime.nsec == 0 && mtime.sec == meta.mtime.sec);
        let whole = self.contents.store.recipe(&recipe).is_ok_and(|recipe| recipe.size() == size);
        // The owner must match, so that no user gets another user's content by making an empty file at its path.
        let own = stat.st_uid == meta.uid;
        if size == 0 || !same || !own || !whole || !Stub::fits(size, mtime, mtime) {
            return Ok(None);
        }
        let (path, inode, known_by) = (path.to_owned(), inode.identity.ino, "the versions of its path");
        let former = FormerRecord { path, inode, old, recipe, size, known_by, mtime };
        Ok(Some(Found { former, certain: true }))
    }

    fn inode_at(&self, path: &Path) -> Result<Arc<Inode>> {
        self.inodes.enter(&self.backing, self.backing.resolve_named("open", path)?, 0)
    }
}
