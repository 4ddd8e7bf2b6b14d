//! Files that were closed and wait to be committed, and who waits for them.

use super::inode::Inode;
use std::collections::VecDeque;
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

/// A queue of inodes, in order of closing. Each stands in it at most once (`State::queued`).
///
/// Memory: one pointer and one instant an entry, and the inode's descriptor, held until it is committed.
#[derive(Default)]
pub struct Queue {
    state: Mutex<Waiting>,
    changed: Condvar,
}

#[derive(Default)]
struct Waiting {
    ready: VecDeque<(Arc<Inode>, Instant)>,
    /// To be tried again in a moment: the kernel lets go of a closed file a little after saying so.
    soon: VecDeque<(Arc<Inode>, Instant)>,
    /// To be tried again, for instance because a program has them mapped: nobody waits for those.
    later: VecDeque<(Arc<Inode>, Instant)>,
    in_work: usize,
    /// Somebody waits for an empty queue: do not wait for files to have been idle.
    hurry: usize,
    stopped: bool,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an inode, to be taken `after` from now.
    pub fn push(&self, inode: Arc<Inode>, after: Duration) {
        self.lock().ready.push_back((inode, Instant::now() + after));
        self.changed.notify_all();
    }

    /// Adds an inode that could not be committed, to be tried again: soon the first `attempt`s, and later
    /// than that at long intervals.
    pub fn push_again(&self, inode: Arc<Inode>, attempt: u8) {
        let mut state = self.lock();
        if attempt < SOON_ATTEMPTS {
            state.soon.push_back((inode, Instant::now() + SOON * 2u32.pow(attempt.into())));
        } else {
            state.later.push_back((inode, Instant::now() + LATER));
        }
        self.changed.notify_all();
    }

    /// Takes an inode `after` from now that was to be tried again later, if it is such a one: from here on it is
    /// waited for. O(those to be tried later).
    pub fn hasten(&self, inode: &Arc<Inode>, after: Duration) {
        let mut state = self.lock();
        let at = state.later.iter().position(|(waiting, _)| Arc::ptr_eq(waiting, inode));
        if let Some((inode, _)) = at.and_then(|at| state.later.remove(at)) {
            state.ready.push_back((inode, Instant::now() + after));
            self.changed.notify_all();
        }
    }

    /// Waits for files and takes some: at most `count`, all of which count as in work until
    /// [`Queue::done`]. `None` once the queue was stopped.
    pub fn take(&self, count: usize) -> Option<Vec<Arc<Inode>>> {
        let mut state = self.lock();
        loop {
            if state.stopped {
                return None;
            }
            let now = Instant::now();
            let (hurry, full) = (state.hurry > 0, state.ready.len() >= count);
            let begin = hurry || full || state.ready.front().is_some_and(|(_, due)| *due <= now);
            let slack = if begin { GATHER } else { Duration::ZERO };
            let mut taken = take_due(&mut state.ready, count, |due| hurry || due <= now + slack);
            taken.extend(take_due(&mut state.soon, count - taken.len(), |due| due <= now));
            taken.extend(take_due(&mut state.later, count - taken.len(), |due| due <= now));
            if !taken.is_empty() {
                state.in_work += taken.len();
                return Some(taken);
            }
            let next = [&state.ready, &state.soon, &state.later]
                .iter()
                .filter_map(|queue| queue.front())
                .map(|e| e.1)
                .min();
            let wait =
                next.map_or(WAIT_MAX, |due| due.saturating_duration_since(now).clamp(WAIT_MIN, WAIT_MAX));
            state = self.changed.wait_timeout(state, wait).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Puts back inodes that were taken and not worked on.
    pub fn put_back(&self, inodes: impl DoubleEndedIterator<Item = Arc<Inode>>) {
        let mut state = self.lock();
        for inode in inodes.rev() {
            state.in_work -= 1;
            state.ready.push_front((inode, Instant::now()));
        }
        self.changed.notify_all();
    }

    /// Says that `count` of the inodes taken have been worked on.
    pub fn done(&self, count: usize) {
        self.lock().in_work -= count;
        self.changed.notify_all();
    }

    /// Files that wait or are being worked on, without those to be tried again later.
    pub fn pending(&self) -> usize {
        self.lock().pending()
    }

    /// Waits until nothing is pending, telling `progress` how much is; gives up when it returns false.
    pub fn settle(&self, progress: &mut dyn FnMut(usize) -> bool) -> bool {
        let mut state = self.lock();
        state.hurry += 1;
        self.changed.notify_all();
        let settled = loop {
            let pending = state.pending();
            if pending == 0 || state.stopped {
                break pending == 0;
            }
            drop(state);
            if !progress(pending) {
                state = self.lock();
                break false;
            }
            state = self.lock();
            if state.pending() > 0 {
                let wait = self.changed.wait_timeout(state, Duration::from_millis(100));
                state = wait.unwrap_or_else(PoisonError::into_inner).0;
            }
        };
        state.hurry -= 1;
        settled
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

/// Takes entries off the front of a queue as long as they are due.
fn take_due(
    queue: &mut VecDeque<(Arc<Inode>, Instant)>,
    count: usize,
    due: impl Fn(Instant) -> bool,
) -> Vec<Arc<Inode>> {
    let ready = queue.iter().take(count).take_while(|(_, at)| due(*at)).count();
    queue.drain(..ready).map(|(inode, _)| inode).collect()
}
