//! Groups of recipes: regrouping puts them together, since a frame and a row of a footer for each take more than they do.
//!
//! What must always be true: a recipe goes into a group as it is, hashed, and is read back from there before its old pack goes.
//! It is named by its hash, which no table tells ([`super::unnamed`]), and footers are made with what these groups have
//! ([`super::compact`]).

use super::Store;
use super::append::Frames;
use super::error::StoreError;
use super::frame::{Header, Kind};
use super::gathered::{Gathered, With};
use super::pack::Entry;
use crate::id::ChunkId;

/// Groups have so many bytes at most: whoever looks a file up reads and hashes one.
const GROUP_BYTES: u64 = 4 << 10;
/// A longer recipe stays as it is. One that is longer than groups are is one by itself.
const RECIPE_BYTES_MAX: u32 = 1 << 20;
/// Groups are appended when there are so many bytes of them.
const APPEND_BYTES: usize = 1 << 20;

/// Whether a frame is a recipe that goes into a group.
pub(super) fn takes(header: &Header) -> bool {
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
