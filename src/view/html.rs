//! HTML and XML: their text, folded as in [`super::text`]; without tags, attributes, comments, scripts and
//! styles.
//!
//! Word processors store XML in an archive, so such documents become comparable with web pages and plain
//! texts. html5gum reads both as a stream, holds only the current tag, and accepts any bytes: HTML has no
//! syntax errors.

use super::stream::{Metered, Sink};
use super::text::Folded;
use html5gum::emitters::Emitter;
use html5gum::{Error, IoReader, State, Tokenizer};
use std::io::{BufRead, Read};

/// Longer tag names have no meaning here.
const NAME_BYTES_MAX: usize = 16;

pub(super) fn write(input: &mut dyn BufRead, sink: &mut Sink<'_>) {
    // The tokenizer buffers a possible end of a script, at any length.
    let mut input = Metered::new(input, sink);
    let mut text =
        Text { sink, folded: Folded::default(), done: false, tag: Tag::default(), inside: Name::default() };
    let mut tokens = Tokenizer::new_with_emitter(IoReader::new(input.by_ref()), &mut text);
    // A token means that the sink is full.
    let failed = tokens.next().is_some_and(|end| end.is_err());
    drop(tokens);
    let Text { sink, folded, .. } = text;
    folded.end(sink);
    if failed || input.ended() {
        sink.is_partial();
    }
}

#[derive(Default)]
struct Tag {
    name: Name,
    is_end: bool,
    is_empty: bool,
}

/// The kept part of a tag name.
#[derive(Default, PartialEq)]
struct Name {
    bytes: [u8; NAME_BYTES_MAX],
    len: usize,
}

impl Name {
    fn push(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            if let Some(place) = self.bytes.get_mut(self.len) {
                *place = byte;
            }
            self.len += 1;
        }
    }

    fn is(&self, name: &[u8]) -> bool {
        self.len == name.len() && self.bytes.get(..self.len) == Some(name)
    }
}

struct Text<'a, 'b> {
    sink: &'a mut Sink<'b>,
    folded: Folded,
    done: bool,
    tag: Tag,
    /// The surrounding script or style.
    inside: Name,
}

/// Gets the tokenizer's output, and keeps the text.
impl Emitter for &mut Text<'_, '_> {
    type Token = ();

    fn emit_string(&mut self, bytes: &[u8]) {
        if self.inside.len == 0 {
            self.done |= !self.folded.put(bytes, self.sink);
        }
    }

    fn pop_token(&mut self) -> Option<()> {
        self.done.then_some(())
    }

    fn init_start_tag(&mut self) {
        self.tag = Tag::default();
    }

    fn init_end_tag(&mut self) {
        self.tag = Tag { is_end: true, ..Tag::default() };
    }

    fn push_tag_name(&mut self, bytes: &[u8]) {
        self.tag.name.push(bytes);
    }

    fn set_self_closing(&mut self) {
        self.tag.is_empty = true;
    }

    fn emit_current_tag(&mut self) -> Option<State> {
        let tag = std::mem::take(&mut self.tag);
        if tag.is_end {
            if tag.name == self.inside {
                self.inside = Name::default();
            }
            return Some(State::Data);
        }
        // In XML an element may be empty, and then has no end tag.
        if tag.is_empty {
            return None;
        }
        let state = match () {
            () if tag.name.is(b"script") => State::ScriptData,
            () if tag.name.is(b"style") => State::RawText,
            () => return None,
        };
        self.inside = tag.name;
        Some(state)
    }

    fn current_is_appropriate_end_tag_token(&mut self) -> bool {
        self.tag.is_end && self.inside.len > 0 && self.tag.name == self.inside
    }

    /// Then CDATA is text, as in XML.
    fn adjusted_current_node_present_but_not_in_html_namespace(&mut self) -> bool {
        true
    }

    fn should_emit_errors(&mut self) -> bool {
        false
    }

    fn set_last_start_tag(&mut self, _: Option<&[u8]>) {}
    fn emit_eof(&mut self) {}
    fn emit_error(&mut self, _: Error) {}
    fn init_comment(&mut self) {}
    fn emit_current_comment(&mut self) {}
    fn emit_current_doctype(&mut self) {}
    fn set_force_quirks(&mut self) {}
    fn push_comment(&mut self, _: &[u8]) {}
    fn push_doctype_name(&mut self, _: &[u8]) {}
    fn init_doctype(&mut self) {}
    fn init_attribute(&mut self) {}
    fn push_attribute_name(&mut self, _: &[u8]) {}
    fn push_attribute_value(&mut self, _: &[u8]) {}
    fn set_doctype_public_identifier(&mut self, _: &[u8]) {}
    fn set_doctype_system_identifier(&mut self, _: &[u8]) {}
    fn push_doctype_public_identifier(&mut self, _: &[u8]) {}
    fn push_doctype_system_identifier(&mut self, _: &[u8]) {}
}
