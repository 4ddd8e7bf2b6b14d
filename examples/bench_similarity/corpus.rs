//! Distinct contents, sampled.

use dedupfs::chunk::ChunkParams;
use dedupfs::id::{ChunkId, RecipeId};
use dedupfs::recipe::{ChunkRef, Recipe};
use std::collections::HashSet;
use std::path::{Path, PathBuf};

/// Under this nothing of 64 bytes can be shared.
const BYTES_MIN: u64 = 64;

pub struct File {
    pub path: PathBuf,
    pub bytes: Vec<u8>,
    pub recipe: Recipe,
    pub id: RecipeId,
}

impl File {
    fn read(path: PathBuf) -> File {
        let bytes = std::fs::read(&path).unwrap();
        let mut rest = &bytes[..];
        let chunk = |len| {
            let (chunk, tail) = rest.split_at(len as usize);
            rest = tail;
            ChunkRef { id: ChunkId::of(chunk), len }
        };
        let recipe = Recipe::new(ChunkParams::default().cut(&bytes, true).into_iter().map(chunk).collect());
        File { id: recipe.id(), path, bytes, recipe }
    }

    pub fn chunks(&self) -> impl Iterator<Item = (ChunkId, &[u8])> {
        let mut rest = &self.bytes[..];
        self.recipe.chunks().iter().map(move |chunk| {
            let (bytes, tail) = rest.split_at(chunk.len as usize);
            rest = tail;
            (chunk.id, bytes)
        })
    }
}

/// Up to `count` distinct contents, in the order of a hash of the seed and the name alone: a file of all releases is in
/// the sample or is not.
pub fn sample(dirs: &[PathBuf], count: usize, bytes_max: u64, seed: u64) -> Vec<File> {
    let mut paths = Vec::new();
    dirs.iter().for_each(|dir| walk(dir, bytes_max, &mut paths));
    paths.sort_by_cached_key(|path| {
        let name = path.file_name().unwrap();
        let mut hasher = blake3::Hasher::new();
        hasher.update(&seed.to_le_bytes()).update(name.as_encoded_bytes());
        (*hasher.finalize().as_bytes(), path.clone())
    });
    let mut seen = HashSet::new();
    paths.into_iter().map(File::read).filter(|file| seen.insert(file.id)).take(count).collect()
}

pub fn described(files: &[File]) -> String {
    let mut sizes: Vec<_> = files.iter().map(|file| file.bytes.len()).collect();
    sizes.sort_unstable();
    let all: usize = sizes.iter().sum();
    let middle = sizes[sizes.len() / 2];
    format!("{} contents, {:.1} MB, median {middle} bytes", files.len(), all as f64 / 1e6)
}

fn walk(dir: &Path, bytes_max: u64, out: &mut Vec<PathBuf>) {
    let Ok(entries) = std::fs::read_dir(dir) else { return };
    for entry in entries.flatten() {
        let meta = entry.metadata().unwrap();
        if meta.is_dir() {
            walk(&entry.path(), bytes_max, out);
        } else if meta.is_file() && (BYTES_MIN..=bytes_max).contains(&meta.len()) {
            out.push(entry.path());
        }
    }
}
