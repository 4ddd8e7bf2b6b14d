//! Repair from files: finds intact bytes for the store in plain files, and restores damaged records.
//!
//! Invariants:
//! - Bytes are used only if their BLAKE3 is the wanted id. Searched files are only read.
//! - A record is written only to an empty file whose own record is invalid or gone; only if the catalog knew
//!   this inode with exactly this mtime in this directory (so that no reused number, and no other user's
//!   file, gets another's content); and only after the old record was saved.
//! - Without a record, nothing shows that the file was a stub: empty files unpacked with the times of an
//!   archive, and with reused numbers, can look the same. So the file must then also have been created no
//!   later than its mtime, and no program may have it open.
//!
//! A whole tree that was copied without xattrs has other inodes, which the catalog does not know: for those
//! the history gives the last contents at their paths (`former_by_history`).
//!
//! Memory: one window of a file, and its chunk list (40 bytes each) while a recipe is wanted.

use super::Overlay;
use super::file::read_full;
use super::inode::{Content, Inode, State as InodeState};
use super::observe::Committed;
use crate::backing::stub::{State, Stub, StubError, Time, XATTR};
use crate::backing::types::Kind;
use crate::backing::{self, STATE_DIR};
use crate::catalog::FileRow;
use crate::chunk::ChunkParams;
use crate::contents::error::{OverlayError, Result};
use crate::id::{ChunkId, RecipeId};
use crate::recipe::{ChunkRef, Recipe};
use crate::store::{Object, StoreError, Wanted};
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const WINDOW_BYTES: usize = 4 << 20;

/// Gets a wanted chunk's bytes or an encoded recipe, and the file that has it.
type Take<'a> = &'a mut dyn FnMut(Object, &[u8], &Path) -> std::result::Result<(), StoreError>;
/// Gets the bytes searched; false ends the search.
type Step<'a> = &'a mut dyn FnMut(u64) -> bool;

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

impl Overlay {
    /// Searches the plain files of this overlay for wanted objects, cut with `params`; with `stubs` also the contents of
    /// stubs. Passes each object found to `take` and removes it from `wanted`. Skips files that cannot be read.
    pub fn search_files(
        &self,
        params: &ChunkParams,
        stubs: bool,
        wanted: &mut Wanted,
        step: Step<'_>,
        take: Take<'_>,
    ) -> Result<()> {
        let (mut bytes, mut goes_on, mut failed) = (0, true, None);
        self.walk(Path::new(""), &mut |path, file| {
            let Ok(inode) = file else { return };
            if goes_on && failed.is_none() && !wanted.is_empty() {
                let content = self.look_at(&inode);
                let done = match content {
                    Ok(Content::Plain(_)) => self.search_plain(&inode, params, wanted, path, &mut *take),
                    Ok(Content::Stub(stub)) if stubs => {
                        self.search_stub(&stub, params, wanted, path, &mut *take)
                    }
                    Ok(Content::Hybrid(stub)) => {
                        self.search_hybrid(&inode, &stub, params, wanted, path, &mut *take)
                    }
                    Ok(_) => Ok(0),
                    Err(e) => {
                        tracing::warn!("{}: not searched: {e}", path.display());
                        Ok(0)
                    }
                };
                match done {
                    Ok(searched) => bytes += searched,
                    Err(e) => failed = Some(e),
                }
                goes_on = step(bytes);
            }
            self.inodes.release(inode);
        })?;
        failed.map_or(Ok(()), |e| Err(e.into()))
    }

    fn search_plain(
        &self,
        inode: &Inode,
        params: &ChunkParams,
        wanted: &mut Wanted,
        path: &Path,
        take: Take<'_>,
    ) -> std::result::Result<u64, StoreError> {
        // Never waits for a lease: a file that is being committed will be in the store in a moment.
        match inode.path_fd().and_then(|fd| backing::open_io(&fd, OFlags::RDONLY)) {
            Ok(file) => search_file(&file, params, wanted, path, take),
            Err(e) => {
                tracing::warn!("{}: not searched: {e}", path.display());
                Ok(0)
            }
        }
    }

    /// Searches the whole content of a hybrid file: its local bytes are nowhere else.
    fn search_hybrid(
        &self,
        inode: &Inode,
        stub: &Stub,
        params: &ChunkParams,
        wanted: &mut Wanted,
        path: &Path,
        take: Take<'_>,
    ) -> std::result::Result<u64, StoreError> {
        let State::Hybrid { list } = stub.state else { return Ok(0) };
        let loaded = self.load_hybrid(inode, stub, list).and_then(|loaded| match loaded {
            Ok(hybrid) => self.merged(inode, stub, &hybrid),
            Err(reason) => Err(self.bad_stub(inode, reason)),
        });
        match loaded {
            Ok(content) => {
                let read = |buffer: &mut [u8], at: u64| content.read(at, buffer).map_err(io::Error::other);
                search(&read, params, wanted, path, take)
            }
            Err(e) => {
                tracing::warn!("{}: not searched: {e}", path.display());
                Ok(0)
            }
        }
    }

    fn search_stub(
        &self,
        stub: &Stub,
        params: &ChunkParams,
        wanted: &mut Wanted,
        path: &Path,
        take: Take<'_>,
    ) -> std::result::Result<u64, StoreError> {
        let store = &self.contents.store;
        let Ok(recipe) = store.recipe(&stub.recipe) else { return Ok(0) };
        let read = |buffer: &mut [u8], at: u64| store.read_at(&recipe, at, buffer).map_err(io::Error::other);
        search(&read, params, wanted, path, take)
    }

    /// Returns the former record of the file at `path` if its record is not valid and the catalog remembers the file, under
    /// the conditions in the header of this module.
    pub fn former_record(&self, path: &Path) -> Result<Option<FormerRecord>> {
        let inode = self.inode_at(path)?;
        let former = self.former_record_of(&inode, &inode.lock(), path);
        self.inodes.release(inode);
        Ok(former?.filter(|found| found.certain).map(|found| found.former))
    }

    /// Returns why an empty plain file without a record is taken for a stub that lost it, if it is.
    pub(super) fn lost_record(&self, inode: &Inode, path: &Path) -> Result<Option<String>> {
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
    /// changed since [`Overlay::former_record`] read it.
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

/// As [`Overlay::search_files`], in a directory outside any overlay, or in one file. Does not follow symlinks, and skips the
/// state directory of an overlay.
pub fn search_tree(
    top: &Path,
    params: &ChunkParams,
    wanted: &mut Wanted,
    step: Step<'_>,
    take: Take<'_>,
) -> Result<()> {
    let mut bytes = 0;
    let mut left = vec![top.to_owned()];
    while let Some(path) = left.pop() {
        if wanted.is_empty() || !step(bytes) {
            break;
        }
        let passed_over = |e: io::Error| tracing::warn!("{}: not searched: {e}", path.display());
        let kind = match path.symlink_metadata() {
            Ok(meta) => meta.file_type(),
            Err(e) => {
                passed_over(e);
                continue;
            }
        };
        if kind.is_dir() {
            match path.read_dir() {
                Ok(entries) => left.extend(
                    entries
                        .flatten()
                        .filter(|entry| entry.file_name() != STATE_DIR)
                        .map(|entry| entry.path()),
                ),
                Err(e) => passed_over(e),
            }
        } else if kind.is_file() {
            let flags = libc::O_NONBLOCK | libc::O_NOFOLLOW | libc::O_NOCTTY;
            match OpenOptions::new().read(true).custom_flags(flags).open(&path) {
                Ok(file) => bytes += search_file(&file, params, wanted, &path, &mut *take)?,
                Err(e) => passed_over(e),
            }
        }
    }
    Ok(())
}

fn search_file(
    file: &File,
    params: &ChunkParams,
    wanted: &mut Wanted,
    path: &Path,
    take: Take<'_>,
) -> std::result::Result<u64, StoreError> {
    let read = |buffer: &mut [u8], at: u64| read_full(file, buffer, at).map_err(io::Error::other);
    search(&read, params, wanted, path, take)
}

/// Cuts the bytes that `read` gives and takes wanted chunks. Returns the bytes read. A read that fails ends the file.
fn search(
    read: &dyn Fn(&mut [u8], u64) -> io::Result<usize>,
    params: &ChunkParams,
    wanted: &mut Wanted,
    path: &Path,
    take: Take<'_>,
) -> std::result::Result<u64, StoreError> {
    let mut chunks = wanted.has_recipes().then(Vec::new);
    let mut window = vec![0; WINDOW_BYTES.max(4 * params.max as usize)];
    let (mut filled, mut offset) = (0, 0);
    loop {
        let len = match read(&mut window[filled..], offset) {
            Ok(len) => len,
            Err(e) => {
                tracing::warn!("{}: searched up to byte {offset}: {e}", path.display());
                return Ok(offset);
            }
        };
        let last = len < window.len() - filled;
        filled += len;
        offset += len as u64;
        let mut start = 0;
        for len in params.cut(&window[..filled], last) {
            let bytes = &window[start..start + len as usize];
            start += len as usize;
            let id = ChunkId::of(bytes);
            let object = Object::Chunk(id);
            if wanted.contains(&object) {
                take(object, bytes, path)?;
                wanted.remove(&object);
            }
            if let Some(chunks) = &mut chunks {
                chunks.push(ChunkRef { id, len });
            }
        }
        window.copy_within(start..filled, 0);
        filled -= start;
        if last {
            break;
        }
    }
    if let Some(chunks) = chunks.filter(|chunks| !chunks.is_empty()) {
        let encoded = Recipe::new(chunks).encode();
        let object = Object::Recipe(RecipeId::of(&encoded));
        if wanted.contains(&object) {
            take(object, &encoded, path)?;
            wanted.remove(&object);
        }
    }
    Ok(offset)
}
