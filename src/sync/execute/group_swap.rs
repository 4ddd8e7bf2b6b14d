//! Replacement of a group as a whole, or not at all.
//!
//! A directory is assembled outside the tree, from unchanged files (as hard links) and staged ones. One
//! rename exchanges it with the old one, which is then examined once more, and put back if anything in it
//! differs. The files of a database are replaced one after the other, the ones next to the old database
//! first; a failure undoes the finished steps. A directory that replaces a database, or is replaced by one,
//! counts as one of those files: it is assembled first, and exchanged by one rename.

use super::skip::{Skip, Step, changed, refused};
use super::{Executor, file_type};
use crate::sync::error;
use crate::sync::group::{BESIDE, ITSELF, Rows, stays};
use crate::sync::print::{ino, print};
use crate::sync::tree::{ContentId, Entry, Ident, STAGING, TreePath, join, split};
use crate::sync::wal_index::{SUFFIX, is_wal_index};
use rustix::fs::{AtFlags, FileType, Gid, Mode, RenameFlags, Timespec, Timestamps, Uid};
use std::collections::BTreeMap;

/// A rename that was done.
struct Done {
    from: TreePath,
    to: TreePath,
    flags: RenameFlags,
}

fn at(path: &TreePath, suffix: &[u8]) -> TreePath {
    [&path[..], suffix].concat()
}

/// Returns the names that a group takes in its directory.
fn names(rows: &Rows) -> Rows {
    let is_name = |suffix: &Vec<u8>| suffix[..] == *ITSELF || !is_dir(rows);
    rows.iter()
        .filter(|(suffix, _)| is_name(suffix))
        .map(|(suffix, row)| (suffix.clone(), row.clone()))
        .collect()
}

fn is_dir(rows: &Rows) -> bool {
    rows.get(ITSELF).is_some_and(|row| row.kind.is_dir())
}

fn holds_others() -> Skip {
    Skip::Because("it holds files that are not synced: move them away".to_owned())
}

impl Executor<'_> {
    pub(super) fn group(&mut self, path: &TreePath, was: &Rows, is: &Rows) -> Step {
        let stays = |(suffix, row): (&Vec<u8>, &Entry)| is.get(suffix).is_some_and(|is| stays(row, is));
        if was.len() == is.len() && was.iter().all(stays) {
            return self.set_owners(path, was, is);
        }
        match (is_dir(was), is_dir(is)) {
            (false, false) => self.put_files(path, was, is),
            // A database replaces a directory, or a directory replaces a database.
            _ if was.len() > 1 && !is_dir(was) || is.len() > 1 && !is_dir(is) => {
                self.put_files(path, was, is)
            }
            _ => self.put_directory(path, was, is),
        }
    }

    /// Sets owners and ACLs in a group in which nothing else differs.
    fn set_owners(&mut self, path: &TreePath, was: &Rows, is: &Rows) -> Step {
        let differs = |(suffix, row): &(&Vec<u8>, &Entry)| !self.owners.are_same(&was[*suffix], row);
        for (suffix, row) in is.iter().filter(differs).collect::<Vec<_>>() {
            let path = at(path, suffix);
            self.check(&path, &was[suffix])?;
            self.put_metadata(&path, row, file_type(&row.kind))?;
            self.touch(&path);
            self.note(&path, row.kind.content())?;
        }
        Ok(())
    }

    /// Verifies that a group is the examined one. Returns its entries that are not synced.
    fn check_rows(&self, path: &TreePath, was: &Rows) -> Result<Vec<Vec<u8>>, Skip> {
        for (suffix, row) in was {
            self.check(&at(path, suffix), row)?;
        }
        self.others(path, was)
    }

    /// Returns the entries of a group that were not examined. Fails if one of them is synced.
    fn others(&self, path: &TreePath, was: &Rows) -> Result<Vec<Vec<u8>>, Skip> {
        let mut others = Vec::new();
        if !is_dir(was) {
            for suffix in BESIDE.iter().filter(|suffix| !was.contains_key(**suffix)) {
                let there = at(path, suffix);
                let new = self.stat(&there)?.is_some() && !self.is_left_out(&there, &there)?;
                if was.contains_key(ITSELF) && new {
                    return Err(changed());
                }
            }
            return Ok(others);
        }
        for (dir, _) in was.iter().filter(|(_, row)| row.kind.is_dir()) {
            for name in self.root.list(&at(path, dir)).map_err(refused(path, "read"))? {
                let suffix = [&dir[..], b"/", &name].concat();
                if was.contains_key(&suffix) {
                    continue;
                }
                let there = at(path, &suffix);
                if !self.is_left_out(&there, &there)? {
                    return Err(changed());
                }
                others.push(suffix);
            }
        }
        Ok(others)
    }

    /// Returns whether the group at `out` is the one examined at `path`.
    fn is_still(&self, out: &TreePath, path: &TreePath, was: &Rows) -> Result<bool, Skip> {
        for (suffix, row) in was {
            let same = match row.kind.is_dir() {
                true => {
                    let ino = self.stat(&at(out, suffix))?.map(|stat| ino(&stat));
                    ino == self.prints.get(&at(path, suffix)).map(|known| known.ino)
                }
                false => self.is_what_was(&at(out, suffix), &at(path, suffix))?,
            };
            if !same {
                return Ok(false);
            }
        }
        // Whether an entry is synced depends on its path.
        let seen = |suffix: &Vec<u8>| was.contains_key(suffix);
        for (dir, _) in was.iter().filter(|(_, row)| row.kind.is_dir()) {
            for name in self.root.list(&at(out, dir)).map_err(refused(path, "read"))? {
                let suffix = [&dir[..], b"/", &name].concat();
                if !seen(&suffix) && !self.is_left_out(&at(path, &suffix), &at(out, &suffix))? {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    fn put_directory(&mut self, path: &TreePath, was: &Rows, is: &Rows) -> Step {
        let others = match was.is_empty() {
            true if self.stat(path)?.is_some() => return Err(changed()),
            true => Vec::new(),
            false => self.check_rows(path, was)?,
        };
        if !others.is_empty() && !is.is_empty() && !is_dir(is) {
            return Err(holds_others());
        }
        let new = self.staging.swap_name(self.root)?;
        let mut staged = Vec::new();
        if let Err(e) = self.build(&new, path, was, is, &mut staged) {
            self.unbuild(&new, &staged)?;
            return Err(e);
        }
        #[cfg(test)]
        self.between.iter_mut().for_each(|happens| happens(path));
        let (from, to, flags) = match (was.is_empty(), is.is_empty()) {
            (true, _) => (&new, path, RenameFlags::NOREPLACE),
            (_, true) => (path, &new, RenameFlags::NOREPLACE),
            _ => (&new, path, RenameFlags::EXCHANGE),
        };
        if let Err(e) = self.root.rename(from, to, flags) {
            self.unbuild(&new, &staged)?;
            return Err(refused(path, "put in place")(e));
        }
        if !was.is_empty() && !self.is_still(&new, path, was)? {
            self.root.rename(to, from, flags).map_err(refused(path, "put back"))?;
            self.unbuild(&new, &staged)?;
            return Err(changed());
        }
        self.touch(path);
        for suffix in &others {
            self.keep(&new, path, suffix)?;
        }
        if !was.is_empty() {
            self.remove_all(&new)?;
        }
        // They get their times after the last step.
        let dirs = is.iter().filter(|(_, row)| row.kind.is_dir()).map(|(suffix, _)| at(path, suffix));
        self.touched.extend(dirs);
        self.note_rows(path, was, is)
    }

    /// Assembles the group for `path` at `new`.
    fn build(
        &mut self,
        new: &TreePath,
        path: &TreePath,
        was: &Rows,
        is: &Rows,
        staged: &mut Vec<(TreePath, ContentId)>,
    ) -> Step {
        let mut links: BTreeMap<Ident, TreePath> = BTreeMap::new();
        // The owner of a new group is that of its directory.
        let like = if self.stat(path)?.is_some() { &path[..] } else { split(path).0 };
        for (suffix, row) in is {
            let to = at(new, suffix);
            let (dir, name) = self.root.parent(&to).map_err(refused(path, "open"))?;
            let old = was.get(suffix).filter(|old| stays(old, row) && !row.kind.is_dir());
            let link = links.get(&row.ident).cloned().or_else(|| old.map(|_| at(path, suffix)));
            if let Some(link) = link.filter(|_| row.kind.content().is_some()) {
                let (from_dir, from) = self.root.parent(&link).map_err(refused(path, "open"))?;
                rustix::fs::linkat(from_dir, from, dir, name, AtFlags::empty())
                    .map_err(refused(path, "link"))?;
                if old.is_some_and(|old| !self.owners.are_same(old, row)) {
                    self.put_metadata(&to, row, FileType::RegularFile)?;
                }
            } else if row.kind.is_dir() {
                let mode = Mode::from_raw_mode(u32::from(row.mode) | 0o700);
                rustix::fs::mkdirat(&dir, name, mode).map_err(refused(path, "make"))?;
                self.give_owner(&to, row, like)?;
            } else {
                self.put_at(&to, &to, row, None)?;
                self.give_owner(&to, row, like)?;
                staged.extend(row.kind.content().map(|content| (to.clone(), content)));
            }
            if !row.kind.is_dir() {
                links.entry(row.ident).or_insert(to);
            }
        }
        for (suffix, row) in is.iter().rev().filter(|(_, row)| row.kind.is_dir()) {
            let dir = at(new, suffix);
            self.root.sync_dir(&dir).map_err(|e| error::on("sync", &dir, e))?;
            self.put_metadata(&dir, row, FileType::Directory)?;
            self.keep_time(&dir, &at(path, suffix))?;
        }
        Ok(())
    }

    /// Gives a new directory the time of the one that it replaces.
    fn keep_time(&self, new: &TreePath, old: &TreePath) -> Step {
        let Some(stat) = self.stat(old)? else { return Ok(()) };
        let mtime = print(&stat, None).mtime;
        let omit = Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT };
        let time = Timespec { tv_sec: mtime.0, tv_nsec: mtime.1.into() };
        let (dir, name) = self.root.parent(new).map_err(refused(new, "open"))?;
        let times = Timestamps { last_access: omit, last_modification: time };
        rustix::fs::utimensat(dir, name, &times, AtFlags::SYMLINK_NOFOLLOW)
            .map_err(refused(new, "set the time of"))
    }

    /// Removes an assembled group; its contents are staged again.
    fn unbuild(&mut self, new: &TreePath, staged: &[(TreePath, ContentId)]) -> Step {
        for (from, content) in staged {
            self.stage_again(from, *content)?;
        }
        self.remove_all(new)
    }

    /// Moves an entry that is not synced from the old group to its place in the new one.
    fn keep(&mut self, old: &TreePath, path: &TreePath, suffix: &[u8]) -> Step {
        let mut made = path.clone();
        for name in suffix.split(|byte| *byte == b'/').skip(1) {
            if self.stat(&made)?.is_none() {
                let (dir, last) = self.root.parent(&made).map_err(refused(path, "open"))?;
                let mode = Mode::from_raw_mode(0o755);
                rustix::fs::mkdirat(&dir, last, mode).map_err(refused(path, "make"))?;
                let was = self.stat(&at(old, &made[path.len()..]))?;
                if let Some(was) = was.filter(|_| self.owners.sees.owner) {
                    let (uid, gid) = (Uid::from_raw(was.st_uid), Gid::from_raw(was.st_gid));
                    rustix::fs::chownat(dir, last, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)
                        .map_err(refused(path, "set the owner of a directory of"))?;
                }
            }
            made = join(&made, name);
        }
        self.root.rename(&at(old, suffix), &made, RenameFlags::NOREPLACE).map_err(refused(path, "put back"))
    }

    /// Removes an entry of the staging directory, with all entries below it.
    fn remove_all(&mut self, path: &TreePath) -> Step {
        self.root.remove_all(path).map_err(refused(path, "remove"))
    }

    fn note_rows(&mut self, path: &TreePath, was: &Rows, is: &Rows) -> Step {
        for suffix in was.keys() {
            self.prints.remove(&at(path, suffix));
        }
        is.iter().try_for_each(|(suffix, row)| self.note(&at(path, suffix), row.kind.content()))
    }

    /// Replaces the files of a database. A directory may take the place of one of them.
    fn put_files(&mut self, path: &TreePath, was: &Rows, is: &Rows) -> Step {
        if !self.check_rows(path, was)?.is_empty() {
            return Err(holds_others());
        }
        let mut staged = Vec::new();
        let mut new: BTreeMap<Vec<u8>, TreePath> = BTreeMap::new();
        if let Err(e) = self.prepare_files(path, was, is, &mut new, &mut staged) {
            self.undo(path, &[], &staged)?;
            self.remove_directory(&new, is)?;
            return Err(e);
        }
        #[cfg(test)]
        self.between.iter_mut().for_each(|happens| happens(path));
        let mut done = Vec::new();
        let put = self.put_in_place(path, &names(was), &names(is), &new, &mut done);
        // The entry that was taken out is at the other end of the rename.
        let mut out = Vec::new();
        for Done { from, to, flags } in &done {
            match *flags == RenameFlags::EXCHANGE {
                true => out.push((from.clone(), to.clone())),
                false if to.starts_with(STAGING.as_bytes()) => out.push((to.clone(), from.clone())),
                false => {}
            }
        }
        let mut same = put.is_ok();
        for (out, from) in &out {
            same = same
                && match is_dir(was) {
                    true => self.is_still(out, from, was)?,
                    false => self.is_what_was(out, from)?,
                };
        }
        if !same {
            self.undo(path, &done, &staged)?;
            self.remove_directory(&new, is)?;
            return Err(put.err().unwrap_or_else(changed));
        }
        out.iter().try_for_each(|(out, _)| self.remove_all(out))?;
        // This index belongs to the old database; the program that opens the new one creates its own.
        let index = at(path, SUFFIX);
        if self.stat(&index)?.is_some_and(|stat| is_wal_index(self.root, &index, &stat)) {
            self.root.remove(&index, false).map_err(refused(&index, "remove"))?;
        }
        self.touch(path);
        self.note_rows(path, was, is)?;
        if is_dir(is) {
            return Ok(());
        }
        let kept = |(suffix, row): &(&Vec<u8>, &Entry)| was.get(*suffix).is_some_and(|was| stays(was, row));
        let (was, is): (Rows, Rows) = is
            .iter()
            .filter(kept)
            .map(|(suffix, row)| ((suffix.clone(), was[suffix].clone()), (suffix.clone(), row.clone())))
            .unzip();
        self.set_owners(path, &was, &is)
    }

    /// Assembles new entries in the staging directory; `new` gets their paths, by suffix. `staged` gets the contents
    /// that this takes.
    fn prepare_files(
        &mut self,
        path: &TreePath,
        was: &Rows,
        is: &Rows,
        new: &mut BTreeMap<Vec<u8>, TreePath>,
        staged: &mut Vec<(TreePath, ContentId)>,
    ) -> Step {
        if is_dir(is) {
            let dir = self.staging.swap_name(self.root)?;
            new.insert(ITSELF.to_vec(), dir.clone());
            return self.build(&dir, path, &Rows::new(), is, staged);
        }
        for (suffix, row) in
            is.iter().filter(|(suffix, row)| was.get(*suffix).is_none_or(|was| !stays(was, row)))
        {
            let to = self.prepare(&at(path, suffix), row, None)?;
            let like = if self.stat(path)?.is_some() { &path[..] } else { split(path).0 };
            self.give_owner(&to, row, like)?;
            staged.extend(row.kind.content().map(|content| (to.clone(), content)));
            new.insert(suffix.clone(), to);
        }
        Ok(())
    }

    /// Removes the assembled directory if it was not put in place.
    fn remove_directory(&mut self, new: &BTreeMap<Vec<u8>, TreePath>, is: &Rows) -> Step {
        match new.get(ITSELF) {
            Some(dir) if is_dir(is) => self.remove_all(dir),
            _ => Ok(()),
        }
    }

    fn put_in_place(
        &mut self,
        path: &TreePath,
        was: &Rows,
        is: &Rows,
        new: &BTreeMap<Vec<u8>, TreePath>,
        done: &mut Vec<Done>,
    ) -> Step {
        let mut rename = |executor: &mut Self, from: TreePath, to: TreePath, flags| {
            executor.root.rename(&from, &to, flags).map_err(refused(path, "put in place"))?;
            done.push(Done { from, to, flags });
            Ok::<_, Skip>(())
        };
        let goes = |suffix: &Vec<u8>| !is.contains_key(suffix) || new.contains_key(suffix);
        // The new database must not have the old one's log next to it.
        for suffix in was.keys().filter(|suffix| suffix[..] != *ITSELF && goes(suffix)) {
            let out = self.staging.swap_name(self.root)?;
            rename(self, at(path, suffix), out, RenameFlags::NOREPLACE)?;
        }
        match (new.get(ITSELF), was.contains_key(ITSELF)) {
            (Some(from), true) => rename(self, from.clone(), path.clone(), RenameFlags::EXCHANGE)?,
            (Some(from), false) => rename(self, from.clone(), path.clone(), RenameFlags::NOREPLACE)?,
            (None, true) if is.is_empty() => {
                let out = self.staging.swap_name(self.root)?;
                rename(self, path.clone(), out, RenameFlags::NOREPLACE)?;
            }
            _ => {}
        }
        for (suffix, from) in new.iter().filter(|(suffix, _)| suffix[..] != *ITSELF) {
            rename(self, from.clone(), at(path, suffix), RenameFlags::NOREPLACE)?;
        }
        Ok(())
    }

    /// Restores the old state; contents are staged again.
    fn undo(&mut self, path: &TreePath, done: &[Done], staged: &[(TreePath, ContentId)]) -> Step {
        for Done { from, to, flags } in done.iter().rev() {
            self.root.rename(to, from, *flags).map_err(refused(path, "put back"))?;
        }
        for (from, content) in staged {
            self.stage_again(from, *content)?;
        }
        Ok(())
    }
}
