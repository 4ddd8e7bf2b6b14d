//! The converter: its parts, and what it does with events of the tree.

use super::garbage::Garbage;
use super::queue::{self, Queue};
use super::rewrite_backoff::RewriteBackoff;
use super::rewrites::Rewrites;
use super::room::Room;
use super::warming::Warming;
use crate::catalog::Catalog;
use crate::contents::Contents;
use crate::contents::throttle::{self, Throttle};
use crate::indexes::Indexes;
use crate::tree::Tree;
use crate::tree::event::Event;
use crate::tree::policy::GATHER;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Makes stubs of plain files, in the background.
pub struct Converter {
    pub(crate) tree: Arc<Tree>,
    pub(crate) contents: Arc<Contents>,
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) indexes: Arc<Indexes>,
    pub(crate) throttle: Arc<Throttle>,
    pub(crate) rewrite_backoff: RewriteBackoff,
    pub(crate) rewrites: Rewrites,
    pub(crate) warming: Warming,
    pub(crate) queue: Queue,
    pub(crate) garbage: Arc<Garbage>,
    pub(crate) room: Room,
    pub(crate) converted: AtomicU64,
    /// Files that stay plain because of [`Policy::withheld`](crate::tree::Policy::withheld).
    pub(crate) withheld: AtomicU64,
    /// A commit found no room in the store.
    pub(crate) no_room: AtomicBool,
}

impl Converter {
    /// A converter for the files of the tree of `indexes`. Starts no threads.
    pub fn new(indexes: Arc<Indexes>, garbage: Arc<Garbage>) -> Converter {
        Converter {
            tree: indexes.tree.clone(),
            contents: indexes.contents.clone(),
            catalog: indexes.catalog.clone(),
            throttle: indexes.throttle.clone(),
            indexes,
            rewrite_backoff: RewriteBackoff::new(),
            rewrites: Rewrites::new(),
            warming: Warming::default(),
            queue: Queue::default(),
            garbage,
            room: Room::default(),
            converted: AtomicU64::new(0),
            withheld: AtomicU64::new(0),
            no_room: AtomicBool::new(false),
        }
    }

    /// Handles an event of the tree. Never waits.
    pub fn handle(&self, event: Event<'_>) {
        match event {
            Event::Created(file) => self.rewrite_backoff.forget(file),
            Event::Released(inode, state) => self.warm_if_hot(inode, state),
            Event::Changed(inode, state) => {
                if std::mem::take(&mut state.committed) {
                    self.rewrite_backoff.changed(inode.file_id(), state.closed);
                }
                if state.queued && state.opens == 0 {
                    state.attempts = 0;
                    state.generation = self.queue.hasten(inode, self.rest()).unwrap_or(state.generation);
                }
            }
            Event::Due(inode, state) => {
                state.queued = true;
                state.attempts = 0;
                state.generation = self.queue.push(inode.clone(), self.rest());
            }
            Event::Cooled(inode, state) => {
                if self.queue.remove_hot(inode) {
                    state.queued = false;
                }
            }
            Event::PolicyChanged(inode) => self.queue.look_again(&HashSet::from([inode.node])),
            Event::DirMoved(_) => {}
        }
    }

    /// Returns how long a closed file stays in the queue before a commit examines it. The commit then looks up its policy,
    /// and how long it has to rest from its last close on.
    fn rest(&self) -> Duration {
        let policies = self.tree.policies();
        if policies.rules() == 0 { policies.fallback().rest() } else { GATHER }
    }

    /// Returns how many bytes a second conversions read while no caller waits for them, if that is limited.
    pub fn convert_rate(&self) -> Option<u64> {
        self.throttle.rate()
    }

    /// Returns how many files rest for longer because they are written often.
    pub fn resting(&self) -> usize {
        self.queue.resting()
    }

    /// Returns how many files stay plain because they are often rewritten as a whole.
    pub fn kept_plain(&self) -> usize {
        self.queue.rewritten()
    }

    /// Returns how many files stay plain until there is space for their content.
    pub fn waiting_for_room(&self) -> usize {
        self.queue.waiting()
    }

    /// Returns how many files were closed and are not committed yet.
    pub fn pending(&self) -> usize {
        self.queue.pending()
    }

    /// Until the result is dropped, conversions run at full speed and take files that have not rested: a caller
    /// waits for them.
    pub fn hurry(&self) -> Hurry<'_> {
        Hurry { _throttle: self.throttle.hurry(), _queue: self.queue.hurry() }
    }

    /// Returns how many files were indexed and stay plain because only a mount converts them ([`Policy::withheld`](crate::tree::Policy::withheld)).
    pub fn withheld(&self) -> u64 {
        self.withheld.load(Ordering::Relaxed)
    }
}

/// While this is held, a caller waits for conversions.
pub struct Hurry<'a> {
    _throttle: throttle::Hurry<'a>,
    _queue: queue::Hurry<'a>,
}
