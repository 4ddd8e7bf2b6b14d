//! The process ends at each step of everything that is done to hybrid files, and the next one takes it up.

use super::world::{How, TO_WRITE, USUAL, World, noise};
use dedupfs::overlay::stub::Time;
use dedupfs::overlay::{Dedup, Handle, OpenFlags, ROOT, SetAttr};
use rustix::fs::FallocateFlags;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

/// Set for the process that ends: the directory, which of [`STORIES`], and at which step.
const VARIABLE: &str = "DEDUPFS_TEST_CRASH";
const LEN: usize = 200_000;

#[derive(Clone, Copy, Debug)]
enum Op {
    Write(usize, usize),
    Fsync,
    Punch(usize, usize),
    Truncate(usize),
    /// Closes it, and waits until it is a stub.
    Settle,
    /// Opens it with O_TRUNC.
    Empty,
    /// Another process's turn, by which files are never converted if so.
    Reopen(bool),
    /// No more than this may be used to make it a stub.
    Room(usize),
    /// From here on every step may be the last.
    Begin,
    Unlink,
}

use Op::*;

/// The file is a stub of [`LEN`] bytes at the beginning.
const STORIES: &[&[Op]] = &[
    &[
        Begin,
        Write(50_100, 3_000),
        Fsync,
        Write(50_000, 20_000),
        Punch(49_000, 30_001),
        Fsync,
        Truncate(60_000),
    ],
    &[Begin, Write(100, 50), Write(LEN, 9_000), Truncate(100_000), Write(150_000, 100), Settle],
    &[Begin, Write(70_000, 100_000), Fsync, Settle, Write(5, 5), Fsync, Settle],
    &[Write(70_000, 9_000), Fsync, Begin, Empty, Write(3, 9_000), Settle],
    &[Write(70_000, 9_000), Write(LEN, 5_000), Reopen(false), Begin, Write(1_000, 9_000), Fsync, Settle],
    // Written back, since files are to stay plain.
    &[Write(70_000, 9_000), Punch(0, 10_000), Truncate(180_000), Reopen(true), Begin, Write(1_000, 9_000)],
    &[Write(70_000, 9_000), Begin, Unlink],
    // Converted piece by piece.
    &[
        Empty,
        Write(0, LEN),
        Room(100_000),
        Begin,
        Settle,
        Write(50, 9_000),
        Write(190_000, 9_000),
        Fsync,
        Settle,
    ],
];

impl Op {
    /// What is in the file after it; `None` if it is gone.
    fn on_bytes(self, i: usize, bytes: &mut Option<Vec<u8>>) {
        let Some(content) = bytes else { return };
        match self {
            Write(at, len) => {
                content.resize(content.len().max(at + len), 0);
                content[at..at + len].copy_from_slice(&noise(i as u64, len));
            }
            Punch(at, len) => {
                let end = content.len().min(at + len);
                content[at..end].fill(0);
            }
            Truncate(len) => content.resize(len, 0),
            Empty => content.clear(),
            Unlink => *bytes = None,
            Fsync | Settle | Reopen(_) | Room(_) | Begin => {}
        }
    }

    fn on_world(self, i: usize, world: &mut World, open: &mut Option<Arc<Handle>>, step: u64) {
        let close = |world: &World, open: &mut Option<Arc<Handle>>| {
            open.take().into_iter().for_each(|handle| world.overlay.tree.release(&handle));
        };
        let mut handle = |world: &World, flags: OpenFlags| {
            open.get_or_insert_with(|| world.open("file", flags).unwrap()).clone()
        };
        match self {
            Write(at, len) => {
                let handle = handle(world, TO_WRITE);
                world.overlay.tree.write(&handle, at as u64, &noise(i as u64, len)).unwrap();
            }
            Punch(at, len) => {
                let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                let handle = handle(world, TO_WRITE);
                world.overlay.tree.fallocate(&handle, mode.bits() as i32, at as u64, len as u64).unwrap();
            }
            Truncate(len) => {
                let set = SetAttr { size: Some(len as u64), ..SetAttr::default() };
                world.overlay.tree.setattr(handle(world, TO_WRITE).node(), set).unwrap();
            }
            Fsync => world.overlay.tree.fsync(&handle(world, TO_WRITE), true).unwrap(),
            Empty => {
                close(world, open);
                *open = Some(world.open("file", OpenFlags { truncate: true, ..TO_WRITE }).unwrap());
            }
            Settle => {
                close(world, open);
                world.settle();
            }
            Reopen(off) => {
                close(world, open);
                let dedup = if off { Dedup::Off } else { USUAL.dedup };
                world.reopen_as(How { dedup, ..USUAL });
            }
            Room(bytes) => world.overlay.converter.limit_room(bytes as u64),
            Begin => world.overlay.tree.abort_at_step(step),
            Unlink => {
                close(world, open);
                world.overlay.tree.unlink(ROOT, "file".as_ref()).unwrap();
            }
        }
    }
}

/// What the process does that is to end. Notes in `progress` what was answered.
fn tell(dir: &Path, story: usize, step: u64) {
    let mut world = World::at(dir);
    let mut open = None;
    for (i, op) in STORIES[story].iter().enumerate() {
        op.on_world(i, &mut world, &mut open, step);
        fs::write(progress(dir), format!("{} {:?}", i + 1, mtime(&world))).unwrap();
    }
    world.overlay.tree.abort_at_step(0);
    // As it is, without an orderly end.
    std::process::exit(0);
}

/// As programs see it.
fn mtime(world: &World) -> Option<Time> {
    Some(world.overlay.tree.lookup(ROOT, "file".as_ref()).ok()?.mtime)
}

fn progress(dir: &Path) -> PathBuf {
    dir.parent().unwrap().join("progress")
}

/// Everything that was answered is there after each crash, and what was not is there or is not; the file can be
/// written to, becomes the stub that it would have become, and no list is left over.
#[test]
fn a_crash_at_any_step_loses_nothing() {
    if let Ok(what) = std::env::var(VARIABLE) {
        let mut words = what.split(' ');
        let mut number = || words.next().unwrap().parse::<u64>().unwrap();
        let (story, step) = (number() as usize, number());
        return tell(Path::new(words.next().unwrap()), story, step);
    }
    // Where each story begins.
    let mut first = World::new();
    first.stub("file", &noise(1000, LEN));
    first.close();
    let mut crashes = 0;
    for (story, ops) in STORIES.iter().enumerate() {
        for step in 1.. {
            assert!(step < 200, "story {story} does not end");
            let temp = tempfile::tempdir().unwrap();
            let dir = temp.path().join("dir");
            crate::common::session::copy_tree(&first.dir, &dir);
            let ended = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", std::thread::current().name().unwrap(), "--nocapture"])
                .env(VARIABLE, format!("{story} {step} {}", dir.display()))
                .stdout(Stdio::null())
                .stderr(Stdio::piped())
                .output()
                .unwrap();
            let case = format!("story {story}, step {step}");
            let crashed = !ended.status.success();
            let aborted = std::os::unix::process::ExitStatusExt::signal(&ended.status) == Some(libc::SIGABRT);
            assert_eq!(crashed, aborted, "{case}: {}", String::from_utf8_lossy(&ended.stderr));
            crashes += u32::from(crashed);
            let told = fs::read_to_string(progress(&dir)).unwrap_or("0 ".into());
            let (done, mtime) = told.split_once(' ').unwrap();
            let done: usize = done.parse().unwrap();
            let mut before = Some(noise(1000, LEN));
            ops[..done].iter().enumerate().for_each(|(i, op)| op.on_bytes(i, &mut before));
            let mut after = before.clone();
            if let Some(op) = ops.get(done) {
                op.on_bytes(done, &mut after);
            }
            // To become a stub changes nothing that programs see.
            let mtime = matches!(ops.get(done), Some(Settle)).then_some(mtime);
            take_up(&dir, &before, &after, mtime, &case);
            if !crashed {
                break;
            }
        }
    }
    println!("{crashes} crashes");
    assert!(crashes > 60, "only {crashes} crashes");
}

/// Of a call that was not answered, some blocks may have been written.
fn is_between(found: &Option<Vec<u8>>, before: &Option<Vec<u8>>, after: &Option<Vec<u8>>) -> bool {
    let (Some(found), Some(before), Some(after)) = (found, before, after) else { return false };
    let blocks = |bytes: &[u8]| bytes.chunks(4096).map(<[u8]>::to_vec).collect::<Vec<_>>();
    let (found, before, after) = (blocks(found), blocks(before), blocks(after));
    found.len() == before.len()
        && found.len() == after.len()
        && found.iter().zip(before.iter().zip(&after)).all(|(found, (a, b))| found == a || found == b)
}

fn take_up(
    dir: &Path,
    before: &Option<Vec<u8>>,
    after: &Option<Vec<u8>>,
    expected_mtime: Option<&str>,
    case: &str,
) {
    let mut world = World::at(dir);
    if let Some(expected) = expected_mtime {
        assert_eq!(format!("{:?}", mtime(&world)), expected, "{case}: mtime");
    }
    let found = world.read("file").ok();
    let describe = |bytes: &Option<Vec<u8>>| {
        let differs = bytes.iter().zip(&found).next().map(|(a, b)| a.iter().zip(b).position(|(a, b)| a != b));
        format!("{:?} bytes, differs at {differs:?}", bytes.as_ref().map(Vec::len))
    };
    assert!(
        found == *before || found == *after || is_between(&found, before, after),
        "{case}: {:?} bytes found, expected {} or {}",
        found.as_ref().map(Vec::len),
        describe(before),
        describe(after)
    );
    if let Some(mut bytes) = found {
        if !bytes.is_empty() {
            world.write("file", 10, b"after the crash");
            bytes.resize(bytes.len().max(25), 0);
            bytes[10..25].copy_from_slice(b"after the crash");
        }
        world.reopen();
        assert!(world.read("file").unwrap() == bytes, "{case}: in the next life");
        world.overlay.maintenance.scan(Path::new(""), &mut |_, _, _, _| {}).unwrap();
        assert!(world.read("file").unwrap() == bytes, "{case}: once converted");
        if !bytes.is_empty() {
            world.check_stub("file", &bytes);
        }
    }
    world.overlay.maintenance.gc(false, &mut |_| true).unwrap().unwrap();
    assert!(world.lists().is_empty(), "{case}: {:?} is left over", world.lists());
    world.close();
}
