//! Regrouping: moves similar chunks into groups, so that they compress together.
//!
//! ```text
//! plan:  packs that have chunks outside of groups            plan_regroup(): changes nothing
//! round: some packs at a time. Frames that cannot be grouped are copied as in a garbage collection.
//!        A chunk similar to an earlier one becomes a delta of its group. All others become roots, in order,
//!        compressed with a dictionary if a trial shows that it saves more than it takes.
//!        Solid groups instead line up all chunks by similarity (`solid`). Recipes go into groups too.
//!        all of it -> end of the store -> fsync -> every chunk is read again and hashed -> the packs are retired, removed
//! ```
//!
//! Invariants:
//! - A pack is removed only when everything in it that the index points to is durable elsewhere, and every
//!   grouped chunk was read back with the right hash.
//! - Regrouping keeps everything that the index points to, and leaves garbage to gc. A pack stays if something
//!   unreadable may need a part of it.
//! - A crash leaves the packs, or their copies, or both, as during a garbage collection. The next run
//!   continues with the ungrouped chunks.
//!
//! Memory: about 1.2 KiB for each chunk of a round, which has at most 64 Ki chunks and 1 GiB but always at
//! least one pack; 16 MiB of chunks; one group with its deltas; 11 MiB, and twice that while a dictionary is
//! trained. Time: each chunk is read twice, tried once or twice at the fastest level, and compressed once.
//! Disk: a round's groups, before its packs are removed.

mod grouper;
mod inflater;
mod options;
mod plan;
mod regrouped;
mod solid;

pub use options::RegroupOptions;
pub use plan::RegroupPlan;
pub use regrouped::Regrouped;

use super::append::Frames;
use super::archive::{Loose, Piece};
use super::entry::{Address, Entry};
use super::error::{Object, StoreError};
use super::frame::{CODEC_ZSTD, Key, Kind};
use super::gc::{Collection, Copier, GcDone, KeepGoing, index_may_fail};
use super::group::Group;
use super::index::Grouping;
use super::live::LiveSet;
use super::lock::lock;
use super::pack::GROUPED;
use super::{Store, recipe_groups};
use crate::id::ChunkId;
use grouper::Grouper;
use inflater::Inflater;
use plan::{Candidate, rounds};
use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::sync::{Arc, PoisonError};

impl Store {
    /// Applies a plan, round by round; stops cleanly when `keep_going` returns false. The copies of a stopped
    /// round stay in use, and the packs that it copied from are partly garbage.
    pub fn regroup(
        self: &Arc<Self>,
        plan: &RegroupPlan,
        options: &RegroupOptions,
        keep_going: KeepGoing<'_>,
    ) -> Result<Regrouped, StoreError> {
        let mut done = Regrouped::default();
        let collection = self.keep_everything()?;
        // A garbage collection may have removed some since, or found that something may need them.
        let left = *lock(&self.left);
        let has = |one: &&Candidate| self.reader.packs.has(one.pack) && Some(one.pack) > left;
        let packs: Vec<Candidate> = plan.packs.iter().filter(has).copied().collect();
        let Some(newest) = packs.iter().map(|one| one.pack).max() else { return Ok(done) };
        collection.make_room();
        index_may_fail(self.note_removing(packs.iter().map(|one| one.pack)))?;
        let result = self.appender.begin_pack_after(newest, GROUPED).and_then(|()| {
            let (mut at, total) = (0, 2 * packs.iter().map(|one| one.raw_bytes).sum::<u64>());
            for round in rounds(packs.clone(), self.space().free) {
                let bytes: u64 = round.iter().map(|one| one.raw_bytes).sum();
                self.regroup_round(&collection, &round, options, &mut done, &mut |more| {
                    keep_going(at + more, total)
                })?;
                at += 2 * bytes;
                if done.stopped {
                    break;
                }
            }
            // Footers hold the names that groups lack; without them, opening the store decodes all groups.
            self.end_pack()?;
            index_may_fail(self.persist())
        });
        packs.iter().for_each(|one| collection.close(one.pack));
        result.map(|()| done)
    }

    fn regroup_round(
        self: &Arc<Self>,
        collection: &Collection<'_>,
        round: &[Candidate],
        options: &RegroupOptions,
        done: &mut Regrouped,
        keep_going: &mut dyn FnMut(u64) -> bool,
    ) -> Result<(), StoreError> {
        let needed = round.iter().map(|one| one.live_bytes).sum();
        if self.space().free < needed {
            return Err(StoreError::Full { path: self.reader.packs.dir.clone() });
        }
        let mut listed = Vec::new();
        for one in round {
            if let Some((mut entries, _)) = collection.entries(one.pack)? {
                entries.sort_unstable_by_key(|entry| entry.address.offset);
                listed.push(entries);
            }
        }
        let Some(mut pieces) = self.pieces(&listed, options, &mut || keep_going(0))? else {
            done.stopped = true;
            return Ok(());
        };
        drop(listed);
        let of_pieces: HashSet<Key> = keys(&pieces).collect();
        let mut copied = GcDone::default();
        let mut copier = Copier::new(collection, &mut copied);
        let (mut chunks, mut recipes): (Vec<Entry>, Vec<Entry>) = (Vec::new(), Vec::new());
        let mut rewritten = Vec::new();
        for one in round {
            let before = (chunks.len(), recipes.len());
            let dead = collection.copy_needed(one.pack, &mut copier, &mut |header, entry| {
                let takes = header.kind == Kind::Chunk as u8
                    && (header.codec == CODEC_ZSTD || of_pieces.contains(&entry.key));
                let takes_recipe = recipe_groups::takes(header);
                if takes {
                    chunks.push(*entry);
                } else if takes_recipe {
                    recipes.push(*entry);
                }
                takes || takes_recipe
            })?;
            match dead {
                Some(dead) => rewritten.push((one.pack, dead)),
                None => {
                    chunks.truncate(before.0);
                    recipes.truncate(before.1);
                    done.packs_damaged += 1;
                }
            }
        }
        copier.flush()?;
        let before = *done;
        // Nothing moves from a pack that must stay.
        let taken: HashSet<(Key, u32)> = chunks.iter().map(|entry| (entry.key, entry.address.pack)).collect();
        pieces.retain(|piece| {
            piece.chunks.iter().all(|entry| taken.contains(&(entry.key, entry.address.pack)))
        });
        drop(taken);
        let mut append = |frames: &mut Frames| self.append_moved(frames);
        let whole = self.group(chunks.clone(), &pieces, options, done, keep_going, &mut append)?;
        if whole {
            self.group_recipes(&recipes, options.level)?;
        }
        self.sync()?;
        if !whole {
            done.stopped = true;
            return Ok(());
        }
        self.read_back(&chunks)?;
        self.read_back(&recipes)?;
        let mut gone = Vec::new();
        for (pack, dead) in rewritten {
            match collection.retire(pack, dead, &mut copier)? {
                Some(keys) => {
                    collection.remove(pack)?;
                    done.packs_removed += 1;
                    gone.extend(keys);
                }
                None => done.packs_damaged += 1,
            }
        }
        collection.forget(&gone)?;
        index_may_fail(self.reader.index.add_grouping(Grouping {
            chunks: done.chunks - before.chunks,
            before_bytes: done.before_bytes - before.before_bytes,
            after_bytes: done.after_bytes - before.after_bytes,
        }))
    }

    /// Returns the pieces of archives in packs with these entries, sorted by offset; `None` if `keep_going`
    /// returned false.
    fn pieces(
        &self,
        listed: &[Vec<Entry>],
        options: &RegroupOptions,
        keep_going: &mut dyn FnMut() -> bool,
    ) -> Result<Option<Vec<Piece>>, StoreError> {
        if options.archive_bytes == 0 {
            return Ok(Some(Vec::new()));
        }
        let mut loose = Loose::default();
        listed.iter().for_each(|entries| loose.add(entries));
        loose.pieces(&self.reader, options.archive_bytes, keep_going)
    }

    /// Groups chunks, pieces inflated if that saves space; false if `keep_going` returned false. `keep_going` gets
    /// decoded bytes, each counted twice.
    fn group(
        &self,
        mut chunks: Vec<Entry>,
        pieces: &[Piece],
        options: &RegroupOptions,
        done: &mut Regrouped,
        keep_going: &mut dyn FnMut(u64) -> bool,
        append: &mut dyn FnMut(&mut Frames) -> Result<(), StoreError>,
    ) -> Result<bool, StoreError> {
        let stored = Inflater::new(self, options, pieces, &mut *done).run(keep_going, append)?;
        let Some(stored) = stored else { return Ok(false) };
        chunks.retain(|entry| !stored.contains(&entry.key));
        let mut grouper = Grouper::new(self, options, &chunks, done);
        grouper.run(keep_going, append)
    }

    /// Returns the total effect of grouping since the index was built, including chunks that are gone.
    pub fn grouping(&self) -> Result<Grouping, StoreError> {
        self.reader.index.grouping()
    }

    /// Starts a collection that needs everything the index points to.
    fn keep_everything(self: &Arc<Self>) -> Result<Collection<'_>, StoreError> {
        self.appender.check()?;
        let one = self.collecting.lock().unwrap_or_else(PoisonError::into_inner);
        index_may_fail(self.forget_removed())?;
        let live = Arc::new(LiveSet::everything());
        *self.reader.gate_mut() = Some(live.clone());
        Ok(Collection { store: self, live, left: Cell::new(None), room: RefCell::default(), _one: one })
    }

    /// Reads each chunk or recipe from its new location on disk, and checks its hash.
    fn read_back(&self, chunks: &[Entry]) -> Result<(), StoreError> {
        let reader = &self.reader;
        let object_of = |entry: &Entry| match entry.key.recipe_id() {
            Some(recipe) => Object::Recipe(recipe),
            None => Object::Chunk(ChunkId(*entry.key.id())),
        };
        let mut moved = Vec::with_capacity(chunks.len());
        for entry in chunks {
            let address = reader.index.find(&entry.key)?.filter(|now| *now != entry.address);
            moved.push((address.ok_or(StoreError::Missing { object: object_of(entry) })?, entry));
        }
        // Each group is decoded once, in any order of chunks.
        moved.sort_by_key(|(address, _)| (address.pack, address.offset));
        let mut last: Option<((u32, u32), Group)> = None;
        for (address, entry) in moved {
            let object = object_of(entry);
            let place = (address.pack, address.offset);
            if last.as_ref().is_none_or(|(at, _)| *at != place) {
                let file = reader.packs.file(address.pack);
                let read = file.ok().and_then(|file| {
                    let Address { pack, offset, .. } = address;
                    Group::read(&reader.packs, &*file, pack, offset, &reader.dictionaries).ok()
                });
                last = read.map(|group| (place, group));
            }
            let right = last.as_ref().is_some_and(|(_, group)| {
                group
                    .chunk(entry.key.id(), address.raw_len)
                    .is_ok_and(|bytes| blake3::hash(bytes).as_bytes() == entry.key.id())
            });
            if !right {
                // It was stored by itself meanwhile, or this reports its flaw.
                reader.reread(&object)?;
            }
        }
        Ok(())
    }
}

fn keys(pieces: &[Piece]) -> impl Iterator<Item = Key> {
    pieces.iter().flat_map(|piece| &piece.chunks).map(|entry| entry.key)
}
