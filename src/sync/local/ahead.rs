//! Small contents that are sent next, and the former contents that they are compared with, read from the store together: a
//! question to the daemon for each would take longer than sending it.

use super::super::error::SyncError;
use super::super::tree::ContentId;
use crate::id::RecipeId;
use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of contents that are read together, and the minimum that is worth it.
const CONTENTS_MAX: usize = 500;
const CONTENTS_MIN: usize = 4;
/// Maximum bytes of one of them, and of all.
const CONTENT_BYTES_MAX: u64 = 64 << 10;
const BYTES_MAX: u64 = 4 << 20;

/// Reads contents by their recipes.
type Read<'a> = dyn FnMut(&[RecipeId]) -> Result<Vec<Option<Vec<u8>>>, SyncError> + 'a;

/// Contents that were read.
#[derive(Default)]
pub(super) struct Ahead {
    read: BTreeMap<ContentId, Vec<u8>>,
    /// The contents that were read or left out.
    looked_at: BTreeSet<ContentId>,
}

impl Ahead {
    /// Returns a content that was read.
    pub(super) fn take(&mut self, content: ContentId) -> Option<Vec<u8>> {
        self.read.remove(&content)
    }

    /// Reads some of the contents that are opened `next`, with their sizes in bytes. Call this before each of them is opened.
    pub(super) fn fill(
        &mut self,
        next: &mut dyn Iterator<Item = (ContentId, u64)>,
        recipe_of: &dyn Fn(ContentId) -> Option<RecipeId>,
        read: &mut Read<'_>,
    ) -> Result<(), SyncError> {
        let Some(first) = next.next().filter(|(first, _)| !self.looked_at.contains(first)) else {
            return Ok(());
        };
        self.looked_at = BTreeSet::from([first.0]);
        let (mut wanted, mut bytes) = (Vec::new(), 0);
        for (content, size) in std::iter::once(first).chain(next).take(CONTENTS_MAX) {
            bytes += size;
            if size > CONTENT_BYTES_MAX || bytes > BYTES_MAX {
                break;
            }
            self.looked_at.insert(content);
            wanted.extend(recipe_of(content).map(|recipe| (content, recipe)));
        }
        self.fill_with(wanted, read)
    }

    /// Reads these contents, as far as the daemon gives them.
    pub(super) fn fill_with(
        &mut self,
        wanted: Vec<(ContentId, RecipeId)>,
        read: &mut Read<'_>,
    ) -> Result<(), SyncError> {
        self.read.clear();
        if wanted.len() < CONTENTS_MIN {
            return Ok(());
        }
        let recipes: Vec<RecipeId> = wanted.iter().map(|(_, recipe)| *recipe).collect();
        let found = wanted.into_iter().zip(read(&recipes)?);
        let found = found.filter_map(|((content, _), found)| Some((content, found?)));
        // Only a content that is the right one: the file may have changed since it was examined.
        self.read = found.filter(|(content, bytes)| ContentId::of(bytes) == *content).collect();
        Ok(())
    }
}
