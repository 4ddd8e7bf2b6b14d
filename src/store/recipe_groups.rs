//! Groups of recipes: regrouping combines recipes, because a frame and a footer row for each take more space
//! than the recipe.
//!
//! Invariants: a recipe enters a group unchanged, after its hash was checked, and is read back from there
//! before its old pack is removed. Its hash names it and no table holds it ([`super::unnamed`]); footers are
//! compressed with these groups ([`super::compact`]).

use super::Store;
use super::append::Frames;
use super::entry::Entry;
use super::error::StoreError;
use super::frame::{Header, Kind};
use super::gathered::{Gathered, With};
use crate::id::ChunkId;

/// Byte limit of a group: looking up a file reads and hashes one.
const GROUP_BYTES: u64 = 4 << 10;
/// A longer recipe stays as it is. One longer than a group is a group by itself.
const RECIPE_BYTES_MAX: u32 = 1 << 20;
/// Groups are appended in batches of this many bytes.
const APPEND_BYTES: usize = 1 << 20;

/// Whether a frame is a recipe that can go into a group.
pub(super) fn takes(header: &Header) -> bool {
    header.kind == Kind::Recipe as u8 && header.raw_len <= RECIPE_BYTES_MAX
}

impl Store {
    /// Appends recipes again, as groups.
    pub(super) fn group_recipes(&self, recipes: &[Entry], level: i32) -> Result<(), StoreError> {
        let mut frames = Frames::default();
        let mut group = Gathered::unnamed(Kind::Recipe);
        for Entry { key, address } in recipes {
            let bytes = self.reader.at(*key, address)?;
            if *blake3::hash(&bytes).as_bytes() != *key.id() {
                return Err(self.reader.unlike_its_name(*key, address));
            }
            if !group.has_room(bytes.len(), |bytes, _| bytes <= GROUP_BYTES) {
                frames.group(&group, With::Nothing(level));
                group.clear();
            }
            if frames.bytes.len() >= APPEND_BYTES {
                self.append_moved(&mut frames)?;
                frames.clear();
            }
            group.push(&ChunkId(*key.id()), &bytes);
        }
        if !group.is_empty() {
            frames.group(&group, With::Nothing(level));
        }
        self.append_moved(&mut frames)
    }
}
