//! Files that were closed and wait to be committed, and who waits for them.

use super::inode::Inode;
use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_millis(10);
const SOON_ATTEMPTS: u8 = 6;
const LATER: Duration = Duration::from_secs(30);
/// Closed files gather for this long, so that they share one fsync: each makes the filesystem below write out
/// its journal, and everybody waits for that. A full round does not wait.
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
    /// To be tried again in a moment: the kernel lets go of a closed file a little after saying so.
    soon: Line,
    /// To be tried again, for instance because a program has them mapped: nobody waits for those.
    later: Line,
    /// Written again and again, so they rest for longer: nobody waits for those but who asks for all.
    resting: Line,
    in_work: usize,
    /// So many make a full round.
    round: usize,
    /// Somebody waits for an empty queue: do not wait for files to have rested.
    hurry: usize,
    stopped: bool,
}

/// Inodes by when they are due; those that are due together in the order in which they came.
#[derive(Default)]
struct Line {
    entries: BTreeMap<(Instant, u64), Arc<Inode>>,
    next: u64,
}

/// Files taken off the queue.
pub struct Batch {
    /// In order.
    pub files: Vec<Arc<Inode>>,
    /// Whether somebody waits for them, however long they have rested.
    pub hurry: bool,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an inode, to be taken `after` from now.
    pub fn push(&self, inode: Arc<Inode>, after: Duration) {
        let mut state = self.lock();
        let due = Instant::now() + after;
        let first = state.ready.due().is_none_or(|first| due < first);
        state.ready.push(inode, due);
        // Whoever waits does so for the first of them, or for a full round: any other is no news.
        if first || state.ready.len() == state.round || state.hurry > 0 {
            self.changed.notify_all();
        }
    }

    /// Adds an inode that is to rest until `due`; `restless` if that is because it is written again and again.
    pub fn push_resting(&self, inode: Arc<Inode>, due: Instant, restless: bool) {
        let mut state = self.lock();
        // Who waits for all waits for this one too.
        let line = if restless && state.hurry == 0 { &mut state.resting } else { &mut state.ready };
        line.push(inode, due);
        self.changed.notify_all();
    }

    /// Adds an inode that could not be committed, to be tried again: soon the first `attempt`s, and later
    /// than that at long intervals.
    pub fn push_again(&self, inode: Arc<Inode>, attempt: u8) {
        let mut state = self.lock();
        if attempt < SOON_ATTEMPTS {
            state.soon.push(inode, Instant::now() + SOON * 2u32.pow(attempt.into()));
        } else {
            state.later.push(inode, Instant::now() + LATER);
        }
        self.changed.notify_all();
    }

    /// Takes an inode `after` from now that was to be tried again later, if it is such a one: from here on it is
    /// waited for. O(those to be tried later).
    pub fn hasten(&self, inode: &Arc<Inode>, after: Duration) {
        let mut state = self.lock();
        if let Some(inode) = state.later.remove(inode) {
            state.ready.push(inode, Instant::now() + after);
            self.changed.notify_all();
        }
    }

    /// Looks at an inode again that waits, because how long it is to rest may have changed. O(those that wait).
    pub fn look_again(&self, inode: &Arc<Inode>) {
        let mut state = self.lock();
        let found = state.ready.remove(inode).or_else(|| state.resting.remove(inode));
        if let Some(inode) = found.or_else(|| state.later.remove(inode)) {
            state.ready.push(inode, Instant::now() + GATHER);
            self.changed.notify_all();
        }
    }

    /// Waits for files and takes some: at most `count`, all of which count as in work until
    /// [`Queue::done`]. `None` once the queue was stopped.
    pub fn take(&self, count: usize) -> Option<Batch> {
        let mut state = self.lock();
        state.round = count;
        loop {
            if state.stopped {
                return None;
            }
            let now = Instant::now();
            let (hurry, full) = (state.hurry > 0, state.ready.len() >= count);
            let begin = hurry || full || state.ready.due().is_some_and(|due| due <= now);
            let slack = if begin { GATHER } else { Duration::ZERO };
            let mut files = state.ready.take(count, |due| hurry || due <= now + slack);
            files.extend(state.soon.take(count - files.len(), |due| due <= now));
            files.extend(state.resting.take(count - files.len(), |due| due <= now));
            files.extend(state.later.take(count - files.len(), |due| due <= now));
            if !files.is_empty() {
                state.in_work += files.len();
                return Some(Batch { files, hurry });
            }
            let lines = [&state.ready, &state.soon, &state.later, &state.resting];
            let next = lines.iter().filter_map(|line| line.due()).min();
            let wait =
                next.map_or(WAIT_MAX, |due| due.saturating_duration_since(now).clamp(WAIT_MIN, WAIT_MAX));
            state = self.changed.wait_timeout(state, wait).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Puts back inodes that were taken and not worked on: they come before all others.
    pub fn put_back(&self, inodes: impl Iterator<Item = Arc<Inode>>) {
        let mut state = self.lock();
        let now = Instant::now();
        let first = state.ready.due().map_or(now, |due| due.min(now));
        let before = first.checked_sub(Duration::from_nanos(1)).unwrap_or(first);
        for inode in inodes {
            state.in_work -= 1;
            state.ready.push(inode, before);
        }
        self.changed.notify_all();
    }

    /// Says that `count` of the inodes taken have been worked on.
    pub fn done(&self, count: usize) {
        self.lock().in_work -= count;
        self.changed.notify_all();
    }

    /// Files that wait or are being worked on, without those to be tried again later and those that rest because they
    /// are written again and again.
    pub fn pending(&self) -> usize {
        self.lock().pending()
    }

    /// Files that rest because they are written again and again.
    pub fn resting(&self) -> usize {
        self.lock().resting.len()
    }

    /// Until what is returned is dropped, nothing waits for having rested.
    pub fn hurry(&self) -> Hurry<'_> {
        let mut state = self.lock();
        state.hurry += 1;
        let resting = std::mem::take(&mut state.resting.entries);
        for ((due, _), inode) in resting {
            state.ready.push(inode, due);
        }
        self.changed.notify_all();
        Hurry(self)
    }

    /// Waits until nothing is pending, telling `progress` how much is; gives up when it returns false.
    pub fn settle(&self, progress: &mut dyn FnMut(usize) -> bool) -> bool {
        let _hurry = self.hurry();
        let mut state = self.lock();
        loop {
            let pending = state.pending();
            if pending == 0 || state.stopped {
                return pending == 0;
            }
            drop(state);
            if !progress(pending) {
                return false;
            }
            state = self.lock();
            if state.pending() > 0 {
                let wait = self.changed.wait_timeout(state, Duration::from_millis(100));
                state = wait.unwrap_or_else(PoisonError::into_inner).0;
            }
        }
    }

    /// Waits until fewer than `count` files are pending: for who fills the queue faster than it drains.
    pub fn wait_below(&self, count: usize) {
        let mut state = self.lock();
        while state.pending() >= count && !state.stopped {
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
    fn pending(&self) -> usize {
        self.ready.len() + self.soon.len() + self.in_work
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
    fn push(&mut self, inode: Arc<Inode>, due: Instant) {
        self.entries.insert((due, self.next), inode);
        self.next += 1;
    }

    fn len(&self) -> usize {
        self.entries.len()
    }

    /// When the first is due.
    fn due(&self) -> Option<Instant> {
        self.entries.first_key_value().map(|((due, _), _)| *due)
    }

    /// Takes inodes off the front as long as they are due.
    fn take(&mut self, count: usize, due: impl Fn(Instant) -> bool) -> Vec<Arc<Inode>> {
        let mut taken = Vec::new();
        while taken.len() < count
            && let Some(first) = self.entries.first_entry()
            && due(first.key().0)
        {
            taken.push(first.remove());
        }
        taken
    }

    fn remove(&mut self, inode: &Arc<Inode>) -> Option<Arc<Inode>> {
        let key = *self.entries.iter().find(|(_, waiting)| Arc::ptr_eq(waiting, inode))?.0;
        self.entries.remove(&key)
    }
}
