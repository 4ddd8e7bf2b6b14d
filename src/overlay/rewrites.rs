//! Files that are repeatedly rewritten as a whole: a compiler's output, an exported video.
//!
//! - Each stored content of such a file is a version that shares nothing with its predecessor: it saves
//!   nothing and fills the disk. After [`FREE`] of them in sequence, the file stays plain until it has been
//!   left alone for a while.
//! - That time doubles with each further one, from [`REST_MIN`] to [`REST_MAX`]. A content that shares
//!   something with its predecessor ends the sequence.
//! - Neither `settle` nor an unmount stores such a file. `settle` indexes it, so that searches know it.
//! - A file is recognized by its path: most programs that write a whole file replace it by a new inode.
//!
//! Only in memory, and bounded: beyond [`FILES_MAX`] paths the longest unused are dropped. A dropped file
//! costs a few more versions.

use super::Overlay;
use super::inode::{Content, Inode, State as InodeState};
use super::queue::{Entry, GATHER};
use crate::id::{ChunkId, RecipeId};
use crate::recipe::Recipe;
use quick_cache::sync::Cache;
use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Smaller files cost little, and an edit may change all of their few chunks.
const BYTES_MIN: u64 = 1 << 20;
/// A content is a whole rewrite if it shares less than one in this many bytes with the version before it.
const SHARE: u64 = 10;
/// Whole rewrites in a row that are stored like any other change.
const FREE: u32 = 3;
/// How long a file is left alone after the last of them,
const REST_MIN: Duration = Duration::from_secs(60);
/// and at most.
const REST_MAX: Duration = Duration::from_secs(3600);
/// This long after its last version a path begins a new row. More than [`REST_MAX`], as in [`super::rewrite_backoff`].
const CALM: Duration = Duration::from_secs(2 * 3600);
const FILES_MAX: usize = 8192;

/// The contents stored last, and how many of them in a row were whole rewrites, by path.
pub(super) struct Rewrites {
    files: Cache<u64, Row>,
    hasher: RandomState,
}

#[derive(Clone, Copy)]
struct Row {
    recipe: RecipeId,
    rewrites: u32,
    stored: Instant,
}

impl Rewrites {
    /// Starts without any files.
    pub(super) fn new() -> Rewrites {
        Rewrites { files: Cache::new(FILES_MAX), hasher: RandomState::new() }
    }

    /// Records that the file at `path` was stored as `recipe`. `is_rewrite` compares that with the recipe before; it returns
    /// `None` if that one is no longer known.
    fn stored(
        &self,
        path: &Path,
        recipe: RecipeId,
        now: Instant,
        is_rewrite: impl FnOnce(RecipeId) -> Option<bool>,
    ) {
        let rewrites = match self.row(path, now) {
            None => 0,
            Some(row) => match is_rewrite(row.recipe) {
                Some(true) => row.rewrites.saturating_add(1),
                Some(false) => 0,
                None => row.rewrites,
            },
        };
        self.files.insert(self.key(path), Row { recipe, rewrites, stored: now });
    }

    /// Returns how long the file at `path` is left alone after its last close; `None` if it is like any other.
    fn rest(&self, path: &Path, now: Instant) -> Option<Duration> {
        let further = self.row(path, now)?.rewrites.checked_sub(FREE)?;
        Some(REST_MIN.saturating_mul(1 << further.min(20)).min(REST_MAX))
    }

    /// Ends the row of the file at `path`.
    fn forget(&self, path: &Path) {
        self.files.remove(&self.key(path));
    }

    fn row(&self, path: &Path, now: Instant) -> Option<Row> {
        self.files.get(&self.key(path)).filter(|row| now.saturating_duration_since(row.stored) < CALM)
    }

    fn key(&self, path: &Path) -> u64 {
        self.hasher.hash_one(path)
    }
}

/// Returns whether `new` shares next to nothing with `old`.
fn is_rewrite(old: &Recipe, new: &Recipe) -> bool {
    let chunks: HashSet<ChunkId> = old.chunks().iter().map(|chunk| chunk.id).collect();
    let shared = new.chunks().iter().filter(|chunk| chunks.contains(&chunk.id));
    let shared_bytes: u64 = shared.map(|chunk| u64::from(chunk.len)).sum();
    shared_bytes < new.size() / SHARE
}

/// Returns whether the store lacks nearly all of a content: `new_bytes` of its `size` bytes.
fn is_all_new(new_bytes: u64, size: u64) -> bool {
    new_bytes > size - size / SHARE
}

impl Overlay {
    /// Returns until when a file of `bytes` bytes, closed at `closed`, stays plain because it is often rewritten as a
    /// whole.
    pub(super) fn plain_until(&self, inode: &Inode, closed: Instant, bytes: u64) -> Option<Instant> {
        if bytes < BYTES_MIN {
            return None;
        }
        let now = Instant::now();
        let until = closed + self.rewrites.rest(&self.path_of(inode)?, now)?;
        // A round also takes files that are due a little later.
        (until > now + GATHER).then_some(until)
    }

    /// Leaves a file plain until `until`, even if a caller waits for it.
    pub(super) fn stay_plain(&self, inode: &Arc<Inode>, state: &mut InodeState, until: Instant) {
        state.dirty = true;
        if !state.queued {
            state.queued = true;
            let entry = Entry { inode: inode.clone(), generation: state.generation };
            self.queue.push_rewritten(entry, until);
        }
    }

    /// As [`Overlay::stay_plain`], for a file that was indexed meanwhile: the store lacks `new_bytes` of it. A file that
    /// shares bytes with the store is converted as usual.
    pub(super) fn stay_plain_if_all_new(
        &self,
        inode: &Arc<Inode>,
        state: &mut InodeState,
        until: Instant,
        (new_bytes, size): (u64, u64),
    ) {
        if is_all_new(new_bytes, size) {
            return self.stay_plain(inode, state, until);
        }
        if let Some(path) = self.path_of(inode) {
            self.rewrites.forget(&path);
        }
        self.try_again(inode, state);
    }

    /// Records the recipe under which a file was stored.
    pub(super) fn note_stored(&self, inode: &Inode, id: RecipeId, recipe: &Recipe) {
        if recipe.size() < BYTES_MIN {
            return;
        }
        let Some(path) = self.path_of(inode) else { return };
        self.rewrites.stored(&path, id, Instant::now(), |before| {
            let before = self.contents.store.recipe(&before).ok()?;
            Some(is_rewrite(&before, recipe))
        });
    }

    /// Returns whether the file at `path` is kept plain because it is often rewritten as a whole.
    pub fn is_kept_plain(&self, path: &Path) -> bool {
        let Ok(stat) = self.backing.stat(path) else { return false };
        let Some(inode) = self.inodes.find_existing(&self.backing, crate::backing::identity(&stat)) else {
            return false;
        };
        let closed = {
            let state = inode.lock();
            matches!(state.content, Some(Content::Plain(_) | Content::Hybrid(_))).then_some(state.closed)
        };
        let kept = closed.is_some_and(|at| self.plain_until(&inode, at, stat.st_size as u64).is_some());
        self.inodes.release(inode);
        kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::overlay::testing::World;

    #[test]
    fn the_time_doubles_up_to_an_hour_and_something_shared_ends_it() {
        let (rewrites, path, mut now) = (Rewrites::new(), Path::new("out"), Instant::now());
        let mut store = |is_rewrite: Option<bool>| {
            rewrites.stored(path, RecipeId([1; 16]), now, |_| is_rewrite);
            let rest = rewrites.rest(path, now);
            now += Duration::from_secs(1);
            rest.map(|rest| rest.as_secs())
        };
        let rests: Vec<_> = (0..12).map(|_| store(Some(true))).collect();
        assert_eq!(rests[..3], [None; 3], "the first is none, and two are free");
        assert_eq!(rests[3..9], [60, 120, 240, 480, 960, 1920].map(Some));
        assert_eq!(rests[11], Some(3600));
        assert_eq!(store(None), Some(3600), "what it was before is not known");
        assert_eq!(store(Some(false)), None);
        assert_eq!(rewrites.rest(Path::new("other"), now), None);
    }

    #[test]
    fn a_path_that_was_left_alone_for_long_begins_again() {
        let (rewrites, path, now) = (Rewrites::new(), Path::new("out"), Instant::now());
        (0..10).for_each(|_| rewrites.stored(path, RecipeId([1; 16]), now, |_| Some(true)));
        assert_eq!(rewrites.rest(path, now + CALM - Duration::from_secs(1)), Some(REST_MAX));
        assert_eq!(rewrites.rest(path, now + CALM), None);
        rewrites.stored(path, RecipeId([1; 16]), now + CALM, |_| Some(true));
        assert_eq!(rewrites.rest(path, now + CALM), None);
    }

    fn noise(seed: u64) -> Vec<u8> {
        let mut bytes = vec![0; 3 << 20];
        blake3::Hasher::new().update(&seed.to_le_bytes()).finalize_xof().fill(&mut bytes);
        bytes
    }

    /// Writes a file in place, as a program does that truncates it first, and commits it.
    fn rewrite(world: &World, bytes: &[u8]) -> Arc<Inode> {
        let path = world.overlay.backing.root_path().unwrap().join("out");
        let _ = std::fs::remove_file(&path);
        std::fs::write(&path, bytes).unwrap();
        let inode = world.inode("out");
        inode.lock().closed = Instant::now();
        world.commit(&inode);
        inode
    }

    fn is_stub(inode: &Inode) -> bool {
        matches!(inode.lock().content, Some(Content::Stub(_)))
    }

    #[test]
    fn a_file_that_shares_nothing_with_its_versions_stays_plain_until_it_is_left_alone() {
        let world = World::new();
        for seed in 0..4 {
            assert!(is_stub(&rewrite(&world, &noise(seed))), "{seed}");
        }
        let stored = || world.overlay.contents.store.stats().unique_bytes;
        let before = stored();
        let inode = rewrite(&world, &noise(4));
        assert!(!is_stub(&inode) && world.overlay.is_kept_plain(Path::new("out")));
        assert_eq!((stored(), world.overlay.kept_plain()), (before, 1));
        assert!(inode.lock().committed, "it is indexed");
        inode.lock().closed = Instant::now().checked_sub(REST_MIN).unwrap();
        world.commit(&inode);
        assert!(is_stub(&inode) && !world.overlay.is_kept_plain(Path::new("out")));
    }

    #[test]
    fn a_file_that_shares_something_with_what_is_stored_is_not_kept_plain() {
        let world = World::new();
        for seed in 0..4 {
            rewrite(&world, &noise(seed));
        }
        let mut edited = noise(3);
        edited[2 << 20..].copy_from_slice(&noise(9)[2 << 20..]);
        let inode = rewrite(&world, &edited);
        // Its look showed that: the next takes it in.
        assert!(!world.overlay.is_kept_plain(Path::new("out")));
        world.commit(&inode);
        assert!(is_stub(&inode));
    }

    #[test]
    fn small_files_are_never_kept_plain() {
        let world = World::new();
        for seed in 0..10 {
            assert!(is_stub(&rewrite(&world, &noise(seed)[..100_000])), "{seed}");
        }
    }
}
