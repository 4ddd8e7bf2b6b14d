//! Contents without names: bytes by the id of their recipe, each chunk stored once, and their sketches.
//!
//! Invariants: nothing here knows a file or a path. A content can be read as soon as it was put, and is durable after
//! [`Contents::sync`].

mod builder;
pub(crate) mod collection;
pub(crate) mod error;
pub(crate) mod filter;
pub(crate) mod forgetting;
mod indexing;
pub(crate) mod ingest;
pub(crate) mod options;
mod shares;
pub(crate) mod throttle;

pub use builder::ContentsBuilder;
pub use collection::Contents;
pub use error::{OverlayError, Result};
pub use filter::Filter;
pub use indexing::Indexing;
pub use options::{Look, SimilarOptions};
pub use shares::{Ranking, Shares};
