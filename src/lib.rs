//! dedupfs: a storage-deduplicating overlay filesystem, as a library.

pub mod chunk;
pub mod db;
pub mod fuse;
pub mod id;
pub mod overlay;
pub mod recipe;
pub mod similarity;
pub mod store;
