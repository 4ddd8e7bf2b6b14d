//! The phase `Hydrating` of an inode, held by the thread that writes its content back.
//!
//! Invariants:
//! - While an inode is in the phase, exactly one guard exists for it.
//! - The phase ends with the guard, also if the thread panics: programs that wait for the file go on.
//! - A guard that is dropped early takes the write-back back: the recipe is the content again. It is never left open
//!   whether the file counts as plain, because a program may write to the file as soon as the phase ends.

use super::Overlay;
use super::inode::{Content, Inode, Phase, State as InodeState};
use crate::backing;
use crate::backing::stub::{State, Stub};
use rustix::fs::OFlags;
use std::ops::Deref;

/// Guard of the phase; see the module.
pub(super) struct Hydrating<'a, I: Deref<Target = Inode>> {
    overlay: &'a Overlay,
    inode: I,
    stub: Stub,
    ended: bool,
}

impl<'a, I: Deref<Target = Inode>> Hydrating<'a, I> {
    /// Begins the phase of an inode whose content is `stub`, a stub or a hybrid file. `state` is the inode's own.
    pub(super) fn begin(overlay: &'a Overlay, inode: I, state: &mut InodeState, stub: Stub) -> Self {
        state.phase = Phase::Hydrating;
        Hydrating { overlay, inode, stub, ended: false }
    }

    /// Ends the phase. The caller sets in `state` what the content is now, before it unlocks it.
    pub(super) fn end(mut self, state: &mut InodeState) {
        self.ended = true;
        (state.phase, state.cancel) = (Phase::Idle, None);
        self.inode.notify();
    }

    /// Makes the recipe the content again, on disk. Returns the content; `None` if it is as in the state.
    fn take_back(&self) -> Option<Content> {
        let inode = &*self.inode;
        let unknown = Content::Unknown("writing it back was interrupted; mount the overlay again");
        if let State::Hybrid { .. } = self.stub.state {
            return self.overlay.write_record(inode, &self.stub).is_err().then_some(unknown);
        }
        if let Ok(file) = inode.path_fd().and_then(|fd| backing::open_io(fd, OFlags::RDWR)) {
            self.overlay.take_back(inode, &file, self.stub);
        }
        match self.overlay.load(inode) {
            Ok((content @ Content::Stub(_), _)) => Some(content),
            _ => Some(unknown),
        }
    }
}

impl<I: Deref<Target = Inode>> Drop for Hydrating<'_, I> {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        let name = self.overlay.name_of(&self.inode);
        tracing::error!("{name}: writing it back was interrupted by a panic; its content stays in the store");
        let content = self.take_back();
        let mut state = self.inode.lock();
        state.content = content.or(state.content);
        (state.phase, state.cancel) = (Phase::Idle, None);
        self.inode.notify();
    }
}
