//! Check of all stubs of a tree: each has a valid record, and a stored recipe whose chunks the store knows.
//!
//! Stubs are met in the order of the tree. Their recipes and chunks are looked up in the order of the index, many at once, and
//! recipes are read in the order of the packs: one look-up for each would read a block of the index for it.
//!
//! Memory: the paths of [`STUBS_AT_ONCE`] stubs, and [`CHUNKS_AT_ONCE`] chunks.

use crate::backing::stub::Stub;
use crate::contents::error::{OverlayError, Result};
use crate::env::Refusal;
use crate::id::{ChunkId, RecipeId};
use crate::maintain::Maintenance;
use crate::recipe::Recipe;
use crate::store::RecipePlace;
use crate::tree::inode::Content;
use rustix::io::Errno;
use std::collections::HashSet;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Stubs whose recipes are looked up together.
const STUBS_AT_ONCE: usize = 1 << 15;
/// Chunks that are looked up together.
const CHUNKS_AT_ONCE: usize = 1 << 16;

/// A defect of a file, found by [`Maintenance::check_stubs`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The file, below the root.
    pub path: PathBuf,
    /// The defect.
    pub trouble: Trouble,
}

/// Defects of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// It could not be checked, because the system refused. It may well be intact.
    Unchecked(Refusal),
    /// It cannot be read.
    Unreadable(String),
    /// Its record is not valid or is gone, so its content is not known.
    Record(String),
    /// Its recipe is damaged or missing. The text is empty if the store knew that before.
    Recipe(RecipeId, String),
    /// Its recipe has another length than its record, in bytes.
    Length {
        /// The recipe.
        recipe: RecipeId,
        /// Length in the record.
        stub_bytes: u64,
        /// Length of the recipe.
        recipe_bytes: u64,
    },
    /// These chunks of it are damaged or missing, each named once.
    Chunks(Vec<ChunkId>),
}

impl Trouble {
    /// Returns the defect that `error` shows when a file is read.
    fn of(error: &OverlayError) -> Trouble {
        error.refusal().map_or_else(|| Trouble::Unreadable(error.to_string()), Trouble::Unchecked)
    }
}

/// A stub that was met, and its defects.
struct Met {
    path: PathBuf,
    stub: Stub,
    troubles: Vec<Trouble>,
    lost: Vec<ChunkId>,
    refused: Option<Refusal>,
}

/// Chunks to be looked up, each with the stub that needs it.
type Wanted = Vec<(ChunkId, usize)>;

impl Maintenance {
    /// Checks every stub below `path`, and every file that the catalog knows as a stub: its record, its recipe, and that the
    /// store knows each chunk. Does not read chunks: a verification or a read finds damaged ones. Changes nothing. Returns
    /// the number of stubs. `progress` gets that number, and ends the check by returning false.
    ///
    /// O(chunks of all stubs) look-ups.
    pub fn check_stubs(
        &self,
        path: &Path,
        progress: &mut dyn FnMut(u64) -> bool,
        found: &mut dyn FnMut(Finding),
    ) -> Result<u64> {
        let (mut stubs, mut goes_on, mut met) = (0, true, Vec::new());
        self.tree.walk(path, &mut |path, file| {
            let mut report = |trouble| found(Finding { path: path.to_owned(), trouble });
            let inode = match file {
                Ok(inode) => inode,
                Err(e) => return report(Trouble::of(&e.into())),
            };
            if goes_on {
                match self.tree.look_at(&inode) {
                    Ok(Content::Stub(stub) | Content::Hybrid(stub)) => {
                        stubs += 1;
                        met.push(Met::new(path, stub));
                    }
                    Ok(Content::Unknown(reason)) => report(Trouble::Record(reason.to_owned())),
                    Ok(Content::Plain(Some(_))) => {}
                    Ok(Content::Plain(None)) => match self.tree.lost_record(&inode, path) {
                        Ok(None) => {}
                        Ok(Some(reason)) => report(Trouble::Record(reason)),
                        Err(e) => report(Trouble::of(&e)),
                    },
                    Err(e) => report(Trouble::of(&e)),
                }
                goes_on = progress(stubs);
            }
            self.tree.inodes.release(inode);
            if met.len() >= STUBS_AT_ONCE && goes_on {
                goes_on = self.check_met(std::mem::take(&mut met), &mut || progress(stubs), found);
            }
        })?;
        if goes_on {
            self.check_met(met, &mut || progress(stubs), found);
        }
        Ok(stubs)
    }

    /// Checks these stubs, and reports defects in their order. Returns false if `goes_on` did.
    fn check_met(
        &self,
        mut met: Vec<Met>,
        goes_on: &mut dyn FnMut() -> bool,
        found: &mut dyn FnMut(Finding),
    ) -> bool {
        let mut chunks = Wanted::new();
        for (done, (at, place)) in self.places(&met).into_iter().enumerate() {
            if done % 1024 == 0 && !goes_on() {
                return false;
            }
            if let Some(recipe) = self.check_recipe(&mut met[at], place) {
                for part in recipe.chunks().chunks(CHUNKS_AT_ONCE) {
                    chunks.extend(part.iter().map(|chunk| (chunk.id, at)));
                    if chunks.len() >= CHUNKS_AT_ONCE {
                        self.check_chunks(&mut chunks, &mut met);
                    }
                }
            }
        }
        self.check_chunks(&mut chunks, &mut met);
        for Met { path, stub, mut troubles, mut lost, refused } in met {
            let mut once = HashSet::new();
            lost.retain(|id| once.insert(*id));
            match refused {
                Some(refusal) => troubles.push(Trouble::Unchecked(refusal)),
                None if !lost.is_empty() => troubles.push(Trouble::Chunks(lost)),
                None => {}
            }
            // The file may have been removed or rewritten, and its content collected, since it was met.
            if !troubles.is_empty() && !self.still_names(&path, &stub.recipe) {
                continue;
            }
            troubles.into_iter().for_each(|trouble| found(Finding { path: path.clone(), trouble }));
        }
        true
    }

    /// Returns false if the file is gone, or has another content.
    fn still_names(&self, path: &Path, recipe: &RecipeId) -> bool {
        let mut named = false;
        let walked = self.tree.walk(path, &mut |_, file| match file {
            Ok(inode) => {
                named |= match self.tree.look_at(&inode) {
                    Ok(Content::Stub(stub) | Content::Hybrid(stub)) => stub.recipe == *recipe,
                    Ok(Content::Plain(_)) => false,
                    Ok(Content::Unknown(_)) | Err(_) => true,
                };
                self.tree.inodes.release(inode);
            }
            Err(_) => named = true,
        });
        match walked {
            Ok(()) => named,
            Err(OverlayError::Os(Errno::NOENT | Errno::NOTDIR)) => false,
            Err(OverlayError::Io { source, .. }) => {
                !matches!(source.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
            }
            Err(_) => true,
        }
    }

    /// Returns the indices of these stubs with the places of their recipes, in the order of the packs.
    fn places(&self, met: &[Met]) -> Vec<(usize, Option<RecipePlace>)> {
        let mut order: Vec<_> = (0..met.len()).collect();
        order.sort_unstable_by_key(|at| met[*at].stub.recipe);
        let ids: Vec<_> = order.iter().map(|at| met[*at].stub.recipe).collect();
        // If the index fails, the look-up of each stub says so.
        let places = self.contents.store.find_recipes(&ids).unwrap_or_else(|_| vec![None; ids.len()]);
        let mut places: Vec<_> = order.into_iter().zip(places).collect();
        places.sort_by_key(|(_, place)| place.map(|place| place.order()));
        places
    }

    /// Reads the recipe of a stub, if that is possible.
    fn check_recipe(&self, met: &mut Met, place: Option<RecipePlace>) -> Option<std::sync::Arc<Recipe>> {
        let (store, id) = (&self.contents.store, met.stub.recipe);
        // The cache may still have a recipe that is damaged on disk.
        let known = match &place {
            Some(place) => Ok(store.is_undamaged(place)),
            None => store.knows_recipe(&id),
        };
        let recipe = match known.and_then(|known| known.then(|| store.recipe_at(&id, place)).transpose()) {
            Ok(Some(recipe)) => recipe,
            Ok(None) => {
                met.troubles.push(Trouble::Recipe(id, String::new()));
                return None;
            }
            Err(e) => {
                let damaged = || Trouble::Recipe(id, e.to_string());
                met.troubles.push(e.refusal().map_or_else(damaged, Trouble::Unchecked));
                return None;
            }
        };
        if recipe.size() != met.stub.size {
            let (stub_bytes, recipe_bytes) = (met.stub.size, recipe.size());
            met.troubles.push(Trouble::Length { recipe: id, stub_bytes, recipe_bytes });
        }
        Some(recipe)
    }

    /// Looks these chunks up, and notes those that the store does not know with their stubs. Leaves none.
    fn check_chunks(&self, chunks: &mut Wanted, met: &mut [Met]) {
        let mut ids: Vec<_> = chunks.iter().map(|(id, _)| *id).collect();
        ids.sort_unstable();
        ids.dedup();
        let known = self.contents.store.all_known(&ids);
        for (id, at) in chunks.drain(..) {
            let is_known = match (&known, ids.binary_search(&id)) {
                (Ok(known), Ok(place)) => Ok(known[place]),
                // The index fails for one of them: each is asked for.
                _ => self.contents.store.known(&id),
            };
            match is_known {
                Ok(true) => {}
                Ok(false) => met[at].lost.push(id),
                Err(e) => match e.refusal() {
                    Some(refusal) => met[at].refused = Some(refusal),
                    // An index that fails does not show that the chunk exists.
                    None => met[at].lost.push(id),
                },
            }
        }
    }
}

impl Met {
    fn new(path: &Path, stub: Stub) -> Met {
        Met { path: path.to_owned(), stub, troubles: Vec::new(), lost: Vec::new(), refused: None }
    }
}
