//! The published methods on a directory tree, in an overlay or not: one pass over its files, a temporary
//! index in memory, and names instead of content ids.

pub mod chunk_graph;
pub(crate) mod files;
pub mod regions;
mod saved;
mod scanned;
pub mod sif;
pub mod winnow;

pub use crate::query::with_paths::{
    FilesAlike, LikeGroup, LikeGroups, MatchWithPaths, PairWithPaths, PairsWithPaths, WithPaths, of_reference,
};
pub use scanned::Tree;
