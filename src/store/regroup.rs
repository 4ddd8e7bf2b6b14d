//! Regrouping: chunks that resemble each other move into groups, so that they compress together.
//!
//! ```text
//! plan:  packs that have chunks outside of groups            plan_regroup(): changes nothing
//! round: some packs at a time. What cannot be grouped is copied as a collection of garbage copies it.
//!        A chunk like one before it becomes a delta of that one's group, all others become roots in their order,
//!        compressed with a dictionary of what they have in common, if a trial shows that this saves more than it takes;
//!        or, of long groups, all are lined up by what they resemble (super::solid); recipes go into groups too;
//!        all of it -> end of the store -> fsync -> every chunk is read again and hashed -> the packs are retired, removed
//! ```
//!
//! What must always be true: a pack is removed only when everything in it that the index leads to stands elsewhere,
//! durable, and what was grouped has been read back from there with the hash that names it. Nothing here decides what is
//! needed: whatever the index leads to is kept, and packs of which something unreadable may need a part are left. A crash leaves the packs, or their copies, or both, as it does during a
//! collection, and the next run goes on with what is not grouped yet.
//!
//! Memory: some 1.2 KiB for each chunk of a round, which has 64 Ki chunks and 1 GiB of them at most but always one pack; 16 MiB
//! of chunks; one group with its deltas; 11 MiB and as much again while a dictionary is trained. Time: each chunk is read twice, tried once or twice at the fastest level, compressed once.
//! Disk: a round's groups, before its packs go.

use super::append::Frames;
use super::archive::{Loose, Piece};
use super::dictionary::{Dictionary, Encoder};
use super::error::{Object, StoreError};
use super::features::features;
use super::frame::{CODEC_ZSTD, HEADER_BYTES, Key, Kind};
use super::gathered::{Gathered, With, compress};
use super::gc::{Collection, Copier, GcDone, GoOn, index_may_fail};
use super::group::Group;
use super::group_table::MEMBERS_MAX;
use super::index::Grouping;
use super::inflater::Inflater;
use super::live::LiveSet;
use super::pack::{Address, Entry, GROUPED};
use super::read::ByBytes;
use super::{Bytes, Store, lock, recipe_groups, solid};
use crate::id::ChunkId;
use quick_cache::sync::Cache;
use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, PoisonError};

/// A pack is rewritten if chunks that can be grouped are at least one part in so many of it.
const WORTH_SHARE: u64 = 8;
/// A round ends with the pack in which it comes to so many chunks, or decoded bytes of them.
const ROUND_CHUNKS: u64 = 64 << 10;
const ROUND_BYTES: u64 = 1 << 30;
/// A delta has to be smaller than so many hundredths of what its chunk took.
const DELTA_SHARE_MAX: u64 = 60;
/// A group of longer chunks may be twice as long as groups are, but no more than so many times its shortest chunk: what a read
/// of that one took by itself bounds what it takes now.
const SHORTEST_TIMES: u64 = 4;
/// Deltas of one group have so many decoded bytes at most, or so many times those of a group.
const DELTAS_BYTES_MAX: u64 = 4 << 20;
const DELTAS_GROUPS_MAX: u64 = 8;
/// Decoded chunks kept, because others may be compared with them.
const BASES_BYTES: u64 = 16 << 20;
/// Solid groups are compressed by LZMA from this level of zstd on.
const LZMA_LEVEL_MIN: i32 = 19;
/// Larger groups have enough in common within themselves.
const DICTIONARY_GROUP_BYTES_MAX: u32 = 64 << 10;
/// Groups on which a dictionary is tried; it has to save so many times what it takes.
const TRIALS: usize = 64;
const DICTIONARY_GAIN_MIN: u64 = 2;
/// Frames are appended when there are so many bytes of them.
const APPEND_BYTES: usize = 1 << 20;
/// What a dry run looks at.
const SAMPLE_BYTES: u64 = 256 << 20;

/// How chunks are grouped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegroupOptions {
    /// Level of zstd, 1 to 22. Solid groups are compressed by LZMA from 19 on.
    pub level: i32,
    /// Groups have no more decoded bytes than this, or one chunk; twice as many if that is no more than four times the
    /// shortest. A read decodes a group, or a delta and its group.
    pub group_bytes: u32,
    /// What pieces of archives inflate to has no more bytes than this; 0: they are left as they are. A read of a chunk
    /// of one deflates all of the piece again.
    pub archive_bytes: u32,
    /// Whether groups need nothing else and tell no names: smaller where they are so long that what is alike meets within them.
    pub solid: bool,
}

impl RegroupOptions {
    /// With solid groups above 1 MiB.
    pub fn new(level: i32, group_bytes: u32, archive_bytes: u32) -> RegroupOptions {
        RegroupOptions { level, group_bytes, archive_bytes, solid: group_bytes > solid::GROUP_BYTES_MIN }
    }

    /// Whether a group is as small as can be, however long it takes to be decoded.
    fn is_lzma(&self) -> bool {
        self.solid && self.level >= LZMA_LEVEL_MIN
    }

    /// Whether chunks that come to so many bytes may be a group.
    fn are_one(&self, bytes: u64, shortest: u64) -> bool {
        let most = u64::from(self.group_bytes);
        bytes <= most || bytes <= (2 * most).min(SHORTEST_TIMES * shortest)
    }

    /// As small as it gets, for what is hardly read.
    pub fn cold() -> RegroupOptions {
        RegroupOptions::new(19, 16 << 20, 4 << 20)
    }
}

/// For what is read as it was before.
impl Default for RegroupOptions {
    fn default() -> Self {
        RegroupOptions::new(15, 16 << 10, 0)
    }
}

/// A pack with chunks that can be grouped. Sizes in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Candidate {
    pack: u32,
    /// On disk.
    live_bytes: u64,
    chunks: u64,
    /// Decoded, of those chunks.
    raw_bytes: u64,
    /// On disk, of their frames.
    frame_bytes: u64,
}

/// What there is to group. Sizes in bytes on disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RegroupPlan {
    packs: Vec<Candidate>,
    /// Packs in all.
    pub stored_bytes: u64,
    /// Chunks that can be grouped, in packs that it pays to rewrite.
    pub chunks: u64,
    /// What they take now.
    pub frame_bytes: u64,
    /// Decoded, they are so long.
    pub raw_bytes: u64,
}

impl RegroupPlan {
    /// Packs to be rewritten.
    pub fn packs(&self) -> u64 {
        self.packs.len() as u64
    }

    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.packs.is_empty()
    }
}

/// What was grouped. Sizes in bytes on disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Regrouped {
    /// Chunks grouped.
    pub chunks: u64,
    /// Of them such as are deltas of others.
    pub deltas: u64,
    /// Of them such as are stored as what deflate streams in them inflate to.
    pub inflated: u64,
    /// Frames made of them.
    pub groups: u64,
    /// What they took before.
    pub before_bytes: u64,
    /// What they take now.
    pub after_bytes: u64,
    /// Packs removed.
    pub packs_removed: u64,
    /// Packs left as they are because of damage.
    pub packs_damaged: u64,
    /// Whether it was stopped before the end.
    pub stopped: bool,
}

/// Chunks that are going to stand together, by their number in the round.
#[derive(Default)]
pub(super) struct Unit {
    pub(super) roots: Vec<u32>,
    deltas: Vec<u32>,
    pub(super) root_bytes: u64,
    /// Bytes of the shortest root.
    shortest: u64,
    delta_bytes: u64,
}

impl Unit {
    pub(super) fn add_root(&mut self, number: u32, len: u64) {
        self.shortest = if self.roots.is_empty() { len } else { self.shortest.min(len) };
        self.roots.push(number);
        self.root_bytes += len;
    }
}

impl Store {
    /// Looks at every pack for chunks that are not in groups. Changes nothing; `None` if `go_on` said no.
    pub fn plan_regroup(
        self: &Arc<Self>,
        options: &RegroupOptions,
        go_on: GoOn<'_>,
    ) -> Result<Option<RegroupPlan>, StoreError> {
        let collection = self.keep_everything()?;
        let mut plan = RegroupPlan { stored_bytes: self.stats().stored_bytes, ..RegroupPlan::default() };
        let mut done = 0;
        let left = *lock(&self.left);
        for pack in self.reader.packs.list()?.into_iter().filter(|pack| Some(*pack) > left) {
            let Some((mut entries, len)) = collection.entries(pack)? else { continue };
            let live_bytes = collection.weigh(pack, &mut entries)?.live_bytes;
            let mut chunks = collection.loose_chunks(&mut entries)?;
            let pieces =
                self.pieces(&[entries], options, &mut || go_on(done, plan.stored_bytes.max(done)))?;
            let Some(pieces) = pieces else { return Ok(None) };
            add_chunks(&mut chunks, &pieces);
            let sum = |bytes: fn(&Entry) -> u64| chunks.iter().map(bytes).sum();
            let one = Candidate {
                pack,
                live_bytes,
                chunks: chunks.len() as u64,
                raw_bytes: sum(|entry| u64::from(entry.address.raw_len)),
                frame_bytes: sum(frame_bytes),
            };
            if one.chunks > 0 && one.frame_bytes >= live_bytes / WORTH_SHARE {
                plan.chunks += one.chunks;
                plan.raw_bytes += one.raw_bytes;
                plan.frame_bytes += one.frame_bytes;
                plan.packs.push(one);
            }
            done += len;
            if !go_on(done, plan.stored_bytes.max(done)) {
                return Ok(None);
            }
        }
        Ok(Some(plan))
    }

    /// Tells from a sample of the packs in a plan, at most 256 MiB of decoded chunks, what carrying it out would come to:
    /// exactly if there are no more. Changes nothing; `None` if `go_on` said no.
    pub fn predict_regroup(
        self: &Arc<Self>,
        plan: &RegroupPlan,
        options: &RegroupOptions,
        go_on: GoOn<'_>,
    ) -> Result<Option<Regrouped>, StoreError> {
        let collection = self.keep_everything()?;
        let share = (plan.raw_bytes.div_ceil(SAMPLE_BYTES)).max(1) as usize;
        let mut sampled = Regrouped::default();
        for round in rounds(plan.packs.iter().step_by(share).copied().collect(), u64::MAX) {
            let (mut chunks, mut listed) = (Vec::new(), Vec::new());
            for one in &round {
                if let Some((mut entries, _)) = collection.entries(one.pack)? {
                    chunks.extend(collection.loose_chunks(&mut entries)?);
                    listed.push(entries);
                }
            }
            let total = plan.raw_bytes / share as u64 * 2;
            let pieces = self.pieces(&listed, options, &mut || go_on(0, total))?;
            let Some(pieces) = pieces else { return Ok(None) };
            add_chunks(&mut chunks, &pieces);
            let mut group = |bytes| go_on(bytes, total);
            if !self.group(chunks, &pieces, options, &mut sampled, &mut group, &mut |_| Ok(()))? {
                return Ok(None);
            }
        }
        // Of an archive that lies in several packs more is known once they are looked at together.
        if share == 1 {
            return Ok(Some(Regrouped { packs_removed: plan.packs(), ..sampled }));
        }
        let scale = |count: u64| match sampled.before_bytes {
            0 => 0,
            before => (count as f64 * plan.frame_bytes as f64 / before as f64) as u64,
        };
        Ok(Some(Regrouped {
            chunks: plan.chunks,
            deltas: scale(sampled.deltas),
            inflated: scale(sampled.inflated),
            groups: scale(sampled.groups),
            before_bytes: plan.frame_bytes,
            after_bytes: scale(sampled.after_bytes),
            packs_removed: plan.packs(),
            ..Regrouped::default()
        }))
    }

    /// Carries out a plan, round by round; ends early, in good order, when `go_on` says no. What a round that was
    /// stopped has copied is used, and the packs that it was copied from are garbage in part.
    pub fn regroup(
        self: &Arc<Self>,
        plan: &RegroupPlan,
        options: &RegroupOptions,
        go_on: GoOn<'_>,
    ) -> Result<Regrouped, StoreError> {
        let mut done = Regrouped::default();
        let collection = self.keep_everything()?;
        // A collection of garbage may have taken some since, or found that something may need them.
        let left = *lock(&self.left);
        let has = |one: &&Candidate| self.reader.packs.has(one.pack) && Some(one.pack) > left;
        let packs: Vec<Candidate> = plan.packs.iter().filter(has).copied().collect();
        let Some(newest) = packs.iter().map(|one| one.pack).max() else { return Ok(done) };
        self.reserve.give_up_if_short();
        index_may_fail(self.note_removing(packs.iter().map(|one| one.pack)))?;
        let result = self.appender.begin_pack_after(newest, GROUPED).and_then(|()| {
            let (mut at, total) = (0, 2 * packs.iter().map(|one| one.raw_bytes).sum::<u64>());
            for round in rounds(packs.clone(), self.free_bytes()) {
                let bytes: u64 = round.iter().map(|one| one.raw_bytes).sum();
                self.regroup_round(&collection, &round, options, &mut done, &mut |more| {
                    go_on(at + more, total)
                })?;
                at += 2 * bytes;
                if done.stopped {
                    break;
                }
            }
            // What groups do not tell the footer does: else all of them were decoded when the store is opened.
            self.end_pack()?;
            index_may_fail(self.persist())
        });
        packs.iter().for_each(|one| collection.close(one.pack));
        self.reserve.take();
        result.map(|()| done)
    }

    fn regroup_round(
        self: &Arc<Self>,
        collection: &Collection<'_>,
        round: &[Candidate],
        options: &RegroupOptions,
        done: &mut Regrouped,
        go_on: &mut dyn FnMut(u64) -> bool,
    ) -> Result<(), StoreError> {
        let needed = round.iter().map(|one| one.live_bytes).sum();
        if self.free_bytes() < needed {
            return Err(StoreError::Full { path: self.reader.packs.dir.clone() });
        }
        let mut listed = Vec::new();
        for one in round {
            if let Some((mut entries, _)) = collection.entries(one.pack)? {
                entries.sort_unstable_by_key(|entry| entry.address.offset);
                listed.push(entries);
            }
        }
        let Some(mut pieces) = self.pieces(&listed, options, &mut || go_on(0))? else {
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
        // Of a pack that has to stay nothing moves.
        let taken: HashSet<(Key, u32)> = chunks.iter().map(|entry| (entry.key, entry.address.pack)).collect();
        pieces.retain(|piece| {
            piece.chunks.iter().all(|entry| taken.contains(&(entry.key, entry.address.pack)))
        });
        drop(taken);
        let mut append = |frames: &mut Frames| self.append_moved(frames);
        let whole = self.group(chunks.clone(), &pieces, options, done, go_on, &mut append)?;
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

    /// The pieces of archives in packs that list these entries, sorted by offset; `None` if `go_on` said no.
    fn pieces(
        &self,
        listed: &[Vec<Entry>],
        options: &RegroupOptions,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<Option<Vec<Piece>>, StoreError> {
        if options.archive_bytes == 0 {
            return Ok(Some(Vec::new()));
        }
        let mut loose = Loose::default();
        listed.iter().for_each(|entries| loose.add(entries));
        loose.pieces(&self.reader, options.archive_bytes, go_on)
    }

    /// Groups chunks, those of pieces by what they inflate to if that saves; false if `go_on`, told decoded bytes, each
    /// counted twice, said no.
    fn group(
        &self,
        mut chunks: Vec<Entry>,
        pieces: &[Piece],
        options: &RegroupOptions,
        done: &mut Regrouped,
        go_on: &mut dyn FnMut(u64) -> bool,
        append: &mut dyn FnMut(&mut Frames) -> Result<(), StoreError>,
    ) -> Result<bool, StoreError> {
        let stored = Inflater::new(self, options, pieces, &mut *done).run(go_on, append)?;
        let Some(stored) = stored else { return Ok(false) };
        chunks.retain(|entry| !stored.contains(&entry.key));
        let mut grouper = Grouper { store: self, options, chunks: &chunks, bases: bases(), done };
        grouper.run(go_on, append)
    }

    /// What grouping came to since the index was made; of chunks that are gone meanwhile too.
    pub fn grouping(&self) -> Result<Grouping, StoreError> {
        self.reader.index.grouping()
    }

    /// A collection to which everything is needed that the index leads to.
    fn keep_everything(self: &Arc<Self>) -> Result<Collection<'_>, StoreError> {
        self.appender.check()?;
        let one = self.collecting.lock().unwrap_or_else(PoisonError::into_inner);
        index_may_fail(self.forget_removed())?;
        let live = Arc::new(LiveSet::everything());
        *self.reader.gate_mut() = Some(live.clone());
        Ok(Collection { store: self, live, left: Cell::new(None), _one: one })
    }

    /// Reads each chunk or recipe from the disk where the index leads to now, which is no longer where it was, and hashes it.
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
        // Each group is decoded once, whatever the order in which its chunks were stored.
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
                // It was stored by itself meanwhile, or this says what is wrong with it.
                reader.reread(&object)?;
            }
        }
        Ok(())
    }

    /// Room on the filesystem of the packs; without end where it cannot be told.
    fn free_bytes(&self) -> u64 {
        rustix::fs::statvfs(&self.reader.packs.dir).map_or(u64::MAX, |space| space.f_bavail * space.f_frsize)
    }
}

impl Collection<'_> {
    /// The chunks that can be grouped: each has a frame of its own, and compressing it was of use.
    fn loose_chunks(&self, entries: &mut [Entry]) -> Result<Vec<Entry>, StoreError> {
        entries.sort_unstable_by_key(|entry| entry.address.offset);
        let mut found = Vec::new();
        for frame in entries.chunk_by(|a, b| a.address.offset == b.address.offset) {
            if let [entry] = frame
                && entry.key.chunk_id().is_some()
                && entry.address.stored_len < entry.address.raw_len
                && self.is_needed(entry)?
            {
                found.push(*entry);
            }
        }
        Ok(found)
    }
}

fn keys(pieces: &[Piece]) -> impl Iterator<Item = Key> {
    pieces.iter().flat_map(|piece| &piece.chunks).map(|entry| entry.key)
}

/// Adds those chunks of pieces that are not among `chunks`.
fn add_chunks(chunks: &mut Vec<Entry>, pieces: &[Piece]) {
    let known: HashSet<Key> = chunks.iter().map(|entry| entry.key).collect();
    let others = pieces.iter().flat_map(|piece| &piece.chunks);
    chunks.extend(others.filter(|entry| !known.contains(&entry.key)));
}

pub(super) fn frame_bytes(entry: &Entry) -> u64 {
    HEADER_BYTES as u64 + u64::from(entry.address.stored_len)
}

fn bases() -> Cache<ChunkId, Bytes, ByBytes> {
    Cache::with_weighter((BASES_BYTES / (16 << 10)) as usize, BASES_BYTES, ByBytes)
}

/// Packs in rounds that are within their bounds, and take no more than half of the room that is free.
fn rounds(packs: Vec<Candidate>, free_bytes: u64) -> Vec<Vec<Candidate>> {
    let mut rounds: Vec<Vec<Candidate>> = Vec::new();
    let (mut chunks, mut raw, mut live) = (0, 0, 0);
    for one in packs {
        (chunks, raw, live) = (chunks + one.chunks, raw + one.raw_bytes, live + one.live_bytes);
        let full = chunks > ROUND_CHUNKS || raw > ROUND_BYTES || live > free_bytes / 2;
        match rounds.last_mut() {
            Some(round) if !full => round.push(one),
            _ => {
                (chunks, raw, live) = (one.chunks, one.raw_bytes, one.live_bytes);
                rounds.push(vec![one]);
            }
        }
    }
    rounds
}

/// Every so many units.
fn spread(units: &[Unit], step: usize) -> impl Iterator<Item = &Unit> {
    units.iter().step_by(step)
}

/// Groups the chunks of a round.
pub(super) struct Grouper<'a> {
    store: &'a Store,
    pub(super) options: &'a RegroupOptions,
    pub(super) chunks: &'a [Entry],
    /// Decoded chunks that were compared with others lately.
    bases: Cache<ChunkId, Bytes, ByBytes>,
    done: &'a mut Regrouped,
}

impl Grouper<'_> {
    /// Hands frames to `append`; false if `go_on`, told decoded bytes, each counted twice, said no.
    fn run(
        &mut self,
        go_on: &mut dyn FnMut(u64) -> bool,
        append: &mut dyn FnMut(&mut Frames) -> Result<(), StoreError>,
    ) -> Result<bool, StoreError> {
        let mut at = 0;
        let units = match self.options.solid {
            true => self.line_up(&mut at, go_on)?,
            false => self.assign(&mut at, go_on)?,
        };
        let Some(units) = units else { return Ok(false) };
        let dictionary = self.dictionary(&units)?;
        let mut frames = Frames::default();
        for unit in &units {
            self.build(unit, &mut frames, dictionary.as_ref())?;
            at += unit.root_bytes + unit.delta_bytes;
            let go = go_on(at);
            if frames.bytes.len() >= APPEND_BYTES || !go {
                append(&mut frames)?;
                frames.clear();
            }
            if !go {
                return Ok(false);
            }
        }
        append(&mut frames)?;
        self.done.after_bytes += dictionary.map_or(0, |(dictionary, _)| dictionary.copies_len());
        Ok(true)
    }

    /// A dictionary for the roots, if one is worth it.
    fn dictionary(&mut self, units: &[Unit]) -> Result<Option<(Arc<Dictionary>, Encoder)>, StoreError> {
        if self.options.group_bytes > DICTIONARY_GROUP_BYTES_MAX {
            return Ok(None);
        }
        let roots: u64 = units.iter().map(|unit| unit.root_bytes).sum();
        let Some((samples_len, len)) = Dictionary::wanted(roots) else { return Ok(None) };
        let mut samples = Vec::new();
        let mut sizes = Vec::new();
        for unit in spread(units, (roots / samples_len as u64).max(1) as usize) {
            for number in &unit.roots {
                let bytes = self.read(&self.chunks[*number as usize])?;
                samples.extend_from_slice(&bytes);
                sizes.push(bytes.len());
            }
        }
        let Some(dictionary) = Dictionary::train(&samples, &sizes, len) else { return Ok(None) };
        drop(samples);
        let encoder = dictionary.encoder(self.options.level);
        let (mut raw, mut without, mut with) = (0, 0, 0);
        for unit in spread(units, (units.len() / TRIALS).max(1)) {
            let mut group = Vec::new();
            for number in &unit.roots {
                group.extend_from_slice(&self.read(&self.chunks[*number as usize])?);
            }
            raw += group.len() as u64;
            without += compress(&group, self.options.level, None).len() as u64;
            with += encoder.compress(&group).len() as u64;
        }
        let saved = u128::from(without.saturating_sub(with)) * u128::from(roots) / u128::from(raw.max(1));
        let pays = saved > u128::from(DICTIONARY_GAIN_MIN * dictionary.copies_len());
        Ok(pays.then(|| (Arc::new(dictionary), encoder)))
    }

    /// Decides which chunks become roots, in their order, and which deltas of which of them.
    fn assign(
        &mut self,
        at: &mut u64,
        go_on: &mut dyn FnMut(u64) -> bool,
    ) -> Result<Option<Vec<Unit>>, StoreError> {
        let group_bytes = u64::from(self.options.group_bytes);
        let deltas_max = DELTAS_BYTES_MAX.max(DELTAS_GROUPS_MAX * group_bytes);
        let mut units: Vec<Unit> = Vec::new();
        // Of each chunk that is a root, its unit.
        let mut unit_of = vec![u32::MAX; self.chunks.len()];
        // Of each feature the last root that has it: the newest version of something is the likeliest to be alike.
        let mut root_with: HashMap<u32, u32> = HashMap::new();
        for (number, entry) in self.chunks.iter().enumerate() {
            let bytes = self.read(entry)?;
            let len = bytes.len() as u64;
            let features = features(&bytes);
            let base = most_shared(&features, &root_with, 1);
            let fits = |unit: &Unit| unit.delta_bytes + len <= deltas_max;
            let unit = base.map(|base| (base, unit_of[base as usize] as usize));
            match unit.filter(|(_, unit)| fits(&units[*unit])) {
                Some((base, unit)) if self.pays(entry, &bytes, base)? => {
                    units[unit].deltas.push(number as u32);
                    units[unit].delta_bytes += len;
                }
                _ => {
                    let room = |unit: &Unit| {
                        self.options.are_one(unit.root_bytes + len, unit.shortest.min(len))
                            && unit.roots.len() < MEMBERS_MAX
                    };
                    if !units.last().is_some_and(room) {
                        units.push(Unit::default());
                    }
                    unit_of[number] = units.len() as u32 - 1;
                    let unit = units.last_mut().expect("there is one now");
                    unit.add_root(number as u32, len);
                    root_with.extend(features.into_iter().map(|feature| (feature, number as u32)));
                }
            }
            *at += len;
            if number % 64 == 0 && !go_on(*at) {
                return Ok(None);
            }
        }
        Ok(Some(units))
    }

    /// Whether a chunk is really smaller as a delta of another.
    fn pays(&self, entry: &Entry, bytes: &[u8], base: u32) -> Result<bool, StoreError> {
        let base = &self.chunks[base as usize];
        let id = ChunkId(*base.key.id());
        let base = match self.bases.get(&id) {
            Some(bytes) => bytes,
            None => {
                let bytes = self.read(base)?;
                self.bases.insert(id, bytes.clone());
                bytes
            }
        };
        let tried = compress(bytes, 1, Some(&base)).len() as u64;
        Ok(tried * 100 < u64::from(entry.address.stored_len) * DELTA_SHARE_MAX)
    }

    /// Makes the frames of a unit.
    fn build(
        &mut self,
        unit: &Unit,
        frames: &mut Frames,
        dictionary: Option<&(Arc<Dictionary>, Encoder)>,
    ) -> Result<(), StoreError> {
        let level = self.options.level;
        let before = (frames.bytes.len(), frames.headers.len());
        let mut root = Gathered::unnamed(Kind::Chunk);
        for number in &unit.roots {
            self.gather(*number, &mut root)?;
        }
        let alone = if self.options.is_lzma() { With::Lzma } else { With::Nothing(level) };
        let with = dictionary.map_or(alone, |(_, encoder)| With::Dictionary(encoder));
        frames.group(&root, with);
        dictionary.into_iter().for_each(|(dictionary, _)| frames.need(dictionary));
        let mut delta = Gathered::unnamed(Kind::Chunk);
        for number in &unit.deltas {
            let len = self.chunks[*number as usize].address.raw_len as usize;
            if !delta.has_room(len, |bytes, shortest| self.options.are_one(bytes, shortest)) {
                frames.group(&delta, With::Root(&root, level));
                delta.clear();
            }
            self.gather(*number, &mut delta)?;
        }
        if !delta.is_empty() {
            frames.group(&delta, With::Root(&root, level));
        }
        self.done.chunks += (unit.roots.len() + unit.deltas.len()) as u64;
        self.done.deltas += unit.deltas.len() as u64;
        self.done.groups += (frames.headers.len() - before.1) as u64;
        self.done.after_bytes += (frames.bytes.len() - before.0) as u64;
        Ok(())
    }

    fn gather(&mut self, number: u32, into: &mut Gathered) -> Result<(), StoreError> {
        let entry = &self.chunks[number as usize];
        self.done.before_bytes += frame_bytes(entry);
        into.push(&ChunkId(*entry.key.id()), &self.read(entry)?);
        Ok(())
    }

    /// A chunk from its old place, hashed: a group must not make wrong bytes look right.
    pub(super) fn read(&self, entry: &Entry) -> Result<Bytes, StoreError> {
        let Entry { key, address } = entry;
        let bytes = self.store.reader.at(*key, address)?;
        match blake3::hash(&bytes).as_bytes() == key.id() {
            true => Ok(bytes),
            false => Err(self.store.reader.unlike_its_name(*key, address)),
        }
    }
}

/// The root that shares the most features with a chunk, and at least so many; of several the last.
pub(super) fn most_shared(features: &[u32], root_with: &HashMap<u32, u32>, least: usize) -> Option<u32> {
    let mut roots: Vec<u32> = features.iter().filter_map(|feature| root_with.get(feature)).copied().collect();
    roots.sort_unstable();
    let runs = roots.chunk_by(|a, b| a == b).filter(|run| run.len() >= least);
    runs.max_by_key(|run| (run.len(), run[0])).map(|run| run[0])
}
