//! Views: the content of a file independent of its format's encoding. Bytes in, other bytes out.
//!
//! Two documents with the same text and different compression, or two sources with different names, share no
//! bytes, but their views do. A view only serves comparisons: no file is restored from it. Each format is one
//! file here, and similarity knows none of them.
//!
//! Invariants, for any input:
//! - The same bytes give the same view, whatever their name and location.
//! - It ends, without a panic. The readable part of damaged or truncated input is in the view, and
//!   [`Seen::whole`] says that it is incomplete.
//! - Memory is bounded ([`DIRECTORY_BYTES_MAX`], [`NESTED_BYTES_MAX`], and some buffers), and so is the
//!   output ([`OUTPUT_BYTES_MAX`], [`EXPANSION_MAX`]): a few bytes that claim to be gigabytes stay a few.

mod archive;
mod encoding;
#[cfg(any(test, feature = "testing"))]
#[doc(hidden)]
pub mod fuzz;
mod gzip;
mod html;
mod kind;
mod pdf;
pub mod postscript;
mod sniff;
mod source;
mod stream;
#[cfg(test)]
mod tests;
mod text;

pub use archive::DIRECTORY_BYTES_MAX;
pub use kind::View;
pub use sniff::HEAD_BYTES;
pub use stream::Input;

use encoding_rs::Encoding;
use std::cell::Cell;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::rc::Rc;
use stream::{BUFFER_BYTES, Sink, Watched, copy};

/// Limit of a view: it must fit into memory for comparisons.
pub const OUTPUT_BYTES_MAX: u64 = 64 << 20;
/// A view ends at this many times the length of its file, plus [`EXPANSION_BYTES_ALWAYS`].
pub const EXPANSION_MAX: u64 = 100;
/// Expansion allowed for any file.
pub const EXPANSION_BYTES_ALWAYS: u64 = 1 << 20;
/// Decoding may produce this many times the limit of the view: markup is decoded, and is not part of it.
pub const DECODED_TO_OUTPUT: u64 = 4;
/// An archive in an archive is opened up to this size; larger ones count as raw bytes.
pub const NESTED_BYTES_MAX: u64 = 4 << 20;
/// Depth limit of archives in archives.
pub const DEPTH_MAX: u32 = 2;

/// Result of a view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Length of the view.
    pub bytes: u64,
    /// Whether it is complete: the input was not damaged, and no limit was reached.
    pub whole: bool,
}

impl View {
    /// Passes the view of `input` to `emit`, piece by piece.
    ///
    /// Fails only if reading `input` does: [`Seen::whole`] reports invalid bytes.
    pub fn through(self, input: &mut dyn Input, emit: &mut dyn FnMut(&[u8])) -> io::Result<Seen> {
        let len = input.seek(SeekFrom::End(0))?;
        input.rewind()?;
        let most = EXPANSION_BYTES_ALWAYS + len.saturating_mul(EXPANSION_MAX);
        let left = most.min(OUTPUT_BYTES_MAX);
        let decoded_left = Rc::new(Cell::new(left.saturating_mul(DECODED_TO_OUTPUT)));
        let mut sink = Sink { emit, bytes: 0, left, whole: true, decoded_left };
        let mut input = Watched { input, failed: None };
        let mut head = Vec::new();
        if self.is_of_text() {
            input.by_ref().take(HEAD_BYTES as u64).read_to_end(&mut head)?;
            input.rewind()?;
        }
        self.write(&mut input, &mut sink, encoding::of(&head), DEPTH_MAX);
        match input.failed {
            Some(e) => Err(e),
            None => Ok(Seen { bytes: sink.bytes, whole: sink.whole }),
        }
    }

    /// Whether it depends on the character encoding.
    fn is_of_text(self) -> bool {
        matches!(self, View::Text | View::Html | View::Source)
    }

    fn write(
        self,
        input: &mut dyn Input,
        sink: &mut Sink<'_>,
        encoding: Option<&'static Encoding>,
        depth: u32,
    ) {
        match self {
            View::PostScript => postscript::write(input, sink),
            View::Archive => archive::write(input, sink, &inner(depth)),
            _ => {
                let mut input = BufReader::with_capacity(BUFFER_BYTES, input);
                self.write_in_order(&mut input, sink, encoding, depth);
            }
        }
    }

    /// Writes formats that can be read from start to end. Others pass unchanged.
    fn write_in_order(
        self,
        input: &mut dyn BufRead,
        sink: &mut Sink<'_>,
        encoding: Option<&'static Encoding>,
        depth: u32,
    ) {
        match self {
            View::Text => encoding::write(encoding, input, sink, text::write),
            View::Html => encoding::write(encoding, input, sink, html::write),
            View::Source => encoding::write(encoding, input, sink, source::write),
            View::Pdf => pdf::write(input, sink),
            View::Gzip => gzip::write(input, sink, &inner(depth)),
            View::Raw | View::PostScript | View::Archive => copy(input, sink),
        }
    }
}

/// Returns [`write_inner`] for the formats that contain files.
fn inner(depth: u32) -> impl Fn(&mut dyn BufRead, &mut Sink<'_>) {
    move |input, sink| write_inner(input, sink, depth)
}

/// Writes the content of an archive member or a compressed file through its own view. Formats that need
/// random access are read into memory, if they are small and not too deep.
fn write_inner(input: &mut dyn BufRead, sink: &mut Sink<'_>, depth: u32) {
    let mut head = Vec::with_capacity(HEAD_BYTES);
    // The error returns when the rest is read.
    let _ = (&mut *input).take(HEAD_BYTES as u64).read_to_end(&mut head);
    let view = match sniff::by_content(&head) {
        Some(View::Html) => View::Html,
        Some(view) if depth > 0 => view,
        _ => View::Raw,
    };
    let encoding = encoding::of(&head).filter(|_| view.is_of_text());
    let mut all = io::Cursor::new(head).chain(input);
    if !matches!(view, View::Archive | View::PostScript) {
        return view.write_in_order(&mut all, sink, encoding, depth.saturating_sub(1));
    }
    let mut bytes = Vec::new();
    let limit = NESTED_BYTES_MAX.min(sink.left);
    let read = all.by_ref().take(limit).read_to_end(&mut bytes);
    let more = all.fill_buf().is_ok_and(|more| !more.is_empty());
    match read {
        Ok(_) if more => {
            if sink.put(&bytes) {
                copy(&mut all, sink);
            }
        }
        Ok(_) => view.write(&mut io::Cursor::new(bytes), sink, None, depth - 1),
        Err(_) => sink.is_partial(),
    }
}
