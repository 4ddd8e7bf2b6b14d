//! Stores that are kept as files: one whole of each format version, and damaged ones. `tests/fixtures/README.md`
//! says what is wrong with each; its `expected.txt` says what is found: of each file whether it is read, and
//! what `check --deep` reports. A later version of the program has to find the same.
//!
//! Seen to fail: with another byte of a pack changed, with a line of an `expected.txt` changed, with the
//! pack's number taken out of the checksum of a frame (no frame of version 1 verifies); `v3` also with another hash in
//! `hashes.txt`.
#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a test stops at the first error, and says when it is skipped"
)]

use crate::common::session::{
    Check, RECORD, Session, copy_tree, dedupctl, fast_dir, files_below, fill_small_packs,
};
use crate::common::{noise, prose, xattr};
use dedupfs::chunk::ChunkParams;
use dedupfs::id::ChunkId;
use dedupfs::overlay::STATE_DIR;
use dedupfs::overlay::stub::{GuardKey, State, Stub};
use dedupfs::repo::{InitOptions, Layout, Repo};
use rustix::fs::XattrFlags;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::io::{Cursor, Write as _};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};
use tempfile::TempDir;

/// Version 1 of the format, as it was first written.
const WHOLE: &str = "v1";
/// Version 3: with groups, deltas, a dictionary and inflated archives.
const GROUPED: &str = "v3";
/// Of version 4, with solid groups.
const COLD: &str = "v4";
/// Of version 5, with groups of which none tells names but the inflated ones.
const UNNAMED: &str = "v5";
/// Of version 6, with solid groups of LZMA.
const STRONG: &str = "v6";
/// What git keeps no xattrs for: the records of the stubs, and how many bytes lie in each file.
const RECORDS: &str = "records.txt";
const EXPECTED: &str = "expected.txt";
/// Name and hash of each file, where no program but the one that made them can be relied on to make them again.
const HASHES: &str = "hashes.txt";

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
}

/// The content of every file of a fixture without a list of hashes.
fn contents() -> BTreeMap<&'static str, Vec<u8>> {
    BTreeMap::from([
        ("noise", noise(1, 5_000)),
        ("noise-and-more", [noise(1, 4_000), noise(2, 2_000)].concat()),
        ("text", prose(3, 12_000)),
        ("one-byte", b"1".to_vec()),
        ("zeros", vec![0; 9_000]),
    ])
}

/// The hash of every file of a fixture.
fn hashes(name: &str) -> BTreeMap<String, ChunkId> {
    let Ok(list) = fs::read_to_string(fixtures().join(name).join(HASHES)) else {
        return contents().iter().map(|(name, bytes)| ((*name).to_owned(), ChunkId::of(bytes))).collect();
    };
    let lines = list.lines().map(|line| line.split_once(' ').unwrap());
    lines.map(|(name, hash)| (name.to_owned(), hash.parse().unwrap())).collect()
}

/// A fixture, put up for use: the state directory, and the files with their records.
fn put_up(name: &str) -> TempDir {
    let from = fixtures().join(name);
    let dir = fast_dir();
    let root = dir.path().join("dir");
    fs::create_dir(&root).unwrap();
    copy_tree(&from.join("state"), &root.join(STATE_DIR));
    let contents = contents();
    for line in fs::read_to_string(from.join(RECORDS)).unwrap().lines() {
        let words: Vec<_> = line.split(' ').collect();
        let [name, len, seconds, nanoseconds, record] = words[..] else { panic!("{line}") };
        let path = root.join(name);
        let written = contents.get(name).map_or(&[][..], |bytes| &bytes[..len.parse().unwrap()]);
        fs::write(&path, written).unwrap();
        let record: Vec<u8> = (0..record.len() / 2)
            .map(|i| u8::from_str_radix(&record[2 * i..2 * i + 2], 16).unwrap())
            .collect();
        rustix::fs::setxattr(&path, RECORD, &record, XattrFlags::empty()).unwrap();
        let mtime = UNIX_EPOCH + Duration::new(seconds.parse().unwrap(), nanoseconds.parse().unwrap());
        fs::File::options().write(true).open(&path).unwrap().set_modified(mtime).unwrap();
    }
    dir
}

/// False, said aloud, where the filesystem of temporary files keeps no user xattrs.
fn xattrs_available() -> bool {
    let kept = dedupfs::repo::keeps_xattrs(fast_dir().path());
    if !kept {
        eprintln!("SKIPPED: this test needs a filesystem with user xattrs");
    }
    kept
}

/// What is found in a fixture: a line for each file, and one for each finding.
fn found(name: &str) -> String {
    let dir = put_up(name);
    let root = dir.path().join("dir");
    let mut text = String::new();
    match Session::open(&root) {
        Err(e) => {
            let reason = e.to_string().replace(root.to_str().unwrap(), "DIR");
            writeln!(text, "refused {reason}").unwrap();
        }
        Ok(session) => {
            for (name, hash) in hashes(name) {
                let answer = match session.read(&name) {
                    Ok(read) if ChunkId::of(&read) == hash => "right",
                    Ok(read) => panic!("{name}: {} wrong bytes", read.len()),
                    Err(_) => "EIO",
                };
                writeln!(text, "{answer} {name}").unwrap();
            }
            session.close().unwrap();
        }
    }
    match Check::run(&["--deep"], &root) {
        Err(message) => assert!(text.starts_with("refused"), "{message}"),
        Ok(check) => {
            let mut lines: Vec<_> = check
                .found
                .iter()
                .map(|(kind, object, path, _)| {
                    format!("found {kind} {object} {}\n", path.as_deref().unwrap_or("-"))
                })
                .collect();
            lines.sort();
            text.push_str(&lines.concat());
            writeln!(text, "healed {}", check.healed).unwrap();
        }
    }
    text
}

fn names() -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(fixtures())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_dir())
        .map(|path| path.file_name().unwrap().to_str().unwrap().to_owned())
        .collect();
    names.sort();
    names
}

#[test]
fn each_is_found_as_it_was_left() {
    if !xattrs_available() {
        return;
    }
    let names = names();
    assert!(names.len() > 12, "{names:?}");
    for name in names {
        let expected = fs::read_to_string(fixtures().join(&name).join(EXPECTED)).unwrap();
        assert_eq!(found(&name), expected, "{name}");
    }
}

/// Every file of a store of version 1 is read, in every state that a record can have, and can be written again.
#[test]
fn a_store_of_version_1_is_whole() {
    if !xattrs_available() {
        return;
    }
    let dir = put_up(WHOLE);
    let root = dir.path().join("dir");
    let session = Session::open(&root).unwrap();
    for (name, bytes) in contents() {
        assert!(session.read(name).unwrap() == bytes, "{name}");
    }
    // The packs are those of this program: nothing of the same content is stored again.
    let stored = session.overlay().store().stats().unique_bytes;
    session.write("again", &contents()["text"]).unwrap();
    assert!(session.settle().unwrap());
    assert_eq!(session.overlay().store().stats().unique_bytes, stored);
    assert!(session.read("again").unwrap() == contents()["text"]);
    session.close().unwrap();
}

/// What grouping makes is read as it was first written, each frame of these kinds, codecs and flags in packs of such a version;
/// and nothing is left to be grouped.
fn assert_grouped(name: &str, version: u8, expected: &[[u8; 3]], args: &[&str]) {
    if !xattrs_available() {
        return;
    }
    let dir = put_up(name);
    let root = dir.path().join("dir");
    let state = root.join(STATE_DIR);
    let (mut versions, mut kinds) = (BTreeSet::new(), BTreeSet::new());
    for path in files_below(&state.join("packs")) {
        let bytes = fs::read(path).unwrap();
        versions.insert(bytes[8]);
        kinds.extend(frames(&bytes).iter().map(|(start, _)| bytes[*start + 4..*start + 7].to_vec()));
    }
    assert!(versions.contains(&version), "{versions:?}");
    for kind in expected {
        assert!(kinds.contains(&kind[..]), "{kind:?} in {kinds:?}");
    }
    let report = dedupctl(&[&["optimize", "--dry-run", "--json"], args].concat(), &root);
    let report: serde_json::Value = serde_json::from_slice(&report.stdout).unwrap();
    assert_eq!(report["chunks"], 0, "{report}");
    let session = Session::open(&root).unwrap();
    for (file, hash) in hashes(name) {
        assert_eq!(ChunkId::of(&session.read(&file).unwrap()), hash, "{file}");
    }
    session.close().unwrap();
}

#[test]
fn a_store_of_version_3_is_whole() {
    let kinds = [[8, 1, 1], [9, 2, 1], [8, 3, 0], [9, 2, 0], [10, 1, 0]];
    assert_grouped(GROUPED, 3, &kinds, &["--archive-size", "1M"]);
}

/// Seen to fail: with another number for the flag of groups without names.
#[test]
fn a_store_of_version_4_is_whole() {
    let kinds = [[8, 1, 1], [9, 2, 1], [8, 1, 2], [8, 0, 6], [3, 1, 0]];
    assert_grouped(COLD, 4, &kinds, &["--tier", "cold"]);
}

/// Seen to fail: with tables without names refused where a group needs another.
#[test]
fn a_store_of_version_5_is_whole() {
    let kinds = [[8, 1, 1], [9, 2, 1], [8, 3, 2], [9, 2, 2], [10, 1, 0], [8, 0, 6], [3, 1, 0]];
    assert_grouped(UNNAMED, 5, &kinds, &["--archive-size", "1M"]);
}

/// Seen to fail: with another number for the codec of LZMA.
#[test]
fn a_store_of_version_6_is_whole() {
    let kinds = [[8, 4, 2], [8, 1, 1], [9, 2, 1], [8, 0, 6], [3, 1, 0]];
    assert_grouped(STRONG, 6, &kinds, &["--tier", "cold"]);
}

#[test]
fn all_are_described_and_small() {
    let readme = fs::read_to_string(fixtures().join("README.md")).unwrap();
    for name in names() {
        assert!(readme.contains(&format!("| `{name}` |")), "{name} is in the README");
    }
    let bytes: u64 = files_below(&fixtures()).iter().map(|path| fs::metadata(path).unwrap().len()).sum();
    assert!(bytes < 1 << 20, "{bytes} bytes");
}

// From here on: making them.

/// Frames of a pack: offset and end.
fn frames(pack: &[u8]) -> Vec<(usize, usize)> {
    let (mut at, mut frames) = (40, Vec::new());
    while at < pack.len() {
        let stored = u32::from_le_bytes(*pack[at + 8..].first_chunk().unwrap()) as usize;
        frames.push((at, at + 56 + stored));
        at += 56 + stored;
    }
    frames
}

/// The first frame of a kind at or after pack number `from`: its pack, offset and end.
fn frame_of(state: &Path, kind: u8, from: usize) -> (PathBuf, usize, usize) {
    for path in &files_below(&state.join("packs"))[from..] {
        let bytes = fs::read(path).unwrap();
        if let Some(&(start, end)) = frames(&bytes).iter().find(|(start, _)| bytes[start + 4] == kind) {
            return (path.clone(), start, end);
        }
    }
    panic!("no frame of kind {kind}");
}

fn edit(path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = fs::read(path).unwrap();
    change(&mut bytes);
    fs::write(path, bytes).unwrap();
}

fn pack(state: &Path, number: usize) -> PathBuf {
    state.join(format!("packs/{number:08x}.pack"))
}

/// A damage to the state directory of a whole store.
type Damage = fn(&Path);

const DAMAGES: &[(&str, Damage)] = &[
    ("chunk-payload-flipped", |state| {
        let (path, start, end) = frame_of(state, 1, 0);
        edit(&path, |bytes| bytes[(start + 56 + end) / 2] ^= 1);
    }),
    ("chunk-header-flipped", |state| {
        let (path, start, _) = frame_of(state, 1, 0);
        edit(&path, |bytes| bytes[start + 9] ^= 1);
    }),
    ("recipe-flipped", |state| {
        let (path, start, _) = frame_of(state, 2, 0);
        edit(&path, |bytes| bytes[start + 60] ^= 1);
    }),
    ("pack-missing", |state| fs::remove_file(pack(state, 1)).unwrap()),
    ("pack-header-zeroed", |state| edit(&pack(state, 1), |bytes| bytes[..40].fill(0))),
    ("pack-cut-short", |state| edit(&pack(state, 0), |bytes| bytes.truncate(bytes.len() / 2))),
    ("pack-bytes-taken-out", |state| edit(&pack(state, 0), |bytes| drop(bytes.drain(2000..2010)))),
    ("pack-block-zeroed", |state| edit(&pack(state, 0), |bytes| bytes[1024..2048].fill(0))),
    ("pack-copied", |state| assert!(fs::copy(pack(state, 0), pack(state, 1)).is_ok())),
    ("footer-flipped", |state| {
        let (path, start, end) = frame_of(state, 3, 0);
        edit(&path, |bytes| bytes[(start + 56 + end) / 2] ^= 1);
    }),
    ("newest-torn", |state| {
        let newest = files_below(&state.join("packs")).pop().unwrap();
        edit(&newest, |bytes| {
            let (start, end) = frames(bytes)[0];
            let torn = bytes[start..end - 5].to_vec();
            bytes.extend(torn);
        });
    }),
    ("pack-of-a-newer-version", |state| {
        edit(&pack(state, 1), |bytes| {
            bytes[8] = 99;
            let crc = crc32fast::hash(&bytes[..36]);
            bytes[36..40].copy_from_slice(&crc.to_le_bytes());
        });
    }),
    ("pack-of-another-store", |state| {
        edit(&pack(state, 1), |bytes| {
            bytes[16] ^= 1;
            let crc = crc32fast::hash(&bytes[..36]);
            bytes[36..40].copy_from_slice(&crc.to_le_bytes());
        });
    }),
    ("store-of-a-newer-version", |state| {
        let path = state.join("format.toml");
        let text = fs::read_to_string(&path).unwrap().replace("version = 1", "version = 2\nshape = \"new\"");
        fs::write(path, text).unwrap();
    }),
    ("key-of-another-store", |state| edit(&state.join("key"), |bytes| bytes[31] ^= 1)),
    // The content was stored again because the first copy was damaged: the later counts.
    ("chunk-healed", |state| {
        let root = state.parent().unwrap();
        let (path, start, end) = frame_of(state, 1, 0);
        edit(&path, |bytes| bytes[(start + 56 + end) / 2] ^= 1);
        let session = Session::open(root).unwrap();
        session.touch("noise");
        session.write("again", &contents()["noise"]).unwrap();
        assert!(session.settle().unwrap());
        session.close().unwrap();
        fs::remove_file(root.join("again")).unwrap();
    }),
];

/// Makes a whole store in `root`: the same each time, but for the records' times and zstd's encoding.
fn make_whole(root: &Path) -> Layout {
    let contents = contents();
    let files: Vec<_> = contents.iter().map(|(name, bytes)| (*name, &bytes[..])).collect();
    make_store(root, ChunkParams::with_average(1024).unwrap(), 4096, &files)
}

fn make_store(root: &Path, params: ChunkParams, pack_bytes_max: u32, files: &[(&str, &[u8])]) -> Layout {
    fs::create_dir(root).unwrap();
    let layout = Repo::init(root, None, &InitOptions { chunk: params, ..InitOptions::default() }).unwrap();
    let format = fs::read_to_string(layout.file("format.toml")).unwrap();
    let at = format.find("store = \"").unwrap() + 9;
    let id = "00112233445566778899aabbccddeeff";
    // As version 1 was first written, without a check of the key: another key is then only seen at each stub.
    let lines = [&format[..at], id, &format[at + 32..]].concat();
    let lines = lines.split_inclusive('\n').filter(|line| !line.starts_with("key_check"));
    fs::write(layout.file("format.toml"), lines.collect::<String>()).unwrap();
    fs::write(layout.file("key"), [7; 32]).unwrap();
    fill_small_packs(&layout, params, pack_bytes_max, files);
    layout
}

/// Two versions of a document, a gzip file, a PDF, and text that is worth a dictionary.
fn grouped_contents() -> Vec<(&'static str, Vec<u8>)> {
    let document = |line: &[u8]| {
        let mut archive = zip::ZipWriter::new(Cursor::new(Vec::new()));
        for part in 0..4 {
            let date = zip::DateTime::default();
            let options = zip::write::SimpleFileOptions::default().last_modified_time(date);
            archive.start_file(format!("part{part}.xml"), options).unwrap();
            let mut text = prose(part, 15_000);
            text.splice(3_000..3_000, line.iter().copied());
            archive.write_all(&text).unwrap();
        }
        archive.finish().unwrap().into_inner()
    };
    let mut log = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    log.write_all(&prose(9, 30_000)).unwrap();
    let mut page = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::default());
    page.write_all(&prose(8, 20_000)).unwrap();
    let page = page.finish().unwrap();
    let pdf = [b"%PDF-1.4\n1 0 obj\nstream\n", &page[..], b"\nendstream\nendobj\n"].concat();
    let phrases: Vec<_> = (10..74).map(|seed| prose(seed, 40)).collect();
    let phrase = |byte: &u8| phrases[usize::from(*byte) % phrases.len()].iter().copied();
    let letters: Vec<u8> = noise(4, 28_000).iter().flat_map(phrase).collect();
    let mut again = letters[..60_000].to_vec();
    again.splice(20_000..20_000, *b"one line more");
    vec![
        ("document-1.zip", document(b"the first version of this")),
        ("document-2.zip", document(b"the version after that")),
        ("log.gz", log.finish().unwrap()),
        ("page.pdf", pdf),
        ("letters", letters),
        ("letters-again", again),
        ("noise", noise(1, 5_000)),
    ]
}

fn make_grouped(root: &Path) -> Layout {
    let contents = grouped_contents();
    let files: Vec<_> = contents.iter().map(|(name, bytes)| (*name, &bytes[..])).collect();
    let layout = make_store(root, ChunkParams::default(), 1 << 20, &files);
    let grouped = dedupctl(&["optimize", "--tier", "cold"], root);
    assert!(grouped.status.success(), "{}", crate::common::text(&grouped));
    layout
}

/// Writes a store with the records of these files as a fixture. What is found in it is not written.
fn save<'a>(layout: &Layout, name: &str, files: impl Iterator<Item = &'a str>) {
    let to = fixtures().join(name);
    let _ = fs::remove_dir_all(to.join("state"));
    fs::create_dir_all(&to).unwrap();
    let mut records = String::new();
    for name in files {
        let path = layout.root.join(name);
        let meta = fs::metadata(&path).unwrap();
        let record: String = xattr(&path, RECORD).unwrap().iter().map(|byte| format!("{byte:02x}")).collect();
        writeln!(records, "{name} {} {} {} {record}", meta.len(), meta.mtime(), meta.mtime_nsec()).unwrap();
    }
    fs::write(to.join(RECORDS), records).unwrap();
    copy_tree(&layout.state, &to.join("state"));
    for gone in ["index", "lock"] {
        let path = to.join("state").join(gone);
        let _ = fs::remove_dir_all(&path).or_else(|_| fs::remove_file(&path));
    }
}

/// Makes all of them again. Look at what changed in each `expected.txt` before believing it.
#[test]
#[ignore = "writes to tests/fixtures"]
fn make() {
    for (name, damage) in DAMAGES {
        let dir = fast_dir();
        let layout = make_whole(&dir.path().join("dir"));
        damage(&layout.state);
        save(&layout, name, contents().keys().copied());
    }
    let dir = fast_dir();
    let layout = make_whole(&dir.path().join("dir"));
    // One file in each state that a crash can leave.
    for (name, state, len) in
        [("noise", State::Unsettled, 0), ("text", State::Hydrating, 5_000), ("zeros", State::Plain, 9_000)]
    {
        let path = layout.root.join(name);
        let key = GuardKey([7; 32]);
        let record = Stub::decode(&xattr(&path, RECORD).unwrap(), &key).unwrap();
        fs::write(&path, &contents()[name][..len]).unwrap();
        let record = Stub { state, ..record }.encode(&key);
        rustix::fs::setxattr(&path, RECORD, &record, XattrFlags::empty()).unwrap();
    }
    save(&layout, WHOLE, contents().keys().copied());
    let dir = fast_dir();
    let layout = make_grouped(&dir.path().join("dir"));
    let contents = grouped_contents();
    save(&layout, STRONG, contents.iter().map(|(name, _)| *name));
    let hashes = contents.iter().map(|(name, bytes)| format!("{name} {}\n", ChunkId::of(bytes)));
    fs::write(fixtures().join(STRONG).join(HASHES), hashes.collect::<String>()).unwrap();
    for name in names() {
        fs::write(fixtures().join(&name).join(EXPECTED), found(&name)).unwrap();
    }
}
