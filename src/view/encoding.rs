//! The character encoding of a text. Views of text compare texts in UTF-8, so others are decoded first: UTF-16, and the
//! encodings of the WHATWG standard, as a byte order mark, the text itself or its bytes tell.

use super::stream::{BUFFER_BYTES, Sink};
use chardetng::{EncodingDetector, Iso2022JpDetection, Utf8Detection};
use encoding_rs::{Decoder, Encoding, UTF_8, UTF_16BE, UTF_16LE};
use std::borrow::Cow;
use std::io::{self, BufRead, Read};

/// Bytes in which a text declares its encoding.
const DECLARED_BYTES: usize = 1024;
/// Words before the name of an encoding: in HTML, XML, and sources (PEP 263, `vim: set fileencoding=`).
const DECLARATIONS: [&[u8]; 4] = [b"charset=", b"encoding=", b"coding:", b"coding="];

/// Returns the encoding of a text that starts with `head`; `None` for UTF-8 without a byte order mark, and if it is no text.
pub(super) fn of(head: &[u8]) -> Option<&'static Encoding> {
    if let Some((encoding, _)) = Encoding::for_bom(head) {
        return Some(encoding);
    }
    if let Some(encoding) = utf_16(head) {
        return Some(encoding);
    }
    let is_utf_8 = match std::str::from_utf8(head) {
        Ok(_) => true,
        // The head may end within a character.
        Err(e) => e.error_len().is_none(),
    };
    if is_utf_8 || head.contains(&0) {
        return None;
    }
    let found = declared(head).unwrap_or_else(|| guessed(head));
    (found != UTF_8).then_some(found)
}

/// Returns `head` in UTF-8.
pub(super) fn utf_8(head: &[u8]) -> Cow<'_, [u8]> {
    match of(head) {
        None => Cow::Borrowed(head),
        Some(encoding) => Cow::Owned(encoding.decode(head).0.into_owned().into_bytes()),
    }
}

/// UTF-16 without a byte order mark: every other byte of ASCII is zero.
fn utf_16(head: &[u8]) -> Option<&'static Encoding> {
    let pairs = head.len() / 2;
    let zeros = |at: usize| head.iter().skip(at).step_by(2).filter(|byte| **byte == 0).count();
    let is_mostly = |at: usize| pairs >= 8 && zeros(at) * 10 >= pairs * 9 && zeros(1 - at) == 0;
    is_mostly(1).then_some(UTF_16LE).or_else(|| is_mostly(0).then_some(UTF_16BE))
}

fn declared(head: &[u8]) -> Option<&'static Encoding> {
    let head = &head[..head.len().min(DECLARED_BYTES)];
    DECLARATIONS.iter().find_map(|declaration| {
        let start = memchr::memmem::find(head, declaration)? + declaration.len();
        let name = head[start..].trim_ascii_start();
        let name = name.strip_prefix(b"\"").or(name.strip_prefix(b"'")).unwrap_or(name);
        let is_of_name = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_:".contains(byte);
        let len = name.iter().position(|byte| !is_of_name(byte)).unwrap_or(name.len());
        Encoding::for_label(&name[..len])
    })
}

fn guessed(head: &[u8]) -> &'static Encoding {
    let mut detector = EncodingDetector::new(Iso2022JpDetection::Deny);
    detector.feed(head, true);
    detector.guess(None, Utf8Detection::Deny)
}

/// Decodes a text to UTF-8, as much at a time as it gets.
pub(super) struct Decoded<'a> {
    input: &'a mut dyn BufRead,
    decoder: Decoder,
    /// Decoded bytes; those before `at` are consumed.
    text: Vec<u8>,
    at: usize,
    ended: bool,
}

impl<'a> Decoded<'a> {
    pub(super) fn new(input: &'a mut dyn BufRead, encoding: &'static Encoding) -> Decoded<'a> {
        let decoder = encoding.new_decoder();
        Decoded { input, decoder, text: Vec::new(), at: 0, ended: false }
    }
}

impl Read for Decoded<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let text = self.fill_buf()?;
        let len = text.len().min(buffer.len());
        buffer[..len].copy_from_slice(&text[..len]);
        self.consume(len);
        Ok(len)
    }
}

impl BufRead for Decoded<'_> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        while self.at == self.text.len() && !self.ended {
            let bytes = self.input.fill_buf()?;
            let bytes = &bytes[..bytes.len().min(BUFFER_BYTES)];
            self.ended = bytes.is_empty();
            let most = self.decoder.max_utf8_buffer_length(bytes.len()).unwrap_or(4 * BUFFER_BYTES);
            self.text.resize(most, 0);
            let (_, read, written, _) = self.decoder.decode_to_utf8(bytes, &mut self.text, self.ended);
            self.input.consume(read);
            self.text.truncate(written);
            self.at = 0;
        }
        Ok(&self.text[self.at..])
    }

    fn consume(&mut self, len: usize) {
        self.at += len;
    }
}

/// Has `write` write a text in UTF-8, whatever its encoding.
pub(super) fn write(
    encoding: Option<&'static Encoding>,
    input: &mut dyn BufRead,
    sink: &mut Sink<'_>,
    write: impl Fn(&mut dyn BufRead, &mut Sink<'_>),
) {
    match encoding {
        None => write(input, sink),
        Some(encoding) => write(&mut Decoded::new(input, encoding), sink),
    }
}
