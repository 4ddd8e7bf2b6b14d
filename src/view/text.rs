//! Plain text without case, white space and punctuation (Schleimer, Wilkerson and Aiken, "Winnowing", SIGMOD
//! 2003, section 5).

use super::stream::{Sink, each};
use std::io::BufRead;

const PIECE_BYTES: usize = 4096;

pub(super) fn write(input: &mut dyn BufRead, sink: &mut Sink<'_>) {
    let mut folded = Folded::default();
    // The output for this input goes out with it, so that a caller that feeds lines knows the line of each
    // output.
    each(input, sink, &mut |bytes, sink| folded.put(bytes, sink) && folded.flush(sink));
    folded.end(sink);
}

/// Folds text for a sink: letters and digits of any script, in lower case. Bytes that are not UTF-8 stay.
#[derive(Default)]
pub(super) struct Folded {
    piece: Vec<u8>,
    /// The beginning of an incomplete character.
    begun: Vec<u8>,
}

impl Folded {
    /// Returns false once the sink is full.
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

    /// Completes the pending character, if `part` has its end; returns the rest of `part`.
    fn join<'a>(&mut self, part: &'a [u8]) -> &'a [u8] {
        if self.begun.is_empty() {
            return part;
        }
        let mut joined = std::mem::take(&mut self.begun);
        let begun = joined.len();
        joined.extend_from_slice(&part[..part.len().min(4 - begun)]);
        let taken = self.fold(&joined);
        if taken < begun {
            // Still incomplete.
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

    /// Folds complete characters; returns how many bytes they had. The rest begins a character.
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
