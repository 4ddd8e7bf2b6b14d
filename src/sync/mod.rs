//! Two-way sync: copies of a tree on several machines become the same again, and no byte is lost.
//!
//! ```text
//!  link      messages over two streams  -- pipe (that do not wait for ever)
//!   |
//!  session   one side of a sync, without I/O  -- proto (frames), known, content, batch (bytes on their way), diff (a tree as changes)
//!   |    \
//!   |     group                                pure: what is merged and changed as one thing
//!   |     merge, plan, guard, halfway          pure: three trees -> one; one tree -> another, in steps
//!   |     version, tree, look                  pure: what came from what; what a directory holds
//!   v
//!  local     a directory as a replica          -- scan, memory, past, staging, execute, unfit
//! ```
//!
//! [`delta`] says contents in fewer bytes, against what the receiver has; `batch` stands between it and a session.
//!
//! Invariants: what is newer is decided by descent of snapshots, never by a clock; nothing is overwritten
//! that was not looked at right before; a sync can be cut at any byte and run again. docs/sync.md has the protocol, the
//! semantics and what a peer can and cannot do.

pub mod adopt;
pub mod batch;
pub mod conflicts;
pub mod content;
pub mod delta;
pub mod diff;
pub mod error;
pub mod execute;
#[cfg(any(test, feature = "testing"))]
#[doc(hidden)]
pub mod fuzz;
pub mod group;
pub mod guard;
pub mod halfway;
pub mod identify;
pub mod ignored;
pub mod inodes;
pub mod known;
pub mod link;
pub mod local;
pub mod memory;
pub mod merge;
pub mod old_contents;
pub mod pipe;
pub mod plan;
pub mod proto;
mod removed_contents;
pub mod replica;
pub mod scan;
pub mod session;
pub mod staging;
pub mod tree;
pub mod unfit;
pub mod version;
pub mod wal_index;

pub use error::SyncError;
pub use local::Local;
pub use replica::Replica;
pub use session::{Outcome, Session};
