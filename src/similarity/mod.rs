//! Similarity: finds the contents that resemble a file, from samples of their bytes.
//!
//! Each unique chunk is sketched once, when it is new ([`Sketch`]). The [`Similarity`] index maps features to
//! chunks and chunks to the contents that contain them. So its size and time depend on unique bytes,
//! identical files are one content, and a rename costs nothing. [`Similarity::query`] answers with estimates;
//! [`exact::compare`] turns a candidate into a fact, from bytes that the caller provides.
//!
//! Invariants: the index is only ever a hint. All of it can be rebuilt from the stored bytes; a stale or
//! missing row costs a candidate and never data. This module never reads the store.
//!
//! `docs/similarity.md` has definitions, `docs/decisions/0003-similarity-default.md` the choice of method and
//! its parameters.

mod bits;
mod boilerplate;
mod buffer;
mod estimate;
pub mod exact;
mod filter;
mod filter_block;
mod filtered;
mod filters;
mod frequent;
#[cfg(any(test, feature = "testing"))]
#[doc(hidden)]
pub mod fuzz;
mod gram;
pub mod groups;
mod hashed;
mod index;
pub mod methods;
mod order;
mod prefix;
mod query;
mod rank;
mod rows;
mod scratch;
mod sketch;
mod state;
mod sweep;
mod tally;
#[cfg(test)]
mod tests;

pub use boilerplate::Boilerplate;
pub use frequent::Frequent;
pub use gram::{FEATURE_BITS, GRAM_BYTES, LEVEL_MAX};
pub use index::{Similarity, SimilarityOptions};
pub use query::Answer;
pub use rank::Candidate;
pub use sketch::{QuerySketch, Sketch, SketchParams};
pub use state::SimilarityStats;

use crate::db::DbError;
use crate::id::ChunkId;

/// Errors of the similarity index. None means a loss of user data: the index can be rebuilt.
#[derive(Debug, thiserror::Error)]
pub enum SimilarityError {
    /// The database failed.
    #[error("similarity index: {0}")]
    Db(#[from] DbError),
    /// A content names a chunk that was not added, or that was swept since: sketch it, add it, try again.
    #[error("similarity index: chunk {0} was not sketched")]
    UnknownChunk(ChunkId),
    /// A sketch of one of the other methods cannot be read.
    #[error(transparent)]
    Sketch(#[from] methods::Damaged),
    /// The index of a method was made with other parameters than it has now.
    #[error(
        "index of method {method}: it was made with {has}, not with {wanted}: rebuild it, or go back to those"
    )]
    Parameters {
        /// The method.
        method: &'static str,
        /// Parameters that the index was made with.
        has: String,
        /// Parameters that were asked for.
        wanted: String,
    },
    /// The index was written by another version of this program. Clear it and rebuild.
    #[error("similarity index: written in a form that this program does not know")]
    Format,
    /// All 2^32 chunk or content numbers are given out. Clear it and rebuild.
    #[error("similarity index: out of numbers; rebuild it")]
    Full,
    /// More contents than can be compared all against all.
    #[error("similarity index: expected at most 268,435,456 contents to compare all against all")]
    TooMany,
    /// A temporary file in the store could not be written or read.
    #[error("comparing all against all: {operation}: {source}")]
    Scratch {
        /// The operation.
        operation: &'static str,
        /// The error of the system.
        source: std::io::Error,
    },
    /// The caller does not wait any more.
    #[error("interrupted")]
    Interrupted,
}
