//! Execution of a plan's steps on a real directory.
//!
//! Nothing is overwritten unseen. A step examines the entry to replace or remove directly before, and takes it out of
//! its place by one rename (which exchanges it with the new one). Then it examines the entry again, and puts it back
//! if it differs. New entries go only to free paths (`RENAME_NOREPLACE`). A step that finds another entry is skipped
//! and reported; no later step then removes a content that this one should have moved.

use super::adopt::Skipped;
use super::attributes::is_reserved as is_reserved_attribute;
use super::error::SyncError;
use super::halfway::OWNER;
use super::inodes::{self, Scarce};
use super::owners::Owners;
use super::plan::Op;
use super::print::{Print, ino, print, unchanged};
use super::scan::{self, is_ignored};
use super::selection::Selection;
use super::staging::{Staging, copy_with_holes, whole};
use super::tree::{ContentId, Entry, Kind, TreePath, is_reserved, join, shown, split};
use super::unfit::{self, Xattrs};
use super::waiting::Left;
use super::wal_index::is_wal_index;
use crate::backing::stub;
use crate::beneath::{Parents, Root};
use assembly::{NewDirectory, Part, parts};
use ignore::gitignore::Gitignore;
use links::Links;
use opened::Opened;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, RenameFlags, Stat, Timespec, Timestamps};
use rustix::io::Errno;
use skip::{Skip, Step, changed, refused};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read;
use std::os::fd::AsFd;
use std::sync::Arc;

mod assembly;
mod attributes;
mod group_swap;
mod links;
mod new_directory;
mod opened;
mod prepared;
mod skip;

/// A test hook that gets the path.
#[cfg(test)]
pub type Between<'a> = Box<dyn FnMut(&[u8]) + 'a>;

/// See the module.
pub struct Executor<'a> {
    root: &'a Root,
    staging: &'a mut Staging,
    /// [`Staging::direct`].
    direct: Option<Arc<Root>>,
    /// The new directory that the steps are assembling.
    assembled: Option<NewDirectory>,
    /// The entry at each path; kept up to date.
    prints: &'a mut BTreeMap<TreePath, Print>,
    patterns: Gitignore,
    /// The paths that this device syncs.
    pub selection: Selection,
    links: Links,
    opened: Opened,
    /// Contents that are not staged, and the reasons.
    absent: &'a BTreeMap<ContentId, String>,
    /// By inode: xattrs that did not fit; `None` for an inode that has all of its xattrs.
    pub unfit: BTreeMap<u64, Option<(Xattrs, Errno)>>,
    owners: &'a Owners,
    /// By inode: owners and ACLs that could not be set; empty for an inode that has all of its attributes.
    pub waiting: BTreeMap<u64, Left>,
    /// Directories that could not be put in place, and the reasons: nothing can be put into them.
    lost: BTreeMap<TreePath, String>,
    inodes: Scarce,
    /// Whether directories stayed for their entries that are not synced, though the agreed tree does not have them.
    pub kept_dirs: bool,
    /// How many steps still need a staged content.
    uses: BTreeMap<ContentId, u32>,
    /// Directories whose names were changed.
    pub touched: BTreeSet<TreePath>,
    /// Directories of the last steps; only during steps that move no directory.
    parents: Option<RefCell<Parents>>,
    /// Runs between the last examination of a path and its step.
    #[cfg(test)]
    pub between: Option<Between<'a>>,
}

fn file_type(kind: &Kind) -> FileType {
    match kind {
        Kind::Dir => FileType::Directory,
        Kind::File { .. } => FileType::RegularFile,
        Kind::Symlink(_) => FileType::Symlink,
        Kind::Fifo => FileType::Fifo,
    }
}

/// Returns how many steps need each staged content.
fn uses(ops: &[Op]) -> BTreeMap<ContentId, u32> {
    let mut uses = BTreeMap::new();
    for content in ops.iter().flat_map(Op::staged).filter_map(|(_, entry, _)| entry.kind.content()) {
        *uses.entry(content).or_default() += 1;
    }
    uses
}

impl<'a> Executor<'a> {
    /// Returns an executor for the directory that `prints` describe. Contents in `absent` are not staged.
    pub fn new(
        root: &'a Root,
        staging: &'a mut Staging,
        prints: &'a mut BTreeMap<TreePath, Print>,
        absent: &'a BTreeMap<ContentId, String>,
        owners: &'a Owners,
    ) -> Result<Executor<'a>, SyncError> {
        let patterns = scan::patterns(root)?;
        let links = Links::of(prints);
        let direct = staging.direct.clone();
        Ok(Executor {
            root,
            staging,
            direct,
            assembled: None,
            prints,
            patterns,
            selection: Selection::default(),
            links,
            opened: Opened::default(),
            absent,
            unfit: BTreeMap::new(),
            owners,
            waiting: BTreeMap::new(),
            lost: BTreeMap::new(),
            inodes: Scarce::default(),
            kept_dirs: false,
            uses: BTreeMap::new(),
            touched: BTreeSet::new(),
            parents: None,
            #[cfg(test)]
            between: None,
        })
    }

    /// Does `ops`. The caller makes the names in [`Executor::touched`] durable. Returns the skipped steps, and the reasons.
    pub fn run(&mut self, ops: &[Op]) -> Result<Vec<Skipped>, SyncError> {
        self.uses = uses(ops);
        self.inodes = Scarce::for_steps(self.root, ops);
        let mut skipped: Vec<Skipped> = Vec::new();
        // Contents that a skipped step should have put somewhere.
        let mut unsaved: BTreeMap<ContentId, bool> = BTreeMap::new();
        let all = match self.direct {
            Some(_) => parts(ops),
            None => ops.iter().map(Part::Do).collect(),
        };
        for part in all {
            match part {
                Part::Begin(path) => self.begin_directory(path)?,
                Part::Do(op) => self.step(op, &mut skipped, &mut unsaved)?,
                Part::End => {
                    let contents = self.assembled.iter().flat_map(|new| new.contents()).collect::<Vec<_>>();
                    if let Some(step) = self.end_directory()? {
                        unsaved.extend(contents.into_iter().map(|content| (content, step.again)));
                        skipped.push(step);
                    }
                }
            }
        }
        self.opened.close();
        Ok(skipped)
    }

    /// Does one step. Adds it to `skipped` if that is not possible, and the contents that it should have put somewhere to `unsaved`.
    fn step(
        &mut self,
        op: &Op,
        skipped: &mut Vec<Skipped>,
        unsaved: &mut BTreeMap<ContentId, bool>,
    ) -> Result<(), SyncError> {
        if let Some((path, why)) = self.is_lost(op) {
            unsaved.extend(op.puts().into_iter().map(|content| (content, false)));
            skipped.push(Skipped { path, why, again: false });
            return Ok(());
        }
        if let Some(again) = op.takes_away().iter().find_map(|content| unsaved.get(content).copied()) {
            let why = "its content could not be put elsewhere, so it stays; run the sync again".to_owned();
            unsaved.extend(op.puts().into_iter().map(|content| (content, again)));
            skipped.push(Skipped { path: op.path().clone(), why, again });
            return Ok(());
        }
        let before = skipped.len();
        let linked = self.links.linked(op, self.prints);
        self.opened.open_directories(op, self.root)?;
        self.parents = match op {
            Op::Create { .. } | Op::Replace { .. } | Op::Meta { .. } => {
                self.parents.take().or_else(|| Some(RefCell::default()))
            }
            _ => None,
        };
        let (path, done) = match op {
            op if !self.only_renames(op) && self.inodes.are_too_few_for(self.root, op) => {
                (op.path(), Err(Skip::Because(inodes::WHY.to_owned())))
            }
            Op::MakeDir { path, entry } => (path, self.make_dir(path, entry)),
            Op::Move { from, to } => (from, self.rename(from, to)),
            Op::Create { path, entry, link } => (path, self.create(path, entry, link.as_ref())),
            Op::Replace { path, was, entry, link } => (path, self.replace(path, was, entry, link.as_ref())),
            Op::Remove { path, was } => (path, self.remove(path, was)),
            Op::Group { path, was, is } => (path, self.group(path, was, is)),
            Op::Meta { path, was, entry } => (path, self.set_metadata(path, was, entry)),
        };
        match done.and_then(|()| self.links.follow(op, &linked, self.root, self.prints)) {
            Ok(()) => {}
            Err(Skip::Changed) => {
                let why = "changed meanwhile; run the sync again".to_owned();
                skipped.push(Skipped { path: path.clone(), why, again: true });
            }
            Err(Skip::Because(why)) => {
                if let Op::MakeDir { path, .. } = op {
                    self.lost.insert(path.clone(), why.clone());
                }
                skipped.push(Skipped { path: path.clone(), why, again: false });
            }
            Err(Skip::Fatal(e)) => return Err(e),
        }
        if let Some(step) = skipped.get(before) {
            unsaved.extend(op.puts().into_iter().map(|content| (content, step.again)));
        }
        Ok(())
    }

    /// Returns whether a step moves the staged file into place instead of copying it.
    fn only_renames(&self, op: &Op) -> bool {
        let Op::Create { entry, .. } = op else { return false };
        entry.kind.content().is_some_and(|content| self.uses.get(&content) == Some(&1))
    }

    /// Returns the path that a step would put into a missing directory, and why that directory is missing.
    fn is_lost(&self, op: &Op) -> Option<(TreePath, String)> {
        let (path, to) = match op {
            Op::MakeDir { path, .. } | Op::Create { path, .. } | Op::Group { path, .. } => (path, path),
            Op::Move { from, to } => (from, to),
            _ => return None,
        };
        let mut dir = split(to).0;
        while !self.lost.is_empty() && !dir.is_empty() {
            if let Some(why) = self.lost.get(dir) {
                return Some((path.clone(), format!("{}: {why}", shown(dir))));
            }
            dir = split(dir).0;
        }
        None
    }

    fn touch(&mut self, path: &[u8]) {
        self.touched.insert(split(path).0.to_vec());
    }

    fn stat(&self, path: &[u8]) -> Result<Option<Stat>, Skip> {
        let found = match &self.parents {
            Some(parents) => parents.borrow_mut().stat(self.root, path),
            None => self.root.stat(path),
        };
        found.map_err(refused(path, "look at"))
    }

    /// As [`Root::rename`].
    fn rename_to(&self, from: &TreePath, to: &TreePath, flags: RenameFlags) -> Result<(), Errno> {
        match &self.parents {
            Some(parents) => parents.borrow_mut().rename(self.root, from, to, flags),
            None => self.root.rename(from, to, flags),
        }
    }

    /// Remembers the entry that is at `path` now.
    fn note(&mut self, path: &TreePath, content: Option<ContentId>) -> Step {
        match self.stat(path)? {
            Some(stat) => drop(self.prints.insert(path.clone(), print(&stat, content))),
            None => drop(self.prints.remove(path)),
        }
        Ok(())
    }

    /// Verifies that the entry at `path` is the examined one.
    fn check(&self, path: &TreePath, was: &Entry) -> Step {
        let (Some(stat), Some(known)) = (self.stat(path)?, self.prints.get(path)) else {
            return Err(changed());
        };
        let now = print(&stat, None);
        let fits = match (&was.kind, FileType::from_raw_mode(stat.st_mode)) {
            (Kind::Dir, FileType::Directory) => now.ino == known.ino,
            (Kind::File { .. }, FileType::RegularFile)
            | (Kind::Symlink(_), FileType::Symlink)
            | (Kind::Fifo, FileType::Fifo) => unchanged(known, &now),
            _ => false,
        };
        if !fits {
            return Err(changed());
        }
        // It may have changed within the same tick of the clock.
        if let (true, Kind::File { content, .. }) = (known.fresh, &was.kind)
            && self.hash(path).map_err(refused(path, "read"))? != *content
        {
            return Err(changed());
        }
        Ok(())
    }

    fn hash(&self, path: &TreePath) -> Result<ContentId, Errno> {
        let fd = self.root.open_at(path, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty())?;
        let mut file = File::from(fd);
        let mut hasher = blake3::Hasher::new();
        let mut buffer = vec![0; 1 << 20];
        loop {
            match file.read(&mut buffer).map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))? {
                0 => return Ok(ContentId(*hasher.finalize().as_bytes())),
                len => drop(hasher.update(&buffer[..len])),
            }
        }
    }

    fn make_dir(&mut self, path: &TreePath, entry: &Entry) -> Step {
        if self.assembled.is_some() {
            return self.assemble_dir(path, entry);
        }
        let (dir, name) = self.root.parent(path).map_err(refused(path, "open"))?;
        // The directory is writable until it has its entries; the last step sets the final mode.
        let mode = Mode::from_raw_mode(u32::from(entry.mode) | 0o700);
        rustix::fs::mkdirat(&dir, name, mode).map_err(refused(path, "make"))?;
        self.put_metadata(path, &Entry { mode: entry.mode | 0o700, ..entry.clone() }, FileType::Directory)?;
        self.give_owner(path, entry, split(path).0)?;
        self.touch(path);
        self.note(path, None)
    }

    fn rename(&mut self, from: &TreePath, to: &TreePath) -> Step {
        let (Some(stat), Some(known)) = (self.stat(from)?, self.prints.get(from)) else {
            return Err(changed());
        };
        if ino(&stat) != known.ino {
            return Err(changed());
        }
        let content = known.content;
        let same = unchanged(known, &print(&stat, None)) && !known.fresh;
        self.root.rename(from, to, RenameFlags::NOREPLACE).map_err(refused(from, "rename"))?;
        self.touch(from);
        self.touch(to);
        self.links.rename(from, to);
        let below = join(from, b"");
        let inside = self.prints.range(below.clone()..).take_while(|(path, _)| path.starts_with(&below));
        for path in inside.map(|(path, _)| path.clone()).collect::<Vec<_>>() {
            if let Some(print) = self.prints.remove(&path) {
                self.prints.insert([to, &path[from.len()..]].concat(), print);
            }
        }
        let was = self.prints.remove(from);
        match same {
            true => self.note(to, content),
            // The content is another one than the known one: make the print differ.
            false => {
                was.map(|was| self.prints.insert(to.clone(), was));
                Ok(())
            }
        }
    }

    /// Assembles the entry for `path` under a name in the staging directory.
    fn prepare(&mut self, path: &TreePath, entry: &Entry, link: Option<&TreePath>) -> Result<TreePath, Skip> {
        let new = self.staging.swap_name(self.root)?;
        self.put_at(&new, path, entry, link)?;
        Ok(new)
    }

    /// The same at `new`.
    fn put_at(&mut self, new: &TreePath, path: &TreePath, entry: &Entry, link: Option<&TreePath>) -> Step {
        let root = self.root;
        let parent = || root.parent(new).map_err(refused(new, "open"));
        if let Some(link) = link {
            let (dir, name) = parent()?;
            // It has the content that was examined, or that was put there.
            let known = self.prints.get(link).filter(|known| known.content == entry.kind.content());
            if !self.is_what_was(link, link)? {
                return Err(changed());
            }
            let ino = known.ok_or_else(changed)?.ino;
            let (from_dir, from) = self.root.parent(link).map_err(refused(link, "open"))?;
            rustix::fs::linkat(from_dir, from, dir, name, AtFlags::empty()).map_err(refused(path, "link"))?;
            self.links.add(ino, link);
            self.links.add(ino, path);
            return Ok(());
        }
        // Below the mount if it is assembled directly in the staging directory.
        let direct = self.direct.clone().filter(|_| self.is_direct(new));
        let place = direct.as_deref().unwrap_or(root);
        let parent = || place.parent(new).map_err(refused(new, "open"));
        match &entry.kind {
            Kind::File { content, .. } => {
                if let Some(why) = self.absent.get(content) {
                    return Err(Skip::Because(why.clone()));
                }
                let uses = self.uses.get_mut(content).expect("counted before");
                *uses -= 1;
                let last = *uses == 0;
                match (last, &direct) {
                    (true, Some(direct)) => {
                        self.staging.rename(direct, &whole(*content), new).map_err(refused(new, "rename"))?
                    }
                    (true, None) => {
                        let staged = self.take_out(*content)?;
                        self.rename_to(&staged, new, RenameFlags::NOREPLACE)
                            .map_err(refused(&staged, "rename"))?;
                    }
                    (false, _) => self.copy(*content, place, new)?,
                }
                if !(last && self.take_prepared(entry)) {
                    self.put_metadata_at(place, new, entry, FileType::RegularFile, true)?;
                }
            }
            Kind::Symlink(target) => {
                let (dir, name) = parent()?;
                rustix::fs::symlinkat(&target[..], &dir, name).map_err(refused(path, "make"))?;
                self.put_metadata_at(place, new, entry, FileType::Symlink, true)?;
            }
            Kind::Fifo => {
                let (dir, name) = parent()?;
                let mode = Mode::from_raw_mode(0o600);
                rustix::fs::mknodat(&dir, name, FileType::Fifo, mode, 0).map_err(refused(path, "make"))?;
                self.put_metadata_at(place, new, entry, FileType::Fifo, true)?;
            }
            Kind::Dir => return Err(changed()),
        }
        Ok(())
    }

    /// Copies a staged content to `to` below `place`.
    fn copy(&self, content: ContentId, place: &Root, to: &TreePath) -> Step {
        let open = |root: &Root, path: &TreePath, flags, mode| {
            Ok::<_, Skip>(File::from(root.open_at(path, flags, mode).map_err(refused(path, "open"))?))
        };
        let from = whole(content);
        // The kernel refuses a mode if it does not create the file.
        let mut from_file = open(self.staging.place(self.root), &from, OFlags::RDONLY, Mode::empty())?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        let mut to_file = open(place, to, flags, Mode::from_raw_mode(0o600))?;
        let copied = copy_with_holes(&mut from_file, &mut to_file);
        let copied = copied.and_then(|copied| to_file.sync_data().map(|()| copied));
        match copied.map_err(|e| Skip::Fatal(SyncError::io("copy", shown(&from), e)))? == content {
            true => Ok(()),
            false => Err(changed()),
        }
    }

    /// Returns the path at which the mount can be asked for a staged content.
    fn take_out(&mut self, content: ContentId) -> Result<TreePath, Skip> {
        let staged = whole(content);
        let Some(direct) = self.direct.clone() else { return Ok(staged) };
        let out = self.staging.swap_name(self.root)?;
        self.staging.rename(&direct, &staged, &out).map_err(refused(&staged, "rename"))?;
        Ok(out)
    }

    /// Stages the content of a file at `from` again, which was not put in place.
    fn stage_again(&mut self, from: &TreePath, content: ContentId) -> Step {
        match self.staging.take_back(self.root, content, from) {
            Err(SyncError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => Ok(()),
            done => Ok(done?),
        }
    }

    fn create(&mut self, path: &TreePath, entry: &Entry, link: Option<&TreePath>) -> Step {
        if self.assembled.is_some() {
            return self.assemble_file(path, entry);
        }
        // Checks this before it takes a staged content.
        if self.stat(path)?.is_some() {
            return Err(changed());
        }
        let new = match entry.kind.content().filter(|_| link.is_none() && self.is_prepared(entry)) {
            // It is moved from the staging directly.
            Some(content) => self.take_out(content)?,
            None => self.prepare(path, entry, link)?,
        };
        if let Err(e) = self.rename_to(&new, path, RenameFlags::NOREPLACE) {
            self.give_back(&new, entry, link)?;
            return Err(refused(path, "create")(e));
        }
        if link.is_none() {
            self.take_prepared(entry);
            self.give_owner(path, entry, split(path).0)?;
        }
        self.touch(path);
        self.note(path, entry.kind.content())
    }

    /// Stages a content again that was not put in place, for the next attempt.
    fn give_back(&mut self, new: &TreePath, entry: &Entry, link: Option<&TreePath>) -> Step {
        match (entry.kind.content(), link) {
            (Some(content), None) if *new == whole(content) => Ok(()),
            (Some(content), None) => self.stage_again(new, content),
            _ => self.root.remove(new, false).map_err(refused(new, "remove")),
        }
    }

    fn replace(&mut self, path: &TreePath, was: &Entry, entry: &Entry, link: Option<&TreePath>) -> Step {
        self.check(path, was)?;
        let new = self.prepare(path, entry, link)?;
        if link.is_none() {
            self.give_owner(&new, entry, path)?;
        }
        #[cfg(test)]
        self.between.iter_mut().for_each(|happens| happens(path));
        if let Err(e) = self.rename_to(&new, path, RenameFlags::EXCHANGE) {
            self.give_back(&new, entry, link)?;
            return Err(refused(path, "exchange")(e));
        }
        // The old entry has left its name: verify that it is the examined one.
        if !self.is_what_was(&new, path)? {
            self.rename_to(&new, path, RenameFlags::EXCHANGE).map_err(refused(path, "exchange"))?;
            self.give_back(&new, entry, link)?;
            return Err(changed());
        }
        self.root.remove(&new, false).map_err(refused(&new, "remove"))?;
        self.touch(path);
        self.note(path, entry.kind.content())
    }

    /// Returns whether the entry that was taken out of `path`, and is at `at` now, is the one examined there. Its
    /// ctime differs, because of the rename.
    fn is_what_was(&self, at: &TreePath, path: &TreePath) -> Result<bool, Skip> {
        let (Some(stat), Some(known)) = (self.stat(at)?, self.prints.get(path)) else { return Ok(false) };
        let now = print(&stat, None);
        Ok((now.ino, now.size, now.mtime) == (known.ino, known.size, known.mtime))
    }

    fn remove(&mut self, path: &TreePath, was: &Entry) -> Step {
        self.check(path, was)?;
        if was.kind.is_dir() {
            match self.root.remove(path, true) {
                Ok(()) => {}
                // Entries that are not synced keep their directory, which then counts as created here.
                Err(Errno::NOTEMPTY | Errno::EXIST) if self.holds_only_what_is_left_out(path)? => {
                    self.kept_dirs = true;
                    return Ok(());
                }
                Err(e) => return Err(refused(path, "remove")(e)),
            }
        } else {
            let out = self.staging.swap_name(self.root)?;
            #[cfg(test)]
            self.between.iter_mut().for_each(|happens| happens(path));
            self.root.rename(path, &out, RenameFlags::NOREPLACE).map_err(refused(path, "remove"))?;
            if !self.is_what_was(&out, path)? {
                self.root.rename(&out, path, RenameFlags::NOREPLACE).map_err(refused(path, "put back"))?;
                return Err(changed());
            }
            self.root.remove(&out, false).map_err(refused(path, "remove"))?;
        }
        self.touch(path);
        self.prints.remove(path);
        Ok(())
    }

    fn holds_only_what_is_left_out(&self, dir: &TreePath) -> Result<bool, Skip> {
        for name in self.root.list(dir).map_err(refused(dir, "read"))? {
            let path = join(dir, &name);
            let kind = self.stat(&path)?.map(|stat| FileType::from_raw_mode(stat.st_mode));
            // A directory that stayed because of entries that are not synced.
            let is_dir = kind == Some(FileType::Directory);
            let unselected = !self.selection.includes(&path, is_dir);
            let kept = is_dir && !unselected && self.holds_only_what_is_left_out(&path)?;
            let reserved = dir.is_empty() && is_reserved(&name);
            if !(unselected || kept || reserved || self.is_left_out(&path, &path)?) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns whether the entry at `at`, which belongs at `path`, is not synced.
    fn is_left_out(&self, path: &TreePath, at: &TreePath) -> Result<bool, Skip> {
        let Some(stat) = self.stat(at)? else { return Ok(false) };
        let kind = FileType::from_raw_mode(stat.st_mode);
        let unsupported =
            matches!(kind, FileType::Socket | FileType::CharacterDevice | FileType::BlockDevice);
        let ignored = is_ignored(&self.patterns, path, kind == FileType::Directory);
        Ok(unsupported || ignored || is_wal_index(self.root, at, &stat))
    }

    fn set_metadata(&mut self, path: &TreePath, was: &Entry, entry: &Entry) -> Step {
        // After the last step that changes names in a new directory, it gets its mode.
        let opened = entry.kind.is_dir() && entry.mode & OWNER != OWNER;
        if !opened && self.owners.are_same(was, entry) {
            return Ok(());
        }
        self.check(path, was)?;
        let content = self.prints.get(path).and_then(|known| known.content);
        self.put_metadata(path, entry, file_type(&was.kind))?;
        if let (Kind::Dir, Some(known)) = (&was.kind, self.prints.get(path)) {
            self.opened.forget(known.ino);
        }
        // Makes it durable.
        match was.kind {
            Kind::Dir => drop(self.touched.insert(path.clone())),
            Kind::Symlink(_) | Kind::Fifo => self.touch(path),
            Kind::File { .. } => {}
        }
        self.note(path, content)
    }

    /// Sets owner, xattrs, ACLs, mode and time, in this order, since each changes the ones after it. Makes them durable for a
    /// file.
    fn put_metadata(&mut self, path: &TreePath, entry: &Entry, kind: FileType) -> Step {
        self.put_metadata_at(self.root, path, entry, kind, true).map(drop)
    }

    /// The same below `place`; a file is synced only if `sync` is set. Returns the inode number of a file or directory.
    fn put_metadata_at(
        &mut self,
        place: &Root,
        path: &TreePath,
        entry: &Entry,
        kind: FileType,
        sync: bool,
    ) -> Result<u64, Skip> {
        let time = Timespec { tv_sec: entry.mtime.0, tv_nsec: entry.mtime.1.into() };
        let omit = Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT };
        let times = Timestamps { last_access: omit, last_modification: time };
        if matches!(kind, FileType::Symlink | FileType::Fifo) {
            // Neither of these can be opened safely.
            let (dir, name) = place.parent(path).map_err(refused(path, "open"))?;
            self.put_owner_at(&dir, name, path, entry)?;
            if kind == FileType::Fifo {
                let mode = Mode::from_raw_mode(entry.mode.into());
                rustix::fs::chmodat(&dir, name, mode, AtFlags::empty())
                    .map_err(refused(path, "set the mode of"))?;
            }
            let done = rustix::fs::utimensat(&dir, name, &times, AtFlags::SYMLINK_NOFOLLOW);
            return done.map(|()| 0).map_err(refused(path, "set the time of"));
        }
        let fd = place
            .open_at(path, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty())
            .map_err(refused(path, "open"))?;
        let stat = rustix::fs::fstat(&fd).map_err(refused(path, "look at"))?;
        if FileType::from_raw_mode(stat.st_mode) != kind {
            return Err(changed());
        }
        self.put_xattrs(&fd, &stat, path, entry)?;
        rustix::fs::fchmod(&fd, Mode::from_raw_mode(self.owners.mode(entry).into()))
            .map_err(refused(path, "set the mode of"))?;
        if kind == FileType::RegularFile {
            rustix::fs::futimens(&fd, &times).map_err(refused(path, "set the time of"))?;
            if sync {
                rustix::fs::fsync(&fd).map_err(refused(path, "sync"))?;
            }
        }
        Ok(ino(&stat))
    }

    /// Sets xattrs, owner and ACLs, and remembers those that do not fit or wait.
    fn put_xattrs(&mut self, fd: &impl AsFd, stat: &Stat, path: &TreePath, entry: &Entry) -> Step {
        let mut names = vec![0; 64 << 10];
        let len = match rustix::fs::flistxattr(fd, &mut names[..]) {
            Ok(len) => len,
            Err(Errno::NOTSUP) => 0,
            Err(e) => return Err(refused(path, "list the xattrs of")(e)),
        };
        let names: Vec<&[u8]> = names[..len].split(|byte| *byte == 0).collect();
        for name in &names {
            // Below the mount, a file that the daemon has converted must stay as it is.
            if *name == stub::XATTR.as_bytes() {
                return Err(changed());
            }
            if super::tree::is_xattr(name) && !entry.xattrs.contains_key(*name) {
                rustix::fs::fremovexattr(fd, *name).map_err(refused(path, "remove an xattr of"))?;
            }
        }
        let xattrs = entry.xattrs.iter().filter(|(name, _)| !is_reserved_attribute(name));
        let xattrs = xattrs.map(|(name, value)| (name.clone(), value.clone())).collect();
        let unfit = unfit::set(fd, path, &xattrs)?;
        self.unfit.insert(ino(stat), unfit);
        self.put_owner(fd, stat, path, entry, &names)
    }
}
