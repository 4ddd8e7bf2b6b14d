//! Two copies that are kept the same.

#[path = "../common/mod.rs"]
mod common;

mod arrived;
mod merge_tool;
mod owners;
mod scenarios;
mod selective;
mod since;
mod sync;
mod sync_rules;
mod watch;
