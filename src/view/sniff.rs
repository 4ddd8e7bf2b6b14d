//! Choice of a view: by a file's first bytes, or else by its name.

use super::kind::View;
use file_format::FileFormat;
use std::ffi::OsStr;
use std::path::Path;

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

impl View {
    /// Returns the view for a file that starts with `head` ([`super::HEAD_BYTES`] of it, or all) and is
    /// called `name`.
    pub fn of(head: &[u8], name: Option<&OsStr>) -> View {
        if let Some(view) = by_content(head) {
            return view;
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
        // The crate expects a document at the first byte, and many begin with a line end or a comment.
        _ => starts_as_markup(head).then_some(View::Html),
    }
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
