//! PostScript: the program without its prolog, comments and structure.
//!
//! Prologs are large and the same in all output of one program, and "make many unrelated Postscript files,
//! especially small ones, look very similar" (Manber, "Finding similar files in a large file system", 1993,
//! section 2), so they are left out as he proposes. Times, titles and page numbers are in comments.

use super::stream::{BUFFER_BYTES, Input, Sink, each};
use std::io::{self, BufReader, Read, SeekFrom};

/// Size limit of a prolog.
pub const PROLOG_BYTES_MAX: u64 = 1 << 20;
/// Everything before these is the same for many files. In file order.
const HEADER_ENDS: [&[u8]; 2] = [b"\n%%EndProlog", b"\n%%EndSetup"];

pub(super) fn write(input: &mut dyn Input, sink: &mut Sink<'_>) {
    if skip_header(input).is_err() {
        return sink.is_partial();
    }
    let mut body = Body { at_start: true, in_comment: false };
    each(&mut BufReader::with_capacity(BUFFER_BYTES, input), sink, &mut |bytes, sink| body.put(bytes, sink));
}

fn skip_header(input: &mut dyn Input) -> io::Result<()> {
    let mut head = Vec::new();
    (&mut *input).take(PROLOG_BYTES_MAX).read_to_end(&mut head)?;
    input.seek(SeekFrom::Start(header_bytes(&head) as u64)).map(drop)
}

/// Returns the length of prolog and setup of a PostScript file that starts with `head`; [`PROLOG_BYTES_MAX`]
/// bytes suffice.
pub fn header_bytes(head: &[u8]) -> usize {
    let ends = HEADER_ENDS.iter().filter_map(|end| memchr::memmem::find(head, end));
    // The line itself is a comment.
    ends.max().map_or(0, |at| at + 1)
}

/// Passes lines to a sink, without comment lines.
struct Body {
    at_start: bool,
    in_comment: bool,
}

impl Body {
    fn put(&mut self, mut bytes: &[u8], sink: &mut Sink<'_>) -> bool {
        while let Some(&first) = bytes.first() {
            if self.at_start {
                self.in_comment = first == b'%';
            }
            let end = memchr::memchr2(b'\n', b'\r', bytes);
            let (line, rest) = bytes.split_at(end.map_or(bytes.len(), |at| at + 1));
            if !self.in_comment && !sink.put(line) {
                return false;
            }
            self.at_start = end.is_some();
            bytes = rest;
        }
        true
    }
}
