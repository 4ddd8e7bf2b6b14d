//! The mount: what programs see of it, and what becomes of their files.

#[path = "../common/mod.rs"]
mod common;

mod attributes;
mod confined;
mod conversion;
mod debian;
mod fsx;
mod guards;
mod hot;
mod hybrid;
mod invisible;
mod lifecycle;
mod mount;
mod orders;
mod policies;
mod posix;
mod programs;
mod same_syscalls;
mod semantics;
