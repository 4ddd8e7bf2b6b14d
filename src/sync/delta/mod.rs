//! Deltas: contents written as copies from contents that the receiver has, and the rest as literals.
//!
//! The sender holds the new contents ("targets") and, as the receiver does, older ones ("bases"), so it finds what they
//! share by itself and sends one stream; nothing goes back. [`Encoder`] writes the stream, [`decode()`] reads it.
//!
//! ```text
//!  target --> anchors --> seeds in the gaps --> operations: literal length, copy length, where from ---> columns, zstd
//!    |        (large bases) (16 bytes)                 |
//!    |                                                 +--> bytes of the bases around the gaps: the prefix
//!    +--> bytes that no copy covers, of all targets, one after the other --> one zstd frame with that prefix
//! ```
//!
//! Why each part is there:
//! - Anchors are content-defined pieces ([`crate::chunk`], 2 KiB on average): equal pieces are found however far they
//!   moved, with a table of some bytes a piece. A match is extended byte by byte both ways.
//! - Seeds are 16 bytes at every 16th place of a base, or of the neighbourhood of a gap where a base is large.
//! - What is left resembles what it replaced. The receiver knows from the operations where the gaps are, so it derives
//!   the same prefix (`prefix.rs`) that the sender compressed the literals with.
//! - A document that is a zip archive is compared by what its members inflate to (`zip.rs`), where deflating that again
//!   gives back its very bytes.
//!
//! Invariants:
//! - A stream is a function of the targets, the bases and the options: the same ones give the same bytes.
//! - [`decode()`] gives what was encoded or an error. It takes any bytes: each length is checked before it is used, the
//!   memory that it takes is bounded by constants and not by what the stream claims ([`Limits`]), and the last 32 bytes
//!   are a BLAKE3 hash over all targets. Until it returned, nothing that it wrote may be shown to anyone.
//!
//! Memory: both sides hold at most one segment (literals and prefix of some 32 MiB each, 2^20 operations), one piece
//! of a target (32 MiB), the tables of one target's bases (24 bytes for each 2 KiB of a large base, up to
//! 2^21 of them; 1 to 2 bytes for each byte of small ones, up to 32 MiB) and zstd's window (128 MiB at most). Time is
//! linear in the bytes of targets and bases.
//!
//! The form of the stream is in `docs/delta.md`, the choices and their measurements in
//! `docs/decisions/0033-delta.md`.

mod anchor;
mod choose;
mod columns;
mod decode;
mod encode;
mod error;
#[cfg(any(test, feature = "testing"))]
#[doc(hidden)]
pub mod fuzz;
mod header;
mod matcher;
mod op;
mod prefix;
mod seed;
mod segment;
mod source;
#[cfg(test)]
mod tests;
mod varint;
mod view;
mod zip;

pub use choose::{BASES_CHOSEN, Resemblance, choose};
pub use decode::{Decoded, Limits, Receiver, decode};
pub use encode::{Encoded, Encoder, Level, Options};
pub use error::DeltaError;
pub use source::{BaseId, Bases, ReadAt};

/// The form of the stream; written first.
pub const VERSION: u8 = 1;
/// Bytes of a target that are matched at once.
const PIECE_BYTES_MAX: usize = 32 << 20;
/// Bases of one target.
pub const BASES_MAX: usize = 4;
/// A segment ends when it has so many literal bytes ...
const SEGMENT_LITERAL_BYTES: usize = 32 << 20;
/// ... or so many operations ...
const SEGMENT_OPS: usize = 1 << 20;
/// ... or so many targets and pieces of them ...
const SEGMENT_ITEMS: u64 = 1 << 18;
/// ... or so many members of archives ...
const SEGMENT_MEMBERS: usize = 1 << 18;
/// ... or so many bytes of prefix.
const SEGMENT_PREFIX_BYTES: usize = 24 << 20;
/// An archive with more members is taken as it is.
const MEMBERS_MAX: usize = 1 << 16;
/// Operations of one piece: copies but the last of a run are 24 bytes or longer.
const PIECE_OPS_MAX: usize = PIECE_BYTES_MAX / 24 + 2;
/// A prefix is cut off there.
const PREFIX_BYTES_MAX: usize = 32 << 20;
/// Logarithm of the longest distance in bytes that literals refer back.
const WINDOW_LOG_MAX: u32 = 27;
