//! Hydration of hot files, and their conversion back.
//!
//! After the last close of a hot stub ([`heat`](crate::tree::heat)), a separate thread hydrates it as for a writing
//! program. No program waits for that: one that opens the file for reading meanwhile is served from the
//! store, and one that changes the file or its names cancels the hydration (`State::cancel`).
//!
//! From then on the file is plain, counts against the space for hot files (`State::hot`), and is in a line of
//! the queue that no command waits for. When it has not been open for long enough, it is committed like any
//! closed file, unchanged to its old recipe. Opening it for writing makes it an ordinary plain file at once.

use crate::backing;
use crate::backing::stub::Stub;
use crate::contents::throttle::Priority;
use crate::convert::Converter;
use crate::convert::queue::Entry;
use crate::tree::ALL;
use crate::tree::heat::{leaves_enough, room_of};
use crate::tree::inode::{Content, Inode, Phase, State as InodeState};
use crate::tree::policy::GATHER;
use rustix::fs::OFlags;
use std::cell::{Cell, RefCell};
use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// At most this many bytes are not durable yet, so that giving up or finishing a write-back never takes long.
const SYNC_BYTES: u64 = 16 << 20;

impl Converter {
    /// To be called when the last open of a file has ended.
    pub(crate) fn warm_if_hot(&self, inode: &Arc<Inode>, state: &mut InodeState) {
        if let Some(Content::Stub(stub)) = state.content
            && self.tree.heat.is_hot(inode.file_id(), stub.size, Instant::now())
            && inode.on_root_fs
        {
            self.warming.push(inode);
        }
        self.keep_hot(inode, state);
    }

    /// Writes files back until it is stopped.
    pub(crate) fn warm_files(&self) {
        let priority = RefCell::default();
        while let Some(inode) = self.warming.take() {
            crate::tree::ticks::turn(|| self.warm(&inode, &priority));
            self.tree.inodes.release(inode);
        }
    }

    /// Writes a file back, unless a program has it open or another rule forbids it.
    fn warm(&self, inode: &Arc<Inode>, priority: &RefCell<Priority>) {
        let now = Instant::now();
        let Ok(state) = self.tree.lock_loaded(inode) else { return };
        let Some(Content::Stub(stub)) = state.content else { return };
        let busy = state.opens > 0 || !matches!(state.phase, Phase::Idle);
        if busy || inode.is_nameless() || !self.tree.heat.is_hot(inode.file_id(), stub.size, now) {
            return;
        }
        drop(state);
        // Without the lock, because names may have to be read from the disk.
        if !self.goes_back(inode, &stub) {
            return self.tree.heat.forget(inode.file_id());
        }
        let room = room_of(&stub);
        let enough =
            rustix::fs::fstatvfs(self.tree.backing.root()).is_ok_and(|space| leaves_enough(&space, room));
        let Some(share) = self.tree.heat.share(room).filter(|_| enough) else {
            tracing::debug!(
                "{}: read again and again, and there is no room for it",
                self.tree.name_of(inode)
            );
            return self.tree.heat.failed(inode.file_id(), now);
        };
        let Ok(file) = inode.open_io(OFlags::RDWR) else {
            return self.tree.heat.failed(inode.file_id(), now);
        };
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
        let written = self.tree.make_plain_by(inode, state, &step);
        self.tree.heat.forget(inode.file_id());
        match written {
            Ok(mut state) => {
                state.hot = Some(share.used());
                state.dirty = false;
                if state.opens == 0 {
                    // These pages are not used any more, and take as much memory as the file is long.
                    state.pages_stale = !self.tree.drop_pages.get().is_some_and(|drop| drop(inode.node, ALL));
                }
                self.keep_hot(inode, &mut state);
                tracing::debug!(
                    "{}: plain for a while, as it is read again and again",
                    self.tree.name_of(inode)
                );
            }
            Err(_) if given_up.load(Ordering::Acquire) => {}
            // The log says why.
            Err(_) => self.tree.heat.failed(inode.file_id(), now),
        }
    }

    /// Returns whether a file goes back into the store when it is left alone.
    fn goes_back(&self, inode: &Inode, stub: &Stub) -> bool {
        let stat = inode.path_fd().and_then(rustix::fs::fstat);
        stat.is_ok_and(|stat| {
            let policy =
                self.tree.policy_of(inode, stat.st_nlink, &mut self.catalog.finder(&self.tree.backing));
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
        !is_wanted() && !self.tree.ticks.stopped()
    }

    /// Puts a closed hot file into the queue's line of hot files, until it is due to be committed.
    fn keep_hot(&self, inode: &Arc<Inode>, state: &mut InodeState) {
        if state.hot.is_some() && state.opens == 0 && !state.queued {
            (state.queued, state.dirty) = (true, false);
            let entry = Entry { inode: inode.clone(), generation: state.generation };
            self.queue.push_hot(entry, state.closed + self.tree.heat.rest());
        }
    }

    /// Returns whether a file that is due stays plain for now because it is hot; then it is put back.
    pub(crate) fn stays_hot(&self, inode: &Arc<Inode>, state: &mut InodeState) -> bool {
        // A round also takes files that are due a little later.
        let stays = state.hot.is_some() && state.closed + self.tree.heat.rest() > Instant::now() + GATHER;
        if stays {
            self.keep_hot(inode, state);
        }
        stays
    }
}
