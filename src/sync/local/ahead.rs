//! Small contents that are sent next, read from the store together: a question to the daemon for each would take longer than sending it.

use super::super::error::SyncError;
use super::super::tree::ContentId;
use super::Local;
use crate::id::RecipeId;
use std::collections::BTreeMap;

/// Maximum number of contents that are read together, and the minimum that is worth it.
const CONTENTS_MAX: usize = 500;
const CONTENTS_MIN: usize = 4;
/// Maximum bytes of one of them, and of all.
const CONTENT_BYTES_MAX: u64 = 64 << 10;
const BYTES_MAX: u64 = 4 << 20;

/// The contents that were read.
#[derive(Default)]
pub(super) struct Ahead {
    read: BTreeMap<ContentId, Vec<u8>>,
    /// Number of contents to be opened before the next ones are read.
    left: usize,
}

impl Ahead {
    pub(super) fn take(&mut self, content: ContentId) -> Option<Vec<u8>> {
        self.read.remove(&content)
    }
}

impl Local<'_> {
    pub(super) fn read_ahead(
        &mut self,
        next: &mut dyn Iterator<Item = (ContentId, u64)>,
    ) -> Result<(), SyncError> {
        if self.ahead.left > 0 {
            self.ahead.left -= 1;
            return Ok(());
        }
        self.ahead.read.clear();
        let Some(past) = &mut self.past else { return Ok(()) };
        let (mut wanted, mut bytes) = (Vec::new(), 0);
        let (mut looked, cache) = (0, &self.memory.cache);
        for (content, size) in next.take(CONTENTS_MAX) {
            bytes += size;
            if size > CONTENT_BYTES_MAX || bytes > BYTES_MAX {
                break;
            }
            looked += 1;
            let print = self.contents.get(&content).and_then(|path| cache.get(path));
            let recipe = print.filter(|print| print.content == Some(content)).and_then(|print| print.recipe);
            wanted.extend(recipe.map(|recipe| (content, RecipeId(recipe))));
        }
        // The first one is opened now.
        self.ahead.left = looked.max(1) - 1;
        if wanted.len() < CONTENTS_MIN {
            return Ok(());
        }
        let recipes: Vec<RecipeId> = wanted.iter().map(|(_, recipe)| *recipe).collect();
        let found = past.read_together(&recipes)?;
        let found = wanted.into_iter().zip(found).filter_map(|((content, _), found)| Some((content, found?)));
        // Only a content that is the right one: the file may have changed since it was examined.
        self.ahead.read = found.filter(|(content, bytes)| ContentId::of(bytes) == *content).collect();
        Ok(())
    }
}
