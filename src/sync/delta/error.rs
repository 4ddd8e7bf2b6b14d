//! Errors of a delta.

use super::BaseId;
use std::io;

/// An error of encoding or decoding a delta.
#[derive(Debug, thiserror::Error)]
pub enum DeltaError {
    /// A target could not be read while it was encoded.
    #[error("target {target}: reading it: {source}")]
    Target {
        /// Its number in the stream, from 0.
        target: u64,
        /// What the system answered.
        source: io::Error,
    },
    /// A target became shorter while it was encoded.
    #[error(
        "target {target}: expected {expected} bytes, found {found}: it changed while it was read; try again"
    )]
    Changed {
        /// Its number in the stream, from 0.
        target: u64,
        /// Bytes that it had.
        expected: u64,
        /// Bytes that it has.
        found: u64,
    },
    /// A base could not be read.
    #[error("base {base}: reading it: {source}")]
    Base {
        /// Which.
        base: BaseId,
        /// What the system answered.
        source: io::Error,
    },
    /// The stream names a base that is not there.
    #[error("base {base}: not among those that both sides have; send the content whole")]
    UnknownBase {
        /// Which.
        base: BaseId,
    },
    /// The stream could not be written.
    #[error("delta: writing it: {0}")]
    Write(io::Error),
    /// The stream could not be read.
    #[error("delta: reading it: {0}")]
    Read(io::Error),
    /// What was decoded could not be written.
    #[error("target {target}: writing what was received: {source}")]
    Receive {
        /// Its number in the stream, from 0.
        target: u64,
        /// What the system answered.
        source: io::Error,
    },
    /// The bytes are no delta.
    #[error("delta: expected {expected}, found {found}: damaged on its way, or not a delta; fetch it again")]
    Damaged {
        /// What was expected.
        expected: &'static str,
        /// What was found.
        found: String,
    },
    /// The stream asks for more than was allowed.
    #[error("delta: {what}: expected at most {limit}, found {found}")]
    TooMuch {
        /// Of what.
        what: &'static str,
        /// What was allowed.
        limit: u64,
        /// What it asks for.
        found: u64,
    },
    /// An archive cannot be written again as it was.
    #[error(
        "target {target}: deflating a member again gives {found}; have it sent without looking into archives"
    )]
    Deflate {
        /// Its number in the stream, from 0.
        target: u64,
        /// What came out.
        found: String,
    },
    /// What was decoded is not what was encoded.
    #[error(
        "delta: the contents do not have the hash that was sent: damaged on its way, or the bases differ"
    )]
    Mismatch,
}

impl DeltaError {
    pub(super) fn damaged(expected: &'static str, found: impl std::fmt::Display) -> DeltaError {
        DeltaError::Damaged { expected, found: found.to_string() }
    }

    pub(super) fn at_most(what: &'static str, limit: u64, found: u64) -> Result<(), DeltaError> {
        if found > limit { Err(DeltaError::TooMuch { what, limit, found }) } else { Ok(()) }
    }
}
