//! An unused inode, in little memory.
//!
//! Its state can be read from the disk again, as after the kernel has forgotten it, except for the fields here.

use crate::backing::Identity;
use crate::backing::stub::Time;
use crate::backing::types::{Kind, NodeId};
use crate::tree::anchor::{Anchors, Sunk};
use crate::tree::inode::{Content, Inode, Mode, Phase, State};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Instant;

/// A file, on the root's filesystem.
pub(crate) struct Dormant {
    pub(crate) ino: u64,
    pub(crate) anchor: Sunk,
    closed: Instant,
    pages_of: Option<Box<(Time, u64)>>,
    kind: Kind,
    committed: bool,
}

impl Dormant {
    /// Returns the dormant form of an inode that only the caller has; `None` if its state has to stay, or it has a
    /// descriptor. Directories stay awake: the files in them refer to their anchors.
    pub(crate) fn of(inode: &Inode) -> Option<Dormant> {
        if inode.kind == Kind::Directory || !inode.on_root_fs || inode.is_nameless() {
            return None;
        }
        let state = inode.try_lock()?;
        if !is_at_rest(&state) {
            return None;
        }
        Some(Dormant {
            ino: inode.identity.ino,
            anchor: inode.anchor.sunk()?,
            closed: state.closed,
            pages_of: state.pages_of.map(Box::new),
            kind: inode.kind,
            committed: state.committed,
        })
    }

    /// Returns the inode again; `dev` is the root's filesystem.
    pub(crate) fn wake(&self, node: NodeId, dev: u64, anchors: &Arc<Anchors>) -> Inode {
        let pages_of = self.pages_of.as_deref().copied();
        let state = State { committed: self.committed, pages_of, ..State::new(self.closed) };
        Inode {
            node,
            identity: Identity { dev, ino: self.ino },
            kind: self.kind,
            on_root_fs: true,
            anchor: anchors.raise(&self.anchor),
            nameless: AtomicBool::new(false),
            used: AtomicBool::new(false),
            state: Mutex::new(state),
            changed: Condvar::new(),
        }
    }
}

/// Returns whether the disk has the whole state of the file, except for [`Dormant`]'s fields.
fn is_at_rest(state: &State) -> bool {
    // All fields, so that a new one cannot be forgotten here.
    let State {
        content,
        phase,
        mode,
        opens,
        writers,
        overwritten_since,
        running,
        dirty,
        queued,
        generation: _,
        attempts,
        passed,
        // It only adds to `passed`.
        passed_to_writer: _,
        closed: _,
        committed: _,
        pages_stale,
        pages_of: _,
        io,
        write_errors: _,
        recipe,
        hybrid,
        growing,
        needed,
        stepping,
        hot,
        cancel,
    } = state;
    let known = matches!(content, None | Some(Content::Plain(_) | Content::Stub(_)));
    let closed = *opens == 0 && *writers == 0 && *running == 0 && io.is_none() && matches!(mode, Mode::None);
    let settled = !dirty && !queued && *attempts == 0 && matches!(phase, Phase::Idle) && !stepping;
    let nothing_held = recipe.is_none() && hybrid.is_none() && growing.is_none() && needed.is_none();
    let pages_known = !passed && !pages_stale;
    known
        && closed
        && settled
        && nothing_held
        && pages_known
        && overwritten_since.is_none()
        && hot.is_none()
        && cancel.is_none()
}
