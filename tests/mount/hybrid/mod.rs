//! Hybrid files: large stubs that are written to without their content being written back.
//!
//! `model` holds one against a vector of bytes, `mounted` against a plain file; `crash` ends the process at each step;
//! `states` lays out what a power cut or somebody else may leave; `pieces` converts what does not fit on the disk at once;
//! `cost` counts bytes. Power cuts: `tests/store/powercut`.
//!
//! Seen to fail with each of these switched off:
//!
//! - Copying up the rest of a block that a write covers in part, or waiting for the end of a change before chunking is
//!   given up (`overlay/hybrid/file.rs`, `commit.rs`): `model`.
//! - Record HYDRATING before a committed file is emptied (`commit.rs`): `crash`, "story 1, step 16". The list before
//!   the file when it is cut off (`file.rs`): `crash`, "story 0, step 20".
//! - Writing back for a chmod by an ordinary user (`overlay/hydrate.rs`): `mounted`, "ends as any file does".
//! - Losing pending extents that are holes; punching out bytes without a record; the record *synced* (`file.rs`): one
//!   of `states` each, by name.
//! - EIO instead of the base for a list that cannot be believed (`overlay/recover.rs`), the inode number in its header
//!   (`list.rs`): `states`, the copy and the damaged list.
//! - Taking a piece that was cut short up again, so that the mtime is as before; keeping the list of the piece before until the next
//!   record is durable (`beginning.rs`): `crash`, "story 7", steps 6 and 13. Pieces at all: `pieces`.
//! - Marking hybrid files in a collection, sparing their lists in it, removing the list with the last name: `states`,
//!   "a collection keeps what a hybrid file needs".
//!
//! Not seen to fail: without emptying the list before the record goes, when a hybrid file is opened with O_TRUNC (no
//! step at which `crash` ends the process lies between).
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a test stops at the first error, and tells what it measured"
)]

mod cost;
mod crash;
mod model;
mod mounted;
mod pieces;
mod states;
mod world;
mod write_back;
