//! Closed files that wait for a commit, and the threads that wait for them.
//!
//! `settle` waits only for earlier files, however many come meanwhile: each file belongs to a *generation*,
//! and each wait ends one and begins the next. A file that is retried stays in its generation; one that is
//! closed again after it was taken gets a new one. While a thread waits, earlier files are taken first.

use super::inode::Inode;
use crate::backing::types::NodeId;
use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_millis(10);
const SOON_ATTEMPTS: u8 = 6;
const LATER: Duration = Duration::from_secs(30);
/// Closed files gather for this long, so that they share one fsync: each fsync makes the backing filesystem write out
/// its journal, and all programs wait for that. A full round does not wait.
pub const GATHER: Duration = Duration::from_millis(500);
const WAIT_MIN: Duration = Duration::from_millis(1);
const WAIT_MAX: Duration = Duration::from_secs(60);

/// A queue of inodes, in order of when they are due. Each stands in it at most once (`State::queued`).
///
/// Memory: one pointer and some words an entry, and the inode's descriptor, held until it is committed.
#[derive(Default)]
pub struct Queue {
    state: Mutex<Waiting>,
    changed: Condvar,
}

#[derive(Default)]
struct Waiting {
    ready: Line,
    /// To be tried again in a moment: the kernel releases a closed file a little after it reports the close.
    soon: Line,
    /// To be tried again, for instance because a program has them mapped: no caller waits for those.
    later: Line,
    /// Often written, so they rest for longer: only a caller of `hurry` waits for those.
    resting: Line,
    /// Often rewritten as a whole: `settle` has them indexed and does not wait for them.
    rewritten: Line,
    /// Plain until there is space for their content: `settle` has them tried once more and does not wait for them.
    waiting: Line,
    /// Hot files, plain because they are read often; their content is in the store, so no caller ever waits for those.
    hot: Line,
    /// Number of files that are ready, due soon or in work, by the generation in which they came.
    pending: BTreeMap<u64, usize>,
    generation: u64,
    /// Number of files that make a full round.
    round: usize,
    /// Callers that wait for an empty queue: files need not have rested.
    hurry: usize,
    stopped: bool,
}

/// Inodes by the time when they are due; those due together in the order in which they came.
#[derive(Default)]
struct Line {
    entries: BTreeMap<(Instant, u64), Entry>,
    next: u64,
}

/// An inode in the queue, or taken off it.
pub struct Entry {
    /// The inode.
    pub inode: Arc<Inode>,
    /// The generation in which it came into the queue.
    pub generation: u64,
}

/// Files taken off the queue.
pub struct Batch {
    /// In order.
    pub files: Vec<Entry>,
    /// Whether a caller waits for them, however long they have rested.
    pub hurry: bool,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an inode that was closed, to be taken `after` from now. Returns its generation.
    pub fn push(&self, inode: Arc<Inode>, after: Duration) -> u64 {
        let mut state = self.lock();
        let (due, generation) = (Instant::now() + after, state.generation);
        let first = state.ready.due().is_none_or(|first| due < first);
        state.push_ready(Entry { inode, generation }, due);
        // A waiting committer only needs the first due file or a full round.
        if first || state.ready.len() == state.round || state.hurry > 0 {
            self.changed.notify_all();
        }
        generation
    }

    /// Adds an inode again that is to rest until `due`; `restless` if that is because it is written often.
    pub fn push_resting(&self, entry: Entry, due: Instant, restless: bool) {
        let mut state = self.lock();
        // A caller that waits for all files waits for this one too.
        match (state.hurry > 0, restless) {
            (true, _) => state.push_ready(entry, due.min(Instant::now())),
            (false, false) => state.push_ready(entry, due),
            (false, true) => state.resting.push(entry, due),
        }
        self.changed.notify_all();
    }

    /// Adds an inode that stays plain until `due` because it is often rewritten as a whole.
    pub fn push_rewritten(&self, entry: Entry, due: Instant) {
        self.lock().rewritten.push(entry, due);
        self.changed.notify_all();
    }

    /// Returns how many files stay plain because they are often rewritten as a whole.
    pub fn rewritten(&self) -> usize {
        self.lock().rewritten.len()
    }

    /// Adds an inode that stays plain until there is space for its content.
    pub fn push_waiting(&self, entry: Entry) {
        self.lock().waiting.push(entry, Instant::now() + LATER);
        self.changed.notify_all();
    }

    /// Makes files that wait for space due at once.
    pub fn retry_waiting(&self) {
        let mut state = self.lock();
        state.retry_waiting(Instant::now());
        self.changed.notify_all();
    }

    /// Returns how many files wait for space.
    pub fn waiting(&self) -> usize {
        self.lock().waiting.len()
    }

    /// Adds a hot inode, which stays plain until `due`.
    pub fn push_hot(&self, entry: Entry, due: Instant) {
        self.lock().hot.push(entry, due);
        self.changed.notify_all();
    }

    /// Removes an inode from the line of hot files; returns whether it was in it. O(hot files).
    pub fn remove_hot(&self, inode: &Arc<Inode>) -> bool {
        self.lock().hot.remove(inode).is_some()
    }

    /// Adds an inode again that could not be committed: the first `attempt`s are tried again soon, later ones at long
    /// intervals.
    pub fn push_again(&self, entry: Entry, attempt: u8) {
        let mut state = self.lock();
        if attempt < SOON_ATTEMPTS {
            state.count(entry.generation, 1);
            state.soon.push(entry, Instant::now() + SOON * 2u32.pow(attempt.into()));
        } else {
            state.later.push(entry, Instant::now() + LATER);
        }
        self.changed.notify_all();
    }

    /// Makes an inode that was closed again due `after` from now if it was to be tried again, soon or later. It gets a new
    /// generation, which is returned. O(those to be tried again).
    pub fn hasten(&self, inode: &Arc<Inode>, after: Duration) -> Option<u64> {
        let mut state = self.lock();
        let entry = match state.soon.remove(inode) {
            Some(entry) => {
                state.count(entry.generation, -1);
                entry
            }
            None => state.later.remove(inode).or_else(|| state.waiting.remove(inode))?,
        };
        let generation = state.generation;
        state.push_ready(Entry { generation, ..entry }, Instant::now() + after);
        self.changed.notify_all();
        Some(generation)
    }

    /// Makes waiting inodes due again, because their rest may have changed. O(all that wait).
    pub fn look_again(&self, inodes: &HashSet<NodeId>) {
        let mut state = self.lock();
        let due = Instant::now() + GATHER;
        let moved = |line: &mut Line| {
            let found = line.entries.iter().filter(|(_, entry)| inodes.contains(&entry.inode.node));
            let keys: Vec<_> = found.map(|(key, _)| *key).collect();
            keys.iter().filter_map(|key| line.entries.remove(key)).collect::<Vec<_>>()
        };
        for entry in moved(&mut state.ready) {
            state.ready.push(entry, due);
        }
        let others = [
            moved(&mut state.resting),
            moved(&mut state.later),
            moved(&mut state.rewritten),
            moved(&mut state.waiting),
        ];
        for entry in others.into_iter().flatten() {
            state.push_ready(entry, due);
        }
        self.changed.notify_all();
    }

    /// Waits for files and takes at most `count` of them. They count as in work until [`Queue::done`]. Returns `None` once
    /// the queue was stopped.
    pub fn take(&self, count: usize) -> Option<Batch> {
        let mut state = self.lock();
        state.round = count;
        loop {
            if state.stopped {
                return None;
            }
            let now = Instant::now();
            let files = state.take_due(count, now);
            if !files.is_empty() {
                return Some(Batch { files, hurry: state.hurry > 0 });
            }
            let next = state.lines().iter().filter_map(|line| line.due()).min();
            let wait =
                next.map_or(WAIT_MAX, |due| due.saturating_duration_since(now).clamp(WAIT_MIN, WAIT_MAX));
            state = self.changed.wait_timeout(state, wait).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Puts back inodes that were taken and not worked on: they come before all others.
    pub fn put_back(&self, entries: impl Iterator<Item = Entry>) {
        let mut state = self.lock();
        let now = Instant::now();
        let first = state.ready.due().map_or(now, |due| due.min(now));
        let before = first.checked_sub(Duration::from_nanos(1)).unwrap_or(first);
        for entry in entries {
            // A taken file still counts as pending.
            state.ready.push(entry, before);
        }
        self.changed.notify_all();
    }

    /// Records that inodes of these generations have been worked on.
    pub fn done(&self, generations: &[u64]) {
        let mut state = self.lock();
        generations.iter().for_each(|generation| state.count(*generation, -1));
        self.changed.notify_all();
    }

    /// Returns how many files wait or are in work, without those to be tried again later and those that rest because they
    /// are written often.
    pub fn pending(&self) -> usize {
        self.lock().pending_until(u64::MAX)
    }

    /// Returns how many files rest because they are written often.
    pub fn resting(&self) -> usize {
        self.lock().resting.len()
    }

    /// Until the result is dropped, files need not have rested.
    pub fn hurry(&self) -> Hurry<'_> {
        let mut state = self.lock();
        state.hurry += 1;
        let now = Instant::now();
        // Files that come from now on are due later, so all of these are taken before them.
        for ((due, _), entry) in std::mem::take(&mut state.ready.entries) {
            state.ready.push(entry, due.min(now));
        }
        for ((due, _), entry) in std::mem::take(&mut state.resting.entries) {
            state.push_ready(entry, due.min(now));
        }
        for (_, entry) in std::mem::take(&mut state.rewritten.entries) {
            state.push_ready(entry, now);
        }
        state.retry_waiting(now);
        self.changed.notify_all();
        Hurry(self)
    }

    /// Waits until no file is pending that came before this call. `progress` gets the number of those; the wait is given up
    /// when it returns false.
    pub fn settle(&self, progress: &mut dyn FnMut(usize) -> bool) -> bool {
        let _hurry = self.hurry();
        let mut state = self.lock();
        let last = state.generation;
        state.generation += 1;
        loop {
            let pending = state.pending_until(last);
            if pending == 0 || state.stopped {
                return pending == 0;
            }
            drop(state);
            if !progress(pending) {
                return false;
            }
            state = self.lock();
            if state.pending_until(last) > 0 {
                let wait = self.changed.wait_timeout(state, Duration::from_millis(100));
                state = wait.unwrap_or_else(PoisonError::into_inner).0;
            }
        }
    }

    /// Waits until fewer than `count` files are about to be taken or in work, and fewer than `resting` more are to
    /// rest. For callers that fill the queue faster than it drains.
    pub fn wait_below(&self, count: usize, resting: usize) {
        let mut state = self.lock();
        while !state.stopped {
            let all = state.pending_until(u64::MAX);
            if all < count || all < count + resting && state.pending_now(count) < count {
                return;
            }
            let wait = self.changed.wait_timeout(state, Duration::from_millis(100));
            state = wait.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Ends all waiting. Inodes that were not worked on keep their mark (`State::queued`).
    pub fn stop(&self) {
        let mut state = self.lock();
        state.stopped = true;
        self.changed.notify_all();
    }
}

impl Waiting {
    /// Counts a file of a generation that becomes pending, or no longer is.
    fn count(&mut self, generation: u64, by: isize) {
        let count = self.pending.entry(generation).or_default();
        *count = count.saturating_add_signed(by);
        if *count == 0 {
            self.pending.remove(&generation);
        }
    }

    fn lines(&self) -> [&Line; 7] {
        let Waiting { ready, soon, later, resting, rewritten, waiting, hot, .. } = self;
        [ready, soon, later, resting, rewritten, waiting, hot]
    }

    fn push_ready(&mut self, entry: Entry, due: Instant) {
        self.count(entry.generation, 1);
        self.ready.push(entry, due);
    }

    fn retry_waiting(&mut self, now: Instant) {
        for (_, entry) in std::mem::take(&mut self.waiting.entries) {
            self.push_ready(entry, now);
        }
    }

    /// Returns how many files are pending from the generation `last` or before. There are few generations: those that a
    /// caller waits for, and the one after.
    fn pending_until(&self, last: u64) -> usize {
        self.pending.range(..=last).map(|(_, count)| count).sum()
    }

    /// Returns how many of the pending files are due about now, or in work. Does not count beyond `count` of those due.
    fn pending_now(&self, count: usize) -> usize {
        let soon = Instant::now() + 2 * GATHER;
        let due = self.ready.entries.range(..(soon, 0)).take(count).count();
        due + self.pending_until(u64::MAX) - self.ready.len()
    }

    /// Takes files that are due, earliest first, from all lines, so that no line keeps another waiting for ever.
    fn take_due(&mut self, count: usize, now: Instant) -> Vec<Entry> {
        let (hurry, full) = (self.hurry > 0, self.ready.len() >= count);
        let begin = hurry || full || self.ready.due().is_some_and(|due| due <= now);
        let slack = if begin { GATHER } else { Duration::ZERO };
        let mut taken = Vec::new();
        while taken.len() < count {
            let ready = self.ready.due().filter(|due| hurry || *due <= now + slack);
            let lines = [&self.soon, &self.later, &self.resting, &self.rewritten, &self.waiting, &self.hot];
            let lines = lines.map(|line| line.due().filter(|due| *due <= now));
            let [soon, later, _, rewritten, waiting, hot] = lines;
            let all = [ready].into_iter().chain(lines);
            let Some(first) = all.flatten().min() else { break };
            let (line, counted) = match Some(first) {
                due if due == ready => (&mut self.ready, true),
                due if due == soon => (&mut self.soon, true),
                due if due == later => (&mut self.later, false),
                due if due == rewritten => (&mut self.rewritten, false),
                due if due == waiting => (&mut self.waiting, false),
                due if due == hot => (&mut self.hot, false),
                _ => (&mut self.resting, false),
            };
            let Some((_, entry)) = line.entries.pop_first() else { break };
            if !counted {
                self.count(entry.generation, 1);
            }
            taken.push(entry);
        }
        taken
    }
}

/// While this is held, files are taken however long they have rested.
pub struct Hurry<'a>(&'a Queue);

impl Drop for Hurry<'_> {
    fn drop(&mut self) {
        self.0.lock().hurry -= 1;
    }
}

impl Line {
    fn push(&mut self, entry: Entry, due: Instant) {
        self.entries.insert((due, self.next), entry);
        self.next += 1;
    }

    fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns when the first is due.
    fn due(&self) -> Option<Instant> {
        self.entries.first_key_value().map(|((due, _), _)| *due)
    }

    fn remove(&mut self, inode: &Arc<Inode>) -> Option<Entry> {
        let key = *self.entries.iter().find(|(_, waiting)| Arc::ptr_eq(&waiting.inode, inode))?.0;
        self.entries.remove(&key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backing::Backing;
    use crate::overlay::inode::Inodes;
    use std::sync::mpsc::{Receiver, channel};

    const HOUR: Duration = Duration::from_secs(3600);

    struct World {
        queue: Queue,
        inodes: Vec<Arc<Inode>>,
        _dir: tempfile::TempDir,
    }

    impl World {
        fn new(files: usize) -> World {
            let dir = tempfile::tempdir().unwrap();
            let backing = Backing::open(dir.path()).unwrap();
            let table = Inodes::new(backing.root().try_clone_to_owned().unwrap());
            let enter = |i: usize| {
                let name = i.to_string();
                std::fs::write(dir.path().join(&name), "x").unwrap();
                let found = backing.resolve(std::path::Path::new(&name)).unwrap();
                table.enter(&backing, found, 1).unwrap()
            };
            let inodes = (0..files).map(enter).collect();
            World { queue: Queue::default(), inodes, _dir: dir }
        }

        fn push(&self, file: usize, after: Duration) {
            self.queue.push(self.inodes[file].clone(), after);
        }

        /// Takes one file, and says which.
        fn take(&self) -> (usize, Entry) {
            let mut files = self.queue.take(1).unwrap().files;
            let entry = files.pop().unwrap();
            (self.inodes.iter().position(|inode| Arc::ptr_eq(inode, &entry.inode)).unwrap(), entry)
        }

        /// Settles while `work` is done, which is given how many files are still waited for each time that changes. The
        /// result is whether it came to the end; it gives up after some seconds.
        fn settle(&self, work: impl FnOnce(&Receiver<usize>)) -> bool {
            let (tell, told) = channel();
            std::thread::scope(|scope| {
                let waiting = scope.spawn(move || {
                    let end = Instant::now() + Duration::from_secs(10);
                    self.queue.settle(&mut |pending| tell.send(pending).is_ok() && Instant::now() < end)
                });
                work(&told);
                waiting.join().unwrap()
            })
        }
    }

    #[test]
    fn who_settles_does_not_wait_for_what_comes_later() {
        let world = World::new(3);
        world.push(0, HOUR);
        let settled = world.settle(|told| {
            assert_eq!(told.recv(), Ok(1));
            // Due sooner than the first was, and taken after it all the same.
            world.push(1, Duration::ZERO);
            let (first, entry) = world.take();
            assert_eq!(first, 0);
            world.push(2, Duration::ZERO);
            world.queue.done(&[entry.generation]);
        });
        assert!(settled, "it waits for files that came after it");
        assert_eq!(world.queue.pending(), 2);
    }

    #[test]
    fn a_file_that_is_tried_again_is_waited_for_and_one_that_came_anew_is_not() {
        let world = World::new(1);
        world.push(0, Duration::ZERO);
        let settled = world.settle(|told| {
            assert_eq!(told.recv(), Ok(1));
            let (_, entry) = world.take();
            let generation = entry.generation;
            world.queue.push_again(entry, 0);
            world.queue.done(&[generation]);
            let (_, entry) = world.take();
            assert_eq!(entry.generation, generation);
            assert_eq!(world.queue.lock().pending_until(generation), 1, "it is waited for still");
            world.queue.push_again(entry, 1);
            world.queue.done(&[generation]);
            // Closed again: however often that happens, nobody waits for it for ever.
            assert!(world.queue.hasten(&world.inodes[0], HOUR) > Some(generation));
        });
        assert!(settled);
        assert_eq!(world.queue.pending(), 1);
    }

    #[test]
    fn who_hurries_is_given_what_rests_and_what_is_to_rest_meanwhile() {
        let world = World::new(2);
        let due = Instant::now() + HOUR;
        for file in 0..2 {
            world.push(file, Duration::ZERO);
        }
        let (_, first) = world.take();
        let (_, second) = world.take();
        let generations = [first.generation, second.generation];
        world.queue.push_resting(first, due, true);
        world.queue.done(&generations[..1]);
        assert_eq!((world.queue.pending(), world.queue.resting()), (1, 1));
        let settled = world.settle(|told| {
            assert_eq!(told.recv(), Ok(2));
            world.queue.push_resting(second, due, true);
            world.queue.done(&generations[1..]);
            let taken = [world.take(), world.take()];
            world.queue.done(&taken.map(|(_, entry)| entry.generation));
        });
        assert!(settled && world.queue.pending() == 0 && world.queue.resting() == 0);
    }

    #[test]
    fn who_settles_has_rewritten_files_looked_at_and_does_not_wait_for_them() {
        let world = World::new(1);
        world.push(0, Duration::ZERO);
        let due = Instant::now() + HOUR;
        let (_, mut entry) = world.take();
        for _ in 0..2 {
            let generation = entry.generation;
            world.queue.push_rewritten(entry, due);
            world.queue.done(&[generation]);
            assert_eq!((world.queue.pending(), world.queue.rewritten()), (0, 1));
            let settled = world.settle(|told| {
                assert_eq!(told.recv(), Ok(1));
                let (_, again) = world.take();
                let generation = again.generation;
                world.queue.push_rewritten(again, due);
                world.queue.done(&[generation]);
            });
            assert!(settled && world.queue.rewritten() == 1);
            world.queue.hurry();
            (_, entry) = world.take();
        }
    }

    #[test]
    fn no_line_keeps_another_waiting() {
        let world = World::new(5);
        for file in 0..2 {
            world.push(file, Duration::ZERO);
        }
        let (_, again) = world.take();
        let (_, resting) = world.take();
        world.queue.push_again(again, 0);
        world.queue.push_resting(resting, Instant::now(), true);
        std::thread::sleep(2 * SOON);
        // Always a full round of others.
        (2..5).for_each(|file| world.push(file, Duration::ZERO));
        let mut taken = [world.take().0, world.take().0];
        taken.sort();
        assert_eq!(taken, [0, 1]);
    }

    #[test]
    fn who_fills_the_queue_waits_for_what_is_due_and_for_too_many_that_rest() {
        let world = World::new(6);
        (0..4).for_each(|file| world.push(file, HOUR));
        world.queue.wait_below(2, 4);
        let waits = |count, resting| {
            std::thread::scope(|scope| {
                let waiting = scope.spawn(|| world.queue.wait_below(count, resting));
                std::thread::sleep(Duration::from_millis(300));
                let waits = !waiting.is_finished();
                // Lets it go, whatever it waits for.
                world.queue.lock().stopped = true;
                world.queue.changed.notify_all();
                waiting.join().unwrap();
                world.queue.lock().stopped = false;
                waits
            })
        };
        assert!(waits(2, 2), "four rest");
        assert!(waits(2, 0));
        (4..6).for_each(|file| world.push(file, Duration::ZERO));
        assert!(waits(2, 10), "two are due");
    }
}
