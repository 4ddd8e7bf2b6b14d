//! Solid groups: large ones that need nothing else, for what is hardly read.
//!
//! ```text
//! line up: chunks in their order, but each that resembles earlier ones behind the first of those
//! cut:     into groups as long as is wished
//! ```
//!
//! Names take a tenth of what is left then, so these groups do without ([`super::unnamed`]); recipes, which are a
//! frame each, go into groups of their own.
//!
//! What must always be true: every chunk of a round is in one group. Which it is decides sizes only.
//!
//! Memory: features of all chunks of a round, some 1.2 KiB for each of them, and then one group.

use super::Store;
use super::append::Frames;
use super::error::StoreError;
use super::features::features;
use super::frame::{Header, Kind};
use super::group::{Gathered, MEMBERS_MAX, With};
use super::pack::{Entry, PLAIN};
use super::regroup::{Grouper, Unit, most_shared};
use crate::id::ChunkId;
use std::collections::HashMap;

/// Groups above this are solid.
pub(super) const GROUP_BYTES_MIN: u32 = 1 << 20;

/// Groups of recipes have so many bytes at most: whoever looks a file up decodes one.
const RECIPES_BYTES: usize = 16 << 10;
/// A longer recipe stays as it is.
const RECIPE_BYTES_MAX: u32 = 4 << 10;

/// Whether a frame is a recipe that goes into a group.
pub(super) fn takes_recipe(header: &Header) -> bool {
    header.kind == Kind::Recipe as u8 && header.raw_len <= RECIPE_BYTES_MAX
}

impl Store {
    /// Appends recipes again, in groups.
    pub(super) fn group_recipes(&self, recipes: &[Entry], level: i32) -> Result<(), StoreError> {
        let mut frames = Frames::default();
        let mut group = Gathered::unnamed(Kind::Recipe);
        for Entry { key, address } in recipes {
            let bytes = self.reader.at(*key, address)?;
            if *blake3::hash(&bytes).as_bytes() != *key.id() {
                return Err(self.reader.unlike_its_name(*key, address));
            }
            if !group.has_room(bytes.len(), RECIPES_BYTES) {
                frames.headers.push(group.build(&mut frames.bytes, With::Nothing(level)));
                group.clear();
            }
            group.push(&ChunkId(*key.id()), &bytes);
        }
        if !group.is_empty() {
            frames.headers.push(group.build(&mut frames.bytes, With::Nothing(level)));
        }
        self.append_moved(&mut frames)
    }

    /// Seals the newest pack: without a footer all of its groups without names are decoded whenever the store is opened.
    pub(super) fn end_pack(&self) -> Result<(), StoreError> {
        let newest = self.appender.lock().position().pack;
        self.appender.begin_pack_after(newest, PLAIN)
    }
}

impl Grouper<'_> {
    /// Decides which chunks stand together, without deltas; `None` if `go_on` said no.
    pub(super) fn line_up(
        &mut self,
        at: &mut u64,
        go_on: &mut dyn FnMut(u64) -> bool,
    ) -> Result<Option<Vec<Unit>>, StoreError> {
        // Of each chunk the first that it resembles, or itself.
        let mut first_of: Vec<u32> = Vec::with_capacity(self.chunks.len());
        let mut last_with: HashMap<u32, u32> = HashMap::new();
        for (number, entry) in self.chunks.iter().enumerate() {
            let bytes = self.read(entry)?;
            let features = features(&bytes);
            let like = most_shared(&features, &last_with);
            first_of.push(like.map_or(number as u32, |like| first_of[like as usize]));
            last_with.extend(features.into_iter().map(|feature| (feature, number as u32)));
            *at += bytes.len() as u64;
            if number % 64 == 0 && !go_on(*at) {
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
