//! Plain text: case, white space and punctuation say nothing (Schleimer, Wilkerson and Aiken, "Winnowing", SIGMOD 2003,
//! section 5).

use super::{Sink, each};
use std::io::BufRead;

const PIECE_BYTES: usize = 4096;

pub(super) fn write(input: &mut dyn BufRead, sink: &mut Sink<'_>) {
    let mut folded = Folded::default();
    // What came of so much input goes out with it, so whoever feeds lines can tell which line it is of.
    each(input, sink, &mut |bytes, sink| folded.put(bytes, sink) && folded.flush(sink));
    folded.end(sink);
}

/// Text on its way to a sink: letters and digits of any script, in lower case. Bytes that are not UTF-8 stay.
#[derive(Default)]
pub(super) struct Folded {
    piece: Vec<u8>,
    /// The beginning of a character whose end has not come yet.
    begun: Vec<u8>,
}

impl Folded {
    /// False once the sink wants no more.
    pub(super) fn put(&mut self, bytes: &[u8], sink: &mut Sink<'_>) -> bool {
        for part in bytes.chunks(PIECE_BYTES) {
            let rest = self.join(part);
            let taken = self.fold(rest);
            self.begun.extend_from_slice(&rest[taken..]);
            if self.piece.len() >= PIECE_BYTES && !self.flush(sink) {
                return false;
            }
        }
        true
    }

    fn flush(&mut self, sink: &mut Sink<'_>) -> bool {
        let goes_on = sink.put(&self.piece);
        self.piece.clear();
        goes_on
    }

    /// Ends the character that was begun, if `part` has its end; returns what is left of `part`.
    fn join<'a>(&mut self, part: &'a [u8]) -> &'a [u8] {
        if self.begun.is_empty() {
            return part;
        }
        let mut joined = std::mem::take(&mut self.begun);
        let begun = joined.len();
        joined.extend_from_slice(&part[..part.len().min(4 - begun)]);
        let taken = self.fold(&joined);
        if taken < begun {
            // Still too short, so it holds all that came.
            self.begun = joined;
            return &[];
        }
        &part[taken - begun..]
    }

    pub(super) fn end(mut self, sink: &mut Sink<'_>) {
        let begun = std::mem::take(&mut self.begun);
        self.piece.extend_from_slice(&begun);
        sink.put(&self.piece);
    }

    /// Folds whole characters; returns how many bytes they had. What is left is the beginning of one.
    fn fold(&mut self, bytes: &[u8]) -> usize {
        let mut at = 0;
        while let Some(&byte) = bytes.get(at) {
            if byte.is_ascii() {
                if byte.is_ascii_alphanumeric() {
                    self.piece.push(byte.to_ascii_lowercase());
                }
                at += 1;
                continue;
            }
            let (valid, error) = match std::str::from_utf8(&bytes[at..bytes.len().min(at + 4)]) {
                Ok(text) => (text, None),
                Err(e) => (valid_part(&bytes[at..], e.valid_up_to()), Some(e)),
            };
            match valid.chars().next() {
                Some(c) => {
                    if c.is_alphanumeric() {
                        let mut buffer = [0; 4];
                        c.to_lowercase().for_each(|c| {
                            self.piece.extend_from_slice(c.encode_utf8(&mut buffer).as_bytes())
                        });
                    }
                    at += c.len_utf8();
                }
                // The end of the bytes is not the end of the text.
                None if error.is_some_and(|e| e.error_len().is_none()) && at + 4 > bytes.len() => break,
                None => {
                    self.piece.push(byte);
                    at += 1;
                }
            }
        }
        at
    }
}

fn valid_part(bytes: &[u8], len: usize) -> &str {
    std::str::from_utf8(&bytes[..len]).unwrap_or_default()
}
