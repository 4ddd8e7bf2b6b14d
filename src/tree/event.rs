//! Events that the tree reports to the part above it.
//!
//! Invariants: the tree calls nothing above it; it reports an event, and works the same without a listener. The listener may be
//! called while the state of the file is locked, so it takes no other file's lock, and it does not wait.

use super::inode::{Inode, State};
use crate::id::FileId;
use std::sync::Arc;

/// A change of a file, or of how it is used.
pub enum Event<'a> {
    /// A regular file was created, with this inode number.
    Created(FileId),
    /// The last handle of a file was closed.
    Released(&'a Arc<Inode>, &'a mut State),
    /// The content of a closed file has changed. [`Event::Due`] follows, unless the file waits to be converted.
    Changed(&'a Arc<Inode>, &'a mut State),
    /// A closed file may be converted.
    Due(&'a Arc<Inode>, &'a mut State),
    /// A hot file that waits to be converted is about to be changed: it is an ordinary one from now on.
    Cooled(&'a Arc<Inode>, &'a mut State),
    /// A file that waits to be converted got another policy with its new name.
    PolicyChanged(&'a Arc<Inode>),
    /// Files below a directory have got another policy with its new name.
    DirMoved(Arc<Inode>),
}

/// Receives events.
pub type Listener = dyn Fn(Event<'_>) + Send + Sync;
