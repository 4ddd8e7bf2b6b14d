//! What is done to the overlay while the disk records: a list of steps, each of which tells the model what it
//! changes and what it was promised.

use super::model::{How, Model};
use super::neighbour::Neighbour;
use super::random::Random;
use super::recorder::Recorder;
use super::snapshots::{Snapshots, Taken};
use crate::common::{Mount, noise, prose, succeed};
use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How a change is made durable.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Sync {
    /// Not at all.
    None,
    Fsync,
    Fdatasync,
    /// Written through a mapping too.
    Msync,
}

/// Files are numbers.
#[derive(Clone, Copy, Debug)]
pub enum Step {
    /// Writes so many files of 10,000 bytes, to be converted in one round.
    WriteMany(u8, Sync),
    /// Empties a file, or makes one, and writes so many bytes.
    Write(u8, usize, Sync),
    /// Writes over a piece in the middle.
    Patch(u8, Sync),
    /// Writes over several blocks here and there, with so much between them.
    Scatter(u8, usize, Sync),
    /// Punches a hole into the middle.
    Punch(u8, Sync),
    /// Adds so many bytes.
    Append(u8, usize, Sync),
    /// Cuts off a third.
    Shorten(u8, Sync),
    /// Writes so many bytes to another file and renames it over this one.
    Replace(u8, usize, Sync),
    Unlink(u8),
    /// Makes durable a file as it is, by a descriptor to read.
    SyncFile(u8),
    /// Makes all names durable.
    SyncNames,
    /// Waits until all files are stubs, without asking for it.
    AwaitStubs,
    /// `dedupctl settle`.
    Settle,
    /// `dedupctl gc`, while somebody else has the journal written out.
    Gc,
    /// `dedupctl optimize`, meanwhile the same.
    Optimize,
    /// `dedupctl snapshot create`, in the background of the next steps.
    Snapshot,
    /// `dedupctl check --deep`, which has to find nothing.
    Check,
    /// kill -9, and a new daemon.
    Kill,
    /// An orderly end, and a new daemon.
    Remount,
    /// A new index, made while unmounted.
    Rebuild,
}

use Step::*;

/// Each thing that can become of a file, at least once.
const SCRIPT: &[Step] = &[
    WriteMany(30, Sync::Fdatasync),
    AwaitStubs,
    // Conversion of what is durable, then a commit of the journal by somebody else.
    Write(0, 150_000, Sync::Fsync),
    Write(1, 700_000, Sync::Fdatasync),
    Write(2, 40_000, Sync::None),
    SyncNames,
    AwaitStubs,
    Snapshot,
    Write(3, 9_000, Sync::Fsync),
    // Hydration, and writes that only the program syncs.
    Patch(0, Sync::Fdatasync),
    Patch(1, Sync::Msync),
    Append(2, 30_000, Sync::Fdatasync),
    Patch(0, Sync::Fdatasync),
    AwaitStubs,
    SyncNames,
    Write(1, 60_000, Sync::Fdatasync),
    Shorten(0, Sync::Fsync),
    Patch(2, Sync::None),
    AwaitStubs,
    Replace(3, 20_000, Sync::Fsync),
    SyncNames,
    Replace(0, 90_000, Sync::None),
    Unlink(2),
    // Content of all that is left stands in one pack with that of what is gone.
    AwaitStubs,
    Snapshot,
    Gc,
    Snapshot,
    Optimize,
    Check,
    Write(4, 5_000, Sync::Fsync),
    Kill,
    Append(3, 10_000, Sync::Fdatasync),
    Write(5, 200_000, Sync::Fsync),
    AwaitStubs,
    SyncFile(5),
    Patch(5, Sync::Fdatasync),
    Settle,
    // Large ones become hybrid; what is done to them before they are committed finds them so.
    Write(7, 700_000, Sync::Fsync),
    AwaitStubs,
    Snapshot,
    Scatter(7, 70_000, Sync::Fdatasync),
    Punch(7, Sync::None),
    Patch(7, Sync::Fdatasync),
    AwaitStubs,
    Punch(7, Sync::Fdatasync),
    Scatter(7, 30_000, Sync::None),
    Shorten(7, Sync::None),
    Append(7, 50_000, Sync::Fsync),
    Kill,
    Patch(7, Sync::Msync),
    Shorten(7, Sync::Fdatasync),
    AwaitStubs,
    Append(7, 3_000, Sync::None),
    Scatter(7, 50_000, Sync::None),
    Remount,
    SyncFile(7),
    Patch(7, Sync::None),
    AwaitStubs,
    Patch(7, Sync::Fsync),
    Write(7, 300_000, Sync::Fdatasync),
    Write(5, 200_000, Sync::Fsync),
    Snapshot,
    Optimize,
    Gc,
    Write(6, 30_000, Sync::Fsync),
    Remount,
    Append(6, 4_000, Sync::Msync),
    Patch(4, Sync::Fdatasync),
    Rebuild,
    Patch(3, Sync::Msync),
    Unlink(1),
    SyncNames,
];

const FILES: u64 = 8;

/// The script, and `more` steps that differ with the seed.
pub fn steps(more: usize, random: &mut Random) -> Vec<Step> {
    let mut steps = SCRIPT.to_vec();
    steps.extend((0..more).map(|_| any_step(random)));
    steps.push(AwaitStubs);
    steps.push(SyncNames);
    steps
}

fn any_step(random: &mut Random) -> Step {
    let file = random.below(FILES) as u8;
    let magnitude = 10 + random.below(10);
    let len = 4_096 + random.below(1 << magnitude) as usize;
    let sync = [Sync::None, Sync::Fsync, Sync::Fdatasync, Sync::Msync][random.below(4) as usize];
    match random.below(58) {
        46..50 => Scatter(file, 5_000 + random.below(60_000) as usize, sync),
        50..54 => Punch(file, sync),
        54.. => Snapshot,
        40 => WriteMany(20 + file, sync),
        41..44 => Gc,
        44 => Optimize,
        45 => Check,
        0..8 => Write(file, len, sync),
        8..16 => Patch(file, sync),
        16..20 => Append(file, len, sync),
        20..22 => Shorten(file, sync),
        22..26 => Replace(file, len, sync),
        26..28 => Unlink(file),
        28..30 => SyncFile(file),
        30..32 => SyncNames,
        32..36 => AwaitStubs,
        36..37 => Settle,
        37 => Kill,
        38 => Remount,
        _ => Rebuild,
    }
}

/// What is to be done to a file that is changed in place.
enum Edit {
    Write(Vec<Range<usize>>),
    Punch(Range<usize>),
    Shorten,
}

/// Does the steps.
pub struct Worker<'a> {
    mount: Mount,
    recorder: &'a Recorder,
    model: Model,
    neighbour: Neighbour<'a>,
    snapshots: Snapshots,
    /// Makes each content another.
    seed: u64,
    /// Between which events collections removed packs.
    removals: Vec<Range<usize>>,
    packs_removed: u64,
    bytes_copied: u64,
}

/// What was done.
pub struct Done {
    /// Still mounted.
    pub mount: Mount,
    pub model: Model,
    pub snapshots: Vec<Taken>,
    /// Between which events the neighbour was busy.
    pub busy: Vec<Range<usize>>,
    /// Between which events collections removed packs.
    pub removals: Vec<Range<usize>>,
}

impl<'a> Worker<'a> {
    pub fn new(mount: Mount, recorder: &'a Recorder, seed: u64) -> Worker<'a> {
        let neighbour = Neighbour::new(mount.root.path(), recorder);
        Worker {
            mount,
            recorder,
            model: Model::default(),
            neighbour,
            snapshots: Snapshots::default(),
            seed,
            removals: Vec::new(),
            packs_removed: 0,
            bytes_copied: 0,
        }
    }

    pub fn run(&mut self, step: Step) {
        match step {
            WriteMany(count, sync) => {
                (0..count).for_each(|i| self.write(&format!("many-{i}"), 10_000, sync));
            }
            Write(file, len, sync) => self.write(&name(file), len, sync),
            Patch(file, sync) => self.change(file, sync, |old, fresh| {
                let at = old.len() / 3;
                let len = fresh.len().min(old.len() - at);
                old[at..at + len].copy_from_slice(&fresh[..len]);
                Edit::Write(std::iter::once(at..at + len).collect())
            }),
            Scatter(file, stride, sync) => self.change(file, sync, |old, fresh| {
                let ranges: Vec<_> = (stride / 2..old.len())
                    .step_by(stride)
                    .map(|at| at..old.len().min(at + fresh.len()))
                    .collect();
                for range in &ranges {
                    old[range.clone()].copy_from_slice(&fresh[..range.len()]);
                }
                Edit::Write(ranges)
            }),
            Punch(file, sync) => self.change(file, sync, |old, _| {
                let range = old.len() / 4..old.len() / 2;
                old[range.clone()].fill(0);
                Edit::Punch(range)
            }),
            Append(file, len, sync) => self.change(file, sync, |old, fresh| {
                let at = old.len();
                old.extend(fresh.iter().cycle().take(len));
                Edit::Write(std::iter::once(at..old.len()).collect())
            }),
            Shorten(file, sync) => self.change(file, sync, |old, _| {
                old.truncate(old.len() / 3 * 2);
                Edit::Shorten
            }),
            Replace(file, len, sync) => self.replace(&name(file), len, sync),
            Unlink(file) => self.unlink(&name(file)),
            SyncFile(file) => self.sync_file(&name(file)),
            SyncNames => self.sync_names(),
            AwaitStubs => self.await_stubs(),
            Settle => self.settle(),
            Gc => self.collect("gc"),
            Optimize => self.collect("optimize"),
            Check => assert_eq!(self.mount.ctl(&["check", "--deep"])["damaged"], serde_json::json!([])),
            Snapshot => self.snapshots.begin(&self.mount),
            Kill => {
                self.mount.kill();
                self.snapshots.forget();
                self.mount.start();
            }
            Remount => {
                self.snapshots.look(&self.mount, self.recorder, true);
                self.mount.remount();
            }
            Rebuild => {
                self.snapshots.look(&self.mount, self.recorder, true);
                self.mount.unmount();
                succeed(self.mount.dedupctl().args(["check", "--rebuild"]).arg(self.mount.dir()));
                self.mount.start();
            }
        }
        self.snapshots.look(&self.mount, self.recorder, false);
        self.compare();
    }

    pub fn finish(mut self) -> Done {
        self.snapshots.look(&self.mount, self.recorder, true);
        let Worker { mount, model, neighbour, snapshots, removals, packs_removed, bytes_copied, .. } = self;
        assert!(snapshots.taken.len() >= 3, "only {} snapshots were answered", snapshots.taken.len());
        println!("collections removed {packs_removed} packs and copied {bytes_copied} bytes");
        assert!(
            packs_removed > 0 && bytes_copied > 0 && !removals.is_empty(),
            "nothing was collected, so no cut says anything about it"
        );
        Done { mount, model, snapshots: snapshots.taken, busy: neighbour.times.clone(), removals }
    }

    fn now(&self) -> usize {
        self.recorder.position()
    }

    fn at(&self, name: &str) -> PathBuf {
        self.mount.at(name)
    }

    fn fresh(&mut self, len: usize) -> Vec<u8> {
        self.seed += 1;
        if self.seed.is_multiple_of(3) { prose(self.seed, len) } else { noise(self.seed, len) }
    }

    fn sync_names(&mut self) {
        File::open(self.mount.mnt()).unwrap().sync_all().unwrap();
        self.model.promise_names(self.now());
    }

    /// Before a file is changed that was renamed: a cut may take the rename back, and an fdatasync does not prevent
    /// it, so that the change would be found under the earlier name.
    fn sync_rename(&mut self, name: &str) {
        if !self.model.is_durable(&other(name)) {
            self.sync_names();
        }
    }

    fn write(&mut self, name: &str, len: usize, sync: Sync) {
        self.sync_rename(name);
        let bytes = self.fresh(len);
        self.model.change(name, Some(Arc::new(bytes.clone())), How::Anew, self.now());
        let mut file = File::create(self.at(name)).unwrap();
        file.write_all(&bytes).unwrap();
        self.sync(name, &file, sync);
    }

    /// Changes a file in place; `edit` says what has to be done for the new content.
    fn change(&mut self, file: u8, sync: Sync, edit: impl FnOnce(&mut Vec<u8>, &[u8]) -> Edit) {
        let name = name(file);
        let Some(old) = self.model.current(&name) else {
            return;
        };
        self.sync_rename(&name);
        let mut bytes = old.to_vec();
        let fresh = self.fresh(2_000);
        let edit = edit(&mut bytes, &fresh);
        let content = Arc::new(bytes);
        self.model.change(&name, Some(content.clone()), How::InPlace, self.now());
        // Opening it writes it back, if it is a small stub.
        self.neighbour.start();
        let file = OpenOptions::new().read(true).write(true).open(self.at(&name)).unwrap();
        self.neighbour.pause();
        match edit {
            Edit::Shorten => file.set_len(content.len() as u64).unwrap(),
            Edit::Punch(range) => {
                use rustix::fs::{FallocateFlags, fallocate};
                let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                fallocate(&file, mode, range.start as u64, range.len() as u64).unwrap();
            }
            Edit::Write(ranges) if sync == Sync::Msync => {
                file.set_len(content.len() as u64).unwrap();
                write_mapped(&self.at(&name), &content, &ranges);
                self.model.promise(&name, self.now());
                return;
            }
            Edit::Write(ranges) => {
                for range in ranges {
                    file.write_all_at(&content[range.clone()], range.start as u64).unwrap();
                }
            }
        }
        self.sync(&name, &file, sync);
    }

    fn sync(&mut self, name: &str, file: &File, sync: Sync) {
        match sync {
            Sync::None => return,
            Sync::Fsync => file.sync_all().unwrap(),
            // What a mapping did not write itself.
            Sync::Fdatasync | Sync::Msync => file.sync_data().unwrap(),
        }
        self.model.promise(name, self.now());
    }

    fn replace(&mut self, name: &str, len: usize, sync: Sync) {
        let other = other(name);
        self.write(&other, len, sync);
        let Some(content) = self.model.current(&other) else {
            return;
        };
        let now = self.now();
        if sync == Sync::None {
            self.model.change(name, Some(content), How::Anew, now);
            self.model.change(&other, None, How::Whole, now);
        } else {
            self.model.rename(&other, name, content, now);
        }
        fs::rename(self.at(&other), self.at(name)).unwrap();
    }

    fn unlink(&mut self, name: &str) {
        if self.model.current(name).is_some() {
            self.model.change(name, None, How::Whole, self.now());
            fs::remove_file(self.at(name)).unwrap();
        }
    }

    fn sync_file(&mut self, name: &str) {
        if self.model.current(name).is_some() {
            File::open(self.at(name)).unwrap().sync_all().unwrap();
            self.model.promise(name, self.now());
        }
    }

    fn present(&self) -> Vec<String> {
        self.model.names().filter(|name| self.model.current(name).is_some()).map(str::to_owned).collect()
    }

    fn await_stubs(&mut self) {
        let until = Instant::now() + Duration::from_secs(100);
        let mut left = self.present();
        left.retain(|name| !self.mount.is_stub(name));
        let count = left.len();
        let mut busy = false;
        while !left.is_empty() {
            assert!(Instant::now() < until, "not converted within 100 s: {left:?}");
            std::thread::sleep(Duration::from_micros(200));
            left.retain(|name| !self.mount.is_stub(name));
            if !busy && left.len() < count {
                busy = true;
                self.neighbour.start();
            }
        }
        if busy {
            std::thread::sleep(Duration::from_millis(5));
            self.neighbour.pause();
        }
    }

    /// Changes no content, so it is no version of anything. Notes from where to where packs went.
    fn collect(&mut self, action: &str) {
        let packs = self.mount.dir().join(".dedupfs/packs");
        let names =
            || fs::read_dir(&packs).unwrap().map(|pack| pack.unwrap().file_name()).collect::<BTreeSet<_>>();
        let before = names();
        self.neighbour.start();
        let mut command = self.mount.dedupctl();
        let command = command.args([action, "--json"]).current_dir(self.mount.mnt()).stdout(Stdio::piped());
        let mut running = command.spawn().unwrap();
        let until = Instant::now() + Duration::from_secs(100);
        let (mut here, mut gone) = (self.now(), None);
        while running.try_wait().unwrap().is_none() {
            assert!(Instant::now() < until, "dedupctl {action} takes more than 100 s");
            if gone.is_none() && !names().is_superset(&before) {
                gone = Some(here);
            }
            here = self.now();
            std::thread::sleep(Duration::from_micros(200));
        }
        self.neighbour.pause();
        self.removals.extend(gone.map(|gone| gone..self.now()));
        let output = running.wait_with_output().unwrap();
        assert!(output.status.success(), "dedupctl {action}: {}", crate::common::text(&output));
        let done: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        self.packs_removed += done["packs"].as_u64().unwrap();
        self.bytes_copied += done["copied_bytes"].as_u64().or(done["chunk_bytes_after"].as_u64()).unwrap();
    }

    /// What `settle` promises: that each file is durable.
    fn settle(&mut self) {
        self.mount.settle();
        for name in self.present() {
            self.model.promise(&name, self.now());
        }
    }

    /// Before any cut everything is as the last step left it: else the model is wrong, or reading is.
    fn compare(&self) {
        for name in self.model.names() {
            let found = fs::read(self.at(name)).ok();
            let expected = self.model.current(name);
            assert!(found.as_ref() == expected.as_deref(), "{name} differs while mounted");
        }
    }
}

fn name(file: u8) -> String {
    format!("f{file}")
}

/// What is written to be renamed over a file.
fn other(name: &str) -> String {
    format!("{name}.tmp")
}

/// Set for the process that writes through a mapping: which file, and the ranges. The content comes by standard input.
const MAPPED: &str = "DEDUPFS_POWERCUT_MAPPED";
const RANGES: &str = "DEDUPFS_POWERCUT_RANGES";

/// In a process of its own. Who maps a file of the disk holds a lock of its address space while it waits for the disk; the
/// threads of this process that are the disk need that lock whenever they ask for memory, and then both wait for ever.
fn write_mapped(path: &Path, content: &[u8], ranges: &[Range<usize>]) {
    let ranges: Vec<_> = ranges.iter().map(|range| format!("{}-{}", range.start, range.end)).collect();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "powercut::workload::mapper", "--nocapture"])
        .env(MAPPED, path)
        .env(RANGES, ranges.join(" "))
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(content).unwrap();
    assert!(child.wait().unwrap().success(), "writing to {} through a mapping", path.display());
}

/// That process. Started as a test of its own it does nothing.
#[test]
fn mapper() {
    let (Some(path), Ok(ranges)) = (std::env::var_os(MAPPED), std::env::var(RANGES)) else {
        return;
    };
    let mut content = Vec::new();
    std::io::stdin().read_to_end(&mut content).unwrap();
    let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
    let (protection, shared) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
    // SAFETY: a fresh mapping of the whole of a file that nobody shortens meanwhile.
    let mapping =
        unsafe { libc::mmap(std::ptr::null_mut(), content.len(), protection, shared, file.as_raw_fd(), 0) };
    assert_ne!(mapping, libc::MAP_FAILED);
    // SAFETY: the mapping is that long and nobody else in this process uses it.
    let mapped = unsafe { std::slice::from_raw_parts_mut(mapping.cast::<u8>(), content.len()) };
    for range in ranges.split_whitespace() {
        let (start, end) = range.split_once('-').unwrap();
        let range = start.parse().unwrap()..end.parse().unwrap();
        mapped[range.clone()].copy_from_slice(&content[range]);
    }
    // SAFETY: as above.
    assert_eq!(unsafe { libc::msync(mapping, content.len(), libc::MS_SYNC) }, 0);
    // SAFETY: `mapped` is not used after this.
    assert_eq!(unsafe { libc::munmap(mapping, content.len()) }, 0);
}
