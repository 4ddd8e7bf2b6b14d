//! Files that are tried again later, or left as they are.

use super::Converter;
use super::queue::Entry;
use crate::tree::inode::{Inode, State as InodeState};
use crate::tree::policy::{GATHER, Policy};
use crate::tree::proof::Doubt;
use std::sync::Arc;
use std::time::Instant;

impl Converter {
    pub(crate) fn try_again(&self, inode: &Arc<Inode>, state: &mut InodeState) {
        if !state.queued {
            state.queued = true;
            let entry = Entry { inode: inode.clone(), generation: state.generation };
            self.queue.push_again(entry, state.attempts);
            state.attempts = state.attempts.saturating_add(1);
        }
    }

    /// Leaves a file as it is that was not proven to lie in the tree. The caller holds the lease.
    pub(crate) fn leave_plain(&self, inode: &Arc<Inode>, state: &mut InodeState, doubt: Doubt) {
        state.interrupt_conversion();
        state.dirty = false;
        match doubt {
            Doubt::Outside => self.tree.log_outside(inode),
            Doubt::Mount => {
                tracing::info!("{}: stays as it is, below another mount", self.tree.name_of(inode))
            }
            Doubt::Nameless => {}
            Doubt::NotFound => {
                state.dirty = true;
                self.try_again(inode, state);
            }
        }
    }

    /// Puts a file back that has not been closed for long enough, and returns whether it did.
    pub(crate) fn rests(&self, inode: &Arc<Inode>, state: &mut InodeState, policy: Option<Policy>) -> bool {
        let Some(policy) = policy else { return false };
        let now = Instant::now();
        let rest = self.rewrite_backoff.rest(inode.file_id(), policy.rest(), now);
        let due = state.closed + rest;
        // A round also takes files that are due a little later.
        if due <= now + GATHER {
            return false;
        }
        if !state.queued {
            state.queued = true;
            let entry = Entry { inode: inode.clone(), generation: state.generation };
            self.queue.push_resting(entry, due, rest > policy.rest());
        }
        true
    }
}
