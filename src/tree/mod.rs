//! A filesystem over a backing directory, without any FUSE type: names, attributes, open files, stubs and hybrid files.
//!
//! The backing directory owns the namespace: names, modes, owners, times, links and xattrs. A regular file in
//! it is *plain* (it has its bytes), or a *stub* (it is empty, and the xattr `user.dedupfs` names the recipe
//! of its bytes in the store). The disk decides which ([`stub`](crate::backing::stub), `recover`). A large stub that was
//! written to is *hybrid* for a while: changes are in the file, the rest is still in the store (`hybrid`).
//!
//! The tree reads stubs, and writes their bytes back before a program changes them (`hydrate`). It makes no stubs: it
//! reports closed files to the part above ([`Event`]).

mod anchor;
pub(crate) mod attributes;
mod change_log;
mod changed;
pub(crate) mod changes;
mod content_out;
mod count;
mod directory;
pub(crate) mod event;
pub(crate) mod file;
mod filesystem;
mod former_record;
pub(crate) mod growing;
pub(crate) mod handle;
pub(crate) mod heat;
pub(crate) mod hybrid;
pub(crate) mod hydrate;
pub(crate) mod hydrating;
pub(crate) mod inode;
mod lookups;
mod names;
mod namespace;
pub(crate) mod needed;
mod news;
pub(crate) mod observe;
pub(crate) mod observer;
pub(crate) mod policy;
pub(crate) mod proof;
mod record;
mod recover;
mod renamed;
pub(crate) mod requester;
mod resize;
mod sources;
pub(crate) mod sparse;
mod stub_content;
mod stub_record;
pub(crate) mod ticks;
mod wait;
pub(crate) mod walk;
mod write_errors;

pub use changes::{Change, Still};
pub use content_out::{StoredContent, xattrs_of};
pub use directory::{DirEntry, DirHandle};
pub use event::Event;
pub use filesystem::{Tree, TreeParts};
pub use former_record::FormerRecord;
pub(crate) use handle::ALL;
pub use handle::{DropPages, Handle, Io, OpenFlags, Opened};
pub use heat::HotOptions;
pub use hybrid::{HYBRID_BYTES_MIN, HybridOptions};
pub use inode::{Content, Inode, PassToken};
pub use observer::{Committed, KeptForHistory, Meta, Observer, Xattr};
pub use policy::{BadGlob, Dedup, Policies, Policy, Rule};
pub use wait::Seen;
