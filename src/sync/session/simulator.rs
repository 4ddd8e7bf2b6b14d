//! Simulator: two to four devices that edit, rename, link, delete and sync in any order.
//!
//! - Connections are cut at any message, machines stop at any step, and clocks are a year apart.
//! - In the end all devices have the same tree, with every content except those that a device replaced or deleted
//!   while it had them.
//! - No conflict is between two contents if one descends from the other.
//! - A failing run prints its seed.

use super::super::adopt::{self, Now, Skipped, Steps};
use super::super::content::{Sink, Source, Tag};
use super::super::group::{self, ITSELF, Rows};
use super::super::ignored::Ignored;
use super::super::merge::{Conflict, parse_conflict_name};
use super::super::presence;
use super::super::proto;
use super::super::seen::{Inode, Seen};
use super::super::selection::Selection;
use super::super::selection::tests::selection;
use super::super::tree::{Kind, join, split};
use super::*;
use disk::{Disk, Node, What};
use std::cell::Cell;
use std::fs::File;
use std::io::{Seek, Write};
use std::rc::Rc;

mod disk;
mod healing;
mod seeds;
mod steps;

/// xorshift64*.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() >> 33) as usize % n.max(1)
    }
}

/// Records an event for the analysis of a failed run.
fn tell(what: String) {
    TOLD.with_borrow_mut(|all| all.push(what));
}

thread_local! {
    static TOLD: std::cell::RefCell<Vec<String>> = const { std::cell::RefCell::new(Vec::new()) };
    /// All states of a directory that users have made.
    static STATES: std::cell::RefCell<BTreeSet<String>> = const { std::cell::RefCell::new(BTreeSet::new()) };
    /// Copies that were made while a tree was taken, since a user changed something meanwhile.
    static KEPT_TWICE: std::cell::RefCell<BTreeSet<TreePath>> = const { std::cell::RefCell::new(BTreeSet::new()) };
    /// Contents that an interfering user overwrote.
    static INTERFERED: std::cell::RefCell<Vec<(What, Device)>> = const { std::cell::RefCell::new(Vec::new()) };
}

struct World {
    rng: Rng,
    disks: Vec<Disk>,
    /// The content that each content replaced, even if no device can know.
    descent: BTreeMap<String, String>,
    /// The content that each content replaced.
    from: BTreeMap<String, String>,
    made: BTreeSet<String>,
    /// Replaced or deleted by a device that had it.
    gone: BTreeSet<String>,
    /// Replaced or deleted through one of several names: gone once two devices did so, each through another name.
    given: BTreeMap<String, BTreeSet<(usize, TreePath)>>,
    /// Deleted with its file by a device. If another device has changed or renamed the file, it comes back as a new
    /// one.
    deleted: BTreeSet<String>,
    /// Whether each device changes only its own files.
    apart: bool,
    /// Whether there are directories that are groups.
    groups: bool,
    /// Whether most files have several names.
    links: bool,
    /// Whether devices, except the first one, have only parts of the tree.
    parts: bool,
    /// Whether devices refuse steps and withhold contents, in addition to stops and cuts.
    harsh: bool,
    /// The content that each content replaced in its own inode.
    in_place: BTreeMap<String, String>,
    /// Contents that were there when a sync took only some: not every device may remember their origin.
    loose: BTreeSet<String>,
    /// Contents that were in a conflict: there may be two copies.
    conflicted: BTreeSet<String>,
    /// Names that devices gave on their own, and the content that got the name.
    named: BTreeMap<TreePath, BTreeSet<(usize, String)>>,
    conflicts: u32,
}

impl World {
    fn with_groups(seed: u64) -> World {
        World { groups: true, ..World::new(seed) }
    }

    fn with_links(seed: u64) -> World {
        World { links: true, ..World::new(seed) }
    }

    fn with_parts(seed: u64) -> World {
        World { parts: true, apart: false, ..World::new(seed) }
    }

    fn with_parts_and_groups(seed: u64) -> World {
        World { groups: true, ..World::with_parts(seed) }
    }

    fn calm(self) -> World {
        World { harsh: false, ..self }
    }

    fn new(seed: u64) -> World {
        STATES.with_borrow_mut(BTreeSet::clear);
        INTERFERED.with_borrow_mut(Vec::clear);
        KEPT_TWICE.with_borrow_mut(BTreeSet::clear);
        TOLD.with_borrow_mut(Vec::clear);
        let mut rng = Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let devices = 2 + rng.below(3);
        World {
            disks: ["ann", "bob", "cleo", "dan"][..devices].iter().map(|name| Disk::new(name)).collect(),
            apart: rng.below(4) == 0,
            rng,
            descent: BTreeMap::new(),
            from: BTreeMap::new(),
            made: BTreeSet::new(),
            gone: BTreeSet::new(),
            given: BTreeMap::new(),
            deleted: BTreeSet::new(),
            in_place: BTreeMap::new(),
            loose: BTreeSet::new(),
            conflicted: BTreeSet::new(),
            named: BTreeMap::new(),
            conflicts: 0,
            groups: false,
            links: false,
            parts: false,
            harsh: true,
        }
    }

    /// Gives device `d` another selection.
    fn select(&mut self, d: usize) {
        let all: [(&[&str], &[&str]); 9] = [
            (&[], &[]),
            (&[], &["/a"]),
            (&[], &["b"]),
            (&[], &["/c/d", "e"]),
            (&[], &[".git"]),
            (&["/a"], &[]),
            (&["/b", "/c/*"], &["f"]),
            (&["/*/e", "[d-f]"], &[]),
            (&["/nothing"], &[]),
        ];
        let (only, not) = all[self.rng.below(all.len())];
        let selection = selection(only, not);
        tell(format!("{} selects only {only:?} not {not:?}", self.disks[d].device));
        self.disks[d].selection = selection;
    }

    /// Makes a user of device `d` do something.
    fn edit(&mut self, d: usize) {
        if self.parts && d > 0 && self.rng.below(6) == 0 {
            return self.select(d);
        }
        let before = self.disks[d].texts();
        let files = self.disks[d].files.clone();
        self.change(d);
        let after = self.disks[d].texts();
        let now = &self.disks[d].files;
        let paths: BTreeSet<&TreePath> =
            files.keys().chain(now.keys()).filter(|path| files.get(*path) != now.get(*path)).collect();
        for path in paths {
            let name = String::from_utf8_lossy(path);
            tell(format!("{}: {name}: {:?} -> {:?}", self.disks[d].device, files.get(path), now.get(path)));
            if let (None, Some(Node { what: What::File(text), .. })) = (files.get(path), now.get(path)) {
                self.named.entry(path.clone()).or_default().insert((d, text.clone()));
            }
            if let Some(Node { what: What::File(text), .. }) = files.get(path)
                && now.get(path).is_none_or(|node| node.what != What::File(text.clone()))
            {
                // A leftover with the old content, which is left out, does not keep it.
                if self.parts {
                    self.gone.insert(text.clone());
                }
                let given = self.given.entry(text.clone()).or_default();
                given.insert((d, path.clone()));
                if given.iter().any(|(by, name)| *by != d && name != path) {
                    self.gone.insert(text.clone());
                }
            }
        }
        self.disks[d].note_states();
        self.gone.extend(before.difference(&after).cloned());
        self.made.extend(after.difference(&before).cloned());
    }

    fn change(&mut self, d: usize) {
        let rng = &mut self.rng;
        let own = format!("own{d}").into_bytes();
        let apart = self.apart;
        let disk = &mut self.disks[d];
        if apart && !disk.files.contains_key(&own) {
            let ino = disk.ino();
            disk.files.insert(own, Node { ino, what: What::Dir, mode: 0o755, mtime: 0 });
            return;
        }
        let mine = |path: &TreePath| !apart || path.starts_with(&join(&own, b""));
        let paths: Vec<TreePath> = disk.files.keys().filter(|path| mine(path)).cloned().collect();
        let mut dirs: Vec<TreePath> =
            paths.iter().filter(|p| disk.files[*p].what == What::Dir).cloned().collect();
        dirs.push(if apart { own.clone() } else { Vec::new() });
        let any = |rng: &mut Rng, from: &[TreePath]| {
            (!from.is_empty()).then(|| from[rng.below(from.len())].clone())
        };
        // A clock that is wrong by up to a year.
        let now = 1_700_000_000 + d as i64 * 31_536_000 + rng.below(1000) as i64;
        let dir = any(rng, &dirs).unwrap();
        let mut fresh = join(&dir, &[b"abcdef"[rng.below(6)]]);
        if self.groups && rng.below(3) == 0 {
            fresh = join(&dir, b".git");
        }
        let text = format!("{d}:{}", rng.next());
        let action = rng.below(if self.links { 24 } else { 16 });
        match action {
            0..=3 if !disk.files.contains_key(&fresh) => {
                let ino = disk.ino();
                disk.files.insert(fresh, Node { ino, what: What::File(text), mode: 0o644, mtime: now });
            }
            4 if !disk.files.contains_key(&fresh) => {
                let ino = disk.ino();
                disk.files.insert(fresh, Node { ino, what: What::Dir, mode: 0o755, mtime: 0 });
            }
            5..=9 | 21..=23 => {
                // In place, or as an editor does.
                let Some(path) = any(rng, &paths) else { return };
                let What::File(old) = disk.files[&path].what.clone() else { return };
                let ino = disk.files[&path].ino;
                self.descent.insert(text.clone(), old.clone());
                // If an interrupted sync put the content there, its origin may be unknown.
                if disk.journal.is_some() {
                    self.conflicted.insert(old.clone());
                }
                // A file that was renamed and edited before the scan counts as another one.
                if disk.inodes.get(&path) == Some(&(1, ino)) {
                    self.from.insert(text.clone(), old.clone());
                }
                if rng.below(2) == 0 || action > 20 {
                    if disk.inodes.get(&path) == Some(&(1, ino)) {
                        self.in_place.insert(text.clone(), old);
                    }
                    let node = Node { what: What::File(text), mtime: now, ..disk.files[&path].clone() };
                    for other in disk.files.values_mut().filter(|other| other.ino == ino) {
                        *other = node.clone();
                    }
                } else {
                    let ino = disk.ino();
                    disk.files.insert(path, Node { ino, what: What::File(text), mode: 0o644, mtime: now });
                }
            }
            10 | 11 if !disk.files.contains_key(&fresh) => {
                let Some(path) = any(rng, &paths) else { return };
                if !fresh.starts_with(&join(&path, b"")) {
                    // So does one that was replaced in a renamed directory, if that had no other entries.
                    let below = join(&path, b"");
                    for (other, node) in
                        disk.files.iter().filter(|(other, _)| **other == path || other.starts_with(&below))
                    {
                        let replaced = disk.inodes.get(other) != Some(&(1, node.ino));
                        if let What::File(text) = &node.what
                            && (*other == path || replaced)
                        {
                            self.in_place.remove(text);
                            self.from.remove(text);
                        }
                    }
                    // An entry that is renamed before an interrupted sync has completed counts as created and deleted.
                    if disk.journal.is_some() {
                        let moved = disk
                            .files
                            .iter()
                            .filter(|(other, _)| **other == path || other.starts_with(&below));
                        let texts = moved.filter_map(|(_, node)| match &node.what {
                            What::File(text) => Some(text.clone()),
                            What::Dir => None,
                        });
                        self.deleted.extend(texts);
                    }
                    disk.rename(&path, &fresh);
                }
            }
            12 | 16..=20 if !disk.files.contains_key(&fresh) => {
                let Some(path) = any(rng, &paths) else { return };
                if disk.files[&path].what != What::Dir {
                    let node = disk.files[&path].clone();
                    disk.files.insert(fresh, node);
                }
            }
            13 => {
                let Some(path) = any(rng, &paths) else { return };
                let (ino, mode) = (disk.files[&path].ino, [0o600, 0o644, 0o755][rng.below(3)]);
                disk.files.values_mut().filter(|node| node.ino == ino).for_each(|node| node.mode = mode);
            }
            14 | 15 => {
                if let Some(path) = any(rng, &paths) {
                    let before = disk.texts();
                    disk.remove_below(&path);
                    self.deleted.extend(before.difference(&disk.texts()).cloned());
                }
            }
            _ => {}
        }
    }

    fn pair(&mut self, a: usize, b: usize) -> (&mut Disk, &mut Disk) {
        let (low, high) = self.disks.split_at_mut(a.max(b));
        if a < b { (&mut low[a], &mut high[0]) } else { (&mut high[0], &mut low[b]) }
    }

    /// Syncs `a` with `b`; the connection is cut after `messages`, and each side stops after some steps. Announced
    /// contents that are overwritten meanwhile count as gone.
    fn sync(
        &mut self,
        a: usize,
        b: usize,
        messages: u32,
        direction: Direction,
    ) -> Result<Outcome, SyncError> {
        let options = Options { direction, dry_run: false, force: true };
        let before = (self.disks[a].texts(), self.disks[b].texts());
        let out = (self.disks[a].left_out_texts(), self.disks[b].left_out_texts());
        let interfered = INTERFERED.with_borrow(Vec::len);
        let (one, other) = self.pair(a, b);
        tell(format!("{} syncs {direction:?} with {}; {messages} messages", one.device, other.device));
        let result = sync(one, other, messages, options);
        tell(format!("... {result:?}"));
        for (what, _) in INTERFERED.with_borrow(|all| all[interfered..].to_vec()) {
            if let What::File(text) = what {
                self.gone.insert(text);
            }
        }
        for (disk, out) in [(a, out.0), (b, out.1)] {
            let now = self.disks[disk].texts();
            let lost = out.iter().find(|text| !now.contains(*text) && !self.gone.contains(*text));
            assert!(lost.is_none(), "{} lost {lost:?}, which it leaves out", self.disks[disk].device);
        }
        for (disk, before) in [(a, before.0), (b, before.1)] {
            let now = self.disks[disk].texts();
            self.made.extend(now.difference(&before).cloned());
        }
        // The two versions of a file that a user changed while the other version was taken.
        let twice = KEPT_TWICE.with_borrow_mut(std::mem::take);
        for disk in [a, b] {
            let both = twice.iter().flat_map(|copy| {
                let (dir, name) = split(copy);
                let before = parse_conflict_name(name).map(|(before, _)| join(dir, &before));
                [Some(copy.clone()), before].into_iter().flatten()
            });
            let texts = both.filter_map(|path| self.disks[disk].text_at(&path)).collect::<Vec<_>>();
            self.conflicted.extend(texts);
        }
        let partly = [a, b].map(|disk| !self.disks[disk].absent.is_empty());
        let withholds = [a, b].iter().any(|disk| self.disks[*disk].withholds.is_some());
        // A third device, which has a part of it from elsewhere, does not know either where those two met.
        let several = self.disks.len() > 2 && partly != [false, false];
        if (withholds && result.is_err()) || partly == [true, true] || several {
            self.loose.extend([a, b].iter().flat_map(|disk| self.disks[*disk].texts()));
        }
        if let Ok(outcome) = &result {
            self.judge(outcome, if direction == Direction::Push { b } else { a });
        }
        for disk in [a, b] {
            self.disks[disk].check_groups();
        }
        result
    }

    /// Checks that conflicts are only between contents that do not descend from each other.
    fn judge(&mut self, outcome: &Outcome, at: usize) {
        self.conflicts += outcome.conflicts.len() as u32;
        for conflict in &outcome.conflicts {
            let text = |path: &TreePath| self.disks[at].text_at(path);
            let loose = [&conflict.path, &conflict.copy]
                .iter()
                .any(|path| text(path).is_some_and(|text| self.loose.contains(&text)));
            assert!(!self.apart || loose, "{:?}", outcome.conflicts);
            self.conflicted.extend([&conflict.path, &conflict.copy].into_iter().filter_map(text));
            // An entry that is moved into a group or out of it counts as another file.
            let known = (text(&conflict.path), text(&conflict.copy));
            // If the version that has the name has not arrived yet, the other has both names, and users may replace it
            // through one of them.
            let waits = known.0 == known.1;
            self.gone.extend(known.0.clone().filter(|_| waits));
            if let ((Some(winner), Some(loser)), false) = (known, self.groups || self.parts || loose || waits)
            {
                let came_from = |text: &String, other: &String| {
                    let from =
                        |text: &&String| self.from.get(*text).filter(|from| !self.deleted.contains(*from));
                    std::iter::successors(Some(text), from).any(|from| from == other)
                };
                // Two devices may have given the name separately to one file. Then only states that neither remembers
                // show whether the content that replaced the file there also replaced the content that the other has.
                let line = |text: &String| {
                    std::iter::successors(Some(text.clone()), |text| self.descent.get(text).cloned())
                        .collect::<Vec<_>>()
                };
                let lines = [line(&winner), line(&loser)].concat();
                let same_file = |text: &String| line(text).iter().any(|text| lines.contains(text));
                let named = self.named.get(&conflict.path).into_iter().flatten();
                let by: BTreeSet<usize> =
                    named.filter(|(_, text)| same_file(text)).map(|(by, _)| *by).collect();
                assert!(
                    by.len() > 1 || (!came_from(&winner, &loser) && !came_from(&loser, &winner)),
                    "an invented conflict: {conflict:?} between {winner} and {loser}"
                );
            }
        }
    }

    fn run(&mut self) {
        let n = self.disks.len();
        for _ in 0..12 + self.rng.below(25) {
            let d = self.rng.below(n);
            if self.rng.below(3) > 0 {
                self.edit(d);
                continue;
            }
            let other = (d + 1 + self.rng.below(n - 1)) % n;
            let messages = if self.rng.below(3) == 0 { self.rng.below(18) as u32 } else { u32::MAX };
            for disk in [d, other] {
                if self.rng.below(4) == 0 {
                    self.disks[disk].stops.set(1 + self.rng.below(12) as u32);
                }
                if !self.apart && self.rng.below(6) == 0 {
                    self.disks[disk].interferes = Some(1 + self.rng.below(6) as u32);
                }
                if self.harsh {
                    self.disks[disk].refuses = (self.rng.below(6) == 0).then(|| 1 + self.rng.below(6) as u32);
                    self.disks[disk].strict = self.rng.below(4) == 0;
                    self.disks[disk].withholds = (self.rng.below(4) == 0).then_some(2);
                }
            }
            let direction =
                [Direction::Both, Direction::Both, Direction::Push, Direction::Pull][self.rng.below(4)];
            match self.sync(d, other, messages, direction) {
                Ok(_) | Err(SyncError::Cut | SyncError::Changed(_)) => {}
                Err(e) => panic!("{e}"),
            }
            for disk in [d, other] {
                self.disks[disk].stops.set(u32::MAX);
                self.disks[disk].interferes = None;
                self.disks[disk].refuses = None;
                self.disks[disk].strict = false;
                self.disks[disk].withholds = None;
                self.disks[disk].absent.clear();
            }
        }
        self.heal();
    }
}

fn sync(a: &mut Disk, b: &mut Disk, messages: u32, options: Options) -> Result<Outcome, SyncError> {
    let mut left = messages;
    // As on the wire, until the connection is cut.
    sync_by(a, b, options, &mut |message: Message| {
        left = left.checked_sub(1).ok_or(SyncError::Cut)?;
        Ok(proto::read(&mut &message.encode()[..])?.0)
    })
}

fn sync_by(
    a: &mut Disk,
    b: &mut Disk,
    options: Options,
    wire: &mut dyn FnMut(Message) -> Result<Message, SyncError>,
) -> Result<Outcome, SyncError> {
    a.prepare()?;
    b.prepare()?;
    let mut caller = Session::call(a, options);
    let mut called = Session::answer();
    loop {
        let mut quiet = true;
        while let Some(message) = caller.next_message(a)? {
            quiet = false;
            called.receive(wire(message)?, b)?;
        }
        while let Some(message) = called.next_message(b)? {
            quiet = false;
            caller.receive(wire(message)?, a)?;
        }
        if quiet {
            assert!(caller.is_over() && called.is_over(), "both wait");
            return Ok(caller.outcome().clone());
        }
    }
}

/// Runs seeds on all processors, and prints those that failed, the first with its history. Returns the number of
/// conflicts.
fn run(seeds: std::ops::Range<u64>, world: fn(u64) -> World) -> u32 {
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
    let each = |first: u64| {
        let one = |seed: u64| {
            let result = std::panic::catch_unwind(|| {
                let mut world = world(seed);
                world.run();
                world.conflicts
            });
            result.map_err(|e| {
                let text = e.downcast_ref::<String>().cloned();
                let text = text.or_else(|| e.downcast_ref::<&str>().map(|text| (*text).to_owned()));
                (seed, text.unwrap_or_default(), TOLD.with_borrow(|all| all.join("\n")))
            })
        };
        seeds.clone().skip(first as usize).step_by(threads as usize).map(one).collect::<Vec<_>>()
    };
    let results: Vec<_> = std::thread::scope(|scope| {
        let each = &each;
        let threads: Vec<_> = (0..threads).map(|first| scope.spawn(move || each(first))).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("failures are caught")).collect()
    });
    let conflicts: u32 = results.iter().flatten().sum();
    let mut failed: Vec<_> = results.into_iter().filter_map(Result::err).collect();
    failed.sort();
    let told = failed.first().map(|(_, _, told)| told.clone()).unwrap_or_default();
    let texts: Vec<String> = failed.iter().map(|(seed, text, _)| format!("seed {seed}: {text}")).collect();
    assert!(failed.is_empty(), "{}\n{} seeds failed\n{}", told, failed.len(), texts.join("\n"));
    conflicts
}

#[test]
fn devices_agree_and_lose_nothing() {
    assert!(run(0..300, World::new) > 0, "no run had a conflict: the simulator does not try enough");
}

/// With groups among other directories, which users move, nest, link into and change during syncs.
#[test]
fn groups_are_never_a_mixture() {
    assert!(run(0..300, World::with_groups) > 0);
}

/// With files of several names, which users add, remove, rename and edit on all devices.
#[test]
fn names_of_one_file_stay_together() {
    assert!(run(0..300, World::with_links) > 0);
}

/// With devices that have parts of the tree, which change.
#[test]
fn parts_of_a_tree_lose_nothing_and_change_nothing_else() {
    run(0..300, World::with_parts);
    run(0..150, World::with_parts_and_groups);
}

/// Takes some minutes: `cargo test --lib ten_thousand_seeds -- --ignored`; `SEED` is the first seed.
#[test]
#[ignore = "takes minutes"]
fn ten_thousand_seeds() {
    let first = std::env::var("SEED").map_or(0, |seed| seed.parse().expect("a number"));
    run(first..first + 10_000, |seed| World::new(seed).calm());
}

/// The same with groups: `cargo test --lib ten_thousand_with_groups -- --ignored`.
#[test]
#[ignore = "takes minutes"]
fn ten_thousand_with_groups() {
    let first = std::env::var("SEED").map_or(0, |seed| seed.parse().expect("a number"));
    run(first..first + 10_000, |seed| World::with_groups(seed).calm());
}

/// The same with parts of the tree: `cargo test --lib ten_thousand_with_parts -- --ignored`.
#[test]
#[ignore = "takes minutes"]
fn ten_thousand_with_parts() {
    let first = std::env::var("SEED").map_or(0, |seed| seed.parse().expect("a number"));
    run(first..first + 10_000, |seed| World::with_parts(seed).calm());
    run(first..first + 10_000, |seed| World::with_parts_and_groups(seed).calm());
}

/// The same with files of several names: `cargo test --lib ten_thousand_with_links -- --ignored`.
#[test]
#[ignore = "takes minutes"]
fn ten_thousand_with_links() {
    let first = std::env::var("SEED").map_or(0, |seed| seed.parse().expect("a number"));
    run(first..first + 10_000, |seed| World::with_links(seed).calm());
}
