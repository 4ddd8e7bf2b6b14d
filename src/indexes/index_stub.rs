//! Stubs whose content the indexes do not know.

use super::Indexes;
use crate::backing::stub::Stub;
use crate::contents::Indexing;
use crate::contents::collection::Stored;
use crate::contents::error::Result;
use crate::contents::ingest::{is_small, sketch_of};
use crate::similarity::exact::Source;
use crate::tree::inode::Inode;

impl Indexes {
    /// Adds a stub that the index does not know to it, from its chunks, as far as `indexing` says.
    pub(crate) fn index_stub(&self, inode: &Inode, stub: &Stub, indexing: Indexing) -> Result<bool> {
        let known = self.catalog.file(inode.file_id())?.is_some_and(|row| row.recipe == stub.recipe);
        if !known {
            let mut stat = rustix::fs::fstat(&inode.path_fd()?)?;
            stat.st_size = stub.size as i64;
            self.tree.record(inode, stub.recipe, &stat)?;
        }
        if indexing == Indexing::Off {
            return Ok(!known);
        }
        let sketched = {
            let _adding = self.forgetting.adding();
            self.contents.similarity.has_content(&stub.recipe)?
        };
        let open = || {
            let recipe = self.tree.recipe_of(inode, stub)?;
            Ok(Box::new(Stored::of(&self.contents.store, recipe)) as Box<dyn Source>)
        };
        let viewed = indexing == Indexing::Full && self.catch_up_view(inode, stub.recipe, !sketched, open)?;
        if known && sketched {
            return Ok(viewed);
        }
        if !sketched {
            let recipe = self.tree.recipe_of(inode, stub)?;
            let (mut writer, small) = (self.contents.store.writer(), is_small(recipe.size()));
            for chunk in recipe.chunks() {
                if !self.contents.similarity.knows_chunk(&chunk.id)? {
                    let bytes = self.contents.store.read(&chunk.id)?;
                    let sketch = sketch_of(&mut writer, indexing, small, &chunk.id, &bytes)?;
                    self.contents.similarity.add_chunk(chunk.id, sketch)?;
                    self.throttle.spend(u64::from(chunk.len));
                }
            }
            let stored = recipe.clone();
            self.index_content(stub.recipe, &recipe, indexing, || {
                Ok(Box::new(Stored::of(&self.contents.store, stored)))
            })?;
        }
        Ok(true)
    }
}
