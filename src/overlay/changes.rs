//! What has changed since a snapshot was begun, so that the next one looks at that alone; and standing still while it looks.
//!
//! What must always be true: whatever is done through the overlay to a name, an attribute or a content is noted here after
//! it was done and before it is answered, unless it is a content that somebody can still write to: those are found among
//! the inodes. What is done at the bare directory is not seen, so who cannot exclude that looks at everything.
//!
//! Memory: 16 bytes and some for each inode that changed, at most [`INODES_MAX`] of them; then everything is looked at.

use super::error::Result;
use super::inode::Inode;
use super::types::Kind;
use super::{Overlay, backing};
use crate::id::FileId;
use rustix::io::Errno;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

/// More changed inodes than this are not told apart.
const INODES_MAX: usize = 1 << 20;
/// So long a moment is waited for in which nothing is under way.
const STILL_WAIT: Duration = Duration::from_secs(30);

/// How an inode changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Change {
    /// Its attributes, its content or, of a directory, the names in it.
    Touched,
    /// It is new, or it got another name: nothing is known of what is below it.
    Moved,
}

#[derive(Default)]
struct State {
    /// Whether changes are noted at all.
    on: bool,
    inodes: HashMap<FileId, Change>,
}

/// Changes since [`Changes::begin`].
#[derive(Default)]
pub(super) struct Changes {
    state: Mutex<State>,
    /// Held for reading while something is changed.
    still: RwLock<()>,
}

impl Changes {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Held while something is changed. A thread may hold several: nobody waits in between.
    pub(super) fn changing(&self) -> RwLockReadGuard<'_, ()> {
        self.still.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn note(&self, inode: FileId, change: Change) {
        let mut state = self.lock();
        if !state.on {
            return;
        }
        if state.inodes.len() >= INODES_MAX {
            *state = State::default();
            return;
        }
        let noted = state.inodes.entry(inode).or_insert(change);
        *noted = (*noted).max(change);
    }

    /// An inode is gone: another may get its number.
    pub(super) fn forget(&self, inode: FileId) {
        self.lock().inodes.remove(&inode);
    }
}

/// While this is held nothing is changed through the overlay, but for files that are open.
pub struct Still<'a> {
    _still: RwLockWriteGuard<'a, ()>,
}

impl Overlay {
    /// Notes changes from now on, and forgets those before.
    pub fn begin_changes(&self) {
        *self.changes.lock() = State { on: true, inodes: HashMap::new() };
    }

    /// Notes no changes any more.
    pub fn end_changes(&self) {
        *self.changes.lock() = State::default();
    }

    /// Waits until nothing is being changed, and keeps everything so. Nobody is held up by the waiting.
    pub fn stand_still(&self, go_on: &mut dyn FnMut() -> bool) -> Result<Option<Still<'_>>> {
        let end = Instant::now() + STILL_WAIT;
        loop {
            match self.changes.still.try_write() {
                Ok(still) => return Ok(Some(Still { _still: still })),
                Err(std::sync::TryLockError::Poisoned(still)) => {
                    return Ok(Some(Still { _still: still.into_inner() }));
                }
                Err(_) if Instant::now() > end => return Err(Errno::BUSY.into()),
                Err(_) if !go_on() => return Ok(None),
                Err(_) => std::thread::sleep(Duration::from_micros(200)),
            }
        }
    }

    /// The changes since the last call or [`Overlay::begin_changes`], each with where it is now, and those that are under
    /// way; begins anew. `None` if not all are known or can be found: then everything is to be looked at. Files that are
    /// gone are left out: their directories changed. To be called while everything stands still.
    pub fn take_changes(&self) -> Result<Option<Vec<(PathBuf, Change)>>> {
        let noted = {
            let mut state = self.changes.lock();
            if !state.on {
                return Ok(None);
            }
            std::mem::take(&mut state.inodes)
        };
        let under_way = self.inodes.collect(|inode| {
            let state = inode.lock();
            inode.home && (state.dirty || state.queued || state.writers > 0)
        });
        let mut noted = noted;
        for inode in under_way {
            noted.entry(inode.file_id()).or_insert(Change::Touched);
            self.inodes.release(inode);
        }
        let mut known = HashMap::new();
        for inode in self.inodes.collect(|inode| inode.home && noted.contains_key(&inode.file_id())) {
            let gone = inode.path_fd().and_then(rustix::fs::fstat).map_or(true, |stat| stat.st_nlink == 0);
            match self.path_of(&inode) {
                Some(path) => drop(known.insert(inode.file_id(), Some(path))),
                None if gone => drop(known.entry(inode.file_id()).or_insert(None)),
                None => {}
            }
            self.inodes.release(inode);
        }
        let mut finder = self.catalog.finder(&self.backing);
        let (mut found, mut names) = (Vec::with_capacity(noted.len()), Vec::new());
        for (inode, change) in noted {
            // Of several names each is an entry that changed.
            names.clear();
            finder.paths_of(inode, &mut names)?;
            match known.remove(&inode) {
                Some(path) => names.extend(path),
                None if names.is_empty() => return Ok(None),
                None => {}
            }
            names.sort();
            names.dedup();
            let first =
                names.first().and_then(|name| backing::stat_at(self.backing.root(), name.as_os_str()).ok());
            let is_dir = |stat: &rustix::fs::Stat| backing::kind(stat.st_mode) == Kind::Directory;
            if first.is_some_and(|stat| !is_dir(&stat) && stat.st_nlink > names.len() as u64) {
                return Ok(None);
            }
            found.extend(names.drain(..).map(|path| (path, change)));
        }
        Ok(Some(found))
    }

    pub(super) fn touched(&self, inode: &Inode) {
        if inode.home && !inode.is_nameless() {
            self.changes.note(inode.file_id(), Change::Touched);
        }
    }

    pub(super) fn moved(&self, inode: FileId) {
        self.changes.note(inode, Change::Moved);
    }
}
