//! Front ends: a view that suits the format removes text that does not tell a document from others (sections 2.1 and 5.2)
//! before winnowing sees it, and maps places in the rest back to lines of the document.
//!
//! Text loses case, white space and punctuation; HTML its tags too; source code the names of things; raw bytes nothing.

use super::{Winnow, WinnowSketch};
use crate::similarity::methods::{Builder, Method};
use crate::view::View;
use std::cell::Cell;
use std::ffi::OsStr;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::ops::Range;

/// Longer lines count as several, to limit memory.
const LINE_BYTES_MAX: u64 = 64 << 10;
/// The longest output that is held.
const TEXT_BYTES_MAX: usize = 1 << 30;

/// Maps parts of a front end's output to lines of the document.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lines {
    /// Start of the output of each line, with the line, from 1; ascending.
    starts: Vec<(u64, u64)>,
}

impl Lines {
    /// Returns the lines that some bytes come from, first and last; `None` if there was no output.
    pub fn of(&self, bytes: &Range<u64>) -> Option<(u64, u64)> {
        let line = |at: u64| {
            let next = self.starts.partition_point(|(start, _)| *start <= at);
            next.checked_sub(1).map(|last| self.starts[last].1)
        };
        line(bytes.start).zip(line(bytes.end.saturating_sub(1).max(bytes.start)))
    }
}

/// A document, read through the front end that suits it.
#[derive(Clone, Debug)]
pub struct Document {
    /// The front end.
    pub view: View,
    /// Its fingerprints; their places are in the front end's output.
    pub sketch: WinnowSketch,
    /// The front end's output.
    pub text: Vec<u8>,
    /// The lines of those places. In HTML, PDF and archives a place may be shown some lines late, because they are decoded
    /// in larger parts.
    pub lines: Lines,
}

/// Reads a document through `view`, or through the one that its content and `name` ask for if there is none.
///
/// Fails if reading fails, and if the front end's output is longer than 1 GiB.
pub fn read<R: Read + Seek>(
    mut input: R,
    view: Option<View>,
    name: Option<&OsStr>,
    winnow: &Winnow,
) -> io::Result<Document> {
    let view = match view {
        Some(view) => view,
        None => {
            let len = input.seek(SeekFrom::End(0))?;
            View::of_file(len, name, &mut |at, buffer| {
                input.seek(SeekFrom::Start(at))?;
                let mut got = 0;
                while got < buffer.len() {
                    match input.read(&mut buffer[got..])? {
                        0 => break,
                        more => got += more,
                    }
                }
                Ok(got)
            })?
        }
    };
    let mut builder = winnow.builder(name);
    let (line, mut text, mut lines) = (Cell::new(0), Vec::new(), Lines::default());
    let mut is_too_long = false;
    let mut by_line = ByLine { input: BufReader::new(input), line: &line, goes_on: false };
    view.through(&mut by_line, &mut |bytes| {
        if lines.starts.last().is_none_or(|(_, last)| *last != line.get()) {
            lines.starts.push((text.len() as u64, line.get()));
        }
        is_too_long |= text.len() + bytes.len() > TEXT_BYTES_MAX;
        if !is_too_long {
            text.extend_from_slice(bytes);
            builder.add(bytes);
        }
    })?;
    if is_too_long {
        return Err(io::Error::other(
            "expected at most 1 GiB to compare; `dedupctl diff` compares longer files",
        ));
    }
    Ok(Document { view, sketch: builder.finish(), text, lines })
}

/// Returns at most one line for each read, and records it.
struct ByLine<'a, R> {
    input: BufReader<R>,
    line: &'a Cell<u64>,
    /// Whether the last read ended within a line.
    goes_on: bool,
}

impl<R: Read> Read for ByLine<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let bytes = self.input.fill_buf()?;
        let most = bytes.len().min(buffer.len()).min(LINE_BYTES_MAX as usize);
        let end = memchr::memchr(b'\n', &bytes[..most]);
        let len = end.map_or(most, |at| at + 1);
        buffer[..len].copy_from_slice(&bytes[..len]);
        self.input.consume(len);
        if len > 0 && !self.goes_on {
            self.line.set(self.line.get() + 1);
        }
        if len > 0 {
            self.goes_on = end.is_none();
        }
        Ok(len)
    }
}

impl<R: Read + Seek> Seek for ByLine<'_, R> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let at = self.input.seek(to)?;
        if at == 0 {
            self.line.set(0);
            self.goes_on = false;
        }
        Ok(at)
    }
}
