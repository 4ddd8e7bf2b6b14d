//! Containment of one directory in another, by content, and the missing parts.
//!
//! Invariants: a byte counts as contained only if a file of the holder has it, in an identical file, in a
//! common chunk, or in a substring of 32 bytes or more that was compared. Parts that were not compared
//! because the budget ran out may be contained too; so figures are lower bounds, and the report counts these
//! files.
//!
//! Memory: about 50 bytes for each chunk of the tree. A holder outside the overlay also needs an index of
//! about 5% of its bytes.

use crate::backing::plain::Plain;
use crate::contents::collection::COMPARE_MEMORY;
use crate::contents::error::{OverlayError, Result};
use crate::db::MemDb;
use crate::id::{ChunkId, RecipeId};
use crate::query::{Queries, text};
use crate::recipe::{ChunkRef, Recipe};
use crate::similarity::exact::{Ranges, Source, covered};
use crate::similarity::{Boilerplate, QuerySketch, Similarity, SimilarityOptions, Sketch};
use crate::tree::inode::Content;
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Candidates compared with a file.
const CANDIDATES_MAX: usize = 8;
/// A content is no candidate if less than this share of it is in the file, and less than this of the file in it.
const CANDIDATE_SHARE_MIN: f64 = 0.02;
/// Shorter rests are not searched: a match has 32 bytes.
const REST_BYTES_MIN: u64 = 32;
/// Parts that are not contained, listed for each file.
const MISSING_MAX: usize = 16;
const INDEX_BUFFER_BYTES: usize = 64 << 20;

/// A directory, or a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// In the overlay, below its root.
    Inside(PathBuf),
    /// Anywhere else, absolute.
    Outside(PathBuf),
}

/// Containment of a file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ContainedFile {
    /// Path below the tree.
    #[serde(serialize_with = "text::lossy")]
    pub path: PathBuf,
    /// Its length in bytes.
    pub size: u64,
    /// Bytes of it that the holder has.
    pub contained_bytes: u64,
    /// Share of it that the holder has; 1 if it is empty.
    pub share: f64,
    /// Whether the holder has an identical file.
    pub identical: bool,
    /// The file of the holder that has the most of it, as far as files were compared.
    #[serde(serialize_with = "text::lossy_if_any")]
    pub holder: Option<PathBuf>,
    /// The first parts of it that are not contained: offset and length in bytes.
    pub missing: Vec<(u64, u64)>,
    /// Whether candidates were left out for lack of budget.
    pub unfinished: bool,
}

/// How much of a tree is contained.
#[derive(Clone, Debug, Default)]
pub struct TreeContained {
    /// By path.
    pub files: Vec<ContainedFile>,
    /// Files of the holder.
    pub holder_files: u64,
    /// Files of either side that could not be read; the log names them.
    pub errors: u64,
    /// Bytes of both sides that were compared.
    pub compared_bytes: u64,
}

/// Returns the share of `whole` that `part` is; 1 without bytes.
pub(crate) fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 1.0 } else { part as f64 / whole as f64 }
}

/// A file of the tree.
struct Entry {
    path: PathBuf,
    recipe: Recipe,
    id: RecipeId,
    identical: Option<PathBuf>,
}

/// Gets a file: its path below the root, or absolute, and its content.
type Visit<'a> = dyn FnMut(&Path, Result<Arc<Recipe>>) -> bool + 'a;

/// The contents that the holder has, to compare the tree with.
struct Holder<'a> {
    place: Option<&'a Place>,
    tree: &'a Place,
    /// The index in which candidates are found.
    index: Arc<Similarity>,
    /// For a holder outside: a file with each content.
    files: HashMap<RecipeId, PathBuf>,
    chunks: HashSet<ChunkId>,
}

impl Queries {
    /// Returns how much of the files at or below `tree` is contained in those at or below `holder`, without the tree's own; or
    /// in all others of the overlay. Compares about `budget_bytes` at most. `progress` gets the files read so far,
    /// and ends the work by returning false.
    pub fn contained(
        &self,
        tree: &Place,
        holder: Option<&Place>,
        budget_bytes: u64,
        progress: &mut dyn FnMut(u64) -> bool,
    ) -> Result<TreeContained> {
        let mut report = TreeContained::default();
        let (mut entries, mut seen) = (Vec::new(), 0);
        self.each_file(tree, &mut |path, recipe| {
            match recipe {
                Ok(recipe) => {
                    let (id, path) = (recipe.id(), path.to_owned());
                    entries.push(Entry { path, recipe: (*recipe).clone(), id, identical: None });
                }
                Err(e) => report.errors += told(path, &e),
            }
            seen += 1;
            progress(seen)
        })?;
        let mut found =
            self.holder(tree, holder, &mut entries, &mut report, &mut |files| progress(seen + files))?;
        // Files that miss most are compared first.
        let contained: Vec<Ranges> = entries.iter().map(|entry| entry.contained(&found.chunks)).collect();
        let mut order: Vec<usize> = (0..entries.len()).collect();
        order.sort_by_key(|&i| std::cmp::Reverse(entries[i].recipe.size() - contained[i].bytes()));
        let mut files: Vec<Option<ContainedFile>> = vec![None; entries.len()];
        for i in order {
            let left = budget_bytes.saturating_sub(report.compared_bytes);
            let (file, compared) =
                self.file_contained(tree, &entries[i], contained[i].clone(), &mut found, left);
            report.compared_bytes += compared;
            files[i] = Some(file);
            seen += 1;
            if !progress(seen) {
                break;
            }
        }
        report.files = files.into_iter().flatten().collect();
        report.files.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(report)
    }

    /// Collects the holder's chunks and contents, to compare the tree with.
    fn holder<'a>(
        &self,
        tree: &'a Place,
        place: Option<&'a Place>,
        entries: &mut [Entry],
        report: &mut TreeContained,
        progress: &mut dyn FnMut(u64) -> bool,
    ) -> Result<Holder<'a>> {
        let mut wanted: HashSet<ChunkId> = HashSet::new();
        let mut same: HashMap<RecipeId, Option<PathBuf>> = HashMap::new();
        for entry in entries.iter() {
            wanted.extend(entry.recipe.chunks().iter().map(|chunk| chunk.id));
            same.insert(entry.id, None);
        }
        let mut holder = Holder {
            place,
            tree,
            index: self.contents.similarity.clone(),
            files: HashMap::new(),
            chunks: HashSet::new(),
        };
        let everything = Place::Inside(PathBuf::new());
        let outside = matches!(place, Some(Place::Outside(_)));
        if outside {
            let options =
                SimilarityOptions { buffer_bytes: INDEX_BUFFER_BYTES, ..SimilarityOptions::default() };
            holder.index = Arc::new(Similarity::open(Arc::new(MemDb::new()), options)?);
        }
        let mut failed = None;
        self.each_file(place.unwrap_or(&everything), &mut |path, recipe| {
            if is_in(path, place.unwrap_or(&everything), tree) {
                return true;
            }
            match recipe {
                Ok(recipe) => {
                    report.holder_files += 1;
                    let id = recipe.id();
                    if let Some(found) = same.get_mut(&id) {
                        found.get_or_insert_with(|| path.to_owned());
                    }
                    let chunks = recipe.chunks().iter().map(|chunk| chunk.id);
                    holder.chunks.extend(chunks.filter(|chunk| wanted.contains(chunk)));
                    if outside && !holder.files.contains_key(&id) {
                        if let Err(e) = self.add_outside(&holder.index, path, id, &recipe) {
                            failed = Some(e);
                            return false;
                        }
                        holder.files.insert(id, path.to_owned());
                    }
                }
                Err(e) => report.errors += told(path, &e),
            }
            progress(report.holder_files)
        })?;
        for entry in entries {
            entry.identical = same.get(&entry.id).cloned().flatten();
        }
        failed.map_or(Ok(holder), Err)
    }

    /// Sketches a file outside into an index of its own.
    fn add_outside(&self, index: &Similarity, path: &Path, id: RecipeId, recipe: &Recipe) -> Result<()> {
        let source = Plain::open(path)?;
        let mut chunks = recipe.chunks().iter();
        let mut failed = None;
        let sketched = self.contents.each_chunk(&source, &mut |bytes| {
            let known = chunks.next().map(|chunk| chunk.id);
            if let Some(id) = known.filter(|id| *id == ChunkId::of(bytes)) {
                failed = index.add_chunk(id, Sketch::of_chunk(bytes)).err().or(failed.take());
            }
        });
        sketched.map_err(|e| OverlayError::io("read", path, e))?;
        if let Some(e) = failed {
            return Err(e.into());
        }
        // A file that changed meanwhile lacks a chunk: then it is no candidate.
        let _ = index.add_content(id, recipe);
        Ok(())
    }

    /// Compares a file with the candidates of the index, and returns how many bytes that took.
    fn file_contained(
        &self,
        tree: &Place,
        entry: &Entry,
        mut contained: Ranges,
        holder: &mut Holder<'_>,
        budget: u64,
    ) -> (ContainedFile, u64) {
        let size = entry.recipe.size();
        let mut file = ContainedFile {
            path: below(&entry.path, tree),
            size,
            contained_bytes: size,
            share: 1.0,
            identical: entry.identical.is_some(),
            holder: entry.identical.clone(),
            missing: Vec::new(),
            unfinished: false,
        };
        let mut compared = 0;
        if !file.identical && size - contained.bytes() >= REST_BYTES_MIN {
            match self.compare_with_candidates(tree, entry, &mut contained, holder, budget, &mut compared) {
                Ok(done) => (file.holder, file.unfinished) = done,
                Err(e) => {
                    tracing::warn!("{}: not compared: {e}", entry.path.display());
                    file.unfinished = true;
                }
            }
        }
        if !file.identical {
            file.contained_bytes = contained.bytes();
            file.share = share(file.contained_bytes, size);
            let missing = contained.complement(size);
            file.missing = missing.iter().take(MISSING_MAX).map(|r| (r.start, r.end - r.start)).collect();
        }
        (file, compared)
    }

    /// Adds the ranges that candidates have to `contained`. Returns the one with the most, and whether some were left out.
    fn compare_with_candidates(
        &self,
        tree: &Place,
        entry: &Entry,
        contained: &mut Ranges,
        holder: &Holder<'_>,
        budget: u64,
        compared: &mut u64,
    ) -> Result<(Option<PathBuf>, bool)> {
        let size = entry.recipe.size();
        if *compared + size > budget {
            return Ok((None, true));
        }
        let source = match tree {
            Place::Inside(_) => self.tree.source(&entry.path)?.0,
            Place::Outside(_) => Box::new(Plain::open(&entry.path)?) as Box<dyn Source>,
        };
        let read = |e| OverlayError::io("read", &entry.path, e);
        let mut sketch = QuerySketch::new();
        self.contents.each_chunk(&*source, &mut |bytes| sketch.add_chunk(bytes)).map_err(read)?;
        let none = Boilerplate::default();
        let mut candidates =
            holder.index.query_excluding(&sketch, &none, CANDIDATE_SHARE_MIN, usize::MAX)?.candidates;
        candidates.sort_by_key(|candidate| std::cmp::Reverse(candidate.bytes_common));
        let mut finder = self.catalog.finder(&self.tree.backing);
        let (mut best, mut tried) = (None, 0);
        for candidate in candidates {
            if size - contained.bytes() < REST_BYTES_MIN || tried == CANDIDATES_MAX {
                break;
            }
            let path = match holder.files.is_empty() {
                false => holder.files.get(&candidate.recipe).cloned(),
                true => {
                    let mut paths = Vec::new();
                    for file in self.catalog.holders(&candidate.recipe)? {
                        paths.extend(finder.path_of(file)?);
                    }
                    paths.into_iter().find(|path| holder.has(path))
                }
            };
            let Some(path) = path else { continue };
            if *compared + size + candidate.size > budget {
                return Ok((best.map(|(path, _)| path), true));
            }
            let other = match holder.place {
                Some(Place::Outside(_)) => Plain::open(&path).map(|plain| Box::new(plain) as Box<dyn Source>),
                _ => self.tree.source_of(&candidate.recipe, &mut finder),
            };
            let common = other.and_then(|other| covered(&*source, &*other, COMPARE_MEMORY).map_err(read));
            tried += 1;
            *compared += size + candidate.size;
            match common {
                Ok(common) => {
                    let bytes = common.bytes();
                    if bytes > best.as_ref().map_or(0, |(_, bytes)| *bytes) {
                        best = Some((path, bytes));
                    }
                    *contained = contained.union(&common);
                }
                Err(e) => tracing::warn!("recipe {}: not compared: {e}", candidate.recipe),
            }
        }
        Ok((best.map(|(path, _)| path), false))
    }

    /// Calls `visit` with each regular file at or below a place, until it returns false.
    fn each_file(&self, place: &Place, visit: &mut Visit<'_>) -> Result<()> {
        let mut goes_on = true;
        match place {
            Place::Inside(path) => self.tree.walk(path, &mut |path, inode| {
                let inode = match inode {
                    Ok(inode) => inode,
                    Err(e) => {
                        goes_on = goes_on && visit(path, Err(e.into()));
                        return;
                    }
                };
                let content = if goes_on { self.tree.look_at(&inode) } else { Ok(Content::Plain(None)) };
                let recipe = match content {
                    _ if !goes_on => None,
                    Ok(Content::Stub(stub)) => Some(self.tree.recipe_of(&inode, &stub)),
                    Ok(Content::Unknown(reason)) => Some(Err(self.tree.bad_stub(&inode, reason))),
                    Ok(Content::Plain(_) | Content::Hybrid(_)) => {
                        Some(self.tree.source(path).and_then(|(source, _)| {
                            self.recipe_from(&*source).map_err(|e| OverlayError::io("read", path, e))
                        }))
                    }
                    Err(e) => Some(Err(e)),
                };
                self.tree.inodes.release(inode);
                if let Some(recipe) = recipe {
                    goes_on = visit(path, recipe);
                }
            }),
            Place::Outside(path) => {
                self.walk_outside(path, &mut |path, recipe| {
                    goes_on = goes_on && visit(path, recipe);
                    goes_on
                });
                Ok(())
            }
        }
    }

    /// As [`Tree::walk`](crate::tree::Tree::walk), outside: does not follow symlinks, and skips the state directories of other stores.
    fn walk_outside(&self, path: &Path, visit: &mut Visit<'_>) -> bool {
        let io = |e: io::Error| OverlayError::io("read", path, e);
        let kind = match path.symlink_metadata() {
            Ok(meta) => meta.file_type(),
            Err(e) => return visit(path, Err(io(e))),
        };
        if kind.is_file() {
            let recipe = Plain::open(path).and_then(|file| self.recipe_from(&file).map_err(io));
            return visit(path, recipe);
        }
        if !kind.is_dir() || path.file_name().is_some_and(crate::backing::is_hidden) {
            return true;
        }
        let names = path.read_dir().and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect());
        match names {
            Ok::<Vec<PathBuf>, _>(mut paths) => {
                paths.sort();
                paths.iter().all(|path| self.walk_outside(path, visit))
            }
            Err(e) => visit(path, Err(io(e))),
        }
    }

    /// The recipe that a content would have. O(bytes).
    fn recipe_from(&self, source: &dyn Source) -> io::Result<Arc<Recipe>> {
        let mut chunks = Vec::new();
        self.contents.each_chunk(source, &mut |bytes| {
            chunks.push(ChunkRef { id: ChunkId::of(bytes), len: bytes.len() as u32 });
        })?;
        Ok(Arc::new(Recipe::new(chunks)))
    }
}

impl Entry {
    /// The bytes in chunks that the holder has.
    fn contained(&self, chunks: &HashSet<ChunkId>) -> Ranges {
        let mut ranges = Ranges::default();
        for (i, chunk) in self.recipe.chunks().iter().enumerate() {
            let start = self.recipe.start_of(i);
            if self.identical.is_some() || chunks.contains(&chunk.id) {
                ranges.push(start..start + u64::from(chunk.len));
            }
        }
        ranges
    }
}

impl Holder<'_> {
    /// Whether a file of the overlay is one of the holder's.
    fn has(&self, path: &Path) -> bool {
        let inside = Place::Inside(PathBuf::new());
        let place = self.place.unwrap_or(&inside);
        matches!(place, Place::Inside(dir) if path.starts_with(dir)) && !is_in(path, place, self.tree)
    }
}

/// Whether a file that is at `path` of one place is also one of another.
fn is_in(path: &Path, of: &Place, other: &Place) -> bool {
    match (of, other) {
        (Place::Inside(_), Place::Inside(dir)) | (Place::Outside(_), Place::Outside(dir)) => {
            path.starts_with(dir)
        }
        _ => false,
    }
}

/// Returns a path within a tree, below that tree; for a tree that is a file, its name.
fn below(path: &Path, tree: &Place) -> PathBuf {
    let (Place::Inside(dir) | Place::Outside(dir)) = tree;
    match path.strip_prefix(dir) {
        Ok(rest) if !rest.as_os_str().is_empty() => rest.to_owned(),
        _ => path.file_name().map_or_else(|| path.to_owned(), PathBuf::from),
    }
}

fn told(path: &Path, error: &OverlayError) -> u64 {
    tracing::warn!("{}: left out: {error}", path.display());
    1
}
