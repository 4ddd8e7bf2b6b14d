//! The choice of packs that are worth rewriting.

use super::{Collection, KeepGoing};
use crate::env::Access;
use crate::store::entry::Entry;
use crate::store::error::StoreError;
use crate::store::footer::read_footer;
use crate::store::frame::{HEADER_BYTES, Kind};
use crate::store::pack::PACK_HEADER_BYTES;
use crate::store::scan::{Item, Scanner};

/// A pack is rewritten if at least this share of it is unneeded.
const DEAD_SHARE_MIN: f64 = 0.25;
/// More packs are rewritten, those with the most to gain first, until at most this share of all bytes is
/// unneeded.
const DEAD_SHARE_LEFT: f64 = 0.03;

/// One pack in a plan. Bytes on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store) struct PackPlan {
    pub(in crate::store) pack: u32,
    pub(in crate::store) live_bytes: u64,
    pub(in crate::store) dead_bytes: u64,
    /// Whether there are groups in it.
    pub(super) grouped: bool,
}

/// Effect of a collection. Sizes in bytes on disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GcPlan {
    pub(super) packs: Vec<PackPlan>,
    /// Bytes of all packs.
    pub stored_bytes: u64,
    /// Bytes of unneeded frames in packs to rewrite or remove.
    pub reclaim_bytes: u64,
    /// Bytes of frames to copy.
    pub copy_bytes: u64,
    /// Unneeded bytes that stay, because copying their neighbours does not pay, or because their pack is
    /// damaged.
    pub left_bytes: u64,
}

impl Collection<'_> {
    /// Examines every pack. Changes nothing.
    pub fn plan(&self, keep_going: KeepGoing<'_>) -> Result<Option<GcPlan>, StoreError> {
        let packs = &self.store.reader.packs;
        let mut plan = GcPlan { stored_bytes: self.store.stats().stored_bytes, ..GcPlan::default() };
        let mut all = Vec::new();
        let mut done = 0;
        for pack in packs.list()? {
            let Some((mut entries, len)) = self.entries(pack)? else { continue };
            let one = self.weigh(pack, &mut entries)?;
            done += len;
            if !keep_going(done, plan.stored_bytes.max(done)) {
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

    /// Returns the frames of a pack and its length; `None` if it cannot be read, or is younger than this
    /// collection.
    pub(in crate::store) fn entries(&self, pack: u32) -> Result<Option<(Vec<Entry>, u64)>, StoreError> {
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

    /// Computes how much of a pack is needed.
    pub(in crate::store) fn weigh(&self, pack: u32, entries: &mut [Entry]) -> Result<PackPlan, StoreError> {
        let mut one = PackPlan { pack, live_bytes: 0, dead_bytes: 0, grouped: false };
        entries.sort_unstable_by_key(|entry| entry.address.offset);
        // A group that is unneeded so far; one of its deltas may still need it.
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

    /// Chooses packs to rewrite, those with the largest share to gain first.
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
