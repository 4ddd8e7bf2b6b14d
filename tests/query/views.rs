//! Views: documents that say the same are found whatever their format makes of it, and the index of views follows the
//! files.
//!
//! Each was seen to fail with its mechanism switched off, one at a time:
//!
//! | switched off | fails |
//! | --- | --- |
//! | `forget_view` of `overlay/views.rs` as a no-op | `the_index_of_views_follows_the_files` |
//! | `catch_up_view` as `Ok(false)` | `the_index_of_views_follows_the_files` (index made anew), `only_what_is_wanted_is_indexed` |
//! | `catch_up_view` without `any_name` | `the_index_of_views_follows_the_files` (a name that promises nothing) |
//! | `catch_up_view` without `promised` | `only_what_is_wanted_is_indexed` (wanted later) |
//! | `suits` as true; `wanting` without the removal | `only_what_is_wanted_is_indexed` |
//! | the tables of `db/shadow.rs` as those of bytes; `except` in `similar_through` | all |
//! | the candidate through the view of the query | `markup_does_not_count`, `packed_and_plain_meet` |
//! | `skip_header` of `view/postscript.rs`, `FlateDecode` in `view/pdf.rs` | `pages_are_found_apart_from_headers` |
//! | markup inside archives as it is | `documents_with_the_same_text_are_found` |
//! | names in sources as they are | `names_do_not_count_in_sources` |
//! | case in texts as it is | `markup_does_not_count` |
//!
//! And of the tests in `view/tests.rs`: without the limit of output `bombs_come_to_an_end` (not tried to
//! its end without that of what is decoded); without that of directories `a_directory_that_is_too_long_is_not_read`; with errors of
//! reading taken for damage `an_error_of_reading_is_told`; with nested archives as they are `an_archive_is_its_members`. With a
//! panic put into every decoder all files were stored and read back, and a question was answered by one error.
#![allow(clippy::unwrap_used, reason = "a test stops at the first error")]

use crate::common::noise;
use crate::common::session::{Session, dedupctl, fast_dir};
use dedupfs::chunk::ChunkParams;
use dedupfs::config::Config;
use dedupfs::overlay::{Look, Match, OpenFlags, ROOT, SimilarOptions};
use dedupfs::repo::{InitOptions, Layout, Repo};
use dedupfs::view::View;
use flate2::Compression;
use flate2::write::{GzEncoder, ZlibEncoder};
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs;
use std::io::{Cursor, Write};
use std::path::Path;
use tempfile::TempDir;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, DateTime, ZipWriter};

/// A directory with a store, opened by this process when it is worked on.
struct World {
    dir: TempDir,
    layout: Layout,
}

impl World {
    fn new(views: Option<&[View]>) -> World {
        World::with(Config { views: views.map(<[View]>::to_vec), ..Config::default() })
    }

    fn with(config: Config) -> World {
        let dir = fast_dir();
        let chunk = ChunkParams::with_average(4096).unwrap();
        let layout =
            Repo::init(dir.path(), None, &InitOptions { chunk, config, ..InitOptions::default() }).unwrap();
        World { dir, layout }
    }

    fn open(&self) -> Session {
        Session::open(self.dir.path()).unwrap()
    }

    fn scan(&self, session: &Session) {
        session.overlay().maintenance.scan(Path::new(""), &mut |_, _, _, _| {}).unwrap();
    }

    fn set_views(&self, line: &str) {
        fs::write(self.layout.file("config.toml"), format!("{line}\n")).unwrap();
    }
}

fn put(session: &Session, files: &[(&str, Vec<u8>)]) {
    for (name, bytes) in files {
        session.write(name, bytes).unwrap();
    }
    assert!(session.settle().unwrap());
}

fn ask(session: &Session, name: &str, look: Look) -> Vec<Match> {
    let options = SimilarOptions { look, ..SimilarOptions::default() };
    session.overlay().queries.similar_inside(Path::new(name), &options).unwrap().matches
}

fn names(matches: &[Match]) -> Vec<&str> {
    let mut names: Vec<_> = matches.iter().map(|found| found.path.to_str().unwrap()).collect();
    names.sort_unstable();
    names
}

/// Asks about `name`, through its own view and at its bytes.
fn check(session: &Session, name: &str, expected: &[&str]) {
    let seen = ask(session, name, Look::Auto);
    assert_eq!(names(&seen), expected, "{name}");
    assert!(seen.iter().all(|found| found.shares.verified), "{name}");
    let raw = ask(session, name, Look::Through(View::Raw));
    assert_eq!(names(&raw), [""; 0], "the bytes of {name} say nothing, or this shows nothing");
}

fn indexed(session: &Session) -> u64 {
    session.overlay().indexes.views().unwrap().len()
}

/// Words that no other seed has.
fn words(seed: u64, count: usize) -> Vec<String> {
    let word = |bytes: &[u8]| bytes.iter().map(|byte| char::from(b'a' + byte % 26)).collect();
    noise(seed, count * 7).chunks(7).map(|bytes| word(&bytes[..3 + usize::from(bytes[6]) % 4])).collect()
}

fn text(seed: u64) -> String {
    words(seed, 3000).join(" ")
}

fn gzip(bytes: &[u8], level: u32) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::new(level));
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// An archive written on day `day` with that compression; 0 is none.
fn archive(members: &[(&str, &str)], level: i64, day: u8) -> Vec<u8> {
    let mut writer = ZipWriter::new(Cursor::new(Vec::new()));
    let time = DateTime::from_date_and_time(2024, 5, day, 1, 2, 4).unwrap();
    for (name, text) in members {
        let options = SimpleFileOptions::default().last_modified_time(time);
        let options = match level {
            0 => options.compression_method(CompressionMethod::Stored),
            level => options.compression_method(CompressionMethod::Deflated).compression_level(Some(level)),
        };
        writer.start_file(*name, options).unwrap();
        writer.write_all(text.as_bytes()).unwrap();
    }
    writer.finish().unwrap().into_inner()
}

/// A document of each kind: mostly the text `seed`, in the markup of its format and of `day`.
fn document(kind: &str, seed: u64, level: i64, day: u8) -> Vec<u8> {
    let mut words = words(seed, 3000);
    words[7] = format!("edited{day}");
    let style = format!("P{day}");
    let part = |open: &str, close: &str| {
        words.iter().map(|word| format!("{open}{word} {close}")).collect::<String>()
    };
    let (name, body) = match kind {
        "docx" => ("word/document.xml", part("<w:r><w:t>", "</w:t></w:r>")),
        "odt" => ("content.xml", part(&format!("<text:span style=\"{style}\">"), "</text:span>")),
        "epub" => ("chapter1.xhtml", part("<p>", "</p>")),
        _ => ("com/example/Main.class", words.join("\u{1}")),
    };
    let body = if kind == "jar" { body } else { format!("<?xml version=\"1.0\"?><doc>{body}</doc>") };
    archive(&[("meta", &format!("made on {day}")), (name, &body)], level, day)
}

#[test]
fn documents_with_the_same_text_are_found() {
    let world = World::new(None);
    let session = world.open();
    for kind in ["docx", "odt", "epub", "jar"] {
        let name = |n: u8| format!("{n}.{kind}");
        put(
            &session,
            &[
                (&name(1), document(kind, 1, 1, 1)),
                (&name(2), document(kind, 1, 9, 2)),
                (&name(3), document(kind, 2, 6, 3)),
            ],
        );
        let found: Vec<_> = ask(&session, &name(1), Look::Auto);
        assert!(names(&found).contains(&name(2).as_str()), "{kind}: {:?}", names(&found));
        assert!(!names(&found).iter().any(|path| path.starts_with('3')), "{kind}: {:?}", names(&found));
        let same = found.iter().find(|found| found.path == Path::new(&name(2))).unwrap();
        assert!(same.shares.verified && same.shares.containment > 0.9, "{kind}: {same:?}");
        assert_eq!((same.query_view, same.view), (View::Archive, View::Archive));
        assert_eq!(
            same.size,
            document(kind, 1, 9, 2).len() as u64,
            "the length of the file, not of its view"
        );
        assert_eq!(ask(&session, &name(1), Look::Through(View::Raw)), [], "{kind}");
    }
    // By their text three of the four meet; by default that is asked too.
    assert_eq!(names(&ask(&session, "1.docx", Look::Both)), ["1.epub", "1.odt", "2.docx", "2.epub", "2.odt"]);
}

#[test]
fn packed_and_plain_meet() {
    let world = World::new(None);
    let session = world.open();
    let (one, other) = (text(1), text(2));
    let edited = one.replacen("a", "A", 50);
    put(
        &session,
        &[
            ("one.gz", gzip(one.as_bytes(), 1)),
            ("edited.gz", gzip(edited.as_bytes(), 9)),
            ("other.gz", gzip(other.as_bytes(), 9)),
            ("one.zip", archive(&[("notes", &other), ("more", &one)], 6, 1)),
            ("one.txt", one.clone().into_bytes()),
        ],
    );
    check(&session, "one.gz", &["edited.gz", "one.zip"]);
    // The bytes of a plain file are looked for in what was packed.
    let found = ask(&session, "one.txt", Look::Both);
    assert_eq!(names(&found), ["edited.gz", "one.gz", "one.zip"]);
    let inside = found.iter().find(|found| found.path == Path::new("one.zip")).unwrap();
    assert_eq!((inside.query_view, inside.view), (View::Raw, View::Archive));
    assert_eq!(inside.shares.containment, 1.0);
    assert!(inside.shares.contained_in < 0.6);
    let options = SimilarOptions { estimate: true, ..SimilarOptions::default() };
    let estimated = session.overlay().queries.similar_inside(Path::new("one.txt"), &options).unwrap().matches;
    assert_eq!(names(&estimated), ["edited.gz", "one.gz", "one.zip"]);
    assert!(estimated.iter().all(|found| !found.shares.verified));
}

/// A page of that seed, in which each word stands between `open` and `close`.
fn page(seed: u64, open: &str, close: &str) -> Vec<u8> {
    let body: String = words(seed, 2000).iter().map(|word| format!("{open}{word}{close} ")).collect();
    format!("<!DOCTYPE html><html><title>{open}</title>{body}</html>").into_bytes()
}

#[test]
fn markup_does_not_count() {
    let world = World::new(Some(&View::ALL));
    let session = world.open();
    put(
        &session,
        &[
            ("a.html", page(1, "<td class=\"x\">", "</td>")),
            ("b.html", page(1, "<LI>", "")),
            ("c.html", page(2, "<LI>", "")),
            ("d.txt", words(1, 2000).join("\n").to_uppercase().into_bytes()),
        ],
    );
    check(&session, "a.html", &["b.html", "d.txt"]);
    check(&session, "d.txt", &["a.html", "b.html"]);
}

/// A program of that seed, with names that start with `name`.
fn program(seed: u64, name: &str, python: bool) -> Vec<u8> {
    let mut out = String::new();
    let signs = ["+", "-", "*", "/", "%", "<", ">", "==", "&", "|", "^", "!="];
    for (i, line) in noise(seed, 4 * 600).chunks(4).enumerate() {
        let sign = |n: usize| signs[usize::from(line[n]) % signs.len()];
        let v = |n: u8| format!("{name}{}", line[3].wrapping_mul(n) % 17);
        let (mark, end) = if python { ("#", "") } else { ("//", ";") };
        let note = if i % 9 == 0 { format!("  {mark} {name} is why") } else { String::new() };
        let _ = match line[0] % 5 {
            0 => writeln!(out, "{}({}, {}[{}]){end}{note}", v(1), v(2), v(3), line[2]),
            1 => writeln!(out, "{} = \"{name}\"{end}{note}", v(3)),
            _ => writeln!(
                out,
                "{} = {} {} {} {} ({} {} 1){end}{note}",
                v(1),
                v(2),
                sign(1),
                v(3),
                sign(2),
                v(4),
                sign(0)
            ),
        };
    }
    out.into_bytes()
}

#[test]
fn names_do_not_count_in_sources() {
    let world = World::new(Some(&[View::Source]));
    let session = world.open();
    for (n, kind) in ["c", "py", "rs"].into_iter().enumerate() {
        let (seed, python) = (10 * n as u64, kind == "py");
        put(
            &session,
            &[
                (&format!("one.{kind}"), program(seed, "counter", python)),
                (&format!("renamed.{kind}"), program(seed, "zz", python)),
                (&format!("other.{kind}"), program(seed + 1, "counter", python)),
            ],
        );
        check(&session, &format!("renamed.{kind}"), &[&format!("one.{kind}")]);
    }
    assert_eq!(indexed(&session), 9);
}

fn pdf(pages: &[String], level: u32, date: &str) -> Vec<u8> {
    let mut out = format!("%PDF-1.5\n1 0 obj\n<< /CreationDate (D:{date}) >>\nendobj\n").into_bytes();
    for (i, page) in pages.iter().enumerate() {
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::new(level));
        encoder.write_all(format!("BT ({page}) Tj ET").as_bytes()).unwrap();
        let packed = encoder.finish().unwrap();
        let head = format!("{} 0 obj\n<< /Length {} /Filter /FlateDecode >>\nstream\n", i + 2, packed.len());
        out.extend([head.as_bytes(), &packed, b"\nendstream\nendobj\n"].concat());
    }
    out.extend(format!("xref\n0 1\ntrailer << /ID [<{date}>] >>\n%%EOF\n").into_bytes());
    out
}

fn postscript(title: &str, prolog: &str, page: &str) -> Vec<u8> {
    let body = page.replace(' ', " show\n");
    format!("%!PS-Adobe-3.0\n%%Title: {title}\n/p {{{prolog}}} def\n%%EndProlog\n{body}\nshowpage\n")
        .into_bytes()
}

#[test]
fn pages_are_found_apart_from_headers() {
    let world = World::new(Some(&[View::Pdf, View::PostScript]));
    let session = world.open();
    let pages: Vec<_> = (0..4).map(text).collect();
    let prolog = text(20);
    put(
        &session,
        &[
            ("a.pdf", pdf(&pages, 1, "2001")),
            ("b.pdf", pdf(&pages[1..], 9, "2002")),
            ("c.pdf", pdf(&[text(9)], 6, "2001")),
            ("a.ps", postscript("a", &prolog, &pages[0])),
            ("b.ps", postscript("b", &prolog, &text(8))),
        ],
    );
    check(&session, "a.pdf", &["b.pdf"]);
    // They have a prolog in common, which is most of them.
    assert_eq!(names(&ask(&session, "a.ps", Look::Through(View::Raw))), ["b.ps"]);
    assert_eq!(names(&ask(&session, "a.ps", Look::Auto)), [""; 0]);
    put(&session, &[("c.ps", postscript("c", &text(21), &pages[0]))]);
    assert_eq!(names(&ask(&session, "a.ps", Look::Auto)), ["c.ps"]);
}

/// Every format by what is in the file, whatever it is called, and by `--view`. Only of source code the name decides.
/// Seen to fail with `raw` for every view.
#[test]
fn each_format_is_seen_by_content_and_by_flag() {
    let world = World::new(Some(&View::ALL));
    let session = world.open();
    let upper = |seed| words(seed, 2000).join("\n").to_uppercase().into_bytes();
    let office = |kind, seed| (document(kind, seed, 1, 1), document(kind, seed, 9, 2));
    let formats = [
        ("text", "", (words(40, 2000).join(" ").into_bytes(), upper(40))),
        ("html", "", (page(41, "<td class=\"x\">", "</td>"), page(41, "<LI>", ""))),
        ("source", ".c", (program(42, "counter", false), program(42, "zz", false))),
        ("postscript", "", (postscript("a", &text(43), &text(44)), postscript("b", &text(45), &text(44)))),
        ("pdf", "", (pdf(&[text(46)], 1, "2001"), pdf(&[text(46)], 9, "2002"))),
        ("archive", "", office("docx", 47)),
        ("archive", "", office("odt", 48)),
        ("archive", "", office("jar", 49)),
        ("gzip", "", (gzip(text(50).as_bytes(), 1), gzip(text(50).as_bytes(), 9))),
    ];
    let name = |format: usize, which: &str, suffix: &str| format!("{which}{format}{suffix}");
    for (i, (_, suffix, (one, other))) in formats.iter().enumerate() {
        let names = ["one", "other"].map(|which| name(i, which, suffix));
        put(&session, &[(&names[0], one.clone()), (&names[1], other.clone())]);
    }
    session.close().unwrap();
    for (i, (view, suffix, _)) in formats.iter().enumerate() {
        for flag in [view, "auto"] {
            let args = ["similar", &name(i, "one", suffix), "--view", flag, "--json"];
            let answer: serde_json::Value =
                serde_json::from_slice(&dedupctl(&args, world.dir.path()).stdout).unwrap();
            let matches = answer["matches"].as_array().unwrap();
            let found: Vec<_> =
                matches.iter().map(|found| (found["path"].clone(), found["view"].clone())).collect();
            assert_eq!(found, [(name(i, "other", suffix).into(), (*view).into())], "{args:?}");
        }
    }
}

/// Files that are not what they seem are stored like any other, and what can be read of them is found.
#[test]
fn damaged_documents_are_files_too() {
    let world = World::new(Some(&View::ALL));
    let session = world.open();
    let whole = document("docx", 1, 6, 1);
    let mut flipped = whole.clone();
    let at = flipped.len() * 3 / 4;
    flipped[at] ^= 0x55;
    let cut = whole[..whole.len() * 2 / 3].to_vec();
    let zeros = gzip(&vec![0; 16 << 20], 9);
    let odd = |magic: &[u8]| [magic, &noise(3, 30_000)].concat();
    let files = [
        ("whole.docx", whole),
        ("flipped.docx", flipped),
        ("cut.docx", cut),
        ("zeros.gz", zeros),
        ("odd.zip", odd(b"PK\x03\x04")),
        ("odd.gz", odd(b"\x1f\x8b\x08\x00")),
        ("odd.pdf", odd(b"%PDF-1.4\n<< /FlateDecode >>\nstream\n")),
        ("odd.ps", odd(b"%!PS-Adobe-3.0\n")),
        ("odd.html", odd(b"<html><script>")),
    ];
    put(&session, &files);
    for (name, bytes) in &files {
        assert_eq!(&session.read(name).unwrap(), bytes, "{name}");
        ask(&session, name, Look::Auto);
    }
    let found = ask(&session, "whole.docx", Look::Auto);
    assert_eq!(names(&found), ["cut.docx", "flipped.docx"]);
    session.close().unwrap();
}

#[test]
fn the_index_of_views_follows_the_files() {
    let world = World::new(None);
    let session = world.open();
    let pack = |seed, level| gzip(text(seed).as_bytes(), level);
    put(&session, &[("a.gz", pack(1, 1)), ("b.gz", pack(1, 9)), ("c.gz", pack(2, 9))]);
    check(&session, "a.gz", &["b.gz"]);
    assert_eq!(indexed(&session), 3);
    // Rewritten.
    put(&session, &[("b.gz", pack(2, 1))]);
    check(&session, "a.gz", &[]);
    check(&session, "b.gz", &["c.gz"]);
    assert_eq!(indexed(&session), 3, "what b.gz was is gone");
    // Renamed, within the directory and out of it, to a name that promises nothing.
    let root = dedupfs::overlay::ROOT;
    let caller = dedupfs::overlay::Caller { uid: 0, gid: 0, umask: 0 };
    let rename = |from: &str, to: &str| {
        session.overlay().tree.rename((root, from.as_ref()), (root, to.as_ref()), 0, caller).unwrap();
    };
    rename("c.gz", "d");
    check(&session, "b.gz", &["d"]);
    check(&session, "d", &["b.gz"]);
    // A copy costs nothing.
    put(&session, &[("e.gz", pack(2, 1))]);
    assert_eq!(indexed(&session), 3);
    assert_eq!(names(&ask(&session, "d", Look::Auto)), ["b.gz", "e.gz"]);
    // Unlinked: the content stays as long as a file has it.
    session.overlay().tree.unlink(root, "b.gz".as_ref()).unwrap();
    assert!(session.settle().unwrap());
    assert_eq!(names(&ask(&session, "d", Look::Auto)), ["e.gz"]);
    session.overlay().tree.unlink(root, "e.gz".as_ref()).unwrap();
    assert!(session.settle().unwrap());
    assert_eq!(indexed(&session), 2);
    put(&session, &[("f.gz", pack(1, 6))]);
    session.close().unwrap();
    // Opened again, and with an index made anew.
    for rebuild in [false, true] {
        if rebuild {
            fs::remove_dir_all(world.layout.file("index")).unwrap();
        }
        let session = world.open();
        if rebuild {
            assert_eq!(indexed(&session), 0);
            world.scan(&session);
        }
        assert_eq!(indexed(&session), 3);
        check(&session, "a.gz", &["f.gz"]);
        session.close().unwrap();
    }
}

/// A large stub that is written to in the middle is committed another way, and looked at all the same.
#[test]
fn what_is_written_in_the_middle_of_a_large_file_is_looked_at() {
    let views = Some(vec![View::Text]);
    let world = World::with(Config { views, hybrid_min_bytes: Some(8 << 10), ..Config::default() });
    let session = world.open();
    put(&session, &[("a.txt", text(1).into_bytes()), ("b.txt", text(2).to_uppercase().into_bytes())]);
    let overlay = session.overlay();
    let node = overlay.tree.lookup(ROOT, OsStr::new("a.txt")).unwrap().node;
    let flags = OpenFlags { write: true, ..OpenFlags::default() };
    let opened = overlay.tree.open(node, flags, &|_| None).unwrap();
    overlay.tree.write(&opened.handle, 2000, &text(2).as_bytes()[2000..10_000]).unwrap();
    overlay.tree.release(&opened.handle);
    assert!(
        fs::read_dir(world.layout.file("extents")).unwrap().count() > 0,
        "it is hybrid, or this shows nothing"
    );
    overlay.tree.forget(node, 1);
    assert!(session.settle().unwrap());
    assert_eq!(indexed(&session), 2);
    check(&session, "b.txt", &["a.txt"]);
    session.close().unwrap();
}

#[test]
fn only_what_is_wanted_is_indexed() {
    let world = World::new(Some(&[]));
    let session = world.open();
    let files = [
        ("a.gz", gzip(text(1).as_bytes(), 1)),
        ("b.gz", gzip(text(1).as_bytes(), 9)),
        ("c.docx", document("docx", 1, 1, 1)),
        ("d.txt", text(1).into_bytes()),
    ];
    put(&session, &files);
    world.scan(&session);
    assert_eq!(indexed(&session), 0);
    assert_eq!(ask(&session, "a.gz", Look::Auto), []);
    session.close().unwrap();
    // Wanted from now on: a scan takes in what is there.
    world.set_views("views = [\"gzip\"]");
    let session = world.open();
    assert_eq!(indexed(&session), 0);
    world.scan(&session);
    assert_eq!(indexed(&session), 2);
    check(&session, "a.gz", &["b.gz"]);
    session.close().unwrap();
    // Plain files that are only indexed have views too.
    world.set_views("views = \"auto\"\ndedup = \"off\"");
    let session = world.open();
    world.scan(&session);
    assert_eq!(indexed(&session), 3);
    session.write("e.docx", &document("docx", 1, 9, 2)).unwrap();
    assert!(session.settle().unwrap());
    assert!(names(&ask(&session, "e.docx", Look::Auto)).contains(&"c.docx"));
    session.close().unwrap();
    // Not wanted any more.
    world.set_views("views = \"off\"");
    let session = world.open();
    assert_eq!(indexed(&session), 0);
    session.close().unwrap();
}

#[test]
fn the_answer_says_how_it_looked() {
    let world = World::new(None);
    let session = world.open();
    put(&session, &[("a.gz", gzip(text(1).as_bytes(), 1)), ("b.gz", gzip(text(1).as_bytes(), 9))]);
    session.close().unwrap();
    let ask = |args: &[&str]| dedupctl(&[&["similar", "a.gz"], args].concat(), world.dir.path());
    for (args, view, count) in [
        (&["--json"][..], "gzip", 1),
        (&["--json", "--view", "auto"], "gzip", 1),
        (&["--json", "--view", "raw"], "", 0),
    ] {
        let answer: serde_json::Value = serde_json::from_slice(&ask(args).stdout).unwrap();
        let matches = answer["matches"].as_array().unwrap();
        assert_eq!(matches.len(), count, "{args:?}");
        for found in matches {
            assert_eq!((&found["path"], &found["view"]), (&"b.gz".into(), &view.into()), "{args:?}");
            assert_eq!(found["containment"], 1.0);
        }
    }
    let plain = String::from_utf8(ask(&[]).stdout).unwrap();
    assert!(plain.contains("b.gz (as gzip)"), "{plain}");
    let wrong = ask(&["--view", "word"]);
    let said = String::from_utf8_lossy(&wrong.stderr).into_owned();
    assert_eq!(wrong.status.code(), Some(2));
    assert!(
        said.contains("expected auto, raw, text, html, source, postscript, pdf, archive, gzip"),
        "{said}"
    );
    let status = dedupctl(&["status", "--json"], world.dir.path());
    let status: serde_json::Value = serde_json::from_slice(&status.stdout).unwrap();
    assert_eq!(status["views"], 2);
}
