//! Old content: versions, snapshots and exports.

#[path = "../common/mod.rs"]
mod common;

mod export;
mod export_copy;
mod history;
mod history_model;
mod scheduled;
mod snapshots;
mod snapshots_plain;
