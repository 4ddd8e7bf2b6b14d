//! Numbers of a segment, separated by meaning, so that each kind compresses by its own statistics.

use super::{DeltaError, varint};
use std::io::Read;

/// The meaning of a column's numbers.
#[derive(Clone, Copy)]
pub(super) enum Column {
    /// Target: its form, and how many bases it has.
    Head,
    /// Target: its bases.
    Base,
    /// Target: its length.
    Size,
    /// Archive: its members.
    Member,
    /// Piece: how many copies it has.
    Copies,
    /// Copy: literal bytes before it.
    Literal,
    /// Copy: its length.
    Len,
    /// Copy: its view.
    View,
    /// Copy: distance from the expected offset.
    Offset,
}

const COLUMNS: usize = 9;
/// Maximum bytes of all columns of a segment together, uncompressed.
pub(super) const COLUMNS_BYTES_MAX: u64 = 64 << 20;
/// zstd's level. Columns are small, but a large part of the stream if little has changed.
const LEVEL: i32 = 19;

/// Columns to write.
#[derive(Default)]
pub(super) struct Columns {
    columns: [Vec<u8>; COLUMNS],
}

/// Columns to read from the front.
pub(super) struct Reader {
    columns: [Vec<u8>; COLUMNS],
    read: [usize; COLUMNS],
}

impl Columns {
    pub fn put(&mut self, column: Column, number: u64) {
        varint::put(&mut self.columns[column as usize], number);
    }

    pub fn bytes(&self) -> usize {
        self.columns.iter().map(Vec::len).sum()
    }

    /// Returns all columns, in the shorter of two encodings: each as its own zstd frame, or all as one.
    pub fn encode(&self) -> std::io::Result<Vec<u8>> {
        let mut lens = Vec::new();
        self.columns.iter().for_each(|column| varint::put(&mut lens, column.len() as u64));
        let mut apart = [&[0], &lens[..]].concat();
        for column in &self.columns {
            put_packed(&mut apart, column)?;
        }
        let mut joined = [&[1], &lens[..]].concat();
        put_packed(&mut joined, &self.columns.concat())?;
        Ok(if joined.len() <= apart.len() { joined } else { apart })
    }
}

/// Appends the shorter of `bytes` and of their zstd frame, after its length.
fn put_packed(out: &mut Vec<u8>, bytes: &[u8]) -> std::io::Result<()> {
    // The compressor knows the length in advance, so it allocates no more memory than needed.
    let mut compressor = zstd::bulk::Compressor::new(LEVEL)?;
    compressor.include_contentsize(false)?;
    let packed = compressor.compress(bytes)?;
    let shorter = if packed.len() < bytes.len() { &packed[..] } else { bytes };
    varint::put(out, shorter.len() as u64);
    out.extend_from_slice(shorter);
    Ok(())
}

fn take_packed(encoded: &mut &[u8], len: u64) -> Result<Vec<u8>, DeltaError> {
    let packed_len = varint::take(encoded)?;
    let split = usize::try_from(packed_len).ok().and_then(|at| encoded.split_at_checked(at));
    let Some((packed, rest)) = split else {
        return Err(DeltaError::damaged(
            "a whole column",
            format_args!("only {} of {packed_len} bytes", encoded.len()),
        ));
    };
    *encoded = rest;
    if packed_len == len {
        return Ok(packed.to_vec());
    }
    let read = || -> std::io::Result<Vec<u8>> {
        let mut decoder = zstd::stream::read::Decoder::with_buffer(packed)?;
        decoder.window_log_max(super::WINDOW_LOG_MAX)?;
        let mut bytes = Vec::new();
        // One byte more, to verify that the frame ends there.
        decoder.take(len + 1).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let bytes = read().map_err(|e| DeltaError::damaged("a column that zstd can read", e))?;
    if bytes.len() as u64 != len {
        return Err(DeltaError::damaged(
            "a column of the length that it says",
            format_args!("not {len} bytes"),
        ));
    }
    Ok(bytes)
}

impl Reader {
    pub fn decode(encoded: &[u8]) -> Result<Reader, DeltaError> {
        let Some((&joined, mut encoded)) = encoded.split_first() else {
            return Err(DeltaError::damaged("columns", "nothing"));
        };
        let mut lens = [0; COLUMNS];
        let mut sum = 0u64;
        for len in &mut lens {
            *len = varint::take(&mut encoded)?;
            sum = sum.saturating_add(*len);
        }
        DeltaError::at_most("bytes of columns", COLUMNS_BYTES_MAX, sum)?;
        let mut columns: [Vec<u8>; COLUMNS] = Default::default();
        match joined {
            0 => {
                for (column, len) in columns.iter_mut().zip(lens) {
                    *column = take_packed(&mut encoded, len)?;
                }
            }
            1 => {
                let all = take_packed(&mut encoded, sum)?;
                let mut rest = &all[..];
                for (column, len) in columns.iter_mut().zip(lens) {
                    let (bytes, after) = rest.split_at(len as usize);
                    *column = bytes.to_vec();
                    rest = after;
                }
            }
            other => return Err(DeltaError::damaged("columns in form 0 or 1", other)),
        }
        if !encoded.is_empty() {
            return Err(DeltaError::damaged(
                "the end of the columns",
                format_args!("{} bytes", encoded.len()),
            ));
        }
        Ok(Reader { columns, read: [0; COLUMNS] })
    }

    pub fn take(&mut self, column: Column) -> Result<u64, DeltaError> {
        let column = column as usize;
        let mut rest = &self.columns[column][self.read[column]..];
        let number = varint::take(&mut rest)?;
        self.read[column] = self.columns[column].len() - rest.len();
        Ok(number)
    }

    /// Returns whether all numbers were read.
    pub fn is_done(&self) -> bool {
        self.columns.iter().zip(self.read).all(|(column, read)| column.len() == read)
    }
}
