//! Deltas: contents encoded as copies from contents that the receiver has, plus literals.
//!
//! The sender has the new contents ("targets") and, like the receiver, older ones ("bases"). So it finds common parts
//! by itself and sends one stream; nothing goes back. [`Encoder`] writes the stream, [`decode()`] reads it.
//!
//! ```text
//!  target --> anchors --> seeds in the gaps --> operations: literal length, copy length, where from ---> columns, zstd
//!    |        (large bases) (16 bytes)                 |
//!    |                                                 +--> bytes of the bases around the gaps: the prefix
//!    +--> bytes that no copy covers, of all targets, one after the other --> one zstd frame with that prefix
//! ```
//!
//! Why each part is there:
//! - Anchors are content-defined pieces ([`crate::chunk`], 2 KiB on average). They find equal pieces however far these
//!   moved, with a table of some bytes a piece. A match is extended byte by byte in both directions.
//! - Seeds are 16 bytes at every 16th offset of a base. For a large base, only the surroundings of a gap have seeds.
//! - The remaining bytes resemble those that they replaced. The operations show the receiver where the gaps are, so it
//!   derives the same prefix (`prefix.rs`) that the sender compressed the literals with.
//! - A document that is a zip archive is compared with its members inflated (`zip.rs`) if deflating them again returns
//!   exactly the original bytes.
//!
//! Invariants:
//! - A stream is a function of the targets, the bases and the options: the same ones give the same bytes.
//! - [`decode()`] returns the encoded targets or an error, for any bytes. It checks each length before it uses it.
//!   Constants bound its memory, not the stream's claims ([`Limits`]). The last 32 bytes are a BLAKE3 hash over all
//!   targets.
//! - The caller must not show anything that [`decode()`] wrote before it has returned.
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

/// Version of the stream's format; written first.
pub const VERSION: u8 = 1;
/// Bytes of a target that are matched in one piece.
const PIECE_BYTES_MAX: usize = 32 << 20;
/// Maximum number of bases of one target.
pub const BASES_MAX: usize = 4;
/// Literal bytes that end a segment.
const SEGMENT_LITERAL_BYTES: usize = 32 << 20;
/// Operations that end a segment.
const SEGMENT_OPS: usize = 1 << 20;
/// Targets and pieces of targets that end a segment.
const SEGMENT_ITEMS: u64 = 1 << 18;
/// Members of archives that end a segment.
const SEGMENT_MEMBERS: usize = 1 << 18;
/// Bytes of prefix that end a segment.
const SEGMENT_PREFIX_BYTES: usize = 24 << 20;
/// An archive with more members is not inflated.
const MEMBERS_MAX: usize = 1 << 16;
/// Maximum operations of one piece: copies, except the last of a run, have at least 24 bytes.
const PIECE_OPS_MAX: usize = PIECE_BYTES_MAX / 24 + 2;
/// Maximum length of a prefix; the rest is cut off.
const PREFIX_BYTES_MAX: usize = 32 << 20;
/// Logarithm of the longest distance in bytes that literals refer back.
const WINDOW_LOG_MAX: u32 = 27;
