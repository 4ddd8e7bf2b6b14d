//! What docs/semantics.md says, item by item on real mounts: as root with passthrough and as an ordinary user.
//!
//! Most of it is a script that is run in a plain directory and on the mount, on plain files and on stubs: what it
//! prints has to be the same. What the plain directory does is what is expected.
#![allow(clippy::unwrap_used, reason = "a test stops at the first error")]

mod common;

#[path = "semantics/bits.rs"]
mod bits;
#[path = "semantics/flags.rs"]
mod flags;
#[path = "semantics/io.rs"]
mod io;
#[path = "semantics/limits.rs"]
mod limits;
#[path = "semantics/links.rs"]
mod links;
#[path = "semantics/listings.rs"]
mod listings;
#[path = "semantics/names.rs"]
mod names;
#[path = "semantics/page.rs"]
mod page;
#[path = "semantics/programs.rs"]
mod programs;
#[path = "semantics/rights.rs"]
mod rights;
#[path = "semantics/times.rs"]
mod times;
#[path = "semantics/twin.rs"]
mod twin;
