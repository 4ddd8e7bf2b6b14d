//! Deflate streams in files: inflated, and deflated again to the original bytes. Pure.
//!
//! Zip archives (docx, odt, jar, wheel), gzip files, PDF and compressed sections of ELF files contain deflate
//! streams. The program that wrote a stream is unknown, but zlib at one of its nine levels wrote most of
//! them, and reproduces its own output. So a stream **re-deflates** if zlib, at some level, turns its
//! inflated bytes into its exact bytes. This is tried, never assumed.
//!
//! zlib is linked statically, because other implementations and versions may produce other bytes. A caller
//! that relies on the result checks its hash.

mod starts;
mod stream;

pub use starts::{Starts, ZIP_HEADER_BYTES, looks_like, looks_like_zip};
pub use stream::{Deflater, Level, inflate_into};

use std::ops::Range;

/// The search ends once this many more streams failed to re-deflate than succeeded.
const TRIALS: usize = 8;

/// A deflate stream that re-deflates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stream {
    /// Its range in the file.
    pub deflated: Range<usize>,
    /// Its inflated length.
    pub len: usize,
    /// The level at which it re-deflates.
    pub level: Level,
}

/// Returns the streams of a file that re-deflate and inflate to 1 to `len_max` bytes, in order. None for a
/// file whose first streams do not re-deflate.
pub fn streams(file: &[u8], len_max: usize) -> Vec<Stream> {
    let mut found: Vec<Stream> = Vec::new();
    let mut deflater = Deflater::default();
    let mut starts = Starts::new(file);
    let (mut plain, mut failed) = (Vec::new(), 0);
    while found.len() + TRIALS > failed
        && let Some(start) = starts.next()
    {
        plain.clear();
        let Some(read) = inflate_into(&file[start..], &mut plain, len_max) else { continue };
        let deflated = start..start + read;
        starts.go_on_at(deflated.end);
        // An empty member saves nothing.
        if plain.is_empty() {
            continue;
        }
        let likely = found.last().map_or(Level::DEFAULT, |last| last.level);
        match deflater.level_of(&plain, &file[deflated.clone()], likely) {
            Some(level) => found.push(Stream { deflated, len: plain.len(), level }),
            None => failed += 1,
        }
    }
    found
}

#[cfg(test)]
mod tests;
