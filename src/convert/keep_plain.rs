//! Files that stay plain for a while because they are often rewritten as a whole.

use super::Converter;
use super::queue::Entry;
use super::rewrites::{BYTES_MIN, is_all_new, is_rewrite};
use crate::id::RecipeId;
use crate::recipe::Recipe;
use crate::tree::inode::{Content, Inode, State as InodeState};
use crate::tree::policy::GATHER;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

impl Converter {
    /// Returns until when a file of `bytes` bytes, closed at `closed`, stays plain because it is often rewritten as a
    /// whole.
    pub(crate) fn plain_until(&self, inode: &Inode, closed: Instant, bytes: u64) -> Option<Instant> {
        if bytes < BYTES_MIN {
            return None;
        }
        let now = Instant::now();
        let until = closed + self.rewrites.rest(&self.tree.path_of(inode)?, now)?;
        // A round also takes files that are due a little later.
        (until > now + GATHER).then_some(until)
    }

    /// Leaves a file plain until `until`, even if a caller waits for it.
    pub(crate) fn stay_plain(&self, inode: &Arc<Inode>, state: &mut InodeState, until: Instant) {
        state.dirty = true;
        if !state.queued {
            state.queued = true;
            let entry = Entry { inode: inode.clone(), generation: state.generation };
            self.queue.push_rewritten(entry, until);
        }
    }

    /// As [`Converter::stay_plain`], for a file that was indexed meanwhile: the store lacks `new_bytes` of it. A file that
    /// shares bytes with the store is converted as usual.
    pub(crate) fn stay_plain_if_all_new(
        &self,
        inode: &Arc<Inode>,
        state: &mut InodeState,
        until: Instant,
        (new_bytes, size): (u64, u64),
    ) {
        if is_all_new(new_bytes, size) {
            return self.stay_plain(inode, state, until);
        }
        if let Some(path) = self.tree.path_of(inode) {
            self.rewrites.forget(&path);
        }
        self.try_again(inode, state);
    }

    /// Records the recipe under which a file was stored.
    pub(crate) fn note_stored(&self, inode: &Inode, id: RecipeId, recipe: &Recipe) {
        if recipe.size() < BYTES_MIN {
            return;
        }
        let Some(path) = self.tree.path_of(inode) else { return };
        self.rewrites.stored(&path, id, Instant::now(), |before| {
            let before = self.contents.store.recipe(&before).ok()?;
            Some(is_rewrite(&before, recipe))
        });
    }

    /// Returns whether the file at `path` is kept plain because it is often rewritten as a whole.
    pub fn is_kept_plain(&self, path: &Path) -> bool {
        let Ok(stat) = self.tree.backing.stat(path) else { return false };
        let Some(inode) = self.tree.inodes.find_existing(&self.tree.backing, crate::backing::identity(&stat))
        else {
            return false;
        };
        let closed = {
            let state = inode.lock();
            matches!(state.content, Some(Content::Plain(_) | Content::Hybrid(_))).then_some(state.closed)
        };
        let kept = closed.is_some_and(|at| self.plain_until(&inode, at, stat.st_size as u64).is_some());
        self.tree.inodes.release(inode);
        kept
    }
}
