//! dedupfs: a storage-deduplicating overlay filesystem, as a library.

pub mod admin;
pub mod chunk;
pub mod cli;
pub mod config;
pub mod control;
pub mod daemon;
pub mod db;
pub mod fuse;
pub mod id;
pub mod overlay;
pub mod recipe;
pub mod repo;
pub mod similarity;
pub mod store;
