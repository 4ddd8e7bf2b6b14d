//! The published methods of finding similar files, each complete behind one trait, in addition to the default.
//!
//! ```text
//! bytes -> Builder -> Sketch            one pass, in pieces of any size
//! Sketch -> head, entries               facts of the whole file; keys that an index files it under, with a value each
//! heads, entries met -> Likeness        the paper's measures, and no others
//! ```
//!
//! A method knows neither files nor databases nor the other methods. [`AnyMethod`] is the same without types, over
//! encoded heads, so that code that lets the user choose (the index, the commands) names no method. Two files are compared
//! by the keys that both have, counted. So an index needs only the head and the entries of a file, and all against all is
//! one count over keys in order ([`Index::pairs`]).
//!
//! Invariants, which `laws` tests for each method:
//! - The same bytes and name give the same sketch, however they are split, and the same entries if those are drained on the way.
//! - Decoding an encoded head returns the same head. Damaged encodings are errors.
//! - Comparing the other way round gives the same likeness, with both shares exchanged.
//! - A file that has keys is wholly like itself. Two sketches that share a key find each other.

mod any;
mod chosen;
pub mod chunk_graph;
mod counting;
mod damaged;
mod heads;
mod index;
#[cfg(test)]
pub(crate) mod laws;
mod likeness;
mod method;
mod options;
mod postings;
pub mod sif;
pub mod simhash;
mod sorter;
mod streamed;
#[cfg(test)]
mod tests;
pub mod winnow;

pub use any::{AnyBuilder, AnyMethod, Comparer};
pub use chosen::{BadMethod, Chosen, all, examples, named, names};
pub use damaged::Damaged;
pub use heads::HEAD_BYTES_MAX;
#[cfg(any(test, feature = "testing"))]
pub(crate) use heads::{HEAD_ROW_BYTES, Heads};
pub use index::{Found, FoundPair, Index, IndexOptions, IndexStats, PairCounts, PairsAsked};
pub use likeness::Likeness;
pub use method::{Builder, EachKey, Entry, KeyVisitor, Method, Sums, Whole, sketch_of};
pub use options::{Options, Parametric};
pub use postings::unpack_keys;
#[cfg(any(test, feature = "testing"))]
pub(crate) use postings::{POSTING_BYTES, Postings};
pub use streamed::{AnySketch, Sketcher};

use options::Known;

/// All methods, in the order of lists.
const KNOWN: &[Known] = &[
    Known::of::<sif::Sif>(),
    Known::of::<winnow::Winnow>(),
    Known::of::<chunk_graph::ChunkGraph>(),
    Known::of::<simhash::SimHash>(),
];
