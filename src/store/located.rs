//! Look-ups of many recipes and chunks at once: each block of the index is read once for all of them in it.

use super::Store;
use super::entry::Entry;
use super::error::StoreError;
use super::frame::Key;
use crate::id::{ChunkId, RecipeId};
use crate::recipe::Recipe;
use std::sync::Arc;

/// Place of a recipe in the packs. Ordered as they are there, so that reads in this order go forward on the disk.
#[derive(Clone, Copy)]
pub struct RecipePlace(Entry);

impl RecipePlace {
    /// Returns the pack and the offset in it.
    pub fn order(&self) -> (u32, u32) {
        (self.0.address.pack, self.0.address.offset)
    }
}

impl Store {
    /// Returns the places of these recipes, which must be in ascending order.
    pub fn find_recipes(&self, ids: &[RecipeId]) -> Result<Vec<Option<RecipePlace>>, StoreError> {
        let found = self.reader.index.find_recipes(ids)?;
        Ok(found.into_iter().map(|entry| entry.map(RecipePlace)).collect())
    }

    /// Whether the recipe at `place` is not known to be damaged.
    pub fn is_undamaged(&self, place: &RecipePlace) -> bool {
        !self.reader.is_damaged(&place.0.key)
    }

    /// As [`Store::recipe`], for a recipe that was found at `place` a moment ago.
    pub fn recipe_at(&self, id: &RecipeId, place: Option<RecipePlace>) -> Result<Arc<Recipe>, StoreError> {
        let place = place.map(|place| place.0);
        let recipe = self.reader.recipe_at(id, place)?;
        self.reader.use_recipe(&recipe, place.map(|place| place.key));
        Ok(recipe)
    }

    /// As [`Store::known`] for many chunks, in ascending order.
    pub fn all_known(&self, chunks: &[ChunkId]) -> Result<Vec<bool>, StoreError> {
        self.reader.all_known(&chunks.iter().map(Key::chunk).collect::<Vec<_>>())
    }
}
