//! A directory tree that was read by a method.

use super::files::{feed, open_regular, same_bytes, walk};
use super::winnow;
use crate::contents::Look;
use crate::contents::error::{OverlayError, Result};
use crate::db::MemDb;
use crate::id::RecipeId;
use crate::query::with_paths::{self, Asked, FilesAlike, LikeGroups, PairsWithPaths, WithPaths};
use crate::similarity::SimilarityError;
use crate::similarity::methods::winnow::{Base, PairOptions, Query};
use crate::similarity::methods::{AnyMethod, AnySketch, Found, Index, IndexOptions, PairsAsked, Sketcher};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A larger sketch is sorted on disk.
const SKETCH_BYTES: usize = 64 << 20;

/// The regular files below a directory, as a method sees them.
pub struct Tree {
    root: PathBuf,
    look: Option<Look>,
    index: Index,
    named: BTreeMap<RecipeId, WithPaths>,
    unreadable: Vec<(PathBuf, String)>,
}

impl Tree {
    /// Reads every regular file below `root`, or `root` itself. [`Tree::unreadable`] lists files that cannot be read.
    ///
    /// `progress` gets the files and bytes read so far; false asks to stop.
    pub fn read(
        root: &Path,
        method: Arc<dyn AnyMethod>,
        progress: &mut dyn FnMut(u64, u64) -> bool,
    ) -> Result<Tree> {
        Tree::read_all(&[(root, Path::new(""))], method, None, progress)
    }

    /// As [`Tree::read`] for several directories, each with a prefix for the names of its files. `look` selects the bytes; by
    /// default they are taken as they are.
    pub fn read_all(
        roots: &[(&Path, &Path)],
        method: Arc<dyn AnyMethod>,
        look: Option<Look>,
        progress: &mut dyn FnMut(u64, u64) -> bool,
    ) -> Result<Tree> {
        let index = Index::open(Arc::new(MemDb::new()), method, IndexOptions::default())?;
        let root = roots.first().map(|(root, _)| root.to_path_buf()).unwrap_or_default();
        let mut tree = Tree { root, look, index, named: BTreeMap::new(), unreadable: Vec::new() };
        let (mut files, mut bytes) = (0, 0);
        let mut unreadable = Vec::new();
        for (root, front) in roots {
            walk(root, &mut unreadable, &mut |path, below| {
                bytes += tree.add(path, &front.join(below))?;
                files += 1;
                if progress(files, bytes) { Ok(()) } else { Err(SimilarityError::Interrupted.into()) }
            })?;
        }
        tree.unreadable = unreadable;
        tree.index.flush()?;
        Ok(tree)
    }

    fn add(&mut self, path: &Path, below: &Path) -> Result<u64> {
        let (id, sketch, size) = sketch(self.index.method(), path, self.look)?;
        if size == 0 {
            // An empty file is like no other.
            return Ok(0);
        }
        self.index.add(id, &sketch)?;
        let named = self.named.entry(id).or_default();
        named.size = size;
        named.paths.push(below.to_owned());
        Ok(size)
    }

    /// Returns files that could not be read, with the reason.
    pub fn unreadable(&self) -> &[(PathBuf, String)] {
        &self.unreadable
    }

    /// Number of different contents.
    pub fn contents(&self) -> usize {
        self.named.len()
    }

    /// Returns the index, and the names of contents.
    pub fn index(&self) -> (&Index, &BTreeMap<RecipeId, WithPaths>) {
        (&self.index, &self.named)
    }

    /// Returns files like the one at `path`, in the tree or not, whose likeness scores at least `score_min`; identical ones first,
    /// then the best. Leaves out the file itself. If the method measures a distance, files of one size at distance 0 are
    /// compared byte by byte.
    pub fn similar(&self, path: &Path, score_min: f64, limit: usize) -> Result<FilesAlike> {
        let (id, sketch, _) = sketch(self.index.method(), path, self.look)?;
        let found = self.index.query(&sketch, 0.0, usize::MAX)?;
        let mut found =
            self.named_matches(path, Asked { name: path.file_name(), id, sketch }, found, score_min, limit)?;
        let size = path.metadata().map_err(|e| OverlayError::io("open", path, e))?.len();
        for found in
            found.files.iter_mut().filter(|found| found.likeness.distance == Some(0.0) && found.size == size)
        {
            found.identical = same_bytes(path, &self.root.join(&found.path))?;
        }
        Ok(found)
    }

    /// As [`Tree::similar`] for a tree that winnowing has read, with the options of `query`.
    pub fn similar_as(&self, path: &Path, query: &Query, score_min: f64, limit: usize) -> Result<FilesAlike> {
        let (id, sketch, _) = sketch(self.index.method(), path, self.look)?;
        let with_places = winnow::read_sketch(&query.winnow(), path, self.look)?;
        let found = query.ask(&self.index, &with_places, 0.0)?;
        self.named_matches(path, Asked { name: path.file_name(), id, sketch }, found, score_min, limit)
    }

    fn named_matches(
        &self,
        path: &Path,
        asked: Asked<'_>,
        found: Vec<Found>,
        score_min: f64,
        limit: usize,
    ) -> Result<FilesAlike> {
        let names = &mut |id: &RecipeId| Ok(self.named.get(id).cloned());
        let found = with_paths::matches(&self.index, asked, found, names, score_min, limit)?;
        let itself = path.canonicalize().ok();
        let is_itself = |path: &Path| itself.is_some() && self.root.join(path).canonicalize().ok() == itself;
        Ok(with_paths::without(found, is_itself, limit))
    }

    /// Returns files with those that are like them, by name of the first; each set of files once. Contents with several names
    /// are groups too.
    pub fn groups(&self, score_min: f64) -> Result<LikeGroups> {
        self.groups_excluding(&Base::default(), score_min)
    }

    /// As [`Tree::groups`], but passages in the base count nothing.
    pub fn groups_excluding(&self, base: &Base, score_min: f64) -> Result<LikeGroups> {
        let asked = PairsAsked { score_min, without: base.hashes().clone(), ..PairsAsked::default() };
        with_paths::groups(&self.index, &self.named, &asked, &mut |_| true)
    }

    /// Pairs of files of a tree that winnowing has read, those with most fingerprints in common first.
    pub fn pairs(&self, base: &Base, options: &PairOptions) -> Result<PairsWithPaths> {
        with_paths::pairs(&self.index, &self.named, base, options)
    }
}

/// Returns a file's id by its bytes, its sketch without its name, and its length.
fn sketch(
    method: &Arc<dyn AnyMethod>,
    path: &Path,
    look: Option<Look>,
) -> Result<(RecipeId, AnySketch, u64)> {
    let dir = std::env::temp_dir();
    let (mut sketcher, mut hasher) =
        (Sketcher::new(method.clone(), None, &dir, SKETCH_BYTES), blake3::Hasher::new());
    let mut file = open_regular(path)?;
    let mut size = 0;
    feed(&mut file, path, None, &mut |bytes| {
        hasher.update(bytes);
        size += bytes.len() as u64;
        if look.is_none() { Ok(sketcher.add(bytes)?) } else { Ok(()) }
    })?;
    if look.is_some() {
        feed(&mut file, path, look, &mut |bytes| Ok(sketcher.add(bytes)?))?;
    }
    let mut id = [0; 16];
    hasher.finalize_xof().fill(&mut id);
    Ok((RecipeId(id), sketcher.finish()?, size))
}
