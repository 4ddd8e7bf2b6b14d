//! Writing back fails at each system call, and the process ends at each step of taking it back: the content is there.

use super::world::{How, TO_WRITE, USUAL, World, noise};
use dedupfs::overlay::{Caller, Dedup, ExportOptions, OpenFlags, ROOT};
use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::ExitStatusExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Set for the process that ends: the story, which call fails, at which step it ends, and the directory.
const VARIABLE: &str = "DEDUPFS_TEST_WRITE_BACK";
/// The exit code of a process whose open was refused.
const REFUSED: i32 = 3;
const SMALL: usize = 12_000;
const LARGE: usize = 70_000;

/// What is opened, and how.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Story {
    /// A small stub, to write to it.
    Stub,
    /// A small stub, to empty it.
    Empty,
    /// A hybrid file that is to become plain.
    Hybrid,
}

const STORIES: [Story; 3] = [Story::Stub, Story::Empty, Story::Hybrid];

impl Story {
    fn content(self) -> Vec<u8> {
        match self {
            Story::Stub | Story::Empty => noise(1, SMALL),
            Story::Hybrid => {
                let mut bytes = noise(2, LARGE);
                bytes[30_000..40_000].copy_from_slice(&noise(3, 10_000));
                bytes
            }
        }
    }

    /// Makes the file in an empty world, and closes that.
    fn begin(self) -> World {
        let mut world = World::new();
        match self {
            Story::Stub | Story::Empty => world.stub("file", &self.content()),
            Story::Hybrid => {
                world.stub("file", &noise(2, LARGE));
                // Else it becomes a stub again when the world is closed.
                world.reopen();
                let handle = world.open("file", TO_WRITE).unwrap();
                world.overlay.tree.write(&handle, 30_000, &noise(3, 10_000)).unwrap();
                world.overlay.tree.fsync(&handle, true).unwrap();
                assert!(world.is_hybrid("file"));
            }
        }
        world.close();
        world
    }

    fn open_world(self, dir: &Path) -> World {
        let mut world = World::at(dir);
        if self == Story::Hybrid {
            world.reopen_as(How { dedup: Dedup::Off, ..USUAL });
        }
        world
    }
}

/// What the process does that is to end.
fn tell(story: Story, fails: u64, ends: u64, dir: &Path) -> ! {
    let world = story.open_world(dir);
    world.overlay.tree.fail_at_call(fails);
    world.overlay.tree.abort_at_step(ends);
    let opened = world.open("file", OpenFlags { truncate: story == Story::Empty, ..TO_WRITE });
    world.overlay.tree.fail_at_call(0);
    world.overlay.tree.abort_at_step(0);
    let refused = opened.is_err();
    drop(opened);
    if refused {
        assert!(world.read("file").unwrap() == story.content(), "{story:?}: what was refused changed it");
    }
    // As it is, without an orderly end.
    std::process::exit(if refused { REFUSED } else { 0 });
}

#[test]
fn a_write_back_that_fails_and_is_cut_loses_nothing() {
    if let Ok(what) = std::env::var(VARIABLE) {
        let words: Vec<&str> = what.splitn(4, ' ').collect();
        let number = |i: usize| words[i].parse::<u64>().unwrap();
        tell(STORIES[number(0) as usize], number(1), number(2), Path::new(words[3]));
    }
    let (mut crashes, mut refusals) = (0, 0);
    for (number, story) in STORIES.into_iter().enumerate() {
        let mut fails = 1;
        let mut failed = true;
        while failed {
            for ends in 1.. {
                let case = format!("{story:?}: call {fails} fails, step {ends} is the last");
                assert!(fails < 100 && ends < 100, "{case}: it does not end");
                // Not a copy: an extent list belongs to its inode.
                let first = story.begin();
                let dir = first.dir.clone();
                let ended = Command::new(std::env::current_exe().unwrap())
                    .args(["--exact", std::thread::current().name().unwrap(), "--nocapture"])
                    .env(VARIABLE, format!("{number} {fails} {ends} {}", dir.display()))
                    .stdout(Stdio::null())
                    .stderr(Stdio::piped())
                    .output()
                    .unwrap();
                let crashed = ended.status.signal() == Some(libc::SIGABRT);
                let refused = ended.status.code() == Some(REFUSED);
                let stderr = String::from_utf8_lossy(&ended.stderr);
                assert!(crashed || refused || ended.status.success(), "{case}: {stderr}");
                crashes += u32::from(crashed);
                refusals += u32::from(refused);
                let may_be_empty = story == Story::Empty && !refused;
                take_up(story, &dir, may_be_empty, &case);
                if !crashed {
                    failed = refused;
                    break;
                }
            }
            fails += 1;
        }
    }
    println!("{crashes} crashes, {refusals} refusals");
    assert!(crashes > 40 && refusals > 8, "only {crashes} crashes and {refusals} refusals");
}

/// The next life finds the content, and can write to the file.
fn take_up(story: Story, dir: &Path, may_be_empty: bool, case: &str) {
    let mut world = World::at(dir);
    let mut bytes = world.read("file").unwrap();
    let whole = bytes == story.content();
    assert!(whole || may_be_empty && bytes.is_empty(), "{case}: {} bytes are left", bytes.len());
    world.write("file", 5, b"after");
    bytes.resize(bytes.len().max(10), 0);
    bytes[5..10].copy_from_slice(b"after");
    world.reopen();
    assert!(world.read("file").unwrap() == bytes, "{case}: in the next life");
    world.close();
}

/// Opens the file for writing in a thread; `None` if that is not answered.
fn opens_in_time(world: &World, name: &'static str) -> Option<bool> {
    let overlay = world.overlay.clone();
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let node = overlay.tree.lookup(ROOT, name.as_ref()).unwrap().node;
        let opened = overlay.tree.open(node, TO_WRITE, &|_| None);
        overlay.tree.forget(node, 1);
        let answered = opened.map(|opened| overlay.tree.release(&opened.handle));
        tell.send(answered.is_ok())
    });
    told.recv_timeout(Duration::from_secs(10)).ok()
}

fn panics(work: impl FnOnce()) -> bool {
    catch_unwind(AssertUnwindSafe(work)).is_err()
}

#[test]
fn a_panic_in_a_write_back_keeps_nobody_waiting() {
    for story in STORIES {
        let mut panicked = 0;
        loop {
            let first = story.begin();
            let mut world = story.open_world(&first.dir);
            let flags = OpenFlags { truncate: story == Story::Empty, ..TO_WRITE };
            world.overlay.tree.panic_at_step(panicked + 1);
            let case = format!("{story:?}: step {}", panicked + 1);
            if !panics(|| drop(world.open("file", flags))) {
                break;
            }
            world.overlay.tree.panic_at_step(0);
            panicked += 1;
            let bytes = world.read("file").unwrap();
            assert!(bytes == story.content() || story == Story::Empty && bytes.is_empty(), "{case}");
            assert_eq!(opens_in_time(&world, "file"), Some(true), "{case}");
            world.reopen();
            assert!(world.read("file").unwrap() == bytes, "{case}: in the next life");
            world.close();
        }
        assert!(panicked > 1, "{story:?} has only {panicked} steps");
    }
}

#[test]
fn a_panic_in_an_export_keeps_nobody_waiting() {
    let names = ["a", "b", "c"];
    let mut step = 0;
    loop {
        let mut world = World::new();
        names.iter().zip(0..).for_each(|(name, seed)| world.stub(name, &noise(seed, SMALL)));
        world.reopen_as(How { dedup: Dedup::Off, ..USUAL });
        world.overlay.tree.panic_at_step(step);
        let options = ExportOptions { batch_files: 10, batch_bytes: 1 << 20 };
        // Step 0: whoever shows the progress panics.
        let mut progress = |_| {
            assert!(step > 0, "as a bug would");
            true
        };
        let mut export =
            || drop(world.overlay.maintenance.export(Path::new(""), options, &mut progress, &mut |_, _| {}));
        if !panics(&mut export) {
            break;
        }
        world.overlay.tree.panic_at_step(0);
        for (name, seed) in names.iter().zip(0..) {
            assert!(world.read(name).unwrap() == noise(seed, SMALL), "{name}: step {step}");
            assert_eq!(opens_in_time(&world, name), Some(true), "{name}: step {step}");
        }
        world.reopen();
        names
            .iter()
            .zip(0..)
            .for_each(|(name, seed)| assert!(world.read(name).unwrap() == noise(seed, SMALL)));
        world.close();
        step += 1;
    }
    assert!(step > 6, "an export of three files has only {step} steps");
}

#[test]
fn a_panic_in_a_commit_leaves_files_whole_and_free() {
    let mut world = World::new();
    let names = ["1", "2", "3", "4"];
    for (name, step) in names.iter().zip(1..) {
        let caller = Caller { uid: 0, gid: 0, umask: 0o022 };
        let flags = OpenFlags { truncate: true, ..TO_WRITE };
        let made = world.overlay.tree.create(ROOT, name.as_ref(), 0o644, caller, flags, &|_| None).unwrap();
        world.overlay.tree.write(&made.1.handle, 0, &noise(step, SMALL)).unwrap();
        world.overlay.tree.panic_at_step(step);
        world.overlay.tree.release(&made.1.handle);
        world.overlay.tree.forget(made.0.node, 1);
        world.settle();
        world.overlay.tree.panic_at_step(0);
        // A lease that is left over would refuse this.
        let free = File::options().write(true).custom_flags(libc::O_NONBLOCK).open(world.path(name));
        assert!(free.is_ok(), "step {step}: {free:?}");
        drop(free);
        assert!(world.read(name).unwrap() == noise(step, SMALL), "step {step}");
    }
    // Closed again, they are committed as if nothing had been.
    for (name, step) in names.iter().zip(1..) {
        world.write(name, 7, b"more");
        world.settle();
        let mut bytes = noise(step, SMALL);
        bytes[7..11].copy_from_slice(b"more");
        world.check_stub(name, &bytes);
    }
    world.close();
}
