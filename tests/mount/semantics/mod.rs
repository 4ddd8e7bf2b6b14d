//! What docs/semantics.md says, item by item on real mounts: as root with passthrough and as an ordinary user.
//!
//! Most of it is a script that is run in a plain directory and on the mount, on plain files and on stubs: what it
//! prints has to be the same. What the plain directory does is what is expected.
#![allow(clippy::unwrap_used, reason = "a test stops at the first error")]

mod bits;
mod flags;
mod io;
mod limits;
mod links;
mod listings;
mod names;
mod page;
mod programs;
mod rights;
mod times;
mod twin;
