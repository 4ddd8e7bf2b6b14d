//! Two-way sync: makes copies of a tree on several machines equal, without losing a byte.
//! ```text
//!  link      messages over two streams  -- pipe (streams with timeouts)
//!   |
//!  session   one side of a sync, without I/O  -- proto (frames), known, content, batch (transfer), diff (a tree as changes)
//!   |    \
//!   |     group                                pure: entries that are merged and changed as one
//!   |     merge, plan, guard, halfway          pure: three trees -> one; one tree -> another, in steps
//!   |     selection, presence                  pure: a device that has only a part of its tree
//!   |     version, tree, identify, attributes  pure: descent of snapshots; entries of a directory
//!   v
//!  local     a directory as a replica          -- scan, memory, old_contents, staging, execute, unfit,
//!                                                 owners (accounts, waiting, unseen)
//! ```
//!
//! [`delta`] encodes contents against contents that the receiver has; `batch` connects it to a session.
//!
//! Invariants:
//! - Descent of snapshots decides which version is newer, never a clock.
//! - A step examines an entry right before it overwrites it.
//! - A sync can be interrupted at any byte and run again.
//!
//! docs/sync.md has the protocol, the semantics, and what a peer can and cannot do.

pub mod accounts;
pub mod adopt;
pub mod attributes;
pub mod bases;
pub mod batch;
pub mod conflicts;
pub mod content;
pub mod delta;
pub mod device;
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
mod names;
pub mod old_contents;
pub mod owners;
pub mod pipe;
pub mod plan;
pub mod presence;
pub mod print;
pub mod proto;
mod recipes;
mod removed_contents;
pub mod replica;
pub mod rules;
pub mod scan;
pub mod seen;
pub mod selection;
pub mod session;
mod shared_map;
mod since;
pub mod staging;
pub mod tree;
pub mod two_versions;
pub mod unfit;
pub mod units;
mod unseen;
pub mod version;
pub mod waiting;
pub mod wal_index;

pub use error::SyncError;
pub use local::Local;
pub use replica::Replica;
pub use session::{Outcome, Session};
pub use shared_map::SharedMap;
