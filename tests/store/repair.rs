//! Check and repair: what is found, where whole bytes are taken from, and what must never be taken or changed.
//!
//! Each test was seen to fail with its mechanism switched off, by a change of one place:
//!
//! | switched off | fails |
//! | --- | --- |
//! | `look_at` of `overlay/recover.rs` as `lock_loaded` | `a_check_in_a_daemon_changes_nothing` |
//! | `read_only: !apply` of `cli/check.rs` as `false` | `check_changes_nothing` (the torn end is cut) |
//! | the read-only arm for a bad index in `repo/open.rs` | `a_check_leaves_a_damaged_index_where_it_is` |
//! | `note_damaged` in `store/verify.rs` | `a_write_heals_what_a_check_found` |
//! | the groups of packs in `admin/check.rs` | `a_missing_pack_is_one_finding_and_its_files` |
//! | `whole` of `store/salvage.rs` without the hash | `wrong_bytes_are_refused` (the forged pack) |
//! | `search_packs`, `search_files`, `search_tree`, `cut_anew` as no-ops, one at a time | the test of that source |
//! | `lost_record` of `overlay/repair.rs` as `Ok(None)` | `a_record_that_is_gone_is_named_and_written_anew` |
//! | `birth <= mtime` in `overlay/repair.rs` as true | `a_record_that_is_gone_is_not_written_to_a_file_younger_than_its_time` |
//! | the check of mtime in `overlay/repair.rs` | `empty_files_are_no_stubs_without_a_record` |
//! | the checks of mtime and directory in `overlay/repair.rs`, one at a time | `a_record_is_not_written_on_a_guess` |
//! | `salvage` of `store/salvage.rs` without its packs | `an_older_copy_is_taken` |
//! | `keep` of `admin/repair.rs` | `a_damaged_record_is_written_anew_and_the_old_one_kept` |
//! | `writer` of `Surgeon` always there | `a_plan_changes_nothing` |
#![allow(clippy::unwrap_used, reason = "a test stops at the first error")]

use crate::common::{As, Mount, fuse_available, noise, text, xattr};
use dedupfs::admin::{self, Action, CheckReport, Context, Peer, RepairRequest, Request, Response};
use dedupfs::chunk::ChunkParams;
use dedupfs::config::Config;
use dedupfs::db::{Batch, Db, IndexDb, Table};
use dedupfs::history::Rules;
use dedupfs::id::ChunkId;
use dedupfs::overlay::{Background, OpenFlags, ROOT};
use dedupfs::recipe::{ChunkRef, Recipe};
use dedupfs::repo::{InitOptions, Layout, OpenOptions, Repo, RepoError};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const RECORD: &str = "user.dedupfs";

/// A directory with a store, opened by this process when it is worked on.
/// Without versions the last frame of a pack is a recipe.
fn without_history() -> Config {
    Config { history: Some(Rules { none: true, ..Rules::default() }), ..Config::default() }
}

struct World {
    dir: TempDir,
    layout: Layout,
}

/// A store opened, with the overlay's threads.
struct Open {
    repo: Repo,
    background: Background,
}

impl World {
    fn with_average(avg: u64) -> World {
        let dir = tempfile::tempdir().unwrap();
        let chunk = ChunkParams::with_average(avg).unwrap();
        let layout = Repo::init(
            dir.path(),
            None,
            &InitOptions { chunk, config: without_history(), ..InitOptions::default() },
        )
        .unwrap();
        World { dir, layout }
    }

    /// A store with these files in it, all of them stubs.
    fn of(files: &[(&str, &[u8])]) -> World {
        let world = World::with_average(4096);
        for (name, bytes) in files {
            fs::create_dir_all(world.path(name).parent().unwrap()).unwrap();
            fs::write(world.path(name), bytes).unwrap();
        }
        world.take_in();
        for (name, _) in files {
            assert!(world.is_stub(name), "{name}");
        }
        world
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn is_stub(&self, name: &str) -> bool {
        fs::metadata(self.path(name)).unwrap().len() == 0 && xattr(&self.path(name), RECORD).is_some()
    }

    fn open(&self) -> Open {
        let end = Instant::now() + Duration::from_secs(10);
        let repo = loop {
            match Repo::open(
                &self.layout,
                &OpenOptions { convert: true, ..OpenOptions::default() },
                &mut |_| {},
            ) {
                // A process that another test is just starting has our descriptors until it runs its program.
                Err(RepoError::Locked { .. }) if Instant::now() < end => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                other => break other.unwrap(),
            }
        };
        let background = repo.overlay().start();
        Open { repo, background }
    }

    fn take_in(&self) {
        let open = self.open();
        open.take_in();
        open.close();
    }

    fn check(&self) -> CheckReport {
        let open = self.open();
        let report = open.check();
        open.close();
        report
    }

    fn repair(&self, from: &[&Path]) -> CheckReport {
        let open = self.open();
        let report = open.repair(true, from);
        open.close();
        report
    }

    fn read(&self, name: &str) -> Option<Vec<u8>> {
        let open = self.open();
        let bytes = open.read(name);
        open.close();
        bytes
    }

    fn packs(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.layout.file("packs")).unwrap();
        let mut packs: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
        packs.sort();
        packs
    }

    /// Inverts one byte in the place where `bytes` are in a pack, the last such place. Again: puts it right.
    fn flip(&self, bytes: &[u8]) -> (PathBuf, usize) {
        for pack in self.packs().into_iter().rev() {
            let mut all = fs::read(&pack).unwrap();
            let at = all.windows(bytes.len()).rposition(|window| window == bytes);
            if let Some(at) = at {
                // The last byte, so that the rest can be found again.
                all[at + bytes.len()] ^= 0xff;
                fs::write(&pack, all).unwrap();
                return (pack, at);
            }
        }
        panic!("no pack has these bytes");
    }

    /// Another directory and store that are the same as this one now.
    fn copy(&self) -> World {
        let dir = tempfile::tempdir().unwrap();
        let from = format!("{}/.", self.dir.path().display());
        crate::common::succeed(Command::new("cp").args(["-a", &from]).arg(dir.path()));
        let layout = Layout::of(dir.path()).unwrap().unwrap();
        World { dir, layout }
    }
}

impl Open {
    fn ask(&self, request: Request) -> CheckReport {
        let context = Context { repo: &self.repo, mountpoint: None };
        match admin::run(context, request, &mut |_| true).unwrap() {
            Response::Check(report) => report,
            other => panic!("{other:?}"),
        }
    }

    fn check(&self) -> CheckReport {
        self.ask(Request::Check { path: PathBuf::new(), deep: true })
    }

    fn repair(&self, apply: bool, from: &[&Path]) -> CheckReport {
        let from = from.iter().map(|path| Peer(path.to_path_buf())).collect();
        self.ask(Request::Repair(RepairRequest { path: PathBuf::new(), deep: true, apply, from }))
    }

    fn take_in(&self) {
        self.repo.overlay().maintenance.scan(Path::new(""), &mut |_, _, _, _| {}).unwrap();
    }

    fn read(&self, name: &str) -> Option<Vec<u8>> {
        let overlay = self.repo.overlay();
        let mut node = ROOT;
        for part in name.split('/') {
            node = overlay.tree.lookup(node, OsStr::new(part)).ok()?.node;
        }
        let opened = overlay.tree.open(node, OpenFlags::default(), &|_| None).ok()?;
        let bytes = overlay.tree.read(&opened.handle, 0, 10 << 20).ok();
        overlay.tree.release(&opened.handle);
        bytes
    }

    fn close(self) {
        let left = self.background.stop();
        self.repo.close(left).unwrap();
    }
}

/// Everything on disk below `dir`, record of a file included, but the index and the lock: what `check` must not change.
fn tree(dir: &Path) -> BTreeMap<PathBuf, String> {
    fn visit(dir: &Path, found: &mut BTreeMap<PathBuf, String>) {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.ends_with(".dedupfs/index") || path.ends_with(".dedupfs/lock") {
                continue;
            }
            let meta = fs::symlink_metadata(&path).unwrap();
            let content = if meta.is_file() { fs::read(&path).unwrap() } else { Vec::new() };
            let times = (meta.mtime(), meta.mtime_nsec(), meta.ctime(), meta.ctime_nsec());
            let row = format!("{} {times:?} {:?}", blake3::hash(&content), xattr(&path, RECORD));
            if meta.is_dir() {
                visit(&path, found);
            } else {
                found.insert(path, row);
            }
        }
    }
    let mut found = BTreeMap::new();
    visit(dir, &mut found);
    found
}

#[track_caller]
fn unchanged<T>(dir: &Path, work: impl FnOnce() -> T) -> T {
    let before = tree(dir);
    let result = work();
    let after = tree(dir);
    let changed: Vec<_> = before.iter().filter(|(path, row)| after.get(*path) != Some(*row)).collect();
    assert!(before == after, "changed or gone: {changed:?}");
    result
}

fn paths<'a>(report: &'a CheckReport, kind: &str) -> Vec<&'a str> {
    let rows = report.damaged.iter().filter(|row| row.kind == kind);
    rows.filter_map(|row| row.path.as_deref()).collect()
}

fn actions<'a>(report: &'a CheckReport, action: &str) -> Vec<&'a Action> {
    report.plan.iter().filter(|found| found.action == action).collect()
}

#[track_caller]
fn all_whole(report: &CheckReport) {
    assert!(report.damaged.is_empty() && report.repaired > 0, "{report:#?}");
    assert!(report.plan.iter().all(|action| action.done), "{report:#?}");
}

/// A recipe of one chunk as a pack has it, without its last byte.
fn recipe_bytes(bytes: &[u8]) -> Vec<u8> {
    let chunk = ChunkRef { id: ChunkId::of(bytes), len: bytes.len() as u32 };
    let mut encoded = Recipe::new(vec![chunk]).encode();
    encoded.pop();
    encoded
}

fn set_record(path: &Path, value: &[u8]) {
    rustix::fs::setxattr(path, RECORD, value, rustix::fs::XattrFlags::empty()).unwrap();
}

/// Puts an mtime back that a test has moved.
fn with_mtime_of(path: &Path, work: impl FnOnce()) {
    let before = fs::metadata(path).unwrap().modified().unwrap();
    work();
    fs::File::options().write(true).open(path).unwrap().set_modified(before).unwrap();
}

#[test]
fn every_finding_names_place_and_files() {
    let shared = noise(1, 900);
    let world =
        World::of(&[("a", &shared), ("sub/b", &shared), ("other", &noise(2, 900)), ("c", &noise(3, 900))]);
    let (pack, at) = world.flip(&shared[..100]);
    world.flip(&recipe_bytes(&noise(3, 900)));
    let report = world.check();
    assert_eq!(paths(&report, "chunk"), ["a", "sub/b"], "{report:#?}");
    assert_eq!(paths(&report, "recipe"), ["c"]);
    assert_eq!(report.damaged.len(), 3, "{report:#?}");
    let row = &report.damaged[0];
    assert_eq!(row.object, ChunkId::of(&shared).to_string());
    assert!(pack.ends_with(format!("{}.pack", row.pack.as_deref().unwrap())), "{row:?}");
    // The frame: its header is 56 bytes.
    assert_eq!(row.offset, Some(at as u64 - 56));
    assert!(row.reason.contains("checksum"), "{row:?}");
}

#[test]
fn a_missing_pack_is_one_finding_and_its_files() {
    let big = noise(1, 600_000);
    let world = World::of(&[("a", &big), ("b", &big)]);
    // A damaged end is not written to any more: its recipe, stored again, goes into a second pack.
    let mut all = fs::read(&world.packs()[0]).unwrap();
    *all.last_mut().unwrap() ^= 1;
    fs::write(&world.packs()[0], all).unwrap();
    let open = world.open();
    assert_eq!(paths(&open.check(), "recipe"), ["a", "b"]);
    fs::write(world.path("c"), &big).unwrap();
    open.take_in();
    open.close();
    assert_eq!(world.packs().len(), 2);
    fs::remove_file(&world.packs()[0]).unwrap();
    let report = world.check();
    let of_pack: Vec<_> = report.damaged.iter().filter(|row| row.kind == "pack").collect();
    assert_eq!(of_pack.iter().filter(|row| row.path.is_none()).count(), 1, "{report:#?}");
    assert_eq!(report.damaged.len(), 4, "three files and the pack: {report:#?}");
    assert_eq!(paths(&report, "pack"), ["a", "b", "c"]);
    assert!(of_pack.iter().any(|row| row.reason.contains("chunks and 0 recipes")), "{report:#?}");
}

/// Everything that could tempt a check to put something right at once.
fn damage_everything(world: &World) {
    world.flip(&noise(1, 900)[..100]);
    world.flip(&recipe_bytes(&noise(2, 900)));
    let record = xattr(&world.path("stub"), RECORD).unwrap();
    let mut bad = record.clone();
    bad[20] ^= 1;
    set_record(&world.path("stub"), &bad);
    // Written to behind the overlay's back: the record would be dropped.
    fs::write(world.path("written"), "x").unwrap();
    // And the record of nobody on a plain file.
    fs::write(world.path("foreign"), "plain").unwrap();
    set_record(&world.path("foreign"), &bad);
    // A torn end of the newest pack.
    use std::io::Write;
    let newest = world.packs().pop().unwrap();
    fs::File::options().append(true).open(newest).unwrap().write_all(b"torn").unwrap();
}

const FILES: [&str; 4] = ["chunk", "recipe", "stub", "written"];

fn damaged_world() -> World {
    let bytes: Vec<_> = (1..5).map(|seed| noise(seed, 900)).collect();
    let files: Vec<_> = FILES.into_iter().zip(bytes.iter().map(Vec::as_slice)).collect();
    let world = World::of(&files);
    damage_everything(&world);
    world
}

/// Runs the command until no process that is just being started has inherited the lock, as in `World::open`.
fn once_free(command: &mut Command) -> Output {
    let end = Instant::now() + Duration::from_secs(10);
    loop {
        let output = command.output().unwrap();
        if !String::from_utf8_lossy(&output.stderr).contains("in use") || Instant::now() > end {
            return output;
        }
    }
}

fn dedupctl(args: &[&str], path: &Path, code: i32) -> CheckReport {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dedupctl"));
    let output = once_free(command.args(args).arg("--json").arg(path));
    assert_eq!(output.status.code(), Some(code), "{args:?}: {}", text(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Runs `dedupctl` with at most 100 open files.
fn with_few_descriptors(args: &[&str], path: &Path) -> Output {
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -n 100; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_dedupctl")]);
    once_free(command.args(args).arg(path))
}

#[test]
fn a_file_that_no_descriptor_is_left_for_is_unchecked_and_not_damaged() {
    // A walk has each directory above a file open.
    let deep = "d/".repeat(150) + "file";
    let bytes = noise(1, 900);
    let world = World::of(&[(&deep, &bytes), ("whole", &noise(2, 900))]);
    for args in
        [&["check"][..], &["check", "--deep"], &["check", "--repair", "--dry-run"], &["check", "--repair"]]
    {
        let output = with_few_descriptors(&[args, &["--json"]].concat(), world.dir.path());
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", text(&output));
        let report: CheckReport = serde_json::from_slice(&output.stdout).unwrap();
        assert!(report.damaged.is_empty() && report.plan.is_empty(), "{args:?}: {report:#?}");
        assert_eq!(
            (report.stubs, report.repaired, report.unchecked.len()),
            (1, 0, 1),
            "{args:?}: {report:#?}"
        );
        let row = &report.unchecked[0];
        assert!(row.kind == "file" && row.object.starts_with("d/d/"), "{row:?}");
        assert!(row.reason.contains("Too many open files") && row.remedy.contains("ulimit -n"), "{row:?}");
    }
    let told = text(&with_few_descriptors(&["check"], world.dir.path()));
    assert!(told.contains("could not be checked") && told.contains("ulimit -n"), "{told}");
    assert!(!told.contains("--repair"), "{told}");
    assert_eq!(world.read(&deep), Some(bytes));
    assert_eq!(dedupctl(&["check"], world.dir.path(), 0).stubs, 2);
}

#[test]
fn check_changes_nothing() {
    let world = damaged_world();
    unchanged(world.dir.path(), || {
        for args in [&["check"][..], &["check", "--deep"]] {
            let report = dedupctl(args, world.dir.path(), 1);
            assert_eq!(paths(&report, "chunk"), ["chunk"], "{report:#?}");
            assert_eq!((paths(&report, "recipe"), paths(&report, "stub")), (vec!["recipe"], vec!["stub"]));
        }
    });
}

/// As a daemon does: it may write, and what it would put right when a file is next met is left.
#[test]
fn a_check_in_a_daemon_changes_nothing() {
    let world = damaged_world();
    let open = world.open();
    let report = unchanged(world.dir.path(), || open.check());
    // The torn end is told of too if the frame before it, whichever was written last, is one of the damaged.
    let found = report.damaged.iter().filter(|row| row.kind != "frame").count();
    assert_eq!(found, 3, "{report:#?}");
    open.close();
}

/// What a mount would move aside, a check only reads past.
#[test]
fn a_check_leaves_a_damaged_index_where_it_is() {
    let world = World::of(&[("file", &noise(1, 900))]);
    let names = || -> std::collections::BTreeSet<_> {
        fs::read_dir(&world.layout.state).unwrap().map(|entry| entry.unwrap().file_name()).collect()
    };
    for entry in fs::read_dir(world.layout.file("index")).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() {
            fs::write(&path, noise(7, fs::metadata(&path).unwrap().len() as usize)).unwrap();
        }
    }
    let before = names();
    let report = unchanged(world.dir.path(), || dedupctl(&["check", "--deep"], world.dir.path(), 0));
    assert_eq!((report.stubs, names()), (1, before));
}

#[test]
fn a_plan_changes_nothing() {
    let world = damaged_world();
    let peer = tempfile::tempdir().unwrap();
    fs::write(peer.path().join("copy"), noise(1, 900)).unwrap();
    unchanged(world.dir.path(), || {
        let from = format!("--from={}", peer.path().display());
        let report = dedupctl(&["check", "--repair", "--dry-run", &from], world.dir.path(), 1);
        assert_eq!(actions(&report, "store-again").len(), 1, "{report:#?}");
        assert_eq!(actions(&report, "write-record").len(), 1);
        assert_eq!(actions(&report, "lost").len(), 1);
        assert!(report.plan.iter().all(|action| !action.done) && report.repaired == 0, "{report:#?}");
        assert!(!report.damaged.is_empty());
    });
    // In one process, with writes allowed: nothing but the torn end changes, and that on opening.
    let open = world.open();
    unchanged(world.dir.path(), || open.repair(false, &[peer.path()]));
    open.close();
}

#[test]
fn a_write_heals_what_a_check_found() {
    for by_read in [false, true] {
        let (one, two) = (noise(1, 900), noise(2, 900));
        let world = World::of(&[("one", &one), ("two", &two)]);
        world.flip(&one[..100]);
        world.flip(&recipe_bytes(&two));
        let open = world.open();
        if by_read {
            assert_eq!((open.read("one"), open.read("two")), (None, None));
        } else {
            assert_eq!(open.check().damaged.len(), 2);
        }
        fs::write(world.path("again-one"), &one).unwrap();
        fs::write(world.path("again-two"), &two).unwrap();
        open.take_in();
        assert!(open.read("one") == Some(one), "a chunk, by read: {by_read}");
        assert!(open.read("two") == Some(two), "a recipe, by read: {by_read}");
        let report = open.check();
        assert!(report.damaged.is_empty() && report.healed.len() == 2, "{report:#?}");
        open.close();
    }
}

#[test]
fn an_older_copy_is_taken() {
    let bytes = noise(1, 900);
    let world = World::of(&[("file", &bytes)]);
    world.flip(&bytes[..100]);
    let open = world.open();
    open.check();
    fs::write(world.path("again"), &bytes).unwrap();
    open.take_in();
    open.close();
    // Two frames now; the later is damaged and the earlier whole again.
    let (pack, later) = world.flip(&bytes[..100]);
    let mut all = fs::read(&pack).unwrap();
    let earlier = all.windows(100).position(|window| window == &bytes[..100]).unwrap();
    assert!(earlier < later);
    all[earlier + 100] ^= 0xff;
    fs::write(&pack, all).unwrap();
    assert_eq!(world.read("file"), None);
    let report = world.repair(&[]);
    all_whole(&report);
    assert!(report.plan[0].from.as_deref().unwrap().contains("older copy"), "{report:#?}");
    assert_eq!((report.plan[0].files, world.read("file")), (2, Some(bytes)));
}

#[test]
fn plain_files_give_chunks_and_recipes_back() {
    let big = noise(1, 60_000);
    let (one, two) = (noise(2, 900), noise(3, 900));
    let world = World::of(&[("big", &big), ("one", &one), ("two", &two)]);
    world.flip(&big[30_000..30_100]);
    world.flip(&recipe_bytes(&one));
    world.flip(&recipe_bytes(&two));
    world.flip(&two[..100]);
    // Plain, and only that: nothing is taken in here.
    fs::create_dir(world.path("sub")).unwrap();
    fs::write(world.path("sub/plain"), [&big[..], &noise(9, 500)].concat()).unwrap();
    fs::write(world.path("sub/one"), &one).unwrap();
    assert_eq!(world.read("big"), None);
    let report = world.repair(&[]);
    let froms: Vec<_> = actions(&report, "store-again").iter().filter_map(|a| a.from.clone()).collect();
    assert_eq!(froms.len(), 2, "{report:#?}");
    assert!(froms.iter().all(|from| from.contains("plain file sub/")), "{froms:?}");
    assert_eq!((world.read("big"), world.read("one")), (Some(big), Some(one)));
    // What nobody has stays lost, and is named with what to do.
    assert_eq!(paths(&report, "recipe"), ["two"]);
    let lost = actions(&report, "lost");
    assert_eq!(lost.len(), 2, "{report:#?}");
    assert!(
        lost.iter().any(|action| action.path.as_deref() == Some("two") && action.reason.contains("backup"))
    );
    assert!(!world.is_stub("sub/plain") && !world.is_stub("sub/one"));
}

#[test]
fn a_peer_of_plain_files_is_taken_from() {
    let bytes = noise(1, 60_000);
    let world = World::of(&[("file", &bytes)]);
    fs::remove_file(&world.packs()[0]).unwrap();
    let peer = tempfile::tempdir().unwrap();
    fs::create_dir(peer.path().join("deep")).unwrap();
    std::os::unix::fs::symlink("/", peer.path().join("link")).unwrap();
    crate::common::succeed(Command::new("mkfifo").arg(peer.path().join("pipe")));
    fs::write(peer.path().join("deep/copy"), &bytes).unwrap();
    let report = unchanged(peer.path(), || world.repair(&[peer.path()]));
    all_whole(&report);
    assert_eq!(world.read("file"), Some(bytes));
}

#[test]
fn another_store_is_taken_from() {
    let (one, two) = (noise(1, 60_000), noise(2, 900));
    for how in ["directory", "state", "packs only"] {
        let world = World::of(&[("one", &one), ("two", &two)]);
        let peer = World::of(&[("elsewhere", &[&one[..], b"tail"].concat()), ("two", &two)]);
        world.flip(&one[30_000..30_100]);
        world.flip(&recipe_bytes(&two));
        let bare = tempfile::tempdir().unwrap();
        let from = match how {
            "directory" => peer.dir.path().to_owned(),
            "state" => peer.layout.state.clone(),
            _ => {
                crate::common::succeed(
                    Command::new("cp").arg("-r").arg(peer.layout.file("packs")).arg(bare.path()),
                );
                bare.path().to_owned()
            }
        };
        let report = unchanged(peer.dir.path(), || world.repair(&[&from]));
        all_whole(&report);
        assert_eq!((world.read("one"), world.read("two")), (Some(one.clone()), Some(two.clone())), "{how}");
    }
}

#[test]
fn a_store_that_cuts_otherwise_is_cut_anew() {
    let bytes = noise(1, 60_000);
    let world = World::of(&[("file", &bytes)]);
    fs::remove_file(&world.packs()[0]).unwrap();
    let peer = World::with_average(16 << 10);
    fs::write(peer.path("copy"), &bytes).unwrap();
    peer.take_in();
    assert!(peer.is_stub("copy"));
    let report = unchanged(peer.dir.path(), || world.repair(&[peer.dir.path()]));
    all_whole(&report);
    assert_eq!(world.read("file"), Some(bytes));
}

#[test]
fn wrong_bytes_are_refused() {
    let bytes = noise(1, 900);
    let world = World::of(&[("file", &bytes)]);
    let peer = World::of(&[("file", &bytes)]);
    world.flip(&bytes[..100]);
    // Its frame is wrong and its checksums fit: as a forged or badly copied pack.
    let pack = &peer.packs()[0];
    let mut all = fs::read(pack).unwrap();
    let at = all.windows(100).position(|window| window == &bytes[..100]).unwrap();
    all[at + 7] ^= 1;
    let payload_crc = crc32fast::hash(&all[at..at + bytes.len()]).to_le_bytes();
    all[at - 8..at - 4].copy_from_slice(&payload_crc);
    let mut header = all[at - 56..at - 4].to_vec();
    header.extend(&all[16..32]);
    header.extend(&all[12..16]);
    header.extend((at as u32 - 56).to_le_bytes());
    let header_crc = crc32fast::hash(&header).to_le_bytes();
    all[at - 4..at].copy_from_slice(&header_crc);
    fs::write(pack, &all).unwrap();
    let wrong = tempfile::tempdir().unwrap();
    let mut other = bytes.clone();
    other[500] ^= 1;
    fs::write(wrong.path().join("file"), &other).unwrap();
    fs::write(world.path("file-of-the-same-size"), &other).unwrap();
    let open = peer.open();
    assert_ne!(open.read("file"), Some(bytes.clone()), "the forged frame is there and not what it was");
    open.close();
    let report = world.repair(&[peer.dir.path(), wrong.path()]);
    assert_eq!((report.repaired, actions(&report, "lost").len()), (0, 1), "{report:#?}");
    assert_eq!((paths(&report, "chunk"), world.read("file")), (vec!["file"], None));
}

#[test]
fn a_damaged_record_is_written_anew_and_the_old_one_kept() {
    let bytes = noise(1, 900);
    let world = World::of(&[("dir/file", &bytes)]);
    let mut bad = xattr(&world.path("dir/file"), RECORD).unwrap();
    bad[40] ^= 1;
    set_record(&world.path("dir/file"), &bad);
    let before = fs::metadata(world.path("dir/file")).unwrap();
    assert_eq!(world.read("dir/file"), None);
    let report = world.repair(&[]);
    all_whole(&report);
    assert_eq!(world.read("dir/file"), Some(bytes));
    let after = fs::metadata(world.path("dir/file")).unwrap();
    assert_eq!((before.mtime(), before.mtime_nsec()), (after.mtime(), after.mtime_nsec()));
    let kept: Vec<_> = fs::read_dir(world.layout.file("quarantine")).unwrap().collect();
    assert_eq!(kept.len(), 1);
    let kept = fs::read_to_string(kept[0].as_ref().unwrap().path()).unwrap();
    let hex: String = bad.iter().map(|byte| format!("{byte:02x}")).collect();
    assert!(kept.contains("path: dir/file\n") && kept.contains(&hex), "{kept}");
}

#[test]
fn a_record_that_is_gone_is_named_and_written_anew() {
    let bytes = noise(1, 900);
    let world = World::of(&[("dir/file", &bytes), ("dir/other", &noise(2, 900))]);
    rustix::fs::removexattr(world.path("dir/file"), RECORD).unwrap();
    let found = world.check();
    assert_eq!((found.damaged.len(), paths(&found, "stub")), (1, vec!["dir/file"]), "{found:#?}");
    let reason = &found.damaged[0].reason;
    assert!(reason.contains("its record is gone: it had 900 bytes"), "{reason}");
    assert_eq!(world.read("dir/file"), Some(Vec::new()), "a check changes nothing");
    let report = world.repair(&[]);
    all_whole(&report);
    assert_eq!(actions(&report, "write-record").len(), 1);
    assert_eq!(world.read("dir/file"), Some(bytes));
    let kept = fs::read_dir(world.layout.file("quarantine")).unwrap().next().unwrap().unwrap();
    assert!(fs::read_to_string(kept.path()).unwrap().contains("user.dedupfs: none\n"));
}

/// Files that are empty because somebody made them so, or made them.
#[test]
fn empty_files_are_no_stubs_without_a_record() {
    let world = World::of(&[("dir/file", &noise(1, 900)), ("dir/emptied", &noise(2, 900))]);
    let open = world.open();
    let overlay = open.repo.overlay();
    // Through the overlay, so that it is plain and then nothing.
    let dir = overlay.tree.lookup(ROOT, OsStr::new("dir")).unwrap().node;
    let file = overlay.tree.lookup(dir, OsStr::new("emptied")).unwrap().node;
    let flags = OpenFlags { write: true, truncate: true, ..OpenFlags::default() };
    let emptied = world.path("dir/emptied");
    let before = fs::metadata(&emptied).unwrap().modified().unwrap();
    let opened = overlay.tree.open(file, flags, &|_| None).unwrap();
    // Even with the time that the catalog knows.
    fs::File::options().write(true).open(&emptied).unwrap().set_modified(before).unwrap();
    assert!(open.check().damaged.is_empty(), "while it is open");
    overlay.tree.release(&opened.handle);
    assert!(open.check().damaged.is_empty(), "when it was closed");
    overlay.maintenance.settle(&mut |_| true).unwrap();
    assert!(open.check().damaged.is_empty(), "when it was committed");
    open.close();
    // Behind its back: emptied, and new.
    rustix::fs::removexattr(world.path("dir/file"), RECORD).unwrap();
    fs::write(world.path("dir/new"), "").unwrap();
    assert_eq!(paths(&world.check(), "stub"), ["dir/file"], "before");
    fs::File::options()
        .write(true)
        .truncate(true)
        .open(world.path("dir/file"))
        .unwrap()
        .set_modified(std::time::SystemTime::now())
        .unwrap();
    let report = world.repair(&[]);
    assert!(report.damaged.is_empty() && report.plan.is_empty(), "{report:#?}");
}

/// A file that was unpacked with an old time, and has all that the catalog knows: another file may have it by now.
#[test]
fn a_record_that_is_gone_is_not_written_to_a_file_younger_than_its_time() {
    let world = World::with_average(4096);
    fs::write(world.path("unpacked"), noise(1, 900)).unwrap();
    let old = std::time::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    fs::File::options().write(true).open(world.path("unpacked")).unwrap().set_modified(old).unwrap();
    world.take_in();
    assert!(world.is_stub("unpacked"));
    rustix::fs::removexattr(world.path("unpacked"), RECORD).unwrap();
    let report = world.repair(&[]);
    assert_eq!((report.repaired, paths(&report, "stub")), (0, vec!["unpacked"]), "{report:#?}");
    assert!(report.damaged[0].reason.contains("new file"), "{report:#?}");
    assert_eq!(xattr(&world.path("unpacked"), RECORD), None);
    // As it says.
    fs::File::options()
        .write(true)
        .open(world.path("unpacked"))
        .unwrap()
        .set_modified(std::time::SystemTime::now())
        .unwrap();
    assert!(world.check().damaged.is_empty());
}

#[test]
fn a_record_is_not_written_on_a_guess() {
    let forge = |path: &Path| with_mtime_of(path, || set_record(path, &[0x12; 64]));
    for how in ["mtime", "directory", "not empty", "unknown"] {
        let world = World::of(&[("dir/file", &noise(1, 900))]);
        fs::create_dir(world.path("other")).unwrap();
        let file = match how {
            "directory" => {
                fs::rename(world.path("dir/file"), world.path("other/file")).unwrap();
                world.path("other/file")
            }
            "unknown" => {
                let new = world.path("dir/new");
                fs::write(&new, "").unwrap();
                new
            }
            _ => world.path("dir/file"),
        };
        forge(&file);
        match how {
            "mtime" => fs::File::options()
                .write(true)
                .open(&file)
                .unwrap()
                .set_modified(std::time::SystemTime::now())
                .unwrap(),
            "not empty" => with_mtime_of(&file, || fs::write(&file, "mine").unwrap()),
            _ => {}
        }
        let record = xattr(&file, RECORD);
        let report = world.repair(&[]);
        assert_eq!(report.repaired, 0, "{how}: {report:#?}");
        if how != "not empty" {
            assert_eq!(actions(&report, "lost").len(), 1, "{how}: {report:#?}");
            assert_eq!(xattr(&file, RECORD), record, "{how}");
        }
        assert!(!world.layout.file("quarantine").exists(), "{how}");
    }
}

/// A repair that ends anywhere in between, and then again: the same as one that came to its end.
#[test]
fn a_repair_that_was_cut_short_is_begun_again() {
    let bytes = noise(1, 60_000);
    let world = World::of(&[("file", &bytes), ("other", &noise(2, 60_000))]);
    for at in [0, 20_000, 40_000, 59_800] {
        world.flip(&bytes[at..at + 100]);
    }
    let peer = tempfile::tempdir().unwrap();
    fs::write(peer.path().join("copy"), &bytes).unwrap();
    let whole = world.copy();
    all_whole(&whole.repair(&[peer.path()]));
    let again = unchanged(&whole.layout.file("packs"), || whole.repair(&[peer.path()]));
    assert_eq!((again.repaired, again.plan.len(), again.damaged.len()), (0, 0, 0), "nothing is left to do");
    let pack = whole.packs()[0].file_name().unwrap().to_owned();
    let packs = |world: &World| world.layout.file("packs").join(&pack);
    let (before, after) = (fs::read(packs(&world)).unwrap(), fs::read(packs(&whole)).unwrap());
    assert!(after.len() > before.len() && after.starts_with(&before), "frames are only added");
    for part in 1..6 {
        let cut = before.len() + (after.len() - before.len()) * part / 6;
        let crashed = world.copy();
        fs::write(packs(&crashed), &after[..cut]).unwrap();
        let report = crashed.repair(&[peer.path()]);
        assert!(report.damaged.is_empty(), "cut at {cut}: {report:#?}");
        assert_eq!(crashed.read("file"), Some(bytes.clone()), "cut at {cut}");
    }
}

#[test]
fn a_footer_is_left_and_nothing_is_lost() {
    let world = World::of(&[("file", &noise(1, 900))]);
    let mut all = fs::read(&world.packs()[0]).unwrap();
    all[3] ^= 1;
    fs::write(&world.packs()[0], all).unwrap();
    let report = world.repair(&[]);
    let left = actions(&report, "left");
    assert!(left.len() == 1 && left[0].reason.contains("nothing is lost"), "{report:#?}");
    assert_eq!((paths(&report, "chunk").len(), world.read("file")), (0, Some(noise(1, 900))));
}

/// The index forgets a block of rows; the record that is damaged too needs what the old index knows.
#[test]
fn the_index_is_made_anew_and_records_are_saved_before() {
    let (one, two) = (noise(1, 900), noise(2, 900));
    let world = World::of(&[("one", &one), ("two", &two)]);
    let mut bad = xattr(&world.path("two"), RECORD).unwrap();
    bad[40] ^= 1;
    set_record(&world.path("two"), &bad);
    {
        let db = IndexDb::open(&world.layout.file("index"), 1 << 20).unwrap();
        let mut batch = Batch::new();
        db.scan(Table::Chunks, &[], &mut |key, _| {
            batch.remove(Table::Chunks, key);
            true
        })
        .unwrap();
        db.apply(batch).unwrap();
        db.flush().unwrap();
    }
    let plan = dedupctl(&["check", "--repair", "--dry-run"], world.dir.path(), 1);
    assert_eq!(actions(&plan, "rebuild-index").len(), 1, "{plan:#?}");
    let report = dedupctl(&["check", "--repair"], world.dir.path(), 0);
    assert!(report.repaired >= 1 && report.plan.iter().all(|action| action.done), "{report:#?}");
    assert_eq!((world.read("one"), world.read("two")), (Some(one), Some(two)));
}

#[test]
fn all_of_it_works_beside_a_mount() {
    if !fuse_available() {
        return;
    }
    let mount = Mount::new(As::Root);
    let (bytes, other) = (noise(1, 60_000), noise(2, 900));
    fs::write(mount.at("file"), &bytes).unwrap();
    fs::write(mount.at("other"), &other).unwrap();
    fs::write(mount.at("record"), noise(3, 5000)).unwrap();
    mount.settle();
    mount.remount();
    let pack = fs::read_dir(mount.backing().join(".dedupfs/packs")).unwrap().next().unwrap().unwrap().path();
    let mut all = fs::read(&pack).unwrap();
    let place =
        |bytes: &[u8], all: &[u8]| all.windows(bytes.len()).rposition(|window| window == bytes).unwrap();
    for needle in [&bytes[30_000..30_100], &recipe_bytes(&other)] {
        let at = place(needle, &all) + needle.len();
        all[at] ^= 0xff;
    }
    // In place: the daemon has the file open.
    use std::os::unix::fs::FileExt;
    fs::File::options().write(true).open(&pack).unwrap().write_all_at(&all, 0).unwrap();
    let mut bad = xattr(&mount.backing().join("record"), RECORD).unwrap();
    bad[40] ^= 1;
    set_record(&mount.backing().join("record"), &bad);
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut n = 100;
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                n += 1;
                fs::write(mount.at("traffic"), noise(n, 50_000)).unwrap();
                assert_eq!(fs::read(mount.at("traffic")).unwrap(), noise(n, 50_000));
            }
        });
        let found = mount.ctl(&["check", "--deep"]);
        let named: Vec<_> =
            found["damaged"].as_array().unwrap().iter().map(|row| row["path"].clone()).collect();
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        for name in ["file", "other", "record"] {
            assert!(named.contains(&name.into()), "{name}: {found}");
        }
        assert_eq!(named.len(), 3, "{found}");
    });
    assert_eq!(fs::read(mount.at("file")).unwrap_err().raw_os_error(), Some(libc::EIO));
    let peer = tempfile::tempdir().unwrap();
    fs::write(peer.path().join("copy"), &bytes).unwrap();
    fs::write(peer.path().join("copy-too"), &other).unwrap();
    let from = peer.path().to_str().unwrap();
    let output =
        mount.dedupctl().args(["check", "--repair", "--from", from]).arg(mount.mnt()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    assert!(said.contains("3 repaired") && said.contains("write-record"), "{said}");
    assert_eq!((fs::read(mount.at("file")).unwrap(), fs::read(mount.at("other")).unwrap()), (bytes, other));
    assert_eq!(fs::read(mount.at("record")).unwrap(), noise(3, 5000));
    assert_eq!(mount.ctl(&["check", "--deep"])["damaged"].as_array().unwrap().len(), 0);
}

#[test]
fn misuse_is_named() {
    let world = World::of(&[("file", &noise(1, 900))]);
    let run = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_dedupctl"));
        let output = once_free(command.args(args).arg(world.dir.path()));
        (output.status.code(), text(&output))
    };
    let (code, said) = run(&["check", "--repair", "--from", "/nowhere"]);
    assert!(code == Some(2) && said.contains("/nowhere") && said.contains("hint"), "{said}");
    assert_eq!(run(&["check", "--from", "/"]).0, Some(2), "a source without a repair");
    assert_eq!(run(&["check", "--dry-run"]).0, Some(2));
    let (code, said) = run(&["check", "--repair"]);
    assert!(code == Some(0) && said.contains("no damage"), "{said}");
}
