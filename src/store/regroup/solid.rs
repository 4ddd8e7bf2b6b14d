//! Solid groups: large groups without a base, for rarely read data.
//!
//! ```text
//! line up: chunks in order, but each chunk moves behind the first earlier one that it resembles
//! cut:     into groups of the wanted length
//! ```
//!
//! Names would take a tenth of the result, so these groups have none ([`super::unnamed`]).
//!
//! Invariants: every chunk of a round is in one group. The choice only affects sizes.
//!
//! Memory: features of all chunks of a round, about 1.2 KiB each, and one group.

use super::grouper::{Grouper, Unit};
use crate::store::Store;
use crate::store::error::StoreError;
use crate::store::features::{features, most_shared};
use crate::store::member::MEMBERS_MAX;
use crate::store::pack::PLAIN;
use std::collections::HashMap;

/// Chunks are similar if they share this many of their 32 to 64 features. With fewer, chunks move away from
/// their neighbours for little saving, and sequential readers jump between groups.
const FEATURES_MIN: usize = 4;

impl Store {
    /// Seals the newest pack: without a footer, every open of the store decodes all of its unnamed groups.
    pub(super) fn end_pack(&self) -> Result<(), StoreError> {
        let newest = self.appender.lock().position().pack;
        self.appender.begin_pack_after(newest, PLAIN)
    }
}

impl Grouper<'_> {
    /// Decides which chunks share a group, without deltas; `None` if `keep_going` returned false.
    pub(super) fn line_up(
        &mut self,
        at: &mut u64,
        keep_going: &mut dyn FnMut(u64) -> bool,
    ) -> Result<Option<Vec<Unit>>, StoreError> {
        // For each chunk, the first one that it resembles, or itself.
        let mut first_of: Vec<u32> = Vec::with_capacity(self.chunks.len());
        let mut last_with: HashMap<u32, u32> = HashMap::new();
        for (number, entry) in self.chunks.iter().enumerate() {
            let bytes = self.read(entry)?;
            let features = features(&bytes);
            let like = most_shared(&features, &last_with, FEATURES_MIN);
            first_of.push(like.map_or(number as u32, |like| first_of[like as usize]));
            last_with.extend(features.into_iter().map(|feature| (feature, number as u32)));
            *at += bytes.len() as u64;
            if number % 64 == 0 && !keep_going(*at) {
                return Ok(None);
            }
        }
        let mut order: Vec<u32> = (0..self.chunks.len() as u32).collect();
        order.sort_by_key(|number| first_of[*number as usize]);
        Ok(Some(self.cut(&order)))
    }

    fn cut(&self, order: &[u32]) -> Vec<Unit> {
        let bytes_max = u64::from(self.options.group_bytes);
        let mut units: Vec<Unit> = Vec::new();
        for &number in order {
            let len = u64::from(self.chunks[number as usize].address.raw_len);
            let room = |unit: &Unit| unit.root_bytes + len <= bytes_max && unit.roots.len() < MEMBERS_MAX;
            if !units.last().is_some_and(room) {
                units.push(Unit::default());
            }
            units.last_mut().expect("there is one now").add_root(number, len);
        }
        units
    }
}
