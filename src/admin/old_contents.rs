//! Former contents of files from the store, for a sync that sends changes against them.

use super::AdminError;
use crate::contents::OverlayError;
use crate::id::RecipeId;
use crate::repo::Repo;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Maximum bytes of contents that are read together.
const READ_BYTES_MAX: u64 = 8 << 20;

/// The requested recipes that the store has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OldContentsReport {
    /// In the order of the request.
    pub found: Vec<bool>,
}

/// Returns the name, in the state directory, of the file for a recipe's content.
pub fn old_content_file(recipe: &RecipeId) -> PathBuf {
    Path::new("sync").join(format!("past-{recipe}"))
}

/// Looks for `recipes` (hexadecimal); with `write`, writes them to [`old_content_file`], which must not exist.
/// Damaged or missing contents count as not found, which does no harm.
pub(super) fn old_contents(
    repo: &Repo,
    recipes: &[String],
    write: bool,
) -> Result<OldContentsReport, AdminError> {
    let mut found = Vec::new();
    for recipe in recipes {
        let id: Option<RecipeId> = recipe.parse().ok();
        found.push(match id {
            Some(id) if write => give(repo, &id)?,
            Some(id) => whole(repo, &id).is_some(),
            None => false,
        });
    }
    Ok(OldContentsReport { found })
}

/// The contents of recipes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContentsReport {
    /// The BLAKE3 hash of the whole content for each recipe of the request, if it has one chunk: it is the id of that.
    pub contents: Vec<Option<String>>,
}

/// Looks up the contents of `recipes` (hexadecimal).
pub(super) fn contents(repo: &Repo, recipes: &[String]) -> ContentsReport {
    let content = |recipe: &String| {
        let recipe = repo.overlay().store().recipe(&recipe.parse().ok()?).ok()?;
        let [only] = recipe.chunks() else { return None };
        Some(only.id.to_string())
    };
    ContentsReport { contents: recipes.iter().map(content).collect() }
}

/// Contents that were written to [`contents_file`], one after the other.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadReport {
    /// The bytes of each recipe of the request; `None` for one that cannot be read.
    pub bytes: Vec<Option<u64>>,
}

/// Returns the name, in the state directory, of the file with contents that were read together.
pub fn contents_file() -> PathBuf {
    Path::new("sync").join("past-together")
}

/// Writes the contents of `recipes` (hexadecimal) to [`contents_file`], which must not exist. Those beyond
/// [`READ_BYTES_MAX`] count as not readable.
pub(super) fn read(repo: &Repo, recipes: &[String]) -> Result<ReadReport, AdminError> {
    let store = repo.overlay().store();
    let _pin = store.pin();
    let mut all = Vec::new();
    let mut content = |recipe: &String| {
        let recipe = store.recipe(&recipe.parse().ok()?).ok()?;
        let begin = all.len();
        if begin as u64 + recipe.size() > READ_BYTES_MAX {
            return None;
        }
        for chunk in recipe.chunks() {
            match store.read(&chunk.id) {
                Ok(bytes) => all.extend_from_slice(&bytes),
                Err(_) => {
                    all.truncate(begin);
                    return None;
                }
            }
        }
        Some(recipe.size())
    };
    let bytes = recipes.iter().map(&mut content).collect();
    let path = repo.state_file(contents_file());
    let io = |e| AdminError::Overlay(OverlayError::io("write", repo.layout().state.join(contents_file()), e));
    let mut file = File::options().write(true).create_new(true).mode(0o600).open(&path).map_err(io)?;
    if let Err(e) = file.write_all(&all) {
        let _ = std::fs::remove_file(&path);
        return Err(io(e));
    }
    Ok(ReadReport { bytes })
}

/// Returns the recipe if all its chunks are there.
fn whole(repo: &Repo, id: &RecipeId) -> Option<std::sync::Arc<crate::recipe::Recipe>> {
    let store = repo.overlay().store();
    let recipe = store.recipe(id).ok()?;
    recipe.chunks().iter().all(|chunk| store.known(&chunk.id).unwrap_or(false)).then_some(recipe)
}

fn give(repo: &Repo, id: &RecipeId) -> Result<bool, AdminError> {
    let store = repo.overlay().store();
    let _pin = store.pin();
    let Some(recipe) = whole(repo, id) else { return Ok(false) };
    let path = repo.state_file(old_content_file(id));
    let io =
        |e| AdminError::Overlay(OverlayError::io("write", repo.layout().state.join(old_content_file(id)), e));
    let mut file =
        BufWriter::new(File::options().write(true).create_new(true).mode(0o600).open(&path).map_err(io)?);
    for chunk in recipe.chunks() {
        let bytes = match store.read(&chunk.id) {
            Ok(bytes) => bytes,
            Err(e) => {
                let _ = std::fs::remove_file(&path);
                tracing::debug!("{id}: {e}");
                return Ok(false);
            }
        };
        file.write_all(&bytes).map_err(io)?;
    }
    file.flush().map_err(io)?;
    Ok(true)
}
