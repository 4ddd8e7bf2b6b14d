//! Choice of a view: by a file's first bytes, or else by its name.

use super::encoding;
use super::kind::View;
use file_format::FileFormat;
use std::ffi::OsStr;
use std::io;
use std::path::Path;

/// Bytes of a file that [`View::of`] examines.
pub const HEAD_BYTES: usize = 4096;
/// Endings of source file names.
const SOURCE: &[&str] = &[
    "awk", "bash", "c", "c++", "cc", "cjs", "cpp", "cs", "cxx", "dart", "go", "groovy", "h", "hh", "hpp",
    "hxx", "java", "jl", "js", "jsx", "kt", "kts", "lua", "m", "mjs", "mm", "php", "pl", "pm", "ps1", "py",
    "pyi", "r", "rb", "rs", "scala", "sh", "swift", "tcl", "ts", "tsx", "v", "vala", "zig",
];
const HTML: &[&str] = &["htm", "html", "shtml", "svg", "xhtml", "xml", "xsd", "xsl", "xslt"];
const TEXT: &[&str] = &["adoc", "log", "markdown", "md", "po", "rst", "tex", "text", "txt"];
/// Endings of formats that are recognized by content; the name only shows which files are worth reading.
const ARCHIVE: &[&str] = &[
    "apk", "docm", "docx", "ear", "egg", "epub", "jar", "kmz", "odg", "odp", "ods", "odt", "ott", "pptx",
    "vsix", "war", "whl", "xlsx", "xpi", "zip",
];
const GZIP: &[&str] = &["gz", "svgz", "tgz"];
const NAMES: [(&[&str], View); 7] = [
    (SOURCE, View::Source),
    (HTML, View::Html),
    (TEXT, View::Text),
    (ARCHIVE, View::Archive),
    (GZIP, View::Gzip),
    (&["pdf"], View::Pdf),
    (&["eps", "ps"], View::PostScript),
];

/// Bytes of the end of an archive: its record, and the longest comment.
const ARCHIVE_END_BYTES: u64 = 22 + 0xffff;
/// A PDF may begin this many bytes later (ISO 32000, annex H.3.4.1).
const PDF_BYTES_BEFORE_MAX: usize = 1024;

impl View {
    /// Returns the view for a file of `len` bytes that is called `name`. `read_at` fills a buffer from an offset on, as far as
    /// there are bytes, and returns how many there were. Reads the first bytes; and the last ones if a program may stand
    /// before an archive.
    pub fn of_file(
        len: u64,
        name: Option<&OsStr>,
        read_at: &mut dyn FnMut(u64, &mut [u8]) -> io::Result<usize>,
    ) -> io::Result<View> {
        let mut read = |from: u64, most: u64| {
            let mut bytes = vec![0; usize::try_from(most.min(len - from)).unwrap_or(0)];
            let got = read_at(from, &mut bytes)?;
            bytes.truncate(got);
            Ok::<_, io::Error>(bytes)
        };
        let head = read(0, HEAD_BYTES as u64)?;
        let view = View::of(&head, name);
        let is_open = matches!(view, View::Raw | View::Source | View::Text);
        if is_open && may_hold_archive(&head) {
            let end = read(len.saturating_sub(ARCHIVE_END_BYTES), ARCHIVE_END_BYTES)?;
            if ends_as_archive(&end) {
                return Ok(View::Archive);
            }
        }
        Ok(view)
    }

    /// Returns the view for a file that starts with `head` ([`super::HEAD_BYTES`] of it, or all) and is
    /// called `name`.
    pub fn of(head: &[u8], name: Option<&OsStr>) -> View {
        if let Some(view) = by_content(head) {
            return view;
        }
        let head = &*encoding::utf_8(head);
        if starts_as_markup(head) {
            return View::Html;
        }
        if !is_text(head) {
            return View::Raw;
        }
        match name.and_then(by_name) {
            Some(view @ (View::Source | View::Html)) => view,
            // Scripts often have no extension.
            _ if head.starts_with(b"#!") => View::Source,
            _ => View::Text,
        }
    }

    /// Returns the view that a file's name suggests; its content may differ.
    pub fn promised(name: &OsStr) -> Option<View> {
        by_name(name)
    }
}

/// Returns the view of formats with a signature.
pub(super) fn by_content(head: &[u8]) -> Option<View> {
    match FileFormat::from_bytes(head) {
        FileFormat::PortableDocumentFormat => Some(View::Pdf),
        FileFormat::Postscript | FileFormat::EncapsulatedPostscript => Some(View::PostScript),
        FileFormat::HypertextMarkupLanguage | FileFormat::ExtensibleMarkupLanguage => Some(View::Html),
        // `PK` suffices here for all kinds of zip.
        FileFormat::Zip => Some(View::Archive),
        FileFormat::Gzip => Some(View::Gzip),
        _ if has_pdf_within(head) => Some(View::Pdf),
        // The crate expects a document at the first byte, and many begin with a line end or a comment.
        _ => starts_as_markup(head).then_some(View::Html),
    }
}

/// Whether a PDF begins after other bytes, such as the head of a mail or of an answer of a server: its signature with an
/// object after it.
fn has_pdf_within(head: &[u8]) -> bool {
    let first = &head[..head.len().min(PDF_BYTES_BEFORE_MAX)];
    let version = |at: &usize| matches!(head.get(at + 5..at + 8), Some([b'1' | b'2', b'.', b'0'..=b'9']));
    let mut found = memchr::memmem::find_iter(first, b"%PDF-");
    found.find(version).is_some_and(|at| memchr::memmem::find(&head[at..], b" obj").is_some())
}

/// Whether a file may be an archive with something before it: a program that extracts itself, or a script.
fn may_hold_archive(head: &[u8]) -> bool {
    let starts = [&b"MZ"[..], b"\x7fELF", b"#!"].iter().any(|start| head.starts_with(start));
    starts || memchr::memmem::find(head, b"PK\x03\x04").is_some()
}

/// Whether the last bytes of a file are the end of a zip archive: the record of a directory with members, and a comment up to
/// the end of the file.
fn ends_as_archive(end: &[u8]) -> bool {
    let number =
        |at: usize| end.get(at..at + 2).map(|bytes| usize::from(bytes[0]) | usize::from(bytes[1]) << 8);
    memchr::memmem::rfind_iter(end, b"PK\x05\x06").any(|at| {
        let fits = number(at + 20).is_some_and(|comment| at + 22 + comment == end.len());
        fits && number(at + 10).is_some_and(|members| members > 0)
    })
}

fn starts_as_markup(head: &[u8]) -> bool {
    let text = head.strip_prefix(b"\xef\xbb\xbf").unwrap_or(head).trim_ascii_start();
    let starts = |tag: &[u8]| text.get(..tag.len()).is_some_and(|start| start.eq_ignore_ascii_case(tag));
    [&b"<!doctype"[..], b"<html", b"<?xml", b"<head", b"<body", b"<svg"].iter().any(|tag| starts(tag))
}

fn by_name(name: &OsStr) -> Option<View> {
    let extension = Path::new(name).extension()?.to_str()?.to_ascii_lowercase();
    let listed = NAMES.iter().find(|(list, _)| list.contains(&extension.as_str()));
    listed.map(|(_, view)| *view)
}

/// Whether there is no zero byte, and almost no other control character.
fn is_text(head: &[u8]) -> bool {
    let control = |byte: &&u8| **byte < 0x20 && !matches!(**byte, b'\t' | b'\n' | b'\r' | 0x0c | 0x1b);
    !head.is_empty() && !head.contains(&0) && head.iter().filter(control).count() * 100 <= head.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_goes_before_name() {
        let of = |head: &[u8], name: &str| View::of(head, Some(OsStr::new(name)));
        assert_eq!(of(b"%PDF-1.4\n", "a.txt"), View::Pdf);
        assert_eq!(of(b"PK\x03\x04\x14\0\0\0", "a.pdf"), View::Archive);
        assert_eq!(of(b"\x1f\x8b\x08\0", "a"), View::Gzip);
        assert_eq!(of(b"%!PS-Adobe-3.0\n", "a"), View::PostScript);
        assert_eq!(of(b"%!PS-Adobe-3.0 EPSF-3.0\n", "a"), View::PostScript);
        assert_eq!(of(b"\n<!-- x --><html>", "a.html"), View::Html);
        assert_eq!(of(b"\n  <HTML><p>", "a.c"), View::Html);
        assert_eq!(of(b"<?xml version=\"1.0\"?><a/>", "a"), View::Html);
        assert_eq!(of(b"int main(void) { return 0; }", "a.C"), View::Source);
        assert_eq!(of(b"#!/bin/sh\necho\n", "a"), View::Source);
        assert_eq!(of(b"Dear reader,\n", "a"), View::Text);
        assert_eq!(of(b"\x7fELF\x02\x01\x01\0\0", "a.c"), View::Raw);
        assert_eq!(of(b"", "a.txt"), View::Raw);
        assert_eq!(View::of(b"\0\0\0\0", None), View::Raw);
    }
}
