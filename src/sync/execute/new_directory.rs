//! New directories that are assembled below the mount, with all that they will contain, and put into the tree by one rename.
//!
//! The mount is not asked for anything in them before that rename, so the kernel has nothing to forget. If it fails, their
//! contents are staged again.

use super::Executor;
use super::assembly::NewDirectory;
use super::skip::{Skip, Step, changed, refused};
use crate::beneath::Parents;
use crate::sync::adopt::Skipped;
use crate::sync::error::{self, SyncError};
use crate::sync::print::print;
use crate::sync::staging::whole;
use crate::sync::tree::{ContentId, Entry, Kind, STAGING, TreePath, split};
use rustix::fs::{FileType, Mode, RenameFlags};

impl Executor<'_> {
    pub(super) fn begin_directory(&mut self, path: &TreePath) -> Result<(), SyncError> {
        let Some(direct) = self.direct.clone() else { return Ok(()) };
        let at = self.staging.swap_name(self.root)?;
        let parents = Parents::default();
        self.assembled = Some(NewDirectory { direct, path: path.clone(), at, contents: Vec::new(), parents });
        Ok(())
    }

    /// Makes a directory of the one that is being assembled, or this itself.
    pub(super) fn assemble_dir(&mut self, path: &TreePath, entry: &Entry) -> Step {
        let Some(new) = &self.assembled else { return Err(changed()) };
        // The rename would find that out too late.
        if *path == new.path && self.stat(path)?.is_some() {
            return Err(changed());
        }
        let (direct, at) = (new.direct.clone(), new.place(path));
        // It is writable until it has its entries; the last step sets the final mode.
        let entry = Entry { mode: entry.mode | 0o700, ..entry.clone() };
        direct.make_dir(&at, Mode::from_raw_mode(entry.mode.into())).map_err(refused(path, "make"))?;
        self.put_metadata_at(&direct, &at, &entry, FileType::Directory, true)?;
        self.give_owner_of_parent(path, &at, &entry)?;
        self.touch(path);
        self.note_assembled(path, &at, None)
    }

    /// Puts a file or symlink into it.
    pub(super) fn assemble_file(&mut self, path: &TreePath, entry: &Entry) -> Step {
        let Some(new) = &self.assembled else { return Err(changed()) };
        let at = new.place(path);
        self.put_at(&at, path, entry, None)?;
        self.give_owner_of_parent(path, &at, entry)?;
        if let (Kind::File { content, .. }, Some(new)) = (&entry.kind, &mut self.assembled) {
            new.contents.push((*content, at.clone()));
        }
        self.touch(path);
        self.note_assembled(path, &at, entry.kind.content())
    }

    /// Gives the entry at `at`, which will be at `path`, the owner of its directory, if the tree does not have its owner.
    fn give_owner_of_parent(&self, path: &TreePath, at: &TreePath, entry: &Entry) -> Step {
        let Some(new) = self.assembled.as_ref().filter(|_| self.lacks_owner(entry)) else { return Ok(()) };
        let like = match *path == new.path {
            true => self.root.stat(split(path).0),
            false => new.direct.stat(split(at).0),
        };
        self.give_owner_at(&new.direct, at, like.map_err(refused(path, "look at"))?)
    }

    /// Remembers the entry at `at`, which will be at `path`.
    fn note_assembled(&mut self, path: &TreePath, at: &TreePath, content: Option<ContentId>) -> Step {
        let Some(NewDirectory { direct, parents, .. }) = &mut self.assembled else { return Err(changed()) };
        let stat = parents.stat(direct, at).map_err(refused(path, "look at"))?.ok_or_else(changed)?;
        self.prints.insert(path.clone(), print(&stat, content));
        Ok(())
    }

    /// Puts the assembled directory in place. Returns why that was not possible.
    pub(super) fn end_directory(&mut self) -> Result<Option<Skipped>, SyncError> {
        let Some(new) = self.assembled.take() else { return Ok(None) };
        if self.lost.contains_key(&new.path) || !self.prints.contains_key(&new.path) {
            return Ok(None);
        }
        let done = self.root.rename(&new.at, &new.path, RenameFlags::NOREPLACE);
        let done = done.map_err(refused(&new.path, "put in place")).and_then(|()| self.note(&new.path, None));
        let (why, again) = match done {
            Ok(()) => return Ok(None),
            Err(Skip::Fatal(e)) => return Err(e),
            Err(Skip::Changed) => ("changed meanwhile; run the sync again".to_owned(), true),
            Err(Skip::Because(why)) => (why, false),
        };
        // The mount knows no name in it.
        for (content, at) in &new.contents {
            let back = new.direct.rename(at, &whole(*content), RenameFlags::empty());
            back.map_err(|e| error::on("rename", at, e))?;
        }
        let gone = new.direct.remove_all(&new.at);
        gone.map_err(|e| error::on("remove", &new.at, e))?;
        let below = [&new.path[..], b"/"].concat();
        self.prints.retain(|path, _| *path != new.path && !path.starts_with(&below));
        self.lost.insert(new.path.clone(), why.clone());
        Ok(Some(Skipped { path: new.path, why, again }))
    }

    /// Returns whether entries can be assembled at `at`, which the mount does not know, below the mount.
    pub(super) fn is_direct(&self, at: &TreePath) -> bool {
        self.direct.is_some() && (self.assembled.is_some() || split(at).0 == STAGING.as_bytes())
    }
}
