//! Source code: its tokens, a byte each. Names, numbers and strings are one symbol each, so that renaming
//! changes nothing. Keywords and punctuation stay; comments and white space are left out.
//!
//! The unit is the token because text with folded names is too similar everywhere: 32 bytes of `v.v(v,v);`
//! are in every program, 32 tokens in a row (about five lines) rarely are. Comments are left out because
//! copied code often gets new comments, and because a copied licence header is not copied code.
//!
//! One scanner serves all languages: it knows `//`, `/* */`, `#` and the quotes, and treats everything
//! ambiguous (a glob of a shell, a regular expression) the same way each time, which suffices for
//! comparisons.

use super::stream::{Sink, each};
use std::io::BufRead;

const NAME: u8 = b'v';
const NUMBER: u8 = b'0';
const STRING: u8 = b'"';
/// The first keyword; each keyword has its own byte.
const WORD: u8 = 0x80;
/// A longer word is a name.
const WORD_BYTES_MAX: usize = 12;
const PIECE_BYTES: usize = 4096;

/// Keywords of many languages; at most 128, sorted. Their order is part of the index.
const WORDS: &[&str] = &[
    "abstract",
    "and",
    "as",
    "assert",
    "async",
    "auto",
    "await",
    "begin",
    "bool",
    "break",
    "case",
    "catch",
    "char",
    "class",
    "const",
    "continue",
    "crate",
    "def",
    "default",
    "defer",
    "define",
    "del",
    "delete",
    "do",
    "double",
    "elif",
    "else",
    "end",
    "enum",
    "except",
    "export",
    "extends",
    "extern",
    "false",
    "fi",
    "final",
    "finally",
    "float",
    "fn",
    "for",
    "foreach",
    "from",
    "func",
    "function",
    "go",
    "goto",
    "if",
    "impl",
    "implements",
    "import",
    "in",
    "include",
    "instanceof",
    "int",
    "interface",
    "is",
    "lambda",
    "let",
    "long",
    "loop",
    "match",
    "mod",
    "move",
    "mut",
    "namespace",
    "new",
    "nil",
    "none",
    "not",
    "null",
    "operator",
    "or",
    "package",
    "pass",
    "private",
    "protected",
    "pub",
    "public",
    "raise",
    "ref",
    "return",
    "select",
    "self",
    "short",
    "signed",
    "sizeof",
    "static",
    "struct",
    "super",
    "switch",
    "template",
    "then",
    "this",
    "throw",
    "throws",
    "trait",
    "true",
    "try",
    "type",
    "typedef",
    "typeof",
    "union",
    "unsafe",
    "unsigned",
    "until",
    "use",
    "using",
    "var",
    "virtual",
    "void",
    "volatile",
    "where",
    "while",
    "with",
    "yield",
];
const _: () = assert!(WORDS.len() <= 256 - WORD as usize);

pub(super) fn write(input: &mut dyn BufRead, sink: &mut Sink<'_>) {
    let mut scanner = Scanner::default();
    each(input, sink, &mut |bytes, sink| {
        bytes.chunks(PIECE_BYTES).all(|piece| {
            piece.iter().for_each(|&byte| scanner.step(byte));
            scanner.flush(sink)
        })
    });
    scanner.step(b'\n');
    scanner.flush(sink);
}

#[derive(Clone, Copy, Default, PartialEq)]
enum State {
    #[default]
    Between,
    Word,
    Number,
    /// After a `/` that may begin a comment, and whether it may begin a block comment.
    Slash(bool),
    LineComment,
    /// Within `/* */`, and whether the last byte was a `*`.
    BlockComment(bool),
    /// After a `#` at the start of a word.
    Hash,
    /// After this many quotes of this kind in sequence.
    Quotes(u8, u8),
    /// Inside this many quotes of this kind; whether the last byte was a backslash; closing quotes seen.
    String {
        quote: u8,
        count: u8,
        escaped: bool,
        closing: u8,
    },
}

#[derive(Default)]
struct Scanner {
    state: State,
    /// The previous byte.
    before: u8,
    word: Vec<u8>,
    tokens: Vec<u8>,
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'$' || !byte.is_ascii()
}

impl Scanner {
    fn flush(&mut self, sink: &mut Sink<'_>) -> bool {
        let goes_on = sink.put(&self.tokens);
        self.tokens.clear();
        goes_on
    }

    fn step(&mut self, byte: u8) {
        self.state =
            match self.state {
                State::Between => self.begin(byte),
                State::Word if is_word(byte) => {
                    // One more than the longest, so that a name that only begins like a keyword is not one.
                    if self.word.len() <= WORD_BYTES_MAX {
                        self.word.push(byte);
                    }
                    State::Word
                }
                State::Word => {
                    self.end_word();
                    self.begin(byte)
                }
                State::Number if is_word(byte) || byte == b'.' => State::Number,
                State::Number => self.begin(byte),
                State::Slash(_) if byte == b'/' => State::LineComment,
                State::Slash(true) if byte == b'*' => State::BlockComment(false),
                State::Slash(_) => {
                    self.tokens.push(b'/');
                    self.begin(byte)
                }
                State::LineComment if byte == b'\n' => State::Between,
                State::LineComment => State::LineComment,
                State::BlockComment(true) if byte == b'/' => State::Between,
                State::BlockComment(_) => State::BlockComment(byte == b'*'),
                // `#include`, `#[derive]`, `#!/bin/sh`, `# a comment`.
                State::Hash if byte == b' ' || byte == b'#' || byte == b'!' || byte == b'\n' => {
                    if byte == b'\n' { State::Between } else { State::LineComment }
                }
                State::Hash => {
                    self.tokens.push(b'#');
                    self.begin(byte)
                }
                State::Quotes(quote, count) if byte == quote && count < 3 => State::Quotes(quote, count + 1),
                // Two are an empty string, three begin a long one.
                State::Quotes(_, 2) => {
                    self.tokens.push(STRING);
                    self.begin(byte)
                }
                State::Quotes(quote, count) => {
                    self.tokens.push(STRING);
                    self.in_string(quote, count, false, 0, byte)
                }
                State::String { quote, count, escaped, closing } => {
                    self.in_string(quote, count, escaped, closing, byte)
                }
            };
        self.before = byte;
    }

    fn begin(&mut self, byte: u8) -> State {
        let free = self.before.is_ascii_whitespace() || self.before == 0;
        match byte {
            b'0'..=b'9' => {
                self.tokens.push(NUMBER);
                State::Number
            }
            byte if is_word(byte) => {
                self.word.push(byte);
                State::Word
            }
            // In a shell `dir/*` is not a comment.
            b'/' => State::Slash(free || b";{}(),".contains(&self.before)),
            b'#' if free => State::Hash,
            // A lifetime of Rust.
            b'\'' if self.before == b'<' || self.before == b'&' => State::Between,
            b'"' | b'\'' | b'`' => State::Quotes(byte, 1),
            byte if byte.is_ascii_whitespace() => State::Between,
            byte => {
                self.tokens.push(byte);
                State::Between
            }
        }
    }

    fn in_string(&mut self, quote: u8, count: u8, escaped: bool, closing: u8, byte: u8) -> State {
        let inside = |escaped, closing| State::String { quote, count, escaped, closing };
        match byte {
            _ if escaped => inside(false, 0),
            b'\\' => inside(true, 0),
            // A quote that is not closed in its line was an apostrophe, or the language joins lines.
            b'\n' if count == 1 && quote != b'`' => State::Between,
            byte if byte == quote && closing + 1 == count => State::Between,
            byte if byte == quote => inside(false, closing + 1),
            _ => inside(false, 0),
        }
    }

    fn end_word(&mut self) {
        let word = std::str::from_utf8(&self.word).unwrap_or_default();
        let known = WORDS.binary_search_by(|known| known.as_bytes().cmp(word.as_bytes()));
        self.tokens.push(known.map_or(NAME, |at| WORD + at as u8));
        self.word.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::WORDS;

    #[test]
    fn words_are_sorted_and_short() {
        assert!(WORDS.is_sorted_by(|a, b| a < b));
        assert!(WORDS.iter().all(|word| word.len() <= super::WORD_BYTES_MAX));
    }
}
