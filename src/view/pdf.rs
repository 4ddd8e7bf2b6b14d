//! PDF: its streams, decompressed, in file order. Programs differ in header, objects, cross references,
//! trailers, dates and ids; the content is in the streams.
//!
//! Streams are found by their keyword, so a file without a usable cross reference works too. Streams of cross
//! references and metadata are left out. Data with other filters (JPEG) passes unchanged.

use super::gzip::Damaged;
use super::stream::{BUFFER_BYTES, Metered, Sink};
use flate2::bufread::DeflateDecoder;
use std::io::{self, BufRead, Read};

/// Bytes before a stream that are searched for its dictionary.
const DICTIONARY_BYTES_MAX: usize = 2048;
const BEGIN: &[u8] = b"stream";
const END: &[u8] = b"endstream";

pub(super) fn write(input: &mut dyn BufRead, sink: &mut Sink<'_>) {
    let mut before = Vec::new();
    loop {
        match next_stream(input, &mut before) {
            Ok(true) => {}
            Ok(false) => return,
            Err(_) => return sink.is_partial(),
        }
        let dictionary = dictionary(&before);
        let has = |name: &[u8]| find(dictionary, name).is_some();
        let goes_on = match () {
            () if has(b"/XRef") || has(b"/Metadata") => true,
            () if has(b"/FlateDecode") || has(b"/Fl ") => inflate(input, sink),
            () => copy_stream(input, sink),
        };
        before.clear();
        if !goes_on {
            return;
        }
    }
}

/// Reads up to the first byte of the next stream; `before` then ends with the bytes before it.
fn next_stream(input: &mut dyn BufRead, before: &mut Vec<u8>) -> io::Result<bool> {
    loop {
        let from = before.len().saturating_sub(END.len());
        let (new, old) = match input.fill_buf() {
            Ok([]) => return Ok(false),
            Ok(bytes) => (bytes, before.len()),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(e) => return Err(e),
        };
        let len = new.len();
        before.extend_from_slice(new);
        let mut at = from;
        while let Some(found) = find(&before[at..], BEGIN) {
            let (start, end) = (at + found, at + found + BEGIN.len());
            at = end;
            if before[..start].ends_with(b"end") || end <= old {
                continue;
            }
            input.consume(end - old);
            before.truncate(start);
            skip_line_end(input)?;
            return Ok(true);
        }
        input.consume(len);
        let surplus = before.len().saturating_sub(DICTIONARY_BYTES_MAX);
        before.drain(..surplus);
    }
}

fn skip_line_end(input: &mut dyn BufRead) -> io::Result<()> {
    for end in [b'\r', b'\n'] {
        if input.fill_buf()?.first() == Some(&end) {
            input.consume(1);
        }
    }
    Ok(())
}

/// Returns everything after the last `obj`: the dictionary of the stream, with nested ones.
fn dictionary(before: &[u8]) -> &[u8] {
    let before = &before[before.len().saturating_sub(DICTIONARY_BYTES_MAX)..];
    let start = before.windows(3).rposition(|word| word == b"obj").unwrap_or(0);
    &before[start..]
}

/// Decompresses a stream. Its checksum does not count, because decompressed bytes can be compared without it. Some
/// programs leave the header out.
fn inflate(input: &mut dyn BufRead, sink: &mut Sink<'_>) -> bool {
    if let Ok([method, flags, ..]) = input.fill_buf()
        && method & 0xf == 8
        && (u16::from(*method) << 8 | u16::from(*flags)) % 31 == 0
    {
        input.consume(2);
    }
    let mut decoded = Metered::new(Damaged::new(DeflateDecoder::new(input)), sink);
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        match decoded.read(&mut buffer) {
            Ok(0) => break,
            Ok(len) if sink.put(&buffer[..len]) => {}
            Ok(_) => return false,
            Err(_) => {}
        }
    }
    if decoded.ended() || decoded.inner.seen {
        sink.is_partial();
    }
    !decoded.ended()
}

/// Copies everything up to `endstream`, without the line end before it.
fn copy_stream(input: &mut dyn BufRead, sink: &mut Sink<'_>) -> bool {
    let mut window = Vec::new();
    loop {
        let len = match input.fill_buf() {
            Ok([]) => {
                sink.is_partial();
                return sink.put(&window);
            }
            Ok(bytes) => {
                window.extend_from_slice(bytes);
                bytes.len()
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => return false,
        };
        if let Some(at) = find(&window, END) {
            input.consume(len - (window.len() - (at + END.len())));
            let body = window[..at].strip_suffix(b"\n").unwrap_or(&window[..at]);
            return sink.put(body.strip_suffix(b"\r").unwrap_or(body));
        }
        input.consume(len);
        // The keyword may have begun, and the line end belongs to it.
        let sure = window.len().saturating_sub(END.len() + 1);
        if !sink.put(&window[..sure]) {
            return false;
        }
        window.drain(..sure);
    }
}

fn find(bytes: &[u8], word: &[u8]) -> Option<usize> {
    memchr::memmem::find(bytes, word)
}
