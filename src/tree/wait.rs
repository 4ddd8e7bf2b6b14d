//! Waits for a change in the tree, so that a caller need not ask again and again.
//!
//! The tree counts changes of names, attributes and closed files. A program can write to an open file unseen (passthrough,
//! shared mappings): while there are such files, their size and time are compared every second.

use super::Tree;
use super::inode::Inode;
use crate::contents::error::Result;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Interval of looks at files that are open for writing.
const LOOK: Duration = Duration::from_secs(1);
/// Interval of questions whether the caller still waits.
const IDLE: Duration = Duration::from_secs(10);
/// A wait ends when nothing has changed for this long,
const REST: Duration = Duration::from_millis(250);
/// and at the latest this long after the first change.
const REST_MAX: Duration = Duration::from_secs(2);

/// A state of a tree. Two states of one tree with the same value are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Distinguishes trees that were opened at different times.
    tree: u64,
    changes: u64,
    /// Hash of the files that are open for writing, with their sizes and times.
    written: u64,
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}-{}-{:016x}", self.tree, self.changes, self.written)
    }
}

impl FromStr for Seen {
    type Err = ();

    fn from_str(text: &str) -> std::result::Result<Seen, ()> {
        let mut parts = text.split('-');
        let mut next = |radix| u64::from_str_radix(parts.next().ok_or(())?, radix).map_err(drop);
        let seen = Seen { tree: next(16)?, changes: next(10)?, written: next(16)? };
        parts.next().is_none().then_some(seen).ok_or(())
    }
}

/// Files that are open for writing, or may be mapped.
struct Written<'a> {
    tree: &'a Tree,
    inodes: Vec<Arc<Inode>>,
}

impl Written<'_> {
    fn hash(&self) -> u64 {
        let mut all: Vec<_> = self
            .inodes
            .iter()
            .map(|inode| {
                let stat = inode.path_fd().and_then(rustix::fs::fstat).ok();
                let times = stat.map(|stat| (stat.st_size, stat.st_mtime, stat.st_mtime_nsec));
                (inode.file_id().0, times)
            })
            .collect();
        all.sort_unstable();
        let mut hasher = DefaultHasher::new();
        all.hash(&mut hasher);
        hasher.finish()
    }
}

impl Drop for Written<'_> {
    fn drop(&mut self) {
        self.inodes.drain(..).for_each(|inode| self.tree.inodes.release(inode));
    }
}

impl Tree {
    fn written(&self) -> Written<'_> {
        let inodes = self.inodes.collect(|inode, state| {
            inode.on_root_fs && (state.writers > 0 || state.passed && state.passed_to_writer)
        });
        Written { tree: self, inodes }
    }

    fn seen(&self, written: &Written<'_>) -> Seen {
        Seen { tree: self.opened_at, changes: self.changes.news.counts().changes, written: written.hash() }
    }

    /// Waits until the state differs from `seen`, and then until it rests, at most two seconds. Returns the state; at once if
    /// `seen` is `None`. Returns `None` if `keep_going` returned false (it is called every ten seconds, or every second while
    /// files are open for writing), or after [`Tree::end_waits`].
    ///
    /// A change after the return, or during a later look at the tree, makes another state.
    pub fn wait_for_change(
        &self,
        seen: Option<Seen>,
        keep_going: &mut dyn FnMut() -> bool,
    ) -> Result<Option<Seen>> {
        let news = &self.changes.news;
        // The counts come first: a file that is opened after them is collected again.
        let mut counts = news.counts();
        let (mut written, mut collected) = (self.written(), Instant::now());
        loop {
            let now = self.seen(&written);
            if Some(now) != seen {
                break;
            }
            let time = if written.inodes.is_empty() { IDLE } else { LOOK };
            let Some(after) = news.wait(counts, time) else { return Ok(None) };
            if !keep_going() {
                return Ok(None);
            }
            if after.opens != counts.opens || collected.elapsed() >= IDLE {
                (written, collected) = (self.written(), Instant::now());
            }
            counts = after;
        }
        if seen.is_some() {
            let until = Instant::now() + REST_MAX;
            loop {
                let before = news.counts();
                let Some(after) = news.wait(before, REST) else { return Ok(None) };
                if after == before || Instant::now() >= until {
                    break;
                }
                std::thread::sleep(REST / 10);
            }
            written = self.written();
        }
        Ok(Some(self.seen(&written)))
    }

    /// Ends all waits for changes, now and later.
    pub fn end_waits(&self) {
        self.changes.news.end();
    }
}
