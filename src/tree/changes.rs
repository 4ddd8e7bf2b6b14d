//! Changes since the last snapshot, so that the next one examines only those; and the gate that holds up
//! changes during a snapshot.
//!
//! Invariants: every change of a name, an attribute or a content through the overlay is noted here after it
//! was done and before it is answered, except contents that a program can still write to: those are found
//! among the inodes. Changes in the bare directory are not seen, so a caller that cannot exclude them
//! examines everything.
//!
//! There are two readers. A snapshot takes the list, and a new one starts. A sync ([`Changes::since`]) may be stopped before
//! it has stored what it learnt, so changes are numbered for it, and it asks for those after a number that it has stored.
//!
//! Memory: a little over 16 bytes for each changed inode, 32 for a sync, at most [`INODES_MAX`] of them; beyond that,
//! everything is examined.

use super::news::News;
use super::requester;
use crate::id::FileId;
use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// If more inodes than this change, their changes are not listed one by one.
const INODES_MAX: usize = 1 << 20;
/// New changes are held up for this long at first, until those under way end.
const PAUSE_FIRST: Duration = Duration::from_millis(20);

/// How an inode changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Change {
    /// Its attributes, its content or, of a directory, the names in it.
    Touched,
    /// It is new, or it got another name: everything below it may have changed.
    Moved,
}

#[derive(Default)]
struct State {
    /// Whether changes are noted at all.
    on: bool,
    inodes: HashMap<FileId, Change>,
    /// Set once a sync has asked.
    numbered: Option<Numbered>,
}

/// Changes with numbers.
struct Numbered {
    /// Distinguishes these numbers from those of other lists, in this process or another.
    list: u64,
    /// Number of the last change.
    last: u64,
    /// Changes up to this number are not listed any more.
    forgotten: u64,
    inodes: HashMap<FileId, Noted>,
}

/// The changes of one inode.
struct Noted {
    /// The number of the last one.
    last: u64,
    change: Change,
    /// The thread that made it; 0 if that is not known.
    by: u32,
    /// The number of the last one by any other.
    others: u64,
}

/// A moment in a list of numbered changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    list: u64,
    number: u64,
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}-{}", self.list, self.number)
    }
}

impl FromStr for Moment {
    type Err = ();

    fn from_str(text: &str) -> Result<Moment, ()> {
        let (list, number) = text.split_once('-').ok_or(())?;
        let list = u64::from_str_radix(list, 16).map_err(drop)?;
        Ok(Moment { list, number: number.parse().map_err(drop)? })
    }
}

impl Numbered {
    fn begin() -> rustix::io::Result<Numbered> {
        let mut list = [0; 8];
        rustix::rand::getrandom(&mut list, rustix::rand::GetRandomFlags::empty())?;
        Ok(Numbered { list: u64::from_le_bytes(list), last: 0, forgotten: 0, inodes: HashMap::new() })
    }

    fn note(&mut self, inode: FileId, change: Change, by: u32) {
        self.last += 1;
        let noted = self.inodes.entry(inode).or_insert(Noted { last: 0, change, by, others: 0 });
        if noted.by != by {
            (noted.by, noted.others) = (by, noted.last);
        }
        (noted.last, noted.change) = (self.last, noted.change.max(change));
    }
}

/// Changes since [`Changes::begin`].
#[derive(Default)]
pub(crate) struct Changes {
    state: Mutex<State>,
    gate: Gate,
    pub(crate) news: News,
}

/// Lets changes through, or holds them up.
#[derive(Default)]
struct Gate {
    state: Mutex<GateState>,
    /// The last change under way has ended, or changes are let through again.
    moved: Condvar,
}

#[derive(Default)]
struct GateState {
    /// Changes that are being made, of names and of contents.
    under_way: [usize; 2],
    /// The kind of changes that are held up.
    closed: Option<Closed>,
}

/// Kind of a change.
#[derive(Clone, Copy)]
enum What {
    /// Names and attributes, and opening for them.
    Names,
    /// Contents of open files.
    Contents,
}

/// Changes that the closed gate holds up.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Closed {
    Names,
    All,
}

impl Closed {
    fn holds_up(self, of: What) -> bool {
        matches!((self, of), (Closed::All, _) | (Closed::Names, What::Names))
    }
}

impl GateState {
    fn is_still(&self, closed: Closed) -> bool {
        [What::Names, What::Contents]
            .into_iter()
            .all(|of| !closed.holds_up(of) || self.under_way[of as usize] == 0)
    }
}

impl Gate {
    fn lock(&self) -> MutexGuard<'_, GateState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, GateState>) -> MutexGuard<'a, GateState> {
        self.moved.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    fn pass(&self, of: What) -> Changing<'_> {
        let mut state = self.lock();
        while state.closed.is_some_and(|closed| closed.holds_up(of)) {
            state = self.wait(state);
        }
        state.under_way[of as usize] += 1;
        Changing { gate: self, of }
    }

    /// Lets no more changes begin, if those under way end within `patience`. Otherwise all continue.
    fn close(&self, closed: Closed, patience: Duration) -> Option<Still<'_>> {
        let mut state = self.lock();
        while state.closed.is_some() {
            state = self.wait(state);
        }
        state.closed = Some(closed);
        let ended = self.moved.wait_timeout_while(state, patience, |state| !state.is_still(closed));
        let is_still = ended.unwrap_or_else(PoisonError::into_inner).0.is_still(closed);
        let still = Still { gate: self };
        is_still.then_some(still)
    }
}

/// While this is held, a change is being made.
pub(crate) struct Changing<'a> {
    gate: &'a Gate,
    of: What,
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        let mut state = self.gate.lock();
        state.under_way[self.of as usize] -= 1;
        if state.closed.is_some() {
            self.gate.moved.notify_all();
        }
    }
}

impl Changes {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Held during a change of a name, an attribute or an open file's purpose. Waits while everything stands still, so a
    /// thread holds at most one, and takes it before any lock.
    pub(crate) fn changing(&self) -> Changing<'_> {
        self.gate.pass(What::Names)
    }

    /// The same for writing or syncing a content through an open file.
    pub(crate) fn changing_content(&self) -> Changing<'_> {
        self.gate.pass(What::Contents)
    }

    /// Notes changes from now on, and forgets those before.
    pub(crate) fn begin(&self) {
        let mut state = self.lock();
        (state.on, state.inodes) = (true, HashMap::new());
    }

    /// Notes no changes any more.
    pub(crate) fn end(&self) {
        let mut state = self.lock();
        (state.on, state.inodes) = (false, HashMap::new());
    }

    /// Returns the changes noted, and starts a new list; `None` if changes are not noted.
    pub(crate) fn take(&self) -> Option<HashMap<FileId, Change>> {
        let mut state = self.lock();
        state.on.then(|| std::mem::take(&mut state.inodes))
    }

    /// Holds up such changes, as [`Tree::stand_still`](super::Tree::stand_still)(super::Tree::stand_still).
    pub(crate) fn close(&self, closed: Closed, keep_going: &mut dyn FnMut() -> bool) -> Option<Still<'_>> {
        let mut patience = PAUSE_FIRST;
        loop {
            if let Some(still) = self.gate.close(closed, patience) {
                return Some(still);
            }
            let end = Instant::now() + patience;
            loop {
                if !keep_going() {
                    return None;
                }
                let left = end.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    break;
                }
                std::thread::sleep(left.min(Duration::from_millis(100)));
            }
            patience *= 2;
        }
    }

    /// Returns the moment now, and the inodes that changed after `moment`; `None` instead of these if not all are known. Changes
    /// up to `moment` are forgotten: the caller has stored them. Inodes in `under_way` can change unseen, so they count as
    /// changed now and again at the next moment. Leaves out inodes that only the thread `except` changed. The caller keeps the
    /// gate closed.
    pub(crate) fn since(
        &self,
        moment: Option<Moment>,
        except: Option<u32>,
        under_way: impl FnOnce() -> Vec<FileId>,
    ) -> rustix::io::Result<(Moment, Option<HashMap<FileId, Change>>)> {
        if self.lock().numbered.is_none() {
            let begun = Numbered::begin()?;
            self.lock().numbered.get_or_insert(begun);
        }
        let under_way = under_way();
        let mut state = self.lock();
        // It is gone again if there were too many changes meanwhile.
        let numbered = match &mut state.numbered {
            Some(numbered) => numbered,
            none => none.insert(Numbered::begin()?),
        };
        under_way.iter().for_each(|inode| numbered.note(*inode, Change::Touched, 0));
        let now = Moment { list: numbered.list, number: numbered.last };
        let known = moment.filter(|moment| {
            moment.list == numbered.list && (numbered.forgotten..=numbered.last).contains(&moment.number)
        });
        let changed = known.map(|moment| {
            numbered.inodes.retain(|_, noted| noted.last > moment.number);
            numbered.forgotten = moment.number;
            let by_others = |noted: &Noted| except != Some(noted.by) || noted.others > moment.number;
            let listed = numbered.inodes.iter().filter(|(_, noted)| by_others(noted));
            listed.map(|(inode, noted)| (*inode, noted.change)).collect()
        });
        under_way.into_iter().for_each(|inode| numbered.note(inode, Change::Touched, 0));
        Ok((now, changed))
    }

    pub(crate) fn note(&self, inode: FileId, change: Change) {
        let mut state = self.lock();
        match &mut state.numbered {
            Some(numbered) if numbered.inodes.len() >= INODES_MAX => state.numbered = None,
            Some(numbered) => numbered.note(inode, change, requester::served()),
            None => {}
        }
        Changes::list(&mut state, inode, change);
        drop(state);
        self.news.changed();
    }

    /// The content of an inode got another form: only a snapshot has to know.
    pub(crate) fn note_converted(&self, inode: FileId) {
        Changes::list(&mut self.lock(), inode, Change::Touched);
    }

    /// Lists a change for the next snapshot.
    fn list(state: &mut State, inode: FileId, change: Change) {
        if !state.on {
            return;
        }
        if state.inodes.len() >= INODES_MAX {
            (state.on, state.inodes) = (false, HashMap::new());
            return;
        }
        let noted = state.inodes.entry(inode).or_insert(change);
        *noted = (*noted).max(change);
    }

    /// An inode is gone: another may get its number.
    pub(crate) fn forget(&self, inode: FileId) {
        let mut state = self.lock();
        state.inodes.remove(&inode);
        if let Some(numbered) = &mut state.numbered {
            numbered.inodes.remove(&inode);
        }
    }
}

/// While this is held, nothing is changed through the overlay: see [`Tree::stand_still`](super::Tree::stand_still) and [`Tree::hold_up`](super::Tree::hold_up).
pub struct Still<'a> {
    gate: &'a Gate,
}

impl Drop for Still<'_> {
    fn drop(&mut self) {
        self.gate.lock().closed = None;
        self.gate.moved.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use crate::tree::changes::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    const THREADS: u64 = 8;

    /// Many threads `begin` to change something while the gate is closed, and `expected` of them can.
    fn begin_while_closed(
        changes: &Changes,
        closed: Closed,
        begin: fn(&Changes) -> Changing<'_>,
        expected: u64,
    ) {
        let begun = AtomicU64::new(0);
        std::thread::scope(|scope| {
            let still = changes.gate.close(closed, Duration::ZERO).unwrap();
            let workers: Vec<_> = (0..THREADS)
                .map(|_| {
                    scope.spawn(|| {
                        let _changing = begin(changes);
                        begun.fetch_add(1, Ordering::SeqCst);
                    })
                })
                .collect();
            let asked = Instant::now();
            while begun.load(Ordering::SeqCst) < expected && asked.elapsed() < Duration::from_secs(60) {
                std::thread::sleep(Duration::from_millis(1));
            }
            std::thread::sleep(Duration::from_millis(20));
            assert_eq!(begun.load(Ordering::SeqCst), expected, "{closed:?}");
            drop(still);
            workers.into_iter().for_each(|worker| worker.join().unwrap());
            assert_eq!(begun.load(Ordering::SeqCst), THREADS);
        });
    }

    #[test]
    fn a_gate_that_is_closed_lets_nothing_begin_and_what_is_under_way_ends_first() {
        let changes = Changes::default();
        for closed in [Closed::Names, Closed::All] {
            let under_way = changes.changing();
            assert!(changes.gate.close(closed, Duration::from_millis(1)).is_none(), "one is under way");
            let other = changes.changing();
            drop((under_way, other));
            begin_while_closed(&changes, closed, Changes::changing, 0);
        }
    }

    #[test]
    fn contents_go_on_unless_they_are_held_up_too() {
        let changes = Changes::default();
        let under_way = changes.changing_content();
        drop(changes.gate.close(Closed::Names, Duration::ZERO).unwrap());
        assert!(changes.gate.close(Closed::All, Duration::from_millis(1)).is_none(), "one is under way");
        drop(under_way);
        begin_while_closed(&changes, Closed::Names, Changes::changing_content, THREADS);
        begin_while_closed(&changes, Closed::All, Changes::changing_content, 0);
    }

    /// Where some change is always under way, nobody who only waits for none would ever come to it.
    #[test]
    fn a_gate_is_closed_however_much_is_changed() {
        let changes = Changes::default();
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        let _changing = changes.changing();
                        std::thread::sleep(Duration::from_millis(1));
                    }
                });
            }
            for _ in 0..20 {
                while changes.gate.close(Closed::Names, Duration::from_secs(10)).is_none() {}
            }
            stop.store(true, Ordering::Relaxed);
        });
    }

    fn since(changes: &Changes, moment: Option<Moment>) -> (Moment, Option<Vec<u64>>) {
        let (now, changed) = changes.since(moment, None, Vec::new).unwrap();
        let numbers = |changed: HashMap<FileId, Change>| {
            let mut numbers: Vec<u64> = changed.into_keys().map(|inode| inode.0).collect();
            numbers.sort_unstable();
            numbers
        };
        (now, changed.map(numbers))
    }

    #[test]
    fn changes_after_a_moment_are_listed_until_a_later_one_is_asked_for() {
        let changes = Changes::default();
        changes.note(FileId(1), Change::Touched);
        let (first, changed) = since(&changes, None);
        assert_eq!(changed, None, "what came before it began is not known");
        assert_eq!(since(&changes, Some(first)), (first, Some(vec![])));
        changes.note(FileId(2), Change::Moved);
        changes.note(FileId(3), Change::Touched);
        let (second, changed) = since(&changes, Some(first));
        assert_eq!(changed, Some(vec![2, 3]));
        assert_eq!(since(&changes, Some(first)).1, Some(vec![2, 3]), "the answer was lost");
        changes.note(FileId(3), Change::Touched);
        changes.note(FileId(2), Change::Touched);
        changes.forget(FileId(2));
        assert_eq!(since(&changes, Some(second)).1, Some(vec![3]));
        assert_eq!(since(&changes, Some(first)).1, None, "the list begins later");
        let text: Moment = second.to_string().parse().unwrap();
        assert_eq!(text, second);
        let other = Changes::default();
        since(&other, None);
        assert_eq!(since(&other, Some(second)).1, None, "a moment of another list");
        assert_eq!(since(&changes, Some(Moment { number: second.number + 9, ..second })).1, None);
    }

    /// A snapshot takes its list, and a sync keeps its own.
    #[test]
    fn both_readers_get_all_changes() {
        let changes = Changes::default();
        changes.begin();
        let (moment, _) = since(&changes, None);
        changes.note(FileId(1), Change::Touched);
        assert_eq!(changes.take().map(|taken| taken.len()), Some(1));
        changes.end();
        assert_eq!(since(&changes, Some(moment)).1, Some(vec![1]));
        changes.begin();
        changes.note(FileId(2), Change::Touched);
        since(&changes, Some(moment));
        assert_eq!(changes.take().map(|taken| taken.len()), Some(1));
    }

    #[test]
    fn changes_of_one_thread_are_left_out_unless_another_changed_the_same() {
        let changes = Changes::default();
        let by = |thread: u32, inode: u64| {
            let _serving = requester::serve(thread);
            changes.note(FileId(inode), Change::Touched);
        };
        let listed = |moment, except| {
            let (_, changed) = changes.since(Some(moment), except, Vec::new).unwrap();
            let mut numbers: Vec<u64> = changed.unwrap().into_keys().map(|inode| inode.0).collect();
            numbers.sort_unstable();
            numbers
        };
        since(&changes, None);
        by(5, 1);
        by(6, 2);
        let (first, _) = since(&changes, None);
        by(7, 1);
        by(7, 2);
        by(7, 3);
        assert!(listed(first, Some(7)).is_empty(), "others changed them only before");
        by(5, 1);
        by(7, 1);
        changes.note(FileId(3), Change::Touched);
        assert_eq!(listed(first, Some(7)), [1, 3]);
        assert_eq!(listed(first, Some(5)), [1, 2, 3]);
        assert_eq!(listed(first, None), [1, 2, 3]);
    }

    #[test]
    fn what_can_change_unseen_counts_again_after_it_was_closed() {
        let changes = Changes::default();
        let open = || vec![FileId(7)];
        let (first, _) = changes.since(None, None, open).unwrap();
        let (second, changed) = changes.since(Some(first), None, Vec::new).unwrap();
        assert!(changed.unwrap().contains_key(&FileId(7)), "it was open at the first moment");
        assert_eq!(since(&changes, Some(second)).1, Some(vec![]));
        let (third, changed) = changes.since(Some(second), None, open).unwrap();
        assert!(changed.unwrap().contains_key(&FileId(7)));
        assert_eq!(since(&changes, Some(third)).1, Some(vec![7]));
    }
}
