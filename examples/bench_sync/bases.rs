//! Bases for each changed content: by path, and by the similarity index of the old tree.

use crate::journal::Changed;
use crate::tree::{Kind, Tree};
use dedupfs::chunk::ChunkParams;
use dedupfs::db::MemDb;
use dedupfs::id::{ChunkId, RecipeId};
use dedupfs::recipe::{ChunkRef, Recipe};
use dedupfs::similarity::{QuerySketch, Similarity, SimilarityOptions, Sketch};
use dedupfs::sync::delta::{BaseId, Bases, ReadAt, Resemblance, choose};
use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// The files of the old tree; their numbers are their ranks.
pub struct OldFiles<'t>(pub &'t Tree);

impl Bases for OldFiles<'_> {
    fn open(&self, base: BaseId) -> io::Result<Option<Box<dyn ReadAt + '_>>> {
        let Some((path, entry)) = self.0.entries.iter().nth(base.0 as usize) else { return Ok(None) };
        if entry.kind != Kind::File {
            return Ok(None);
        }
        Ok(Some(Box::new(std::fs::File::open(self.0.root.join(path))?)))
    }
}

/// Candidates that the index is asked for.
const CANDIDATES: usize = 8;
const CONTAINMENT_MIN: f64 = 0.05;

/// The bases of each changed content. The index is only made if one of them has no older content of its path: two files
/// of one path that do not resemble each other are rare.
pub fn choose_all(old: &Tree, new: &Tree, changed: &[Changed]) -> Vec<Vec<BaseId>> {
    let (index, ranks) =
        if changed.iter().any(|target| target.hint.is_none()) { index(old) } else { (None, HashMap::new()) };
    changed
        .iter()
        .map(|target| {
            let same_path = target.hint.map(BaseId);
            let mut similar = Vec::new();
            if let Some(index) = &index {
                let mut sketch = QuerySketch::new();
                chunks(&new.root.join(&target.path), &mut |bytes| sketch.add_chunk(bytes));
                for found in index.query(&sketch, CONTAINMENT_MIN, CANDIDATES).unwrap().candidates {
                    let base = BaseId(ranks[&found.recipe]);
                    similar.push(Resemblance { base, share: found.containment });
                }
            }
            choose(same_path, &similar)
        })
        .collect()
}

fn index(old: &Tree) -> (Option<Similarity>, HashMap<RecipeId, u64>) {
    let index = Similarity::open(Arc::new(MemDb::new()), SimilarityOptions::default()).unwrap();
    let mut ranks = HashMap::new();
    for ((path, entry), rank) in old.entries.iter().zip(0..) {
        if entry.kind != Kind::File || entry.size == 0 {
            continue;
        }
        let mut recipe = Vec::new();
        chunks(&old.root.join(path), &mut |bytes| {
            let id = ChunkId::of(bytes);
            if !index.knows_chunk(&id).unwrap() {
                index.add_chunk(id, Sketch::of_chunk(bytes)).unwrap();
            }
            recipe.push(ChunkRef { id, len: bytes.len() as u32 });
        });
        let recipe = Recipe::new(recipe);
        index.add_content(recipe.id(), &recipe).unwrap();
        ranks.insert(recipe.id(), rank);
    }
    index.flush().unwrap();
    (Some(index), ranks)
}

fn chunks(path: &Path, each: &mut dyn FnMut(&[u8])) {
    let bytes = std::fs::read(path).unwrap();
    let mut start = 0;
    for len in ChunkParams::default().cut(&bytes, true) {
        let end = start + len as usize;
        each(&bytes[start..end]);
        start = end;
    }
}
