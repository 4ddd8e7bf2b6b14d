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
        /// The error of the system.
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
        /// The number of the base.
        base: BaseId,
        /// The error of the system.
        source: io::Error,
    },
    /// The stream names a base that this side does not have.
    #[error("base {base}: not among those that both sides have; send the content whole")]
    UnknownBase {
        /// The number of the base.
        base: BaseId,
    },
    /// The stream could not be written.
    #[error("delta: writing it: {0}")]
    Write(io::Error),
    /// The stream could not be read.
    #[error("delta: reading it: {0}")]
    Read(io::Error),
    /// A decoded target could not be written.
    #[error("target {target}: writing the received bytes: {source}")]
    Receive {
        /// Its number in the stream, from 0.
        target: u64,
        /// The error of the system.
        source: io::Error,
    },
    /// The bytes are no delta.
    #[error("delta: expected {expected}, found {found}: damaged on its way, or not a delta; fetch it again")]
    Damaged {
        /// The expected part.
        expected: &'static str,
        /// The part that was found.
        found: String,
    },
    /// The stream asks for more than the limit.
    #[error("delta: {what}: expected at most {limit}, found {found}")]
    TooMuch {
        /// The limited quantity.
        what: &'static str,
        /// The limit.
        limit: u64,
        /// The requested amount.
        found: u64,
    },
    /// An archive cannot be deflated to its original bytes.
    #[error(
        "target {target}: deflating a member again gives {found}; have it sent without looking into archives"
    )]
    Deflate {
        /// Its number in the stream, from 0.
        target: u64,
        /// The result of deflating.
        found: String,
    },
    /// The decoded targets are not the encoded ones.
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
