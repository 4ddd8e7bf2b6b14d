//! Deflate streams in files: inflated, and deflated again to the very bytes that they were. Pure.
//!
//! Zip archives (docx, odt, jar, wheel), gzip files, PDF and compressed sections of ELF files hold deflate streams. Who made one is not known; zlib at one of
//! its nine levels made most, and what it made it makes again. So a stream **re-deflates** if zlib gives its very bytes
//! for what it inflates to, at some level; this is tried, never assumed.
//!
//! zlib itself is linked, and statically: other implementations, and other versions of it, may deflate to other bytes.
//! Whoever relies on it checks the hash of what comes out.

mod starts;
mod stream;

pub use starts::{Starts, ZIP_HEADER_BYTES, looks_like, looks_like_zip};
pub use stream::{Deflater, Level, inflate_into};

use std::ops::Range;

/// Of a file so many streams that do not re-deflate are looked at before the first that does.
const TRIALS: usize = 8;

/// A deflate stream that re-deflates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stream {
    /// Its bytes in the file.
    pub deflated: Range<usize>,
    /// Bytes that it inflates to.
    pub len: usize,
    /// At which it re-deflates.
    pub level: Level,
}

/// The streams of a file that re-deflate and inflate to something, and to `len_max` bytes at most, in their order. None of a file whose first
/// streams do not.
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
        // Of an empty member: nothing to be gained.
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
