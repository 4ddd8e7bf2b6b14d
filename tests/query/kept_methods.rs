//! Indexes of the published methods that an overlay keeps: they answer as an index made anew of the same files does, whatever
//! happened to the files since.
//!
//! Each was seen to fail with its mechanism switched off, one at a time:
//!
//! | switched off | fails |
//! | --- | --- |
//! | `forget_kept` as a no-op | `answers_follow_the_files` (contents in the index) |
//! | `keep` as `Ok(false)` | all that ask for files with content |
//! | `keep_stored` as `Ok(false)` | `answers_follow_the_files` (new database), `what_is_enabled_later_...`, `commands_ask_...` |
//! | `keep_plain` as `Ok(false)` | `what_is_enabled_later_...` (files that stay plain) |
//! | `keep_committed` of hybrid files | `answers_follow_the_files` (written in the middle) |
//! | names when an answer is given | `names_count_as_they_are` |
//! | removal of an index; a new index does not make the store behind | `what_is_enabled_later_...`, `commands_ask_...` |
//! | `flush_method_indexes` as a no-op | `what_is_enabled_later_...` (caught up), `commands_ask_...` |
//! | `each_missing` finds none; no bound of length | `what_is_enabled_later_...`, `commands_ask_...` |
//! | `below` of `method_groups` | `a_daemon_answers_...` |
//! | other parameters are not refused; a base is read by default ones; so is the length of chunks | `an_index_has_the_parameters_...` |
//! | kept indexes are not asked | all |
#![allow(clippy::unwrap_used, reason = "a test stops at the first error")]

use crate::common::session::{Session, dedupctl, fast_dir};
use crate::common::{As, Mount, fuse_available, noise, text};
use dedupfs::chunk::ChunkParams;
use dedupfs::config::Config;
use dedupfs::overlay::methods::{FilesAlike, LikeGroups, Tree};
use dedupfs::overlay::{Caller, Dedup, FileRef, OpenFlags, ROOT};
use dedupfs::repo::{InitOptions, Layout, Repo};
use dedupfs::similarity::methods::Chosen;
use dedupfs::similarity::methods::winnow::Base;
use serde_json::Value;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

const ALL: [&str; 4] = ["sif", "winnow", "chunk-graph", "simhash"];
const CALLER: Caller = Caller { uid: 0, gid: 0, umask: 0o022 };

/// An overlay, and the same files in a directory.
struct World {
    dir: TempDir,
    mirror: TempDir,
    layout: Layout,
}

impl World {
    fn new(methods: &[&str], dedup: Dedup) -> World {
        let (dir, mirror) = (fast_dir(), fast_dir());
        let methods = Some(methods.iter().map(|name| chosen(name)).collect());
        let config = Config {
            methods,
            dedup: Some(dedup),
            hybrid_min_bytes: Some(8 << 10),
            memory_bytes: Some(32 << 20),
            ..Config::default()
        };
        let chunk = ChunkParams::with_average(4096).unwrap();
        let layout =
            Repo::init(dir.path(), None, &InitOptions { chunk, config, ..InitOptions::default() }).unwrap();
        World { dir, mirror, layout }
    }

    fn open(&self) -> Session {
        Session::open(self.dir.path()).unwrap()
    }

    fn write(&self, session: &Session, name: &str, bytes: &[u8]) {
        session.write(name, bytes).unwrap();
        fs::write(self.mirror.path().join(name), bytes).unwrap();
    }

    /// Writes in the middle of a file.
    fn patch(&self, session: &Session, name: &str, at: usize, bytes: &[u8]) {
        let overlay = session.overlay();
        let attr = overlay.tree.lookup(ROOT, OsStr::new(name)).unwrap();
        let flags = OpenFlags { write: true, ..OpenFlags::default() };
        let opened = overlay.tree.open(attr.node, flags, &|_| None).unwrap();
        overlay.tree.write(&opened.handle, at as u64, bytes).unwrap();
        overlay.tree.release(&opened.handle);
        overlay.tree.forget(attr.node, 1);
        let mut whole = fs::read(self.mirror.path().join(name)).unwrap();
        whole[at..at + bytes.len()].copy_from_slice(bytes);
        fs::write(self.mirror.path().join(name), whole).unwrap();
    }

    fn rename(&self, session: &Session, from: &str, to: &str) {
        session.overlay().tree.rename((ROOT, from.as_ref()), (ROOT, to.as_ref()), 0, CALLER).unwrap();
        fs::rename(self.mirror.path().join(from), self.mirror.path().join(to)).unwrap();
    }

    fn unlink(&self, session: &Session, name: &str) {
        session.overlay().tree.unlink(ROOT, name.as_ref()).unwrap();
        fs::remove_file(self.mirror.path().join(name)).unwrap();
    }

    /// Ten files: a text with an edit, copies under one and under another extension, noise with a part of it.
    fn fill(&self, session: &Session) {
        let (base, words) = (noise(1, 40_000), words(2, 6000));
        let mut edited = words.clone();
        edited.splice(9000..9040, *b"an edit");
        for (name, bytes) in [
            ("a.txt", &words[..]),
            ("b.txt", &edited),
            ("c.md", &words),
            ("d.bin", &base),
            ("e.bin", &base[..20_000]),
            ("f", &[&base[..25_000], &noise(3, 15_000)].concat()),
            ("g.bin", &base),
            ("h.txt", b"short"),
            ("i.txt", b""),
            ("j.txt", b""),
        ] {
            self.write(session, name, bytes);
        }
        assert!(session.settle().unwrap());
    }

    /// Asks about each file, and for groups, by each of `methods`; says how much was found.
    fn check(&self, session: &Session, methods: &[&str], when: &str) -> usize {
        assert!(session.settle().unwrap());
        let mut found = 0;
        for name in methods {
            let tree = Tree::read(self.mirror.path(), chosen(name).any(), &mut |_, _| true).unwrap();
            for file in fs::read_dir(self.mirror.path()).unwrap() {
                let file = file.unwrap().file_name();
                for limit in [2, 100] {
                    let asked = FileRef { path: PathBuf::from(&file), outside: false };
                    let kept =
                        session.overlay().queries.method_similar(&chosen(name), &asked, None, 0.1, limit);
                    let kept: FilesAlike = kept.unwrap().expect("it is kept");
                    let anew = tree.similar(&self.mirror.path().join(&file), 0.1, limit).unwrap();
                    assert_eq!(kept, anew, "{when}: like {file:?} by {name}");
                    found += kept.files.len();
                }
            }
            let outside = self.mirror.path().join("a.txt");
            let asked = FileRef { path: outside.clone(), outside: true };
            let kept = session
                .overlay()
                .queries
                .method_similar(&chosen(name), &asked, None, 0.1, 100)
                .unwrap()
                .unwrap();
            assert!(kept.files.iter().any(|found| found.identical), "{when}: {name} outside: {kept:?}");
            let kept = session.overlay().queries.method_groups(
                &chosen(name),
                Path::new(""),
                &Base::default(),
                0.1,
                &mut |_| true,
            );
            let kept: LikeGroups = kept.unwrap().expect("it is kept");
            assert_eq!(kept, tree.groups(0.1).unwrap(), "{when}: groups by {name}");
            assert_eq!(session.overlay().not_kept(&chosen(name)).unwrap(), Some(0), "{when}: {name}");
            let contents = method_contents(session, name);
            assert_eq!(contents, tree.contents() as u64, "{when}: contents in the index of {name}");
        }
        found
    }

    fn set(&self, line: &str) {
        fs::write(self.layout.file("config.toml"), format!("{line}\n")).unwrap();
    }
}

fn chosen(method: &str) -> Chosen {
    method.parse().unwrap()
}

fn method_contents(session: &Session, method: &str) -> u64 {
    let indexes = session.overlay().indexes.method_indexes().unwrap().indexes();
    indexes.iter().find(|index| index.method().name() == chosen(method).name()).unwrap().stats().contents
}

fn words(seed: u64, count: usize) -> Vec<u8> {
    let word = |bytes: &[u8]| bytes.iter().map(|byte| char::from(b'a' + byte % 26)).collect::<String>() + " ";
    noise(seed, count * 5).chunks(5).flat_map(|bytes| word(bytes).into_bytes()).collect()
}

#[test]
fn answers_follow_the_files() {
    for dedup in [Dedup::OnClose, Dedup::Off] {
        let world = World::new(&ALL, dedup);
        let session = world.open();
        world.fill(&session);
        let found = world.check(&session, &ALL, "written");
        assert!(found > 40, "{found} answers show little");
        world.write(&session, "b.txt", &noise(1, 30_000));
        world.write(&session, "f", &words(2, 5990));
        world.check(&session, &ALL, "overwritten");
        world.patch(&session, "d.bin", 20_000, &noise(9, 3000));
        world.check(&session, &ALL, "written in the middle");
        world.rename(&session, "c.md", "c.txt");
        world.rename(&session, "f", "f.txt");
        world.rename(&session, "a.txt", "z.txt");
        world.rename(&session, "z.txt", "a.txt");
        world.check(&session, &ALL, "renamed");
        for name in ["b.txt", "g.bin", "f.txt"] {
            world.unlink(&session, name);
        }
        world.check(&session, &ALL, "unlinked");
        world.write(&session, "k.md", &noise(1, 40_000));
        world.write(&session, "h.txt", b"");
        assert!(session.settle().unwrap());
        session.close().unwrap();
        let session = world.open();
        world.check(&session, &ALL, "opened again");
        session.close().unwrap();
        fs::remove_dir_all(world.layout.file("index")).unwrap();
        let session = world.open();
        session.overlay().maintenance.scan(Path::new(""), &mut |_, _, _, _| {}).unwrap();
        world.check(&session, &ALL, "with a new database");
        session.close().unwrap();
    }
}

/// SimHash compares files of one extension only: the one that they have when they are asked for.
#[test]
fn names_count_as_they_are() {
    let world = World::new(&["simhash"], Dedup::OnClose);
    let session = world.open();
    let of = |edit: &[u8]| [&words(2, 6000), edit].concat();
    world.write(&session, "a.txt", &of(b"one"));
    world.write(&session, "b.md", &of(b"another"));
    assert_eq!(world.check(&session, &["simhash"], "of two extensions"), 0);
    world.rename(&session, "b.md", "b.txt");
    assert_eq!(
        world.check(&session, &["simhash"], "of one extension"),
        4,
        "two files, asked about with two limits"
    );
    session.close().unwrap();
}

#[test]
fn what_is_enabled_later_is_filled_and_what_is_not_wanted_goes() {
    for dedup in ["on-close", "off"] {
        let world = World::new(&[], Dedup::OnClose);
        world.set(&format!("dedup = \"{dedup}\""));
        let session = world.open();
        world.fill(&session);
        assert!(session.overlay().indexes.method_indexes().unwrap().indexes().is_empty());
        session.close().unwrap();
        // Filled by a scan.
        world.set(&format!("dedup = \"{dedup}\"\nmethods = [\"sif\", \"simhash\"]"));
        let session = world.open();
        assert_eq!(session.overlay().not_kept(&chosen("sif")).unwrap(), Some(8));
        assert_eq!(session.overlay().not_kept(&chosen("winnow")).unwrap(), None);
        session.overlay().maintenance.scan(Path::new(""), &mut |_, _, _, _| {}).unwrap();
        world.check(&session, &["sif", "simhash"], "scanned");
        session.close().unwrap();
        // By who catches up, without being asked.
        world.set(&format!("dedup = \"{dedup}\"\nmethods = [\"winnow\", \"simhash\"]"));
        let layout = Layout::of(world.dir.path()).unwrap().unwrap();
        let repo = Repo::open(&layout, &Default::default(), &mut |_| {}).unwrap();
        assert!(repo.behind(), "an index that is new is behind");
        let asked = FileRef { path: "a.txt".into(), outside: false };
        assert!(
            repo.overlay().queries.method_similar(&chosen("sif"), &asked, None, 0.1, 9).unwrap().is_none()
        );
        let background = repo.overlay().start();
        dedupfs::admin::catch_up_quietly(&repo).unwrap();
        assert!(!repo.behind());
        repo.close(background.stop()).unwrap();
        let session = world.open();
        world.check(&session, &["winnow", "simhash"], "caught up");
        session.close().unwrap();
        // Wanted again: what there was is not.
        world.set(&format!("dedup = \"{dedup}\"\nmethods = [\"sif\"]"));
        let session = world.open();
        assert_eq!(method_contents(&session, "sif"), 0);
        session.close().unwrap();
    }
}

fn json(args: &[&str], dir: &Path) -> Value {
    let output = dedupctl(&[args, &["--json"]].concat(), dir);
    assert!(output.status.success(), "{args:?}: {}", text(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn commands_ask_the_index_that_is_kept() {
    let world = World::new(&["sif"], Dedup::OnClose);
    let session = world.open();
    world.fill(&session);
    session.close().unwrap();
    let (root, mirror) = (world.dir.path(), world.mirror.path().to_str().unwrap());
    assert!(dedupctl(&["scan"], root).status.success(), "then nothing is to be caught up with");
    let kept = json(&["similar", "d.bin", "--method", "sif"], root);
    let file = world.mirror.path().join("d.bin");
    let anew = json(&["similar", file.to_str().unwrap(), "--method", "sif", "--in", mirror], root);
    assert_eq!((&kept["matches"], &kept["parameters"]), (&anew["matches"], &anew["parameters"]));
    assert_eq!(kept["matches"].as_array().unwrap().len(), 3, "{kept}");
    assert_eq!(kept["not_known"], serde_json::json!({ "files": 0, "behind": false }));
    let said = |args: &[&str]| {
        let output = dedupctl(args, root);
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, error) = said(&["similar", "d.bin", "--method", "winnow"]);
    assert_eq!(code, Some(2));
    assert!(error.contains("methods = [\"winnow\"]") && error.contains("--in"), "{error}");
    // A setting that is new, before anything has caught up with it.
    world.set("methods = [\"winnow\"]");
    let (code, error) = said(&["groups", "--method", "winnow"]);
    assert_eq!(code, Some(0));
    assert!(error.contains("8 files or more are not in the index of winnow yet"), "{error}");
    assert!(dedupctl(&["scan"], root).status.success());
    let (code, error) = said(&["groups", "--method", "winnow"]);
    assert!(code == Some(0) && !error.contains("yet"), "{error}");
    let kept = json(&["groups", "--method", "winnow", "--min", "0.3"], root);
    let anew = json(&["groups", mirror, "--method", "winnow", "--min", "0.3"], root);
    assert_eq!(kept["groups"], anew["groups"]);
    assert!(kept["groups"].as_array().unwrap().len() >= 2, "{kept}");
    world.set("methods = [\"siff\"]");
    let (code, error) = said(&["similar", "d.bin", "--method", "sif"]);
    assert_eq!(code, Some(2));
    assert!(
        error.contains("\"siff\"") && error.contains("line 1") && error.contains("chunk-graph"),
        "{error}"
    );
}

/// Reports of their own, of an index as of files: and --save too.
#[test]
fn reports_of_an_index_are_those_of_files() {
    let world = World::new(&ALL, Dedup::OnClose);
    let session = world.open();
    world.fill(&session);
    // Repeats of a chunk, and more files than one answer is needed for anywhere.
    world.write(&session, "k.bin", &noise(8, 9000).repeat(3));
    world.write(&session, "l.bin", &noise(8, 9000));
    session.close().unwrap();
    let (root, mirror) = (world.dir.path(), world.mirror.path().to_str().unwrap());
    assert!(dedupctl(&["scan"], root).status.success());
    // Files without content are in no index.
    for name in ["i.txt", "j.txt"] {
        fs::remove_file(world.mirror.path().join(name)).unwrap();
    }
    for options in [
        &["--method", "sif", "--min", "0.2"][..],
        &["--method", "sif", "--interesting=2", "--min", "0.1"],
        &["--method", "chunk-graph", "--pairs", "--min", "0.2"],
        &["--method", "winnow", "--pairs", "--min", "0.2"],
        &["--method", "winnow", "--min", "0.2"],
        &["--method", "simhash"],
    ] {
        let kept = dedupctl(&[&["groups", "--json"], options].concat(), root);
        let said = String::from_utf8_lossy(&kept.stderr).into_owned();
        assert!(!said.contains("every file is read"), "{options:?}: {said}");
        let mut kept: Value = serde_json::from_slice(&kept.stdout).unwrap();
        let mut anew = json(&[&["groups", mirror], options].concat(), root);
        if let Some(count) = kept.get_mut("files") {
            assert_eq!((count.take(), anew["files"].take()), (10.into(), 10.into()), "{options:?}");
        }
        assert_eq!(kept, anew, "{options:?}");
        assert!(kept.to_string().contains("d.bin"), "{options:?}: {kept}");
    }
    for method in ["sif", "chunk-graph"] {
        let asked = ["groups", "--method", method, "--min", "0.2", "--save", "saved"];
        let kept = json(&asked, root);
        let from = json(&["groups", "--method", method, "--min", "0.2", "--from", "saved"], root);
        let part = if method == "sif" { "groups" } else { "clusters" };
        assert_eq!(
            (&from[part], kept[part].as_array().unwrap().is_empty()),
            (&kept[part], false),
            "{method}"
        );
        fs::remove_file(root.join("saved")).unwrap();
        // An anchor and another length of chunks are in no index, so files are read, and it is not mounted.
        let other = if method == "sif" { ["--learn-anchors", "--limit=9"] } else { ["--target", "1000"] };
        let output = dedupctl(&[&["groups", "--method", method][..], &other].concat(), root);
        assert_eq!(output.status.code(), Some(2), "{}", text(&output));
        assert!(String::from_utf8_lossy(&output.stderr).contains("--in"), "{}", text(&output));
    }
    // A base file counts nothing, be it in the overlay or not.
    let outside = world.mirror.path().join("e.bin");
    for base in ["e.bin", outside.to_str().unwrap()] {
        let pairs = json(&["groups", "--method", "winnow", "--pairs", "--base", base], root);
        let named = pairs["pairs"].to_string();
        assert!(!named.contains("e.bin") && named.contains("d.bin"), "only 5,000 more bytes: {pairs}");
        let like = json(&["similar", "e.bin", "--method", "winnow", "--base", base, "--min", "0.1"], root);
        assert_eq!(like["matches"], serde_json::json!([]), "{like}");
        assert!(like["parameters"].as_str().unwrap().contains("without a base"), "{like}");
        let groups = json(&["groups", "--method", "winnow", "--base", base], root);
        assert!(!groups["groups"].to_string().contains("e.bin"), "{groups}");
    }
    let few = json(&["similar", "d.bin", "--method", "winnow", "--smallest", "16"], root);
    let of = few["matches"].as_array().unwrap().iter().find(|found| found["path"] == "e.bin").unwrap();
    assert!(of["resemblance"].is_number() && of["contained_in"].is_null(), "{few}");
    let status = json(&["status"], root);
    let kept = status["kept"].as_array().unwrap();
    let names: Vec<_> = kept.iter().map(|kept| kept["name"].as_str().unwrap()).collect();
    assert_eq!(names, ALL, "{status}");
    assert!(
        kept.iter().all(|kept| kept["contents"] == 8 && kept["bytes"].as_u64().unwrap() > 300),
        "{status}"
    );
    let shown = String::from_utf8(dedupctl(&["status"], root).stdout).unwrap();
    assert!(shown.contains("simhash: 8 contents"), "{shown}");
}

/// The answers are those of the parameters that `methods` says, whether the question says them too or not; to another
/// question the index is none.
#[test]
fn an_index_has_the_parameters_that_it_is_enabled_with() {
    let methods =
        ["sif:zeros=4", "winnow:k=20,w=30", "chunk-graph:target=100", "simhash:key=uniform,extension=no"];
    let world = World::new(&methods, Dedup::OnClose);
    let session = world.open();
    world.fill(&session);
    let found = world.check(&session, &methods, "enabled");
    assert!(found > 40, "{found} answers show little");
    let asked = FileRef { path: "b.txt".into(), outside: false };
    let overlay = session.overlay();
    let like = |method: &str, min| {
        let found = overlay.queries.method_similar(&chosen(method), &asked, None, min, 100);
        found.map(|found| found.expect("it is kept").files.len()).map_err(|e| e.to_string())
    };
    assert!(like("winnow", 0.1).unwrap() > 0);
    assert_eq!(like("winnow", 0.1), like(methods[1], 0.1));
    let refused = like("winnow:k=20,w=31", 0.1).unwrap_err();
    assert!(refused.contains("robust k=20 w=30") && refused.contains("robust k=20 w=31"), "{refused}");
    // Tolerances are of the question, not of the index.
    let strict = like("simhash:key=uniform,extension=no,tolerance=0,size=0", 0.1).unwrap();
    assert!(strict < like("simhash", 0.1).unwrap(), "{strict}");
    session.close().unwrap();
    let (root, mirror) = (world.dir.path(), world.mirror.path().to_str().unwrap());
    assert!(dedupctl(&["scan"], root).status.success());
    for name in ["i.txt", "j.txt"] {
        fs::remove_file(world.mirror.path().join(name)).unwrap();
    }
    for (method, more) in [(methods[0], "--min=0.2"), (methods[1], "--pairs"), (methods[2], "--pairs")] {
        let bare = method.split(':').next().unwrap();
        let mut kept = json(&["groups", "--method", bare, more], root);
        let mut anew = json(&["groups", mirror, "--method", method, more], root);
        assert_eq!(kept["parameters"].take(), anew["parameters"].take());
        if let Some(count) = kept.get_mut("files") {
            assert_eq!((count.take(), anew["files"].take()), (8.into(), 8.into()));
        }
        assert_eq!(kept, anew, "{method}");
        assert!(kept.to_string().contains("d.bin"), "{method}: {kept}");
    }
    for (method, has, wanted) in [
        ("winnow:k=9", "k=20 w=30", "k=9 w=100"),
        ("chunk-graph:target=256", "about 100 bytes", "about 256 bytes"),
    ] {
        let output = dedupctl(&["groups", "--method", method], root);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(has) && said.contains(wanted) && said.contains("--in"), "{said}");
    }
    let pairs = json(&["groups", "--method", "winnow", "--pairs", "--base", "e.bin"], root);
    let named = pairs["pairs"].to_string();
    assert!(!named.contains("e.bin") && named.contains("d.bin"), "the base is read as the index is: {pairs}");
    let status = json(&["status"], root);
    assert_eq!(status["kept"][1]["parameters"], "robust k=20 w=30", "{status}");
    // With other parameters it is made anew.
    world.set("methods = [\"winnow:k=21,w=30\"]");
    let session = world.open();
    assert_eq!(method_contents(&session, "winnow"), 0);
    session.close().unwrap();
}

/// However long a file is: what does not fit in memory is sorted on disk, and the answers are the same.
#[test]
fn long_files_are_in_the_index_too() {
    let world = World::new(&ALL, Dedup::OnClose);
    let session = world.open();
    // Of 1 MiB for four sketches winnowing's alone takes as much.
    let long = noise(7, 3 << 20);
    world.write(&session, "a.txt", &long);
    world.write(&session, "part", &long[1 << 20..5 << 19]);
    let found = world.check(&session, &ALL, "longer than their memory");
    assert!(found >= 6, "{found}");
    session.close().unwrap();
}

#[test]
fn a_daemon_answers_from_its_index_or_files_are_read() {
    if !fuse_available() {
        return;
    }
    let user = if crate::common::is_root() { As::Root } else { As::User };
    let mount = Mount::prepare(user);
    mount.init("methods = [\"winnow\"]");
    mount.start();
    let base = noise(5, 60_000);
    fs::create_dir(mount.at("sub")).unwrap();
    fs::write(mount.at("a"), &base).unwrap();
    fs::write(mount.at("sub/part"), &base[10_000..50_000]).unwrap();
    mount.settle();
    let mut matches = Vec::new();
    for (method, is_kept) in [("winnow", true), ("chunk-graph", false)] {
        let args = ["similar", "a", "--method", method, "--json"];
        let output = mount.dedupctl().args(args).current_dir(mount.mnt()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(said.contains(&format!("methods = [\"{method}\"]")), !is_kept, "{said}");
        let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(answer["matches"][0]["path"], "sub/part", "{answer}");
        matches.push(answer["matches"].as_array().unwrap().len());
    }
    assert_eq!(matches, [1, 1]);
    let groups = mount.ctl(&["groups", "sub", "--method", "winnow"]);
    assert_eq!(groups["groups"], serde_json::json!([]), "only what is below: {groups}");
    let groups = mount.ctl(&["groups", "--method", "winnow"]);
    assert_eq!(groups["groups"].as_array().unwrap().len(), 1, "{groups}");
    mount.unmount();
}
