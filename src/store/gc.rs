//! Collecting garbage: finds chunks and recipes that nothing needs, and gives their room back.
//!
//! ```text
//! begin: look-ups count as uses -> wait for older pins      (nobody can refer to anything unseen)
//! mark:  whoever calls says what is needed                   keep()
//! plan:  bytes needed and not needed of each pack            plan(): changes nothing
//! apply: needed frames of a pack -> end of the store -> fsync -> retire the pack -> remove its file
//! ```
//!
//! What must always be true: a pack is removed only when every frame in it that is needed stands, durable and
//! verified, in another pack. A chunk that is being referred to is needed: [`Collection::keep`] was told, or it
//! was looked up since `begin`, which put it into the set of what is needed *under the gate*. A pack is retired
//! under the same gate, after one more look at that set; from then on none of its frames is found, so whoever
//! asks later stores the bytes again. A crash leaves the pack, or its copies, or both. Packs with bad bytes
//! whose content is needed or not known are left as they are; the newest pack is never removed, so that no
//! number is ever given to a second pack. `docs/decisions/0010-gc.md` argues all this.
//!
//! A group is needed while one of its chunks is or a delta of it; it is copied as it is, and the names of chunks that
//! nothing needs are taken out of it: their bytes go when the group does.
//!
//! Locks: `collecting`, then `persisted`, `tail`, and innermost the gate.

use super::append::Frames;
use super::dictionary::Copies;
use super::error::StoreError;
use super::frame::{self, HEADER_BYTES, Header, Key, Kind};
use super::group::Group;
use super::group_table::{self, Named};
use super::live::LiveSet;
use super::pack::{Address, Entry, GROUPED, PACK_HEADER_BYTES, PLAIN, read_footer};
use super::scan::{Item, Scanner};
use super::{Store, lock};
use crate::env::Access;
use crate::id::{ChunkId, RecipeId};
use std::cell::Cell;
use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError};
use zstd::bulk::Compressor;

/// Most memory for the set of what is needed. Enough for 40 million chunks; beyond, more garbage is kept.
const LIVE_BYTES_MAX: u64 = 64 << 20;
/// A pack is rewritten if so much of it is not needed.
const DEAD_SHARE_MIN: f64 = 0.25;
/// And more packs are, those with most to gain first, until no more than this share of the bytes is not needed.
const DEAD_SHARE_LEFT: f64 = 0.03;
/// Frames are copied in appends of about this size.
const COPY_BYTES: usize = 1 << 20;
/// Keys that are gone are taken from the index so many at a time.
const FORGET_KEYS: usize = 64 << 10;

/// Asked again and again during long work; false ends it.
pub type GoOn<'a> = &'a mut dyn FnMut(u64, u64) -> bool;

/// An index that takes no changes, on a full disk, is no reason to keep garbage there: rows that lead to packs that
/// are gone are not believed, and the next collection takes them out.
pub(super) fn index_may_fail<T: Default>(result: Result<T, StoreError>) -> Result<T, StoreError> {
    match result {
        Err(StoreError::Db(e)) => {
            tracing::warn!(error = %e, "the index could not be changed; the next collection does it");
            Ok(T::default())
        }
        other => other,
    }
}

/// One pack in a plan. Bytes on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PackPlan {
    pub(super) pack: u32,
    pub(super) live_bytes: u64,
    pub(super) dead_bytes: u64,
    /// Whether there are groups in it.
    grouped: bool,
}

/// What a collection would do. Sizes in bytes on disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GcPlan {
    packs: Vec<PackPlan>,
    /// Bytes of packs in all.
    pub stored_bytes: u64,
    /// Bytes of frames that nothing needs, in packs that are to be rewritten or removed.
    pub reclaim_bytes: u64,
    /// Bytes of frames that have to be copied for it.
    pub copy_bytes: u64,
    /// Bytes that nothing needs and that stay, because it does not pay to copy what stands beside them, or
    /// because their pack is damaged.
    pub left_bytes: u64,
}

/// What a collection did. Sizes in bytes on disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GcDone {
    /// Packs removed.
    pub packs_removed: u64,
    /// By how much the packs shrank.
    pub reclaimed_bytes: u64,
    /// Bytes of frames copied.
    pub copied_bytes: u64,
    /// Packs left as they are because of damage.
    pub packs_damaged: u64,
    /// Chunks and recipes forgotten.
    pub forgotten: u64,
}

/// A collection under way: one at a time. While it lives every look-up counts as a use.
pub struct Collection<'a> {
    pub(super) store: &'a Arc<Store>,
    pub(super) live: Arc<LiveSet>,
    /// Packs up to this one stay as they are.
    pub(super) left: Cell<Option<u32>>,
    pub(super) _one: MutexGuard<'a, ()>,
}

impl Drop for Collection<'_> {
    fn drop(&mut self) {
        *self.store.reader.gate_mut() = None;
        self.store.reserve.take();
    }
}

impl Store {
    /// Begins a collection, after every older pin is gone; `None` if `go_on` said no meanwhile. Waits for one that
    /// is under way.
    pub fn collect(self: &Arc<Self>, go_on: GoOn<'_>) -> Result<Option<Collection<'_>>, StoreError> {
        self.appender.check()?;
        let one = self.collecting.lock().unwrap_or_else(PoisonError::into_inner);
        index_may_fail(self.forget_removed())?;
        let mut salt = [0; 8];
        rustix::rand::getrandom(&mut salt, rustix::rand::GetRandomFlags::empty())
            .map_err(|e| StoreError::io("draw random numbers for", &self.reader.packs.dir, e.into()))?;
        let counters = *lock(&self.counters);
        let keys = counters.chunks + counters.recipes;
        let live = Arc::new(LiveSet::new(keys, LIVE_BYTES_MAX, u64::from_le_bytes(salt)));
        *self.reader.gate_mut() = Some(live.clone());
        let collection = Collection { store: self, live, left: Cell::new(None), _one: one };
        let waited = self.pins.wait_for_older(&mut || go_on(0, 0));
        Ok(waited.then_some(collection))
    }
}

impl Store {
    /// Has regrouping leave packs up to this number as they are, as long as the store is open.
    pub fn leave_until(&self, pack: u32) {
        let mut left = lock(&self.left);
        *left = left.max(Some(pack));
    }
}

impl Collection<'_> {
    /// Says that a recipe is needed, and with it its chunks. An error if it cannot be read: then it is not known
    /// what is needed, and nothing may be removed.
    pub fn keep(&self, recipe: &RecipeId) -> Result<(), StoreError> {
        // Looking it up is what counts.
        self.store.recipe(recipe).map(drop)
    }

    /// Leaves all that is stored up to now as it is, needed or not: something needs a part of it, and which is not known.
    /// Returns how far that is, for [`Collection::leave_until`] of collections to come.
    pub fn leave_until_now(&self) -> Result<u32, StoreError> {
        let newest = self.store.reader.packs.list()?.last().copied().unwrap_or_default();
        self.leave_until(newest);
        Ok(newest)
    }

    /// Has what comes from now on in packs that are not left as they are.
    pub fn begin_pack(&self) -> Result<(), StoreError> {
        self.left.get().map_or(Ok(()), |last| self.store.appender.begin_pack_after(last, PLAIN))
    }

    /// Leaves packs up to this number as they are. Nothing that is in them now is ever only in a later one, then.
    pub fn leave_until(&self, pack: u32) {
        self.left.set(self.left.get().max(Some(pack)));
        self.store.leave_until(pack);
    }

    /// Gives up the room that is set aside, if there is none else: for what has to be written down before anything is
    /// removed.
    pub fn make_room(&self) {
        self.store.reserve.give_up_if_short();
    }

    /// As [`Collection::keep`]; returns how many bytes on disk are needed that were not, as far as is known.
    pub fn keep_more(&self, recipe: &RecipeId) -> Result<u64, StoreError> {
        let reader = &self.store.reader;
        let recipe = reader.recipe(recipe)?;
        let mut bytes = 0;
        for chunk in recipe.chunks() {
            let key = Key::chunk(&chunk.id);
            if !self.live.contains(&key)
                && let Some(address) = reader.index.find(&key)?
            {
                bytes += HEADER_BYTES as u64 + u64::from(address.stored_len);
            }
        }
        reader.use_recipe(&recipe);
        Ok(bytes)
    }

    /// Bytes on disk of those chunks that nothing is known to need.
    pub fn bytes_not_kept(&self, chunks: &HashSet<ChunkId>) -> Result<u64, StoreError> {
        let mut bytes = 0;
        for key in chunks.iter().map(Key::chunk).filter(|key| !self.live.contains(key)) {
            let address = self.store.reader.index.find(&key)?;
            bytes += address.map_or(0, |address| HEADER_BYTES as u64 + u64::from(address.stored_len));
        }
        Ok(bytes)
    }

    /// Looks at every pack. Changes nothing.
    pub fn plan(&self, go_on: GoOn<'_>) -> Result<Option<GcPlan>, StoreError> {
        let packs = &self.store.reader.packs;
        let mut plan = GcPlan { stored_bytes: self.store.stats().stored_bytes, ..GcPlan::default() };
        let mut all = Vec::new();
        let mut done = 0;
        for pack in packs.list()? {
            let Some((mut entries, len)) = self.entries(pack)? else { continue };
            let one = self.weigh(pack, &mut entries)?;
            done += len;
            if !go_on(done, plan.stored_bytes.max(done)) {
                return Ok(None);
            }
            match self.left.get().is_some_and(|last| pack <= last) {
                true => plan.left_bytes += one.dead_bytes,
                false => all.push(one),
            }
        }
        plan.choose(all);
        Ok(Some(plan))
    }

    /// Carries out a plan, pack by pack; ends early, in good order, when `go_on` says no.
    pub fn apply(&self, plan: &GcPlan, go_on: GoOn<'_>) -> Result<GcDone, StoreError> {
        if plan.packs.is_empty() {
            return Ok(GcDone::default());
        }
        self.store.reserve.give_up_if_short();
        let done = self.apply_with_room(plan, go_on);
        self.store.reserve.take();
        done
    }

    fn apply_with_room(&self, plan: &GcPlan, go_on: GoOn<'_>) -> Result<GcDone, StoreError> {
        let mut done = GcDone::default();
        let before = self.store.appender.stored_bytes.load(Ordering::Relaxed);
        index_may_fail(self.store.note_removing(plan.packs.iter().map(|one| one.pack)))?;
        if let Some(newest) = plan.packs.iter().map(|one| one.pack).max() {
            let version = if plan.packs.iter().any(|one| one.grouped) { GROUPED } else { PLAIN };
            self.store.appender.begin_pack_after(newest, version)?;
        }
        let mut forgotten = Vec::new();
        let total: u64 = plan.packs.iter().map(|one| one.live_bytes + one.dead_bytes).sum();
        let mut at = 0;
        for one in &plan.packs {
            match self.rewrite(one.pack, &mut done)? {
                Some(dead) => {
                    self.remove(one.pack)?;
                    done.packs_removed += 1;
                    forgotten.extend(dead);
                }
                None => done.packs_damaged += 1,
            }
            if forgotten.len() >= FORGET_KEYS {
                done.forgotten += self.forget(&std::mem::take(&mut forgotten))?;
            }
            at += one.live_bytes + one.dead_bytes;
            if !go_on(at, total) {
                break;
            }
        }
        done.forgotten += self.forget(&forgotten)?;
        index_may_fail(self.store.persist())?;
        plan.packs.iter().for_each(|one| self.close(one.pack));
        done.reclaimed_bytes =
            before.saturating_sub(self.store.appender.stored_bytes.load(Ordering::Relaxed));
        Ok(done)
    }

    /// The frames of a pack and its length; `None` if it cannot be read, or is younger than this collection.
    pub(super) fn entries(&self, pack: u32) -> Result<Option<(Vec<Entry>, u64)>, StoreError> {
        if let Some(found) = self.store.appender.growing_entries(pack) {
            return Ok(Some(found));
        }
        let packs = &self.store.reader.packs;
        let Ok(file) = packs.open(pack, Access::Read) else { return Ok(None) };
        let failed = |e| StoreError::io("read", &packs.path(pack), e);
        let len = file.len().map_err(failed)?;
        if let Some((_, entries)) = read_footer(&*file, packs.store, pack, len).map_err(failed)? {
            return Ok(Some((entries, len)));
        }
        let mut scanner = Scanner::new(packs, pack, &*file, u64::from(PACK_HEADER_BYTES), len);
        let mut entries = Vec::new();
        while let Some(item) = scanner.next() {
            if let Item::Frame { offset, header } | Item::Bad { offset, header: Some(header), .. } = item {
                entries.extend(scanner.entries(&header, offset));
            }
        }
        Ok(Some((entries, len)))
    }

    /// How much of a pack is needed.
    pub(super) fn weigh(&self, pack: u32, entries: &mut [Entry]) -> Result<PackPlan, StoreError> {
        let mut one = PackPlan { pack, live_bytes: 0, dead_bytes: 0, grouped: false };
        entries.sort_unstable_by_key(|entry| entry.address.offset);
        // A group that nothing was found to need so far, except perhaps a delta that follows.
        let (mut root, mut dictionaries) = (0, 0);
        for frame in entries.chunk_by(|a, b| a.address.offset == b.address.offset) {
            let bytes = HEADER_BYTES as u64 + u64::from(frame[0].address.stored_len);
            let is = |kind: Kind| frame.iter().any(|entry| entry.key.kind() == kind as u8);
            let mut needed = false;
            for entry in frame {
                needed = needed || self.is_needed(entry)?;
            }
            one.grouped |= is(Kind::Group);
            if is(Kind::Group) {
                one.dead_bytes += std::mem::take(&mut root);
            } else if is(Kind::Delta) && needed {
                one.live_bytes += std::mem::take(&mut root);
            }
            match needed {
                true => one.live_bytes += bytes,
                false if is(Kind::Dictionary) => dictionaries += bytes,
                false if is(Kind::Group) => root = bytes,
                false => one.dead_bytes += bytes,
            }
        }
        one.dead_bytes += root;
        match one.live_bytes {
            0 => one.dead_bytes += dictionaries,
            _ => one.live_bytes += dictionaries,
        }
        Ok(one)
    }

    /// Whether a frame is needed: its content is, and no other sound frame has it.
    pub(super) fn is_needed(&self, entry: &Entry) -> Result<bool, StoreError> {
        Ok(match Kind::of(entry.key.kind()) {
            // Of groups it is their chunks that are, and dictionaries come along with groups.
            Some(Kind::Footer | Kind::Void | Kind::Group | Kind::Delta | Kind::Dictionary) => false,
            // Of a newer program: not ours to judge.
            None => true,
            Some(_) if !self.live.contains(&entry.key) => false,
            Some(_) => {
                let reader = &self.store.reader;
                match reader.index.find(&entry.key)? {
                    Some(now) if now == entry.address => true,
                    // Replaced, by a frame that is sound.
                    Some(now) if reader.packs.has(now.pack) => {
                        reader.reason_if_bad(entry.key, &now)?.is_some()
                    }
                    // An index that has lost a row is no reason to lose what it led to.
                    Some(_) | None => true,
                }
            }
        })
    }

    /// Copies what is needed of a pack and retires it; the keys whose only frames it had. `None` if it has to
    /// stay.
    fn rewrite(&self, pack: u32, done: &mut GcDone) -> Result<Option<Vec<Key>>, StoreError> {
        let mut copier = Copier::new(self, done);
        let Some(dead) = self.copy_needed(pack, &mut copier, &mut |_, _| false)? else { return Ok(None) };
        copier.flush()?;
        self.store.sync()?;
        self.retire(pack, dead, &mut copier)
    }

    /// Copies what is needed of a pack, except chunks that `aside` takes; what is not needed. `None` if the pack has
    /// to stay.
    pub(super) fn copy_needed(
        &self,
        pack: u32,
        copier: &mut Copier<'_, '_>,
        aside: &mut dyn FnMut(&Header, &Entry) -> bool,
    ) -> Result<Option<Vec<Entry>>, StoreError> {
        let packs = &self.store.reader.packs;
        let path = packs.path(pack);
        let failed = |e| StoreError::io("read", &path, e);
        let file = match packs.open(pack, Access::Read) {
            Ok(file) => file,
            Err(_) => return Ok(None),
        };
        let len = file.len().map_err(failed)?;
        let listed = read_footer(&*file, packs.store, pack, len).map_err(failed)?;
        let mut dead: Vec<Entry> = Vec::new();
        let mut scanner = Scanner::new(packs, pack, &*file, u64::from(PACK_HEADER_BYTES), len);
        let mut payload = Vec::new();
        // The group that deltas may follow.
        let mut root: Option<Root> = None;
        while let Some(item) = scanner.next_with(|_, bytes| {
            payload.clear();
            payload.extend_from_slice(bytes);
            Ok(())
        }) {
            match item {
                Item::Frame { header, .. }
                    if [Kind::Footer as u8, Kind::Void as u8, Kind::Dictionary as u8]
                        .contains(&header.kind) => {}
                Item::Frame { offset, mut header } if header.is_group() => {
                    let table = scanner.table().expect("the scanner has read it").clone();
                    let mut gone = Vec::new();
                    for entry in scanner.entries(&header, offset).into_iter().filter(Entry::is_row) {
                        if !self.is_needed(&entry)? {
                            gone.push(entry);
                        }
                    }
                    let gone_keys: HashSet<Key> = gone.iter().map(|entry| entry.key).collect();
                    group_table::drop_names(&mut header, &mut payload, &table, |key| gone_keys.contains(key));
                    let kind = header.member_kind() as u8;
                    let stays = |(id, _): &Named| !gone_keys.contains(&Key::new(&id.0, kind));
                    let mut left: Vec<Named> = table.named().filter(stays).collect();
                    let needed = !left.is_empty();
                    dead.extend(gone);
                    match table.root(offset) {
                        Ok(None) => {
                            let dictionary = table.dictionary(offset).ok().flatten();
                            let (payload, left) = (std::mem::take(&mut payload), std::mem::take(&mut left));
                            let frame = Some(Waiting { header, payload, chunks: left, dictionary });
                            root = Some(Root { offset, frame });
                        }
                        Ok(Some((at, _))) if root.as_ref().is_some_and(|root| root.offset == at) => {}
                        // Not as we write them: whoever did may know why.
                        _ => return Ok(None),
                    }
                    if let Some(root) = root.as_mut().filter(|_| needed) {
                        if let Some(frame) = root.frame.take() {
                            copier.copy(&frame.header, &frame.payload, &frame.chunks)?;
                            if let Some(copies) = frame.dictionary
                                && !copier.need(&*file, pack, &copies)
                            {
                                return Ok(None);
                            }
                        }
                        if header.kind == Kind::Delta as u8 {
                            copier.copy(&header, &payload, &left)?;
                        }
                    }
                }
                Item::Frame { offset, header } => {
                    root = None;
                    let entry = Entry::of(&header, pack, offset);
                    if Kind::of(header.kind).is_none() {
                        return Ok(None);
                    }
                    if !self.is_needed(&entry)? {
                        dead.push(entry);
                    } else if !aside(&header, &entry) {
                        copier.copy(&header, &payload, &[])?;
                    }
                }
                Item::Bad { offset, end, header, .. } => {
                    root = None;
                    let stood = match header {
                        Some(header) if !header.is_group() || scanner.table().is_some() => {
                            scanner.entries(&header, offset)
                        }
                        // What stood here is known only if the footer says so.
                        _ => {
                            let Some((footer, entries)) = &listed else { return Ok(None) };
                            let inside = |entry: &&Entry| {
                                (offset..end as u32).contains(&entry.address.offset) && offset < *footer
                            };
                            entries.iter().filter(inside).copied().collect()
                        }
                    };
                    for entry in stood {
                        if self.is_needed(&entry)? {
                            return Ok(None);
                        }
                        dead.push(entry);
                    }
                }
            }
        }
        Ok(Some(dead))
    }

    /// Retires a pack whose copies are durable, unless something dead in it was looked up since: that is copied first.
    pub(super) fn retire(
        &self,
        pack: u32,
        mut dead: Vec<Entry>,
        copier: &mut Copier<'_, '_>,
    ) -> Result<Option<Vec<Key>>, StoreError> {
        loop {
            let wanted = self.retire_unless_wanted(pack, &dead)?;
            if wanted.is_empty() {
                break;
            }
            let packs = &self.store.reader.packs;
            let file =
                packs.open(pack, Access::Read).map_err(|e| StoreError::io("open", &packs.path(pack), e))?;
            dead.retain(|entry| !wanted.contains(&entry.key));
            for entry in wanted_entries(&self.store.reader.index, &wanted, pack)? {
                if !copier.copy_from(&*file, entry)? {
                    return Ok(None);
                }
            }
            copier.flush()?;
            self.store.sync()?;
        }
        Ok(Some(dead.into_iter().map(|entry| entry.key).collect()))
    }

    /// Under the gate: what was looked up since it was found dead; if nothing was, the pack is retired.
    fn retire_unless_wanted(&self, pack: u32, dead: &[Entry]) -> Result<Vec<Key>, StoreError> {
        let reader = &self.store.reader;
        let _gate = reader.gate_mut();
        let mut wanted = Vec::new();
        for entry in dead.iter().filter(|entry| self.live.contains(&entry.key)) {
            // A frame that another one has replaced is dead however much its content is wanted.
            if reader.index.find(&entry.key)? == Some(entry.address) {
                wanted.push(entry.key);
            }
        }
        if wanted.is_empty() {
            reader.packs.retire(pack);
        }
        Ok(wanted)
    }

    pub(super) fn remove(&self, pack: u32) -> Result<(), StoreError> {
        let packs = &self.store.reader.packs;
        let path = packs.path(pack);
        let len = packs.open(pack, Access::Read).and_then(|file| file.len()).unwrap_or(0);
        packs.disk.remove(&path).map_err(|e| StoreError::io("remove", &path, e))?;
        self.store.appender.stored_bytes.fetch_sub(len, Ordering::Relaxed);
        self.close(pack);
        Ok(())
    }

    /// The names of packs have to be gone for good first: a pack that came back after a power cut would hold
    /// frames that the index does not know.
    pub(super) fn forget(&self, keys: &[Key]) -> Result<u64, StoreError> {
        self.store.reader.packs.sync_names()?;
        index_may_fail(self.store.forget(keys))
    }

    pub(super) fn close(&self, pack: u32) {
        if self.store.reader.packs.is_retired(pack) {
            self.store.reader.packs.close(pack);
        }
    }
}

fn wanted_entries(index: &super::index::Index, wanted: &[Key], pack: u32) -> Result<Vec<Entry>, StoreError> {
    let mut entries = Vec::with_capacity(wanted.len());
    for &key in wanted {
        if let Some(address) = index.find(&key)?.filter(|address| address.pack == pack) {
            entries.push(Entry { key, address });
        }
    }
    Ok(entries)
}

impl GcPlan {
    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.packs.is_empty()
    }

    /// Packs to be rewritten or removed.
    pub fn packs(&self) -> u64 {
        self.packs.len() as u64
    }

    /// Chooses the packs that it pays to rewrite, those with the largest share to gain first.
    fn choose(&mut self, mut packs: Vec<PackPlan>) {
        packs.retain(|one| one.dead_bytes > 0);
        packs.sort_by(|a, b| b.dead_share().total_cmp(&a.dead_share()).then(a.pack.cmp(&b.pack)));
        let mut left: u64 = packs.iter().map(|one| one.dead_bytes).sum();
        for one in packs {
            let enough = left as f64 <= self.stored_bytes as f64 * DEAD_SHARE_LEFT;
            if one.dead_share() < DEAD_SHARE_MIN && enough {
                continue;
            }
            left -= one.dead_bytes;
            self.reclaim_bytes += one.dead_bytes;
            self.copy_bytes += one.live_bytes;
            self.packs.push(one);
        }
        self.left_bytes += left;
    }
}

impl PackPlan {
    fn dead_share(&self) -> f64 {
        self.dead_bytes as f64 / (self.dead_bytes + self.live_bytes).max(1) as f64
    }
}

/// A group met in a pack that is being copied.
struct Root {
    /// Where it stood.
    offset: u32,
    /// Its frame, until it is copied.
    frame: Option<Waiting>,
}

/// A group that is copied once something in it or in one of its deltas turns out to be needed.
struct Waiting {
    header: Header,
    payload: Vec<u8>,
    chunks: Vec<Named>,
    /// What it was compressed with.
    dictionary: Option<Copies>,
}

/// Copies frames to the end of the store.
pub(super) struct Copier<'a, 'b> {
    collection: &'a Collection<'b>,
    frames: Frames,
    done: &'a mut GcDone,
}

impl<'a, 'b> Copier<'a, 'b> {
    pub(super) fn new(collection: &'a Collection<'b>, done: &'a mut GcDone) -> Copier<'a, 'b> {
        Copier { collection, frames: Frames::default(), done }
    }

    /// Copies a frame whose payload was verified, of a group with these chunks. A delta comes right behind its root, or another delta of
    /// it.
    fn copy(&mut self, header: &Header, payload: &[u8], chunks: &[Named]) -> Result<(), StoreError> {
        if self.frames.bytes.len() >= COPY_BYTES && header.kind != Kind::Delta as u8 {
            self.flush()?;
        }
        self.frames.frame(header, payload, chunks.iter().copied());
        Ok(())
    }

    /// Says that the frame that was copied last needs a dictionary of its pack; false if none of its copies verifies.
    fn need(&mut self, file: &dyn crate::env::DiskFile, pack: u32, copies: &Copies) -> bool {
        let reader = &self.collection.store.reader;
        let found = reader.dictionaries.get(&reader.packs, file, pack, copies);
        found.map(|dictionary| self.frames.need(&dictionary)).is_ok()
    }

    /// Copies a chunk out of a group; false if it does not verify.
    fn copy_out(&mut self, file: &dyn crate::env::DiskFile, entry: Entry) -> Result<bool, StoreError> {
        let store = self.collection.store;
        let (packs, Address { pack, offset, raw_len, .. }) = (&store.reader.packs, entry.address);
        let dictionaries = &store.reader.dictionaries;
        let Ok(group) = Group::read(packs, file, pack, offset, dictionaries) else { return Ok(false) };
        let Ok(chunk) = group.chunk(entry.key.id(), raw_len) else { return Ok(false) };
        if blake3::hash(chunk).as_bytes() != entry.key.id() {
            return Ok(false);
        }
        let compressor = Compressor::new(store.options.zstd_level);
        let mut compressor = compressor.map_err(|e| StoreError::io("start zstd for", &packs.dir, e))?;
        let kind = if entry.key.recipe_id().is_some() { Kind::Recipe } else { Kind::Chunk };
        let header = frame::build(&mut self.frames.bytes, kind, *entry.key.id(), chunk, &mut compressor);
        self.frames.headers.push(header);
        Ok(true)
    }

    /// Reads, verifies and copies one frame; false if it does not verify.
    fn copy_from(&mut self, file: &dyn crate::env::DiskFile, entry: Entry) -> Result<bool, StoreError> {
        let packs = &self.collection.store.reader.packs;
        let mut bytes = vec![0; HEADER_BYTES + entry.address.stored_len as usize];
        let read = file.read_exact_at(&mut bytes, u64::from(entry.address.offset));
        let place = packs.place(entry.address.pack, entry.address.offset);
        let header = read.ok().and_then(|()| Header::parse(&bytes, place).ok());
        match header {
            Some(header) if header.is_group() => self.copy_out(file, entry),
            Some(header) if header.key() == entry.key && header.decode(&bytes[HEADER_BYTES..]).is_ok() => {
                self.copy(&header, &bytes[HEADER_BYTES..], &[])?;
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    pub(super) fn flush(&mut self) -> Result<(), StoreError> {
        if self.frames.headers.is_empty() {
            return Ok(());
        }
        self.done.copied_bytes += self.frames.bytes.len() as u64;
        let moved = self.collection.store.append_moved(&mut self.frames);
        self.frames.clear();
        moved
    }
}
