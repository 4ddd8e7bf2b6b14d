//! Hydration of hot files, and their conversion back.
//!
//! After the last close of a hot stub ([`heat`](super::heat)), a separate thread hydrates it as for a writing
//! program. No program waits for that: one that opens the file for reading meanwhile is served from the
//! store, and one that changes the file or its names cancels the hydration (`State::cancel`).
//!
//! From then on the file is plain, counts against the space for hot files (`State::hot`), and is in a line of
//! the queue that no command waits for. When it has not been open for long enough, it is committed like any
//! closed file, unchanged to its old recipe. Opening it for writing makes it an ordinary plain file at once.

use super::Overlay;
use super::file::ALL;
use super::heat::{leaves_enough, room_of};
use super::inode::{Content, Inode, Phase, State as InodeState};
use super::queue::{Entry, GATHER};
use crate::backing;
use crate::backing::stub::Stub;
use crate::contents::throttle::Priority;
use rustix::fs::OFlags;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fs::File;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Instant;

/// At most this many files wait to be written back. A hot file beyond that gets its turn after its next last close.
const WAITING_MAX: usize = 64;
/// At most this many bytes are not durable yet, so that giving up or finishing a write-back never takes long.
const SYNC_BYTES: u64 = 16 << 20;

/// Hot files that wait to be written back.
#[derive(Default)]
pub(super) struct Warming {
    files: Mutex<(VecDeque<Arc<Inode>>, bool)>,
    changed: Condvar,
}

impl Warming {
    /// Adds a file, unless it is there already or too many others are.
    fn push(&self, inode: &Arc<Inode>) {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        if files.0.len() < WAITING_MAX && !files.0.iter().any(|other| Arc::ptr_eq(other, inode)) {
            files.0.push_back(inode.clone());
            self.changed.notify_one();
        }
    }

    /// Waits for a file; `None` after the end.
    fn take(&self) -> Option<Arc<Inode>> {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            match (files.1, files.0.pop_front()) {
                (true, _) => return None,
                (false, Some(inode)) => return Some(inode),
                (false, None) => files = self.changed.wait(files).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    /// Ends all waiting.
    pub(super) fn stop(&self) {
        self.files.lock().unwrap_or_else(PoisonError::into_inner).1 = true;
        self.changed.notify_all();
    }
}

impl Overlay {
    /// Sets whether the kernel does the I/O of plain files by itself.
    pub fn set_passes(&self, passes: bool) {
        self.heat.set_passes(passes && !self.read_only);
    }

    /// Returns the number of hot files that are plain, and the room that they take in bytes.
    pub fn hot(&self) -> (u64, u64) {
        self.heat.kept()
    }

    /// To be called when the last open of a file has ended.
    pub(super) fn warm_if_hot(&self, inode: &Arc<Inode>, state: &mut InodeState) {
        if let Some(Content::Stub(stub)) = state.content
            && self.heat.is_hot(inode.file_id(), stub.size, Instant::now())
            && inode.on_root_fs
        {
            self.warming.push(inode);
        }
        self.keep_hot(inode, state);
    }

    /// Writes files back until it is stopped.
    pub(super) fn warm_files(&self) {
        let priority = RefCell::default();
        while let Some(inode) = self.warming.take() {
            super::turn(|| self.warm(&inode, &priority));
            self.inodes.release(inode);
        }
    }

    /// Writes a file back, unless a program has it open or another rule forbids it.
    fn warm(&self, inode: &Arc<Inode>, priority: &RefCell<Priority>) {
        let now = Instant::now();
        let Ok(state) = self.lock_loaded(inode) else { return };
        let Some(Content::Stub(stub)) = state.content else { return };
        let busy = state.opens > 0 || !matches!(state.phase, Phase::Idle);
        if busy || inode.is_nameless() || !self.heat.is_hot(inode.file_id(), stub.size, now) {
            return;
        }
        drop(state);
        // Without the lock, because names may have to be read from the disk.
        if !self.goes_back(inode, &stub) {
            return self.heat.forget(inode.file_id());
        }
        let room = room_of(&stub);
        let enough = rustix::fs::fstatvfs(self.backing.root()).is_ok_and(|space| leaves_enough(&space, room));
        let Some(share) = self.heat.share(room).filter(|_| enough) else {
            tracing::debug!("{}: read again and again, and there is no room for it", self.name_of(inode));
            return self.heat.failed(inode.file_id(), now);
        };
        let Ok(file) = inode.open_io(OFlags::RDWR) else { return self.heat.failed(inode.file_id(), now) };
        let (given_up, unsynced) = (Arc::new(AtomicBool::new(false)), Cell::new(0));
        let step = |bytes| {
            let goes_on = self.step_slowly(&file, &given_up, &unsynced, bytes);
            // A caller waits for the rest.
            priority.borrow_mut().set_low(goes_on && self.throttle.is_background());
            goes_on
        };
        let mut state = inode.lock();
        let same = state.content == Some(Content::Stub(stub));
        if !same || state.opens > 0 || !matches!(state.phase, Phase::Idle) {
            return;
        }
        state.cancel = Some(given_up.clone());
        let written = self.make_plain_by(inode, state, &step);
        self.heat.forget(inode.file_id());
        match written {
            Ok(mut state) => {
                state.hot = Some(share.used());
                state.dirty = false;
                if state.opens == 0 {
                    // These pages are not used any more, and take as much memory as the file is long.
                    state.pages_stale = !self.drop_pages.get().is_some_and(|drop| drop(inode.node, ALL));
                }
                self.keep_hot(inode, &mut state);
                tracing::debug!("{}: plain for a while, as it is read again and again", self.name_of(inode));
            }
            Err(_) if given_up.load(Ordering::Acquire) => {}
            // The log says why.
            Err(_) => self.heat.failed(inode.file_id(), now),
        }
    }

    /// Returns whether a file goes back into the store when it is left alone.
    fn goes_back(&self, inode: &Inode, stub: &Stub) -> bool {
        let stat = inode.path_fd().and_then(rustix::fs::fstat);
        stat.is_ok_and(|stat| {
            let policy = self.policy_of(inode, stat.st_nlink, &mut self.catalog.finder(&self.backing));
            stat.st_nlink > 0
                && Stub::fits(stub.size, backing::mtime(&stat), backing::ctime(&stat))
                && policy.ok().flatten().is_some_and(|policy| policy.converts(stub.size))
        })
    }

    /// Called after each chunk that was written: returns whether to continue. `file` is a descriptor of the file.
    fn step_slowly(&self, file: &File, given_up: &AtomicBool, unsynced: &Cell<u64>, bytes: u64) -> bool {
        let (mut left, is_wanted) = (bytes, || given_up.load(Ordering::Acquire));
        // In portions: with a rate limit, a program that wants the file must not wait for the whole chunk.
        while left > 0 && !is_wanted() {
            let portion = self.throttle.portion(usize::try_from(left).unwrap_or(usize::MAX)) as u64;
            self.throttle.spend(portion);
            left = left.saturating_sub(portion);
        }
        unsynced.set(unsynced.get() + bytes);
        // If this fails, the sync at the end reports it.
        if unsynced.get() >= SYNC_BYTES && !is_wanted() && rustix::fs::fdatasync(file).is_ok() {
            unsynced.set(0);
        }
        !is_wanted() && !self.ticks.stopped()
    }

    /// Puts a closed hot file into the queue's line of hot files, until it is due to be committed.
    fn keep_hot(&self, inode: &Arc<Inode>, state: &mut InodeState) {
        if state.hot.is_some() && state.opens == 0 && !state.queued {
            (state.queued, state.dirty) = (true, false);
            let entry = Entry { inode: inode.clone(), generation: state.generation };
            self.queue.push_hot(entry, state.closed + self.heat.rest());
        }
    }

    /// Returns whether a file that is due stays plain for now because it is hot; then it is put back.
    pub(super) fn stays_hot(&self, inode: &Arc<Inode>, state: &mut InodeState) -> bool {
        // A round also takes files that are due a little later.
        let stays = state.hot.is_some() && state.closed + self.heat.rest() > Instant::now() + GATHER;
        if stays {
            self.keep_hot(inode, state);
        }
        stays
    }

    /// Makes a hot file that is about to be changed an ordinary plain file.
    pub(super) fn cool(&self, inode: &Arc<Inode>, state: &mut InodeState) {
        self.heat.forget(inode.file_id());
        if state.hot.take().is_some() && state.queued && self.queue.remove_hot(inode) {
            state.queued = false;
        }
    }
}
