//! The plan of a regrouping, and a prediction of its result.

use super::options::RegroupOptions;
use super::regrouped::Regrouped;
use crate::store::Store;
use crate::store::archive::Piece;
use crate::store::entry::Entry;
use crate::store::error::StoreError;
use crate::store::frame::Key;
use crate::store::gc::{Collection, KeepGoing};
use crate::store::lock::lock;
use std::collections::HashSet;
use std::sync::Arc;

/// A pack is rewritten if at least one part in this many of it can be grouped.
const WORTH_SHARE: u64 = 8;
/// A round ends with the pack that reaches this many chunks, or decoded bytes.
const ROUND_CHUNKS: u64 = 64 << 10;
const ROUND_BYTES: u64 = 1 << 30;
/// Sample size of a dry run.
const SAMPLE_BYTES: u64 = 256 << 20;

/// A pack with chunks that can be grouped. Sizes in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Candidate {
    pub(super) pack: u32,
    /// On disk.
    pub(super) live_bytes: u64,
    chunks: u64,
    /// Decoded bytes of those chunks.
    pub(super) raw_bytes: u64,
    /// Bytes of their frames on disk.
    frame_bytes: u64,
}

/// Everything that can be grouped. Sizes in bytes on disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RegroupPlan {
    pub(super) packs: Vec<Candidate>,
    /// Bytes of all packs.
    pub stored_bytes: u64,
    /// Chunks that can be grouped, in packs that are worth rewriting.
    pub chunks: u64,
    /// Their bytes now.
    pub frame_bytes: u64,
    /// Their decoded bytes.
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

impl Store {
    /// Searches every pack for ungrouped chunks. Changes nothing; `None` if `keep_going` returned false.
    pub fn plan_regroup(
        self: &Arc<Self>,
        options: &RegroupOptions,
        keep_going: KeepGoing<'_>,
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
                self.pieces(&[entries], options, &mut || keep_going(done, plan.stored_bytes.max(done)))?;
            let Some(pieces) = pieces else { return Ok(None) };
            add_chunks(&mut chunks, &pieces);
            let sum = |bytes: fn(&Entry) -> u64| chunks.iter().map(bytes).sum();
            let one = Candidate {
                pack,
                live_bytes,
                chunks: chunks.len() as u64,
                raw_bytes: sum(|entry| u64::from(entry.address.raw_len)),
                frame_bytes: sum(Entry::frame_bytes),
            };
            if one.chunks > 0 && one.frame_bytes >= live_bytes / WORTH_SHARE {
                plan.chunks += one.chunks;
                plan.raw_bytes += one.raw_bytes;
                plan.frame_bytes += one.frame_bytes;
                plan.packs.push(one);
            }
            done += len;
            if !keep_going(done, plan.stored_bytes.max(done)) {
                return Ok(None);
            }
        }
        Ok(Some(plan))
    }

    /// Predicts the result of a plan from a sample of at most 256 MiB of decoded chunks; exact if there are
    /// no more. Changes nothing; `None` if `keep_going` returned false.
    pub fn predict_regroup(
        self: &Arc<Self>,
        plan: &RegroupPlan,
        options: &RegroupOptions,
        keep_going: KeepGoing<'_>,
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
            let pieces = self.pieces(&listed, options, &mut || keep_going(0, total))?;
            let Some(pieces) = pieces else { return Ok(None) };
            add_chunks(&mut chunks, &pieces);
            let mut group = |bytes| keep_going(bytes, total);
            if !self.group(chunks, &pieces, options, &mut sampled, &mut group, &mut |_| Ok(()))? {
                return Ok(None);
            }
        }
        // An archive that spans several packs is understood only when they are examined together.
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
}

impl Collection<'_> {
    /// Returns the chunks that can be grouped: each has its own frame, and compression helped.
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

/// Adds the chunks of pieces that are not in `chunks`.
fn add_chunks(chunks: &mut Vec<Entry>, pieces: &[Piece]) {
    let known: HashSet<Key> = chunks.iter().map(|entry| entry.key).collect();
    let others = pieces.iter().flat_map(|piece| &piece.chunks);
    chunks.extend(others.filter(|entry| !known.contains(&entry.key)));
}

/// Divides packs into rounds that respect the limits and take at most half of the free space.
pub(super) fn rounds(packs: Vec<Candidate>, free_bytes: u64) -> Vec<Vec<Candidate>> {
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
