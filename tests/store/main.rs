//! The store: damage, crashes, full disks, garbage, its index and its old formats.

#[path = "../common/mod.rs"]
mod common;

mod crash;
mod damage;
mod fixtures;
mod full_disk;
mod gc;
mod index_histories;
mod index_in_use;
mod optimize;
mod overlay;
mod powercut;
mod repair;
