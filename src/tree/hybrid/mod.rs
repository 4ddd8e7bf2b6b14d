//! Hybrid files: large stubs that were written to. Changes are in the file, the rest is still in the store.
//!
//! A large stub that is opened for writing stays a stub until the first write. Then, before the write is
//! answered: extent list created and durable -> record HYBRID, durable -> the file gets its length. From then
//! on the content is the base recipe plus the list (`list`, `extents`, `file`), until the file is committed
//! as a stub (`convert/hybrid_commit.rs`), or completely hydrated (`Tree::make_plain`). A large plain file that does not fit
//! on the disk together with its chunks becomes hybrid too, with its beginning as the base (`convert/hybrid_beginning.rs`). The
//! list is removed only when a durable record does without it. Reasons: `docs/decisions/0011-hybrid.md`.

mod content;
pub(crate) mod extents;
pub(crate) mod file;
pub(crate) mod list;
pub(crate) mod options;
pub(crate) mod steps;
mod write;

pub(crate) use file::{Hybrid, Merged};
pub use options::{HYBRID_BYTES_MIN, HybridOptions};
pub(crate) use write::header;
