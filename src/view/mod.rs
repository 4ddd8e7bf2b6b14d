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
#[cfg(any(test, feature = "testing"))]
#[doc(hidden)]
pub mod fuzz;
mod gzip;
mod html;
mod pdf;
pub mod postscript;
mod sniff;
mod source;
#[cfg(test)]
mod tests;
mod text;

use std::cell::Cell;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::rc::Rc;
use std::str::FromStr;

/// Bytes of a file that [`View::of`] examines.
pub const HEAD_BYTES: usize = 4096;
/// Limit of a view: it must fit into memory for comparisons.
pub const OUTPUT_BYTES_MAX: u64 = 64 << 20;
/// A view ends at this many times the length of its file, plus [`EXPANSION_BYTES_ALWAYS`].
pub const EXPANSION_MAX: u64 = 100;
/// Expansion allowed for any file.
pub const EXPANSION_BYTES_ALWAYS: u64 = 1 << 20;
/// Decoding may produce this many times the limit of the view: markup is decoded, and is not part of it.
pub const DECODED_TO_OUTPUT: u64 = 4;
/// Byte limit for directories of archives: they take about ten times as much memory.
pub const DIRECTORY_BYTES_MAX: u64 = 4 << 20;
/// An archive in an archive is opened up to this size; larger ones count as raw bytes.
pub const NESTED_BYTES_MAX: u64 = 4 << 20;
/// Depth limit of archives in archives.
pub const DEPTH_MAX: u32 = 2;
const BUFFER_BYTES: usize = 32 << 10;

/// A way to interpret a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum View {
    /// The unchanged bytes.
    Raw,
    /// Letters and digits of a text, in lower case.
    Text,
    /// The text of HTML and XML, like [`View::Text`].
    Html,
    /// The tokens of source code, a byte each: names, numbers and strings are one symbol, comments are left
    /// out.
    Source,
    /// A PostScript program without prolog and comments.
    PostScript,
    /// The streams of a PDF, decompressed.
    Pdf,
    /// The members of a zip archive (docx, odt, jar, epub), by name, each through its own view.
    Archive,
    /// The decompressed data, through its own view.
    Gzip,
}

/// Result of a view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Length of the view.
    pub bytes: u64,
    /// Whether it is complete: the input was not damaged, and no limit was reached.
    pub whole: bool,
}

/// The input of a view.
pub trait Input: Read + Seek {}

impl<T: Read + Seek> Input for T {}

impl View {
    /// Every view except the raw bytes.
    pub const ALL: [View; 7] =
        [View::Text, View::Html, View::Source, View::PostScript, View::Pdf, View::Archive, View::Gzip];

    /// Returns its name for users.
    pub fn name(self) -> &'static str {
        match self {
            View::Raw => "raw",
            View::Text => "text",
            View::Html => "html",
            View::Source => "source",
            View::PostScript => "postscript",
            View::Pdf => "pdf",
            View::Archive => "archive",
            View::Gzip => "gzip",
        }
    }

    /// Whether the format compresses: then raw bytes are almost useless for comparisons.
    pub fn hides_bytes(self) -> bool {
        matches!(self, View::Pdf | View::Archive | View::Gzip)
    }

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
        self.write(&mut input, &mut sink, DEPTH_MAX);
        match input.failed {
            Some(e) => Err(e),
            None => Ok(Seen { bytes: sink.bytes, whole: sink.whole }),
        }
    }

    fn write(self, input: &mut dyn Input, sink: &mut Sink<'_>, depth: u32) {
        match self {
            View::PostScript => postscript::write(input, sink),
            View::Archive => archive::write(input, sink, depth),
            _ => self.write_in_order(&mut BufReader::with_capacity(BUFFER_BYTES, input), sink, depth),
        }
    }

    /// Writes formats that can be read from start to end. Others pass unchanged.
    fn write_in_order(self, input: &mut dyn BufRead, sink: &mut Sink<'_>, depth: u32) {
        match self {
            View::Text => text::write(input, sink),
            View::Html => html::write(input, sink),
            View::Source => source::write(input, sink),
            View::Pdf => pdf::write(input, sink),
            View::Gzip => gzip::write(input, sink, depth),
            View::Raw | View::PostScript | View::Archive => copy(input, sink),
        }
    }
}

impl FromStr for View {
    type Err = ();

    fn from_str(name: &str) -> Result<View, ()> {
        let all = std::iter::once(View::Raw).chain(View::ALL);
        all.into_iter().find(|view| view.name() == name).ok_or(())
    }
}

/// The target of a view, with its remaining limit.
struct Sink<'a> {
    emit: &'a mut dyn FnMut(&[u8]),
    bytes: u64,
    left: u64,
    whole: bool,
    /// Bytes that all decoders together may still produce.
    decoded_left: Rc<Cell<u64>>,
}

impl Sink<'_> {
    /// Accepts as much as the limit allows. False at the limit: then stop.
    fn put(&mut self, bytes: &[u8]) -> bool {
        let len = (bytes.len() as u64).min(self.left) as usize;
        if len > 0 {
            (self.emit)(&bytes[..len]);
        }
        self.bytes += len as u64;
        self.left -= len as u64;
        self.whole &= len == bytes.len();
        len == bytes.len()
    }

    /// Whether further parts are useless.
    fn is_done(&self) -> bool {
        self.decoded_left.get() == 0 || (self.left == 0 && !self.whole)
    }

    /// Records that the view is incomplete.
    fn is_partial(&mut self) {
        self.whole = false;
    }
}

/// Records read errors: decoders take them for damage.
struct Watched<'a> {
    input: &'a mut dyn Input,
    failed: Option<io::Error>,
}

impl Watched<'_> {
    fn kept<T: Default>(&mut self, result: io::Result<T>) -> io::Result<T> {
        match result {
            Err(e) if e.kind() != io::ErrorKind::Interrupted => {
                let kind = e.kind();
                self.failed.get_or_insert(e);
                Err(kind.into())
            }
            other => other,
        }
    }
}

impl Read for Watched<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let result = self.input.read(buffer);
        self.kept(result)
    }
}

impl Seek for Watched<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        // A position before the start is the decoder's mistake, caused by the input's claims.
        self.input.seek(to)
    }
}

/// Decoded bytes on their way to another decoder, limited by what all decoders of a view may produce
/// together. So input that expands without end, in many members and without output, ends too.
struct Metered<R> {
    inner: R,
    left: Rc<Cell<u64>>,
    cut: bool,
}

impl<R: Read> Metered<R> {
    fn new(inner: R, sink: &Sink<'_>) -> Metered<R> {
        Metered { inner, left: sink.decoded_left.clone(), cut: false }
    }

    /// Whether more data would have come.
    fn ended(&self) -> bool {
        self.cut
    }
}

impl<R: Read> Read for Metered<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = (buffer.len() as u64).min(self.left.get()) as usize;
        if most == 0 {
            self.cut |= !buffer.is_empty();
            return Ok(0);
        }
        let len = self.inner.read(&mut buffer[..most])?;
        // Its source may be metered too.
        self.left.set(self.left.get().saturating_sub(len as u64));
        Ok(len)
    }
}

/// Calls `visit` with each piece of `input` until it returns false.
fn each(input: &mut dyn BufRead, sink: &mut Sink<'_>, visit: &mut dyn FnMut(&[u8], &mut Sink<'_>) -> bool) {
    loop {
        match input.fill_buf() {
            Ok([]) => return,
            Ok(bytes) => {
                let len = bytes.len();
                if !visit(bytes, sink) {
                    return;
                }
                input.consume(len);
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return sink.is_partial(),
        }
    }
}

fn copy(input: &mut dyn BufRead, sink: &mut Sink<'_>) {
    each(input, sink, &mut |bytes, sink| sink.put(bytes));
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
    let mut all = io::Cursor::new(head).chain(input);
    if !matches!(view, View::Archive | View::PostScript) {
        return view.write_in_order(&mut all, sink, depth.saturating_sub(1));
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
        Ok(_) => view.write(&mut io::Cursor::new(bytes), sink, depth - 1),
        Err(_) => sink.is_partial(),
    }
}
