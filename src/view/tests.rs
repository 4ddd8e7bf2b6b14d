use super::*;
use flate2::Compression;
use flate2::write::{GzEncoder, ZlibEncoder};
use proptest::prelude::*;
use std::io::{Cursor, Seek, Write};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

fn see(view: View, bytes: &[u8]) -> (Vec<u8>, bool) {
    let mut out = Vec::new();
    let seen = view.through(&mut Cursor::new(bytes), &mut |piece| out.extend_from_slice(piece)).unwrap();
    assert_eq!(seen.bytes, out.len() as u64);
    (out, seen.whole)
}

fn text(view: View, bytes: &[u8]) -> String {
    let (out, whole) = see(view, bytes);
    assert!(whole);
    String::from_utf8_lossy(&out).into_owned()
}

fn gzip(bytes: &[u8], level: u32) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::new(level));
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn deflate(bytes: &[u8], level: u32) -> Vec<u8> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::new(level));
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn zip(members: &[(&str, &[u8])], method: CompressionMethod) -> Vec<u8> {
    let mut writer = ZipWriter::new(Cursor::new(Vec::new()));
    for (name, bytes) in members {
        writer.start_file(*name, SimpleFileOptions::default().compression_method(method)).unwrap();
        writer.write_all(bytes).unwrap();
    }
    writer.finish().unwrap().into_inner()
}

#[test]
fn text_is_its_letters_and_digits() {
    assert_eq!(text(View::Text, b"The Quick,\n  brown -- FOX_7!"), "thequickbrownfox7");
    assert_eq!(
        text(View::Text, "\u{c4}RGER, \u{3a3}\u{11d}\u{2026} \u{6f22}\u{5b57}".as_bytes()),
        "\u{e4}rger\u{3c3}\u{11d}\u{6f22}\u{5b57}"
    );
    assert_eq!(text(View::Text, b"K\xe4se und K\xe4se"), "k\u{e4}seundk\u{e4}se", "Latin-1");
    assert_eq!(see(View::Text, b"cut \xe2\x82").0, b"cut\xe2\x82");
}

#[test]
fn markup_is_its_text() {
    let html = b"<!DOCTYPE html><title>A &amp; B</title><style>p { color: red }</style>\
        <script>if (a </b) { x = '<p>'; }</script><p class=\"x\">Text<br/>more <b>te</b>xt &eacute;<!-- no --></p>";
    assert_eq!(text(View::Html, html), "abtextmoretext\u{e9}");
    let xml = b"<?xml version=\"1.0\"?><w:p><script src=\"x\"/><w:t>Te</w:t><w:t>xt</w:t><![CDATA[ in <here>]]></w:p>";
    assert_eq!(text(View::Html, xml), "textinhere");
}

#[test]
fn names_in_sources_do_not_count() {
    let c =
        b"/* a */ int add(int first, int second) { return first + second + 10; } // end\n#include <x.h>\n";
    let other = b"int  sum(int a,int b)\n{\n\treturn a+b+0x1f; /* *** */\n}\n#include <y.h>\n";
    assert_eq!(see(View::Source, c), see(View::Source, other));
    assert_ne!(
        see(View::Source, c),
        see(View::Source, b"int sum(int a, int b) { return a-b+0x1f; }\n#include <y.h>\n")
    );
    let python =
        b"# comment\ndef f(x):\n    \"\"\"Doc,\n    it's long.\"\"\"\n    return {'a': x, 'b': \"\"}\n";
    let other = b"def g(yy):\n    '''x'''\n    return {\"key\": yy, 'it': ''}  # why\n";
    assert_eq!(see(View::Source, python), see(View::Source, other));
    let rust = b"fn f<'a>(x: &'a str) -> &'a str { x.split('/').next().unwrap_or(\"\\\"\") }";
    let other = b"fn g<'b>(name: &'b str) -> &'b str { name.cut(\"//\").last().unwrap(\"\") }";
    assert_eq!(see(View::Source, rust), see(View::Source, other));
    let shell = b"for f in \"$d\"/*; do echo \"$f\"; done # all\n";
    assert!(see(View::Source, shell).0.len() >= 12, "a glob begins no comment");
}

#[test]
fn postscript_is_its_pages() {
    let one = b"%!PS-Adobe-3.0\n%%Title: a\n%%BeginProlog\n/m {moveto} def\n%%EndProlog\n%%Page: 1 1\n10 10 m (x) show\n%%EOF\n";
    let other = b"%!PS-Adobe-3.0\n%%Creator: b\n%%CreationDate: now\n/x {1 2 3} def\n%%EndProlog\n/y 1 def\n%%EndSetup\n10 10 m (x) show\n";
    assert_eq!(text(View::PostScript, one), "10 10 m (x) show\n");
    assert_eq!(see(View::PostScript, one), see(View::PostScript, other));
    assert_eq!(text(View::PostScript, b"%!\n1 2 add % sum\n% gone\rshowpage"), "1 2 add % sum\nshowpage");
}

/// Texts in other encodings are the same texts, whatever pieces they come in.
#[test]
fn encodings_do_not_count() {
    let lines: String = (0..400)
        .map(|i| format!("int gr\u{f6}\u{df}e{i} = breite * {i}; // \u{e4}\u{f6}\u{fc}\r\n"))
        .collect();
    let units =
        |text: &str, bytes: fn(u16) -> [u8; 2]| text.encode_utf16().flat_map(bytes).collect::<Vec<u8>>();
    let latin = |text: &str| encoding_rs::WINDOWS_1252.encode(text).0.into_owned();
    let others = [
        [&b"\xef\xbb\xbf"[..], lines.as_bytes()].concat(),
        [&b"\xff\xfe"[..], &units(&lines, u16::to_le_bytes)].concat(),
        [&b"\xfe\xff"[..], &units(&lines, u16::to_be_bytes)].concat(),
        units(&lines, u16::to_le_bytes),
        units(&lines, u16::to_be_bytes),
        latin(&lines),
    ];
    for view in [View::Text, View::Source, View::Html] {
        for (at, other) in others.iter().enumerate() {
            assert_eq!(see(view, other), see(view, lines.as_bytes()), "{} {at}", view.name());
            see(view, &other[..other.len() - 1]);
        }
    }
    for (name, view) in [("a.c", View::Source), ("a.txt", View::Text), ("a", View::Text)] {
        for (at, other) in others.iter().enumerate() {
            assert_eq!(View::of(&other[..HEAD_BYTES], Some(name.as_ref())), view, "{name} {at}");
        }
    }
    let japanese = "\u{65e5}\u{672c}\u{8a9e}\u{306e}\u{6587}".repeat(30);
    let html = |charset: &str| format!("<html><meta charset=\"{charset}\"><p>{japanese}</p>");
    let other = encoding_rs::SHIFT_JIS.encode(&html("shift_jis")).0.into_owned();
    assert_eq!(see(View::Html, &other), see(View::Html, html("utf-8").as_bytes()));
    assert_eq!(
        View::of(&[&b"\xff\xfe"[..], &units("\n<html><p>x", u16::to_le_bytes)].concat(), None),
        View::Html
    );
    // A damaged declaration is no reason to stop.
    assert_eq!(text(View::Text, b"charset=none K\xe4se"), "charsetnonek\u{e4}se");
}

/// The view of a file that an end belongs to, as well as a beginning.
fn of_file(bytes: &[u8], name: &str) -> View {
    let mut read = |at: u64, buffer: &mut [u8]| {
        let rest = &bytes[at as usize..];
        let len = rest.len().min(buffer.len());
        buffer[..len].copy_from_slice(&rest[..len]);
        Ok(len)
    };
    View::of_file(bytes.len() as u64, Some(name.as_ref()), &mut read).unwrap()
}

#[test]
fn an_archive_may_have_a_program_before_it() {
    let one = zip(&[("a", b"first "), ("b", b"second")], CompressionMethod::Deflated);
    let padded = |front: &[u8]| [front, &vec![b'.'; 9000], &one].concat();
    for front in [&b"MZ"[..], b"\x7fELF\x02\x01", b"#!/usr/bin/env python3\n"] {
        let whole = padded(front);
        assert_eq!(of_file(&whole, "a.exe"), View::Archive);
        assert_eq!(text(View::Archive, &whole), "first second");
        // Without a directory at its end it is what it starts as.
        assert_ne!(of_file(&whole[..whole.len() - 1], "a.exe"), View::Archive);
    }
    assert_eq!(of_file(&[b"#!/usr/bin/env python3\n", &one[..]].concat(), "a"), View::Archive);
    assert_eq!(of_file(b"#!/bin/sh\necho PK\n", "a"), View::Source);
    assert_eq!(of_file(b"", "a"), View::Raw);
}

#[test]
fn a_pdf_may_have_something_before_it() {
    let page = b"BT (Hello) Tj ET ".repeat(400);
    let one = pdf(6, "20200101", &[&page]);
    for front in
        [&b"HTTP/1.1 200 OK\r\nContent-Type: application/pdf\r\n\r\n"[..], b"\xef\xbb\xbf", &[0; 900]]
    {
        let whole = [front, &one[..]].concat();
        assert_eq!(of_file(&whole, "a"), View::Pdf);
        assert_eq!(see(View::Pdf, &whole), see(View::Pdf, &one));
    }
    assert_eq!(of_file(&[&[0; 2000], &one[..]].concat(), "a"), View::Raw);
    assert_eq!(of_file(b"A file starts with %PDF-1.4 if it is a PDF.", "a"), View::Text);
}

/// The checksum of a stream is wrong, or there is neither header nor checksum: its bytes can be had all the same.
#[test]
fn a_checksum_of_a_pdf_does_not_count() {
    let page = b"BT (Hello) Tj ET ".repeat(400);
    let packed = deflate(&page, 6);
    let with = |stream: &[u8]| {
        [b"%PDF-1.4\n1 0 obj\n<< /Filter /FlateDecode >>\nstream\n", stream, b"\nendstream\nendobj\n"]
            .concat()
    };
    let wrong = [&packed[..packed.len() - 4], &[0; 4]].concat();
    for stream in [&packed[..], &wrong, &packed[2..packed.len() - 4]] {
        assert_eq!(see(View::Pdf, &with(stream)).0, page);
    }
}

fn pdf(level: u32, date: &str, streams: &[&[u8]]) -> Vec<u8> {
    let mut out = format!("%PDF-1.{level}\n1 0 obj\n<< /CreationDate (D:{date}) >>\nendobj\n").into_bytes();
    for (i, stream) in streams.iter().enumerate() {
        let packed = deflate(stream, level);
        let head = format!("{} 0 obj\n<< /Length {} /Filter /FlateDecode >>\nstream\n", i + 2, packed.len());
        out.extend_from_slice(head.as_bytes());
        out.extend_from_slice(&packed);
        out.extend_from_slice(b"\nendstream\nendobj\n");
    }
    out.extend_from_slice(b"9 0 obj\n<< /Length 4 >>\nstream\r\nJPEG\r\nendstream\nendobj\n");
    out.extend_from_slice(b"8 0 obj\n<< /Type /Metadata >>\nstream\n2020-01-01\nendstream\nendobj\n");
    out.extend_from_slice(format!("xref\n0 1\ntrailer << /ID [<{date}>] >>\nstartxref\n1\n%%EOF").as_bytes());
    out
}

#[test]
fn a_pdf_is_its_streams() {
    let page = b"BT (Hello) Tj ET ".repeat(4000);
    let one = pdf(1, "20200101", &[&page, b"BT (two) Tj ET"]);
    assert_eq!(text(View::Pdf, &one), format!("{}BT (two) Tj ETJPEG", String::from_utf8_lossy(&page)));
    assert_eq!(see(View::Pdf, &one), see(View::Pdf, &pdf(9, "20251231", &[&page, b"BT (two) Tj ET"])));
    // Cut in the first stream: what there is of it.
    let (cut, whole) = see(View::Pdf, &one[..200]);
    assert!(!whole && !cut.is_empty() && page.starts_with(&cut));
}

#[test]
fn an_archive_is_its_members() {
    let page = b"<html><p>Some text</p></html>";
    let members: [(&str, &[u8]); 3] = [("b", b"second "), ("a", b"first "), ("c.html", page)];
    let one = zip(&members, CompressionMethod::Deflated);
    assert_eq!(text(View::Archive, &one), "first second sometext");
    let other = zip(&[members[2], members[1], members[0]], CompressionMethod::Stored);
    assert_eq!(see(View::Archive, &one), see(View::Archive, &other));
    // Archives in it, as deep as is allowed.
    let nested = zip(&[("x.zip", &one), ("y.gz", &gzip(b"packed ", 6))], CompressionMethod::Stored);
    assert_eq!(text(View::Archive, &nested), "first second sometextpacked ");
    let deep = zip(&[("z", &zip(&[("y", &nested)], CompressionMethod::Stored))], CompressionMethod::Stored);
    assert!(
        see(View::Archive, &deep).0.windows(4).any(|bytes| bytes == b"PK\x03\x04"),
        "the deepest as it is"
    );
}

#[test]
fn an_archive_without_its_directory_is_read_from_the_start() {
    let one = zip(&[("a", &b"first ".repeat(100)), ("b", b"second")], CompressionMethod::Deflated);
    let directory = one.windows(4).position(|bytes| bytes == b"PK\x01\x02").unwrap();
    let (out, whole) = see(View::Archive, &one[..directory]);
    assert!(!whole);
    assert_eq!(out, [b"first ".repeat(100), b"second".to_vec()].concat());
}

#[test]
fn compression_does_not_count() {
    let bytes: Vec<u8> = (0..50_000u32).flat_map(|i| (i / 7).to_string().into_bytes()).collect();
    assert_eq!(see(View::Gzip, &gzip(&bytes, 1)), (bytes.clone(), true));
    assert_eq!(see(View::Gzip, &gzip(&bytes, 9)), (bytes.clone(), true));
    // Two members, and a page inside.
    assert_eq!(text(View::Gzip, &[gzip(b"<html>Te", 1), gzip(b"xt</html>", 9)].concat()), "text");
    let packed = gzip(&bytes, 6);
    let (cut, whole) = see(View::Gzip, &packed[..packed.len() / 2]);
    assert!(!whole && cut.len() > 10_000 && bytes.starts_with(&cut));
}

/// Zeros that expand a thousand times, in one stream and in many members that leave nothing.
#[test]
fn bombs_come_to_an_end() {
    let zeros = gzip(&vec![0; 64 << 20], 9);
    let (out, whole) = see(View::Gzip, &zeros);
    assert!(!whole);
    assert_eq!(out.len() as u64, EXPANSION_BYTES_ALWAYS + EXPANSION_MAX * zeros.len() as u64);
    // The markup is decoded and nothing of it kept, so only what is decoded can bound it.
    let mut tags = b"<html>".to_vec();
    tags.resize(32 << 20, b'<');
    let packed = zip(&[("a", &tags), ("b", &tags), ("c", &tags), ("d", &tags)], CompressionMethod::Deflated);
    let limit = (EXPANSION_BYTES_ALWAYS + EXPANSION_MAX * packed.len() as u64) * DECODED_TO_OUTPUT;
    assert!(limit < 4 * tags.len() as u64, "or this shows nothing");
    assert!(!see(View::Archive, &packed).1);
}

/// Each directory entry costs a decoder some hundred bytes.
#[test]
fn a_directory_that_is_too_long_is_not_read() {
    let names: Vec<_> = (0..60_000).map(|i| format!("{i:030}")).collect();
    let members: Vec<_> = names.iter().map(|name| (name.as_str(), &b""[..])).collect();
    let packed = zip(&members, CompressionMethod::Stored);
    let mut counted = 0;
    let seen = View::Archive.through(&mut Cursor::new(&packed), &mut |piece| counted += piece.len()).unwrap();
    assert_eq!((seen.whole, counted), (false, 0));
}

struct Failing(Cursor<Vec<u8>>, u64);

impl Read for Failing {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.0.position() >= self.1 {
            return Err(io::Error::other("the disk is gone"));
        }
        let len = buffer.len().min((self.1 - self.0.position()) as usize);
        self.0.read(&mut buffer[..len])
    }
}

impl Seek for Failing {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.0.seek(to)
    }
}

/// A file that cannot be read is no damaged file: it may be read another time.
#[test]
fn an_error_of_reading_is_told() {
    for view in View::ALL.into_iter().chain([View::Raw]) {
        let text = b"text ".repeat(20_000);
        let bytes = if view == View::Gzip { gzip(&text, 0) } else { text };
        let mut input = Failing(Cursor::new(bytes), 50_000);
        let seen = view.through(&mut input, &mut |_| {});
        assert_eq!(seen.unwrap_err().to_string(), "the disk is gone", "{}", view.name());
    }
}

proptest! {
    /// How the input is cut into pieces changes nothing.
    #[test]
    fn folding_is_of_the_whole(text in "\\PC{0,200}", bytes in prop::collection::vec(any::<u8>(), 0..50), cut in 1usize..9) {
        let all = [text.as_bytes(), &bytes, text.as_bytes()].concat();
        let mut out = Vec::new();
        let mut emit = |piece: &[u8]| out.extend_from_slice(piece);
        let left = u64::MAX;
        let mut sink = Sink { emit: &mut emit, bytes: 0, left, whole: true, decoded_left: Rc::new(Cell::new(left)) };
        let mut folded = super::text::Folded::default();
        encoding::utf_8(&all).chunks(cut).for_each(|piece| { folded.put(piece, &mut sink); });
        folded.end(&mut sink);
        prop_assert_eq!(see(View::Text, &all).0, out);
    }

    /// Any bytes end in a view of bounded length, and the same bytes in the same.
    #[test]
    fn any_bytes_can_be_looked_at(bytes in prop::collection::vec(any::<u8>(), 0..400), which in 0usize..7) {
        fuzz::view(&[&[which as u8][..], &bytes].concat());
    }
}
